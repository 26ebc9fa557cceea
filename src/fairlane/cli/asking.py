"""What commands share when they ask: what the options say, page after page, thing after thing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fairlane.cli import exits
from fairlane.cli.output import Shape, tell
from fairlane.cli.values import span_ms
from fairlane.clock import SystemClock
from fairlane.core.errors import CallerError, InvalidRequest
from fairlane.schema import wire

# Options that say which tasks, for many and for lists, by the argument of `Verbs` that each fills.
_WHICH: Final = {
    "agent": "agent",
    "state": "states",
    "lane": "lane",
    "session": "session",
    "batch": "batch",
    "kind": "kind",
}
_LISTED: Final = {**_WHICH, "depends_on": "depends_on", "text": "text", "brief": "brief"}


def pages(args: argparse.Namespace, ask: Callable[..., Shape]) -> Iterator[Shape]:
    """The page that is wanted, or with `--all` one after the other."""
    limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
    cursor = args.cursor
    while True:
        page = ask(limit=limit, cursor=cursor)
        yield page
        cursor = page.get("nextCursor")
        if not args.all or cursor is None:
            return


def for_each(args: argparse.Namespace, things: Iterable[str], act: Callable[[str], None]) -> int:
    """Act on each, once. What is refused for one may still be done for the others."""
    code = exits.OK
    for thing in dict.fromkeys(things):
        try:
            act(thing)
        except CallerError as error:
            tell(error, as_json=args.json)
            code = code or exits.exit_code(error)
    return code


def given(args: argparse.Namespace, options: Mapping[str, str]) -> dict[str, Any]:
    """The options that were given, by the names that they have elsewhere."""
    named = {name: getattr(args, option) for option, name in options.items()}
    return {name: value for name, value in named.items() if value is not None}


def which_tasks(args: argparse.Namespace) -> dict[str, Any]:
    return _filters(args, _WHICH)


def which_listed(args: argparse.Namespace) -> dict[str, Any]:
    return _filters(args, _LISTED)


def _filters(args: argparse.Namespace, options: Mapping[str, str]) -> dict[str, Any]:
    """What is to fit. A filter that is there and empty, as from a variable that is not set, would
    fit more than is meant.
    """
    for option in options:
        if getattr(args, option) in ("", [""]):
            name = option.replace("_", "-")
            raise InvalidRequest(f"--{name} is empty: give it a value, or leave it out")
    return given(args, options)


def params(args: argparse.Namespace) -> dict[str, Any] | None:
    """What `--params` says, and each `--param` over it."""
    if args.params is None and args.param is None:
        return None
    return {**(args.params or {}), **dict(args.param or ())}


def moment(text: str) -> str:
    """A span counts from now; everything else is for the server to read."""
    milliseconds = span_ms(text)
    return text if milliseconds is None else wire.moment(SystemClock().now() + milliseconds)
