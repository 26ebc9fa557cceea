"""Figures of the operating system about this process, if available.

Prometheus clients in every language use the same names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

_STAT: Final = Path("/proc/self/stat")
_STATM: Final = Path("/proc/self/statm")
_FILES: Final = Path("/proc/self/fd")
_KERNEL: Final = Path("/proc/stat")
START: Final = "start_time_seconds"
_STARTED: Final = 19  # index of the field after the name, whose brackets may contain anything


def measures() -> dict[str, tuple[str, str, float]]:
    """Return, by name, the type, the description and the value of each number."""
    spent = os.times()
    cpu = spent.user + spent.system
    found = {"cpu_seconds_total": ("counter", "CPU time used", cpu)}
    for name, (about, read) in _FILED.items():
        with contextlib.suppress(OSError):  # not Linux, or /proc is not readable
            found[name] = ("gauge", about, read())
    return found


def _started() -> float:
    """Return the start time; the kernel counts in ticks since boot."""
    ticks = int(_STAT.read_text("ascii", "replace").rpartition(")")[2].split()[_STARTED])
    lines = _KERNEL.read_text("ascii").splitlines()
    (booted,) = (int(line.split()[1]) for line in lines if line.startswith("btime "))
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def _resident() -> int:
    return int(_STATM.read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    return sum(1 for _ in _FILES.iterdir())


_FILED: Final[Mapping[str, tuple[str, Callable[[], float]]]] = {
    START: ("Start time, in seconds since 1970", _started),
    "resident_memory_bytes": ("Resident memory", _resident),
    "open_fds": ("Open files and connections", _open_files),
}
