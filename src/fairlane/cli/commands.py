"""What commands do that have no module of their own: ask the backend, print the answer.

Each takes the parsed arguments and returns an exit code; what goes wrong is raised.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from fairlane import config
from fairlane.cli import batches, bulk, exits, sessions, streams, submitting
from fairlane.cli.asking import pages, which_listed
from fairlane.cli.backends import opened
from fairlane.cli.output import for_people, output_of
from fairlane.cli.parser import SERVE_SETTINGS
from fairlane.cli.waiting import wait_for
from fairlane.core import lifecycle


def run(args: argparse.Namespace) -> int:
    return COMMANDS[args.command](args)


def serve(args: argparse.Namespace) -> int:
    settings = config.load({name: getattr(args, name) for name in SERVE_SETTINGS})
    from fairlane.cli.serve import serve as run  # noqa: PLC0415 - slow to import

    run(settings)
    return exits.OK


def submit(args: argparse.Namespace) -> int:
    body = submitting.from_file(args) if args.file else submitting.from_options(args)
    with opened(args, for_people, create=True) as (side, out):
        answer = side.client.submit_body(body, idempotency_key=args.idempotency_key)
        items = answer.get("tasks", [answer])
        accepted = [item["taskId"] for item in items if item["state"] != lifecycle.REJECTED]
        code = exits.OK if len(accepted) == len(items) else exits.REFUSED
        if args.wait is None or not accepted:
            out.submitted(answer)
            return code
        if code != exits.OK:
            out.submitted(answer)
        return wait_for(side, out, accepted, args.wait) or code


def tasks(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        for page in pages(args, partial(side.client.tasks, **which_listed(args))):
            out.tasks(page, more=args.all)
    return exits.OK


def show(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        task = side.client.show(args.id)
        owes = "callbackUrl" in task and not args.json
        found = side.client.deliveries(task=args.id) if owes else {"deliveries": ()}
        out.task(task, found["deliveries"])
    return exits.OK


def why(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        out.why(side.client.why(args.id))
    return exits.OK


def wait(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        return wait_for(side, out, args.ids, args.timeout)


def stats(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        out.stats(side.client.stats())
    return exits.OK


def doctor(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import examine  # noqa: PLC0415 - slow to import

    report = examine(config.load({"store": args.store}).store)
    output_of(args, for_people).doctor(report)
    return exits.NOT_WELL if report["problems"] else exits.OK


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "serve": serve,
    "submit": submit,
    "tasks": tasks,
    "show": show,
    "why": why,
    "wait": wait,
    "cancel": bulk.run,
    "retry": bulk.run,
    "reset": bulk.run,
    "batch": batches.run,
    "events": streams.events,
    "output": streams.output,
    "prune": bulk.prune,
    "message": sessions.message,
    "stop": sessions.stop,
    "stopall": sessions.stop_all,
    "sessions": sessions.sessions,
    "lanes": sessions.lanes,
    "stats": stats,
    "doctor": doctor,
}
