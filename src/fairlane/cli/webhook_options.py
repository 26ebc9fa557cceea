"""The options of `fairlane deliveries` and of `fairlane webhooks`."""

from __future__ import annotations

from collections.abc import Callable

from fairlane.cli.parser import Parser, paging, server_or_store, store_only
from fairlane.cli.values import seconds
from fairlane.core import webhooks as core


def deliveries(parser: Parser, leaves: dict[str, Parser]) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane deliveries --state given_up\n"
        "  fairlane deliveries show msg_tsk_1_7\n"
        "  fairlane deliveries redeliver msg_tsk_1_7"
    )
    add = _adder(parser, "deliveries", leaves)
    add("list", "List them, newest first", _list)
    add("show", "Show one with its tries", _delivery)
    add("redeliver", "Send them again, now", _redeliver)


def webhooks(parser: Parser, leaves: dict[str, Parser]) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane webhooks add https://hooks.example/fairlane > secret\n"
        "  fairlane webhooks rotate whk_1 --overlap 2d"
    )
    add = _adder(parser, "webhooks", leaves)
    add("list", "List the endpoints that have a secret of their own", _endpoints)
    add("add", "Give an endpoint a secret; it is shown this once", _add)
    add("rotate", "Change its secret; the new one is shown this once", _rotate)
    add("enable", "Send to endpoints again that have answered 410", _which)
    add("remove", "Sign with the common secret again", _which)
    summary = "Print the common secret, for endpoints without one of their own"
    add("secret", summary, lambda _: None, where=store_only)


def _adder(parser: Parser, command: str, leaves: dict[str, Parser]) -> Callable[..., None]:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    leaves[command] = parser

    def add(
        verb: str,
        summary: str,
        options: Callable[[Parser], None],
        where: Callable[[Parser], None] = server_or_store,
    ) -> None:
        leaf = verbs.add_parser(verb, help=summary, description=f"{summary}.")
        leaves[f"{command} {verb}"] = leaf
        options(leaf)
        where(leaf)

    return add


def _list(parser: Parser) -> None:
    parser.add_argument("--state", metavar="STATE", help=f"of {', '.join(core.STATES)}")
    parser.add_argument("--task", metavar="ID", help="of a task, a batch or a cron run")
    parser.add_argument("--agent", metavar="ID")
    paging(parser)


def _delivery(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")


def _redeliver(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")


def _endpoints(parser: Parser) -> None:
    parser.add_argument("--agent", metavar="ID")
    paging(parser)


def _add(parser: Parser) -> None:
    parser.add_argument("endpoint", metavar="URL", help="what callbacks name, without their query")
    parser.add_argument("--agent", metavar="ID", help="for this agent's tasks only (for all)")


def _rotate(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument(
        "--overlap",
        metavar="SPAN",
        type=seconds,
        help="how long the old secret signs too: 0, 2h, 7d (1d)",
    )


def _which(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")
