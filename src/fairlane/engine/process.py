"""What the operating system says about this process, as far as it says anything.

The names are those that Prometheus clients in every language use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")


def measures() -> dict[str, tuple[str, str, float]]:
    """By name: what kind of number it is, what it is about, and the number."""
    spent = os.times()
    cpu = spent.user + spent.system
    found = {"cpu_seconds_total": ("counter", "Processor time that was spent", cpu)}
    try:
        resident = int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files = sum(1 for _ in _FILES.iterdir())
    except OSError:  # not Linux
        return found
    return {
        **found,
        "resident_memory_bytes": ("gauge", "Memory that is in use", resident),
        "open_fds": ("gauge", "Open files and connections", files),
    }
