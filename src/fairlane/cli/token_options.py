"""The options of `fairlane token`."""

from __future__ import annotations

from fairlane.cli.options import Commands, Parser, offer
from fairlane.cli.values import count


def fill(commands: Commands) -> None:
    commands.noun(
        "token",
        "Make, list and revoke the tokens that callers of a server need",
        _verbs,
        "examples:\n"
        "  fairlane token create --name root --scope all --store sqlite:///fairlane.db\n"
        "  fairlane token create --name bot --agent a1 --expires 30d --rate 50/s --max-open 1000\n"
        "  fairlane token revoke bot",
    )


def _verbs(token: Commands) -> None:
    token.add("create", "Make a token; it is shown this once", _create)
    token.add("list", "List tokens, also those that are revoked")
    token.add("revoke", "Make tokens worthless at once", _revoke)


def _create(parser: Parser) -> None:
    parser.epilog = (
        "From the first token on, every caller of the server needs one. The first one is made on\n"
        "the store itself (--store) or over HTTP while there is none; later ones over HTTP need\n"
        "the scope admin. Scopes: submit, read, cancel (these three unless you say others),\n"
        "lease, operate, admin, or all."
    )
    parser.add_argument("--name", metavar="NAME", required=True, help="who it is for")
    offer(parser, "agent", agent="sees and touches only what is this agent's")
    parser.add_argument(
        "--scope",
        metavar="SCOPE",
        action="append",
        help="what it may do (repeatable, or with commas)",
    )
    parser.add_argument(
        "--expires", metavar="WHEN", help="a span from now as in 30d, a date, or RFC 3339 (never)"
    )
    parser.add_argument("--rate", metavar="N/UNIT", help="requests it may make: 50/s, 600/m, …")
    parser.add_argument(
        "--max-open", metavar="N", type=count, help="tasks that may be open when it submits"
    )


def _revoke(parser: Parser) -> None:
    parser.add_argument("tokens", metavar="TOKEN", nargs="+", help="ids or names")
