"""What the commands of `fairlane sched` and `fairlane queue` do.

They work without a server and without a store that was set up before: what looks finds an empty
queue, what puts something in makes the store. What names a lease or an entry makes nothing, because
in a new store it could not be there.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fairlane import config
from fairlane.cli import exits
from fairlane.cli.asking import pages
from fairlane.cli.backends import Backend, names_side, opened
from fairlane.cli.output import remark
from fairlane.cli.queue_options import POLICY
from fairlane.cli.submitting import read_json
from fairlane.core.errors import FairlaneError, InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.human_queue import HumanQueueOutput
    from fairlane.cli.output import Shape
    from fairlane.client import Client

LANE: Final = "queue"
WORKER: Final = "sched"
LEASES_MAX: Final = 1000
RELEASED: Final = "released as failed"


def run(args: argparse.Namespace) -> int:
    return COMMANDS[args.command](args)


# -------------------------------------------------------------------- sched


def sched(args: argparse.Namespace) -> int:
    return SCHED[args.verb](args)


def plan(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.plan(side.client.plan(lane=args.lane, now=args.now, limit=args.limit))
    return exits.OK


def lease(args: argparse.Namespace) -> int:
    with _opened(args, create=True) as (side, out):
        answer = side.client.lease(
            args.worker or WORKER,
            lanes=[args.lane or LANE],
            limit=args.limit or LEASES_MAX,
            ttl_ms=args.ttl,
            start=True,
        )
        try:
            out.leased(answer)
            sys.stdout.flush()
        except BaseException:  # the caller has not received them
            _give_back(side.client, answer["leases"])
            raise
    return exits.OK


def _give_back(client: Client, leases: Sequence[Shape]) -> None:
    for one in leases:
        with contextlib.suppress(FairlaneError):
            client.release_lease(one["leaseId"])


def renew(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.reported(side.client.renew_lease(args.lease, ttl_ms=args.ttl), "renewed")
    return exits.OK


def complete(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.reported(side.client.complete_lease(args.lease, result=args.result), "completed")
    return exits.OK


def release(args: argparse.Namespace) -> int:
    if args.reason is not None and not args.failed:
        raise InvalidRequest("--reason goes with --failed")
    with _opened(args) as (side, out):
        if args.failed:
            answer = side.client.fail_lease(args.lease, args.reason or RELEASED)
        else:
            answer = side.client.release_lease(args.lease)
        out.reported(answer, "released")
    return exits.OK


def reclaim(args: argparse.Namespace) -> int:
    with _opened(args, create=True) as (side, out):
        out.reclaimed(side.client.reclaim_leases())
    return exits.OK


def reset(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.again(side.client.reset(args.id))
    return exits.OK


def show_policy(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.rules(side.client.queue_policy())
    return exits.OK


def set_policy(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in POLICY}
    settings = {name: value for name, value in given.items() if value is not None}
    if not settings:
        raise InvalidRequest(f"say what to set: {', '.join(f'--{name}' for name in POLICY)}")
    with _opened(args, create=True) as (side, out):
        out.rules(side.client.set_queue_policy(settings))
    return exits.OK


SCHED: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "plan": plan,
    "lease": lease,
    "renew": renew,
    "complete": complete,
    "release": release,
    "reclaim": reclaim,
    "reset": reset,
    "show": show_policy,
    "set": set_policy,
}

# -------------------------------------------------------------------- queue


def queue(args: argparse.Namespace) -> int:
    return QUEUE[args.verb](args)


def add(args: argparse.Namespace) -> int:
    inputs: dict[str, Any] | None = None
    if args.inputs is not None or args.input is not None:
        inputs = {**(args.inputs or {}), **dict(args.input or ())}
    with _opened(args, create=True) as (side, out):
        entry = side.client.queue_add(
            id=args.id,
            run=args.run,
            app=args.app,
            workflow=args.workflow,
            repo=str(Path(args.repo or ".").resolve()),
            priority=args.priority,
            inputs=inputs,
            note=args.note,
            agent=args.agent,
        )
        out.entry(entry, added=True)
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        for page in pages(args, partial(side.client.queue_list, status=args.status)):
            out.entries(page, more=args.all)
    return exits.OK


def show(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.entry(side.client.queue_show(args.id))
    return exits.OK


def drain(args: argparse.Namespace) -> int:
    with _opened(args, create=True) as (side, out):
        out.drained(side.client.queue_drain(limit=args.limit))
    return exits.OK


def import_(args: argparse.Namespace) -> int:
    document = read_json(args.file)
    if not isinstance(document, dict):
        raise InvalidRequest(f"{args.file} must hold a queue: a JSON object with 'entries'")
    with _opened(args, create=True) as (side, out):
        out.imported(side.client.queue_import(document))
    return exits.OK


QUEUE: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "add": add,
    "list": list_,
    "show": show,
    "drain": drain,
    "import": import_,
}


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "sched": sched,
    "queue": queue,
}


def _opened(
    args: argparse.Namespace, *, create: bool = False
) -> AbstractContextManager[tuple[Backend, HumanQueueOutput]]:
    """Ask the store of `FAIRLANE_STORE` when nothing else is named: no server is needed.

    A store that is not there yet is made when `create` says so, and else is an empty one.
    """
    if not names_side(args):
        args.store = config.variable("FAIRLANE_STORE") or None
    return opened(args, _for_people, create=create, empty=not create, tell=remark)


def _for_people() -> HumanQueueOutput:
    from fairlane.cli.human_queue import HumanQueueOutput  # noqa: PLC0415 - slow to import

    return HumanQueueOutput()
