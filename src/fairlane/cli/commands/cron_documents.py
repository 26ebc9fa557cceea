r"""The documents of cron jobs: from options, from crontabs, and from the JSON of `cron export`.

`CRON_TZ=` and `TZ=` set the time zone of the lines below them (`CRON_TZ` wins); other variables are
passed to the commands. As in cron, the first `%` of a command starts its standard input, and `\%`
is a percent sign. An import creates all jobs of a file or none: all problems are found before the
first job is created, and each is reported with its line or its index.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.cli.backends import given, moment, params, read_bytes, read_object
from fairlane.cli.commands import Exit, Parser
from fairlane.cli.options import (
    count,
    dry_run,
    duration,
    filters,
    input_file,
    number,
    offer,
    retries,
    span_option,
    task_fields,
)
from fairlane.cli.output import Fields, complain, counted, print_json
from fairlane.client.base import BaseClient
from fairlane.clock import SystemClock
from fairlane.core import cron, jobs
from fairlane.core.cron import NICKNAMES
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.schema import wire

Document = JsonObject
MakeTask = Callable[[str, str | None, Mapping[str, str]], tuple[str, Document]]
# Options by the field of a job, of its task and of its retry policy that each fills.
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

# -------------------------------------------------------------------- options


def schedule_options(parser: Parser, *, anchor: bool = True) -> None:
    parser.add_argument(
        "expr",
        metavar="EXPR",
        nargs="*",
        help="cron expression in quotes: five fields, or a nickname like @daily",
    )
    time_options(parser)
    if anchor:
        anchor_option(parser)


def time_options(parser: Parser) -> None:
    parser.add_argument(
        "--every", metavar="TIME", type=duration, help="interval, such as 30s, 15m, 6h or 1d"
    )
    parser.add_argument(
        "--at", metavar="TIME", help="run once: RFC 3339, or a duration from now like 90m"
    )
    parser.add_argument(
        "--tz", metavar="ZONE", help="time zone of EXPR, such as Europe/Berlin (default: UTC)"
    )


def anchor_option(parser: Parser) -> None:
    parser.add_argument(
        "--anchor", metavar="TIME", help="time from which --every counts (RFC 3339; default: now)"
    )


def field_options(parser: Parser) -> None:
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="JSON file as for POST /cron/jobs; - reads standard input; options override it",
    )
    offer(parser, "agent", agent="agent that the job and its tasks belong to")
    task = parser.add_argument_group("task")
    offer(task.add_mutually_exclusive_group(), "handler", "instruction", "action")
    task_fields(task, lane="lane that the task runs in (default: cron)")
    _behaviour_options(parser.add_argument_group("runs"))
    _retry_options(parser.add_argument_group("failures"))


def _behaviour_options(group: argparse._ArgumentGroup) -> None:
    def add_(option: str, metavar: str, about: str, read: Callable[[str], object] = str) -> None:
        group.add_argument(option, metavar=metavar, type=read, help=about)

    add_(
        "--overlap",
        "HOW",
        "what to do if the previous run is still in progress: skip (default), queue or allow",
    )
    add_("--misfire", "HOW", "what to do about missed runs: skip, once (default) or all")
    about = (
        "how late a run may start before it counts as missed (default 60s, at most one interval)"
    )
    add_("--misfire-grace", "TIME", about, duration)
    add_("--misfire-cap", "N", "with --misfire all: run at most this many (default 10)", count)
    about = "with --misfire all: spread the runs over this time (default 0s)"
    add_("--misfire-spread", "TIME", about, duration)
    add_("--jitter", "TIME", "delay each run by a random amount up to this", duration)
    add_("--start", "TIME", "no run before this time (RFC 3339)")
    add_("--end", "TIME", "no run after this time (RFC 3339)")
    add_("--max-runs", "N", "disable the job after this many runs", count)
    group.add_argument(
        "--delete-after-run",
        action=argparse.BooleanOptionalAction,
        help="delete a job with --at after its run succeeds (default: yes)",
    )
    add_("--keep-runs", "N", "number of runs kept in the log (default 200)", count)
    add_("--keep-days", "N", "number of days that runs are kept in the log (default 30)", count)


def _retry_options(group: argparse._ArgumentGroup) -> None:
    retries(group, " (default 3)")
    span_option(group, "--max-backoff", "longest wait before a retry")
    group.add_argument(
        "--retry-jitter",
        metavar="X",
        type=number,
        help="vary each wait by this fraction, such as 0.25",
    )
    group.add_argument(
        "--alert-url", metavar="URL", help="URL that receives a POST when runs keep failing"
    )
    group.add_argument(
        "--alert-after",
        metavar="N",
        type=count,
        help="send the alert after this many failures in a row (default 1)",
    )
    group.add_argument(
        "--disable-after",
        metavar="N",
        type=count,
        help="disable the job after this many failures in a row",
    )


def document_of(args: argparse.Namespace) -> JsonObject:
    """Return the document of the file, overridden by the options."""
    document = read_object(args.file, "a job") if args.file else {}
    document = {**document, **given(args, _FIELDS)}
    task, found = given(args, _TASK), params(args)
    if found is not None:
        task["params"] = found
    if args.need is not None:
        task["needs"] = dict(args.need)
    parts = {"schedule": schedule_of(args), "task": task, "retryPolicy": given(args, _RETRIES)}
    for name, value in parts.items():
        if value:
            present = document.get(name)
            document[name] = {**present, **value} if isinstance(present, dict) else value
    return document


def refuse_incomplete(document: JsonMapping) -> None:
    for name, problem in (
        ("schedule", "no schedule given: add an expression in quotes, --every or --at"),
        ("task", "no task given: add --handler, --instruction or --action"),
        ("name", "no name given: add --name"),
    ):
        if name not in document:
            raise InvalidRequest(problem)


def schedule_of(args: argparse.Namespace) -> JsonObject | None:
    """Return the schedule, or the parts of it to change; None if no option concerns it."""
    expr = _expression(args.expr)
    if sum(one is not None for one in (expr, args.every, args.at)) > 1:
        raise InvalidRequest("give only one of an expression, --every and --at")
    found: JsonObject = {"tz": args.tz, "anchor": getattr(args, "anchor", None)}
    if expr is not None:
        found |= {"kind": "cron", "expr": expr}
    elif args.every is not None:
        found |= {"kind": "every", "everyMs": args.every}
    elif args.at is not None:
        found |= {"kind": "at", "at": moment(args.at)}
    return {name: value for name, value in found.items() if value is not None} or None


def _expression(words: list[str]) -> str | None:
    if len(words) not in (0, 1, _EXPRESSION_FIELDS):
        raise InvalidRequest(
            "a cron expression has five fields; put it in quotes, or the shell expands each *"
        )
    return " ".join(words) if words else None


# -------------------------------------------------------------------- crontabs

_VARIABLE: Final = re.compile(r"""\s*(['"]?)([A-Za-z_][A-Za-z0-9_]*)\1\s*=\s*(.*?)\s*""")
_LINE: Final = re.compile(r"\s*((?:\S+\s+){4}\S+)\s+(\S.*)")
_NICKNAME: Final = re.compile(r"\s*(@\S+)(?:\s+(.*))?")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_CHARACTERS_MAX: Final = 100
_WORDS_MAX: Final = 4
_COMMAND_WORDS_MAX: Final = 3
_REDIRECTION: Final = re.compile(r"\d*[<>|]")
_ASIDE: Final = re.compile(r"-|&&$|[A-Za-z_]\w*=")
_ZONES: Final = ("CRON_TZ", "TZ")


class JobEntry(msgspec.Struct):
    """A job of a file: its place, its document, and its problem, if it has one."""

    where: Document
    document: Document | None = None
    problem: str | None = None


def read_crontab(
    text: str, make: MakeTask, *, zone: str | None, prefix: str = ""
) -> list[JobEntry]:
    """Return the jobs of a crontab. `make` returns the words for a job's name, and its task."""
    variables: dict[str, str] = {}
    names: set[str] = set()
    found: list[JobEntry] = []
    for place, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if variable := _VARIABLE.fullmatch(line):
            variables[variable[2]] = _unquoted(variable[3])
            continue
        try:
            expr, command, stdin = _split(line)
        except ValueError as error:
            found.append(JobEntry({"line": place}, problem=str(error)))
            continue
        tz = next((variables[name] for name in _ZONES if variables.get(name)), zone)
        words, task = make(command, stdin, variables)
        document = {
            "name": _unused_name(prefix, words, names),
            "schedule": {"kind": "cron", "expr": expr, **({"tz": tz} if tz else {})},
            "task": task,
        }
        found.append(JobEntry({"line": place}, document))
    return found


def shell_task(handler: str) -> MakeTask:
    """Return a function that turns a command into a task for this handler."""

    def make(command: str, stdin: str | None, variables: Mapping[str, str]) -> tuple[str, Document]:
        found: Document = {"command": command}
        if stdin is not None:
            found["stdin"] = stdin
        if variables:
            found["env"] = dict(variables)
        return _command_words(command), {"handler": handler, "params": found}

    return make


def _command_words(command: str) -> str:
    """Return the first words of a command, without options, directories and redirections."""
    words = itertools.takewhile(lambda word: not _REDIRECTION.match(word), command.split())
    plain = (word.rstrip("/").rpartition("/")[2] for word in words if not _ASIDE.match(word))
    return " ".join(itertools.islice(plain, _COMMAND_WORDS_MAX))


def instruction_task(words: str, more: str | None, _: Mapping[str, str]) -> tuple[str, Document]:
    text = words if more is None else f"{words}\n{more}"
    return " ".join(words.lower().split()[:_WORDS_MAX]), {"instruction": text}


def _split(line: str) -> tuple[str, str, str | None]:
    """Return the schedule, the command and its standard input. Raise `ValueError` if invalid."""
    if nickname := _NICKNAME.fullmatch(line):
        return _checked_nickname(nickname[1]), *_command(nickname[2])
    fields = _LINE.fullmatch(line)
    if not fields:
        raise ValueError("must be five fields (minute hour day month weekday) and a command")
    return " ".join(fields[1].split()), *_command(fields[2])


def _checked_nickname(word: str) -> str:
    if word == "@reboot":
        raise ValueError("@reboot is not supported: submit the task when the machine starts")
    if word not in NICKNAMES:
        raise ValueError(f"unknown nickname '{word[:40]}'; known ones: {', '.join(NICKNAMES)}")
    return word


def _command(text: str | None) -> tuple[str, str | None]:
    first, *rest = re.split(r"(?<!\\)%", text or "")
    command = first.replace(r"\%", "%").strip()
    if not command:
        raise ValueError("the command is missing after the schedule")
    return command, "\n".join(rest).replace(r"\%", "%") if rest else None


def _unused_name(prefix: str, words: str, names: set[str]) -> str:
    """Return a name that no line above has."""
    plain = prefix + (_NOT_IN_NAMES.sub("-", words).strip("-.")[:_NAME_CHARACTERS_MAX] or "job")
    candidates = itertools.chain([plain], (f"{plain}-{suffix}" for suffix in itertools.count(2)))
    name = next(name for name in candidates if name not in names)
    names.add(name)
    return name


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


# -------------------------------------------------------------------- import

IMPORT_NOTE: Final = (
    "Each line of a crontab becomes a job that is named after its command. If a line is invalid,\n"
    "no job is created and all invalid lines are reported.\n\n"
    "examples:\n"
    "  crontab -l | fairlane cron import - --handler shell --dry-run\n"
    "  fairlane cron import jobs.json"
)


def import_options(parser: Parser) -> None:
    input_file(parser, "a crontab, or JSON printed by cron export")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--handler",
        metavar="NAME",
        help="handler that runs the commands; it receives the params command, stdin and env",
    )
    what.add_argument(
        "--instruction",
        action="store_true",
        help="treat the text of each line as an instruction for an agent, not as a command",
    )
    offer(parser, "agent", agent="agent that the jobs belong to")
    about = "time zone for lines before the first CRON_TZ= or TZ= line (default: UTC)"
    parser.add_argument("--tz", metavar="ZONE", help=about)
    parser.add_argument("--prefix", metavar="TEXT", default="", help="prefix for the job names")
    dry_run(parser, "only show which jobs would be created")


def export_options(parser: Parser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="job IDs or names (default: all)")
    filters(parser, "jobs", "agent")


def read_file(args: argparse.Namespace) -> list[JobEntry]:
    """Return the jobs of a file. Raise `InvalidRequest` if the file itself is invalid."""
    try:
        text = read_bytes(args.file).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{args.file} is not UTF-8") from None
    is_json = text.lstrip()[:1] in ("{", "[")
    found = _from_json(args, text) if is_json else _from_crontab(args, text)
    if not found:
        raise InvalidRequest(f"{args.file} contains no jobs")
    if len(found) > jobs.JOBS_MAX:
        raise InvalidRequest(
            f"{args.file} contains {len(found)} jobs; the limit is {jobs.JOBS_MAX}"
        )
    return found


def _from_json(args: argparse.Namespace, text: str) -> list[JobEntry]:
    if args.handler or args.instruction or args.tz:
        raise InvalidRequest("--handler, --instruction and --tz are for crontabs, not for JSON")
    try:
        content = wire.decode(text)
    except (wire.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{args.file} is not valid JSON: {error}") from None
    listed = content.get("jobs") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise InvalidRequest(f"{args.file} must contain a list of jobs, or an object with 'jobs'")
    return [_from_item(args, index, item) for index, item in enumerate(listed)]


def _from_item(args: argparse.Namespace, index: int, item: object) -> JobEntry:
    if not isinstance(item, dict):
        return JobEntry({"index": index}, problem="must be a JSON object")
    if args.prefix and isinstance(item.get("name"), str):
        item = {**item, "name": f"{args.prefix}{item['name']}"}
    return JobEntry({"index": index}, item)


def _from_crontab(args: argparse.Namespace, text: str) -> list[JobEntry]:
    if args.handler is None and not args.instruction:
        raise InvalidRequest(
            "a crontab needs --handler NAME, for a worker that runs its commands (such as shell), "
            "or --instruction, for an agent"
        )
    make = instruction_task if args.instruction else shell_task(args.handler)
    return read_crontab(text, make, zone=args.tz, prefix=args.prefix)


def problems(found: Sequence[JobEntry], client: BaseClient, agent: str | None) -> list[Document]:
    """Return the problems of the jobs, including names in use, in the order of the file."""
    taken = {
        (job["agentId"], job["name"]): f"a job named '{job['name']}' already exists"
        for job in _all_jobs(client, None)
    }
    now = SystemClock().now()
    for one in found:
        if one.problem is None and one.document is not None:
            if agent is not None:
                one.document["agentId"] = agent
            one.problem = _problem(one.document, taken, now)
    return [{**one.where, "error": one.problem} for one in found if one.problem is not None]


def _problem(document: Document, taken: dict[tuple[str, str], str], now: int) -> str | None:
    """Return the problem of a job, if it has one, and mark its name as used."""
    try:
        definition = jobs.create(document, now)
    except InvalidRequest as error:
        return error.message.removeprefix("invalid job: ")
    name = (definition.agent_id, definition.name)
    if name in taken:
        return taken[name]
    taken[name] = f"the name '{definition.name}' is used twice in this file"
    return None


def report(args: argparse.Namespace, problems: Sequence[Document]) -> int:
    message = f"{counted(len(problems), 'problem')} in {args.file}; nothing was created"
    if args.json:
        error = InvalidRequest(message, details={"problems": list(problems)})
        print_json(wire.error(error))
    for one in problems:
        place = f":{one['line']}" if "line" in one else f": jobs[{one['index']}]"
        complain(f"{args.file}{place}: {one['error']}")
    complain(message)
    return Exit.USAGE


def exported(client: BaseClient, names: Sequence[str], agent: str | None) -> Document:
    """Return the documents of these jobs, or of all, without finished and damaged ones."""
    found = [client.cron_job(name) for name in dict.fromkeys(names)] or _all_jobs(client, agent)
    kept, finished, damaged = [], [], []
    for job in found:
        if "unreadable" in job:
            damaged.append(job["id"])
        elif job.get("disabledReason") == cron.FINISHED:
            finished.append(job["name"])
        else:
            kept.append(job)
    for why, left_out in (("are damaged in the store", damaged), ("are finished", finished)):
        if left_out:
            sys.stderr.write(f"skipped jobs that {why}: {', '.join(left_out)}\n")
    documents = [
        {name: value for name, value in job.items() if name not in jobs.READ_ONLY} for job in kept
    ]
    return {"jobs": documents}


def _all_jobs(client: BaseClient, agent: str | None) -> list[Fields]:
    """Return all jobs in the order in which they were created."""
    found: list[Fields] = []
    cursor = None
    while True:
        page = client.cron_jobs(agent=agent, limit=wire.LIST_LIMIT_MAX, cursor=cursor)
        found += page["jobs"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found[::-1]
