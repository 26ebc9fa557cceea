"""Cron jobs: what fires when, and what becomes of a moment that was missed or comes too early.

A job has slots, the moments of its schedule. The next slot follows from the last one, never from
the clock, so a clock that jumps fires nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from fairlane.core import moments
from fairlane.core.job_documents import Misfire, Overlap
from fairlane.core.retries import Backoff
from fairlane.core.schedule_times import (
    AT,
    CRON,
    EVERY,
    EXPR_CHARACTERS_MAX,
    KINDS,
    NICKNAMES,
    Schedule,
    Slot,
    checked,
    moments_of,
    next_slot,
    slot_at,
)
from fairlane.core.sessions import OF_CRON
from fairlane.core.submissions import TaskRequest

__all__ = [  # what is known of schedules here besides
    "AT",
    "CRON",
    "EVERY",
    "EXPR_CHARACTERS_MAX",
    "KINDS",
    "NICKNAMES",
    "Schedule",
    "Slot",
    "checked",
    "next_slot",
]

SKIP: Final = "skip"
QUEUE: Final = "queue"
ALLOW: Final = "allow"
ONCE: Final = "once"
ALL: Final = "all"

SCHEDULED: Final = "schedule"
MISFIRED: Final = "misfire"
MANUAL: Final = "manual"

# What became of a run. The first two are of a task that goes on.
QUEUED: Final = "queued"
RUNNING: Final = "running"
OK: Final = "ok"
ERROR: Final = "error"
CANCELLED: Final = "cancelled"
SKIPPED: Final = "skipped"
MISSED: Final = "missed"

# In place of a stored definition that cannot be read.
DAMAGED: Final = "its definition in the store is damaged: delete it and create it again"

BY_CALLER: Final = "by caller"
FINISHED: Final = "finished"
BY_ERRORS: Final = "errors"

FAILING: Final = "cron.failing"
RECOVERED: Final = "cron.recovered"
ALERTS: Final = (FAILING, RECOVERED)

GRACE_MS: Final = 60_000
COUNTED_MAX: Final = 10_000  # late slots beyond this are "more than"
FIRED_MAX: Final = 1000  # slots of one job that fire in one decision; the rest is due at once
SUMMARY_BYTES_MAX: Final = 16_384
KEEP_DAYS: Final = 30

RETRIES: Final = Backoff(
    max_retries=3, backoff_ms=2000, backoff_multiplier=2, max_backoff_ms=30_000, jitter=0.25
)


def usual_grace_ms(schedule: Schedule) -> int:
    """Return the grace of jobs that name none: a minute, but no longer than one interval.

    A longer one would run every slot of a short outage. The slots of a cron rule are whole minutes,
    so none of them come closer together than this.
    """
    return min(GRACE_MS, schedule.every_ms or GRACE_MS)


class CronDefinition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job with every default, as the store keeps it in JSON.

    `misfire_grace_ms` None is the usual grace of the schedule.
    """

    name: str
    schedule: Schedule
    task: TaskRequest
    agent_id: str = "default"
    enabled: bool = True
    delete_after_run: bool = False
    overlap: Overlap = "skip"
    misfire: Misfire = "once"
    misfire_grace_ms: int | None = None
    misfire_cap: int = 10
    misfire_spread_ms: int = 0
    jitter_ms: int = 0
    timeout_ms: int | None = None
    start_at: int | None = None
    end_at: int | None = None
    max_runs: int | None = None
    retry_policy: Backoff = RETRIES
    alert_url: str | None = None
    alert_after: int | None = None
    disable_after: int | None = None
    keep_runs: int = 200
    keep_days: int = KEEP_DAYS

    @property
    def grace_ms(self) -> int:
        """How late a slot may be before it is missed."""
        if self.misfire_grace_ms is None:
            return usual_grace_ms(self.schedule)
        return self.misfire_grace_ms


class Job(msgspec.Struct):
    """A definition and how it stands. Slots up to `slot_at` have been dealt with.

    `runs` counts what the schedule has fired, `logged` the entries that its log has ever had.
    `alerted` is true from the alert about a streak of errors until the first success after it.
    `damaged` says that the store's definition cannot be read, and `definition` stands in for it.
    """

    seq: int
    id: str
    definition: CronDefinition
    slot_at: int
    next_run_at: int | None
    created_at: int
    updated_at: int
    disabled_reason: str | None = None
    runs: int = 0
    logged: int = 0
    consecutive_errors: int = 0
    alerted: bool = False
    last_run_at: int | None = None
    last_status: str | None = None
    last_error: str | None = None
    damaged: bool = False

    @property
    def session(self) -> str | None:
        """Where its tasks wait for each other, if they do."""
        return None if self.definition.overlap == ALLOW else f"{OF_CRON}{self.id}"


class RunRecord(msgspec.Struct):
    """An entry of the run log. It is `open` while its task goes on, which then tells the rest.

    `number` is its place in the log of its job.
    """

    seq: int
    id: str
    job_id: str
    job_name: str
    slot: str
    trigger: str
    status: str
    scheduled_at: int
    number: int
    task_id: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    attempts: int = 0
    error: str | None = None
    summary: str | None = None
    forget_at: int | None = None

    @property
    def open(self) -> bool:
        return self.status in (QUEUED, RUNNING)


class Firing(msgspec.Struct, frozen=True):
    """`run_at` is when its task may start: the slot is what it is for."""

    slot: Slot
    trigger: str
    run_at: int


class CronDecision(msgspec.Struct, frozen=True):
    """What is due. `missed` late slots will not run; there are more when they are `uncounted`.

    Slots up to `slot_at` are dealt with; `next_run_at` None means that the job is finished.
    """

    fires: list[Firing]
    skipped: list[Slot]
    missed: int
    first_missed: Slot | None
    last_missed: Slot | None
    uncounted: bool
    slot_at: int
    next_run_at: int | None


def first_run_at(definition: CronDefinition, now: int, *, runs: int = 0) -> int | None:
    """The first slot after `now`, None when there is none: for a new or changed schedule."""
    if definition.max_runs is not None and runs >= definition.max_runs:
        return None
    return next(_within(definition, now), None)


def _within(definition: CronDefinition, after: int) -> Iterator[int]:
    """The moments between the job's start and end, both included."""
    begin = after if definition.start_at is None else max(after, definition.start_at - 1)
    for at in moments_of(definition.schedule, begin):
        if definition.end_at is not None and at > definition.end_at:
            return
        yield at


def decide(job: Job, now: int, active: int) -> CronDecision:
    """What is due at `now`, with `active` runs of the job that have not ended.

    A slot that is late by more than the grace follows `misfire`, any other fires. Late slots that
    are all to run wait for each other instead of being skipped: `overlap` is about the rest.
    """
    definition = job.definition
    due = _due(definition, job.slot_at, now)
    left = None if definition.max_runs is None else max(0, definition.max_runs - job.runs)
    chosen = _caught_up(definition, due.newest, left)
    fires: list[Firing] = []
    skipped: list[Slot] = []
    for number, slot in enumerate(chosen):
        if definition.misfire == ALL or not _overlaps(definition, active + len(fires)):
            spread_ms = number * definition.misfire_spread_ms // len(chosen)
            run_at = moments.later(now, spread_ms)
            fires.append(Firing(slot, MISFIRED, run_at))
        else:
            skipped.append(slot)
    for slot in due.on_time:
        if left is not None and len(fires) >= left:
            break
        if _overlaps(definition, active + len(fires)):
            skipped.append(slot)
        else:
            run_at = moments.later(slot.at, jitter_ms(job, slot))
            fires.append(Firing(slot, SCHEDULED, run_at))
    missed = COUNTED_MAX if due.uncounted else due.late - len(chosen)
    spent = left is not None and len(fires) >= left
    return CronDecision(
        fires=fires,
        skipped=skipped,
        missed=missed,
        first_missed=due.first if missed else None,
        last_missed=due.newest[-1 - len(chosen)] if missed else None,
        uncounted=due.uncounted,
        slot_at=max((slot.at for slot in (*due.newest, *due.on_time)), default=job.slot_at),
        next_run_at=None if spent else due.coming_at,
    )


class _Due(msgspec.Struct, frozen=True):
    """How many slots are `late`, the first and the newest of them; those on time; what comes next.

    When late ones are `uncounted`, there are more still.
    """

    late: int
    first: Slot | None
    newest: list[Slot]
    uncounted: bool
    on_time: list[Slot]
    coming_at: int | None


def _due(definition: CronDefinition, after: int, now: int) -> _Due:
    last = now - definition.grace_ms - 1
    kept = definition.misfire_cap + 1  # one more than may run: the last that is missed
    moments = _within(definition, after)
    late, at = _taken(moments, next(moments, None), last, COUNTED_MAX + kept)
    uncounted = len(late) == COUNTED_MAX + kept
    newest = late[-kept:]
    if uncounted:
        newest = _newest(definition, after, last, kept)
        moments = _within(definition, last)
        at = next(moments, None)
    on_time, coming_at = _taken(moments, at, now, FIRED_MAX)
    named = [[slot_at(definition.schedule, one) for one in part] for part in (newest, on_time)]
    first = slot_at(definition.schedule, late[0]) if late else None
    return _Due(len(late), first, named[0], uncounted, named[1], coming_at)


def _newest(definition: CronDefinition, after: int, last: int, kept: int) -> list[int]:
    """The last `kept` of very many moments, without looking at all of them."""
    early, late = after, last
    while True:
        middle = (early + late) // 2
        moments = _within(definition, middle)
        found, _ = _taken(moments, next(moments, None), last, 2 * kept)
        if len(found) == 2 * kept:
            early = middle
        elif len(found) < kept:
            late = middle
        else:
            return found[-kept:]


def _taken(
    moments: Iterator[int], at: int | None, last: int, most: int
) -> tuple[list[int], int | None]:
    """From `at` on the moments up to `last`, and the one that comes after them."""
    found: list[int] = []
    while at is not None and at <= last and len(found) < most:
        found.append(at)
        at = next(moments, None)
    return found, at


def _caught_up(definition: CronDefinition, newest: list[Slot], left: int | None) -> list[Slot]:
    """The late slots that run after all."""
    wanted = {SKIP: 0, ONCE: 1, ALL: definition.misfire_cap}[definition.misfire]
    wanted = wanted if left is None else min(wanted, left)
    return newest[-wanted:] if wanted else []


def _overlaps(definition: CronDefinition, active: int) -> bool:
    return definition.overlap == SKIP and active > 0


def jitter_ms(job: Job, slot: Slot) -> int:
    """How much later than its slot a run may begin: always the same for the same slot."""
    if not job.definition.jitter_ms:
        return 0
    digest = hashlib.blake2b(f"{job.id} {slot.key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % job.definition.jitter_ms


# -------------------------------------------------------------------- what becomes of a job


def begin(job: Job, now: int) -> bool:
    """Set the schedule going from `now`; False when it has no slot to come.

    From the last slot where that is later: the clock may have been set back.
    """
    job.slot_at = max(now, job.slot_at)
    job.next_run_at = first_run_at(job.definition, job.slot_at, runs=job.runs)
    job.disabled_reason = None
    return job.next_run_at is not None


def go_on(job: Job) -> None:
    """Ask anew for the slot after the last one: how many there may be has changed."""
    job.next_run_at = first_run_at(job.definition, job.slot_at, runs=job.runs)
    if job.next_run_at is None:
        disable(job, FINISHED)


def disable(job: Job, reason: str) -> None:
    """Runs that are under way go on."""
    job.definition = msgspec.structs.replace(job.definition, enabled=False)
    job.next_run_at = None
    job.disabled_reason = reason


def advance(job: Job, decision: CronDecision, now: int) -> None:
    """Move the job past what has been decided."""
    job.slot_at, job.next_run_at = decision.slot_at, decision.next_run_at
    job.runs += len(decision.fires)
    if decision.fires:
        job.last_run_at, job.last_status = now, RUNNING
    elif decision.skipped or decision.missed:
        job.last_status = SKIPPED if decision.skipped else MISSED
    if job.next_run_at is None:
        disable(job, FINISHED)


def missed_text(decision: CronDecision) -> str:
    """What the log says about slots that did not run."""
    assert decision.first_missed is not None
    assert decision.last_missed is not None
    number = f"more than {decision.missed}" if decision.uncounted else str(decision.missed)
    first, last = (moments.text(one.at) for one in (decision.first_missed, decision.last_missed))
    return f"{number} missed, from {first} to {last}"


def ended(job: Job, status: str, error: str | None) -> str | None:
    """A run of the job has ended: count it; the alert that is owed now, if one is."""
    definition = job.definition
    job.last_status = status
    if status == CANCELLED:
        return None
    job.last_error = error
    if status == OK:
        alert = RECOVERED if job.alerted and definition.alert_url else None
        job.consecutive_errors, job.alerted = 0, False
        return alert
    job.consecutive_errors += 1
    stop_after = definition.disable_after
    if stop_after is not None and job.consecutive_errors >= stop_after and definition.enabled:
        disable(job, BY_ERRORS)
    if job.alerted or not definition.alert_url:
        return None
    job.alerted = job.consecutive_errors >= (definition.alert_after or 1)
    return FAILING if job.alerted else None


def cut(text: str) -> str:
    """What is kept of a long text: whole characters."""
    raw = text.encode()
    if len(raw) <= SUMMARY_BYTES_MAX:
        return text
    return raw[:SUMMARY_BYTES_MAX].decode(errors="ignore") + "…[truncated]"
