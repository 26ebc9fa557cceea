"""Webhooks: deliveries to receivers, and the secrets that sign them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from fairlane import config
from fairlane.cli.backends import Perform, Side, connected, for_each
from fairlane.cli.commands import Commands, Exit, Parser, store_only
from fairlane.cli.options import filters, offer, one, paging, seconds, several
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Layouts,
    Output,
    Shape,
    ago,
    label,
    span,
    with_ago,
)
from fairlane.client.base import BaseClient
from fairlane.core import webhooks as rules

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal


def register(commands: Commands) -> None:
    commands.noun(
        "deliveries",
        _deliveries,
        epilog="examples:\n"
        "  fairlane deliveries --state given_up\n"
        "  fairlane deliveries show msg_tsk_1_7\n"
        "  fairlane deliveries redeliver msg_tsk_1_7",
    )
    commands.noun(
        "webhooks",
        _webhooks,
        epilog="examples:\n"
        "  fairlane webhooks add https://hooks.example/fairlane > secret\n"
        "  fairlane webhooks rotate whk_1 --overlap 2d",
    )


def _deliveries(deliveries: Commands) -> None:
    add = deliveries.add
    add("list", connected(list_), _list_options, "List deliveries, newest first")
    add("show", connected(show), one("delivery"), "Show a delivery and its attempts")
    run = _each(BaseClient.redeliver, "will be sent again")
    add("redeliver", connected(run), several("delivery"), "Resend deliveries now")


def _webhooks(webhooks: Commands) -> None:
    add = webhooks.add
    add(
        "list",
        connected(list_receivers),
        _receiver_options,
        "List receivers that have their own secret",
    )
    about = "Create a secret for a receiver and print it; it is shown only once"
    add("add", connected(create, create=True), _add_options, about)
    about = "Replace a receiver's secret and print the new one; it is shown only once"
    add("rotate", connected(rotate), _rotate_options, about)
    about = "Resume sending to receivers that were disabled after a 410 response"
    run = _each(BaseClient.enable_webhook, "is enabled")
    add("enable", connected(run), several("receiver"), about)
    about = "Delete receivers' secrets; their webhooks are signed with the shared secret again"
    run = _each(BaseClient.delete_webhook, "is removed")
    add("remove", connected(run), several("receiver"), about)
    about = "Print the shared secret, used for receivers without their own"
    add("secret", secret, None, about, side=store_only)


def _each(act: Callable[[BaseClient, str], Shape], outcome: str) -> Perform:
    """Return a command that acts on each ID and prints its outcome."""

    def perform(args: argparse.Namespace, side: Side, out: Output) -> int:
        def act_on(id_: str) -> None:
            response = act(side.client, id_)
            out.line(response, f"{response['id']} {outcome}")

        return for_each(args, args.ids, act_on)

    return perform


# -------------------------------------------------------------------- deliveries


def _list_options(parser: Parser) -> None:
    about = f"only deliveries in this state: {', '.join(get_args(rules.DeliveryState))}"
    parser.add_argument("--state", metavar="STATE", help=about)
    about = "only deliveries of this task, batch or cron run"
    parser.add_argument("--task", metavar="ID", help=about)
    filters(parser, "deliveries", "agent")
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    which = {"state": args.state, "task": args.task, "agent": args.agent}
    ask = partial(side.client.deliveries, **which)
    out.pages(args, ask, "deliveries", DELIVERIES, none="no deliveries", layouts=LAYOUTS)


def _last(delivery: Fields) -> str:
    if "lastError" in delivery:
        return str(delivery["lastError"])
    return f"status {delivery['lastStatus']}" if "lastStatus" in delivery else ""


DELIVERIES: Final[Columns] = {
    "DELIVERY": "id",
    "EVENT": "event",
    "TO": "url",
    "STATE": lambda delivery: delivery["state"].replace("_", " "),
    "TRIES": "attempts",
    "CREATED": lambda delivery: ago(delivery["createdAt"]),
    "LAST": _last,
}
LAYOUTS: Final[Layouts] = ((0, {"TO": 40, "LAST": 50}),)
_TRIES: Final[Columns] = {
    "TRY": "attempt",
    "ENDED": lambda one: ago(one["at"]),
    "TOOK": lambda one: span(one["tookMs"]) if "tookMs" in one else "-",
    "STATUS": lambda one: str(one.get("status", "-")),
    "ERROR": "error",
}


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.delivery(args.id), _draw_delivery)


def _draw_delivery(terminal: Terminal, delivery: Fields) -> None:
    terminal.grid(_lines(delivery))
    if delivery["tries"]:
        terminal.line("")
        terminal.table(_TRIES, delivery["tries"])


def _lines(delivery: Fields) -> Iterator[tuple[str, Cell]]:
    for name, value in delivery.items():
        if name != "tries":
            is_time = name in ("createdAt", "settledAt", "nextAt")
            yield label(name), with_ago(value) if is_time else str(value)


# -------------------------------------------------------------------- receivers


def _receiver_options(parser: Parser) -> None:
    filters(parser, "receivers", "agent")
    paging(parser)


def list_receivers(args: argparse.Namespace, side: Side, out: Output) -> None:
    ask = partial(side.client.webhooks, agent=args.agent)
    none = "no receiver has its own secret; all of them use the shared one"
    out.pages(args, ask, "endpoints", RECEIVERS, none=none)


RECEIVERS: Final[Columns] = {
    "ENDPOINT": "id",
    "URL": "url",
    "AGENT": lambda receiver: receiver.get("agentId", "all"),
    "STATE": "state",
    "SECRET": lambda receiver: ago(receiver.get("rotatedAt", receiver["createdAt"])),
}


def _add_options(parser: Parser) -> None:
    about = "URL of the receiver, as in callback URLs but without the query"
    parser.add_argument("endpoint", metavar="URL", help=about)
    offer(parser, "agent", agent="use the secret only for tasks of this agent (default: all)")
    about = "also send events of this type to the URL, such as approval.opened (repeatable)"
    parser.add_argument("--event", metavar="TYPE", action="append", help=about)


def create(args: argparse.Namespace, side: Side, out: Output) -> None:
    _print_secret(
        out, side.client.create_webhook(args.endpoint, agent=args.agent, events=args.event)
    )


def _rotate_options(parser: Parser) -> None:
    one("receiver")(parser)
    parser.add_argument(
        "--overlap",
        metavar="TIME",
        type=seconds,
        help="how long to sign with the old secret too, such as 0, 2h or 7d (default 1d)",
    )


def rotate(args: argparse.Namespace, side: Side, out: Output) -> None:
    overlap = None if args.overlap is None else round(args.overlap)
    _print_secret(out, side.client.rotate_webhook(args.id, overlap_seconds=overlap))


def _print_secret(out: Output, receiver: Shape) -> None:
    overlaps = "previousUntil" in receiver
    until = f"; the old secret signs too until {receiver['previousUntil']}" if overlaps else ""
    about = f"secret of {receiver['id']} for {receiver['url']}{until}"
    out.secret(receiver, receiver["secret"], f"{about}; save it now; it will not be shown again")


def secret(args: argparse.Namespace) -> int:
    # Deferred because the other commands of this module do not need the engine (90 ms).
    from fairlane.cli.direct import webhook_secret  # noqa: PLC0415 - for the reason above

    found = webhook_secret(config.load({"store": args.store}))
    Output(args).line({"secret": found}, found)
    return Exit.OK
