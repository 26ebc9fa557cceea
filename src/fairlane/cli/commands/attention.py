"""What needs attention, each with the command that fixes it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from fairlane.cli.backends import Side, connected
from fairlane.cli.commands import Commands, Exit, Parser
from fairlane.cli.output import Fields, Output, Styled

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

_KINDS: Final = {"noWorker": "no worker"}


def register(commands: Commands) -> None:
    commands.add("attention", connected(attention), _options)


def _options(parser: Parser) -> None:
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"exit with {Exit.NOT_WELL.value} if anything needs attention",
    )


def attention(args: argparse.Namespace, side: Side, out: Output) -> int:
    response = side.client.attention()
    out.show(response, _draw)
    return Exit.NOT_WELL if args.check and response.count else Exit.OK


def _draw(terminal: Terminal, response: Fields) -> None:
    terminal.line(Styled(response["summary"], "yellow" if response["count"] else "green"))
    for one in response["items"]:
        terminal.line("")
        kind = _KINDS.get(one["kind"], one["kind"])
        terminal.line(Styled(f"{kind:<11}", "yellow"), one["text"])
        terminal.line(f"{'':<11}", Styled(one["command"], "cyan"))
