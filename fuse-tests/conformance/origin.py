"""origin.py SEED SECONDS FILE...: fsx writes over the whole of its file before it begins; this begins on the content
that the real files have. Each file has its share of the time: a few steps that only read, then all kinds of changes, by
system calls and through mappings. What is read must be what was written, also by a descriptor and a mapping from before
the first change, and so must the whole file every few steps. Ends with the sum of each file, as sha256sum has it."""

import ctypes
import errno
import hashlib
import mmap
import os
import random
import sys
import time

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd, mode, at, size):
    """False where the file system has not this mode."""
    if libc.fallocate(ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_long(at), ctypes.c_long(size)) == 0:
        return True
    if ctypes.get_errno() == errno.EOPNOTSUPP:
        return False
    raise OSError(ctypes.get_errno(), "fallocate")


class Life:
    """One file, from the real one's content on."""

    def __init__(self, path, draw):
        self.path, self.draw, self.log = path, draw, []
        self.old = os.open(path, os.O_RDONLY)
        self.direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.fd = os.open(path, os.O_RDWR)
        size = os.fstat(self.old).st_size
        self.most = size + size // 8
        # Not by us: what the real file has is only known from reading it.
        self.should = bytearray(os.pread(self.old, size, 0))
        self.oldmap = mmap.mmap(self.old, size, prot=mmap.PROT_READ)

    def end(self):
        self.whole()
        self.oldmap.close()
        for fd in (self.old, self.direct, self.fd):
            os.close(fd)

    def wrong(self, what):
        sys.exit(f"{self.path}: {what}\n" + "\n".join(self.log[-60:]))

    def same(self, what, seen, at):
        should = self.should[at : at + len(seen)]
        if seen != should:
            bad = [i for i in range(len(seen)) if i >= len(should) or seen[i] != should[i]]
            self.wrong(f"{what} is wrong at {at + bad[0]}..{at + bad[-1]}, {len(bad)} bytes")

    def range(self, limit, most=131072):
        at = self.draw.randrange(limit) if limit else 0
        return at, min(self.draw.randrange(1, most + 1), limit - at)

    def put(self, at, data):
        """Into what should be there; bytes between the old end and `at` are zero."""
        self.should.extend(bytes(max(0, at - len(self.should))))
        self.should[at : at + len(data)] = data

    def mapping(self, at, size):
        start = at - at % PAGE
        return mmap.mmap(self.fd, at + size - start, offset=start), at - start

    # What only reads.

    def read(self):
        at, size = self.range(len(self.should))
        fd = self.draw.choice([self.fd, self.old])
        self.same("pread", os.pread(fd, size, at), at)

    def mapread(self):
        at, size = self.range(len(self.should))
        if size:
            seen, skip = self.mapping(at, size)
            with seen:
                self.same("a mapping", seen[skip:], at)
                self.same("the mapping from before", self.oldmap[at : at + size], at)

    def directread(self):
        at, size = self.range(len(self.should))
        at -= at % PAGE
        with mmap.mmap(-1, 131072 + PAGE) as room:
            n = os.preadv(self.direct, [memoryview(room)[: (size + PAGE - 1) // PAGE * PAGE]], at)
            self.same("O_DIRECT", room[:n], at)

    def sendfile(self):
        at, size = self.range(len(self.should), 60_000)
        if size:
            there, here = os.pipe()
            n = os.sendfile(here, self.fd, at, size)
            self.same("sendfile", os.read(there, n), at)
            os.close(there)
            os.close(here)

    def holes(self):
        at, size = 0, len(self.should)
        while at < size:
            try:
                data = os.lseek(self.fd, at, os.SEEK_DATA)
            except OSError as e:
                if e.errno != errno.ENXIO:
                    raise
                data = size
            if self.should[at:data].strip(b"\0"):
                self.wrong(f"a hole at {at}..{data} that has data")
            at = os.lseek(self.fd, data, os.SEEK_HOLE) if data < size else size

    def forget(self):
        """What is not dirty leaves the kernel's memory: the next read asks the file system."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def whole(self):
        size = os.fstat(self.fd).st_size
        if size != len(self.should):
            self.wrong(f"{size} bytes, should be {len(self.should)}")
        for fd, name in ((self.fd, "pread"), (self.old, "pread by the descriptor from before")):
            self.same(name, os.pread(fd, self.most, 0), 0)
        self.same("the mapping from before", self.oldmap[: len(self.should)], 0)

    # What changes.

    def write(self):
        at, size = self.range(self.most)
        data = self.draw.randbytes(size)
        if os.pwrite(self.fd, data, at) != size:
            self.wrong("a short write")
        self.put(at, data)

    def directwrite(self):
        at, size = (n // PAGE * PAGE for n in self.range(self.most))
        with mmap.mmap(-1, 131072 + PAGE) as room:
            room[:size] = data = self.draw.randbytes(size)
            if size and os.pwritev(self.direct, [memoryview(room)[:size]], at) != size:
                self.wrong("a short O_DIRECT write")
        if size:
            self.put(at, data)

    def append(self):
        size = min(self.draw.randrange(1, 5000), self.most - len(self.should))
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        data = self.draw.randbytes(size)
        os.write(fd, data)
        os.close(fd)
        self.put(len(self.should), data)

    def mapwrite(self):
        at, size = self.range(len(self.should))
        if size:
            data = self.draw.randbytes(size)
            seen, skip = self.mapping(at, size)
            with seen:
                seen[skip:] = data
                if self.draw.random() < 0.5:
                    seen.flush()
            self.put(at, data)

    def truncate(self):
        # Seldom far: what is cut off borrows nothing any more.
        low = 0 if self.draw.random() < 0.02 else self.most * 3 // 4
        size = self.draw.randrange(low, self.most)
        os.ftruncate(self.fd, size)
        del self.should[size:]
        self.put(size, b"")

    def punch(self):
        at, size = self.range(len(self.should))
        if size and fallocate(self.fd, PUNCH_HOLE | KEEP_SIZE, at, size):
            self.put(at, bytes(size))

    def zero(self):
        at, size = self.range(self.most)
        if fallocate(self.fd, ZERO_RANGE, at, size):
            self.put(at, bytes(size))

    def allocate(self):
        at, size = self.range(self.most)
        if fallocate(self.fd, 0, at, size):
            self.put(max(len(self.should), at + size), b"")

    def preallocate(self):
        fallocate(self.fd, KEEP_SIZE, *self.range(self.most))

    def copy(self):
        """copy_file_range, within the file: the pieces may not overlap."""
        half = len(self.should) // 2
        (a, size), b = self.range(half), half + self.draw.randrange(half + 1)
        size = min(size, self.most - b)
        if self.draw.random() < 0.5:
            a, b, size = b, a, min(size, len(self.should) - b)
        if size > 0:
            n = os.copy_file_range(self.fd, self.fd, size, a, b)
            self.put(b, self.should[a : a + n])

    def fsync(self):
        self.draw.choice([os.fsync, os.fdatasync])(self.fd)

    def reopen(self):
        os.close(self.fd)
        self.fd = os.open(self.path, os.O_RDWR)


READS = ["read", "mapread", "directread", "sendfile", "holes", "forget"]
CHANGES = READS + """write write directwrite append mapwrite mapwrite truncate punch punch zero allocate preallocate
    copy copy fsync reopen""".split()


def main():
    draw, seconds, paths = random.Random(int(sys.argv[1])), float(sys.argv[2]), sys.argv[3:]
    n, began = 0, time.monotonic()
    for turn, path in enumerate(paths, 1):
        life, step = Life(path, draw), 0
        while step < 20 or time.monotonic() < began + seconds * turn / len(paths):
            what = draw.choice(READS if step < 6 else CHANGES)
            life.log.append(f"{step} {what}")
            getattr(life, what)()
            step += 1
            if step % 8 == 0:
                life.whole()
        life.end()
        n += step
        print(hashlib.sha256(life.should).hexdigest(), "", path)
    print(f"{n} steps on {len(paths)} files", file=sys.stderr)


main()
