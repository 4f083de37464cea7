#!/usr/bin/env python3
"""sbx-fuse against its peers: the same steps, as an unprivileged user, on each file system in turn.

Started by scripts/bench, which installs what is needed. As root, each peer of each round gets a fresh copy of one ext4
image, mounted by a loop device: the same inodes in the same places for all, and nothing of what was removed before
(ext4's inode allocator looks at recently deleted inodes, which distorts timings where trees were just removed). Without
root, everything lives in a directory that is made anew each time.
"""

import argparse
import fcntl
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

import memory
import prepare
import report
from mounts import PEERS, run
from steps import BY_NAME

HERE = Path(__file__).resolve().parent
IMAGE_GIB = 10
LAYOUT = 2  # to be raised when what prepare.py makes changes
TEST_USER = "sbxtest"

note = prepare.note


class Bench:
    def __init__(self, args):
        self.args = args
        self.root = os.getuid() == 0
        self.work = Path(args.dir)
        self.user = pwd.getpwnam(TEST_USER) if self.root else pwd.getpwuid(os.getuid())
        self.base = self.work / "run"
        kind = "quick" if args.quick else "full"
        self.template = self.work / f"template-{kind}-{LAYOUT}{'.img' if self.root else ''}"
        self.image = self.work / "run.img"
        self.programs = {k: str(self.work / "tools/bin" / k) for k in ("sbx-fuse", "tool", "fuse-overlayfs")}
        self.memory = None  # its state, in words

    # The disk

    def attach(self, image):
        self.base.mkdir(exist_ok=True)
        run(["mount", "-o", "loop", str(image), str(self.base)])

    def detach(self):
        """Nothing stays mounted at or below `base`."""
        while True:
            points = [l.split()[4] for l in open("/proc/self/mountinfo")]
            ours = [p for p in points if p == str(self.base) or p.startswith(f"{self.base}/")]
            if not ours:
                return
            done = subprocess.run(["umount", ours[-1]], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                note(f"{ours[-1]} is busy: {done.stderr.strip()}")
                run(["umount", "-l", ours[-1]])

    def fresh(self):
        """A new copy of the prepared lower tree at `base`."""
        if self.root:
            self.detach()
            # A new inode: a loop device that some other namespace keeps alive would be used again, with the old blocks.
            self.image.unlink(missing_ok=True)
            run(["cp", "--sparse=always", str(self.template), str(self.image)])
            run(["sync", "-f", str(self.image)])
            self.attach(self.image)
        else:
            self.clear()
            run(["cp", "-a", str(self.template), str(self.base)])
            run(["sync", "-f", str(self.base)])

    def clear(self):
        if self.root:
            self.detach()
            self.image.unlink(missing_ok=True)
        elif self.base.exists():
            # Overlayfs leaves a directory nobody may enter.
            run(["chmod", "-R", "u+rwX", str(self.base)])
            shutil.rmtree(self.base)

    def prepare_lower(self):
        if self.template.exists():
            return
        note("preparing the lower tree, once; this takes some minutes")
        prepare.extras(self.work / "extra")
        job = {"job": "lower", "tarball": self.args.tarball, "extra": str(self.work / "extra")}
        if not self.root:
            self.clear()
            self.base.mkdir()
            self.expect_done(self.worker(job))
            self.base.rename(self.template)
            return
        part = self.template.with_suffix(".part")
        part.unlink(missing_ok=True)
        with open(part, "wb") as f:
            f.truncate(IMAGE_GIB << 30)
        run(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(part)])
        self.detach()
        self.attach(part)
        os.chown(self.base, self.user.pw_uid, self.user.pw_gid)
        try:
            self.expect_done(self.worker(job))
        finally:
            self.detach()
        part.rename(self.template)

    @staticmethod
    def expect_done(told):
        if not any(t.get("done") for t in told):
            raise SystemExit("bench: the lower tree could not be made, see above")

    # The worker

    def worker(self, job, in_namespace=False):
        """Runs one job as the unprivileged user; what it told, a dictionary a line."""
        job = {"base": str(self.base), "programs": self.programs, "quick": self.args.quick, **job}
        argv = [sys.executable, str(HERE / "worker.py"), json.dumps(job)]
        if in_namespace:
            argv = ["unshare", "-U", "--map-current-user", "--keep-caps", "-m", *argv]
        if self.root:
            ids = [f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups"]
            argv = ["setpriv", *ids, *argv]
        env = {"PATH": self.path(), "USER": self.user.pw_name, "PYTHONDONTWRITEBYTECODE": "1"}
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd="/")
        told = []
        for line in child.stdout:
            word = json.loads(line)
            if "ask" in word:
                child.stdin.write(f"{self.favour(word['ask'])}\n")
                child.stdin.flush()
                continue
            told.append(word)
            show(word)
        if child.wait() != 0:
            told.append({"complaint": f"the worker ended with {child.returncode}"})
        return told

    def favour(self, what):
        """Makes the kernel forget names and inodes; how many of FUSE it still knows then, "no" when that cannot be."""
        if what != "drop-caches" or not self.root:
            return "no"
        run(["sync", "-f", str(self.base)])
        for _ in range(3):  # a directory goes only after what is in it
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
        rows = [line.split() for line in open("/proc/slabinfo") if line.startswith("fuse_inode ")]
        return rows[0][1] if rows else "?"

    def path(self):
        """The toolchain itself comes before rustup's proxies, which would look into the user's home."""
        dirs = [str(self.work / "tools/bin")]
        try:
            dirs.append(run(["rustc", "--print", "sysroot"]).strip() + "/bin")
        except OSError:
            pass
        return ":".join([*dirs, "/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"])

    # The benchmark

    def rounds(self):
        peers = ["native", *(p for p in self.args.peers if p != "native")]
        results = {"machine": report.machine(self), "rounds": [], "steps": self.args.only, "peers": peers,
                   "quick": self.args.quick, "commands": {p: PEERS[p].command for p in peers}}
        for number in range(1, self.args.rounds + 1):
            this = {}
            results["rounds"].append(this)
            for name in peers:
                missing = [n for n in PEERS[name].needs if shutil.which(n, path=self.path()) is None]
                if missing:
                    note(f"{name} is left out: {', '.join(missing)} not found")
                    this[name] = {"complaints": [f"not measured: {', '.join(missing)} not found"], "steps": {}}
                    continue
                start = time.monotonic()
                note(f"round {number} of {self.args.rounds}: {name}")
                self.fresh()
                job = {"job": "measure", "peer": name, "steps": self.args.only}
                told = self.worker(job, PEERS[name].in_namespace)
                this[name] = gather(told)
                if name != "native":
                    this[name]["complaints"] += report.differences(this["native"], this[name])
                for complaint in this[name]["complaints"]:
                    note(f"COMPLAINT about {name}: {complaint}")
                note(f"{name} took {time.monotonic() - start:.0f} s in all")
                # Not lost when a later peer hangs or the machine goes down.
                self.save("results.json", strip(results))
            self.clear()
        return strip(results)

    def save(self, name, results):
        part = self.work / f"{name}.part"
        part.write_text(json.dumps(results, indent=1))
        part.rename(self.work / name)

    def load(self, name):
        path = self.work / name
        return json.loads(path.read_text()) if path.exists() else None

    def figures(self):
        self.fresh()
        told = self.worker({"job": "figures"})
        self.clear()
        return {"machine": report.machine(self), "quick": self.args.quick,
                "figures": [t for t in told if "figure" in t],
                "complaints": [t["complaint"] for t in told if "complaint" in t]}


def show(word):
    if "seconds" in word:
        note(f"  {word['step']:16} {word['seconds']:9.3f} s")
    elif "step" in word:
        note(f"  {word['step']:16} {'skipped: ' + word['skipped'] if 'skipped' in word else 'FAILED: ' + word['failed']}")
    elif "figure" in word:
        note(f"  {word['figure']}: {word['value']}" + (f" (goal: {word['goal']})" if "goal" in word else ""))


def gather(told):
    """The worker's lines as one dictionary; the listing read from the disk that is about to go."""
    found = {"steps": {t["step"]: {k: v for k, v in t.items() if k != "step"} for t in told if "step" in t},
             "complaints": [t["complaint"] for t in told if "complaint" in t]}
    for t in told:
        if "listing" in t:
            found["listing"] = Path(t["listing"]).read_text(errors="surrogateescape").splitlines()
            found["contents"] = t["contents"]
    return found


def strip(results):
    """Without the listings, which are for comparing at once and long."""
    rounds = [{p: {k: v for k, v in r.items() if k not in ("listing", "contents")} for p, r in one.items()}
              for one in results["rounds"]]
    return {**results, "rounds": rounds}


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("rounds", "figures", "report"), default="rounds",
                        help="rounds: the comparison (default); figures: start-up, memory, `changes`; "
                             "report: write the results of the last runs again")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--only", metavar="STEP,…", help=f"of: {', '.join(BY_NAME)}")
    parser.add_argument("--peers", metavar="LIST", help=f"of: {', '.join(PEERS)}; native is always measured")
    parser.add_argument("--quick", action="store_true", help="a small tree: to try the benchmark, not to measure")
    parser.add_argument("--dir", required=True, help="where everything is kept; wants 30 GB")
    parser.add_argument("--tarball", required=True, help="the kernel's source")
    args = parser.parse_args()
    args.partial = bool(args.only or args.peers or args.quick)
    args.only = chosen(parser, args.only, BY_NAME)
    args.peers = chosen(parser, args.peers, PEERS)
    if args.rounds < 1:
        parser.error("at least one round")
    return args


def chosen(parser, text, known):
    names = text.split(",") if text else list(known)
    for name in names:
        if name not in known:
            parser.error(f"unknown: {name}; known: {', '.join(known)}")
    return names


def main():
    args = arguments()
    bench = Bench(args)
    bench.work.mkdir(parents=True, exist_ok=True)
    lock = open(bench.work / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SystemExit(f"bench: another one runs in {bench.work}")
    kind = "partial" if args.partial else "full"
    try:
        if args.what != "report":
            bench.prepare_lower()
        if args.what == "rounds":
            with memory.kept(bench.root and not args.quick) as bench.memory:
                bench.save(f"{kind}-rounds.json", bench.rounds())
        elif args.what == "figures":
            bench.save(f"{kind}-figures.json", bench.figures())
    except KeyboardInterrupt:
        note("interrupted")
        bench.clear()
        return 130
    # Only a whole run replaces what is committed.
    where = bench.work if args.partial else HERE.parent
    report.write(where, bench.load(f"{kind}-rounds.json"), bench.load(f"{kind}-figures.json"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
