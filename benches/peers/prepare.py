"""Makes the lower tree, once: the kernel's source with git, a big file, a crate, an npm project, a tar archive."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from mounts import run

QUICK = ("kernel", "fs", "sound", "include", "arch/x86", "arch/arm64", "drivers/net/ethernet", "drivers/media", "lib", "scripts",
         "tools/lib", "tools/build", "tools/include", "tools/scripts", "tools/arch", "Documentation/filesystems")

CRATE = """[package]
name = "small"
version = "0.1.0"
edition = "2021"

[dependencies]
anyhow = "1"
crc32fast = "1"
memchr = "2"
walkdir = "2"

[workspace]
"""

MAIN = """use anyhow::Context;

fn main() -> anyhow::Result<()> {
    for entry in walkdir::WalkDir::new(".").max_depth(1) {
        let entry = entry.context("walk")?;
        let name = entry.file_name().as_encoded_bytes();
        println!("{:08x} {:?}", crc32fast::hash(name), memchr::memchr(b'.', name));
    }
    Ok(())
}
"""

VENDORED = """[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "vendor"
"""


def note(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def extras(where, say=note):
    """The crate with its dependencies, and the npm project with its tarballs; needs the network once, for crates."""
    where.mkdir(parents=True, exist_ok=True)
    for name, make in (("crate", make_crate), ("npm", make_npm)):
        if (where / name).exists():
            continue
        part = where / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            make(part)
            part.rename(where / name)
        except Exception as e:  # whatever the reason: the step is then skipped, and says so
            say(f"no {name} project, its step is skipped: {e}")
            shutil.rmtree(part, ignore_errors=True)


def make_crate(at):
    (at / "src").mkdir(parents=True)
    (at / "Cargo.toml").write_text(CRATE)
    (at / "src/main.rs").write_text(MAIN)
    run(["cargo", "vendor", "--quiet"], cwd=at)
    (at / ".cargo").mkdir()
    (at / ".cargo/config.toml").write_text(VENDORED)


def make_npm(at):
    """The packages that npm itself comes with, each as a tarball: real ones, and no network."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed")
    home = Path(os.path.realpath(npm)).parent.parent
    found = [p for p in (home / "node_modules").glob("*/package.json") if p.is_file()]
    if not found:
        raise FileNotFoundError(f"npm has no packages of its own below {home}")
    (at / "tarballs").mkdir(parents=True)
    dependencies = {}
    for manifest in sorted(found):
        about = json.loads(manifest.read_text())
        name, version = about["name"], about["version"]
        # Only the files count here: without dependencies each package stands for itself.
        about = {k: v for k, v in about.items() if k in ("name", "version", "main", "license", "type")}
        tarball = at / "tarballs" / f"{name}-{version}.tgz"
        copy = at / "package"
        shutil.copytree(manifest.parent, copy, symlinks=True, ignore=shutil.ignore_patterns("node_modules"))
        (copy / "package.json").write_text(json.dumps(about))
        with tarfile.open(tarball, "w:gz") as tar:
            tar.add(copy, "package")
        shutil.rmtree(copy)
        dependencies[name] = f"file:tarballs/{tarball.name}"
    (at / "package.json").write_text(json.dumps(
        {"name": "small", "version": "1.0.0", "private": True, "dependencies": dependencies}, indent=1))
    run(["npm", "install", "--package-lock-only", "--offline", "--no-audit", "--no-fund", "--ignore-scripts",
         "--cache", str(at / "cache")], cwd=at)
    shutil.rmtree(at / "cache", ignore_errors=True)


def lower(base, tarball, extra, sizes, quick, env, say=note):
    """Makes `base`/lower and `base`/net.tar as the user who will work there."""
    linux = base / "lower/linux"
    linux.mkdir(parents=True)
    say(f"unpacking {tarball}")
    wildcards = ["--wildcards", "--no-wildcards-match-slash", *(f"*/{d}" for d in QUICK), "*/Makefile", "*/.gitignore"] if quick else []
    run(["tar", "-xf", str(tarball), "-C", str(linux), "--strip-components=1", *wildcards], env=env)
    # Debian ignores everything but its own directory, which rg would obey.
    ignored = (linux / ".gitignore").read_text().splitlines()
    (linux / ".gitignore").write_text("".join(f"{l}\n" for l in ignored if l not in ("/*", "!/debian/")))
    run(["tar", "-cf", str(base / "net.tar"), "-C", str(linux / "drivers"), "net"], env=env)
    for name in ("crate", "npm"):
        if (extra / name).exists():
            shutil.copytree(extra / name, base / "lower" / name, symlinks=True)
    with open(base / "lower/big", "wb") as f:
        for _ in range(sizes.big_mib):
            f.write(os.urandom(1 << 20))
    say("making the git repository")
    repository(linux, sizes, env)


def repository(linux, sizes, env):
    def git(*args):
        # A tiny threshold makes `git add` write one pack instead of a file per blob.
        return run(["git", "-c", "core.bigFileThreshold=1", "-c", "core.compression=1", *args], cwd=linux, env=env)

    git("init", "-q", "-b", "main")
    git("add", "-A", "-f")
    git("commit", "-q", "-m", "the tree")
    git("checkout", "-q", "-b", "changed")
    tracked = git("ls-files", "Documentation", "include", "net").splitlines()
    files = tracked[:: max(1, len(tracked) // sizes.branch)][: sizes.branch]
    for name in files:
        path = linux / name
        if path.is_file() and not path.is_symlink():
            with open(path, "a") as f:
                f.write("\n/* changed on a branch */\n")
    git("commit", "-q", "-a", "-m", "a branch")
    git("checkout", "-q", "main")
    git("repack", "-d", "-q")
    # Entries as young as the index itself would be read again by every `git status`.
    time.sleep(2.1)
    freshen(linux, env)


def freshen(linux, env):
    """Makes the index agree with inode numbers and times as they are."""
    subprocess.run(["git", "update-index", "-q", "--refresh"], cwd=linux, env=env, check=False)
    left = run(["git", "status", "--porcelain"], cwd=linux, env=env)
    if left:
        raise RuntimeError(f"the lower tree is not clean: {left[:300]}")
