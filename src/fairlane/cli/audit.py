"""`fairlane audit`: who did what, what was denied and which targets were blocked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from fairlane.cli import drawing, exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape, print_json
from fairlane.cli.text import shown
from fairlane.clock import SystemClock

PAGE: Final = 1000
LOOK_SECONDS: Final = 1.0


def run(args: argparse.Namespace) -> int:
    side = backend(args)
    with side.client:
        page = _page(side, args, limit=args.limit)
        if args.follow:
            _follow(side, args, page["entries"])
        elif args.json:
            print_json(page)
        else:
            HumanAuditOutput().entries(page)
    return exits.OK


def _page(
    side: Backend,
    args: argparse.Namespace,
    limit: int,
    after: int | None = None,
    cursor: str | None = None,
) -> Shape:
    page: Shape = side.client.audit(
        who=args.who,
        action=args.action,
        outcome=args.outcome,
        limit=limit,
        after=after,
        cursor=cursor,
    )
    return page


def _since(side: Backend, args: argparse.Namespace, after: int) -> list[Shape]:
    """Return all entries after one, newest first."""
    found: list[Shape] = []
    cursor: str | None = None
    while True:
        page = _page(side, args, PAGE, after, cursor)
        found += page["entries"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


def _follow(side: Backend, args: argparse.Namespace, first: Sequence[Shape]) -> None:
    """The newest at the end, as they come, until the command is ended."""
    clock = SystemClock()
    for entry in _as_they_come(side, args, first, clock):
        if args.json:
            print_json(entry)
        else:
            sys.stdout.write(f"{_line(entry)}\n")
        sys.stdout.flush()


def _as_they_come(
    side: Backend, args: argparse.Namespace, first: Sequence[Shape], clock: SystemClock
) -> Iterator[Shape]:
    last, entries = 0, first
    while True:
        yield from reversed(entries)
        last = entries[0]["id"] if entries else last
        clock.sleep(LOOK_SECONDS)
        entries = _since(side, args, last)


def _line(one: Shape) -> str:
    words = (one["at"], one["outcome"], one["who"], one["action"], one.get("target", ""))
    return shown("  ".join([*words, one.get("detail", "")]).rstrip())


class HumanAuditOutput(HumanOutput):
    def entries(self, answer: Shape) -> None:
        if not answer["entries"]:
            self._line("nothing has been done, denied or blocked")
            return
        names = ("AT", "OUTCOME", "WHO", "ACTION", "TARGET", "DETAIL")
        keys = ("at", "outcome", "who", "action", "target", "detail")
        rows = [
            [drawing.text(one.get(key, "")) for key in keys] for one in reversed(answer["entries"])
        ]
        self._print(drawing.table(names, rows, header=True))
