"""What the commands of `fairlane deliveries` and of `fairlane webhooks` do.

A secret goes to the output, once; what is said about it goes elsewhere, so that `fairlane webhooks
add … > file` keeps the secret and nothing besides.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from fairlane import wire
from fairlane.cli import exits
from fairlane.cli.backends import backend
from fairlane.cli.output import Shape, print_json, tell
from fairlane.cli.text import shown
from fairlane.client import Client
from fairlane.core.errors import CallerError

if TYPE_CHECKING:
    from fairlane.cli.human_webhooks import HumanWebhookOutput


def run(args: argparse.Namespace) -> int:
    return VERBS[f"{args.command} {args.verb}"](args)


# -------------------------------------------------------------------- deliveries


def list_deliveries(args: argparse.Namespace) -> int:
    def page(client: Client, limit: int | None, cursor: str | None) -> Shape:
        return client.deliveries(
            state=args.state, task=args.task, agent=args.agent, limit=limit, cursor=cursor
        )

    return _pages(args, page, lambda out: out.deliveries)


def show_delivery(args: argparse.Namespace) -> int:
    with _opened(args) as client:
        found = client.delivery(args.id)
    if args.json:
        print_json(found)
    else:
        _human().delivery(found)
    return exits.OK


def redeliver(args: argparse.Namespace) -> int:
    return _each(args, lambda client, id_: client.redeliver(id_), "will be sent again")


# -------------------------------------------------------------------- endpoints


def list_endpoints(args: argparse.Namespace) -> int:
    def page(client: Client, limit: int | None, cursor: str | None) -> Shape:
        return client.webhooks(agent=args.agent, limit=limit, cursor=cursor)

    return _pages(args, page, lambda out: out.endpoints)


def add(args: argparse.Namespace) -> int:
    with _opened(args, create=True) as client:
        made = client.create_webhook(args.endpoint, agent=args.agent)
    return _tell_secret(args, made)


def rotate(args: argparse.Namespace) -> int:
    overlap = None if args.overlap is None else round(args.overlap)
    with _opened(args) as client:
        changed = client.rotate_webhook(args.id, overlap_seconds=overlap)
    return _tell_secret(args, changed)


def _tell_secret(args: argparse.Namespace, answer: Shape) -> int:
    if args.json:
        print_json(answer)
        return exits.OK
    until = f"; the old one signs too until {answer['previousUntil']}" if _overlaps(answer) else ""
    about = f"{answer['id']} for {answer['url']}{until}; keep its secret: it is not shown again"
    sys.stderr.write(f"{shown(about)}\n")
    sys.stdout.write(f"{answer['secret']}\n")
    return exits.OK


def _overlaps(answer: Shape) -> bool:
    return "previousUntil" in answer


def enable(args: argparse.Namespace) -> int:
    return _each(args, lambda client, id_: client.enable_webhook(id_), "is enabled")


def remove(args: argparse.Namespace) -> int:
    return _each(args, lambda client, id_: client.delete_webhook(id_), "is removed")


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "deliveries list": list_deliveries,
    "deliveries show": show_delivery,
    "deliveries redeliver": redeliver,
    "webhooks list": list_endpoints,
    "webhooks add": add,
    "webhooks rotate": rotate,
    "webhooks enable": enable,
    "webhooks remove": remove,
}


# -------------------------------------------------------------------- what they share


def _pages(
    args: argparse.Namespace,
    ask: Callable[[Client, int | None, str | None], Shape],
    printer: Callable[[HumanWebhookOutput], Callable[..., None]],
) -> int:
    out = None if args.json else _human()
    with _opened(args) as client:
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = ask(client, limit, cursor)
            cursor = page.get("nextCursor")
            if out is None:
                print_json(page)
            else:
                printer(out)(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def _each(args: argparse.Namespace, ask: Callable[[Client, str], Shape], told: str) -> int:
    code = exits.OK
    with _opened(args) as client:
        for id_ in dict.fromkeys(args.ids):
            try:
                answer = ask(client, id_)
            except CallerError as error:  # the others may still be done
                tell(error, as_json=args.json)
                code = code or exits.exit_code(error)
                continue
            if args.json:
                print_json(answer)
            else:
                sys.stdout.write(f"{shown(answer['id'])} {told}\n")
    return code


@contextlib.contextmanager
def _opened(args: argparse.Namespace, *, create: bool = False) -> Iterator[Client]:
    with backend(args, create=create).client as client:
        yield client


def _human() -> HumanWebhookOutput:
    from fairlane.cli.human_webhooks import HumanWebhookOutput  # noqa: PLC0415 - slow to import

    return HumanWebhookOutput()
