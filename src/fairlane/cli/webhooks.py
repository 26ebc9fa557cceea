"""What the commands of `fairlane deliveries` and of `fairlane webhooks` do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from fairlane import config
from fairlane.cli import exits
from fairlane.cli.asking import for_each, pages
from fairlane.cli.backends import opened
from fairlane.cli.output import Shape, output_of
from fairlane.client.sync import Client

if TYPE_CHECKING:
    from fairlane.cli.human_webhooks import HumanWebhookOutput


def run(args: argparse.Namespace) -> int:
    return VERBS[f"{args.command} {args.verb}"](args)


# -------------------------------------------------------------------- deliveries


def list_deliveries(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        which = {"state": args.state, "task": args.task, "agent": args.agent}
        for page in pages(args, partial(side.client.deliveries, **which)):
            out.deliveries(page, more=args.all)
    return exits.OK


def show_delivery(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.delivery(side.client.delivery(args.id))
    return exits.OK


def redeliver(args: argparse.Namespace) -> int:
    return _each(args, Client.redeliver, "will be sent again")


# -------------------------------------------------------------------- endpoints


def list_endpoints(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        for page in pages(args, partial(side.client.webhooks, agent=args.agent)):
            out.endpoints(page, more=args.all)
    return exits.OK


def add(args: argparse.Namespace) -> int:
    with opened(args, _for_people, create=True) as (side, out):
        out.new_secret(side.client.create_webhook(args.endpoint, agent=args.agent))
    return exits.OK


def rotate(args: argparse.Namespace) -> int:
    overlap = None if args.overlap is None else round(args.overlap)
    with opened(args, _for_people) as (side, out):
        out.new_secret(side.client.rotate_webhook(args.id, overlap_seconds=overlap))
    return exits.OK


def enable(args: argparse.Namespace) -> int:
    return _each(args, Client.enable_webhook, "is enabled")


def remove(args: argparse.Namespace) -> int:
    return _each(args, Client.delete_webhook, "is removed")


def secret(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import webhook_secret  # noqa: PLC0415 - slow to import

    found = webhook_secret(config.load({"store": args.store}))
    output_of(args, _for_people).secret({"secret": found})
    return exits.OK


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "deliveries list": list_deliveries,
    "deliveries show": show_delivery,
    "deliveries redeliver": redeliver,
    "webhooks list": list_endpoints,
    "webhooks add": add,
    "webhooks rotate": rotate,
    "webhooks enable": enable,
    "webhooks remove": remove,
    "webhooks secret": secret,
}


# -------------------------------------------------------------------- what they share


def _each(args: argparse.Namespace, ask: Callable[[Client, str], Shape], told: str) -> int:
    with opened(args, _for_people) as (side, out):
        return for_each(args, args.ids, lambda id_: out.done(ask(side.client, id_), told))


def _for_people() -> HumanWebhookOutput:
    from fairlane.cli.human_webhooks import HumanWebhookOutput  # noqa: PLC0415 - slow to import

    return HumanWebhookOutput()
