"""What each command does: ask the backend, print the answer, say how it went.

Each takes the parsed arguments and returns an exit code; what goes wrong is raised.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from fairlane import config, wire
from fairlane.cli import batches, bulk, exits, sessions, streams, submitting
from fairlane.cli.backends import opened
from fairlane.cli.output import output_of
from fairlane.cli.parser import SERVE_SETTINGS
from fairlane.cli.waiting import wait_for
from fairlane.core import lifecycle


def serve(args: argparse.Namespace) -> int:
    settings = config.load({name: getattr(args, name) for name in SERVE_SETTINGS})
    from fairlane.cli.serve import serve as run  # noqa: PLC0415 - slow to import

    run(settings)
    return exits.OK


def submit(args: argparse.Namespace) -> int:
    body = submitting.from_file(args) if args.file else submitting.from_options(args)
    with opened(args, create=True) as (side, out):
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
    with opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.tasks(
                agent=args.agent,
                states=args.state or (),
                lane=args.lane,
                session=args.session,
                batch=args.batch,
                kind=args.kind,
                limit=limit,
                cursor=cursor,
            )
            cursor = page.get("nextCursor")
            out.tasks(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def show(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        task = side.client.show(args.id)
        owes = "callbackUrl" in task and not args.json
        found = side.client.deliveries(task=args.id) if owes else {"deliveries": ()}
        out.task(task, found["deliveries"])
    return exits.OK


def why(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        out.why(side.client.why(args.id))
    return exits.OK


def wait(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        return wait_for(side, out, args.ids, args.timeout)


def stats(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        out.stats(side.client.stats())
    return exits.OK


def top(args: argparse.Namespace) -> int:
    from fairlane.cli.top import run  # noqa: PLC0415 - slow to import

    return run(args)


def demo(args: argparse.Namespace) -> int:
    from fairlane.cli.demo import run  # noqa: PLC0415 - slow to import

    return run(args)


def templates(args: argparse.Namespace) -> int:
    from fairlane.cli.templates import run  # noqa: PLC0415 - it is built on this module

    return run(args)


def cron(args: argparse.Namespace) -> int:
    from fairlane.cli.cron import run  # noqa: PLC0415 - slow to import

    return run(args)


def policy(args: argparse.Namespace) -> int:
    from fairlane.cli.policy import run  # noqa: PLC0415 - few commands are about it

    return run(args)


def token(args: argparse.Namespace) -> int:
    from fairlane.cli.token import run  # noqa: PLC0415 - few commands are about it

    return run(args)


def audit(args: argparse.Namespace) -> int:
    from fairlane.cli.audit import run  # noqa: PLC0415 - slow to import

    return run(args)


def worker(args: argparse.Namespace) -> int:
    from fairlane.cli.worker import run  # noqa: PLC0415 - slow to import

    return run(args)


def mcp(args: argparse.Namespace) -> int:
    from fairlane.cli.mcp import run  # noqa: PLC0415 - slow to import

    return run(args)


def completion(args: argparse.Namespace) -> int:
    from fairlane.cli.completion import run  # noqa: PLC0415 - builds the parser again

    return run(args)


def doctor(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import examine  # noqa: PLC0415 - slow to import

    report = examine(config.load({"store": args.store}).store)
    output_of(args).doctor(report)
    return exits.NOT_WELL if report["problems"] else exits.OK


def webhooks(args: argparse.Namespace) -> int:
    if args.verb == "secret":
        return secret(args)
    from fairlane.cli.webhooks import run  # noqa: PLC0415 - few commands are about it

    return run(args)


def secret(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import webhook_secret  # noqa: PLC0415 - slow to import

    found = webhook_secret(config.load({"store": args.store}))
    output_of(args).secret({"secret": found})
    return exits.OK


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
    "token": token,
    "audit": audit,
    "worker": worker,
    "mcp": mcp,
    "stats": stats,
    "top": top,
    "demo": demo,
    "templates": templates,
    "cron": cron,
    "policy": policy,
    "completion": completion,
    "doctor": doctor,
    "deliveries": webhooks,
    "webhooks": webhooks,
}
