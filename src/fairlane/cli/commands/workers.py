"""Workers: where they run, what they can run, and which are silent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.output import Columns, Fields, Layouts, Output, Styled, ago, shortened

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

STYLES: Final = {"online": "green", "draining": "yellow", "silent": "red"}
_NONE: Final = (
    "no worker is known; start a server with fairlane serve, or a worker with fairlane worker"
)


def register(commands: Commands) -> None:
    commands.add("workers", connected(workers), _options)


def _options(parser: Parser) -> None:
    parser.add_argument(
        "--online", action="store_true", help="leave out workers that are silent or draining"
    )


def workers(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.workers(), _draw, online=args.online)


def _draw(terminal: Terminal, response: Fields, *, online: bool) -> None:
    shown = [one for one in response["workers"] if one["state"] == "online" or not online]
    if not shown:
        terminal.line("no worker is online" if response["workers"] else _NONE)
        return
    terminal.table(_WORKERS, shown, layouts=_LAYOUTS)


def _offers(worker: Fields) -> str:
    """Return what a worker can run, in a few words."""
    words = ["any handler"] if worker["anyHandler"] else []
    words += [*worker["handlers"], *(f"({kind})" for kind in worker["kinds"])]
    limits = [f"lane {lane}" for lane in worker["lanes"] or ()]
    limits += [f"agent {worker['agentId']}"] if worker["agentId"] else []
    text = shortened(" ".join(words) or "-", 120)
    return f"{text}; only {', '.join(limits)}" if limits else text


def _busy(worker: Fields) -> str:
    return f"{worker['running']}/{'-' if worker['slots'] is None else worker['slots']}"


_WORKERS: Final[Columns] = {
    "WORKER": "name",
    "STATE": lambda one: Styled(one["state"], STYLES.get(one["state"], "")),
    "BUSY": _busy,
    "SEEN": lambda one: ago(one["lastSeenAt"]),
    "VERSION": lambda one: one["version"] or "-",
    "ADDRESS": lambda one: one["address"] or "-",
    "OFFERS": _offers,
}
_LAYOUTS: Final[Layouts] = (
    (120, {"WORKER": 40}),
    (0, {"WORKER": 24, "VERSION": 0, "ADDRESS": 0}),
)
