"""pair.py FILE SEED SECONDS: two processes write to one file in turn, by pwrite and through a mapping, cut it, grow it
and punch holes into it; after each turn the other compares all of it, by pread and through its mapping, with what it
should be. It begins with the content that the file has."""

import ctypes
import mmap
import os
import random
import sys
import time

PUNCH_HOLE_KEEP_SIZE = 3
libc = ctypes.CDLL(None, use_errno=True)


def punch(fd, at, size):
    args = (ctypes.c_int(fd), ctypes.c_int(PUNCH_HOLE_KEEP_SIZE), ctypes.c_long(at), ctypes.c_long(size))
    if libc.fallocate(*args) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


class Side:
    """One process's open file, mapping, and idea of what is in it. Both draw the same random numbers."""

    def __init__(self, path, seed, should):
        self.fd = os.open(path, os.O_RDWR)
        self.random = random.Random(seed)
        self.should = should
        self.map = mmap.mmap(self.fd, len(should))

    def turn(self, mine):
        """One change, which is done if it is this side's turn."""
        size, draw = len(self.should), self.random
        what = draw.choice(["pwrite", "pwrite", "map", "map", "punch", "resize", "fsync"])
        at = draw.randrange(size - 1)
        length = min(draw.randrange(1, 200_000), size - at)
        data = draw.randbytes(length)
        if what == "pwrite":
            if mine and os.pwrite(self.fd, data, at) != length:
                raise OSError("a short write")
            self.should[at : at + length] = data
        elif what == "map":
            if mine:
                self.map[at : at + length] = data
                self.map.flush()
            self.should[at : at + length] = data
        elif what == "punch":
            if mine:
                punch(self.fd, at, length)
            self.should[at : at + length] = bytes(length)
        elif what == "resize":
            new = draw.randrange(9_000_000, 13_000_000)
            if mine:
                os.ftruncate(self.fd, new)
            del self.should[new:]
            self.should.extend(bytes(max(0, new - len(self.should))))
        elif mine:
            os.fsync(self.fd)
        return what, at, length

    def compare(self, what):
        size = os.fstat(self.fd).st_size
        if size != len(self.should):
            sys.exit(f"after {what}: {size} bytes, should be {len(self.should)}")
        self.map.close()
        self.map = mmap.mmap(self.fd, size)
        for name, seen in (("pread", os.pread(self.fd, size, 0)), ("the mapping", self.map)):
            if seen[:] != self.should:
                at = next(i for i in range(size) if seen[i] != self.should[i])
                sys.exit(f"after {what}: {name} is wrong from {at} on")


def play(side, first, hear, tell, end):
    mine, n = first, 0
    while True:
        if not mine:
            message = os.read(hear, 1)
            if message != b"g":
                return n
        what = side.turn(mine)
        if mine:
            go_on = time.monotonic() < end
            os.write(tell, b"g" if go_on else b"e")
            if not go_on:
                return n
        else:
            side.compare(what)
        mine, n = not mine, n + 1


def main():
    path, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with open(path, "rb") as file:
        should = bytearray(file.read())
    (a_hears, b_tells), (b_hears, a_tells) = os.pipe(), os.pipe()
    end = time.monotonic() + seconds
    child = os.fork()
    side = Side(path, seed, should)
    if child == 0:
        for fd in (a_hears, a_tells):
            os.close(fd)
        play(side, False, b_hears, b_tells, end)
        os._exit(0)
    for fd in (b_hears, b_tells):
        os.close(fd)
    n = play(side, True, a_hears, a_tells, end)
    for fd in (a_hears, a_tells):
        os.close(fd)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"the other side ended with {status}")
    print(f"{n} turns")


main()
