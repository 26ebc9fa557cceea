"""What the commands of `fairlane batch` do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from fairlane import wire
from fairlane.cli import exits, submitting
from fairlane.cli.backends import opened
from fairlane.cli.output import tell
from fairlane.cli.waiting import wait_for_batch
from fairlane.core.errors import CallerError


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def submit(args: argparse.Namespace) -> int:
    body = submitting.batch_from_file(args)
    with opened(args, create=True) as (side, out):
        answer = side.client.submit_body(body, idempotency_key=args.idempotency_key)
        code = exits.REFUSED if answer["rejected"] else exits.OK
        if args.wait is None or not answer["accepted"]:
            out.submitted(answer)
            return code
        if answer["rejected"]:
            out.submitted(answer)
        return wait_for_batch(side, out, answer["batchId"], args.wait) or code


def show(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        out.batch(side.client.batch(args.id))
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.batches(agent=args.agent, limit=limit, cursor=cursor)
            cursor = page.get("nextCursor")
            out.batches(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def cancel(args: argparse.Namespace) -> int:
    code = exits.OK
    with opened(args) as (side, out):
        for batch_id in dict.fromkeys(args.ids):
            try:
                out.batch_cancelled(side.client.cancel_batch(batch_id))
            except CallerError as error:  # the others may still be cancelled
                tell(error, as_json=args.json)
                code = code or exits.exit_code(error)
    return code


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "submit": submit,
    "show": show,
    "list": list_,
    "cancel": cancel,
}
