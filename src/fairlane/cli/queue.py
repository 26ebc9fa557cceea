"""What the commands of `fairlane sched` and `fairlane queue` do."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from fairlane import wire
from fairlane.cli import exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.output import JsonOutput, Output, Shape, print_json
from fairlane.cli.queue_options import POLICY
from fairlane.cli.submitting import read_json
from fairlane.core.errors import InvalidRequest

LANE: Final = "queue"
WORKER: Final = "sched"
LEASES_MAX: Final = 1000
RELEASED: Final = "released as failed"


class QueueOutput(Output, Protocol):
    def plan(self, plan: Shape) -> None: ...

    def leased(self, answer: Shape) -> None: ...

    def reported(self, answer: Shape, verb: str) -> None: ...

    def reclaimed(self, answer: Shape) -> None: ...

    def rules(self, answer: Shape) -> None: ...

    def entry(self, entry: Shape, *, added: bool = False) -> None: ...

    def entries(self, page: Shape, *, more: bool) -> None: ...

    def drained(self, answer: Shape) -> None: ...

    def imported(self, answer: Shape) -> None: ...


class JsonQueueOutput(JsonOutput):
    def plan(self, plan: Shape) -> None:
        print_json(plan)

    def leased(self, answer: Shape) -> None:
        print_json(answer)

    def reported(self, answer: Shape, verb: str) -> None:  # noqa: ARG002 - of use to people only
        print_json(answer)

    def reclaimed(self, answer: Shape) -> None:
        print_json(answer)

    def rules(self, answer: Shape) -> None:
        print_json(answer)

    def entry(self, entry: Shape, *, added: bool = False) -> None:  # noqa: ARG002 - as above
        print_json(entry)

    def entries(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def drained(self, answer: Shape) -> None:
        print_json(answer)

    def imported(self, answer: Shape) -> None:
        print_json(answer)


# -------------------------------------------------------------------- sched


def sched(args: argparse.Namespace) -> int:
    return SCHED[args.verb](args)


def plan(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.plan(side.client.plan(lane=args.lane, now=args.now, limit=args.limit))
    return exits.OK


def lease(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        answer = side.client.lease(
            args.worker or WORKER,
            lanes=[args.lane or LANE],
            limit=args.limit or LEASES_MAX,
            ttl_ms=args.ttl,
            start=True,
        )
        out.leased(answer)
    return exits.OK


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
    with _opened(args) as (side, out):
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
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.queue_list(status=args.status, limit=limit, cursor=cursor)
            cursor = page.get("nextCursor")
            out.entries(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def show(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.entry(side.client.queue_show(args.id))
    return exits.OK


def drain(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
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


@contextlib.contextmanager
def _opened(
    args: argparse.Namespace, *, create: bool = False
) -> Iterator[tuple[Backend, QueueOutput]]:
    side = backend(args, create=create)
    with side.client:
        yield side, _output(args)


def _output(args: argparse.Namespace) -> QueueOutput:
    if args.json:
        return JsonQueueOutput()
    from fairlane.cli.human_queue import HumanQueueOutput  # noqa: PLC0415 - slow to import

    return HumanQueueOutput()
