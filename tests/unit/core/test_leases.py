"""Leases: which reports are accepted, what they change, and the answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from fairlane.core import leases
from fairlane.core.errors import Conflict, LeaseLost, NotFound
from fairlane.core.leases import LeaseDecision
from fairlane.core.model import RUN_PREFIX, Change, Task
from fairlane.core.policy import Policy, from_document
from fairlane.core.retries import Backoff
from tests.unit.core import rows
from tests.unit.core.rows import NOW, TOKEN

LATER = NOW + 400
POLICY = Policy()

Report = Callable[[Task | None, int], LeaseDecision]


def _fail(task: Task | None, token: int = TOKEN, **given: Any) -> LeaseDecision:
    options: dict[str, Any] = {
        "retryable": True,
        "retry_after_ms": None,
        "policy": POLICY,
        "own": None,
    }
    return leases.fail(task, token, "no luck", now=LATER, **{**options, **given})


REPORTS: dict[str, Report] = {
    "start": lambda task, token: leases.start(task, token, LATER),
    "renew": lambda task, token: leases.renew(task, token, 5000, LATER),
    "complete": lambda task, token: leases.complete(task, token, '"done"', LATER),
    "fail": _fail,
    "release": lambda task, token: leases.release(task, token, LATER),
}
reports = pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())


def _changed(decision: LeaseDecision) -> Change:
    """The change of a decision whose answer is the row that it leaves."""
    assert decision.change is not None
    assert decision.answer is decision.change.after
    return decision.change


# ---------------------------------------------------------------- tokens

DRAWS = (0, 1, 2**19, 2**32 - 1)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("last", [0, 7, 10**9])
def test_the_first_token_of_a_second_is_above_all_of_the_seconds_before(
    draw: int, last: int
) -> None:
    before = (
        leases.fencing_token_base(last, NOW - 1000, 2**32 - 1)
        + leases.FENCING_TOKENS_PER_SECOND // 2
    )
    assert leases.fencing_token_base(last, NOW, draw) >= before
    assert leases.fencing_token_base(last, NOW, draw) > last


@pytest.mark.parametrize("draw", DRAWS)
def test_a_clock_that_is_behind_does_not_make_tokens_go_back(draw: int) -> None:
    last = leases.fencing_token_base(0, NOW, 5)
    for now in (NOW, NOW - 3_600_000, 0, -1000):
        assert leases.fencing_token_base(last, now, draw) >= last


def test_transactions_of_one_moment_begin_apart() -> None:
    last = leases.fencing_token_base(0, NOW, 5)
    for remembered in (0, last, last + 10**12):
        first, other = (
            leases.fencing_token_base(remembered, NOW - 1, draw) for draw in (1000, 1001)
        )
        assert first != other


def test_every_json_parser_reads_a_token_of_this_century_exactly() -> None:
    in_2200 = 7_258_118_400_000
    assert (
        leases.fencing_token_base(0, in_2200, 2**32 - 1) + leases.FENCING_TOKENS_PER_SECOND < 2**53
    )


# ---------------------------------------------------------------- grant


def test_a_granted_task_is_assigned_under_a_new_token() -> None:
    task = rows.queued(queued_at=NOW, fencing_token=3, attempts=1)
    change = leases.grant(task, fencing_token=8, worker="w2", ttl_ms=5000, started=False, now=LATER)
    after = change.after
    assert (change.before, change.verb, change.waited_ms) == (task, "lease", 400)
    assert (after.state, after.attempts, after.fencing_token, after.worker) == (
        "assigned",
        2,
        8,
        "w2",
    )
    assert (after.lease_expires_at, after.started_at) == (LATER + 5000, None)
    assert task.state == "queued"


def test_a_worker_that_begins_at_once_gets_a_running_task() -> None:
    change = leases.grant(
        rows.queued(), fencing_token=8, worker="w2", ttl_ms=5000, started=True, now=LATER
    )
    assert (change.verb, change.after.state, change.after.started_at) == ("lease", "running", LATER)


def test_a_clock_that_went_back_makes_no_negative_wait() -> None:
    change = leases.grant(
        rows.queued(), fencing_token=8, worker="w", ttl_ms=1, started=False, now=NOW - 5000
    )
    assert change.waited_ms == 0


@pytest.mark.parametrize("gate", ["session", "delay"])
def test_a_task_behind_a_gate_is_never_leased(gate: str) -> None:
    with pytest.raises(AssertionError, match=gate):
        leases.grant(
            rows.queued(gate=gate), fencing_token=8, worker="w", ttl_ms=1, started=False, now=NOW
        )


# ---------------------------------------------------------------- fencing


@reports
@pytest.mark.parametrize(
    "task",
    [
        rows.running(fencing_token=TOKEN + 1),  # another worker has it by now
        rows.queued(fencing_token=TOKEN),  # it expired or was released
        rows.stopped(lease_expires_at=None),
        rows.queued(fencing_token=TOKEN, state="failed"),
        rows.queued(fencing_token=TOKEN, state="parked"),
    ],
)
def test_a_report_without_an_open_lease_changes_nothing(report: Report, task: Task) -> None:
    as_it_was = copy.copy(task)
    decision = report(task, TOKEN)
    assert decision.change is None
    assert isinstance(decision.answer, LeaseLost)
    assert decision.answer.details == {"taskId": task.id, "state": task.state}
    assert task == as_it_was


@reports
def test_a_report_about_no_task_changes_nothing(report: Report) -> None:
    decision = report(None, TOKEN)
    assert decision.change is None
    assert isinstance(decision.answer, LeaseLost)
    assert decision.answer.details is None


@reports
def test_a_report_leaves_the_row_it_was_given_alone(report: Report) -> None:
    task = rows.assigned()
    assert report(task, TOKEN).change is not None
    assert task == rows.assigned()


def test_a_lost_lease_tells_the_worker_what_to_do() -> None:
    answer = leases.start(None, 1, NOW).answer
    assert isinstance(answer, LeaseLost)
    assert "stop working on it and request a new lease" in answer.message
    assert "\n" not in answer.message


# ---------------------------------------------------------------- start and renew


def test_a_started_task_runs_from_that_moment() -> None:
    change = _changed(leases.start(rows.assigned(), TOKEN, LATER))
    assert (change.verb, change.after.state, change.after.started_at) == ("start", "running", LATER)
    assert change.after.attempts == 1


def test_the_first_start_of_all_attempts_is_the_one_remembered() -> None:
    change = _changed(leases.start(rows.assigned(started_at=NOW, attempts=2), TOKEN, LATER))
    assert change.after.started_at == NOW


def test_starting_twice_is_harmless() -> None:
    task = rows.running()
    decision = leases.start(task, TOKEN, LATER)
    assert (decision.change, decision.answer) == (None, task)


@pytest.mark.parametrize("late_ms", [0, 1])
def test_a_task_that_is_started_after_its_deadline_expires_and_frees_its_slot(late_ms: int) -> None:
    task = rows.assigned(deadline_at=LATER - late_ms)
    decision = leases.start(task, TOKEN, LATER)
    assert isinstance(decision.answer, LeaseLost)
    assert decision.answer.details == {"taskId": task.id, "state": "failed"}
    change = decision.change
    assert change is not None
    assert (change.verb, change.error) == ("expire", "deadline exceeded while queued")
    assert (change.after.started_at, change.after.leased) == (None, False)


def test_a_task_that_is_started_before_its_deadline_starts() -> None:
    change = _changed(leases.start(rows.assigned(deadline_at=LATER + 1), TOKEN, LATER))
    assert (change.verb, change.after.state) == ("start", "running")


def test_a_worker_that_only_reports_the_end_has_begun() -> None:
    task = rows.assigned(deadline_at=LATER)  # its work is done, whatever the deadline says
    change = leases.begin_late(task, TOKEN, LATER)
    assert change is not None
    assert (change.verb, change.after.state, change.after.started_at) == ("start", "running", LATER)


@pytest.mark.parametrize("task", [None, rows.running(), rows.assigned(fencing_token=TOKEN + 1)])
def test_what_has_begun_or_is_not_its_own_does_not_begin_late(task: Task | None) -> None:
    assert leases.begin_late(task, TOKEN, LATER) is None


def test_a_task_that_was_cancelled_before_its_start_does_not_start() -> None:
    task = rows.assigned(state="cancelled")
    decision = leases.start(task, TOKEN, LATER)
    assert isinstance(decision.answer, LeaseLost)
    assert decision.change is not None
    assert (decision.change.verb, decision.change.after.leased) == ("close", False)


@pytest.mark.parametrize("task", [rows.assigned(), rows.running(), rows.stopped()])
def test_a_renewed_lease_lasts_longer_and_its_answer_tells_whether_to_go_on(task: Task) -> None:
    change = _changed(leases.renew(task, TOKEN, 5000, LATER))
    assert change.verb == "renew"
    assert change.after.lease_expires_at == LATER + 5000
    assert change.after.state == task.state


def test_a_lease_that_ran_out_can_be_renewed_until_it_is_reclaimed() -> None:
    late = rows.running(lease_expires_at=NOW - 1)
    assert _changed(leases.renew(late, TOKEN, 5000, LATER)).after.lease_expires_at == LATER + 5000


# ---------------------------------------------------------------- complete


@pytest.mark.parametrize("task", [rows.running(), rows.assigned(started_at=NOW)])
def test_a_completed_task_is_done_and_gives_its_slot_back(task: Task) -> None:
    change = _changed(leases.complete(task, TOKEN, '{"a":1}', LATER))
    after = change.after
    assert (change.verb, change.result, change.error) == ("complete", '{"a":1}', None)
    assert (after.state, after.leased, after.completed_at) == ("done", False, LATER)
    assert (after.started_at, after.worker) == (NOW, "w1")


def test_a_task_that_was_never_started_began_when_it_ended() -> None:
    after = _changed(leases.complete(rows.assigned(), TOKEN, None, LATER)).after
    assert (after.started_at, after.completed_at) == (LATER, LATER)


SAME = [(None, None), (None, '"one"'), ('"one"', '"one"'), ('{"a":1,"b":[2]}', '{"b":[2],"a":1}')]


@pytest.mark.parametrize(("result", "kept"), SAME)
def test_completing_again_is_answered_as_before_and_changes_nothing(
    result: str | None, kept: str | None
) -> None:
    done = _changed(leases.complete(rows.running(), TOKEN, kept, LATER)).after
    decision = leases.complete(done, TOKEN, result, LATER + 1, kept=kept)
    assert (decision.change, decision.answer) == (None, done)


OTHER = [
    ('"two"', '"one"'),
    ('"one"', None),
    ("null", None),
    ("1", "true"),
    ("[1,2]", "[2,1]"),
]


@pytest.mark.parametrize(("result", "kept"), OTHER)
def test_completing_again_with_another_result_is_refused(
    result: str | None, kept: str | None
) -> None:
    done = _changed(leases.complete(rows.running(), TOKEN, kept, LATER)).after
    decision = leases.complete(done, TOKEN, result, LATER + 1, kept=kept)
    assert decision.change is None
    assert isinstance(decision.answer, LeaseLost)
    assert "a different result" in decision.answer.message
    assert decision.answer.details == {"taskId": done.id, "state": "done"}


def test_another_workers_completion_is_not_taken_for_a_repetition() -> None:
    done = _changed(leases.complete(rows.running(), TOKEN, None, LATER)).after
    assert isinstance(leases.complete(done, TOKEN - 1, None, LATER).answer, LeaseLost)


# ---------------------------------------------------------------- fail


def test_a_failed_attempt_is_followed_by_a_wait() -> None:
    change = _changed(_fail(rows.running()))
    after = change.after
    assert (change.verb, change.error) == ("back_off", "no luck")
    assert (after.state, after.gate, after.eligible_at) == ("queued", "delay", LATER + 1000)
    assert (after.leased, after.worker, after.attempts) == (False, None, 1)
    assert (after.completed_at, after.started_at, after.queued_at) == (None, NOW, LATER)


def test_the_second_wait_is_longer() -> None:
    assert _changed(_fail(rows.running(attempts=2))).after.eligible_at == LATER + 2000


@pytest.mark.parametrize(("asked_ms", "wait_ms"), [(90_000, 90_000), (10, 1000), (0, 1000)])
def test_a_wait_that_the_other_side_asks_for_is_honoured(asked_ms: int, wait_ms: int) -> None:
    change = _changed(_fail(rows.running(), retry_after_ms=asked_ms))
    assert change.after.eligible_at == LATER + wait_ms


def test_a_task_of_a_kind_that_parks_is_parked_with_its_last_attempt() -> None:
    change = _changed(_fail(rows.running(attempts=3)))
    after = change.after
    assert (change.verb, change.error) == ("park", "no luck")
    assert (after.state, after.leased, after.completed_at) == ("parked", False, None)


def test_a_task_of_another_kind_fails_with_its_last_attempt() -> None:
    change = _changed(_fail(rows.running(kind="action", max_attempts=1)))
    assert (change.verb, change.error) == ("fail", "no luck")
    assert (change.after.state, change.after.completed_at) == ("failed", LATER)


def test_a_permanent_failure_fails_at_once_even_where_others_park() -> None:
    change = _changed(_fail(rows.running(), retryable=False))
    assert (change.verb, change.after.state, change.after.leased) == ("fail", "failed", False)


def test_the_waits_come_from_the_policy_in_force() -> None:
    policy = from_document({"kinds": {"handler": {"backoffMs": 7, "jitter": 0}}})
    assert _changed(_fail(rows.running(), policy=policy)).after.eligible_at == LATER + 7


def test_jitter_follows_the_token() -> None:
    policy = from_document({"kinds": {"handler": {"backoffMs": 10_000, "jitter": 0.5}}})
    moments = {
        _changed(_fail(rows.running(fencing_token=token), token, policy=policy)).after.eligible_at
        for token in (1, 2, 3, 1, 2, 3)
    }
    assert len(moments) == 3
    assert all(LATER + 5000 <= (moment or 0) <= LATER + 15_000 for moment in moments)


def test_a_task_may_wait_as_it_says_itself() -> None:
    own = Backoff(backoff_ms=50, backoff_multiplier=3)
    waits = []
    for attempts in (1, 2):
        change = _changed(_fail(rows.running(attempts=attempts), own=own))
        waits.append((change.after.eligible_at or 0) - LATER)
    assert waits == [50, 150]


@pytest.mark.parametrize(
    ("task", "may"),
    [
        (rows.running(attempts=2, max_attempts=3), True),
        (rows.running(attempts=3, max_attempts=3), False),
        (None, False),
    ],
)
def test_only_while_attempts_are_left_a_failure_can_lead_to_another(
    task: Task | None, *, may: bool
) -> None:
    assert leases.may_retry(task) == may


# ---------------------------------------------------------------- release and reclaim


@pytest.mark.parametrize("task", [rows.assigned(attempts=2), rows.running(attempts=2)])
def test_a_released_task_is_ready_again_and_has_lost_no_attempt(task: Task) -> None:
    change = _changed(leases.release(task, TOKEN, LATER))
    after = change.after
    assert (change.verb, change.error) == ("release", None)
    assert (after.ready, after.attempts, after.leased, after.worker) == (True, 1, False, None)
    assert (after.queued_at, after.fencing_token) == (LATER, TOKEN)


def test_a_task_released_for_the_last_time_is_parked() -> None:
    change = _changed(leases.release(rows.running(attempts=2), TOKEN, LATER, last=True))
    assert (change.verb, change.error) == ("park", leases.RELEASED_TOO_OFTEN)
    assert (change.after.state, change.after.leased) == ("parked", False)


def test_a_run_of_a_job_is_not_parked_however_often_it_is_released() -> None:
    change = _changed(leases.release(rows.running(id=f"{RUN_PREFIX}1"), TOKEN, LATER, last=True))
    assert (change.verb, change.after.ready) == ("release", True)


def test_a_run_whose_worker_died_counts_as_a_failed_attempt() -> None:
    change = leases.reclaim(rows.running(), POLICY, None, LATER)
    assert (change.verb, change.error) == ("back_off", leases.WORKER_GONE)
    assert (change.after.gate, change.after.attempts) == ("delay", 1)


def test_a_run_whose_worker_is_known_to_be_gone_need_not_wait() -> None:
    change = leases.reclaim(rows.running(), POLICY, Backoff(backoff_ms=5000), LATER, gone=True)
    assert (change.verb, change.error) == ("back_off", leases.CONNECTION_GONE)
    assert (change.after.eligible_at, change.after.attempts) == (LATER, 1)
    last = leases.reclaim(rows.running(attempts=3), POLICY, None, LATER, gone=True)
    assert (last.verb, last.after.state, last.error) == ("park", "parked", leases.CONNECTION_GONE)


def test_a_run_whose_worker_died_waits_as_the_task_says() -> None:
    change = leases.reclaim(rows.running(), POLICY, Backoff(backoff_ms=5), LATER)
    assert change.after.eligible_at == LATER + 5


def test_a_run_that_may_not_be_repeated_fails_when_its_worker_died() -> None:
    change = leases.reclaim(rows.running(kind="action", max_attempts=1), POLICY, None, LATER)
    assert (change.verb, change.after.state) == ("fail", "failed")


def test_a_worker_that_dies_every_time_parks_the_task() -> None:
    change = leases.reclaim(rows.running(attempts=3), POLICY, None, LATER)
    assert (change.verb, change.after.state, change.after.leased) == ("park", "parked", False)


def test_what_a_node_was_only_assigned_is_queued_again_with_its_attempt() -> None:
    task = rows.assigned(kind="action", max_attempts=1, worker="node_1")
    change = leases.reclaim(task, POLICY, None, LATER)
    assert (change.verb, change.after.ready, change.after.attempts) == ("release", True, 0)
    assert (change.error, change.after.leased, change.after.worker) == (None, False, None)


def test_what_an_external_worker_was_assigned_may_have_begun_and_counts() -> None:
    change = leases.reclaim(rows.assigned(worker="w1"), POLICY, None, LATER)
    assert (change.verb, change.error) == ("back_off", leases.WORKER_GONE)
    assert (change.after.gate, change.after.attempts) == ("delay", 1)
    spent = leases.reclaim(rows.assigned(worker="w1", attempts=3), POLICY, None, LATER)
    assert (spent.verb, spent.after.state) == ("park", "parked")


def test_the_slot_of_a_cancelled_run_is_free_when_its_lease_is_reclaimed() -> None:
    change = leases.reclaim(rows.stopped(), POLICY, None, LATER)
    assert (change.verb, change.after.state, change.after.leased) == ("close", "cancelled", False)


# ---------------------------------------------------------------- cancel and expire


@pytest.mark.parametrize(
    "task",
    [
        rows.queued(),
        rows.queued(gate="delay", eligible_at=LATER),
        rows.queued(gate="session", session="s"),
        rows.queued(gate="batch", batch="bat_1"),
        rows.waiting(eligible_at=LATER),
        rows.queued(state="parked"),
    ],
)
def test_a_task_that_holds_no_lease_is_cancelled_and_gone(task: Task) -> None:
    change = _changed(leases.cancel(task, task.id, LATER))
    after = change.after
    assert (change.verb, after.state, after.completed_at) == ("cancel", "cancelled", LATER)
    assert (after.gate, after.eligible_at, after.leased, after.started_at) == (
        None,
        None,
        False,
        None,
    )


@pytest.mark.parametrize("task", [rows.assigned(), rows.running()])
def test_a_cancelled_run_keeps_its_slot_until_it_has_ended(task: Task) -> None:
    after = _changed(leases.cancel(task, task.id, LATER)).after
    assert (after.state, after.terminal, after.leased, after.fencing_token) == (
        "cancelled",
        True,
        True,
        TOKEN,
    )
    assert after.lease_expires_at == task.lease_expires_at


@pytest.mark.parametrize("name", ["complete", "fail", "release"])
@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_the_report_of_a_stopped_run_only_gives_the_slot_back(name: str, state: str) -> None:
    change = _changed(REPORTS[name](rows.stopped(state=state), TOKEN))
    after = change.after
    assert (change.verb, change.result, change.error) == ("close", None, None)
    assert (after.state, after.leased, after.completed_at) == (state, False, NOW)


def test_cancelling_what_does_not_exist_is_not_found() -> None:
    decision = leases.cancel(None, "tsk_9", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, NotFound)
    assert decision.answer.message == 'task "tsk_9" not found'


@pytest.mark.parametrize("state", ["done", "failed", "cancelled", "rejected"])
def test_cancelling_what_has_ended_is_a_conflict(state: str) -> None:
    decision = leases.cancel(rows.queued(state=state), "tsk_1", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, Conflict)
    assert decision.answer.message == f'task "tsk_1" has already ended: it is "{state}"'
    assert decision.answer.details == {"state": state}


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (rows.queued(), "deadline exceeded while queued"),
        (rows.queued(gate="session"), "deadline exceeded while queued"),
        (rows.waiting(), "deadline exceeded while queued"),
        (rows.queued(gate="delay", eligible_at=LATER), "deadline exceeded while queued"),
        (rows.assigned(), "deadline exceeded while queued"),  # leased, but it never ran
        (rows.running(), "deadline exceeded while running"),
    ],
)
def test_a_passed_deadline_fails_a_task_and_says_how_far_it_got(task: Task, error: str) -> None:
    change = leases.expire(task, LATER)
    after = change.after
    assert (change.verb, change.error) == ("expire", error)
    assert (after.state, after.completed_at, after.gate, after.eligible_at) == (
        "failed",
        LATER,
        None,
        None,
    )
    assert after.leased == task.leased


# ---------------------------------------------------------------- making room


@pytest.mark.parametrize("task", [rows.assigned(preempt=0), rows.running(preempt=0)])
def test_a_run_that_is_asked_to_make_room_goes_on_until_its_worker_gives_it_back(
    task: Task,
) -> None:
    change = leases.preempt(task)
    after = change.after
    assert (change.before, change.verb, after.preempt) == (task, "preempt", 1)
    assert (after.state, after.fencing_token, after.lease_expires_at) == (
        task.state,
        task.fencing_token,
        task.lease_expires_at,
    )
    assert task.preempt == 0


@pytest.mark.parametrize("how", ["release", "retry", "reclaim"])
@pytest.mark.parametrize(("was", "becomes"), [(1, 0), (0, 0), (None, None)])
def test_back_in_the_queue_a_task_may_be_asked_again(
    how: str, was: int | None, becomes: int | None
) -> None:
    task = rows.running(preempt=was)
    change = {
        "release": lambda: _changed(leases.release(task, TOKEN, LATER)),
        "retry": lambda: _changed(_fail(task)),
        "reclaim": lambda: leases.reclaim(task, POLICY, None, LATER),
    }[how]()
    assert (change.after.state, change.after.preempt) == ("queued", becomes)


# ---------------------------------------------------------------- begin again

SPENT = {
    "attempts": 3,
    "fencing_token": TOKEN,
    "worker": "w1",
    "started_at": NOW,
    "completed_at": NOW,
}


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_revived_task_has_everything_before_it_again(state: str) -> None:
    task = rows.queued(state=state, **SPENT)
    change = _changed(leases.retry(task, task.id, LATER))
    after = change.after
    assert (change.before, change.verb, change.error) == (task, "retry", None)
    assert (after.ready, after.attempts, after.max_attempts, after.queued_at) == (True, 0, 3, LATER)
    assert (after.started_at, after.completed_at, after.worker) == (None, None, None)
    assert (after.created_at, after.fencing_token, after.deadline_at) == (NOW, TOKEN, None)
    assert (task.state, task.attempts) == (state, 3)


def test_a_parked_task_is_reset_with_its_whole_budget() -> None:
    task = rows.queued(state="parked", attempts=3, fencing_token=TOKEN, started_at=NOW)
    change = _changed(leases.reset(task, task.id, LATER))
    assert (change.verb, change.after.ready, change.after.attempts) == ("reset", True, 0)
    assert (change.after.started_at, change.after.queued_at) == (None, LATER)


AGAIN = {"retry": (leases.retry, "failed"), "reset": (leases.reset, "parked")}
again = pytest.mark.parametrize(("begin", "state"), AGAIN.values(), ids=AGAIN.keys())


@again
def test_a_deadline_moves_on_by_the_span_that_it_had(begin: Any, state: str) -> None:
    task = rows.queued(state=state, deadline_at=NOW + 60_000)
    assert begin(task, task.id, LATER).answer.deadline_at == LATER + 60_000


@again
def test_and_however_often_it_begins_again_the_span_is_the_same(begin: Any, state: str) -> None:
    began_at = NOW + 1_000_000
    task = rows.queued(state=state, deadline_at=began_at + 60_000)
    answer = begin(task, task.id, began_at + 2_000_000, began_at).answer
    assert answer.deadline_at == began_at + 2_000_000 + 60_000


@again
@pytest.mark.parametrize(("was", "becomes"), [(1, 0), (0, 0), (None, None)])
def test_what_was_asked_to_make_room_is_not_asked_any_more(
    begin: Any, state: str, was: int | None, becomes: int | None
) -> None:
    task = rows.queued(state=state, preempt=was)
    assert begin(task, task.id, LATER).answer.preempt == becomes


@again
def test_what_does_not_exist_cannot_begin_again(begin: Any, state: str) -> None:
    decision = begin(None, "tsk_9", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, NotFound)
    assert decision.answer.message == 'task "tsk_9" not found'


@pytest.mark.parametrize(
    ("state", "words"),
    [("done", "done"), ("rejected", "rejected"), ("parked", "parked"), ("queued", "queued")],
)
def test_only_what_has_failed_or_was_cancelled_is_revived(state: str, words: str) -> None:
    decision = leases.retry(rows.queued(state=state), "tsk_1", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, Conflict)
    assert decision.answer.message == (
        f'task "tsk_1" is {words}: only failed or cancelled tasks can be retried'
        + ("; use reset for a parked task" if state == "parked" else "")
    )
    assert decision.answer.details == {"state": state}


def test_a_run_that_has_not_stopped_yet_is_not_revived() -> None:
    decision = leases.retry(rows.stopped(), "tsk_1", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, Conflict)
    assert "has not stopped yet; try again in a moment" in decision.answer.message


@pytest.mark.parametrize("state", ["failed", "cancelled", "done", "queued", "waiting_dependency"])
def test_only_a_parked_task_is_reset(state: str) -> None:
    decision = leases.reset(rows.queued(state=state), "tsk_1", LATER)
    assert decision.change is None
    assert isinstance(decision.answer, Conflict)
    hint = f"; use retry for a {state} task" if state in ("failed", "cancelled") else ""
    said = f'task "tsk_1" is {state}: only a parked task can be reset{hint}'
    assert decision.answer.message == said
    assert decision.answer.details == {"state": state}


def test_a_run_of_cron_fails_where_other_tasks_park() -> None:
    spent = {"attempts": 3, "max_attempts": 3}
    for task_id, state in (("tsk_1", "parked"), ("cron_1", "failed")):
        decision = _fail(rows.running(id=task_id, **spent))
        assert decision.change is not None
        assert decision.change.after.state == state


def test_a_task_is_parked_with_a_reason_whatever_attempts_are_left() -> None:
    change = leases.park(rows.running(attempts=1), "not now", LATER)
    assert (change.after.state, change.error, change.verb) == ("parked", "not now", "park")
    assert change.after.lease_expires_at is None


def test_a_report_under_an_ended_lease_gets_an_error() -> None:
    task = rows.running()
    assert leases.lost(task, task.fencing_token) is None
    assert isinstance(leases.lost(task, task.fencing_token + 1), LeaseLost)
    assert isinstance(leases.lost(None, 1), LeaseLost)


# ---------------------------------------------------------------- a budget that is spent


def test_a_task_that_waits_in_vain_fails_or_parks() -> None:
    waiting = rows.queued(gate="resource")
    failed = leases.give_up(waiting, "fail", "spent", LATER)
    assert (failed.after.state, failed.after.gate, failed.error) == ("failed", None, "spent")
    assert failed.after.completed_at == LATER
    parked = leases.give_up(waiting, "park", "spent", LATER)
    assert (parked.after.state, parked.after.completed_at) == ("parked", None)
    run = leases.give_up(rows.queued(id=f"{RUN_PREFIX}1"), "park", "spent", LATER)
    assert run.after.state == "failed"


def test_a_run_with_an_unknown_effect_parks_and_a_cron_run_fails() -> None:
    change = leases.give_up_run(rows.running(), "unknown", LATER)
    assert (change.after.state, change.error) == ("parked", "unknown")
    assert not change.after.leased
    cron = leases.give_up_run(rows.running(id=f"{RUN_PREFIX}1"), "unknown", LATER)
    assert cron.after.state == "failed"
