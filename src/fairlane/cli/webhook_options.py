"""The options of `fairlane deliveries` and of `fairlane webhooks`."""

from __future__ import annotations

from fairlane.cli.options import Commands, Parser, offer, one, paging, several, store_only
from fairlane.cli.values import seconds


def fill(commands: Commands) -> None:
    commands.noun(
        "deliveries",
        "Look at the webhooks that are or were owed, and send one again",
        _deliveries,
        "examples:\n"
        "  fairlane deliveries --state given_up\n"
        "  fairlane deliveries show msg_tsk_1_7\n"
        "  fairlane deliveries redeliver msg_tsk_1_7",
    )
    commands.noun(
        "webhooks",
        "Give receivers of webhooks a secret of their own, and change it",
        _webhooks,
        "examples:\n"
        "  fairlane webhooks add https://hooks.example/fairlane > secret\n"
        "  fairlane webhooks rotate whk_1 --overlap 2d",
    )


def _deliveries(deliveries: Commands) -> None:
    deliveries.add("list", "List them, newest first", _list)
    deliveries.add("show", "Show one with its tries", one)
    deliveries.add("redeliver", "Send them again, now", several)


def _webhooks(webhooks: Commands) -> None:
    webhooks.add("list", "List the endpoints that have a secret of their own", _endpoints)
    webhooks.add("add", "Give an endpoint a secret; it is shown this once", _add)
    webhooks.add("rotate", "Change its secret; the new one is shown this once", _rotate)
    webhooks.add("enable", "Send to endpoints again that have answered 410", several)
    webhooks.add("remove", "Sign with the common secret again", several)
    about = "Print the common secret, for endpoints without one of their own"
    webhooks.add("secret", about, side=store_only)


def _list(parser: Parser) -> None:
    parser.add_argument("--state", metavar="STATE", help="of due, delivered, given_up")
    offer(parser, "task", "agent", task="of a task, a batch or a cron run")
    paging(parser)


def _endpoints(parser: Parser) -> None:
    offer(parser, "agent")
    paging(parser)


def _add(parser: Parser) -> None:
    parser.add_argument("endpoint", metavar="URL", help="what callbacks name, without their query")
    offer(parser, "agent", agent="for this agent's tasks only (for all)")


def _rotate(parser: Parser) -> None:
    one(parser)
    parser.add_argument(
        "--overlap",
        metavar="SPAN",
        type=seconds,
        help="how long the old secret signs too: 0, 2h, 7d (1d)",
    )
