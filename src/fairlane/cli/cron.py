"""What the commands of `fairlane cron` do. A job is named by its id or by its name."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from fairlane import wire
from fairlane.cli import cron_files, exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.output import JsonOutput, Output, Shape, print_json, tell
from fairlane.cli.submitting import read_json
from fairlane.cli.values import span_ms
from fairlane.cli.waiting import wait_for
from fairlane.clock import SystemClock
from fairlane.core.errors import CallerError, InvalidRequest

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


class CronOutput(Output, Protocol):
    def jobs(self, page: Shape, *, more: bool) -> None: ...

    def job(self, job: Shape, runs: Callable[[], Shape]) -> None: ...

    def kept(self, job: Shape, verb: str) -> None: ...

    def switched(self, job: Shape) -> None: ...

    def deleted(self, answer: Shape) -> None: ...

    def started(self, answer: Shape) -> None: ...

    def runs(self, page: Shape, job: str | None, *, more: bool) -> None: ...

    def preview(self, answer: Shape) -> None: ...

    def imported(self, answer: Shape) -> None: ...

    def exported(self, answer: Shape) -> None: ...


class JsonCronOutput(JsonOutput):
    def jobs(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def job(self, job: Shape, runs: Callable[[], Shape]) -> None:  # noqa: ARG002 - as above
        print_json(job)

    def kept(self, job: Shape, verb: str) -> None:  # noqa: ARG002 - as above
        print_json(job)

    def switched(self, job: Shape) -> None:
        print_json(job)

    def deleted(self, answer: Shape) -> None:
        print_json(answer)

    def started(self, answer: Shape) -> None:
        print_json(answer)

    def runs(self, page: Shape, job: str | None, *, more: bool) -> None:  # noqa: ARG002 - as above
        print_json(page)

    def preview(self, answer: Shape) -> None:
        print_json(answer)

    def imported(self, answer: Shape) -> None:
        print_json(answer)

    def exported(self, answer: Shape) -> None:
        print_json(answer)


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def add(args: argparse.Namespace) -> int:
    document = _document(args)
    if not args.file:
        _check_told(document)
    if args.disabled:
        document["enabled"] = False
    with _opened(args, create=True) as (side, out):
        out.kept(side.client.create_cron_job(document), "created")
    return exits.OK


def edit(args: argparse.Namespace) -> int:
    document = {**dict.fromkeys(args.clear or ()), **_document(args)}
    if not document:
        raise InvalidRequest("say what to change; see fairlane cron edit --help")
    with _opened(args) as (side, out):
        out.kept(side.client.update_cron_job(args.job, document), "changed")
    return exits.OK


def list_(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.cron_jobs(
                agent=args.agent, enabled=args.enabled, limit=limit, cursor=cursor
            )
            cursor = page.get("nextCursor")
            out.jobs(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def show(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        job = side.client.cron_job(args.job)
        out.job(job, lambda: side.client.cron_runs(job["id"], limit=_SHOWN_RUNS))
    return exits.OK


def delete(args: argparse.Namespace) -> int:
    def act(side: Backend, out: CronOutput, job: str) -> None:
        out.deleted(side.client.delete_cron_job(job, cancel=args.cancel))

    return _each(args, act)


def switch(args: argparse.Namespace) -> int:
    def act(side: Backend, out: CronOutput, job: str) -> None:
        out.switched(side.client.toggle_cron_job(job, enabled=args.verb == "on"))

    return _each(args, act)


def run_now(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        answer = side.client.run_cron_job(args.job)
        if args.wait is not None:
            return wait_for(side, out, [answer["taskId"]], args.wait)
        out.started(answer)
    return exits.OK


def runs(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.cron_runs(args.job, status=args.status, limit=limit, cursor=cursor)
            cursor = page.get("nextCursor")
            out.runs(page, args.job, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def preview(args: argparse.Namespace) -> int:
    schedule = _schedule(args)
    if schedule is None or "kind" not in schedule:
        raise InvalidRequest("say when: an expression in quotes, --every or --at")
    with _opened(args) as (side, out):
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
    with _opened(args, create=not args.dry_run) as (side, out):
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
    with _opened(args) as (side, out):
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


@contextlib.contextmanager
def _opened(
    args: argparse.Namespace, *, create: bool = False
) -> Iterator[tuple[Backend, CronOutput]]:
    side = backend(args, create=create)
    with side.client:
        yield side, _output(args)


def _output(args: argparse.Namespace) -> CronOutput:
    if args.json:
        return JsonCronOutput()
    from fairlane.cli.human_cron import HumanCronOutput  # noqa: PLC0415 - slow to import

    return HumanCronOutput()


def _each(args: argparse.Namespace, act: Callable[[Backend, CronOutput, str], None]) -> int:
    code = exits.OK
    with _opened(args) as (side, out):
        for job in dict.fromkeys(args.jobs):
            try:
                act(side, out, job)
            except CallerError as error:  # it may still be done to the others
                tell(error, as_json=args.json)
                code = code or exits.exit_code(error)
    return code


def _document(args: argparse.Namespace) -> dict[str, Any]:
    """What the options say, over what the file says."""
    document = read_json(args.file) if args.file else {}
    if not isinstance(document, dict):
        raise InvalidRequest(f"{args.file} must hold a job: a JSON object")
    document = {**document, **_given(args, _FIELDS)}
    inner = {
        "schedule": _schedule(args),
        "task": {**_given(args, _TASK), **_params(args)},
        "retryPolicy": _given(args, _RETRIES),
    }
    for name, value in inner.items():
        if value:
            there = document.get(name)
            document[name] = {**there, **value} if isinstance(there, dict) else value
    return document


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
        said |= {"kind": "at", "at": _moment(args.at)}
    return {name: value for name, value in said.items() if value is not None} or None


def _expression(words: list[str]) -> str | None:
    if len(words) not in (0, 1, _EXPRESSION_FIELDS):
        raise InvalidRequest(
            "an expression has five fields; put it in quotes, or the shell puts files for each *"
        )
    return " ".join(words) if words else None


def _moment(text: str) -> str:
    """A span counts from now; everything else is for the server to read."""
    milliseconds = span_ms(text)
    return text if milliseconds is None else wire.moment(SystemClock().now() + milliseconds)


def _params(args: argparse.Namespace) -> dict[str, Any]:
    if args.params is None and args.param is None:
        return {}
    return {"params": {**(args.params or {}), **dict(args.param or ())}}


def _given(args: argparse.Namespace, options: Mapping[str, str]) -> dict[str, Any]:
    named = {field: getattr(args, option) for option, field in options.items()}
    return {field: value for field, value in named.items() if value is not None}
