"""The steps: what is timed, in which order, and what must be true afterwards.

Every step works below `Context.view`. What is not to be timed (making a directory for it, writing the file it changes)
happens before the clock starts; dirty pages are written back before it, too, so that no step pays for the one before.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

from mounts import Failed

TIMEOUT = 1200.0  # seconds for one step; the slowest peer has taken three minutes for one


class Skipped(Exception):
    """The machine lacks what the step needs; the text says what."""


@dataclass
class Sizes:
    """How much work: everything, or little for trying the benchmark itself."""

    big_mib: int = 512
    random_mib: int = 64
    small_files: int = 10_000
    accesses: int = 20_000
    edited: int = 800
    branch: int = 2_000

    @staticmethod
    def of(quick):
        return Sizes(64, 16, 1_000, 2_000, 100, 200) if quick else Sizes()


@dataclass
class Context:
    base: Path  # the directory everything lives in
    view: Path  # the tree as the peer shows it
    programs: dict
    sizes: Sizes
    env: dict
    remount: Callable[[], None]
    warm: Callable[[], None]  # everything of the lower tree into the kernel's caches
    evidence: dict = field(default_factory=dict)  # step -> what must equal native's

    @property
    def linux(self):
        return self.view / "linux"

    def out(self, name):
        """Where a step's output goes: beside the mount, the same file system for all."""
        return self.base / "out" / name

    def settle(self):
        """Writes back what is dirty on the file system beneath."""
        subprocess.run(["sync", "-f", str(self.base)], check=False)

    def timed(self, argv, cwd=None, name="output"):
        """Seconds that `argv` took; `Failed` when it failed or took longer than `TIMEOUT`."""
        argv = [str(a) for a in argv]
        self.settle()
        with open(self.out(name), "wb") as out, open(self.out("stderr"), "wb") as err:
            start = time.perf_counter()
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.env,
                                     cwd=str(cwd or self.view), start_new_session=True)
            # Not wait(timeout), which polls, up to 50 ms apart.
            late = threading.Timer(TIMEOUT, os.killpg, (child.pid, signal.SIGKILL))
            late.start()
            code = child.wait()
            took = time.perf_counter() - start
            late.cancel()
        if took >= TIMEOUT:
            raise Failed(f"not done after {TIMEOUT:.0f} s")
        if code != 0:
            said = self.out("stderr").read_text(errors="replace").strip().splitlines()
            raise Failed(f"exit {code}: {' | '.join(said[:3])[:400]}")
        return took

    def tool(self, *args):
        return self.timed([self.programs["tool"], *args])


@dataclass
class Step:
    name: str
    label: str
    does: str  # the command, for the reader of the results
    run: Callable[[Context], float]
    needs: tuple = ()  # steps that must have happened
    programs: tuple = ()
    tree: Optional[str] = None  # a directory of the lower tree without which it is skipped


def digest(lines):
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()[:16]


def find(c, step):
    took = c.timed(["find", ".", "-printf", "%s\\n"], c.linux)
    c.evidence[step] = sum(1 for _ in open(c.out("output"), "rb"))
    return took


def rg(c, step):
    took = c.timed(["rg", "-c", "kmalloc_array", "."], c.linux)
    c.evidence[step] = digest(c.out("output").read_bytes().splitlines())
    return took


def git_status(c, step):
    took = c.timed(["git", "status", "--porcelain"], c.linux)
    c.evidence[step] = digest(c.out("output").read_bytes().splitlines())
    return took


def cold(step):
    """The same after a fresh mount. Machines that reclaim idle memory have forgotten some of the lower tree by then."""

    def go(c, name):
        c.warm()
        c.remount()
        return step(c, name)

    return go


def untar(c, _):
    (c.view / "untarred").mkdir()
    return c.timed(["tar", "-xf", c.base / "net.tar", "-C", "untarred"])


def sed(c, _):
    files = sorted(p.relative_to(c.linux) for p in (c.linux / "drivers/media").rglob("*.c"))[: c.sizes.edited]
    c.out("files").write_text("".join(f"{p}\n" for p in files))
    return c.timed(["xargs", "-a", c.out("files"), "sed", "-i", "s/static int/static long/"], c.linux)


def diff_stat(c, step):
    took = c.timed(["git", "diff", "--stat"], c.linux)
    c.evidence[step] = digest(c.out("output").read_bytes().splitlines())
    return took


def random_access(c, _):
    made = c.timed([c.programs["tool"], "write", "random", c.sizes.random_mib])
    assert made > 0
    return c.tool("random", "random", c.sizes.accesses)


def small(verb):
    def go(c, _):
        if verb == "create":
            (c.view / "small").mkdir()
        return c.tool(verb, "small", c.sizes.small_files, 1024)

    return go


def npm(c, _):
    cache = c.base / "home/npm-cache"
    shutil.rmtree(cache, ignore_errors=True)
    return c.timed(["npm", "ci", "--offline", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error",
                    "--cache", cache], c.view / "npm")


def plain(*argv, at="linux"):
    return lambda c, _: c.timed(argv, c.view / at)


LIBRARY = "make -s -j2 -C tools/lib/perf && make -s -j2 -C tools/lib/subcmd"

STEPS = [
    Step("find-cold", "find, fresh mount", "find . -printf '%s\\n'", cold(find)),
    Step("find-warm", "find again", "the same", find, ("find-cold",)),
    Step("rg-cold", "rg, fresh mount", "rg -c kmalloc_array .", cold(rg), (), ("rg",)),
    Step("rg-warm", "rg again", "the same", rg, ("rg-cold",), ("rg",)),
    Step("git-status-cold", "git status, fresh mount", "git status --porcelain", cold(git_status)),
    Step("git-status-warm", "git status again", "the same", git_status, ("git-status-cold",)),
    Step("untar", "untar drivers/net", "tar -xf net.tar", untar),
    Step("sed", "sed -i on 800 files", "xargs -a FILES sed -i 's/static int/static long/'", sed),
    Step("git-diff-stat", "git diff --stat", "git diff --stat", diff_stat, ("sed",)),
    Step("git-checkout", "git checkout, 2,000 files", "git checkout -q changed",
         plain("git", "checkout", "-q", "changed")),
    Step("make", "make -j2 of a small C library", LIBRARY, plain("sh", "-c", LIBRARY), (), ("make", "cc"),
         "linux/tools/lib/perf"),
    Step("cargo-build", "cargo build of a small crate", "cargo build --offline",
         plain("cargo", "build", "--quiet", "--offline", at="crate"), (), ("cargo",), "crate"),
    Step("npm-ci", "npm ci, local tarballs", "npm ci --offline", npm, (), ("npm",), "npm"),
    Step("rm-lower", "rm -rf of two lower directories", "rm -rf fs sound", plain("rm", "-rf", "fs", "sound")),
    Step("rm-untarred", "rm -rf of what was untarred", "rm -rf untarred",
         plain("rm", "-rf", "untarred", at="."), ("untar",)),
    Step("cp", "cp -r kernel", "cp -r kernel kernel-copy", plain("cp", "-r", "kernel", "kernel-copy")),
    Step("mv", "mv of a lower directory", "mv arch arch-moved", plain("mv", "arch", "arch-moved")),
    Step("create", "create small files", "tool create small 10000 1024", small("create")),
    Step("stat", "stat them", "tool stat small 10000", small("stat"), ("create",)),
    Step("unlink", "unlink them", "tool unlink small 10000", small("unlink"), ("create",)),
    Step("random", "random 4 KiB, half writes, fsync", "tool random random 20000", random_access),
    Step("seq-write", "sequential write + fsync", "tool write new 512", lambda c, _: c.tool("write", "new", c.sizes.big_mib)),
    Step("seq-read", "sequential read of it", "tool read new", lambda c, _: c.tool("read", "new"), ("seq-write",)),
    Step("seq-read-lower", "sequential read of a lower file", "tool read big", lambda c, _: c.tool("read", "big")),
    Step("append", "append a byte to a big lower file", "printf x >> big", plain("sh", "-c", "printf x >> big", at=".")),
]

BY_NAME = {s.name: s for s in STEPS}


def with_needs(names):
    """The steps of these names and those they need, in order."""
    wanted, queue = set(), list(names)
    while queue:
        name = queue.pop()
        if name not in wanted:
            wanted.add(name)
            queue.extend(BY_NAME[name].needs)
    return [s for s in STEPS if s.name in wanted]


def check_possible(c, step):
    for program in step.programs:
        if shutil.which(program, path=c.env["PATH"]) is None:
            raise Skipped(f"{program} is not installed, or {c.env['USER']} may not run it")
    if step.tree and not (c.view / step.tree).exists():
        raise Skipped(f"the lower tree has no {step.tree}")


# What may differ between two correct runs (absolute paths of the view are in it, or times), and what a peer hides.
UNSTABLE = (".unionfs-fuse", "linux/.git", "linux/tools/lib", "linux/tools/build", "crate/target",
            "npm/node_modules/.package-lock.json")


def listing(view):
    """Type, mode, size of files, target of symlinks and path of everything, sorted."""
    prune = [w for d in UNSTABLE for w in ("-path", f"./{d}", "-prune", "-o")]
    what = ["-type", "f", "-printf", r"f %m %s %P\n", "-o", "-type", "l", "-printf", r"l %l %P\n", "-o",
            "-printf", r"%y %m %P\n"]
    done = subprocess.run(["find", ".", *prune, *what], cwd=str(view), capture_output=True, timeout=TIMEOUT, check=False)
    lines = sorted(done.stdout.splitlines())
    if done.returncode != 0:
        lines.append(b"find said: " + done.stderr.strip()[:400])
    return lines


def contents(view):
    """A hash of the bytes of what the steps wrote, by path."""
    found = {}
    for name in ("big", "new", "random", "linux/kernel-copy", "linux/drivers/media", "linux/Documentation"):
        top, whole = view / name, hashlib.sha256()
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file() and not p.is_symlink())
        for path in files:
            with open(path, "rb") as f:
                while block := f.read(1 << 20):
                    whole.update(block)
        found[name] = whole.hexdigest()[:16]
    return found
