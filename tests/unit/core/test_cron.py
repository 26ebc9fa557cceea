"""Cron jobs: what is due, what is late, what is skipped, and what becomes of the job."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import cron
from fairlane.core.cron import CronDecision, CronDefinition, Job, Schedule, decide

NOW = 1_772_366_400_000  # 2026-03-01 12:00 UTC
MINUTE = 60_000
EVERY_MINUTE = Schedule(kind="cron", expr="* * * * *")


def job(slot_at: int = NOW - MINUTE, runs: int = 0, **fields: Any) -> Job:
    """A job that fires each minute, whose slots up to `slot_at` have been dealt with."""
    told = {"name": "report", "schedule": EVERY_MINUTE, "task": {"handler": "work"}, **fields}
    return Job(1, "job_1", CronDefinition(**told), slot_at, slot_at + MINUTE, 0, 0, runs=runs)


def fired(decision: CronDecision) -> list[tuple[int, str]]:
    """How many minutes before now, and why."""
    return [((NOW - one.slot.at) // MINUTE, one.trigger) for one in decision.fires]


def minutes(slots: list[cron.Slot]) -> list[int]:
    return [(NOW - slot.at) // MINUTE for slot in slots]


def test_a_slot_that_is_due_fires_and_the_next_follows_from_it() -> None:
    decision = decide(job(), NOW + 5, 0)
    assert [firing.slot.key for firing in decision.fires] == ["2026-03-01T12:00"]
    assert (decision.slot_at, decision.next_run_at) == (NOW, NOW + MINUTE)
    assert (decision.missed, decision.skipped, decision.fires[0].run_at) == (0, [], NOW)


def test_nothing_fires_before_its_time_or_when_the_clock_was_set_back() -> None:
    for now in (NOW - 1, NOW - 100 * MINUTE):
        decision = decide(job(), now, 0)
        assert (decision.fires, decision.missed) == ([], 0)
        assert (decision.slot_at, decision.next_run_at) == (NOW - MINUTE, NOW)


@pytest.mark.parametrize(
    ("misfire", "cap", "expected", "missed"),
    [
        ("skip", 10, [], [9, 5]),
        ("once", 10, [(5, "misfire")], [9, 6]),
        ("all", 2, [(6, "misfire"), (5, "misfire")], [9, 7]),
        ("all", 10, [(m, "misfire") for m in (9, 8, 7, 6, 5)], []),
    ],
)
def test_late_slots_follow_their_rule_and_the_others_fire(
    misfire: str, cap: int, expected: list[tuple[int, str]], missed: list[int]
) -> None:
    late = job(
        NOW - 10 * MINUTE,
        misfire=misfire,
        misfire_cap=cap,
        misfire_grace_ms=4 * MINUTE,
        overlap="allow",
    )
    decision = decide(late, NOW, 0)
    assert fired(decision) == expected + [(m, "schedule") for m in (4, 3, 2, 1, 0)]
    ends = [decision.first_missed, decision.last_missed] if missed else []
    assert minutes([slot for slot in ends if slot]) == missed
    assert decision.missed == (missed[0] - missed[1] + 1 if missed else 0)
    assert decision.next_run_at == NOW + MINUTE


def test_the_grace_includes_its_last_moment() -> None:
    due = job(misfire="skip", misfire_grace_ms=1000)
    assert decide(due, NOW + 1000, 0).missed == 0
    assert decide(due, NOW + 1001, 0).missed == 1


def test_a_slot_gets_no_more_grace_than_the_interval_unless_the_job_says_so() -> None:
    """Or a job every second that was down for less than a minute would run every slot."""
    every_second = Schedule(kind="every", every_ms=1000, anchor_at=0)
    down = {"schedule": every_second, "misfire": "skip", "overlap": "queue"}
    decision = decide(job(NOW - 20_000, **down), NOW + 1, 0)
    assert [(one.slot.at, one.trigger) for one in decision.fires] == [(NOW, "schedule")]
    assert decision.missed == 19
    patient = decide(job(NOW - 20_000, misfire_grace_ms=MINUTE, **down), NOW + 1, 0)
    assert (len(patient.fires), patient.missed) == (20, 0)


@pytest.mark.parametrize(
    ("schedule", "grace_ms"),
    [
        (Schedule(kind="every", every_ms=1000, anchor_at=0), 1000),
        (Schedule(kind="every", every_ms=59_999, anchor_at=0), 59_999),
        (Schedule(kind="every", every_ms=3_600_000, anchor_at=0), MINUTE),
        (EVERY_MINUTE, MINUTE),
        (Schedule(kind="cron", expr="0 9 * * *"), MINUTE),
        (Schedule(kind="at", at=NOW), MINUTE),
    ],
)
def test_the_usual_grace_is_a_minute_or_one_interval(schedule: Schedule, grace_ms: int) -> None:
    assert job(schedule=schedule).definition.grace_ms == grace_ms
    assert job(schedule=schedule, misfire_grace_ms=7).definition.grace_ms == 7


def test_very_many_late_slots_are_not_all_counted() -> None:
    late = job(NOW - 1_000_000 * MINUTE, misfire="all", misfire_cap=3)
    decision = decide(late, NOW + 59_999, 0)
    assert (decision.missed, decision.uncounted) == (10_000, True)
    assert fired(decision)[:3] == [(4 - n, "misfire") for n in (1, 2, 3)]
    assert decision.last_missed is not None
    assert minutes([decision.last_missed]) == [4]
    assert cron.missed_text(decision) == (
        "more than 10000 missed, from 2024-04-06T01:21:00.000Z to 2026-03-01T11:56:00.000Z"
    )


def test_the_newest_of_very_many_late_slots_may_be_long_ago() -> None:
    """Busy for a while, then nothing for longer: the newest are looked for where they are."""
    schedule = Schedule(kind="cron", expr="* * * 1 *")
    decision = decide(job(NOW - 400 * 1440 * MINUTE, schedule=schedule), NOW, 0)
    assert [firing.slot.key for firing in decision.fires] == ["2026-01-31T23:59"]
    assert decision.last_missed is not None
    assert decision.last_missed.key == "2026-01-31T23:58"


def test_ten_thousand_late_slots_are_counted() -> None:
    decision = decide(job(NOW - 10_000 * MINUTE, misfire="skip", misfire_grace_ms=0), NOW + 1, 0)
    assert (decision.missed, decision.uncounted) == (10_000, False)
    assert cron.missed_text(decision).startswith("10000 missed, from 2026-02-22T13:21:00.000Z to ")


def test_slots_that_are_due_fire_in_parts_when_they_are_very_many() -> None:
    busy = job(NOW - 1500 * MINUTE, misfire_grace_ms=2000 * MINUTE, overlap="queue")
    first = decide(busy, NOW, 0)
    assert len(first.fires) == 1000
    assert first.next_run_at == first.slot_at + MINUTE <= NOW
    cron.advance(busy, first, NOW)
    assert len(decide(busy, NOW, 0).fires) == 500


def test_late_slots_are_spread_evenly() -> None:
    late = job(NOW - 3 * MINUTE, misfire="all", misfire_grace_ms=0, misfire_spread_ms=900)
    assert [one.run_at - NOW for one in decide(late, NOW + 1, 0).fires] == [1, 301, 601]


# -------------------------------------------------------------------- overlap, jitter


@pytest.mark.parametrize(("overlap", "count"), [("skip", 0), ("queue", 1), ("allow", 1)])
def test_a_slot_is_skipped_while_a_run_goes_on_unless_it_may_wait_or_overlap(
    overlap: str, count: int
) -> None:
    decision = decide(job(overlap=overlap), NOW, 1)
    assert (len(decision.fires), len(decision.skipped)) == (count, 1 - count)
    assert decision.next_run_at == NOW + MINUTE


def test_of_several_slots_at_once_the_first_runs_and_the_others_are_skipped() -> None:
    decision = decide(job(NOW - 3 * MINUTE, misfire_grace_ms=5 * MINUTE), NOW, 0)
    assert (fired(decision), minutes(decision.skipped)) == ([(2, "schedule")], [1, 0])


def test_a_late_slot_is_skipped_too_unless_all_are_to_run() -> None:
    late = {"slot_at": NOW - 3 * MINUTE, "misfire_grace_ms": 0}
    once = decide(job(**late), NOW + 1, 1)
    assert (fired(once), minutes(once.skipped), once.missed) == ([], [0], 2)
    every = decide(job(misfire="all", **late), NOW + 1, 1)
    assert (len(every.fires), every.skipped) == (3, [])


def test_jitter_is_within_its_bounds_and_the_same_each_time() -> None:
    jittery = job(jitter_ms=5000)
    slots = [cron.Slot(NOW, f"slot {number}") for number in range(100)]
    waits = [cron.jitter_ms(jittery, slot) for slot in slots]
    assert waits == [cron.jitter_ms(jittery, slot) for slot in slots]
    assert min(waits) >= 0
    assert max(waits) < 5000
    assert len(set(waits)) > 90
    wait = cron.jitter_ms(jittery, cron.Slot(NOW, "2026-03-01T12:00"))
    assert decide(jittery, NOW, 0).fires[0].run_at == NOW + wait


# -------------------------------------------------------------------- start, end, how many


def test_a_job_fires_from_its_start_to_its_end() -> None:
    bounds = {"start_at": NOW - MINUTE, "end_at": NOW + MINUTE}
    whole = job(NOW - 10 * MINUTE, misfire_grace_ms=0, misfire="all", overlap="allow", **bounds)
    decision = decide(whole, NOW + 5 * MINUTE + 1, 0)
    assert fired(decision) == [(1, "misfire"), (0, "misfire"), (-1, "misfire")]
    assert decision.next_run_at is None
    assert cron.first_run_at(whole.definition, NOW - 10 * MINUTE) == NOW - MINUTE
    assert cron.first_run_at(whole.definition, NOW) == NOW + MINUTE
    assert cron.first_run_at(whole.definition, NOW + MINUTE) is None


def test_a_job_fires_only_so_many_times() -> None:
    limited = job(NOW - 3 * MINUTE, runs=3, max_runs=4, overlap="allow", misfire_grace_ms=MINUTE)
    decision = decide(limited, NOW, 0)
    assert (fired(decision), decision.next_run_at) == ([(2, "misfire")], None)
    limited = job(NOW - 3 * MINUTE, runs=2, max_runs=4, overlap="allow", misfire_grace_ms=MINUTE)
    assert fired(decide(limited, NOW, 0)) == [(2, "misfire"), (1, "schedule")]
    assert cron.first_run_at(limited.definition, NOW, runs=4) is None
    spent = job(NOW - 3 * MINUTE, runs=4, max_runs=4, misfire_grace_ms=MINUTE)
    assert (decide(spent, NOW, 0).fires, decide(spent, NOW, 0).missed) == ([], 1)


def test_a_job_for_one_moment_is_finished_when_it_has_fired() -> None:
    once = job(NOW - 1, schedule=Schedule(kind="at", at=NOW))
    decision = decide(once, NOW, 0)
    assert (fired(decision), decision.next_run_at) == ([(0, "schedule")], None)
    cron.advance(once, decision, NOW)
    assert (once.definition.enabled, once.disabled_reason) == (False, "finished")
    assert (once.runs, once.last_status, once.last_run_at) == (1, "running", NOW)


# -------------------------------------------------------------------- what becomes of a job


def test_a_job_tells_what_its_last_slot_came_to() -> None:
    busy = job()
    cron.advance(busy, decide(busy, NOW, 1), NOW)
    assert (busy.last_status, busy.runs, busy.last_run_at) == ("skipped", 0, None)
    late = job(misfire="skip", misfire_grace_ms=0)
    cron.advance(late, decide(late, NOW + 1, 0), NOW)
    assert late.last_status == "missed"
    early = job()
    cron.advance(early, decide(early, NOW - 1, 0), NOW)
    assert (early.last_status, early.next_run_at) == (None, NOW)


def test_a_job_that_begins_again_goes_on_from_now_or_from_its_last_slot() -> None:
    stopped = job(NOW - 100 * MINUTE)
    cron.disable(stopped, cron.BY_CALLER)
    assert (stopped.next_run_at, stopped.disabled_reason) == (None, "by caller")
    assert cron.begin(stopped, NOW + 1)
    assert (stopped.next_run_at, stopped.disabled_reason) == (NOW + MINUTE, None)
    assert cron.begin(stopped, NOW - 50 * MINUTE)
    assert stopped.next_run_at == NOW + MINUTE
    assert not cron.begin(job(runs=1, max_runs=1), NOW)


def test_a_new_limit_holds_at_once() -> None:
    limited = job(runs=2, max_runs=3)
    cron.go_on(limited)
    assert limited.next_run_at == NOW
    reached = job(runs=3, max_runs=3)
    cron.go_on(reached)
    assert (reached.next_run_at, reached.disabled_reason) == (None, "finished")


def test_runs_of_a_job_share_a_session_unless_they_may_overlap() -> None:
    assert job().session == "cron:job_1"
    assert job(overlap="allow").session is None


def test_errors_in_a_row_are_counted_and_told_once() -> None:
    watched = job(alert_url="https://receiver.example", alert_after=2)
    ends = ["error", "error", "cancelled", "error", "ok", "ok", "error", "error"]
    told = [cron.count_end(watched, status, f"{status}!") for status in ends]
    assert told == [None, "cron.failing", None, None, "cron.recovered", None, None, "cron.failing"]
    assert (watched.consecutive_errors, watched.last_error) == (2, "error!")
    assert (watched.last_status, watched.alerted) == ("error", True)


def test_without_a_number_the_first_error_is_reported_and_without_an_address_none() -> None:
    assert (
        cron.count_end(job(alert_url="https://receiver.example"), "error", None) == "cron.failing"
    )
    assert cron.count_end(job(), "error", None) is None


def test_no_alert_is_sent_after_the_alert_url_was_removed() -> None:
    watched = job(alert_url="https://receiver.example")
    cron.count_end(watched, "error", None)
    watched.definition = job().definition
    assert cron.count_end(watched, "ok", None) is None
    assert not watched.alerted


def test_a_job_stops_after_so_many_errors() -> None:
    fragile = job(disable_after=2)
    cron.count_end(fragile, "error", "first")
    assert fragile.definition.enabled
    cron.count_end(fragile, "error", "second")
    assert (fragile.definition.enabled, fragile.disabled_reason) == (False, "errors")
    fragile.disabled_reason = cron.FINISHED
    cron.count_end(fragile, "error", "third")
    assert fragile.disabled_reason == "finished"


def test_a_long_text_is_cut_between_characters() -> None:
    assert cron.cut("ä" * 8192) == "ä" * 8192
    assert cron.cut("ä" * 8193) == "ä" * 8192 + "…[truncated]"
    assert cron.cut("x" + "ä" * 8192) == "x" + "ä" * 8191 + "…[truncated]"


def test_a_run_is_open_while_its_task_goes_on() -> None:
    run = cron.RunRecord(1, "run_1", "job_1", "report", "slot", "schedule", "queued", NOW, 1)
    assert run.open
    run.status = cron.OK
    assert not run.open
