"""Jobs from files and into files: a crontab, or the JSON that `fairlane cron export` prints.

All jobs of a file are made or none. Everything that is wrong with it is found before the first is
made, and told with its line, or with its place in the list.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fairlane.cli import crontab, exits
from fairlane.cli.output import complain, print_json
from fairlane.client.sync import Client
from fairlane.clock import SystemClock
from fairlane.core import cron
from fairlane.core.errors import InvalidRequest
from fairlane.schema import jobs, wire

Shape = dict[str, Any]


class Found(msgspec.Struct):
    """A job of a file, where it stands there, and what is wrong with it."""

    where: Shape
    document: Shape | None = None
    problem: str | None = None


def read(args: argparse.Namespace) -> list[Found]:
    """What a file asks for. Raises `InvalidRequest` when it is no such file at all."""
    text = _text(args.file)
    is_json = text.lstrip()[:1] in ("{", "[")
    found = _from_json(args, text) if is_json else _from_crontab(args, text)
    if not found:
        raise InvalidRequest(f"{args.file} holds no jobs")
    if len(found) > jobs.JOBS_MAX:
        raise InvalidRequest(f"{args.file} holds {len(found)} jobs; at most {jobs.JOBS_MAX} go in")
    return found


def problems(found: Sequence[Found], client: Client, agent: str | None) -> list[Shape]:
    """What is wrong, in the order of the file; also names that are taken."""
    taken = _names(client)
    now = SystemClock().now()
    for one in found:
        if one.problem is None and one.document is not None:
            if agent is not None:
                one.document["agentId"] = agent
            one.problem = _problem(one.document, taken, now)
    return [{**one.where, "error": one.problem} for one in found if one.problem is not None]


def tell(args: argparse.Namespace, problems: Sequence[Shape]) -> int:
    number = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    message = f"{number} in {args.file}; nothing was created"
    if args.json:
        error = InvalidRequest(message, details={"problems": list(problems)})
        print_json(wire.error(error))
    for one in problems:
        complain(f"{args.file}{_place(one)}: {one['error']}")
    complain(message)
    return exits.USAGE


def exported(client: Client, names: Sequence[str], agent: str | None) -> Shape:
    """The documents of the jobs of these names, or of all; those that are finished are over."""
    found = [client.cron_job(name) for name in dict.fromkeys(names)] or _all(client, agent)
    found = _readable(found)
    kept = [job for job in found if job.get("disabledReason") != cron.FINISHED]
    left = [job["name"] for job in found if job.get("disabledReason") == cron.FINISHED]
    if left:
        sys.stderr.write(f"left out, as they are finished: {', '.join(left)}\n")
    documents = [
        {name: value for name, value in job.items() if name not in jobs.READ_ONLY} for job in kept
    ]
    return {"jobs": documents}


# -------------------------------------------------------------------- parts


def _readable(found: Sequence[Shape]) -> list[Shape]:
    """Return the jobs whose definitions the server can read, and name the others."""
    damaged = [job["id"] for job in found if "unreadable" in job]
    if damaged:
        sys.stderr.write(f"left out, as the store's copy is damaged: {', '.join(damaged)}\n")
    return [job for job in found if "unreadable" not in job]


def _text(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode()
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not UTF-8") from None


def _from_json(args: argparse.Namespace, text: str) -> list[Found]:
    if args.handler or args.instruction or args.tz:
        raise InvalidRequest("--handler, --instruction and --tz go with a crontab, not with JSON")
    try:
        content = wire.decode(text)
    except (wire.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{args.file} is not valid JSON: {error}") from None
    listed = content.get("jobs") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise InvalidRequest(f"{args.file} must hold a list of jobs, or an object with 'jobs'")
    return [_from_item(args, number, item) for number, item in enumerate(listed)]


def _from_item(args: argparse.Namespace, number: int, item: Any) -> Found:
    where = {"index": number}
    if not isinstance(item, dict):
        return Found(where, problem="it must be a JSON object")
    if args.prefix and isinstance(item.get("name"), str):
        item = {**item, "name": f"{args.prefix}{item['name']}"}
    return Found(where, document=item)


def _from_crontab(args: argparse.Namespace, text: str) -> list[Found]:
    if args.handler is None and not args.instruction:
        raise InvalidRequest(
            "say what the commands of a crontab become: --handler NAME for a worker of yours "
            "that runs them (like shell), or --instruction for an agent"
        )
    make = crontab.instruction_task if args.instruction else crontab.shell_task(args.handler)
    lines = crontab.read(text, make, zone=args.tz, prefix=args.prefix)
    return [Found({"line": one.number}, one.document, one.problem) for one in lines]


def _problem(document: Shape, taken: dict[tuple[str, str], str], now: int) -> str | None:
    """What is wrong with a job; its name is taken from now on."""
    try:
        definition = jobs.create(document, now)
    except InvalidRequest as error:
        return error.message.removeprefix("invalid job: ")
    name = (definition.agent_id, definition.name)
    if name in taken:
        return taken[name]
    taken[name] = f"the name '{definition.name}' is used twice in this file"
    return None


def _names(client: Client) -> dict[tuple[str, str], str]:
    return {
        (job["agentId"], job["name"]): f"there is a job named '{job['name']}' already"
        for job in _all(client, None)
    }


def _all(client: Client, agent: str | None) -> list[Shape]:
    found: list[Shape] = []
    cursor = None
    while True:
        page = client.cron_jobs(agent=agent, limit=wire.LIST_LIMIT_MAX, cursor=cursor)
        found += page["jobs"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found[::-1]  # in the order they were made, so that a copy has it too


def _place(problem: Shape) -> str:
    return f":{problem['line']}" if "line" in problem else f": jobs[{problem['index']}]"
