"""Fencing: only the holder of the newest lease changes a task; an end frees its slot once."""

from __future__ import annotations

import copy
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core import leases, lifecycle
from fairlane.core.errors import Conflict, LeaseLost
from fairlane.core.leases import LeaseDecision
from fairlane.core.model import Task
from tests.property.histories import BOUNDED, POLICY, History, histories

NOW = 1_800_000_000_000

Report = Callable[[Task, int], LeaseDecision]

REPORTS: dict[str, Report] = {
    "start": lambda task, token: leases.start(task, token, NOW),
    "renew": lambda task, token: leases.renew(task, token, 1000, NOW),
    "complete": lambda task, token: leases.complete(task, token, "1", NOW, kept="1"),
    "fail": lambda task, token: leases.fail(
        task, token, "no", retryable=True, retry_after_ms=None, policy=POLICY, own=None, now=NOW
    ),
    "release": lambda task, token: leases.release(task, token, NOW),
}
report_names = st.sampled_from(sorted(REPORTS))


@BOUNDED
@given(histories, report_names, st.integers(0, 200))
def test_a_report_with_another_token_changes_nothing(
    history: History, name: str, token: int
) -> None:
    for task in history.tasks.values():
        as_it_was = copy.copy(task)
        if token != task.fencing_token:
            decision = REPORTS[name](task, token)
            assert decision.change is None
            assert isinstance(decision.answer, LeaseLost)
        assert task == as_it_was


@BOUNDED
@given(histories, report_names)
def test_a_report_after_the_lease_was_closed_changes_nothing(history: History, name: str) -> None:
    for task in history.tasks.values():
        if task.leased:
            continue
        decision = REPORTS[name](task, task.fencing_token)
        assert decision.change is None
        if name == "complete" and task.state == lifecycle.DONE:
            assert decision.answer is task
        else:
            assert isinstance(decision.answer, LeaseLost)


@BOUNDED
@given(histories, report_names)
def test_the_holder_of_the_lease_is_heard(history: History, name: str) -> None:
    for task in history.leased():
        decision = REPORTS[name](task, task.fencing_token)
        late = task.deadline_at is not None and task.deadline_at <= NOW
        if name == "start" and (task.terminal or (late and task.state == lifecycle.ASSIGNED)):
            assert isinstance(decision.answer, LeaseLost)
            assert decision.change is not None
            assert not decision.change.after.leased
        elif decision.change is None:
            assert (name, decision.answer) == ("start", task)
        else:
            assert decision.answer is decision.change.after


@BOUNDED
@given(histories, st.sampled_from(["complete", "fail", "release"]))
def test_a_report_that_comes_twice_is_heard_once(history: History, name: str) -> None:
    for task in history.leased():
        once = REPORTS[name](task, task.fencing_token)
        assert once.change is not None
        twice = REPORTS[name](once.change.after, task.fencing_token)
        assert twice.change is None
        if once.change.verb == lifecycle.COMPLETE:
            assert twice.answer == once.answer


@BOUNDED
@given(histories)
def test_a_task_that_was_stopped_keeps_its_slot_until_its_worker_reports(history: History) -> None:
    for task in history.leased():
        if task.terminal:
            stopped = task
        else:
            change = leases.cancel(task, task.id, NOW).change
            assert change is not None
            stopped = change.after
        assert stopped.leased
        assert stopped.fencing_token == task.fencing_token
        for name in ("complete", "fail", "release"):
            closed = REPORTS[name](stopped, task.fencing_token).change
            assert closed is not None
            assert (closed.verb, closed.after.leased) == ("close", False)
            assert closed.after.state == stopped.state


@BOUNDED
@given(histories)
def test_every_lease_has_a_token_of_its_own_and_they_only_grow(history: History) -> None:
    granted = [change.after.fencing_token for change in history.changes if change.verb == "lease"]
    assert granted == sorted(set(granted))
    for change in history.changes:
        if change.before is not None and change.verb != "lease":
            assert change.after.fencing_token == change.before.fencing_token


@BOUNDED
@given(histories)
def test_what_is_in_flight_has_a_lease_and_what_waits_has_none(history: History) -> None:
    for task in history.tasks.values():
        if task.state in lifecycle.IN_FLIGHT:
            assert task.leased
            assert task.worker == "w"
            assert task.gate is None
        elif task.state in {"queued", "parked", "done", "rejected"}:
            assert not task.leased
        if task.state != "waiting_dependency":  # its moment is kept until it is unblocked
            assert (task.gate == "delay") == (task.eligible_at is not None)


@BOUNDED
@given(histories)
def test_attempts_are_leases_minus_those_released_and_never_too_many(history: History) -> None:
    attempts = dict.fromkeys(history.tasks, 0)
    for change in history.changes:
        seq = change.after.seq
        if change.verb == "lease":
            attempts[seq] += 1
        elif change.verb == "release":
            attempts[seq] -= 1
        elif change.verb in {"reset", "retry"}:
            attempts[seq] = 0
        assert change.after.attempts == attempts[seq]
        assert 0 <= attempts[seq] <= change.after.max_attempts


@BOUNDED
@given(histories)
def test_a_retry_waits_at_least_half_the_backoff_and_stands_behind_a_gate(
    history: History,
) -> None:
    for change in history.changes:
        if change.verb == "back_off":
            after = change.after
            assert after.gate == "delay"
            assert after.eligible_at is not None
            assert after.eligible_at >= after.queued_at + 500


@BOUNDED
@given(histories)
def test_a_cancel_is_a_change_exactly_when_the_task_has_not_ended(history: History) -> None:
    for task in history.tasks.values():
        decision = leases.cancel(task, task.id, NOW)
        assert (decision.change is None) == task.terminal
        assert isinstance(decision.answer, Conflict) == task.terminal
