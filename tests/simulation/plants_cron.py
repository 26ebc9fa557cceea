"""Planted bugs in cron: slots, lateness, overlap, the log, and the moment when somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core import cron, schedule_times
from fairlane.engine.engine import Engine
from fairlane.engine.verbs import cron as engine_cron
from fairlane.store.tables import cron as store_cron
from tests.simulation.planting import Bed, always

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from fairlane.core.cron import CronDecision, CronDefinition, Job
    from fairlane.core.schedule_times import Schedule
    from fairlane.store.transaction import Transaction

BED: Final = Bed()
plant = BED.plant


# --- which slots there are --------------------------------------------------------------------


@plant("next", "slots", seed=13)
def a_time_that_comes_twice_fires_the_second_time(patch: pytest.MonkeyPatch) -> None:
    real = schedule_times._moments

    def later(*args: Any) -> tuple[int, int]:
        first, second = real(*args)
        return (second, second) if second > first else (first, second)

    patch.setattr(schedule_times, "_moments", later)


@plant("next", "slots", seed=7)
def a_time_in_a_gap_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule_times, "_gap_end", always(0))


@plant("next", "slots")
def an_interval_counts_from_the_last_look(patch: pytest.MonkeyPatch) -> None:
    real = schedule_times.moments_of

    def drifting(schedule: Schedule, after: int) -> Iterator[int]:
        if schedule.kind != schedule_times.EVERY:
            return real(schedule, after)
        assert schedule.every_ms is not None
        return iter(range(after + schedule.every_ms, 2**60, schedule.every_ms))

    patch.setattr(cron, "moments_of", drifting)


@plant("next", "jobs", "slots", seed=7)
def an_end_is_not_an_end(patch: pytest.MonkeyPatch) -> None:
    real = cron._within

    def endless(definition: CronDefinition, after: int) -> Iterator[int]:
        return real(msgspec.structs.replace(definition, end_at=None), after)

    patch.setattr(cron, "_within", endless)


@plant("slots", "next", "jobs")
def one_run_more_than_allowed(patch: pytest.MonkeyPatch) -> None:
    real = cron.decide

    def decide(job: Job, now: int, active: int) -> CronDecision:
        before, most = job.definition, job.definition.max_runs
        if most is not None:
            job.definition = msgspec.structs.replace(before, max_runs=most + 1)
        decision = real(job, now, active)
        job.definition = before
        return decision

    patch.setattr(cron, "decide", decide)


# --- what becomes of them ---------------------------------------------------------------------


@plant("slots")
def a_run_meets_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cron, "_overlaps", always(False))


@plant("slots")
def nothing_is_ever_late(patch: pytest.MonkeyPatch) -> None:
    real = cron.decide

    def decide(job: Job, now: int, active: int) -> CronDecision:
        before = job.definition
        job.definition = msgspec.structs.replace(before, misfire_grace_ms=366 * 86_400_000)
        decision = real(job, now, active)
        job.definition = before
        return decision

    patch.setattr(cron, "decide", decide)


@plant("slots")
def what_was_missed_is_not_mentioned(patch: pytest.MonkeyPatch) -> None:
    real = cron.decide

    def decide(*args: Any) -> CronDecision:
        return msgspec.structs.replace(real(*args), missed=0)

    patch.setattr(cron, "decide", decide)


@plant("slots", "next")
def the_next_slot_is_sought_from_now(patch: pytest.MonkeyPatch) -> None:
    """So that what fell due since the last look is lost."""
    real = cron.decide

    def decide(job: Job, now: int, active: int) -> CronDecision:
        job.slot_at = max(job.slot_at, now - 1000)
        return real(job, now, active)

    patch.setattr(cron, "decide", decide)


@plant("task")
def jitter_may_be_twice_as_long(patch: pytest.MonkeyPatch) -> None:
    real = cron.jitter_ms
    patch.setattr(cron, "jitter_ms", lambda *args: real(*args) * 2)


@plant("task")
def a_job_has_no_session(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cron.Job, "session", property(always(None)))


# --- what people do ---------------------------------------------------------------------------


@plant("next", "slots", "twice", seed=2)
def a_job_that_is_enabled_again_makes_up_for_its_pause(patch: pytest.MonkeyPatch) -> None:
    def begin(job: Job, _: int) -> bool:
        job.next_run_at = cron.first_run_at(job.definition, job.slot_at, runs=job.runs)
        job.disabled_reason = None
        return job.next_run_at is not None

    patch.setattr(cron, "begin", begin)


@plant("next", "twice", "slots", "error", seed=12)
def a_clock_that_was_set_back_fires_again(patch: pytest.MonkeyPatch) -> None:
    real = cron.begin

    def begin(job: Job, now: int) -> bool:
        job.slot_at = now
        return real(job, now)

    patch.setattr(cron, "begin", begin)


@plant("next", "jobs", "slots", seed=10)
def a_run_by_hand_moves_the_schedule(patch: pytest.MonkeyPatch) -> None:
    real = engine_cron._new_run

    def new_run(tx: Transaction, job: Job, slot: Any, trigger: str) -> Any:
        if trigger == cron.MANUAL:
            cron.begin(job, tx.now + 3_600_000)
        return real(tx, job, slot, trigger)

    patch.setattr(engine_cron, "_new_run", new_run)


@plant("jobs", "slots", "next")
def a_disabled_job_goes_on(patch: pytest.MonkeyPatch) -> None:
    real = cron.disable

    def disable(job: Job, reason: str) -> None:
        next_run_at = job.next_run_at
        real(job, reason)
        if reason == cron.BY_CALLER:
            job.definition = msgspec.structs.replace(job.definition, enabled=True)
            job.next_run_at = next_run_at

    patch.setattr(cron, "disable", disable)


# --- runs and their tasks ---------------------------------------------------------------------


@plant("runs", "slots")
def a_run_does_not_end_with_its_task(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine_cron, "follow", always(None))


@plant("jobs", seed=6)
def a_one_shot_goes_though_it_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        engine_cron,
        "_is_done_with",
        lambda job, run: job.definition.delete_after_run and not run.open,
    )


@plant("jobs", "next", "slots", seed=2)
def errors_never_switch_a_job_off(patch: pytest.MonkeyPatch) -> None:
    real = cron.disable

    def disable(job: Job, reason: str) -> None:
        if reason != cron.BY_ERRORS:
            real(job, reason)

    patch.setattr(cron, "disable", disable)


# --- the store, and when somebody looks -------------------------------------------------------


@plant("time")
def a_node_sleeps_through_what_is_due(patch: pytest.MonkeyPatch) -> None:
    """Only the coming jobs are forgotten: everything else still wakes it."""
    real_due_at = store_cron.next_due_at

    def due_already(tx: Transaction) -> int | None:
        due_at = real_due_at(tx)
        return due_at if due_at is not None and due_at <= tx.now else None

    patch.setattr(store_cron, "next_due_at", due_already)
    patch.setattr("fairlane.engine.engine.PRUNE_EVERY_MS", 366 * 86_400_000)
    real = engine_cron._log

    def log(tx: Transaction, by_id: dict[str, Job], runs: Any) -> None:
        due_at = tx.due_at
        real(tx, by_id, runs)
        tx.due_at = due_at

    patch.setattr(engine_cron, "_log", log)


@plant("jobs", "slots", "twice", "error")
def a_job_is_not_advanced_with_its_task(patch: pytest.MonkeyPatch) -> None:
    """As if two nodes had both read it before either wrote."""
    patch.setattr(cron, "advance", always(None))


@plant("slots", "jobs", "next", "runs")
def a_lost_commit_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_committed", always(True))


@plant("error", "slots", "jobs", "manual", "twice", seed=11)
def a_durable_commit_is_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_committed", always(False))
