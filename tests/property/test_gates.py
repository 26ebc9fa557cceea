"""Sessions: the turn is counted exactly, never given twice, and never lost."""

from __future__ import annotations

from hypothesis import given

from fairlane.core import gates
from fairlane.core.model import Change
from fairlane.core.sessions import Session
from tests.property.histories import BOUNDED, History, Step, histories, step_lists


@BOUNDED
@given(step_lists)
def test_a_sessions_counters_equal_a_recount(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for session in history.sessions.values():
            own = [task for task in history.tasks.values() if task.session == session.key]
            queued = [task for task in own if task.state == "queued"]
            waiting = [task for task in queued if task.gate == "session"]
            delayed = [task for task in queued if task.gate == "delay" and not task.fencing_token]
            leased = [task for task in own if task.leased]
            assert session.waiting == len(waiting)
            assert session.holders == len(leased) + len(queued) - len(waiting) - len(delayed)
            others = [task for task in own if task.state in ("waiting_dependency", "parked")]
            assert session.later == len(delayed) + len(others)
            assert session.empty == all(task.terminal and not task.leased for task in own)


@BOUNDED
@given(step_lists)
def test_a_session_never_runs_more_at_once_than_it_may(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for session in history.sessions.values():
            leased = [task for task in history.leased() if task.session == session.key]
            assert len(leased) <= session.holders <= session.limit


@BOUNDED
@given(step_lists)
def test_no_task_waits_for_a_free_turn(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        assert not any(session.free and session.waiting for session in history.sessions.values())


@BOUNDED
@given(histories)
def test_a_task_keeps_its_turn_through_retries_and_releases(history: History) -> None:
    for change in history.changes:
        if change.verb in {"back_off", "release"}:
            session = Session("of its own")
            gates.apply(session, Change(None, change.before or change.after, "submit"))
            gates.apply(session, change)
            assert (session.holders, session.waiting) == (1, 0)


@BOUNDED
@given(histories)
def test_a_task_gets_the_turn_once_in_each_of_its_lives(history: History) -> None:
    """It may be asked to give it back, and then waits for it again."""
    turns = dict.fromkeys(history.tasks, 0)
    for change in history.changes:
        seq = change.after.seq
        if change.after.session:
            before = change.before is not None and gates.holds_turn(change.before)
            turns[seq] += gates.holds_turn(change.after) - before
            assert turns[seq] in {0, 1}
            lost = before and not gates.holds_turn(change.after)
            assert not lost or change.after.terminal or change.verb in {"hold", "park"}
