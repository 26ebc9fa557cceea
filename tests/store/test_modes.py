"""Modes of sessions: a new message waits, interrupts, is merged, or replaces an old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import SessionQueueFull
from fairlane.core.model import Task
from tests.store.chat import WINDOW_MS, Chat
from tests.store.scheduler import TTL_MS

if TYPE_CHECKING:
    from tests.store.scheduler import Scheduler


@pytest.fixture
def chat(scheduler: Scheduler) -> Chat:
    """Nothing is debounced: each message is a task of its own."""
    chat = Chat(scheduler)
    scheduler.set_policy(sessions={"debounceMs": 0})
    return chat


# -------------------------------------------------------------------- queue, followup


@pytest.mark.parametrize("mode", ["queue", "followup"])
def test_messages_wait_for_the_run_before_them_in_order(
    scheduler: Scheduler, chat: Chat, mode: str
) -> None:
    chat.say_at_once("m1", "m2", "m3", mode=mode)
    seen = []
    while grants := scheduler.lease(10):
        (grant,) = grants
        seen.append(grant.task.id)
        scheduler.complete(grant.task)
    assert seen == ["m1", "m2", "m3"]


def test_two_sessions_run_at_the_same_time(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("a1", "a2")
    Chat(scheduler, "other").say_at_once("b1", "b2")
    assert scheduler.names(10) == ["a1", "b1"]


# -------------------------------------------------------------------- interrupt


def test_an_interrupting_message_cancels_what_runs_and_drains_what_waits(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say_at_once("running", "waiting")
    run = scheduler.start(scheduler.lease_one())
    chat.say("growing", debounce_ms=500)
    chat.say("new", mode="interrupt")
    assert scheduler.states("running", "waiting", "growing") == ["cancelled"] * 3
    assert {chat.error(name) for name in ("running", "waiting", "growing")} == {
        "interrupted: a newer message in its session had to run immediately"
    }
    scheduler.complete(run, '{"late":true}')
    assert scheduler.run_to_end() == ["new"]
    assert scheduler.view("running").result is None


def test_it_starts_only_when_the_old_run_has_really_ended(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("old")
    run = scheduler.start(scheduler.lease_one())
    assert chat.say("new", mode="interrupt").gate == "session"
    assert scheduler.lease(5) == []
    scheduler.renew(run)
    assert scheduler.lease(5) == []
    scheduler.release(run)
    assert scheduler.names(5) == ["new"]


def test_a_run_that_never_reports_back_holds_it_up_only_until_its_lease_is_over(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("old")
    scheduler.lease_one()
    chat.say("new", mode="interrupt")
    scheduler.pass_time(TTL_MS - 1)
    assert scheduler.lease() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["new"]


def test_it_ends_a_run_that_waits_for_its_next_attempt(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("old")
    scheduler.fail(scheduler.lease_one())
    chat.say("new", mode="interrupt")
    assert scheduler.states("old") == ["cancelled"]
    assert scheduler.names(5) == ["new"]


def test_it_looks_neither_at_the_window_nor_at_the_cap(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(mode="interrupt", cap=0, drop="new", debounce_ms=WINDOW_MS)
    for name in ("m1", "m2", "m3"):
        assert chat.say(name).gate is None
    assert scheduler.states("m1", "m2", "m3") == ["cancelled", "cancelled", "queued"]
    assert scheduler.run_to_end() == ["m3"]


def test_of_interrupting_messages_in_a_row_only_the_last_one_runs(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("m0")
    run = scheduler.lease_one()
    for number in range(1, 5):
        chat.say(f"m{number}", mode="interrupt")
    assert scheduler.lease() == []
    scheduler.release(run)
    assert scheduler.run_to_end() == ["m4"]


@pytest.mark.parametrize("running", [1, 2, 3])
def test_it_starts_beside_none_of_them_although_more_may_run_at_once(
    scheduler: Scheduler, chat: Chat, running: int
) -> None:
    chat.tune(max_concurrent=3)
    chat.say_at_once(*(f"old{number}" for number in range(running)))
    runs = [scheduler.start(grant.task) for grant in scheduler.lease(3)]
    chat.say("new", mode="interrupt")
    chat.say_at_once("after", "last")
    for run in runs:
        assert scheduler.lease(5) == []
        scheduler.release(run)
    assert scheduler.names(5) == ["new", "after", "last"]


def test_it_waits_also_for_runs_that_were_stopped_before(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=3)
    chat.say("old")
    run = scheduler.lease_one()
    chat.stop()
    chat.say("new", mode="interrupt")
    assert scheduler.lease(5) == []
    scheduler.complete(run)
    assert scheduler.names(5) == ["new"]


def test_runs_that_never_report_back_hold_it_up_until_the_last_lease_is_over(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(max_concurrent=3)
    chat.say_at_once("old", "older")
    first, _ = (grant.task for grant in scheduler.lease(2))
    chat.say("new", mode="interrupt")
    scheduler.pass_time(TTL_MS - 1)
    scheduler.renew(first)
    scheduler.pass_time(1)
    assert scheduler.lease(5) == []
    scheduler.pass_time(TTL_MS)
    assert scheduler.names(5) == ["new"]


def test_when_it_is_drained_itself_the_next_one_still_waits_for_the_old_run(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(max_concurrent=3)
    chat.say("old")
    run = scheduler.lease_one()
    chat.say("new", mode="interrupt")
    assert chat.stop_all().drained == ["new"]
    chat.say("next")
    assert scheduler.lease(5) == []
    scheduler.release(run)
    assert scheduler.names(5) == ["next"]


def test_more_may_run_at_once_again_when_the_old_runs_are_over(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(max_concurrent=3)
    chat.say("old")
    run = scheduler.lease_one()
    chat.say("new", mode="interrupt")
    scheduler.release(run)
    assert scheduler.names(5) == ["new"]
    chat.say_at_once("beside", "them")
    assert scheduler.names(5) == ["beside", "them"]


def test_a_run_that_was_only_stopped_holds_nobody_back(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.say("old")
    scheduler.lease_one()
    chat.stop_all()
    chat.say_at_once("new", "next")
    assert scheduler.names(5) == ["new"], "the stopped run keeps one of the two turns"


def test_an_idle_session_is_simply_begun(scheduler: Scheduler, chat: Chat) -> None:
    assert chat.say("m1", mode="interrupt").gate is None
    assert scheduler.run_to_end() == ["m1"]


# -------------------------------------------------------------------- collect


def test_all_that_waits_becomes_one_run(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(mode="collect")
    chat.say("running")
    run = scheduler.lease_one()
    assert chat.say("a", sender="ann").id == "a"
    assert chat.say("b", sender="bob").id == "a"
    assert chat.say("c", sender="ann").id == "a"
    assert chat.counts() == (1, 1, 0)
    scheduler.complete(run)
    assert scheduler.run_to_end() == ["a"]
    assert chat.text("a") == "a\nb\nc"


def test_what_must_not_be_merged_lets_go_what_was_collected_from_anybody(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(mode="collect", debounce_ms=WINDOW_MS)
    chat.say("a", sender="bob")
    assert chat.say("b", sender="ann").id == "a"
    chat.say("picture", sender="ann", no_merge=True)
    assert scheduler.run_to_end() == ["a", "picture"]


def test_what_must_not_be_merged_is_not_passed_by_what_comes_after_it(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(mode="collect")
    chat.say("running")
    run = scheduler.lease_one()
    chat.say("a")
    chat.say("picture", media=["cat.jpg"])
    assert chat.say("b").id == "b"
    assert chat.say("c").id == "b"
    scheduler.complete(run)
    assert scheduler.run_to_end() == ["a", "picture", "b"]


def test_a_plain_task_of_the_session_is_not_added_to(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.submit("first", "second", session="chat")
    assert chat.say("a", mode="collect", agent="a").id == "a"
    assert scheduler.view("second").body["params"] == {"of": "second"}


# -------------------------------------------------------------------- cap and drop


def test_with_drop_old_the_oldest_waiting_message_gives_way(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(cap=2)
    chat.say("m1")
    run = scheduler.lease_one()
    chat.say_at_once("m2", "m3", "m4")
    assert scheduler.states("m1", "m2", "m3", "m4") == ["assigned", "cancelled", "queued", "queued"]
    assert (chat.error("m2") or "").startswith("queue_dropped:")
    scheduler.complete(run)
    assert scheduler.run_to_end() == ["m3", "m4"]


def test_with_drop_new_the_newcomer_is_refused_and_nothing_changes(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(cap=2, drop="new")
    chat.say_at_once("m1", "m2", "m3")
    error = chat.refused("m4")
    assert isinstance(error, SessionQueueFull)
    assert (error.code, error.retryable) == ("session_queue_full", True)
    assert error.details == {"sessionKey": "chat", "waiting": 2, "cap": 2}
    assert scheduler.find("m4") is None
    assert scheduler.run_to_end() == ["m1", "m2", "m3"]


def test_ten_may_wait_unless_somebody_says_otherwise(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once(*(f"m{number}" for number in range(11)))
    assert chat.counts() == (1, 10, 0)
    assert chat.refused("m11", drop="new").code == "session_queue_full"
    chat.say("m11", drop="new", cap=11)
    assert chat.counts() == (1, 11, 0)


def test_running_ones_do_not_count(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(cap=1, drop="new", max_concurrent=3)
    chat.say_at_once("m1", "m2", "m3", "m4")
    assert chat.counts() == (3, 1, 0)
    assert chat.refused("m5").code == "session_queue_full"
    scheduler.complete(scheduler.lease_one())
    chat.say("m6")


def test_a_dropped_message_frees_no_turn_twice(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(cap=1)
    chat.say_at_once(*(f"m{number}" for number in range(6)))
    assert chat.counts() == (1, 1, 0)
    assert scheduler.run_to_end() == ["m0", "m5"]


def test_growing_messages_count_as_waiting(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(cap=2, debounce_ms=WINDOW_MS)
    for number in range(5):
        chat.say(f"m{number}", sender=f"p{number}")
    assert chat.counts() == (0, 0, 3)
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["m2", "m3", "m4"]
    assert scheduler.states("m0", "m1") == ["cancelled", "cancelled"]


def test_a_cap_that_was_lowered_makes_room_with_the_next_message(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say_at_once("m0", "m1", "m2", "m3", "m4")
    chat.tune(cap=2)
    assert chat.counts() == (1, 4, 0)
    chat.say("m5")
    assert scheduler.run_to_end() == ["m0", "m4", "m5"]


@pytest.mark.parametrize(("drop", "second"), [("old", "queued"), ("new", "session_queue_full")])
def test_a_cap_of_zero(scheduler: Scheduler, chat: Chat, drop: str, second: str) -> None:
    """Where old ones go it is a cap of one; where new ones go nobody waits."""
    chat.tune(cap=0, drop=drop)
    chat.say("m1")
    answer = chat.try_say("m2")
    assert second == (answer.state if isinstance(answer, Task) else answer.code)
    assert scheduler.run_to_end() == (["m1", "m2"] if drop == "old" else ["m1"])
    chat.say("m3")
    assert scheduler.run_to_end() == ["m3"]


def test_plain_tasks_of_a_session_wait_however_many_there_are(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(cap=1, drop="new")
    names = [f"t{number:02}" for number in range(20)]
    scheduler.submit(*names, session="chat")
    assert scheduler.run_to_end() == names


# -------------------------------------------------------------------- several at once


def test_three_at_once_begin_in_order(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=3)
    chat.say_at_once(*(f"m{number}" for number in range(7)))
    running = [grant.task for grant in scheduler.lease(10)]
    assert [task.id for task in running] == ["m0", "m1", "m2"]
    scheduler.complete(running[1])
    assert scheduler.names(10) == ["m3"]
    scheduler.complete(running[0])
    scheduler.complete(running[2])
    assert scheduler.names(10) == ["m4", "m5"]


def test_a_message_may_set_how_many_for_good(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("m1", max_concurrent=2)
    chat.say_at_once("m2", "m3")
    assert scheduler.names(10) == ["m1", "m2"]
    row = chat.row()
    assert row
    assert row.own.max_concurrent == 2


def test_lowering_it_stops_no_run_and_starts_none(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=3)
    chat.say_at_once("m1", "m2", "m3", "m4")
    running = [grant.task for grant in scheduler.lease(10)]
    chat.tune(max_concurrent=1)
    assert scheduler.states("m1", "m2", "m3") == ["assigned"] * 3
    for task in running[:2]:
        scheduler.complete(task)
        assert scheduler.lease(10) == []
    scheduler.complete(running[2])
    assert scheduler.names(10) == ["m4"]


@pytest.mark.parametrize("how", ["settings", "usage", "policy", "message"])
def test_what_had_not_begun_when_it_was_lowered_waits_again(
    scheduler: Scheduler, chat: Chat, how: str
) -> None:
    scheduler.set_policy(sessions={"maxConcurrent": 3})
    chat.say_at_once("m1", "m2", "m3")
    assert scheduler.names() == ["m1"]
    assert chat.counts() == (3, 0, 0)
    if how == "settings":
        chat.tune(max_concurrent=1)
    elif how == "usage":
        chat.use(60)
    elif how == "policy":
        scheduler.set_policy(sessions={"maxConcurrent": 1})
    else:
        chat.say("m4", max_concurrent=1)
    assert scheduler.lease(10) == []
    scheduler.complete(scheduler.view("m1").task)
    assert scheduler.names(10) == ["m2"]
    assert scheduler.view("m3").task.gate == "session"


def test_unsetting_it_leaves_it_to_the_policy_at_once(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.set_policy(sessions={"maxConcurrent": 2})
    chat.tune(max_concurrent=1)
    chat.say_at_once("m1", "m2", "m3")
    assert scheduler.names(10) == ["m1"]
    chat.tune("max_concurrent")
    assert scheduler.names(10) == ["m2"]
    row = chat.row()
    assert row
    assert row.settings is None


def test_raising_it_starts_work_at_once(scheduler: Scheduler, chat: Chat) -> None:
    chat.say_at_once("m1", "m2", "m3", "m4")
    assert scheduler.names(10) == ["m1"]
    chat.tune(max_concurrent=3)
    assert scheduler.names(10) == ["m2", "m3"]


def test_a_change_of_the_policy_acts_at_once_where_a_session_says_nothing(
    scheduler: Scheduler, chat: Chat
) -> None:
    own = Chat(scheduler, "own")
    own.tune(max_concurrent=1)
    chat.say_at_once("m1", "m2", "m3")
    own.say_at_once("o1", "o2")
    assert scheduler.names(10) == ["m1", "o1"]
    scheduler.set_policy(sessions={"maxConcurrent": 2})
    assert scheduler.names(10) == ["m2"]
    scheduler.set_policy(sessions={"maxConcurrent": 1})
    assert scheduler.states("m1", "m2") == ["assigned", "assigned"]
    assert scheduler.lease(10) == []


def test_in_the_session_of_a_tab_one_runs_at_a_time_unless_it_says_otherwise_itself(
    scheduler: Scheduler,
) -> None:
    scheduler.set_policy(sessions={"maxConcurrent": 3})
    tab = Chat(scheduler, "tab:a:t1")
    scheduler.submit("t1", "t2", "t3", session=tab.key)
    assert scheduler.names(10) == ["t1"]
    tab.tune(max_concurrent=2)
    assert scheduler.names(10) == ["t2"]


# -------------------------------------------------------------------- throttle


@pytest.mark.parametrize(("tokens", "given"), [(59, 3), (60, 1)])
def test_from_60_percent_on_one_runs_at_a_time(
    scheduler: Scheduler, chat: Chat, tokens: int, given: int
) -> None:
    chat.tune(max_concurrent=3)
    chat.use(tokens)
    chat.say_at_once("m1", "m2", "m3")
    assert len(scheduler.lease(10)) == given


def test_the_throttle_stops_no_run(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.say_at_once("m1", "m2", "m3")
    running = [grant.task for grant in scheduler.lease(10)]
    chat.use(60)
    assert scheduler.states("m1", "m2") == ["assigned", "assigned"]
    scheduler.complete(running[0])
    assert scheduler.lease(10) == []
    scheduler.complete(running[1])
    assert scheduler.names(10) == ["m3"]


def test_falling_usage_lifts_it_at_once(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=3)
    chat.use(90)
    chat.say_at_once("m1", "m2", "m3")
    assert scheduler.names(10) == ["m1"]
    chat.use(59)
    assert scheduler.names(10) == ["m2", "m3"]


def test_a_policy_that_throttles_later_lifts_it_at_once(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.use(70)
    chat.say_at_once("m1", "m2")
    assert scheduler.names(10) == ["m1"]
    scheduler.set_policy(sessions={"throttleAt": 0.71})
    assert scheduler.names(10) == ["m2"]


def test_a_result_may_tell_the_usage(scheduler: Scheduler, chat: Chat) -> None:
    chat.tune(max_concurrent=2)
    chat.say_at_once("m1", "m2", "m3", "m4")
    first, second = (grant.task for grant in scheduler.lease(2))
    scheduler.complete(first, '{"usage":{"tokens":120,"contextWindow":200},"text":"hello"}')
    row = chat.row()
    assert row
    assert (row.tokens, row.context_window) == (120, 200)
    assert scheduler.lease(10) == []
    scheduler.complete(second, '{"usage":{"tokens":10,"contextWindow":200}}')
    assert scheduler.names(10) == ["m3", "m4"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        '"usage"',
        '{"usage":null}',
        '{"usage":{}}',
        '{"usage":{"tokens":5}}',
        '{"usage":{"tokens":-1,"contextWindow":10}}',
        '{"usage":{"tokens":1,"contextWindow":0}}',
        '{"usage":{"tokens":1.5,"contextWindow":10}}',
        f'{{"usage":{{"tokens":{10**30},"contextWindow":10}}}}',
        f'{{"usage":{{"tokens":1,"contextWindow":{2**63}}}}}',
        f'{{"deep":{"[" * 5000}{"]" * 5000},"usage":1}}',
    ],
)
def test_a_result_that_tells_nothing_sensible_is_a_result_all_the_same(
    scheduler: Scheduler, chat: Chat, result: str | None
) -> None:
    chat.say("m1")
    assert scheduler.complete(scheduler.lease_one(), result).state == "done"
    assert chat.row() is None


def test_a_plain_task_of_the_session_may_tell_it_too(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.submit("t", session="chat")
    scheduler.submit("alone")
    for task in (grant.task for grant in scheduler.lease(2)):
        scheduler.complete(task, '{"usage":{"tokens":6,"contextWindow":10}}')
    row = chat.row()
    assert row
    assert row.tokens == 6
