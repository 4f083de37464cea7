"""The results in words and as a picture: RESULTS.md and results.svg."""

import datetime
import math
import os
import platform
import statistics
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from mounts import PEERS, Failed, run
from steps import BY_NAME, STEPS

# These two are so fast natively, and so slow where everything is copied, that they alone would decide a mean.
EXTREME = ("append", "mv")

# From dark to light, so that they can be told apart without colour, too.
COLOURS = {"sbx-fuse": "#12355b", "kernel": "#c8553d", "fuse-overlayfs": "#6aa4b8", "unionfs-fuse": "#f3d9a4"}


def machine(bench):
    """What was measured on, and with which versions."""

    def said(*argv):
        try:
            return run(argv, env={**os.environ, "PATH": bench.path()}).strip().splitlines()[0]
        except (OSError, Failed, IndexError):
            return "–"

    cpu = next((l.split(":", 1)[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
    memory = int(open("/proc/meminfo").readline().split()[1]) / 2**20
    release = dict(l.rstrip().split("=", 1) for l in open("/etc/os-release") if "=" in l)
    here = Path(__file__).resolve().parent
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{len(os.sched_getaffinity(0))} × {cpu}",
        "memory": f"{memory:.0f} GiB" + (f", {bench.memory}" if bench.memory else ""),
        "kernel": platform.release(),
        "system": release.get("PRETTY_NAME", "?").strip('"'),
        "disk": "a fresh copy of one ext4 image on a loop device for each peer and round" if bench.root
        else f"a directory on {said('stat', '-f', '-c', '%T', str(bench.work))}",
        "user": "an unprivileged user" if bench.user.pw_uid else "root",
        "sbx-fuse": f"{said(bench.programs['sbx-fuse'], '--version')}, commit "
                    + said("git", "-c", "safe.directory=*", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=10"),
        "fuse-overlayfs": said(bench.programs["fuse-overlayfs"], "--version"),
        "unionfs-fuse": said("dpkg-query", "-W", "-f", "${Package} ${Version}", "unionfs-fuse"),
        "programs": ", ".join((said("git", "--version"), said("rg", "--version"), said("cargo", "--version"),
                               "node " + said("node", "--version"), "npm " + said("npm", "--version"))),
        "lower": Path(bench.args.tarball).name,
    }


def differences(native, peer):
    """Where a peer showed or made something else than the native file system did."""
    wrong = []
    for name, step in peer["steps"].items():
        theirs, ours = native["steps"].get(name, {}), step
        if "seconds" in theirs and "seconds" in ours and theirs["evidence"] != ours["evidence"]:
            wrong.append(f"{name}: gave {ours['evidence']}, native {theirs['evidence']}")
    if "listing" not in peer or "listing" not in native:
        return wrong
    here, there = set(peer["listing"]), set(native["listing"])
    for text, lines in (("too much", here - there), ("missing", there - here)):
        if lines:
            wrong.append(f"the final tree: {len(lines)} entries {text}, e.g. {sorted(lines)[:3]}")
    for name, value in peer["contents"].items():
        if value != native["contents"].get(name):
            wrong.append(f"the bytes of {name} differ from native's")
    return wrong


def ratio(results, peer, step):
    """The median over rounds of the ratio to native in the same round; `None` when no round has both."""
    found = []
    for one in results["rounds"]:
        mine = one.get(peer, {}).get("steps", {}).get(step, {}).get("seconds")
        native = one.get("native", {}).get("steps", {}).get(step, {}).get("seconds")
        if mine is not None and native:
            found.append(mine / native)
    return statistics.median(found) if found else None


def seconds(results, peer, step):
    found = [s for one in results["rounds"]
             if (s := one.get(peer, {}).get("steps", {}).get(step, {}).get("seconds")) is not None]
    return statistics.median(found) if found else None


def geometric(results, peer, steps):
    """Over the steps that every peer has done, so that the means can be compared."""
    found = [ratio(results, peer, s) for s in steps]
    return math.exp(statistics.fmean(math.log(r) for r in found)) if found else None


def number(value):
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def short(value):
    """Seconds, to three figures or so."""
    return "–" if value is None else f"{value:.4f}" if value < 0.01 else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def table(results):
    peers = [p for p in results["peers"] if p != "native"]
    steps = [s for s in STEPS if s.name in results["steps"]]
    rows = ["| step | native s | " + " | ".join(PEERS[p].title for p in peers) + " |",
            "|---|--:|" + "--:|" * len(peers)]
    for step in steps:
        cells = []
        for p in peers:
            r = ratio(results, p, step.name)
            cell = number(r) if r is not None else why(results, p, step.name)
            if r is not None and step.name in EXTREME:
                cell += f" ({short(seconds(results, p, step.name))} s)"
            cells.append(cell)
        rows.append(f"| {step.label} | {short(seconds(results, 'native', step.name))} | " + " | ".join(cells) + " |")
    done = [s.name for s in steps if all(ratio(results, p, s.name) is not None for p in peers)]
    mild = [s for s in done if s not in EXTREME]
    for text, names in (("**geometric mean, all steps**", done), ("geometric mean without the append and the mv", mild)):
        rows.append(f"| {text} | | " + " | ".join(number(geometric(results, p, names)) for p in peers) + " |")
    return "\n".join(rows)


def why(results, peer, step):
    for one in results["rounds"]:
        done = one.get(peer, {}).get("steps", {}).get(step, {})
        if "failed" in done:
            return "failed"
        if "skipped" in done:
            return "–"
    return "–"


def remarks(results):
    seen = []
    for at, one in enumerate(results["rounds"], 1):
        for peer, done in one.items():
            for step, r in done["steps"].items():
                if "skipped" in r and (text := f"{step}: skipped, {r['skipped']}") not in seen:
                    seen.append(text)
                if "failed" in r:
                    seen.append(f"round {at}, {peer}, {step}: failed: {r['failed']}")
            seen += [f"round {at}, {peer}: {c}" for c in done["complaints"]]
    return seen


def markdown(results, figures):
    parts = ["# sbx-fuse against its peers",
             "Written by `./scripts/bench`; do not edit. Time of each step as a ratio to the native file system in the same "
             "round, medians over rounds; smaller is better, 1 is native speed."]
    if results:
        m = results["machine"]
        parts[1] += f" Measured on {m['date']}, {len(results['rounds'])} rounds."
        if results["quick"]:
            parts.append("**Made with `--quick`: not a measurement.**")
        parts += [table(results), "![the same as a bar plot](results.svg)"]
        notes = remarks(results)
        parts.append("## Correctness\n\nAfter the steps each peer is mounted afresh; its tree and the bytes written are compared "
                     "with native's, and its lower tree with what it was before."
                     + ("\n\n" + "\n".join(f"- {n}" for n in notes) if notes else " No differences, nothing failed."))
        words = [("processors", "cpu"), ("memory", "memory"), ("kernel", "kernel"), ("system", "system"), ("disk", "disk"),
                 ("run by", "user"), ("lower tree", "lower"), ("programs", "programs"), ("sbx-fuse", "sbx-fuse"),
                 ("fuse-overlayfs", "fuse-overlayfs"), ("unionfs-fuse", "unionfs-fuse")]
        parts.append("## Machine\n\n| | |\n|---|---|\n" + "\n".join(f"| {a} | {m[b]} |" for a, b in words))
        parts.append("## Mounts\n\n| | |\n|---|---|\n" + "\n".join(
            f"| {PEERS[p].title} | `{c}` |" if p != "native" else f"| native | {c} |" for p, c in results["commands"].items()))
        parts.append("## Steps\n\nThe lower tree is the kernel's source with a git repository whose index is fresh, and a big file. "
                     "It is read natively before each fresh mount: \"fresh mount\" is cold for the mount, not for the disk. "
                     "Dirty pages are written back before each step.\n\n| step | name | command |\n|---|---|---|\n"
                     + "\n".join(f"| {s.label} | `{s.name}` | `{s.does}` |" for s in STEPS if s.name in results["steps"]))
    if figures:
        rows = [f"| {f['figure']} | {f['value']} | {f.get('goal', '')} |" for f in figures["figures"]]
        rows += [f"| complaint | {c} | |" for c in figures["complaints"]]
        parts.append(f"## Other figures\n\nFrom `./scripts/bench figures`, {figures['machine']['date']}, "
                     f"{figures['machine']['sbx-fuse']}.\n\n| | | goal |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


# The picture: a group of bars a step, on a logarithmic axis on which native is 1.

LEFT, WIDE, BAR, GAP, TOP, RIGHT = 270, 620, 9, 9, 74, 60
LOW, HIGH = 0.1, 1000.0


def x(value):
    value = min(max(value, LOW), HIGH)
    return LEFT + WIDE * (math.log10(value) - math.log10(LOW)) / (math.log10(HIGH) - math.log10(LOW))


def svg(results):
    peers = [p for p in COLOURS if p in results["peers"]]
    rows = [(BY_NAME[s].label, {p: ratio(results, p, s) for p in peers}) for s in results["steps"]]
    rows = [r for r in rows if any(v is not None for v in r[1].values())]
    done = [s for s in results["steps"] if all(ratio(results, p, s) is not None for p in peers)]
    rows.append(("geometric mean, all steps", {p: geometric(results, p, done) for p in peers}))
    group = BAR * len(peers) + GAP
    height = TOP + group * len(rows) + 46
    width = LEFT + WIDE + RIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="12">',
           "<title>sbx-fuse against its peers</title>",
           f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
           f'<text x="16" y="24" font-size="16" font-weight="bold">Time as a ratio to native (shorter is better)</text>']
    at = 16
    for p in peers:
        out.append(f'<rect x="{at}" y="38" width="12" height="12" fill="{COLOURS[p]}" stroke="#333333" stroke-width="0.5"/>')
        out.append(f'<text x="{at + 18}" y="48">{escape(PEERS[p].title)}</text>')
        at += 40 + 7 * len(PEERS[p].title)
    bottom = TOP + group * len(rows)
    for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        strong = tick == 1
        out.append(f'<line x1="{x(tick):.1f}" y1="{TOP - 6}" x2="{x(tick):.1f}" y2="{bottom}" '
                   f'stroke="{"#000000" if strong else "#d8d8d8"}" stroke-width="{1.2 if strong else 0.7}"/>')
        out.append(f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle" font-size="10">{tick:g}</text>')
    out.append(f'<text x="{x(1):.1f}" y="{bottom + 32}" text-anchor="middle" font-size="11">1 = native</text>')
    for i, (label, values) in enumerate(rows):
        top = TOP + group * i
        bold = ' font-weight="bold"' if i == len(rows) - 1 else ""
        out.append(f'<text x="{LEFT - 10}" y="{top + group / 2 + 1:.1f}" text-anchor="end"{bold}>{escape(label)}</text>')
        for j, p in enumerate(peers):
            out += bar(values[p], top + BAR * j, COLOURS[p])
    return "\n".join([*out, "</svg>"]) + "\n"


def bar(value, top, colour):
    """From native's line to the value; one beyond the axis ends there, and its number says how far it goes."""
    if value is None:
        return [f'<text x="{x(1) + 3:.1f}" y="{top + BAR - 1}" font-size="8" fill="#555555">not done</text>']
    left, right = min(x(1), x(value)), max(x(1), x(value))
    text = number(value) + (" ▸" if value > HIGH else "")
    return [f'<rect x="{left:.1f}" y="{top}" width="{max(right - left, 0.8):.1f}" height="{BAR - 1}" fill="{colour}" '
            'stroke="#333333" stroke-width="0.4"/>',
            f'<text x="{right + 3:.1f}" y="{top + BAR - 1.5}" font-size="8">{text}</text>']


def write(where, results, figures):
    (where / "RESULTS.md").write_text(markdown(results, figures))
    print(table(results) if results else "", flush=True)
    if results:
        (where / "results.svg").write_text(svg(results))
    print(f"==> wrote {where / 'RESULTS.md'}" + (f" and {where / 'results.svg'}" if results else ""), file=sys.stderr)
