"""Events: the newest ones, those since a time, or new ones as they happen."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.options import count, filters, follow, time_point, whole
from fairlane.cli.output import Fields, Output, Styled, shortened, state
from fairlane.client.base import WhichEvents
from fairlane.core import events as types
from fairlane.core import lifecycle

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

LAST: Final = 50


def register(commands: Commands) -> None:
    commands.add("events", connected(events), _options, epilog=_EXAMPLES)


_EXAMPLES: Final = (
    "examples:\n"
    "  fairlane events                            the newest 50\n"
    "  fairlane events --since 10:00 --type task.failed,task.parked\n"
    "  fairlane events --last 10 --follow"
)


def _options(parser: Parser) -> None:
    follow(parser, "keep printing new events until Ctrl-C")
    which = parser.add_mutually_exclusive_group()
    about = f"print the newest N events (default {LAST}; with --follow: 0)"
    which.add_argument("--last", metavar="N", type=count, help=about)
    about = "print all events after this time: 1h ago, 10:00, a date or RFC 3339"
    which.add_argument("--since", metavar="TIME", type=time_point, help=about)
    about = "print all events after the event with this ID; 0 prints all"
    which.add_argument("--after", metavar="N", type=whole, help=about)
    filters(parser, "events", "task", "batch", "agent", "lane", "session")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        action="append",
        help="only events of this type, such as task.completed; "
        "repeat the option or separate types with commas",
    )


def events(args: argparse.Namespace, side: Side, out: Output) -> None:
    which: WhichEvents = {
        "task": args.task,
        "batch": args.batch,
        "agent": args.agent,
        "lane": args.lane,
        "session": args.session,
        "types": args.type or (),
    }
    if args.since is not None:
        which["since"] = args.since
    newest = args.since is None and args.after is None
    if newest and not (args.follow and args.last is None):
        _print(out, last := side.client.last_events(args.last or LAST, **which))
        if not args.follow:
            return
        args.after = last[-1]["id"] if last else None
    found = side.client.events(after=args.after, follow=args.follow, **which)
    with closing(found):
        _print(out, found)


def _print(out: Output, found: Iterable[Fields]) -> None:
    for event in found:
        out.show(event, _draw_event)


def _draw_event(terminal: Terminal, event: Fields) -> None:
    about = str(event.get("taskId") or event.get("batchId", "-"))
    kind = Styled(f"{event['type']:<15}", state(event.get("state", "")).style)
    who = " ".join(str(event[name]) for name in ("agentId", "handler") if name in event)
    note = shortened(_event_note(event), 200)
    head = f"{event['id']:>6}  {event['timestamp']}  "
    terminal.line(head, kind, f"  {about}", f"  {who}" if who else "", f"  {note}" if note else "")


def _event_note(event: Fields) -> str:
    notes = []
    if event["type"] in (types.CREATED, types.REQUEUED) and event["state"] != lifecycle.QUEUED:
        notes.append(event["state"])
    if event.get("attempt", 1) > 1:
        notes.append(f"attempt {event['attempt']}")
    notes += [str(event[name]) for name in ("error", "worker", "jobId") if name in event]
    return ", ".join(notes)
