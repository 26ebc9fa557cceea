"""Whatever verbs come in whatever order: the table is kept, and an end is an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core import lifecycle
from fairlane.core.lifecycle import IllegalMove
from tests.property.histories import BOUNDED, History, histories

VERBS = sorted({verb for moves in lifecycle.MOVES.values() for verb in moves})
verb_lists = st.lists(st.sampled_from([*VERBS, "promote", "renew", "close", "nonsense"]))

# Verbs that keep the state are not moves; they must then really keep it.
KEEPING = {
    lifecycle.PROMOTE,
    lifecycle.HOLD,
    lifecycle.MEET,
    lifecycle.RENEW,
    lifecycle.PREEMPT,
    lifecycle.CLOSE,
}
REVIVABLE = {lifecycle.FAILED, lifecycle.CANCELLED}


@BOUNDED
@given(verb_lists)
def test_a_life_follows_the_table_and_ends_once_unless_it_is_revived(verbs: list[str]) -> None:
    state = lifecycle.NEW
    lived = [state]
    revivals = 0
    for verb in verbs:
        try:
            state = lifecycle.step(state, verb)
        except IllegalMove:
            continue
        if lived[-1] in lifecycle.TERMINAL:
            assert (lived[-1] in REVIVABLE, verb, state) == (True, "retry", "queued")
            revivals += 1
        lived.append(state)
    assert all(target in lifecycle.STATES for target in lived[1:])
    assert sum(one in lifecycle.TERMINAL for one in lived[:-1]) == revivals
    assert lived.count(lifecycle.NEW) == 1


@BOUNDED
@given(st.sampled_from(sorted(lifecycle.TERMINAL)), st.text() | st.sampled_from(VERBS))
def test_no_word_but_one_leaves_a_terminal_state(state: str, verb: str) -> None:
    if (state in REVIVABLE, verb) == (True, lifecycle.RETRY):
        assert lifecycle.step(state, verb) == lifecycle.QUEUED
        return
    with pytest.raises(IllegalMove):
        lifecycle.step(state, verb)


@BOUNDED
@given(st.text())
def test_a_callers_word_is_a_state_or_nothing(word: str) -> None:
    assert lifecycle.state_from(word) in {None, *lifecycle.STATES}


@BOUNDED
@given(histories)
def test_everything_the_core_decides_is_a_move_of_the_table(history: History) -> None:
    for change in history.changes:
        before = change.before.state if change.before else lifecycle.NEW
        if change.verb in KEEPING:
            assert change.after.state == before
        elif change.verb == lifecycle.LEASE and change.after.state == lifecycle.RUNNING:
            assigned = lifecycle.step(before, lifecycle.LEASE)
            assert change.after.state == lifecycle.step(assigned, lifecycle.START)
        elif change.verb in {lifecycle.SUBMIT, lifecycle.RETRY} and change.after.unmet:
            queued = lifecycle.step(before, change.verb)
            assert change.after.state == lifecycle.step(queued, lifecycle.BLOCK)
        else:
            assert change.after.state == lifecycle.step(before, change.verb)


@BOUNDED
@given(histories)
def test_a_task_ends_once_and_nothing_about_its_end_changes_until_it_is_revived(
    history: History,
) -> None:
    ends: dict[int, tuple[str, int | None]] = {}
    for change in history.changes:
        after = change.after
        if change.verb == lifecycle.RETRY:
            assert ends.pop(after.seq)[0] in REVIVABLE
            assert (after.terminal, after.completed_at) == (False, None)
        elif after.seq in ends:
            assert (after.state, after.completed_at) == ends[after.seq]
            assert (change.result, change.error) == (None, None)
            assert change.verb in {lifecycle.CLOSE, lifecycle.RENEW}
        elif after.terminal:
            assert after.completed_at is not None
            ends[after.seq] = (after.state, after.completed_at)
        else:
            assert after.completed_at is None
