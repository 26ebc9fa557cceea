"""Resources: show quotas, budgets, pools and locks, and change them by hand."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.options import declared, duration, paging
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Output,
    Styled,
    ago,
    counted,
    span,
    with_ago,
)
from fairlane.schema.resources import (
    CloseRequest,
    RaiseRequest,
    ResourceRequest,
    ShowLedger,
    ShowUsage,
)

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

_EXAMPLES: Final = (
    "examples:\n"
    "  fairlane resources                           list resources, the same as resources list\n"
    "  fairlane resources gpt                       show one resource\n"
    "  fairlane resources close gpt --for 5m --reason 'provider incident'\n"
    "  fairlane resources raise spend --key research --unit usd --amount 10.50"
)
USAGE: Final[Columns] = {"DAY": "day", "AGENT": "agentId", "UNIT": "unit", "USED": "used"}
LEDGER: Final[Columns] = {
    "WHEN": lambda one: ago(one["at"]),
    "WHAT": "kind",
    "AMOUNT": lambda one: f"{one.get('amount', 0)} {one.get('unit', '')}".rstrip(),
    "BALANCE": lambda one: str(one.get("balance", "-")),
    "TASK": lambda one: one.get("taskId", "-"),
    "AGENT": lambda one: one.get("agentId", "-"),
}


def register(commands: Commands) -> None:
    commands.noun("resources", _verbs, epilog=_EXAMPLES)


def _verbs(resources: Commands) -> None:
    add = resources.add
    add("list", connected(list_), _list_options, "List resources, or show one resource")
    add("ledger", connected(ledger), _ledger_options, "List reservations, settlements and refunds")
    add("usage", connected(usage), _usage_options, "Show how much each agent used on each day")
    about = "Close a resource: tasks that need it do not start until it opens again"
    add("close", connected(close), _close_options, about)
    add("open", connected(open_), _resource, "Open a closed resource")
    add("raise", connected(raise_), _raise_options, "Raise a budget until it resets")


def _resource(parser: Parser) -> None:
    declared(parser, ResourceRequest, "name", "name", metavar="NAME")
    declared(parser, ResourceRequest, "key", metavar="KEY")


# -------------------------------------------------------------------- show


def _list_options(parser: Parser) -> None:
    about = "resource to show (default: list all)"
    parser.add_argument("name", metavar="NAME", nargs="?", help=about)
    declared(parser, ResourceRequest, "key", metavar="KEY")
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    if args.name is not None:
        out.show(side.client.resource(args.name, key=args.key), _draw)
        return
    out.pages(args, side.client.resources, "resources", _columns(), none="no resources")


def _columns() -> Columns:
    return {
        "RESOURCE": _title,
        "STATE": _state,
        "USE": lambda one: ", ".join(_use(limit) for limit in one["limits"]),
        "WAITING": "waiting",
        "RESETS": lambda one: next(
            (ago(limit["resetsAt"]) for limit in one["limits"] if "resetsAt" in limit), "-"
        ),
    }


def _title(one: Fields) -> str:
    return f"{one['name']}/{one['key']}" if "key" in one else str(one["name"])


def _state(one: Fields) -> Cell:
    return Styled("closed", "yellow") if one["state"] == "closed" else "open"


def _use(limit: Fields) -> str:
    period = f" per {span(limit['perMs'])}" if "perMs" in limit else ""
    reserved = f" (+{limit['reserved']})" if limit["reserved"] else ""
    return f"{limit['used']}{reserved} of {limit['amount']} {limit['unit']}{period}"


def _draw(terminal: Terminal, one: Fields) -> None:
    terminal.grid(_lines(one))


def _lines(one: Fields) -> Iterator[tuple[str, Cell]]:
    yield "resource", _title(one)
    yield "state", _state(one)
    if "closedUntil" in one:
        yield "closed until", with_ago(one["closedUntil"])
    if "reason" in one:
        yield "reason", one["reason"]
    for limit in one["limits"]:
        yield limit["unit"], f"{_use(limit)}, {limit['available']} available"
        for name, word in (("others", "used by others"), ("overdrawn", "overdrawn by")):
            if limit.get(name):
                yield "", f"{word} {limit[name]}"
        if "resetsAt" in limit:
            yield "resets", with_ago(limit["resetsAt"])
    yield "waiting", counted(one["waiting"], "task")
    for holder in one.get("holders", ()):
        amounts = ", ".join(f"{amount} {unit}" for unit, amount in holder["amounts"].items())
        yield "held by", f"{holder['taskId']} of {holder['agentId']}: {amounts}"


# -------------------------------------------------------------------- ledger and usage


def _ledger_options(parser: Parser) -> None:
    _resource(parser)
    declared(parser, ShowLedger, "unit", metavar="UNIT")
    paging(parser)


def ledger(args: argparse.Namespace, side: Side, out: Output) -> None:
    ask = partial(side.client.resource_ledger, args.name, key=args.key, unit=args.unit)
    out.pages(args, ask, "entries", LEDGER, none="no entries")


def _usage_options(parser: Parser) -> None:
    _resource(parser)
    declared(parser, ShowUsage, "from_day", "--from", metavar="DAY", dest="from_day")
    declared(parser, ShowUsage, "to_day", "--to", metavar="DAY", dest="to_day")
    declared(parser, ShowUsage, "unit", metavar="UNIT")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")


def usage(args: argparse.Namespace, side: Side, out: Output) -> None:
    report = side.client.resource_usage(
        args.name, key=args.key, from_day=args.from_day, to_day=args.to_day, unit=args.unit
    )
    if not args.csv:
        out.page(report, "rows", USAGE, none="no use")
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["day", "agentId", "unit", "used"])
    writer.writerows([row.day, row.agent, row.unit, row.used] for row in report.rows)


# -------------------------------------------------------------------- close, open, raise


def _close_options(parser: Parser) -> None:
    _resource(parser)
    until = parser.add_mutually_exclusive_group()
    about = "open it again after this time, such as 30s or 5m (default: stay closed)"
    until.add_argument("--for", metavar="TIME", dest="for_ms", type=duration, help=about)
    until.add_argument("--until", metavar="TIME", help="open it again at this time (RFC 3339)")
    declared(parser, CloseRequest, "reason", metavar="TEXT")


def close(args: argparse.Namespace, side: Side, out: Output) -> None:
    closed = side.client.close_resource(
        args.name, key=args.key, for_ms=args.for_ms, until=args.until, reason=args.reason
    )
    end = closed.get("closedUntil")
    until = f" until {with_ago(end)}" if end else "; open it with fairlane resources open"
    out.line(closed, f"closed {_title(closed.to_dict())}{until}")


def open_(args: argparse.Namespace, side: Side, out: Output) -> None:
    opened = side.client.open_resource(args.name, key=args.key)
    out.line(opened, f"opened {_title(opened.to_dict())}")


def _raise_options(parser: Parser) -> None:
    _resource(parser)
    declared(parser, RaiseRequest, "unit", metavar="UNIT", required=True)
    parser.add_argument(
        "--amount", metavar="N", required=True, help="how much to add until the reset"
    )
    declared(parser, RaiseRequest, "reason", metavar="TEXT")


def raise_(args: argparse.Namespace, side: Side, out: Output) -> None:
    raised = side.client.raise_resource(
        args.name, args.unit, args.amount, key=args.key, reason=args.reason
    )
    out.line(raised, f"raised {_title(raised.to_dict())} by {args.amount} {args.unit}")
