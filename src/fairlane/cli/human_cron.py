"""Cron jobs for people: when each runs next and how it went last, one of them, the log of runs.

Moments are told twice: how far away they are, and in the zone of the job's rule, or for a job
without a rule in the zone of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape
from fairlane.cli.text import shortened, shown
from fairlane.core import moments
from fairlane.schema import wire

STYLES: Final[Mapping[str, str]] = {
    "queued": "cyan",
    "running": "yellow",
    "ok": "green",
    "error": "red",
    "cancelled": "bright_black",
    "skipped": "bright_black",
    "missed": "magenta",
}
NO_JOBS: Final = """\
no cron jobs yet; make one:
  fairlane cron add '0 9 * * 1-5' --tz Europe/Berlin --name standup --instruction 'Write the notes'
  fairlane cron add --every 30m --name poll --handler poll
  crontab -l | fairlane cron import - --handler shell --dry-run"""
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
# By the width of the screen: how wide some columns may get, 0 for not at all.
_Layouts = Sequence[tuple[int, Mapping[str, int]]]
_JOBS: Final[_Layouts] = (
    (drawing.PIPE_WIDTH, {}),
    (180, {"NAME": 30, "SCHEDULE": 34, "WHAT": 30}),
    (140, {"NAME": 20, "SCHEDULE": 30, "WHAT": 30, "JOB": 0}),
    (110, {"NAME": 20, "SCHEDULE": 28, "WHAT": 0, "JOB": 0}),
    (0, {"NAME": 16, "SCHEDULE": 24, "WHAT": 0, "JOB": 0, "LOCAL TIME": 0}),
)
_RUNS: Final[_Layouts] = (
    (drawing.PIPE_WIDTH, {}),
    (150, {"JOB": 24}),
    (110, {"JOB": 16, "TRIES": 0, "TOOK": 0, "TRIGGER": 0}),
    (0, {"JOB": 16, "TRIES": 0, "TOOK": 0, "TASK": 0}),
)
_WHAT_CHARACTERS: Final = 40
# Fields of a job that are part of another line.
_WITHIN: Final = frozenset(
    {"id", "name", "enabled", "schedule", "task", "state", "nextRunAt", "nextRunAtMs"}
    | {
        "disabledReason",
        "retryPolicy",
        "misfire",
        "misfireCap",
        "misfireGraceMs",
        "misfireSpreadMs",
    }
    | {"alertAfter", "keepDays"}
)


class HumanCronOutput(HumanOutput):
    def jobs(self, page: Shape, *, more: bool) -> None:
        self._page(page, page["jobs"], self._job_table, NO_JOBS, more=more)

    def job(self, job: Shape, runs: Callable[[], Shape]) -> None:
        rows = drawing.grid()
        for name, value in self._job_lines(job):
            rows.add_row(Text(name, style="bright_black"), value)
        self._print(rows)
        last = runs()["runs"]
        if last:
            self._line("")
            self._print(self._run_table(last, whose=False, zone=_zone(job)))

    def kept(self, job: Shape, verb: str) -> None:
        self._line(f"{verb} {job['id']} ({job['name']}): {self._next(job)}")

    def switched(self, job: Shape) -> None:
        self._line(f"{job['name']} is {'on' if job['enabled'] else 'off'}: {self._next(job)}")

    def deleted(self, answer: Shape) -> None:
        self._line(f"deleted {answer['id']} ({answer['name']})")

    def started(self, answer: Shape) -> None:
        self._line(f"started {answer['runId']} (task {answer['taskId']}); its schedule stays")

    def runs(self, page: Shape, job: str | None, *, more: bool) -> None:
        table = partial(self._run_table, whose=job is None)
        none = "no such runs; fairlane cron list tells when jobs run next"
        self._page(page, page["runs"], table, none, more=more)

    def preview(self, answer: Shape) -> None:
        rows = [
            [drawing.text(one["utc"]), drawing.text(one["local"]), self._ahead_of(one["utc"])]
            for one in answer["next"]
        ]
        self._print(drawing.table(("UTC", "LOCAL", "FROM NOW"), rows))

    def imported(self, answer: Shape) -> None:
        if answer.get("dryRun"):
            self._print(_document_table(answer["jobs"]))
            self._line(f"would create {jobs(answer['count'])}; nothing was created")
            return
        self._print(self._job_table(answer["jobs"], header=True))
        self._line(f"created {jobs(answer['count'])}")

    def exported(self, answer: Shape) -> None:
        self._write(msgspec.json.format(wire.encode(answer), indent=2).decode() + "\n")

    # ---------------------------------------------------------------- parts

    def _job_table(self, found: Sequence[Shape], *, header: bool) -> Table:
        columns: dict[str, Callable[[Shape], Text]] = {
            "NAME": lambda job: drawing.text(job["name"]),
            "SCHEDULE": lambda job: drawing.text(schedule(job["schedule"])),
            "NEXT": self._next_run,
            "LOCAL TIME": lambda job: drawing.text(_next_local(job)),
            "LAST": self._last,
            "WHAT": lambda job: drawing.text(_what(job["task"])),
            "JOB": lambda job: drawing.text(job["id"]),
        }
        return self._laid_out(columns, _JOBS, found, header=header)

    def _laid_out(
        self,
        columns: Mapping[str, Callable[[Shape], Text]],
        layouts: _Layouts,
        found: Sequence[Shape],
        *,
        header: bool,
    ) -> Table:
        """The columns that there is room for."""
        widths = next(widths for least, widths in layouts if self._console.width >= least)
        names = [name for name in columns if widths.get(name) != 0]
        rows = [[columns[name](one) for name in names] for one in found]
        return drawing.table(names, rows, header=header, widths=widths)

    def _next_run(self, job: Shape) -> Text:
        if "nextRunAtMs" in job:
            return Text(ahead(job["nextRunAtMs"], self._clock.now()))
        return Text(shown(_why_off(job)), style="bright_black")

    def _last(self, job: Shape) -> Text:
        state = job["state"]
        if "lastStatus" not in state:
            return Text("-")
        status = state["lastStatus"]
        ago = f" {self._since(state['lastRunAtMs'])}" if "lastRunAtMs" in state else ""
        errors = state["consecutiveErrors"]
        times = f" ({errors} in a row)" if errors > 1 else ""
        return Text.assemble(_status(status), f"{ago}{times}")

    def _next(self, job: Shape) -> str:
        if "nextRunAtMs" not in job:
            return f"no next run ({_why_off(job)})"
        return f"next {ahead(job['nextRunAtMs'], self._clock.now())} ({_next_local(job)})"

    def _job_lines(self, job: Shape) -> Iterator[tuple[str, Text]]:
        yield "job", drawing.text(job["id"], limit=None)
        yield "name", drawing.text(job["name"], limit=None)
        yield "schedule", drawing.text(schedule(job["schedule"]), limit=None)
        yield "next", drawing.text(self._next(job).removeprefix("next "), limit=None)
        yield "last", self._last(job)
        if "lastError" in job["state"]:
            yield "last error", drawing.text(job["state"]["lastError"], limit=None)
        yield "runs", drawing.text(job["state"]["runs"])
        for name, value in job["task"].items():
            yield name, _value(value)
        yield "retries", drawing.text(_retries(job["retryPolicy"]))
        yield "missed runs", drawing.text(_misfire(job))
        for name, value in job.items():
            if name in _WITHIN or value in (0, None):
                continue
            yield from self._job_line(job, name, value)

    def _job_line(self, job: Shape, name: str, value: Any) -> Iterator[tuple[str, Text]]:
        if name in ("createdAt", "updatedAt", "startAt", "endAt"):
            yield drawing.label(name), drawing.text(f"{value} ({self._ago(value)})")
        elif name == "alertUrl":
            times = "a failure" if job["alertAfter"] == 1 else f"{job['alertAfter']} failures"
            yield "alert", drawing.text(f"{value} after {times} in a row", limit=None)
        elif name == "keepRuns":
            yield "log", drawing.text(f"{value} runs, {job['keepDays']} days")
        elif name.endswith("Ms"):
            yield drawing.label(name).removesuffix(" ms"), drawing.text(drawing.span(value))
        else:
            yield drawing.label(name), _value(value)

    def _run_table(
        self, found: Sequence[Shape], *, whose: bool, header: bool = True, zone: str | None = None
    ) -> Table:
        columns: dict[str, Callable[[Shape], Text]] = {
            "SCHEDULED": lambda run: drawing.text(local(_ms(run["scheduledAt"]), zone)),
            "JOB": lambda run: drawing.text(run["jobName"]),
            "STATUS": lambda run: _status(run["status"]),
            "TRIGGER": lambda run: drawing.text(run["trigger"]),
            "TOOK": lambda run: drawing.text(_took(run)),
            "TRIES": lambda run: Text(str(run["attempts"] or "-"), justify="right"),
            "TASK": lambda run: drawing.text(run.get("taskId", "-")),
            "NOTE": lambda run: drawing.text(run.get("error") or run.get("summary", "")),
        }
        if not whose:
            del columns["JOB"]
        return self._laid_out(columns, _RUNS, found, header=header)

    def _since(self, at: int) -> str:
        return drawing.distance(at, self._clock.now())

    def _ahead_of(self, moment: str) -> Text:
        return Text(ahead(_ms(moment), self._clock.now()))


# -------------------------------------------------------------------- words


def ahead(at: int, now: int) -> str:
    """How far ahead, in the two largest units that say something: `in 3 h 12 min`."""
    left = at - now
    if left < 1000:
        return "now"
    parts = []
    for name, unit in _UNITS:
        number, left = divmod(left, unit)
        if number:
            parts.append(f"{number} {name}")
        elif parts:
            break
        if len(parts) == 2:
            break
    return f"in {' '.join(parts)}"


def local(at: int, zone: str | None) -> str:
    """`Mon 2026-11-16 09:00 CET`; in the zone of this machine when there is none."""
    try:
        there = moments.local(at, None if zone is None else ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):  # a zone that only the server knows
        there = moments.local(at, UTC)
    seconds = ":%S" if there.second else ""
    return there.strftime(f"%a %Y-%m-%d %H:%M{seconds} %Z")


def schedule(one: Shape) -> str:
    if one["kind"] == "cron":
        return f"{one['expr']} {one.get('tz', 'UTC')}"
    if one["kind"] == "every":
        return f"every {_exactly(one['everyMs'])}"
    return f"once at {one['at']}"


def jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"


def _exactly(milliseconds: int) -> str:
    parts = []
    for name, unit in (*_UNITS, ("ms", 1)):
        number, milliseconds = divmod(milliseconds, unit)
        parts += [f"{number} {name}"] if number else []
    return " ".join(parts)


def _next_local(job: Shape) -> str:
    return local(job["nextRunAtMs"], _zone(job)) if "nextRunAtMs" in job else "-"


def _zone(job: Shape) -> str | None:
    zone: str | None = job["schedule"].get("tz")
    return zone


def _why_off(job: Shape) -> str:
    reason = job.get("disabledReason")
    if reason == "errors":
        return "off after errors"
    return "finished" if reason == "finished" else "off"


def _what(task: Shape) -> str:
    for kind in ("handler", "action", "instruction"):
        if kind in task:
            return f"{kind} {shortened(str(task[kind]), _WHAT_CHARACTERS)}"
    return ""


def _status(name: str) -> Text:
    return Text(shown(name), style=STYLES.get(name, ""))


def _retries(policy: Shape) -> str:
    if not policy["maxRetries"]:
        return "none"
    first = drawing.span(policy["backoffMs"])
    return (
        f"{policy['maxRetries']}, after {first}, each wait {policy['backoffMultiplier']:g} times "
        f"the last, at most {drawing.span(policy['maxBackoffMs'])}, ±{policy['jitter']:.0%}"
    )


def _misfire(job: Shape) -> str:
    grace = f"later than {_exactly(job['misfireGraceMs']) or '0 s'}"
    if job["misfire"] == "skip":
        return f"those {grace} are not made up for"
    if job["misfire"] == "once":
        return f"of those {grace} the newest runs"
    spread = f" over {_exactly(job['misfireSpreadMs'])}" if job["misfireSpreadMs"] else ""
    return f"of those {grace} the newest {job['misfireCap']} run{spread}"


def _value(value: Any) -> Text:
    if isinstance(value, str):
        return Text(shown(value, lines=True))
    return drawing.text(value) if isinstance(value, int | float) else drawing.pretty(value)


def _took(run: Shape) -> str:
    if "startedAt" not in run or "finishedAt" not in run:
        return "-"
    return drawing.span(max(0, _ms(run["finishedAt"]) - _ms(run["startedAt"])))


def _ms(moment: str) -> int:
    return drawing.moment_of(moment)


def _document_table(documents: Sequence[Shape]) -> Table:
    rows = [
        [
            drawing.text(one["name"]),
            drawing.text(schedule(one["schedule"])),
            drawing.text(_described(one["task"])),
        ]
        for one in documents
    ]
    return drawing.table(("NAME", "SCHEDULE", "WHAT"), rows)


def _described(task: Shape) -> str:
    command = (
        task.get("params", {}).get("command") if isinstance(task.get("params"), dict) else None
    )
    return f"{_what(task)}: {command}" if command else _what(task)
