"""Cron jobs, which submit tasks on a schedule.

Times are printed twice: relative to now, and in the time zone of the job's schedule (or of this
machine if the schedule has none).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairlane.cli.backends import Side, connected, for_each
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.commands import cron_documents as documents
from fairlane.cli.commands.tasks import wait_for
from fairlane.cli.options import (
    count,
    filters,
    offer,
    paging,
    quiet,
    wait_option,
)
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Layouts,
    Output,
    Shape,
    Styled,
    ahead,
    counted,
    distance,
    exact_span,
    label,
    moment_ms,
    now_ms,
    pretty,
    shortened,
    span,
    state,
    value_text,
    with_ago,
)
from fairlane.core import moments
from fairlane.core.cron import MISSED, SKIPPED
from fairlane.core.errors import InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

_SHOWN_RUNS: Final = 5
_STATUSES: Final = "queued, running, ok, error, cancelled, skipped or missed"
_NO_JOBS: Final = """\
no cron jobs yet; create one:
  fairlane cron create '0 9 * * 1-5' --tz Europe/Berlin --name standup --handler notes
  fairlane cron create --every 30m --name poll --handler poll
  crontab -l | fairlane cron import - --handler shell --dry-run"""
_EXAMPLES: Final = (
    "examples:\n"
    "  fairlane cron create '0 9 * * 1-5' --tz Europe/Berlin --name standup \\\n"
    "    --instruction 'Write the standup notes'\n"
    "  fairlane cron create --every 30m --name poll --handler poll --param url=https://a.example\n"
    "  fairlane cron create --at 2027-01-01T09:00:00+01:00 --name hello --handler echo\n"
    "  fairlane cron create --at 90m --name tea --instruction 'Remind me about the tea'"
)


def register(commands: Commands) -> None:
    commands.noun(
        "cron",
        _verbs,
        epilog="examples:\n"
        "  fairlane cron                    list jobs, the same as cron list\n"
        "  fairlane cron create '0 9 * * 1-5' --tz Europe/Berlin --name standup \\\n"
        "    --instruction 'Write the standup notes'\n"
        "  fairlane cron create --every 30m --name poll --handler poll\n"
        "  fairlane cron preview '0 9 * * 1-5' --tz Europe/Berlin",
    )


def _verbs(cron: Commands) -> None:
    add_ = cron.add
    for word, about in (("create", "Create a job"), ("add", "Create a job (same as cron create)")):
        add_(word, connected(add, create=True), _add_options, about, epilog=_EXAMPLES)
    add_("list", connected(list_), _list_options, "List jobs with their next and last runs")
    add_("show", connected(show), _job, "Show a job and its last runs")
    examples = (
        "examples:\n"
        "  fairlane cron update standup --expr '30 9 * * 1-5'\n"
        "  fairlane cron update standup --tz Europe/Paris --retries 0 --clear endAt"
    )
    for word, about in (("update", "Change a job"), ("edit", "Change a job (same as cron update)")):
        add_(word, connected(edit), _edit_options, about, epilog=examples)
    about = "Delete jobs; tasks they have started continue, and their log is kept"
    add_("delete", connected(delete), _delete_options, about)
    about = "Enable or disable a job"
    add_("toggle", connected(toggle), _toggle_options, about)
    add_("on", connected(switch), _jobs, "Enable jobs; runs missed while disabled are skipped")
    add_("off", connected(switch), _jobs, "Disable jobs; running tasks continue")
    add_("run", connected(run_now), _run_options, "Run a job now; its schedule does not change")
    add_(
        "runs",
        connected(runs),
        _runs_options,
        "List the runs of one job, or of all jobs, newest first",
    )
    example = "example:\n  fairlane cron preview '30 2 * * *' --tz Europe/Berlin -n 10"
    about = "Show when a schedule would run"
    add_("preview", connected(preview), _preview_options, about, epilog=example)
    about = "Create jobs from a crontab, or from the output of cron export"
    add_("import", import_, documents.import_options, about, epilog=documents.IMPORT_NOTE)
    add_(
        "export", connected(export), documents.export_options, "Print jobs as JSON for cron import"
    )


# -------------------------------------------------------------------- options


def _job(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="job ID or name")


def _jobs(parser: Parser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="job IDs or names")


def _list_options(parser: Parser) -> None:
    quiet(parser)
    filters(parser, "jobs", "agent", "name")
    which = parser.add_mutually_exclusive_group()
    about = "only enabled jobs"
    which.add_argument("--on", dest="enabled", action="store_true", default=None, help=about)
    which.add_argument("--off", dest="enabled", action="store_false", help="only disabled jobs")
    paging(parser)


def _add_options(parser: Parser) -> None:
    documents.schedule_options(parser)
    offer(parser, "name", name="name of the job, unique for its agent")
    parser.add_argument("--disabled", action="store_true", help="create the job disabled")
    quiet(parser)
    documents.field_options(parser)


def _edit_options(parser: Parser) -> None:
    _job(parser)
    parser.add_argument(
        "--expr",
        metavar="EXPR",
        action="append",
        default=[],
        help="cron expression in quotes: five fields, or a nickname like @daily",
    )
    documents.time_options(parser)
    documents.anchor_option(parser)
    offer(parser, "name", name="new name")
    parser.add_argument(
        "--clear",
        metavar="FIELD",
        action="append",
        help="remove a field: endAt, maxRuns, alertUrl, … (repeatable)",
    )
    documents.field_options(parser)


# -------------------------------------------------------------------- add, edit


def add(args: argparse.Namespace, side: Side, out: Output) -> None:
    document = documents.document_of(args)
    if not args.file:
        documents.refuse_incomplete(document)
    if args.disabled:
        document["enabled"] = False
    out.show(side.client.create_cron_job(document), _draw_changed, "created")


def edit(args: argparse.Namespace, side: Side, out: Output) -> None:
    document = {**dict.fromkeys(args.clear or ()), **documents.document_of(args)}
    if not document:
        raise InvalidRequest("nothing to change; see fairlane cron edit --help")
    out.show(side.client.update_cron_job(args.job, document), _draw_changed, "changed")


def _draw_changed(terminal: Terminal, job: Fields, verb: str) -> None:
    terminal.line(f"{verb} {job['id']} ({job['name']}): {_next(job)}")


# -------------------------------------------------------------------- list, show


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    which = {"agent": args.agent, "name": args.name, "enabled": args.enabled}
    ask = partial(side.client.cron_jobs, **which)
    out.pages(args, ask, "jobs", JOBS, none=_NO_JOBS, layouts=_JOB_LAYOUTS)


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    job = side.client.cron_job(args.job)
    out.show(job, _draw_job, side)


def _draw_job(terminal: Terminal, job: Fields, side: Side) -> None:
    terminal.grid(_job_lines(job))
    last = side.client.cron_runs(job["id"], limit=_SHOWN_RUNS)["runs"]
    if last:
        terminal.line("")
        columns = _run_columns(job["schedule"].get("tz"))
        del columns["JOB"]
        terminal.table(columns, last, layouts=_RUN_LAYOUTS)


def _job_lines(job: Fields) -> Iterator[tuple[str, Cell]]:
    yield "job", job["id"]
    yield "name", job["name"]
    yield "schedule", schedule(job["schedule"])
    yield "next", _next(job).removeprefix("next ")
    yield "last", last_run(job)
    if "lastError" in job["state"]:
        yield "last error", job["state"]["lastError"]
    yield "runs", str(job["state"]["runs"])
    for name, value in job["task"].items():
        yield name, value_text(value)
    yield "retries", _retries_text(job["retryPolicy"])
    yield "missed runs", _misfire_text(job)
    for name, value in job.items():
        if name not in _WITHIN and value not in (0, None):
            yield _job_line(job, name, value)


# Fields of a job that are part of another line.
_WITHIN: Final = frozenset(
    {"id", "name", "enabled", "schedule", "task", "state", "nextRunAt", "nextRunAtMs"}
    | {"disabledReason", "retryPolicy", "misfire", "misfireCap", "misfireGraceMs"}
    | {"misfireSpreadMs", "alertAfter", "keepDays"}
)


def _job_line(job: Fields, name: str, value: Any) -> tuple[str, Cell]:
    if name in ("createdAt", "updatedAt", "startAt", "endAt"):
        return label(name), with_ago(value)
    if name == "alertUrl":
        return "alert", f"{value} after {counted(job['alertAfter'], 'failure')} in a row"
    if name == "keepRuns":
        return "log", f"{value} runs, {job['keepDays']} days"
    if name.endswith("Ms"):
        return label(name).removesuffix(" ms"), span(value)
    return label(name), value_text(value)


def _next(job: Fields) -> str:
    if "nextRunAtMs" not in job:
        return f"no next run ({_why_off(job)})"
    return f"next {ahead(job['nextRunAtMs'], now_ms())} ({_next_local(job)})"


def _next_local(job: Fields) -> str:
    return local(job["nextRunAtMs"], job["schedule"].get("tz")) if "nextRunAtMs" in job else "-"


def _next_run(job: Fields) -> Cell:
    if "nextRunAtMs" in job:
        return ahead(job["nextRunAtMs"], now_ms())
    return Styled(_why_off(job), "bright_black")


def _why_off(job: Fields) -> str:
    reasons = {"errors": "off after errors", "finished": "finished"}
    return reasons.get(job.get("disabledReason", ""), "off")


def last_run(job: Fields) -> Cell:
    last = job["state"]
    if "lastStatus" not in last:
        return "-"
    when = f" {distance(last['lastRunAtMs'], now_ms())}" if "lastRunAtMs" in last else ""
    if when and last["lastStatus"] in (SKIPPED, MISSED):  # the time is that of an earlier run
        when = f", ran{when}"
    errors = last["consecutiveErrors"]
    times = f" ({errors} in a row)" if errors > 1 else ""
    return (state(last["lastStatus"]), f"{when}{times}")


def _what(task: Fields) -> str:
    for kind in ("handler", "action", "instruction"):
        if kind in task:
            return f"{kind} {shortened(str(task[kind]), 40)}"
    return ""


def schedule(one: Fields) -> str:
    if one["kind"] == "cron":
        return f"{one['expr']} {one.get('tz', 'UTC')}"
    if one["kind"] == "every":
        return f"every {exact_span(one['everyMs'])}"
    return f"once at {one['at']}"


def local(at: int, zone: str | None) -> str:
    """Return `Mon 2026-11-16 09:00 CET`, in this machine's time zone if none is given."""
    try:
        there = moments.local(at, None if zone is None else ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):  # a zone that only the server knows
        there = moments.local(at, UTC)
    seconds = ":%S" if there.second else ""
    return there.strftime(f"%a %Y-%m-%d %H:%M{seconds} %Z")


def _retries_text(policy: Fields) -> str:
    if not policy["maxRetries"]:
        return "none"
    return (
        f"{policy['maxRetries']}; first after {span(policy['backoffMs'])}, each wait "
        f"{policy['backoffMultiplier']:g} times the one before, at most "
        f"{span(policy['maxBackoffMs'])}, ±{policy['jitter']:.0%}"
    )


def _misfire_text(job: Fields) -> str:
    late = f"(more than {exact_span(job['misfireGraceMs']) or '0 s'} late)"
    if job["misfire"] == "skip":
        return f"skipped {late}"
    if job["misfire"] == "once":
        return f"the newest one runs {late}"
    spread = f" over {exact_span(job['misfireSpreadMs'])}" if job["misfireSpreadMs"] else ""
    return f"the newest {job['misfireCap']} run{spread} {late}"


JOBS: Final[Columns] = {
    "NAME": "name",
    "SCHEDULE": lambda job: schedule(job["schedule"]),
    "NEXT": _next_run,
    "LOCAL TIME": _next_local,
    "LAST": last_run,
    "WHAT": lambda job: _what(job["task"]),
    "JOB": "id",
}
_JOB_LAYOUTS: Final[Layouts] = (
    (180, {"NAME": 30, "SCHEDULE": 34, "WHAT": 30}),
    (140, {"NAME": 20, "SCHEDULE": 30, "WHAT": 30, "JOB": 0}),
    (110, {"NAME": 20, "SCHEDULE": 28, "WHAT": 0, "JOB": 0}),
    (0, {"NAME": 16, "SCHEDULE": 24, "WHAT": 0, "JOB": 0, "LOCAL TIME": 0}),
)

# -------------------------------------------------------------------- delete, on, off


def _delete_options(parser: Parser) -> None:
    _jobs(parser)
    parser.add_argument(
        "--cancel", action="store_true", help="cancel the open tasks that the jobs have started"
    )


def delete(args: argparse.Namespace, side: Side, out: Output) -> int:
    def act(job: str) -> None:
        response = side.client.delete_cron_job(job, cancel=args.cancel)
        out.line(response, f"deleted {response['id']} ({response['name']})")

    return for_each(args, args.jobs, act)


def _toggle_options(parser: Parser) -> None:
    _job(parser)
    parser.add_argument("enabled", metavar="on|off", choices=("on", "off", "true", "false"))


def toggle(args: argparse.Namespace, side: Side, out: Output) -> None:
    wanted = args.enabled in ("on", "true")
    out.show(side.client.toggle_cron_job(args.job, enabled=wanted), _draw_switched)


def switch(args: argparse.Namespace, side: Side, out: Output) -> int:
    toggle = partial(side.client.toggle_cron_job, enabled=args.verb == "on")
    return for_each(args, args.jobs, lambda job: out.show(toggle(job), _draw_switched))


def _draw_switched(terminal: Terminal, job: Fields) -> None:
    terminal.line(f"{job['name']} is {'on' if job['enabled'] else 'off'}: {_next(job)}")


# -------------------------------------------------------------------- runs


def _run_options(parser: Parser) -> None:
    _job(parser)
    wait_option(parser)


def run_now(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    response = side.client.run_cron_job(args.job)
    if args.wait is not None:
        return wait_for(side, out, [response["taskId"]], args.wait)
    out.line(response, f"started {response['runId']} (task {response['taskId']})")
    return None


def _runs_options(parser: Parser) -> None:
    about = "job ID or name (default: all jobs)"
    parser.add_argument("job", metavar="JOB", nargs="?", help=about)
    about = f"only runs with this status: {_STATUSES}"
    parser.add_argument("--status", metavar="STATUS", help=about)
    paging(parser)


def runs(args: argparse.Namespace, side: Side, out: Output) -> None:
    columns = _run_columns(None)
    if args.job is not None:
        del columns["JOB"]
    ask = partial(side.client.cron_runs, args.job, status=args.status)
    none = "no runs found; fairlane cron list shows when jobs run next"
    out.pages(args, ask, "runs", columns, none=none, layouts=_RUN_LAYOUTS)


def _run_columns(zone: str | None) -> dict[str, str | Callable[[Fields], Cell]]:
    return {
        "SCHEDULED": lambda run: local(moment_ms(run["scheduledAt"]), zone),
        "JOB": "jobName",
        "STATUS": lambda run: state(run["status"]),
        "TRIGGER": "trigger",
        "TOOK": _took,
        "TRIES": lambda run: run["attempts"] or "-",
        "TASK": lambda run: run.get("taskId", "-"),
        "NOTE": lambda run: run.get("error") or run.get("summary", ""),
    }


_RUN_LAYOUTS: Final[Layouts] = (
    (150, {"JOB": 24}),
    (110, {"JOB": 16, "TRIES": 0, "TOOK": 0, "TRIGGER": 0}),
    (0, {"JOB": 16, "TRIES": 0, "TOOK": 0, "TASK": 0}),
)


def _took(run: Fields) -> str:
    if "startedAt" not in run or "finishedAt" not in run:
        return "-"
    return span(max(0, moment_ms(run["finishedAt"]) - moment_ms(run["startedAt"])))


# -------------------------------------------------------------------- preview


def _preview_options(parser: Parser) -> None:
    documents.schedule_options(parser, anchor=False)
    parser.add_argument("-n", metavar="N", type=count, help="number of runs to show (default 5)")


def preview(args: argparse.Namespace, side: Side, out: Output) -> None:
    found = documents.schedule_of(args)
    if found is None or "kind" not in found:
        raise InvalidRequest("no schedule given: add an expression in quotes, --every or --at")
    response = side.client.cron_preview(
        found.get("expr"), tz=args.tz, every_ms=found.get("everyMs"), at=found.get("at"), n=args.n
    )
    out.page(response, "next", _PREVIEW, none="no runs")


_PREVIEW: Final[Columns] = {
    "UTC": "utc",
    "LOCAL": "local",
    "FROM NOW": lambda one: ahead(moment_ms(one["utc"]), now_ms()),
}

# -------------------------------------------------------------------- import, export


def import_(args: argparse.Namespace) -> int:
    return connected(_import, create=not args.dry_run)(args)


def _import(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    found = documents.read_file(args)
    problems = documents.problems(found, side.client, args.agent)
    if problems:
        return documents.report(args, problems)
    created = [one.document for one in found if one.document is not None]
    number = counted(len(created), "job")
    response: Shape
    if args.dry_run:
        response = {"jobs": created, "count": len(created), "dryRun": True}
        columns, end = _DOCUMENTS, f"would create {number}; nothing was created"
    else:
        response = side.client.create_cron_jobs(created)
        columns, end = JOBS, f"created {number}"
    out.page(response, "jobs", columns, none="no jobs", layouts=_JOB_LAYOUTS)
    if not args.json:
        out.terminal.line(end)
    return None


def _described(document: Fields) -> str:
    found = document["task"].get("params")
    command = found.get("command") if isinstance(found, dict) else None
    what = _what(document["task"])
    return f"{what}: {command}" if command else what


_DOCUMENTS: Final[Columns] = {
    "NAME": "name",
    "SCHEDULE": lambda document: schedule(document["schedule"]),
    "WHAT ": _described,
}


def export(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = documents.exported(side.client, args.jobs, args.agent)
    out.show(response, lambda terminal, fields: terminal.write(f"{pretty(fields).text}\n"))
