"""What `fairlane submit` and `fairlane batch submit` send: bodies from options and from files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fairlane.cli.asking import moment, params
from fairlane.core.errors import InvalidRequest
from fairlane.schema import wire

# Options that describe one task, by the field of `POST /tasks` that each fills.
_FIELDS: Final = {
    "action": "action",
    "handler": "handler",
    "instruction": "instruction",
    "tab": "tabId",
    "ref": "ref",
    "selector": "selector",
    "priority": "priority",
    "deadline": "deadline",
    "lane": "lane",
    "session": "sessionKey",
    "depends_on": "dependsOn",
    "run_at": "runAt",
    "timeout": "timeoutMs",
    "preemptible": "preemptible",
    "metadata": "metadata",
    "params": "params",
}
# Those that are only a part of a field, or are said in another unit.
_PARTS: Final = ("param", "delay", "retries", "backoff", "multiplier")

Shape = dict[str, Any]


def from_options(args: argparse.Namespace) -> Shape:
    body = {"agentId": args.agent, "callbackUrl": args.callback_url}
    body |= {field: getattr(args, name) for name, field in _FIELDS.items()}
    body["params"] = params(args)
    body["retryPolicy"] = _retry_policy(args)
    if args.delay is not None:
        body["delayMs"] = round(args.delay * 1000)
    if args.deadline is not None:
        body["deadline"] = moment(args.deadline)
    return _given(body)


def from_file(args: argparse.Namespace) -> Shape:
    misplaced = [name for name in (*_FIELDS, *_PARTS) if getattr(args, name) is not None]
    if misplaced:
        option = f"--{misplaced[0].replace('_', '-')}"
        raise InvalidRequest(f"{option} belongs into the file when there is --file")
    content = read_json(args.file)
    given = _given({"agentId": args.agent, "callbackUrl": args.callback_url})
    if isinstance(content, list):
        return {**_common_agent(content), **given, "tasks": content}
    if isinstance(content, dict):
        return {**content, **given}
    raise InvalidRequest(f"{args.file} must hold a task, a list of tasks, or a batch")


def batch_from_file(args: argparse.Namespace) -> Shape:
    """A list of tasks, or the body of `POST /tasks/batch`; options win over it."""
    content = read_json(args.file)
    given = _given(
        {
            "agentId": args.agent,
            "callbackUrl": args.callback_url,
            "parallelism": args.parallelism,
        }
    )
    if isinstance(content, list):
        return {**_common_agent(content), **given, "tasks": content}
    if isinstance(content, dict) and "tasks" in content:
        return {**content, **given}
    raise InvalidRequest(f"{args.file} must hold a list of tasks, or a batch with 'tasks'")


def read_json(name: str) -> Any:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{name} cannot be read: {error.strerror}") from None
    try:
        return wire.decode(raw)
    except (wire.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = "standard input" if name == "-" else name
        raise InvalidRequest(f"{what} is not valid JSON: {error}") from None


def _retry_policy(args: argparse.Namespace) -> Shape | None:
    policy = {
        "maxRetries": args.retries,
        "backoffMs": args.backoff,
        "backoffMultiplier": args.multiplier,
    }
    return _given(policy) or None


def _common_agent(tasks: Sequence[Any]) -> Shape:
    """A batch has one agent; the tasks of a list may name it, if they agree."""
    named = {str(task["agentId"]) for task in tasks if isinstance(task, dict) and "agentId" in task}
    if len(named) > 1:
        raise InvalidRequest(
            "the tasks of a batch belong to one agent, these name several: "
            "give one with --agent, or one file for each agent"
        )
    return {"agentId": named.pop()} if named else {}


def _given(fields: Shape) -> Shape:
    return {name: value for name, value in fields.items() if value is not None}
