"""Cron jobs: which slots fire at which time, and what happens to missed and overlapping ones.

The slots of a job are the times of its schedule. The next slot follows from the last one, never
from the clock, so a clock that jumps fires nothing twice.
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

__all__ = [  # re-exported for users of this module
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
ALLOW: Final = "allow"
ONCE: Final = "once"
ALL: Final = "all"

SCHEDULED: Final = "schedule"
MISFIRED: Final = "misfire"
MANUAL: Final = "manual"

# The status of a run. The first two belong to a task that has not ended.
QUEUED: Final = "queued"
RUNNING: Final = "running"
OK: Final = "ok"
ERROR: Final = "error"
CANCELLED: Final = "cancelled"
SKIPPED: Final = "skipped"
MISSED: Final = "missed"

# Stands in for a stored definition that cannot be read.
DAMAGED: Final = "its stored definition is damaged; delete the job and create it again"

BY_CALLER: Final = "by caller"
FINISHED: Final = "finished"
BY_ERRORS: Final = "errors"

FAILING: Final = "cron.failing"
RECOVERED: Final = "cron.recovered"
ALERTS: Final = (FAILING, RECOVERED)

GRACE_MS: Final = 60_000
COUNTED_MAX: Final = 10_000  # beyond this many, late slots are reported as "more than"
FIRED_MAX: Final = 1000  # slots of one job that fire in one decision; the rest is due at once
SUMMARY_BYTES_MAX: Final = 16_384
KEEP_DAYS: Final = 30

RETRIES: Final = Backoff(
    max_retries=3, backoff_ms=2000, backoff_multiplier=2, max_backoff_ms=30_000, jitter=0.25
)


def usual_grace_ms(schedule: Schedule) -> int:
    """Return the grace of jobs that do not set one: a minute, but at most one interval.

    A longer grace would run every slot of a short outage. The slots of a cron rule are whole
    minutes, so they are never closer together than this.
    """
    return min(GRACE_MS, schedule.every_ms or GRACE_MS)


class CronDefinition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job with every default, as the store keeps it in JSON.

    `misfire_grace_ms` None means the usual grace of the schedule.
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
        """Return how late a slot may be before it counts as missed."""
        if self.misfire_grace_ms is None:
            return usual_grace_ms(self.schedule)
        return self.misfire_grace_ms


class Job(msgspec.Struct):
    """A definition and its state. Slots up to `slot_at` have been decided.

    `runs` counts what the schedule has fired, `logged` all entries that its log has ever had.
    `alerted` is true from the alert about a streak of errors until the first success after it.
    `submitter` is the id of the token that defined it last. `damaged` says that the stored
    definition cannot be read; `definition` then stands in for it.
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
    submitter: str | None = None
    damaged: bool = False

    @property
    def session(self) -> str | None:
        """Return the session in which its tasks wait for each other, if they do."""
        return None if self.definition.overlap == ALLOW else f"{OF_CRON}{self.id}"


class RunRecord(msgspec.Struct):
    """An entry of the run log. It is `open` until its task ends.

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
    """A slot to fire. `run_at` is the earliest start of its task."""

    slot: Slot
    trigger: str
    run_at: int


class CronDecision(msgspec.Struct, frozen=True):
    """What to fire. `missed` late slots do not run; `uncounted` says that there are even more.

    Slots up to `slot_at` are decided; `next_run_at` None means that the job is finished.
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
    """Return the first slot after `now` of a new or changed schedule; None if there is none."""
    if definition.max_runs is not None and runs >= definition.max_runs:
        return None
    return next(_within(definition, now), None)


def _within(definition: CronDefinition, after: int) -> Iterator[int]:
    """Yield the slots between the job's start and end, both included."""
    begin = after if definition.start_at is None else max(after, definition.start_at - 1)
    for at in moments_of(definition.schedule, begin):
        if definition.end_at is not None and at > definition.end_at:
            return
        yield at


def decide(job: Job, now: int, active: int) -> CronDecision:
    """Decide what fires at `now`, given `active` runs of the job that have not ended.

    A slot that is late by more than the grace follows `misfire`; any other fires. Late slots that
    all have to run wait for each other instead of being skipped: `overlap` applies to the others.
    """
    definition = job.definition
    due = _due(definition, job.slot_at, now)
    left = None if definition.max_runs is None else max(0, definition.max_runs - job.runs)
    chosen = _misfires_to_run(definition, due.newest, left)
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
    """The number of `late` slots with the first and the newest, those on time, and the next one.

    `uncounted` says that there are more late slots.
    """

    late: int
    first: Slot | None
    newest: list[Slot]
    uncounted: bool
    on_time: list[Slot]
    coming_at: int | None


def _due(definition: CronDefinition, after: int, now: int) -> _Due:
    last = now - definition.grace_ms - 1
    kept = definition.misfire_cap + 1  # one more than may run: the last one that is missed
    moments = _within(definition, after)
    late, at = _slots_up_to(moments, next(moments, None), last, COUNTED_MAX + kept)
    uncounted = len(late) == COUNTED_MAX + kept
    newest = late[-kept:]
    if uncounted:
        newest = _newest(definition, after, last, kept)
        moments = _within(definition, last)
        at = next(moments, None)
    on_time, coming_at = _slots_up_to(moments, at, now, FIRED_MAX)
    named = [[slot_at(definition.schedule, one) for one in part] for part in (newest, on_time)]
    first = slot_at(definition.schedule, late[0]) if late else None
    return _Due(len(late), first, named[0], uncounted, named[1], coming_at)


def _newest(definition: CronDefinition, after: int, last: int, kept: int) -> list[int]:
    """Return the last `kept` of very many slots without visiting all of them."""
    early, late = after, last
    while True:
        middle = (early + late) // 2
        moments = _within(definition, middle)
        found, _ = _slots_up_to(moments, next(moments, None), last, 2 * kept)
        if len(found) == 2 * kept:
            early = middle
        elif len(found) < kept:
            late = middle
        else:
            return found[-kept:]


def _slots_up_to(
    moments: Iterator[int], at: int | None, last: int, most: int
) -> tuple[list[int], int | None]:
    """Return the slots from `at` up to `last`, and the one after them."""
    found: list[int] = []
    while at is not None and at <= last and len(found) < most:
        found.append(at)
        at = next(moments, None)
    return found, at


def _misfires_to_run(
    definition: CronDefinition, newest: list[Slot], left: int | None
) -> list[Slot]:
    """Return the late slots that still run."""
    wanted = {SKIP: 0, ONCE: 1, ALL: definition.misfire_cap}[definition.misfire]
    wanted = wanted if left is None else min(wanted, left)
    return newest[-wanted:] if wanted else []


def _overlaps(definition: CronDefinition, active: int) -> bool:
    return definition.overlap == SKIP and active > 0


def jitter_ms(job: Job, slot: Slot) -> int:
    """Return the delay of a run after its slot. The same slot always gets the same delay."""
    if not job.definition.jitter_ms:
        return 0
    digest = hashlib.blake2b(f"{job.id} {slot.key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) % job.definition.jitter_ms


# -------------------------------------------------------------------- changes of a job


def begin(job: Job, now: int) -> bool:
    """Start the schedule from `now`; return False if it has no slot to come.

    Start from the last slot if that is later: the clock may have been set back.
    """
    job.slot_at = max(now, job.slot_at)
    job.next_run_at = first_run_at(job.definition, job.slot_at, runs=job.runs)
    job.disabled_reason = None
    return job.next_run_at is not None


def go_on(job: Job) -> None:
    """Recompute the next slot after the limit on runs has changed."""
    job.next_run_at = first_run_at(job.definition, job.slot_at, runs=job.runs)
    if job.next_run_at is None:
        disable(job, FINISHED)


def disable(job: Job, reason: str) -> None:
    """Disable the job. Runs in progress continue."""
    job.definition = msgspec.structs.replace(job.definition, enabled=False)
    job.next_run_at = None
    job.disabled_reason = reason


def advance(job: Job, decision: CronDecision, now: int) -> None:
    """Move the job past a decision."""
    job.slot_at, job.next_run_at = decision.slot_at, decision.next_run_at
    job.runs += len(decision.fires)
    if decision.fires:
        job.last_run_at, job.last_status = now, RUNNING
    elif decision.skipped or decision.missed:
        job.last_status = SKIPPED if decision.skipped else MISSED
    if job.next_run_at is None:
        disable(job, FINISHED)


def missed_text(decision: CronDecision) -> str:
    """Return the log text for slots that did not run."""
    assert decision.first_missed is not None
    assert decision.last_missed is not None
    number = f"more than {decision.missed}" if decision.uncounted else str(decision.missed)
    first, last = (moments.text(one.at) for one in (decision.first_missed, decision.last_missed))
    return f"{number} missed, from {first} to {last}"


def count_end(job: Job, status: str, error: str | None) -> str | None:
    """Count the end of a run and return the alert that is due, if any."""
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
    """Return the text cut to the stored length, at a whole character."""
    raw = text.encode()
    if len(raw) <= SUMMARY_BYTES_MAX:
        return text
    return raw[:SUMMARY_BYTES_MAX].decode(errors="ignore") + "…[truncated]"
