"""The file systems that are compared: how each is mounted over DIR/lower, at DIR/mnt, and ended."""

import os
import subprocess
import time
from pathlib import Path

PATIENCE = 60.0  # seconds for a mount to answer, or for a server to end


class Failed(Exception):
    """A mount or a step that did not do what it should; the text is for the results."""


def run(argv, **more):
    """Runs to the end; `Failed` with what it said when it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                          timeout=900, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, argv[:4]))}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def wait_until(happened, what):
    end = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(0.01)


class Peer:
    """One file system. `view` is where the steps work."""

    name = ""
    title = ""
    command = ""
    needs = ()
    in_namespace = False

    def __init__(self, base, programs):
        self.base = Path(base)
        self.programs = programs
        self.lower, self.view = self.base / "lower", self.base / "mnt"
        self.server = None
        self.complaints = []

    def prepare(self):
        for d in ("mnt", "upper", "work"):
            (self.base / d).mkdir(exist_ok=True)

    def mount(self):
        raise NotImplementedError

    def unmount(self):
        raise NotImplementedError

    def pid(self):
        """The process that serves, for its memory; `None` when the kernel does."""
        return self.server.pid if self.server else None

    def after(self):
        """What it did wrong, with checks of its own now that everything is unmounted; a list."""
        return self.complaints

    def mounted(self):
        try:
            return os.stat(self.view).st_dev != os.stat(self.base).st_dev
        except OSError:
            return False

    def serve(self, argv):
        """Starts a server in the foreground, as our child, and waits until the mount answers."""
        log = open(self.base / f"{self.name}.log", "ab")
        self.server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        log.close()
        wait_until(lambda: self.mounted() or self.server.poll() is not None, f"mount of {self.name}")
        if not self.mounted():
            text = (self.base / f"{self.name}.log").read_text(errors="replace").strip()[-500:]
            raise Failed(f"{argv[0]} ended with {self.server.poll()}: {text}")

    def end_server(self):
        run(["fusermount3", "-u", str(self.view)])
        try:
            self.server.wait(PATIENCE)
        except subprocess.TimeoutExpired as e:
            raise Failed(f"{self.name} does not end after its unmount") from e
        self.server = None

    def force_off(self):
        """Whatever happened, nothing stays mounted and no process of ours stays."""
        if self.name != "native" and not self.in_namespace:
            subprocess.run(["fusermount3", "-uz", str(self.view)], capture_output=True, check=False)
        if self.server is not None and self.server.poll() is None:
            self.server.kill()
            self.server.wait()


class Native(Peer):
    name, title, command = "native", "native", "(a copy of the lower tree, used directly)"

    def __init__(self, base, programs):
        super().__init__(base, programs)
        self.view = self.lower

    def mount(self):
        pass

    def unmount(self):
        pass


class KernelOverlay(Peer):
    name, title = "kernel", "kernel overlayfs"
    command = ("unshare -U --map-current-user --keep-caps -m …; "
               "mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr overlay mnt")
    needs = ("unshare", "mount")
    in_namespace = True

    def mount(self):
        b = self.base
        run(["mount", "-t", "overlay", "-o",
             f"lowerdir={b}/lower,upperdir={b}/upper,workdir={b}/work,userxattr", "overlay", str(self.view)])

    def unmount(self):
        run(["umount", str(self.view)])


class FuseOverlayfs(Peer):
    name, title = "fuse-overlayfs", "fuse-overlayfs 2.0"
    command = "fuse-overlayfs -f -o lowerdir=lower,upperdir=upper,workdir=work mnt"
    needs = ("fuse-overlayfs", "fusermount3")

    def mount(self):
        b = self.base
        self.serve([self.programs["fuse-overlayfs"], "-f", "-o",
                    f"lowerdir={b}/lower,upperdir={b}/upper,workdir={b}/work", str(self.view)])

    def unmount(self):
        self.end_server()


class UnionfsFuse(Peer):
    name, title = "unionfs-fuse", "unionfs-fuse"
    command = "unionfs -f -o cow upper=RW:lower=RO mnt"
    needs = ("unionfs", "fusermount3")

    def mount(self):
        b = self.base
        self.serve(["unionfs", "-f", "-o", "cow", f"{b}/upper=RW:{b}/lower=RO", str(self.view)])

    def unmount(self):
        self.end_server()


class SbxFuse(Peer):
    name, title = "sbx-fuse", "sbx-fuse"
    command = "sbx-fuse mount --root lower -s bench mnt"
    needs = ("sbx-fuse", "fusermount3")

    def call(self, *args):
        return run([self.programs["sbx-fuse"], *args], cwd="/")

    def mount(self):
        # Named by the session alone from the second time on.
        self.call("mount", "--root", str(self.lower), "-s", "bench", str(self.view))
        wait_until(self.mounted, "mount of sbx-fuse")

    def unmount(self):
        try:
            self.call("umount", "bench")
        except Failed as e:
            # It may have ended all the same; then the steps go on, and the complaint stands.
            self.complaints.append(str(e))
        wait_until(lambda: self.pid() is None and not self.mounted(), "end of the server")

    def pid(self):
        program = os.path.realpath(self.programs["sbx-fuse"])
        for p in Path("/proc").iterdir():
            if not p.name.isdigit():
                continue
            try:
                words = (p / "cmdline").read_bytes().split(b"\0")
                if os.readlink(p / "exe") == program and b"serve" in words and str(self.view).encode() in words:
                    return int(p.name)
            except OSError:
                continue
        return None

    def after(self):
        try:
            self.call("verify", "-s", "bench")
        except Failed as e:
            self.complaints.append(f"verify: {e}")
        return self.complaints

    def force_off(self):
        pid = self.pid()
        super().force_off()
        if pid is not None and self.pid() == pid:
            os.kill(pid, 9)


PEERS = {p.name: p for p in (Native, KernelOverlay, FuseOverlayfs, UnionfsFuse, SbxFuse)}
