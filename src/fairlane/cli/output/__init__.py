"""Output of commands: JSON exactly as the route returns it, or text for a terminal.

Everything that comes from tasks goes through `shown` before it is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, Final, NamedTuple, ParamSpec, TypeAlias

import msgspec

from fairlane import config
from fairlane.clock import SystemClock
from fairlane.core import batches, lifecycle
from fairlane.core.errors import FairlaneError, Unauthenticated, Unreachable
from fairlane.core.json_types import JsonMapping
from fairlane.schema import wire
from fairlane.schema.operation import Response

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

# Whole sequences first (colours, titles, links), so that no harmless-looking rest is left.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]?"
)
# Control and surrogate characters, and format characters, which can reverse the writing direction.
_UNSHOWN: Final = frozenset({"Cc", "Cf", "Cs"})
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
# The states of tasks and batches, of cron runs and of queue entries.
_STYLES: Final[Mapping[str, str]] = {
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
    "ok": "green",
    "error": "red",
    "skipped": "bright_black",
    "missed": "magenta",
    "pending": "cyan",
    "ready": "cyan",
    "leased": "yellow",
    "drained": "green",
}


class Styled(NamedTuple):
    """Text with a style of rich; `lines` keeps its line breaks."""

    text: str
    style: str = ""
    lines: bool = False


Cell: TypeAlias = str | float | Styled | tuple["Cell", ...]

P = ParamSpec("P")
Fields: TypeAlias = JsonMapping
Shape: TypeAlias = Fields | Response
Say = Callable[[int, str], None]
# A column shows one field, or what a function makes of the row. The names are the header.
Columns: TypeAlias = Mapping[str, str | Callable[[Fields], Cell]]
# Column widths by minimum screen width; 0 leaves a column out.
Layouts: TypeAlias = Sequence[tuple[int, Mapping[str, int]]]

# The server's message is for all callers; this adds what helps at a command line.
_HINTS: Final = {
    Unauthenticated.code: "; set FAIRLANE_TOKEN or use --token-file",
}


class Output:
    """Prints responses: as JSON with `--json`, as text otherwise."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.is_json: bool = args.json
        self.is_quiet: bool = getattr(args, "quiet", False) and not args.json

    @property
    def is_watched(self) -> bool:
        """Return whether a person sees the progress that is shown."""
        return not self.is_json and sys.stderr.isatty()

    @cached_property
    def terminal(self) -> Terminal:
        # Deferred because commands with --json, which scripts run, do not need rich (35 ms).
        from fairlane.cli.output.terminal import Terminal  # noqa: PLC0415 - for the reason above

        return Terminal()

    def show(
        self,
        response: Shape,
        draw: Callable[Concatenate[Terminal, Fields, P], None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Print a response. `draw` prints its text."""
        if self.is_json:
            print_json(response)
        elif self.is_quiet:
            print_ids(fields_of(response))
        else:
            draw(self.terminal, fields_of(response), *args, **kwargs)

    def line(self, response: Shape, *parts: Cell) -> None:
        """Print a response whose text is one line."""
        if self.is_json:
            print_json(response)
        else:
            self.terminal.line(*parts)

    def details(
        self, response: Shape, lines: Callable[[Fields], Iterator[tuple[str, Cell]]]
    ) -> None:
        """Print a response whose text is one labelled value per line."""
        self.show(response, lambda terminal, fields: terminal.grid(lines(fields)))

    def page(
        self,
        page: Shape,
        name: str,
        columns: Columns,
        *,
        none: str,
        more: bool = False,
        layouts: Layouts | None = None,
    ) -> None:
        """Print the items of a page; `more` says that the next page follows."""
        if self.is_json:
            print_json(page)
        elif self.is_quiet:
            for item in fields_of(page)[name]:
                print_ids(item)
        else:
            items = fields_of(page)
            self.terminal.page(items, items[name], columns, none=none, more=more, layouts=layouts)

    def pages(
        self,
        args: argparse.Namespace,
        ask: Callable[..., Shape],
        name: str,
        columns: Columns,
        *,
        none: str,
        layouts: Layouts | None = None,
    ) -> None:
        """Print the page that the paging options ask for, or with `--all` each page."""
        for page in pages(args, ask):
            self.page(page, name, columns, none=none, more=args.all, layouts=layouts)

    def secret(self, response: Shape, secret: str, about: str) -> None:
        """Print only the secret to stdout, and what it is for to stderr."""
        if self.is_json:
            print_json(response)
        else:
            sys.stderr.write(f"{shown(about)}\n")
            sys.stdout.write(f"{secret}\n")

    @contextlib.contextmanager
    def progress(self, total: int, *, plain: bool = False) -> Iterator[Say]:
        """Show progress on stderr while waiting; `plain` prints lines if it is not a terminal."""
        if self.is_json:
            yield lambda *_: None
        else:
            with self.terminal.progress(total, plain=plain) as say:
                yield say


_IDS: Final = ("fingerprint", "taskIds", "taskId", "batchId", "id")


def print_ids(response: Fields) -> None:
    """Print the ids that a response or an item of a list is about."""
    found = next((response[name] for name in _IDS if name in response), ())
    for one in [found] if isinstance(found, str) else found:
        sys.stdout.write(f"{shown(one)}\n")


def fields_of(response: Shape) -> Fields:
    return response.to_dict() if isinstance(response, Response) else response


def pages(args: argparse.Namespace, ask: Callable[..., Shape]) -> Iterator[Shape]:
    limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
    cursor = args.cursor
    while True:
        page = ask(limit=limit, cursor=cursor)
        yield page
        cursor = page.get("nextCursor")
        if not args.all or cursor is None:
            return


def print_error(error: FairlaneError, *, as_json: bool) -> None:
    """Print an error to stderr, and with `--json` to stdout too, as the route returns it."""
    if as_json:
        print_json(wire.error(error))
    hint = _HINTS.get(error.code, "")
    if isinstance(error, Unreachable) and config.variable("FAIRLANE_STORE"):
        hint = '; add --store "$FAIRLANE_STORE" to use the store without a server'
    complain(_ROUTES.sub(_command_of, error.message) + hint)


def _command_of(route: re.Match[str]) -> str:
    """Return the command that does what a route does; errors name routes for all callers."""
    return _COMMANDS.get(route[1], route[0])


_ROUTES: Final = re.compile(r"GET /([a-z]+(?:/[a-z]+)?)")
_COMMANDS: Final = {
    **{name: f"fairlane {name}" for name in ("approvals", "deliveries", "failures", "webhooks")},
    "tokens": "fairlane token list",
    "policy/versions": "fairlane policy versions",
    "cron/runs": "fairlane cron runs",
}


def print_json(shape: object) -> None:
    """Print one line of JSON, in UTF-8 whatever the encoding of the terminal is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(wire.encode(shape) + b"\n")
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {shown(message)}\n")


def remark(message: str) -> None:
    """Print a note about a command that worked."""
    sys.stdout.flush()
    sys.stderr.write(f"note: {shown(message)}\n")


def warn(messages: Iterable[str]) -> None:
    """Print what may be wrong with a command that worked."""
    for message in messages:
        sys.stdout.flush()
        sys.stderr.write(f"warning: {shown(message)}\n")


# -------------------------------------------------------------------- text


def shown(text: str, *, lines: bool = False) -> str:
    """Return `text` without escape sequences and control characters, on one line unless `lines`."""
    text = _ESCAPES.sub("", text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_character(one, lines=lines) for one in text)


def _character(one: str, *, lines: bool) -> str:
    if one == "\n" and lines:
        return one
    if one in "\n\r\t\v\f\u2028\u2029\x85":
        return " "
    return "" if unicodedata.category(one) in _UNSHOWN else one


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def state(name: str) -> Styled:
    return Styled(name, _STYLES.get(name, ""))


def pretty(value: object) -> Styled:
    """Return a value as indented JSON."""
    return Styled(msgspec.json.format(wire.encode(value), indent=2).decode(), lines=True)


def value_text(value: object) -> Cell:
    """Return the value of a field: text with its lines, a number, or JSON."""
    if isinstance(value, str):
        return Styled(value, lines=True)
    return str(value) if isinstance(value, int | float) else pretty(value)


def label(name: str) -> str:
    """Return `session` for `sessionKey`, `created` for `createdAt`, `callback url`, ..."""
    words = "".join(f" {one.lower()}" if one.isupper() else one for one in name).split()
    understood = len(words) > 1 and words[-1] in ("at", "id", "key")
    return " ".join(words[:-1] if understood else words)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# -------------------------------------------------------------------- times


def now_ms() -> int:
    return SystemClock().now()


def moment_ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment.upper()).timestamp() * 1000)


def ago(moment: str) -> str:
    return distance(moment_ms(moment), now_ms())


def with_ago(moment: str) -> str:
    return f"{moment} ({ago(moment)})"


def distance(at: int, now: int) -> str:
    """Return how long ago `at` was, or how far ahead it is."""
    if abs(now - at) < 1000:
        return "just now"
    return f"{_rough(now - at)} ago" if at < now else f"in {_rough(at - now)}"


def _rough(milliseconds: int) -> str:
    """Return the duration in the largest unit of which there are at least two."""
    name, unit = next((one for one in _UNITS if milliseconds >= 2 * one[1]), _UNITS[-1])
    return f"{round(milliseconds / unit)} {name}"


def ahead(at: int, now: int) -> str:
    """Return how far ahead `at` is, in its two largest units: `in 3 h 12 min`."""
    if at - now < 1000:
        return "now"
    parts = [(name, (at - now) % above // unit) for name, unit, above in _with_larger()]
    first = next(index for index, (_, number) in enumerate(parts) if number)
    return "in " + " ".join(
        f"{number} {name}" for name, number in parts[first : first + 2] if number
    )


def _with_larger() -> list[tuple[str, int, int]]:
    larger = [2**63, *(unit for _, unit in _UNITS)]
    return [(name, unit, above) for (name, unit), above in zip(_UNITS, larger, strict=False)]


def exact_span(milliseconds: int) -> str:
    """Return a duration with all of its units: `1 h 30 min`."""
    parts = []
    for name, unit in (*_UNITS, ("ms", 1)):
        number, milliseconds = divmod(milliseconds, unit)
        parts += [f"{number} {name}"] if number else []
    return " ".join(parts)


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
