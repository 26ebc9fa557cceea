"""Gates: who has a session's turn, who waits for it, and how a gate opens."""

from __future__ import annotations

import pytest

from fairlane.core import gates
from fairlane.core.gates import Session
from fairlane.core.model import Change, Task
from tests.unit.core import rows
from tests.unit.core.rows import NOW

WAITING = rows.queued(gate="session", session="s")
READY = rows.queued(session="s")


def test_a_task_without_a_session_has_no_gate() -> None:
    assert gates.entry_gate(None) is None


def test_the_first_of_a_session_goes_at_once() -> None:
    assert gates.entry_gate(Session("s")) is None


def test_the_next_one_waits_for_its_turn() -> None:
    assert gates.entry_gate(Session("s", holders=1)) == "session"


def test_nobody_enters_past_those_who_wait() -> None:
    assert gates.entry_gate(Session("s", holders=0, waiting=1)) == "session"


def test_a_session_may_have_several_turns() -> None:
    assert gates.entry_gate(Session("s", holders=2, max_concurrent=3)) is None
    assert gates.entry_gate(Session("s", holders=3, max_concurrent=3)) == "session"


@pytest.mark.parametrize(("holders", "free"), [(0, 2), (1, 1), (2, 0), (5, 0)])
def test_free_turns_are_never_negative(holders: int, free: int) -> None:
    assert Session("s", holders=holders, max_concurrent=2).free == free


@pytest.mark.parametrize(
    ("session", "empty"),
    [
        (Session("s"), True),
        (Session("s", holders=1), False),
        (Session("s", waiting=1), False),
    ],
)
def test_a_session_is_empty_when_nobody_runs_and_nobody_waits(
    session: Session, *, empty: bool
) -> None:
    assert session.empty == empty


@pytest.mark.parametrize(
    ("task", "holders", "waiting"),
    [
        (READY, 1, 0),
        (WAITING, 0, 1),
        (rows.queued(session="s", gate="delay"), 1, 0),  # a retry keeps the turn
        (rows.assigned(session="s"), 1, 0),
        (rows.running(session="s"), 1, 0),
        (rows.stopped(session="s"), 1, 0),  # cancelled, but its run has not ended
        (rows.stopped(session="s", lease_expires_at=None), 0, 0),
        (rows.queued(session="s", state="parked"), 0, 0),
        (rows.queued(session="s", state="done"), 0, 0),
    ],
)
def test_each_row_has_the_turn_or_waits_or_neither(task: Task, holders: int, waiting: int) -> None:
    session = Session("s")
    gates.apply(session, Change(None, task, "submit"))
    assert (session.holders, session.waiting) == (holders, waiting)


def test_a_change_moves_a_task_from_waiting_to_having_the_turn() -> None:
    session = Session("s", holders=0, waiting=1)
    gates.apply(session, gates.promote(WAITING, NOW))
    assert (session.holders, session.waiting) == (1, 0)


def test_giving_the_turn_back_is_the_reverse() -> None:
    session = Session("s", holders=1, waiting=0)
    gates.apply(session, gates.hold(READY))
    assert (session.holders, session.waiting) == (0, 1)


@pytest.mark.parametrize(
    "task", [WAITING, rows.queued(gate="delay", eligible_at=NOW - 1)], ids=["session", "delay"]
)
def test_a_promoted_task_is_ready_and_its_wait_counts_from_now(task: Task) -> None:
    change = gates.promote(task, NOW + 50)
    assert (change.before, change.verb) == (task, "promote")
    assert change.after.ready
    assert (change.after.eligible_at, change.after.queued_at) == (None, NOW + 50)
    assert task.gate is not None


def test_a_held_task_is_not_ready() -> None:
    change = gates.hold(READY)
    assert (change.verb, change.after.gate, change.after.ready) == ("hold", "session", False)
    assert READY.ready
