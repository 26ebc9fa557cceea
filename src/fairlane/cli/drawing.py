"""The parts that output for people is made of: consoles, tables, texts, distances in time.

Everything that comes from tasks goes through `shown` and is never read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TextIO

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlane.cli.text import shortened, shown
from fairlane.core import batches, lifecycle
from fairlane.schema import wire

STYLES: Final[Mapping[str, str]] = {
    lifecycle.WAITING: "cyan",
    lifecycle.QUEUED: "cyan",
    lifecycle.ASSIGNED: "blue",
    lifecycle.RUNNING: "yellow",
    lifecycle.PARKED: "magenta",
    lifecycle.DONE: "green",
    lifecycle.FAILED: "red",
    lifecycle.CANCELLED: "bright_black",
    lifecycle.REJECTED: "red",
    batches.COMPLETED: "green",
}
PIPE_WIDTH: Final = 10_000
_NOTE_CHARACTERS: Final = 200
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would exit with 1 here; what a closed pipe means is decided in one place."""
        raise BrokenPipeError


def console(file: TextIO) -> Console:
    width = None if file.isatty() else PIPE_WIDTH
    return _Console(file=file, width=width, highlight=False, markup=False, emoji=False)


def table(
    names: Sequence[str],
    rows: Sequence[Sequence[Text]],
    *,
    header: bool = True,
    widths: Mapping[str, int] | None = None,
) -> Table:
    """Each column as wide as it needs, but not wider than `widths` says; the last has the rest."""
    drawn = Table(box=None, show_header=header, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(names):
        needed = max([len(name), *(row[number].cell_len for row in rows)])
        width = min(needed, (widths or {}).get(name, needed))
        last = number == len(names) - 1
        drawn.add_column(
            name,
            no_wrap=True,
            overflow="ellipsis",
            min_width=len(name) if last else width,
            max_width=width,
        )
    for row in rows:
        drawn.add_row(*row)
    return drawn


def grid() -> Table:
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    return drawn


def text(value: Any, limit: int | None = _NOTE_CHARACTERS) -> Text:
    plain = shown(str(value))
    return Text(plain if limit is None else shortened(plain, limit))


def state(name: str) -> Text:
    return Text(shown(name), style=STYLES.get(name, ""))


def pretty(value: Any) -> Text:
    written = msgspec.json.format(wire.encode(value), indent=2).decode()
    return Text(shown(written, lines=True))


def label(name: str) -> str:
    """`sessionKey` as `session`, `createdAt` as `created`, `callbackUrl` as `callback url`."""
    words = "".join(f" {one.lower()}" if one.isupper() else one for one in name).split()
    understood = len(words) > 1 and words[-1] in ("at", "id", "key")
    return shown(" ".join(words[:-1] if understood else words))


def moment_of(moment: str) -> int:
    return int(datetime.fromisoformat(moment.upper()).timestamp() * 1000)


def distance(at: int, now: int) -> str:
    """How long ago, or how far ahead."""
    if abs(now - at) < 1000:
        return "just now"
    return f"{_rough(now - at)} ago" if at < now else f"in {_rough(at - now)}"


def _rough(milliseconds: int) -> str:
    """In the largest unit of which there are at least two."""
    name, unit = next((one for one in _UNITS if milliseconds >= 2 * one[1]), _UNITS[-1])
    return f"{round(milliseconds / unit)} {name}"


def span(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return wire.span(milliseconds // 1000)


def size(count: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count} {unit}"
        count //= 1024
    return f"{count} GiB"
