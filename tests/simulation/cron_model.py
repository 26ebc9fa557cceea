"""What cron owes, worked out a second time: which slots a job has and what becomes of each.

The slots come from a walk through time (`tests.property.wall_clock`), not from the code that is
simulated. The model is told what was asked for and when a transaction committed, and says which
entries the run log must have got by it: no others, and none of them ever again.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from tests.property.wall_clock import DAY, Firing, Moment, Rule, firings, walk
from tests.simulation.causes import demand

STEP_SECONDS: Final = 900  # every cron rule of the simulation is about quarters of an hour
RUN: Final = "run"
SKIPPED: Final = "skipped"
MISSED: Final = "missed"


class Slots:
    """All slots of cron rules within the time that is simulated."""

    def __init__(self, start: int, end: int) -> None:
        self.end = end  # milliseconds: nothing is known about later ones
        self._start = start
        self._found: dict[tuple[str, str], list[Firing]] = {}

    def next(self, schedule: dict[str, Any], after: int) -> Firing | None:
        """The first one later than `after`; None also when it lies beyond the end."""
        if schedule["kind"] == "at":
            at = schedule["atMs"]
            return Firing(at, "") if at > after else None
        if schedule["kind"] == "every":
            every, anchor = schedule["everyMs"], schedule["anchorMs"]
            past = max(0, (after - anchor) // every)
            return Firing(anchor + (past + 1) * every, "")
        listed = self._of(schedule["expr"], schedule["tz"])
        place = bisect_right(listed, after, key=lambda one: one.at)
        return listed[place] if place < len(listed) else None

    def _of(self, expr: str, tz: str) -> list[Firing]:
        if (expr, tz) not in self._found:
            first, last = self._start // 1000 // DAY - 2, self.end // 1000 // DAY + 1
            self._found[expr, tz] = _firings(expr, tz, first, last)
        return self._found[expr, tz]


@cache
def _firings(expr: str, tz: str, first: int, last: int) -> list[Firing]:
    """Between two days."""
    return list(firings(Rule(expr), _walk(tz, first, last)))


@cache
def _walk(tz: str, first: int, last: int) -> list[Moment]:
    return walk(tz, first * DAY, last * DAY, STEP_SECONDS)


class Entry(NamedTuple):
    """A line of the run log that has to be there, and for how many slots."""

    what: str
    trigger: str
    at: int
    slots: int = 1


class ModelJob(msgspec.Struct):
    """A job as its owner knows it; `document` is what was sent, with defaults filled in."""

    id: str
    document: dict[str, Any]
    next_at: int | None
    slot_at: int  # every slot up to here has been dealt with
    enabled: bool = True
    reason: str | None = None
    runs: int = 0
    errors: int = 0
    active: set[str] = msgspec.field(default_factory=set)  # tasks that have not ended
    manual: set[str] = msgspec.field(default_factory=set)  # tasks of runs by hand
    dealt: set[int] = msgspec.field(default_factory=set)  # slots that must not come again


DEFAULTS: Final[dict[str, Any]] = {
    "enabled": True,
    "overlap": "skip",
    "misfire": "once",
    "misfireGraceMs": 60_000,
    "misfireCap": 10,
    "misfireSpreadMs": 0,
    "jitterMs": 0,
}


class Model:
    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.jobs: dict[str, ModelJob] = {}

    # ------------------------------------------------------------ what people do

    def create(self, job_id: str, document: dict[str, Any], now: int) -> None:
        job = ModelJob(job_id, {**DEFAULTS, **_understood(document, now)}, None, now)
        self.jobs[job_id] = job
        job.enabled = job.document["enabled"]
        job.reason = None if job.enabled else "by caller"
        self._look_ahead(job)

    def update(self, job_id: str, document: dict[str, Any], now: int) -> None:
        """A new schedule, or a job that is enabled again, looks forward from now."""
        job = self.jobs[job_id]
        before, was_enabled = job.document, job.enabled
        job.document = {**before, **_understood(document, now)}
        schedule, old = document.get("schedule", {}), before["schedule"]
        if schedule.get("kind") == old["kind"] == "every" and "anchor" not in schedule:
            job.document["schedule"]["anchorMs"] = old["anchorMs"]  # what is unsaid stays
        if "enabled" in document:
            job.enabled = document["enabled"]
            if not job.enabled and was_enabled:
                job.reason = "by caller"
        timing = ("schedule", "startAt", "endAt")
        moved = any(before.get(name) != job.document.get(name) for name in timing)
        if job.enabled and (moved or not was_enabled):
            job.slot_at = max(job.slot_at, now)
            job.errors = 0 if job.reason == "errors" else job.errors
            job.reason = None
        self._look_ahead(job)

    def end(self, job_id: str, task: str, state: str) -> None:
        """A run has ended, in whatever way."""
        job = self.jobs.get(job_id)
        if job is None or task not in job.active:
            return
        job.active.discard(task)
        if state == "done":
            job.errors = 0
            kind = job.document["schedule"]["kind"]
            goes = kind == "at" and job.document.get("deleteAfterRun", True)
            if goes and task not in job.manual:
                del self.jobs[job_id]
        elif state == "failed":
            job.errors += 1
            most = job.document.get("disableAfter")
            if job.enabled and most is not None and job.errors >= most:
                job.enabled, job.reason, job.next_at = False, "errors", None

    def could_go_on(self, job: ModelJob, now: int) -> bool:
        """Whether it would have a slot to come if it were enabled now."""
        after = self._after(job, max(job.slot_at, now))
        return after is not None and self._left(job) != 0

    # ------------------------------------------------------------ what time does

    def due(self, job: ModelJob, now: int, active: int) -> list[Entry]:
        """What becomes of every slot up to `now`, with so many runs that have not ended."""
        if not job.enabled or job.next_at is None:
            return []
        document = job.document
        waiting = self._up_to(job, now)
        late = [at for at in waiting if now - at > document["misfireGraceMs"]]
        left = self._left(job)
        wanted = {"skip": 0, "once": 1, "all": document["misfireCap"]}[document["misfire"]]
        wanted = min(wanted, len(late), wanted if left is None else left)
        missed = late[: len(late) - wanted]
        entries = [Entry(MISSED, "", missed[-1], len(missed))] if missed else []
        fired = 0
        for at in waiting[len(missed) :]:
            if left is not None and fired >= left:
                break
            is_late = at in late
            waits = is_late and document["misfire"] == "all"
            busy = document["overlap"] == "skip" and active + fired > 0
            if busy and not waits:
                entries.append(Entry(SKIPPED, "", at))
            else:
                fired += 1
                entries.append(Entry(RUN, "misfire" if is_late else "schedule", at))
        return entries

    def deal(self, job: ModelJob, now: int, entries: list[Entry]) -> None:
        """These have been written: nothing up to `now` is owed any more."""
        slots = self._up_to(job, now) if job.enabled and job.next_at is not None else []
        again = job.dealt.intersection(slots)
        demand("twice", not again, f"slots of {job.id} again")
        if not slots:
            return
        job.dealt.update(slots)
        job.slot_at = max(job.slot_at, slots[-1])
        job.runs += sum(entry.what == RUN for entry in entries)
        self._look_ahead(job)

    @property
    def next_at(self) -> int | None:
        found = [job.next_at for job in self.jobs.values() if job.next_at is not None]
        return min(found, default=None)

    # ------------------------------------------------------------ parts

    def _up_to(self, job: ModelJob, now: int) -> list[int]:
        found: list[int] = []
        at = self._after(job, job.slot_at)
        while at is not None and at <= now:
            found.append(at)
            at = self._after(job, at)
        return found

    def _after(self, job: ModelJob, after: int) -> int | None:
        document = job.document
        start_at, end_at = document.get("startAt"), document.get("endAt")
        slot = self.slots.next(document["schedule"], max(after, (start_at or 0) - 1))
        if slot is None or (end_at is not None and slot.at > end_at):
            return None
        return slot.at

    def _left(self, job: ModelJob) -> int | None:
        most = job.document.get("maxRuns")
        return None if most is None else max(0, most - job.runs)

    def _look_ahead(self, job: ModelJob) -> None:
        if not job.enabled:
            job.next_at = None
            return
        job.next_at = None if self._left(job) == 0 else self._after(job, job.slot_at)
        if job.next_at is None and not self.endless(job):
            job.enabled, job.reason = False, "finished"

    def endless(self, job: ModelJob) -> bool:
        """Whether it goes on beyond the time that is simulated."""
        of_time = job.document["schedule"]["kind"] == "cron"
        end_at = job.document.get("endAt")
        return of_time and (end_at is None or end_at > self.slots.end) and self._left(job) != 0


def _understood(document: dict[str, Any], now: int) -> dict[str, Any]:
    """The document with moments as numbers, and what was left unsaid about its schedule."""
    found = dict(document)
    for name in ("startAt", "endAt"):
        if name in found:
            found[name] = _ms(found[name])
    schedule = found.get("schedule")
    if schedule is not None and schedule["kind"] == "every":
        anchor = _ms(schedule["anchor"]) if "anchor" in schedule else now
        found["schedule"] = {**schedule, "anchorMs": anchor}
    return found


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
