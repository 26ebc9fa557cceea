"""What the commands of `fairlane batch` do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from fairlane.cli import exits, submitting
from fairlane.cli.asking import for_each, pages
from fairlane.cli.backends import opened
from fairlane.cli.output import for_people
from fairlane.cli.waiting import wait_for_batch


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def submit(args: argparse.Namespace) -> int:
    body = submitting.batch_from_file(args)
    with opened(args, for_people, create=True) as (side, out):
        answer = side.client.submit_body(body, idempotency_key=args.idempotency_key)
        code = exits.REFUSED if answer["rejected"] else exits.OK
        if args.wait is None or not answer["accepted"]:
            out.submitted(answer)
            return code
        if answer["rejected"]:
            out.submitted(answer)
        return wait_for_batch(side, out, answer["batchId"], args.wait) or code


def show(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        out.batch(side.client.batch(args.id))
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        for page in pages(args, partial(side.client.batches, agent=args.agent)):
            out.batches(page, more=args.all)
    return exits.OK


def cancel(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        client = side.client
        return for_each(args, args.ids, lambda one: out.batch_cancelled(client.cancel_batch(one)))


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "submit": submit,
    "show": show,
    "list": list_,
    "cancel": cancel,
}
