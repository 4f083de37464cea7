"""Memory that is there: a virtual machine's host may hand out pages when they are first touched.

That costs some microseconds a page, which whoever touches it first pays: it would be measured as the file system's. So
before the rounds all free memory is touched once, and where the kernel reports free pages to its host (which takes them
away again), it is asked not to while the benchmark runs. Both need root.
"""

import mmap
from contextlib import contextmanager
from pathlib import Path

from prepare import note

ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
LARGER_THAN_ANY = 11  # pages are free in blocks of at most 2^10
SHARE = 0.9  # of what is available


@contextmanager
def kept(wanted):
    """While it lasts, memory stays with this machine as far as that can be had; a sentence for the results."""
    if not wanted:
        yield "as it came: not touched before"
        return
    before = ORDER.read_text() if ORDER.exists() else None
    reported = before is not None and not ask(str(LARGER_THAN_ANY))
    try:
        note("touching the machine's memory")
        touch()
        kept_words = "go back to the host" if reported else "stay here"
        yield "all touched before the rounds" + (f"; free pages {kept_words}" if before is not None else "")
    finally:
        if before is not None and not ask(before):
            raise SystemExit(f"bench: {ORDER} could not be set back to {before.strip()}")


def ask(order):
    """Sets the size of blocks that are reported; whether the kernel took it."""
    try:
        ORDER.write_text(order)
    except OSError:
        return False
    return True


def touch():
    kib = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemAvailable:"))
    with mmap.mmap(-1, int(kib * 1024 * SHARE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
