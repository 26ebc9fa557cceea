"""What ran in the last hours, by handler and by agent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, get_args

from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.output import Cell, Columns, Fields, Layouts, Output, Styled, span
from fairlane.schema.handlers import HandlerWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.cli.output.terminal import Terminal


def register(commands: Commands) -> None:
    commands.add("handlers", connected(handlers), _options)


def _options(parser: Parser) -> None:
    parser.add_argument(
        "--window",
        choices=get_args(HandlerWindow),
        default="24h",
        help="how far to look back, in whole hours including the current one (default: 24h)",
    )
    parser.add_argument("--agent", metavar="NAME", help="only tasks of this agent")
    parser.add_argument("--handler", metavar="NAME", help="only tasks of this handler")
    parser.add_argument("--by-agent", action="store_true", help="list agents instead of handlers")


def handlers(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = side.client.handlers(args.window, agent=args.agent, handler=args.handler)
    out.show(response, _draw, by_agent=args.by_agent)


def _draw(terminal: Terminal, response: Fields, *, by_agent: bool) -> None:
    rows = response["agents" if by_agent else "handlers"]
    if not rows:
        terminal.line(f"no task has run since {response['since']}")
        return
    name = "AGENT" if by_agent else "HANDLER"
    columns: Columns = {name: _agent if by_agent else "name", **_TOTALS}
    terminal.table(columns, rows, layouts=((100, {name: 40}), *_LAYOUTS))


def _agent(one: Fields) -> str:
    return one["agentId"] or "(others)"


def _failures(one: Fields) -> Cell:
    if not one["failures"]:
        return "0"
    return Styled(f"{one['failures']} ({round(100 * one['failureRate'])} %)", "red")


def _spans(one: str, other: str) -> Callable[[Fields], str]:
    """Return a column with a median and a 95th percentile."""

    def shown(row: Fields) -> str:
        values = (row[one], row[other])
        return " / ".join("-" if value is None else span(value) for value in values)

    return shown


_TOTALS: Final[Columns] = {
    "STARTED": "starts",
    "DONE": "done",
    "FAILURES": _failures,
    "WAIT 50/95 %": _spans("waitP50Ms", "waitP95Ms"),
    "RUN 50/95 %": _spans("runP50Ms", "runP95Ms"),
    "TIME": lambda one: span(one["ranMs"]),
}
_LAYOUTS: Final[Layouts] = ((0, {"STARTED": 0, "WAIT 50/95 %": 0}),)
