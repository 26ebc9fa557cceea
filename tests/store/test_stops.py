"""Stop, stopall and reset: which runs end, which continue, and which messages are too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import MessageStale
from fairlane.core.sessions import Session, SessionSettings
from fairlane.engine.commands import Complete, StopSession
from fairlane.schema.wire import moment
from tests.store.chat import WINDOW_MS, Chat
from tests.store.scheduler import TTL_MS, submission
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.core.model import Task
    from tests.store.scheduler import Scheduler

DAY_MS = 86_400_000
STOPPED = "stopped: its session was stopped"


@pytest.fixture
def chat(scheduler: Scheduler) -> Chat:
    """Nothing is debounced unless a test says so."""
    scheduler.set_policy(sessions={"debounceMs": 0})
    return Chat(scheduler)


def run_three(scheduler: Scheduler, chat: Chat) -> list[Task]:
    chat.tune(max_concurrent=3)
    chat.say_at_once("m1", "m2", "m3")
    return [scheduler.start(grant.task) for grant in scheduler.lease(3)]


# -------------------------------------------------------------------- stop


def test_stop_ends_the_oldest_run_and_the_rest_goes_on(scheduler: Scheduler, chat: Chat) -> None:
    runs = run_three(scheduler, chat)
    chat.say("m4")
    stopped = chat.stop()
    assert (stopped.stopped, stopped.drained) == (["m1"], [])
    assert scheduler.states("m1", "m2", "m3", "m4") == ["cancelled", "running", "running", "queued"]
    assert chat.error("m1") == STOPPED
    assert scheduler.lease() == [], "the cancelled run has not ended yet"
    scheduler.release(runs[0])
    assert scheduler.names() == ["m4"]


def test_the_oldest_is_the_one_that_began_first(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.say("slow")
    task = scheduler.lease_one()
    chat.say("second")
    scheduler.lease_one()
    scheduler.release(task)
    assert scheduler.names() == ["slow"]
    assert chat.stop().stopped == ["second"]


def test_stop_again_ends_the_next_one(scheduler: Scheduler, chat: Chat) -> None:
    run_three(scheduler, chat)
    assert [chat.stop().stopped for _ in range(4)] == [["m1"], ["m2"], ["m3"], []]


def test_two_stops_of_one_transaction_end_two(scheduler: Scheduler, chat: Chat) -> None:
    run_three(scheduler, chat)
    request = StopSession("chat", only_oldest=True)
    answers = scheduler.apply(request, request).answers
    assert [answer.stopped for answer in answers] == [["m1"], ["m2"]]


def test_stop_reaches_a_run_that_waits_for_a_slot(scheduler: Scheduler, chat: Chat) -> None:
    """It has the turn, and would run as soon as the lane has room."""
    scheduler.set_lane("main", paused=True)
    chat.say_at_once("m1", "m2")
    stopped = chat.stop()
    assert (stopped.stopped, stopped.drained) == ([], ["m1"])
    scheduler.set_lane("main", paused=False)
    assert scheduler.run_to_end() == ["m2"]


def test_stop_reaches_a_run_that_waits_for_its_next_attempt(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say_at_once("m1", "m2")
    scheduler.fail(scheduler.lease_one())
    assert chat.stop().drained == ["m1"]
    assert scheduler.run_to_end() == ["m2"]


def test_stop_leaves_waiting_messages_alone_while_the_stopped_run_ends(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say_at_once("m1", "m2")
    scheduler.lease_one()
    assert chat.stop().stopped == ["m1"]
    again = chat.stop()
    assert (again.stopped, again.drained) == ([], [])
    scheduler.pass_time(TTL_MS)
    assert scheduler.names() == ["m2"]


def test_stop_leaves_growing_messages_alone(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("m1", debounce_ms=WINDOW_MS)
    assert chat.stop().drained == []
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["m1"]


def test_stopping_an_unknown_session_changes_nothing(scheduler: Scheduler, chat: Chat) -> None:
    stopped = chat.stop()
    assert (stopped.stopped, stopped.drained, stopped.generation) == ([], [], 0)
    assert chat.row() is None


def test_other_sessions_go_on(scheduler: Scheduler, chat: Chat) -> None:
    other = Chat(scheduler, "other")
    other.say_at_once("o1", "o2")
    chat.say("m1")
    assert scheduler.names(5) == ["o1", "m1"]
    chat.stop_all()
    assert scheduler.states("o1", "o2") == ["assigned", "queued"]


# -------------------------------------------------------------------- stopall


def test_stopall_ends_what_runs_waits_and_grows(scheduler: Scheduler, chat: Chat) -> None:
    runs = run_three(scheduler, chat)
    chat.say_at_once("w1", "w2")
    chat.say("d1", debounce_ms=WINDOW_MS)
    stopped = chat.stop_all()
    assert stopped.stopped == ["m1", "m2", "m3"]
    assert stopped.drained == ["w1", "w2", "d1"]
    names = ("m1", "m2", "m3", "w1", "w2", "d1")
    assert set(scheduler.states(*names)) == {"cancelled"}
    assert {chat.error(name) for name in names} == {STOPPED}
    assert chat.counts() == (3, 0, 0)
    for run in runs:
        scheduler.release(run)
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.lease() == []


def test_a_stopall_that_only_drains_says_so(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("d1", debounce_ms=WINDOW_MS)
    stopped = chat.stop_all()
    assert (stopped.stopped, stopped.drained) == ([], ["d1"])


def test_stopall_reaches_what_has_the_turn_without_a_slot(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("m1", "m2")
    scheduler.fail(scheduler.lease_one())
    assert chat.stop_all().drained == ["m1", "m2"]
    scheduler.pass_time(DAY_MS)
    assert scheduler.lease() == []


def test_stopall_reaches_a_task_that_waits_for_a_place_in_its_batch(
    scheduler: Scheduler, chat: Chat
) -> None:
    items = [submission(name, session=name) for name in ("t1", "t2")]
    scheduler.batch(*items, parallelism=1)
    second = Chat(scheduler, "t2")
    assert second.stop_all().drained == ["t2"]
    assert scheduler.run_to_end() == ["t1"]


def test_what_was_submitted_for_a_later_moment_stays(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.submit("tomorrow", session="chat", delay_ms=DAY_MS)
    stopped = chat.stop_all()
    assert (stopped.stopped, stopped.drained) == ([], [])
    scheduler.pass_time(DAY_MS)
    assert scheduler.names() == ["tomorrow"]


def test_a_message_that_was_sent_before_the_stop_is_stale(scheduler: Scheduler, chat: Chat) -> None:
    before = moment(scheduler.clock.now() - 1)
    at = moment(scheduler.clock.now())
    chat.stop_all()
    error = chat.refused("late", sent_at=before)
    assert isinstance(error, MessageStale)
    assert (error.code, error.retryable) == ("message_stale", False)
    assert scheduler.find("late") is None
    chat.say("new", sent_at=at)
    chat.say("undated")
    assert scheduler.run_to_end() == ["new", "undated"]


@pytest.mark.parametrize("sent_at", ["1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00Z"])
def test_in_a_session_that_nobody_stopped_no_message_is_stale(
    scheduler: Scheduler, chat: Chat, sent_at: str
) -> None:
    chat.say("old", sent_at=sent_at)
    assert scheduler.run_to_end() == ["old"]
    chat.stop_all()
    assert isinstance(chat.refused("older", sent_at=sent_at), MessageStale)


def test_the_cutoff_stands_until_a_newer_one(scheduler: Scheduler, chat: Chat) -> None:
    sent_at = moment(scheduler.clock.now())
    scheduler.clock.advance(10)
    chat.stop_all()
    chat.say("new", sent_at=moment(scheduler.clock.now()))
    assert scheduler.run_to_end() == ["new"]
    scheduler.pass_time(DAY_MS)
    assert chat.refused("late", sent_at=sent_at).code == "message_stale"
    newer = moment(scheduler.clock.now())
    scheduler.clock.advance(1)
    chat.stop_all()
    assert chat.refused("later", sent_at=newer).code == "message_stale"


def test_stop_sets_no_cutoff(scheduler: Scheduler, chat: Chat) -> None:
    sent_at = moment(scheduler.clock.now() - 1)
    chat.say("m1")
    scheduler.lease_one()
    chat.stop()
    assert chat.say("m2", sent_at=sent_at).id == "m2"
    row = chat.row()
    assert row is not None
    assert row.cutoff_at is None


def test_after_a_stopall_the_session_is_as_good_as_new(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("m1", "m2")
    run = scheduler.lease_one()
    chat.stop_all()
    chat.say_at_once("m3", "m4")
    assert scheduler.lease() == []
    scheduler.release(run)
    assert scheduler.run_to_end() == ["m3", "m4"]


def test_a_cutoff_and_a_generation_survive_a_restart(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    before = new_scheduler("before")
    sent_at = moment(before.clock.now() - 1)
    Chat(before).reset()
    before.engine.close()
    chat = Chat(new_scheduler("after", before.clock))
    assert chat.refused("late", sent_at=sent_at).code == "message_stale"
    assert chat.reset().generation == 2


# -------------------------------------------------------------------- reset


def test_reset_ends_everything_and_counts_a_generation(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("m1", "m2")
    scheduler.lease_one()
    chat.say("m3", debounce_ms=WINDOW_MS)
    answer = chat.reset()
    assert (answer.stopped, answer.drained, answer.generation) == (["m1"], ["m2", "m3"], 1)
    assert {chat.error(name) for name in ("m1", "m2", "m3")} == {
        "session_reset: its session was reset"
    }
    assert chat.reset().generation == 2


def test_a_late_completion_of_the_old_run_is_harmless(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.say("old")
    run = scheduler.start(scheduler.lease_one())
    chat.reset()
    chat.say_at_once("new1", "new2")
    assert scheduler.names(5) == ["new1"], "the old run still has a turn"
    scheduler.complete(run, '{"usage":{"tokens":99,"contextWindow":100},"text":"late"}')
    assert scheduler.states("old") == ["cancelled"]
    assert scheduler.view("old").result is None
    assert scheduler.names(5) == ["new2"]
    row = chat.row()
    assert row
    assert row.tokens is None, "what the old run has used says nothing about the new conversation"


def test_a_completion_after_the_lease_is_over_changes_nothing(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("old")
    run = scheduler.lease_one()
    chat.reset()
    scheduler.pass_time(TTL_MS)
    chat.say("new")
    scheduler.lease_one()
    late = Complete(run.seq, run.fencing_token, '{"usage":{"tokens":99,"contextWindow":100}}')
    assert scheduler.refused(late).code == "lease_lost"
    assert scheduler.states("old", "new") == ["cancelled", "assigned"]
    assert chat.counts() == (1, 0, 0)


# -------------------------------------------------------------------- what is kept


def test_an_idle_session_costs_nothing(scheduler: Scheduler, chat: Chat) -> None:
    for number in range(20):
        Chat(scheduler, f"chat:{number}").say(f"m{number}", debounce_ms=WINDOW_MS)
    assert len(contents(scheduler.store)["session"]) == 20
    scheduler.pass_time(WINDOW_MS)
    assert len(scheduler.run_to_end()) == 20
    assert contents(scheduler.store)["session"] == []


@pytest.mark.parametrize("how", ["settings", "usage", "stopall", "reset"])
def test_what_a_session_was_told_is_kept_for_the_retention_and_then_forgotten(
    scheduler: Scheduler, chat: Chat, how: str
) -> None:
    {
        "settings": lambda: chat.tune(cap=3),
        "usage": lambda: chat.use(10),
        "stopall": chat.stop_all,
        "reset": chat.reset,
    }[how]()
    chat.say("m1")
    scheduler.run_to_end()
    assert chat.row() is not None
    scheduler.pass_time(30 * DAY_MS - 1)
    assert chat.row() is not None
    scheduler.pass_time(10_000)
    assert chat.row() is None


def test_a_session_is_forgotten_also_when_nothing_else_happens(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(cap=3)
    scheduler.pass_time(30 * DAY_MS)
    assert chat.row() is None


def test_what_is_in_use_is_not_forgotten_however_old_it_is(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(cap=3)
    scheduler.set_lane("main", paused=True)
    chat.say_at_once("m1", "m2")
    scheduler.pass_time(40 * DAY_MS)
    row = chat.row()
    assert row
    assert row.own == SessionSettings(cap=3)


def test_settings_are_laid_over_each_other(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(cap=3, mode="collect")
    session = chat.tune(cap=4, drop="new")
    assert session.own == SessionSettings(mode="collect", cap=4, drop="new")
    row = chat.row()
    assert row
    assert row.own == session.own


def test_settings_that_say_nothing_leave_no_row(scheduler: Scheduler, chat: Chat) -> None:
    assert chat.tune() == Session("chat")
    assert chat.row() is None


# -------------------------------------------------------------------- bound to no lane


def test_a_session_over_two_lanes_keeps_its_order_and_can_be_stopped(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("m1", lane="main")
    chat.say("m2", lane="queue")
    chat.say("m3", lane="main")
    assert scheduler.names(5) == ["m1"]
    run = scheduler.view("m1").task
    scheduler.complete(run)
    assert scheduler.names(5, lanes=("main",)) == []
    assert scheduler.names(5, lanes=("queue",)) == ["m2"]
    stopped = chat.stop_all()
    assert (stopped.stopped, stopped.drained) == (["m2"], ["m3"])


def test_a_full_lane_holds_up_no_other_lane(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.set_lane("main", maxInflight=1)
    other = Chat(scheduler, "other")
    chat.say_at_once("m1")
    other.say_at_once("o1")
    assert scheduler.names(5) == ["m1"]
    third = Chat(scheduler, "third")
    third.say("t1", lane="queue")
    assert scheduler.names(5) == ["t1"]
    assert other.stop_all().drained == ["o1"], "a run that waits for a slot can be stopped"
