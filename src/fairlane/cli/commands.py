"""What each command does: ask the backend, print the answer, say how it went.

Each takes the parsed arguments and returns an exit code; what goes wrong is raised.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fairlane import config, wire
from fairlane.cli import exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.output import JsonOutput, Output, complain, print_json
from fairlane.cli.parser import SERVE_SETTINGS, span_ms
from fairlane.client import AT_REST
from fairlane.clock import SystemClock
from fairlane.core import lifecycle
from fairlane.core.errors import CallerError, FairlaneError, InvalidRequest

# While several tasks are waited for, each is looked at in turn.
_TURN_SECONDS: Final = 0.25
# Options that describe one task, by the field of `POST /tasks` that each fills.
_FIELDS: Final = {
    "action": "action",
    "handler": "handler",
    "tab": "tabId",
    "ref": "ref",
    "selector": "selector",
    "priority": "priority",
    "deadline": "deadline",
    "lane": "lane",
    "session": "sessionKey",
    "params": "params",
    "param": "params",
}

Shape = dict[str, Any]


def serve(args: argparse.Namespace) -> int:
    settings = config.load({name: getattr(args, name) for name in SERVE_SETTINGS})
    from fairlane.cli.serve import serve as run  # noqa: PLC0415 - slow to import

    run(settings)
    return exits.OK


def submit(args: argparse.Namespace) -> int:
    body = _from_file(args) if args.file else _from_options(args)
    with _opened(args, create=True) as (side, out):
        answer = side.client.submit_body(body, idempotency_key=args.idempotency_key)
        items = answer.get("tasks", [answer])
        accepted = [item["taskId"] for item in items if item["state"] != lifecycle.REJECTED]
        code = exits.OK if len(accepted) == len(items) else exits.REFUSED
        if args.wait is None or not accepted:
            out.submitted(answer)
            return code
        if code != exits.OK:
            out.submitted(answer)
        return _wait_for(side, out, accepted, args.wait) or code


def tasks(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.tasks(
                agent=args.agent,
                states=args.state or (),
                lane=args.lane,
                session=args.session,
                batch=args.batch,
                limit=limit,
                cursor=cursor,
            )
            cursor = page.get("nextCursor")
            out.tasks(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def show(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.task(side.client.show(args.id), side.deliveries(args.id))
    return exits.OK


def cancel(args: argparse.Namespace) -> int:
    code = exits.OK
    with _opened(args) as (side, out):
        for task_id in dict.fromkeys(args.ids):
            try:
                out.cancelled(side.client.cancel(task_id))
            except CallerError as error:  # the others may still be cancelled
                tell(error, as_json=args.json)
                code = code or exits.exit_code(error)
    return code


def wait(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        return _wait_for(side, out, args.ids, args.timeout)


def stats(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.stats(side.client.stats())
    return exits.OK


def templates(args: argparse.Namespace) -> int:
    from fairlane.cli.templates import run  # noqa: PLC0415 - it is built on this module

    return run(args)


def doctor(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import examine  # noqa: PLC0415 - slow to import

    report = examine(config.load({"store": args.store}).store)
    _output(args).doctor(report)
    return exits.NOT_WELL if report["problems"] else exits.OK


def webhooks(args: argparse.Namespace) -> int:
    from fairlane.cli.direct import webhook_secret  # noqa: PLC0415 - slow to import

    secret = webhook_secret(config.load({"store": args.store}))
    _output(args).secret({"secret": secret})
    return exits.OK


COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "serve": serve,
    "submit": submit,
    "tasks": tasks,
    "show": show,
    "cancel": cancel,
    "wait": wait,
    "stats": stats,
    "templates": templates,
    "doctor": doctor,
    "webhooks": webhooks,
}


def tell(error: FairlaneError, *, as_json: bool) -> None:
    """One line for people; for programs besides the JSON that the route answers."""
    if as_json:
        print_json(wire.error(error))
    complain(error.message)


@contextlib.contextmanager
def _opened(args: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[Backend, Output]]:
    side = backend(args.url, args.store, create=create)
    with side.client:
        yield side, _output(args)


def _output(args: argparse.Namespace) -> Output:
    if args.json:
        return JsonOutput()
    from fairlane.cli.human import HumanOutput  # noqa: PLC0415 - slow to import

    return HumanOutput()


# -------------------------------------------------------------------- submit: what it sends


def _from_options(args: argparse.Namespace) -> Shape:
    values = {name: getattr(args, name) for name in _FIELDS}
    values["params"] = _params(args)
    if args.deadline is not None:
        values["deadline"] = _deadline(args.deadline)
    body = {"agentId": args.agent, "callbackUrl": args.callback_url}
    body |= {field: values[name] for name, field in _FIELDS.items() if name != "param"}
    return {field: value for field, value in body.items() if value is not None}


def _params(args: argparse.Namespace) -> Shape | None:
    if args.params is None and args.param is None:
        return None
    return {**(args.params or {}), **dict(args.param or ())}


def _deadline(text: str) -> str:
    """A span counts from now; everything else is for the server to read."""
    milliseconds = span_ms(text)
    return text if milliseconds is None else wire.moment(SystemClock().now() + milliseconds)


def _from_file(args: argparse.Namespace) -> Shape:
    misplaced = [f"--{name}" for name in _FIELDS if getattr(args, name) is not None]
    if misplaced:
        raise InvalidRequest(f"{misplaced[0]} belongs into the file when there is --file")
    content = _read_json(args.file)
    given = {"agentId": args.agent, "callbackUrl": args.callback_url}
    given = {field: value for field, value in given.items() if value is not None}
    if isinstance(content, list):
        return {**_common_agent(content), **given, "tasks": content}
    if isinstance(content, dict):
        return {**content, **given}
    raise InvalidRequest(f"{args.file} must hold a task, a list of tasks, or a batch")


def _read_json(name: str) -> Any:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from None
    try:
        return wire.decode(raw)
    except (wire.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{name} is not valid JSON: {error}") from None


def _common_agent(tasks: Sequence[Any]) -> Shape:
    """A batch has one agent; the tasks of a list may name it, if they agree."""
    named = {str(task["agentId"]) for task in tasks if isinstance(task, dict) and "agentId" in task}
    if len(named) > 1:
        raise InvalidRequest(
            "the tasks of a batch belong to one agent, these name several: "
            "give one with --agent, or one file for each agent"
        )
    return {"agentId": named.pop()} if named else {}


# -------------------------------------------------------------------- waiting


def _wait_for(side: Backend, out: Output, ids: Sequence[str], seconds: float | None) -> int:
    """Print the tasks in the order asked for, when all have come to rest or the time is up."""
    with out.progress() as say:
        found = _until_at_rest(side, list(dict.fromkeys(ids)), seconds, say)
    out.ended(list(found.values()))
    states = [task["state"] for task in found.values()]
    left = [task["taskId"] for task in found.values() if task["state"] not in AT_REST]
    if left:
        complain(f"the time is up: {len(left)} not ended yet, first {left[0]}")
        return exits.TIME_IS_UP
    return exits.OK if set(states) == {lifecycle.DONE} else exits.NOT_WELL


def _until_at_rest(
    side: Backend, ids: Sequence[str], seconds: float | None, say: Callable[[str], None]
) -> dict[str, Shape]:
    clock = SystemClock()
    end = float("inf") if seconds is None else clock.monotonic() + seconds
    found: dict[str, Shape] = {}
    waiting = deque(ids)
    say(f"waiting for {ids[0]}" if len(ids) == 1 else f"waiting for {len(ids)} tasks")
    while waiting and not (clock.monotonic() >= end and len(found) == len(ids)):
        turn = side.look_seconds if len(waiting) == 1 else min(side.look_seconds, _TURN_SECONDS)
        left = min(turn, max(0.0, end - clock.monotonic()))
        task = found[waiting[0]] = side.client.wait(waiting[0], left)
        if task["state"] in AT_REST:
            waiting.popleft()
        else:
            waiting.rotate(-1)
        if waiting:
            state = f" ({found[waiting[0]]['state']})" if waiting[0] in found else ""
            say(f"{len(ids) - len(waiting)} of {len(ids)} ended; waiting for {waiting[0]}{state}")
    return {task_id: found[task_id] for task_id in ids}
