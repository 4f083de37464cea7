"""What runs as the unprivileged user: makes the lower tree, or takes one peer through the steps.

Speaks JSON, a line each, on stdout; all notes go to stderr. The parent (bench.py) may be root: it makes and mounts the
disk image, and drops the kernel's caches when asked to.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

import prepare
from mounts import PEERS, Failed, run
from steps import Context, Sizes, Skipped, check_possible, contents, listing, with_needs


def tell(**what):
    print(json.dumps(what), flush=True)


def ask(what):
    """A favour only root can do: the answer, `None` when it was refused."""
    tell(ask=what)
    answer = sys.stdin.readline().strip()
    return None if answer in ("", "no") else answer


def environment(base):
    """The same for every step, and nothing of the caller's: PATH is what bench.py found."""
    home, runtime = base / "home", base / "runtime"
    for d in (home, runtime, base / "out"):
        d.mkdir(exist_ok=True)
    runtime.chmod(0o700)
    (home / ".gitconfig").write_text(
        "[user]\nname = bench\nemail = bench@bench.invalid\n[gc]\nauto = 0\n[maintenance]\nauto = false\n[advice]\ndetachedHead = false\n")
    env = {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": str(base / "state"),
           "PATH": os.environ["PATH"], "USER": os.environ.get("USER", str(os.getuid())), "LANG": "C.UTF-8", "TERM": "dumb",
           "CARGO_HOME": str(home / ".cargo"), "CARGO_TERM_COLOR": "never"}
    os.environ.clear()
    os.environ.update(env)
    return env


def warm(lower):
    """Everything of the lower tree in the page cache and its names in the dentry cache: "cold" means a fresh mount."""
    subprocess.run(["find", ".", "-printf", "%s"], cwd=lower, stdout=subprocess.DEVNULL, check=True)
    subprocess.run("find . -type f -print0 | xargs -0 cat > /dev/null", shell=True, cwd=lower, check=True)
    subprocess.run(["git", "status", "--porcelain"], cwd=lower / "linux", stdout=subprocess.DEVNULL, check=True)


def clock(name, what, *args):
    """For the log: how long the checks after the steps take."""
    start = time.monotonic()
    got = what(*args)
    prepare.note(f"  ({name} {time.monotonic() - start:.1f} s)")
    return got


def steps(job, peer, context):
    mounted = False

    def remount():
        nonlocal mounted
        if mounted:
            peer.unmount()
        peer.mount()
        mounted = True

    context.remount = remount
    remount()
    for step in with_needs(job["steps"]):
        try:
            check_possible(context, step)
            took = step.run(context, step.name)
            tell(step=step.name, seconds=took, evidence=context.evidence.get(step.name))
        except Skipped as e:
            tell(step=step.name, skipped=str(e))
        except (Failed, OSError, subprocess.SubprocessError) as e:
            tell(step=step.name, failed=f"{type(e).__name__}: {e}")
            if not peer.mounted() and peer.name != "native":
                raise Failed(f"the mount was gone after {step.name}") from e
    # What another look through a fresh mount finds is what was really written.
    clock("remount", remount)
    found = clock("listing", listing, peer.view)
    context.out("listing").write_bytes(b"\n".join(found))
    tell(listing=str(context.out("listing")), contents=clock("contents", contents, peer.view))
    clock("unmount", peer.unmount)
    for complaint in clock("checks of its own", peer.after):
        tell(complaint=complaint)


def measure(job):
    base = Path(job["base"])
    env = environment(base)
    peer = PEERS[job["peer"]](base, job["programs"])
    peer.prepare()
    context = Context(base, peer.view, job["programs"], Sizes.of(job["quick"]), env, lambda: None,
                      lambda: warm(base / "lower"))
    prepare.freshen(base / "lower/linux", env)
    warm(base / "lower")
    before = None if peer.name == "native" else listing(peer.lower)
    try:
        steps(job, peer, context)
    except (Failed, OSError, subprocess.SubprocessError) as e:
        tell(complaint=f"{type(e).__name__}: {e}")
    finally:
        peer.force_off()
    if before is not None and before != listing(peer.lower):
        tell(complaint="the lower tree was changed")


def make_lower(job):
    base = Path(job["base"])
    env = environment(base)
    prepare.lower(base, job["tarball"], Path(job["extra"]), Sizes.of(job["quick"]), job["quick"], env)


# Other figures, of sbx-fuse alone.


def anonymous(pid):
    """KiB of memory of its own (heap and stacks), and KiB resident, of a process."""
    rows = dict(l.split(":", 1) for l in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(rows["Anonymous"].split()[0]), int(rows["Rss"].split()[0])


def milliseconds(argv, cwd, env):
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    took = (time.perf_counter() - start) * 1000
    if done.returncode != 0:
        raise Failed(f"{argv[0]}: exit {done.returncode}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return took


def figure_run(job, peer, env):
    if shutil.which("bwrap") is None:
        raise Skipped("bwrap is not installed")
    ours = [job["programs"]["sbx-fuse"], "run", "--rm", "--root", str(peer.lower / "linux"), "--", "true"]
    theirs = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    times = {"ours": [], "theirs": []}
    for i in range(22):
        for who, argv in (("ours", ours), ("theirs", theirs)):
            took = milliseconds(argv, peer.lower / "linux", env)
            if i >= 2:
                times[who].append(took)
    a, b = statistics.median(times["ours"]), statistics.median(times["theirs"])
    tell(figure="`run -- true` against `bwrap --ro-bind / / --dev /dev --proc /proc true` (medians of 20)",
         value=f"{a:.0f} ms against {b:.0f} ms: {a - b:.0f} ms more", goal="at most 40 ms more")


def figure_memory(job, peer, _env):
    peer.mount()
    start, _ = anonymous(peer.pid())
    done = run(["find", ".", "-printf", "%s\n"], cwd=str(peer.view))
    known = done.count("\n")
    after, rss = anonymous(peer.pid())
    tell(figure=f"server memory after find over {known:,} entries", value=f"{rss / 1024:.0f} MiB resident, "
         f"of it {after / 1024:.0f} MiB its own")
    tell(figure="heap per file the kernel knows", value=f"{(after - start) * 1024 / known:.0f} bytes", goal="under 1024")
    left = ask("drop-caches")
    if left is not None:
        # The server gives memory back when it has been idle for a while.
        end = time.monotonic() + 60
        while (forgotten := anonymous(peer.pid())[0]) > after // 2 and time.monotonic() < end:
            time.sleep(1)
        tell(figure="heap per file the kernel has forgotten (its caches dropped, the server idle)",
             value=f"{(forgotten - start) * 1024 / known:.0f} bytes ({left} inodes still known)", goal="under 100")
    else:
        tell(figure="heap per file the kernel has forgotten", value="– (only root can make the kernel forget)")
    peer.unmount()


def figure_changes(job, peer, env):
    count = 2_000 if job["quick"] else 100_000
    peer.mount()
    top = peer.view / "many"
    for i in range(count // 1000):
        (top / f"{i:03d}").mkdir(parents=True)
        run([job["programs"]["tool"], "create", str(top / f"{i:03d}"), "1000", "64"])
    changes = [job["programs"]["sbx-fuse"], "changes", "-s", "bench"]

    def looks(what):
        first = milliseconds(changes, "/", env)
        times = []
        for n in range(7):
            for i in range(10):
                if peer.mounted():
                    (top / f"{i % (count // 1000):03d}" / f"file-{n:06d}").write_bytes(b"changed %d\n" % n)
            times.append(milliseconds(changes, "/", env))
        tell(figure=f"`changes`, {count:,} files in the upper, {what}",
             value=f"{statistics.median(times):.0f} ms (the first look {first:.0f} ms)", goal="under 50 ms")

    looks("mounted, 10 changed since the last look")
    peer.unmount()
    looks("not mounted")


def figures(job):
    base = Path(job["base"])
    env = environment(base)
    for figure in (figure_run, figure_memory, figure_changes):
        peer = PEERS["sbx-fuse"](base, job["programs"])
        peer.prepare()
        try:
            figure(job, peer, env)
        except Skipped as e:
            tell(figure=figure.__name__, value=f"– ({e})")
        except (Failed, OSError, subprocess.SubprocessError) as e:
            tell(figure=figure.__name__, value=f"failed: {e}")
        finally:
            peer.force_off()
        if (base / "state/sbx-fuse/sessions/bench").exists():
            run([job["programs"]["sbx-fuse"], "rm", "-y", "bench"])


JOBS = {"lower": make_lower, "measure": measure, "figures": figures}


def main():
    job = json.loads(sys.argv[1])
    os.umask(0o022)
    try:
        JOBS[job["job"]](job)
        tell(done=True)
    except Exception as e:  # the parent goes on with the next peer; nothing is lost but this one
        traceback.print_exc()
        tell(complaint=f"{type(e).__name__}: {e}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
