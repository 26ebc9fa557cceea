"""What the commands of `fairlane cron` do. A job is named by its id or by its name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fairlane.cli import cron_files, exits
from fairlane.cli.asking import for_each, given, moment, pages, params
from fairlane.cli.backends import opened
from fairlane.cli.submitting import read_json
from fairlane.cli.waiting import wait_for
from fairlane.core.errors import InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.human_cron import HumanCronOutput

# Options by the field of a job, of its task and of its retries that each fills.
_FIELDS: Final = {
    "name": "name",
    "agent": "agentId",
    "overlap": "overlap",
    "misfire": "misfire",
    "misfire_grace": "misfireGraceMs",
    "misfire_cap": "misfireCap",
    "misfire_spread": "misfireSpreadMs",
    "jitter": "jitterMs",
    "timeout": "timeoutMs",
    "start": "startAt",
    "end": "endAt",
    "max_runs": "maxRuns",
    "delete_after_run": "deleteAfterRun",
    "keep_runs": "keepRuns",
    "keep_days": "keepDays",
    "alert_url": "alertUrl",
    "alert_after": "alertAfter",
    "disable_after": "disableAfter",
}
_TASK: Final = {
    "handler": "handler",
    "instruction": "instruction",
    "action": "action",
    "tab": "tabId",
    "ref": "ref",
    "selector": "selector",
    "priority": "priority",
    "lane": "lane",
    "metadata": "metadata",
    "callback_url": "callbackUrl",
}
_RETRIES: Final = {
    "retries": "maxRetries",
    "backoff": "backoffMs",
    "multiplier": "backoffMultiplier",
    "max_backoff": "maxBackoffMs",
    "retry_jitter": "jitter",
}
_EXPRESSION_FIELDS: Final = 5
_SHOWN_RUNS: Final = 5


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def add(args: argparse.Namespace) -> int:
    document = _document(args)
    if not args.file:
        _check_told(document)
    if args.disabled:
        document["enabled"] = False
    with opened(args, _for_people, create=True) as (side, out):
        out.kept(side.client.create_cron_job(document), "created")
    return exits.OK


def edit(args: argparse.Namespace) -> int:
    document = {**dict.fromkeys(args.clear or ()), **_document(args)}
    if not document:
        raise InvalidRequest("say what to change; see fairlane cron edit --help")
    with opened(args, _for_people) as (side, out):
        out.kept(side.client.update_cron_job(args.job, document), "changed")
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        client = side.client
        which = {"agent": args.agent, "name": args.name, "enabled": args.enabled}
        for page in pages(args, partial(client.cron_jobs, **which)):
            out.jobs(page, more=args.all)
    return exits.OK


def show(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        job = side.client.cron_job(args.job)
        out.job(job, lambda: side.client.cron_runs(job["id"], limit=_SHOWN_RUNS))
    return exits.OK


def delete(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        delete = partial(side.client.delete_cron_job, cancel=args.cancel)
        return for_each(args, args.jobs, lambda job: out.deleted(delete(job)))


def switch(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        toggle = partial(side.client.toggle_cron_job, enabled=args.verb == "on")
        return for_each(args, args.jobs, lambda job: out.switched(toggle(job)))


def run_now(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        answer = side.client.run_cron_job(args.job)
        if args.wait is not None:
            return wait_for(side, out, [answer["taskId"]], args.wait)
        out.started(answer)
    return exits.OK


def runs(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        for page in pages(args, partial(side.client.cron_runs, args.job, status=args.status)):
            out.runs(page, args.job, more=args.all)
    return exits.OK


def preview(args: argparse.Namespace) -> int:
    schedule = _schedule(args)
    if schedule is None or "kind" not in schedule:
        raise InvalidRequest("say when: an expression in quotes, --every or --at")
    with opened(args, _for_people) as (side, out):
        answer = side.client.cron_preview(
            schedule.get("expr"),
            tz=args.tz,
            every_ms=schedule.get("everyMs"),
            at=schedule.get("at"),
            n=args.n,
        )
        out.preview(answer)
    return exits.OK


def import_(args: argparse.Namespace) -> int:
    found = cron_files.read(args)
    with opened(args, _for_people, create=not args.dry_run) as (side, out):
        problems = cron_files.problems(found, side.client, args.agent)
        if problems:
            return cron_files.tell(args, problems)
        documents = [one.document for one in found]
        if args.dry_run:
            answer = {"jobs": documents, "count": len(documents), "dryRun": True}
        else:
            answer = side.client.create_cron_jobs([one for one in documents if one is not None])
        out.imported(answer)
    return exits.OK


def export(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.exported(cron_files.exported(side.client, args.jobs, args.agent))
    return exits.OK


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "add": add,
    "list": list_,
    "show": show,
    "edit": edit,
    "delete": delete,
    "on": switch,
    "off": switch,
    "run": run_now,
    "runs": runs,
    "preview": preview,
    "import": import_,
    "export": export,
}


# -------------------------------------------------------------------- parts


def _for_people() -> HumanCronOutput:
    from fairlane.cli.human_cron import HumanCronOutput  # noqa: PLC0415 - slow to import

    return HumanCronOutput()


def _document(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say, over what the file says."""
    document = read_json(args.file) if args.file else {}
    if not isinstance(document, dict):
        raise InvalidRequest(f"{args.file} must hold a job: a JSON object")
    document = {**document, **given(args, _FIELDS)}
    inner = {
        "schedule": _schedule(args),
        "task": _task(args),
        "retryPolicy": given(args, _RETRIES),
    }
    for name, value in inner.items():
        if value:
            there = document.get(name)
            document[name] = {**there, **value} if isinstance(there, dict) else value
    return document


def _task(args: argparse.Namespace) -> dict[str, Any]:
    task, said = given(args, _TASK), params(args)
    return task if said is None else {**task, "params": said}


def _check_told(document: Mapping[str, Any]) -> None:
    """What every job needs, in the words of this command."""
    for name, hint in (
        ("schedule", "say when: an expression in quotes, --every or --at"),
        ("task", "say what is to run: --handler, --instruction or --action"),
        ("name", "say what it is called: --name"),
    ):
        if name not in document:
            raise InvalidRequest(hint)


def _schedule(args: argparse.Namespace) -> dict[str, Any] | None:
    """A schedule, or what is to be changed of one; None when nothing is said about it."""
    expr = _expression(args.expr)
    if sum(one is not None for one in (expr, args.every, args.at)) > 1:
        raise InvalidRequest("give one of an expression, --every and --at")
    said: dict[str, Any] = {"tz": args.tz, "anchor": getattr(args, "anchor", None)}
    if expr is not None:
        said |= {"kind": "cron", "expr": expr}
    elif args.every is not None:
        said |= {"kind": "every", "everyMs": args.every}
    elif args.at is not None:
        said |= {"kind": "at", "at": moment(args.at)}
    return {name: value for name, value in said.items() if value is not None} or None


def _expression(words: list[str]) -> str | None:
    if len(words) not in (0, 1, _EXPRESSION_FIELDS):
        raise InvalidRequest(
            "an expression has five fields; put it in quotes, or the shell puts files for each *"
        )
    return " ".join(words) if words else None
