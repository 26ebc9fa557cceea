"""Sessions: precedence of settings, and limits on turns, waiting messages and waits."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import gates, policy, sessions
from fairlane.core.errors import InvalidPolicy
from fairlane.core.model import Change, Task
from fairlane.core.policy import LanePolicy, Policy, ReservedPolicy, SessionPolicy
from fairlane.core.sessions import Session, SessionSettings
from tests.unit.core import rows
from tests.unit.core.rows import NOW

DEFAULTS = SessionPolicy()


def _session(settings: SessionSettings | None = None, **given: Any) -> Session:
    session = Session("s", **given)
    session.settings = sessions.changed(session, settings) if settings else None
    return session


# ---------------------------------------------------------------- whose word counts


def test_the_documented_defaults_hold_where_nobody_says_anything() -> None:
    assert sessions.resolved(DEFAULTS, Session("s")) == DEFAULTS
    assert (DEFAULTS.mode, DEFAULTS.cap, DEFAULTS.drop) == ("queue", 10, "old")
    assert (DEFAULTS.debounce_ms, DEFAULTS.max_concurrent, DEFAULTS.throttle_at) == (800, 1, 0.6)


def test_a_message_overrides_its_session_and_the_session_the_policy() -> None:
    session = _session(SessionSettings(mode="collect", cap=3))
    own = SessionSettings(cap=0, drop="new")
    found = sessions.resolved(DEFAULTS, session, own)
    assert (found.mode, found.cap, found.drop) == ("collect", 0, "new")
    assert found.debounce_ms == DEFAULTS.debounce_ms


def test_settings_are_laid_over_each_other_and_zero_is_something_said() -> None:
    session = _session(SessionSettings(cap=3, debounce_ms=5))
    session.settings = sessions.changed(session, SessionSettings(debounce_ms=0, mode="followup"))
    assert session.own == SessionSettings(mode="followup", cap=3, debounce_ms=0)


def test_settings_that_say_nothing_leave_no_text() -> None:
    assert sessions.changed(Session("s"), SessionSettings()) is None
    assert Session("s").own == SessionSettings()


@pytest.mark.parametrize("settings", ["{", "[]", '{"cap":"x"}'])
def test_damaged_settings_leave_it_to_the_policy(settings: str) -> None:
    assert sessions.resolved(DEFAULTS, Session("s", settings=settings)) == DEFAULTS


# ---------------------------------------------------------------- how many may have the turn


@pytest.mark.parametrize(
    ("tokens", "window", "throttled"),
    [
        (None, None, False),
        (0, 100, False),
        (59, 100, False),
        (60, 100, True),
        (120, 200, True),
        (599_999, 1_000_000, False),
        (2**52, 2**52, True),
        (500, 0, False),  # an empty window has no effect
        (500, None, False),
    ],
)
def test_a_conversation_is_throttled_from_60_percent_on(
    tokens: int | None, window: int | None, *, throttled: bool
) -> None:
    session = _session(SessionSettings(max_concurrent=3), tokens=tokens, context_window=window)
    assert sessions.throttled(DEFAULTS, session) == throttled
    assert sessions.limit(DEFAULTS, session) == (1 if throttled else 3)


def test_the_share_at_which_it_is_throttled_is_policy() -> None:
    session = Session("s", tokens=7, context_window=100)
    assert sessions.throttled(SessionPolicy(throttle_at=0.07), session)
    assert not sessions.throttled(SessionPolicy(throttle_at=0.08), session)


def test_the_limit_is_the_sessions_own_or_the_policys() -> None:
    several = SessionPolicy(max_concurrent=4)
    assert sessions.limit(several, Session("s")) == 4
    assert sessions.limit(several, _session(SessionSettings(cap=1))) == 4
    assert sessions.limit(several, _session(SessionSettings(max_concurrent=2))) == 2


def test_the_session_of_a_cron_job_gives_the_turn_to_one_at_a_time() -> None:
    assert sessions.limit(SessionPolicy(max_concurrent=4), Session("cron:job_1")) == 1


# ---------------------------------------------------------------- how many may wait


@pytest.mark.parametrize(
    ("cap", "drop", "counts", "excess"),
    [
        (10, "old", {"holders": 1, "waiting": 9}, 0),
        (10, "old", {"holders": 1, "waiting": 10}, 1),
        (10, "new", {"holders": 1, "waiting": 9}, 0),
        (10, "new", {"holders": 1, "waiting": 10}, 1),
        (2, "old", {"holders": 1, "waiting": 5}, 4),  # the cap was lowered
        (2, "old", {"holders": 1, "waiting": 1, "debouncing": 1}, 1),
        (2, "old", {"debouncing": 2}, 0),  # one of them has the turn as soon as it wants it
        (2, "old", {"debouncing": 3}, 1),
        (0, "old", {"holders": 1}, 0),  # the newest always has a place
        (0, "old", {"holders": 1, "waiting": 1}, 1),
        (0, "new", {"holders": 1}, 1),
        (0, "new", {}, 0),  # no task has to wait
        (0, "new", {"debouncing": 1}, 1),
    ],
)
def test_running_ones_do_not_count_and_those_that_will_run_at_once_neither(
    cap: int, drop: str, counts: dict[str, Any], excess: int
) -> None:
    settings = SessionPolicy(cap=cap, drop=drop)
    assert max(0, sessions.excess(settings, Session("s", **counts))) == excess


# ---------------------------------------------------------------- for how long


def test_each_message_restarts_the_window_up_to_a_limit() -> None:
    settings = SessionPolicy(debounce_ms=800, debounce_max_ms=2000)
    assert sessions.window_ends(settings, NOW, NOW) == NOW + 800
    assert sessions.window_ends(settings, NOW, NOW + 700) == NOW + 1500
    assert sessions.window_ends(settings, NOW, NOW + 1900) == NOW + 2000
    assert sessions.window_ends(settings, NOW, NOW + 9000) == NOW + 2000


def test_a_limit_below_the_window_counts() -> None:
    settings = SessionPolicy(debounce_ms=800, debounce_max_ms=100)
    assert sessions.window_ends(settings, NOW, NOW) == NOW + 100


# ---------------------------------------------------------------- when it may be forgotten


@pytest.mark.parametrize(
    "mark",
    [
        {"debouncing": 1},
        {"settings": '{"cap":1}'},
        {"tokens": 0},
        {"cutoff_at": NOW},
        {"generation": 1},
    ],
)
def test_what_a_session_knows_keeps_it(mark: dict[str, Any]) -> None:
    session = Session("s", **mark)
    assert not session.empty
    assert session.idle == ("debouncing" not in mark)


def test_a_session_that_knows_nothing_is_idle_and_empty() -> None:
    session = Session("s", touched_at=NOW, limit=7)
    assert (session.idle, session.empty) == (True, True)


# ---------------------------------------------------------------- the gate of its messages


GROWING = rows.queued(session="s", gate="debounce", eligible_at=NOW + 800)


def test_a_message_that_may_still_grow_neither_has_the_turn_nor_waits_for_it() -> None:
    session = Session("s")
    gates.apply(session, Change(None, GROWING, "submit"))
    assert (session.holders, session.waiting, session.debouncing) == (0, 0, 1)
    assert not gates.holds_turn(GROWING)
    gates.apply(session, gates.promote(GROWING, NOW + 800))
    assert (session.holders, session.waiting, session.debouncing) == (1, 0, 0)


@pytest.mark.parametrize(
    ("after", "counts"),
    [
        (rows.queued(session="s", gate="session"), (0, 1, 0)),
        (rows.queued(session="s", state="cancelled"), (0, 0, 0)),
        (rows.queued(session="s", gate="debounce", eligible_at=NOW + 1600), (0, 0, 1)),
    ],
)
def test_its_window_ends_in_the_line_in_the_end_or_later(
    after: Task, counts: tuple[int, int, int]
) -> None:
    session = Session("s", debouncing=1)
    gates.apply(session, Change(GROWING, after, "promote"))
    assert (session.holders, session.waiting, session.debouncing) == counts


def test_a_limit_that_was_lowered_lets_nobody_in_and_takes_no_turn() -> None:
    session = Session("s", holders=3, waiting=1, limit=1)
    assert session.free == 0
    assert gates.next_gate(rows.queued(session="s"), session, None, NOW) == "session"
    assert gates.next_gate(rows.queued(session="s"), session, None, NOW, has_turn=True) is None


# ---------------------------------------------------------------- its policy, and reserved slots


def _problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidPolicy) as caught:
        policy.from_document(document)
    return caught.value.problems


def test_sessions_are_part_of_the_policy() -> None:
    document = {"mode": "collect", "cap": 0, "debounceMs": 0, "debounceMaxMs": 9, "throttleAt": 1}
    merged = policy.from_document({"sessions": document}).sessions
    expected = SessionPolicy(
        mode="collect", cap=0, debounce_ms=0, debounce_max_ms=9, throttle_at=1.0
    )
    assert merged == expected
    again = policy.merge(Policy(sessions=merged), {"sessions": {"drop": "new", "maxConcurrent": 3}})
    assert (again.sessions.mode, again.sessions.drop) == ("collect", "new")
    assert again.sessions.max_concurrent == 3


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("mode", "steering", "one of queue, followup, interrupt, collect, steer, reject, rollback"),
        ("drop", "oldest", "one of old, new"),
        ("cap", -1, "from 0 to 10000"),
        ("cap", True, "from 0 to 10000"),
        ("debounceMs", 60_001, "from 0 to 60000"),
        ("debounceMaxMs", 600_001, "from 0 to 600000"),
        ("maxConcurrent", 0, "from 1 to 1000"),
        ("throttleAt", 0, "from 0.01 to 1"),
        ("throttleAt", True, "from 0.01 to 1"),
        ("modes", "queue", "unknown key sessions.modes; did you mean mode?"),
    ],
)
def test_problems_are_reported(key: str, value: Any, says: str) -> None:
    (problem,) = _problems({"sessions": {key: value}})
    assert f"sessions.{key}" in problem
    assert says in problem


def test_a_lane_reserves_nothing_by_default() -> None:
    assert all(lane.reserved == ReservedPolicy() for lane in Policy().lanes.values())
    assert ReservedPolicy().critical == 0


def test_a_lane_may_reserve_slots_for_critical_work() -> None:
    merged = policy.from_document({"lanes": {"main": {"reserved": {"critical": 2}}}})
    assert merged.lanes["main"].reserved.critical == 2
    assert merged.lanes["main"].max_inflight == LanePolicy().max_inflight
    new = policy.from_document({"lanes": {"own": {"maxInflight": 2, "reserved": {"critical": 1}}}})
    assert new.lanes["own"].reserved == ReservedPolicy(critical=1)


@pytest.mark.parametrize(
    ("lane", "says"),
    [
        ({"reserved": {"critical": 30}}, "must be smaller than maxInflight"),
        ({"maxInflight": 2, "reserved": {"critical": 2}}, "must be smaller than maxInflight"),
        ({"reserved": {"critical": -1}}, "whole number from 0"),
        ({"reserved": {"high": 1}}, "unknown key lanes.main.reserved.high"),
        ({"reserved": 1}, "lanes.main.reserved must be an object"),
    ],
)
def test_a_reservation_that_leaves_nothing_is_refused(lane: dict[str, Any], says: str) -> None:
    assert says in "; ".join(_problems({"lanes": {"main": lane}}))


def test_lowering_a_ceiling_below_what_is_reserved_is_refused() -> None:
    held = policy.from_document({"lanes": {"main": {"reserved": {"critical": 5}}}})
    with pytest.raises(InvalidPolicy, match=r"reserved\.critical"):
        policy.merge(held, {"lanes": {"main": {"maxInflight": 5}}})
