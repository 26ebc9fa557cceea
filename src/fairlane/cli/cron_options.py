"""The options of `fairlane cron`: the schedule, the task, and how a job behaves."""

from __future__ import annotations

import argparse
from typing import Final

from fairlane.cli.options import (
    Commands,
    Parser,
    about_task,
    offer,
    paging,
    retries,
    wait_option,
)
from fairlane.cli.values import count, milliseconds, number, span_ms

_STATUSES: Final = "queued, running, ok, error, cancelled, skipped or missed"


def fill(commands: Commands) -> None:
    commands.noun(
        "cron",
        "Submit tasks at moments: once, every so often, or by the rules of cron",
        _verbs,
        "examples:\n"
        "  fairlane cron                    list them, as with cron list\n"
        "  fairlane cron add '0 9 * * 1-5' --tz Europe/Berlin --name standup \\\n"
        "    --instruction 'Write the standup notes'\n"
        "  fairlane cron add --every 30m --name poll --handler poll\n"
        "  fairlane cron preview '0 9 * * 1-5' --tz Europe/Berlin",
    )


def _verbs(cron: Commands) -> None:
    cron.add("add", "Make a job: a task, and when it is to run", _add)
    cron.add("list", "List jobs: when each runs next and how it went last", _list)
    cron.add("show", "Show a job and its last runs", _which)
    cron.add("edit", "Change what is named of a job", _edit)
    cron.add("delete", "Delete jobs; what they have started goes on, their log stays", _delete)
    cron.add("on", "Switch jobs on; the next run is the first one from now", _several)
    cron.add("off", "Switch jobs off; what runs goes on", _several)
    cron.add("run", "Run a job now; its schedule does not move", _run)
    cron.add("runs", "List the runs of a job, or of all, newest first", _runs)
    cron.add("preview", "Tell when a schedule would run", _preview)
    cron.add("import", "Make jobs of a crontab, or of what cron export has printed", _import)
    cron.add("export", "Print jobs as JSON, for cron import", _export)


# -------------------------------------------------------------------- the commands


def _which(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", help="its id or its name")


def _several(parser: Parser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="+", help="ids or names")


def _list(parser: Parser) -> None:
    offer(parser, "agent", "name")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--on", dest="enabled", action="store_true", default=None, help="only these")
    which.add_argument("--off", dest="enabled", action="store_false", help="only these")
    paging(parser)


def _add(parser: Parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane cron add '0 9 * * 1-5' --tz Europe/Berlin --name standup \\\n"
        "    --instruction 'Write the standup notes'\n"
        "  fairlane cron add --every 30m --name poll --handler poll --param url=https://a.example\n"
        "  fairlane cron add --at 2027-01-01T09:00:00+01:00 --name hello --handler echo\n"
        "  fairlane cron add --at 90m --name tea --instruction 'Remind me of the tea'"
    )
    _expression(parser)
    _times(parser)
    _anchor(parser)
    offer(parser, "name", name="no other job of the agent has it")
    parser.add_argument("--disabled", action="store_true", help="switched off to begin with")
    _fields(parser)


def _edit(parser: Parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane cron edit standup --expr '30 9 * * 1-5'\n"
        "  fairlane cron edit standup --tz Europe/Paris --retries 0 --clear endAt"
    )
    _which(parser)
    parser.add_argument(
        "--expr",
        metavar="EXPR",
        action="append",
        default=[],
        help="five fields in quotes, or @daily and the like",
    )
    _times(parser)
    _anchor(parser)
    offer(parser, "name", name="a new name")
    parser.add_argument(
        "--clear",
        metavar="FIELD",
        action="append",
        help="as if it had never been given: endAt, maxRuns, alertUrl, … (repeatable)",
    )
    _fields(parser)


def _delete(parser: Parser) -> None:
    _several(parser)
    parser.add_argument(
        "--cancel", action="store_true", help="cancel what they have started and has not ended"
    )


def _run(parser: Parser) -> None:
    _which(parser)
    wait_option(parser)


def _runs(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="its id or its name")
    parser.add_argument("--status", metavar="STATUS", help=_STATUSES)
    paging(parser)


def _preview(parser: Parser) -> None:
    parser.epilog = "example:\n  fairlane cron preview '30 2 * * *' --tz Europe/Berlin -n 10"
    _expression(parser)
    _times(parser)
    parser.add_argument("-n", metavar="N", type=count, help="how many (5)")


def _import(parser: Parser) -> None:
    parser.epilog = (
        "Each line of a crontab becomes a job, named after its command. Either all jobs are\n"
        "made or, when something is wrong with a line, none, and every such line is named.\n\n"
        "examples:\n"
        "  crontab -l | fairlane cron import - --handler shell --dry-run\n"
        "  fairlane cron import jobs.json"
    )
    parser.add_argument(
        "file", metavar="FILE", help="a crontab, or JSON of cron export; - reads stdin"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--handler",
        metavar="NAME",
        help="what runs the commands: it gets the params command, stdin and env",
    )
    what.add_argument(
        "--instruction",
        action="store_true",
        help="the lines hold no commands but words: each is an instruction for an agent",
    )
    offer(parser, "agent", agent="whose jobs they are")
    parser.add_argument(
        "--tz", metavar="ZONE", help="of lines before any CRON_TZ= or TZ= of the file (UTC)"
    )
    parser.add_argument("--prefix", metavar="TEXT", default="", help="before the name of each job")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be made")


def _export(parser: Parser) -> None:
    parser.add_argument("jobs", metavar="JOB", nargs="*", help="ids or names; all without any")
    offer(parser, "agent", agent="only those of this agent")


# -------------------------------------------------------------------- the document


def _expression(parser: Parser) -> None:
    parser.add_argument(
        "expr", metavar="EXPR", nargs="*", help="five fields in quotes, or @daily and the like"
    )


def _times(parser: Parser) -> None:
    parser.add_argument("--every", metavar="SPAN", type=span, help="like 30s, 15m, 6h, 1d")
    parser.add_argument("--at", metavar="WHEN", help="once: RFC 3339, or a span from now like 90m")
    parser.add_argument("--tz", metavar="ZONE", help="the zone of EXPR, like Europe/Berlin (UTC)")


def _anchor(parser: Parser) -> None:
    parser.add_argument(
        "--anchor", metavar="WHEN", help="RFC 3339: where --every counts from (now)"
    )


def _fields(parser: Parser) -> None:
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="JSON as in POST /cron/jobs; - reads stdin; other options win over it",
    )
    offer(parser, "agent", agent="whose job it is; its tasks are its agent's")
    task = parser.add_argument_group("the task")
    offer(task.add_mutually_exclusive_group(), "handler", "instruction", "action")
    about_task(task, lane="which lane (cron)")
    _behaviour(parser.add_argument_group("how the job behaves"))
    _retries(parser.add_argument_group("when a run fails"))


def _behaviour(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--overlap", metavar="HOW", help="while a run goes on: skip (default), queue or allow"
    )
    group.add_argument(
        "--misfire", metavar="HOW", help="runs that were missed: skip, once (default) or all"
    )
    group.add_argument(
        "--misfire-grace",
        metavar="SPAN",
        type=span,
        help="how late is not missed yet (60s, at most one interval)",
    )
    group.add_argument("--misfire-cap", metavar="N", type=count, help="how many of all (10)")
    group.add_argument(
        "--misfire-spread", metavar="SPAN", type=span, help="over which those are spread (0s)"
    )
    group.add_argument("--jitter", metavar="SPAN", type=span, help="each run up to so much later")
    group.add_argument("--start", metavar="WHEN", help="RFC 3339: no run before it")
    group.add_argument("--end", metavar="WHEN", help="RFC 3339: no run after it")
    group.add_argument("--max-runs", metavar="N", type=count, help="switched off after so many")
    group.add_argument(
        "--delete-after-run",
        action=argparse.BooleanOptionalAction,
        help="a job --at a moment is gone when it has run well (yes)",
    )
    group.add_argument("--keep-runs", metavar="N", type=count, help="of its log (200)")
    group.add_argument("--keep-days", metavar="N", type=count, help="of its log (30)")


def _retries(group: argparse._ArgumentGroup) -> None:
    retries(group, " (3)")
    group.add_argument(
        "--max-backoff", metavar="MS", type=milliseconds, help="the longest wait; or like 30s"
    )
    group.add_argument(
        "--retry-jitter", metavar="X", type=number, help="0.25: waits vary by a quarter"
    )
    group.add_argument("--alert-url", metavar="URL", help="is told when runs keep failing")
    group.add_argument("--alert-after", metavar="N", type=count, help="failures in a row (1)")
    group.add_argument(
        "--disable-after", metavar="N", type=count, help="failures in a row switch the job off"
    )


def span(text: str) -> int:
    """Milliseconds of a span that has its unit."""
    found = span_ms(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be like 30s, 15m or 6h, not {text[:40]!r}")
    return found
