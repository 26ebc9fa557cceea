"""Messages that come fast become one, per sender, not for ever, and whatever happens meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.model import Task
from fairlane.engine.commands import IdempotencyKey, Submit
from fairlane.engine.verbs.sessions import (
    MERGED_CHARACTERS_MAX,
    MERGED_KEYS_MAX,
    REQUESTS_AT_A_TIME,
    TEXT_CHARACTERS_MAX,
)
from tests.store.chat import WINDOW_MAX_MS, WINDOW_MS, Chat

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.scheduler import Scheduler


@pytest.fixture
def chat(scheduler: Scheduler) -> Chat:
    return Chat(scheduler)


# -------------------------------------------------------------------- merging


def test_messages_of_one_sender_inside_the_window_become_one_task(
    scheduler: Scheduler, chat: Chat
) -> None:
    first = chat.say("a")
    scheduler.clock.advance(WINDOW_MS - 1)
    assert chat.say("b").id == first.id
    assert chat.say("c").id == first.id
    assert scheduler.find("b") is None
    assert chat.counts() == (0, 0, 1)
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a"]
    assert chat.text("a") == "a\nb\nc"


def test_a_message_waits_for_its_window_and_no_longer(scheduler: Scheduler, chat: Chat) -> None:
    task = chat.say("a")
    assert (task.gate, task.eligible_at) == ("debounce", scheduler.clock.now() + WINDOW_MS)
    scheduler.pass_time(WINDOW_MS - 1)
    assert scheduler.lease() == []
    scheduler.pass_time(1)
    assert scheduler.names() == ["a"]


def test_after_its_window_a_message_does_not_grow_any_more(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("a")
    scheduler.pass_time(WINDOW_MS)
    assert chat.say("b").id == "b"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a", "b"]
    assert [chat.text(name) for name in "ab"] == ["a", "b"]


def test_other_senders_stay_apart(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a1", sender="ann")
    chat.say("b1", sender="bob")
    assert chat.say("a2", sender="ann").id == "a1"
    assert chat.say("b2", sender="bob").id == "b1"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a1", "b1"]
    assert (chat.text("a1"), chat.text("b1")) == ("a1\na2", "b1\nb2")


def test_other_sessions_stay_apart(scheduler: Scheduler, chat: Chat) -> None:
    """Two topics are two keys: what was said in one never ends up in the other."""
    other = Chat(scheduler, "chat:topic-2")
    chat.say("a")
    assert other.say("b").id == "b"
    assert chat.say("c").id == "a"
    scheduler.pass_time(WINDOW_MS)
    assert (chat.text("a"), other.text("b")) == ("a\nc", "b")


@pytest.mark.parametrize(
    "difference",
    [
        {"lane": "queue"},
        {"agent": "other", "sender": "ann"},
        {"priority": -10},
        {"callback_url": "http://example.org/"},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_what_has_to_run_otherwise_is_a_task_of_its_own(
    chat: Chat, difference: dict[str, Any]
) -> None:
    chat.say("a")
    assert chat.say("b", **difference).id == "b"


def test_the_maximum_wait_bounds_what_each_message_prolongs(
    scheduler: Scheduler, chat: Chat
) -> None:
    began = scheduler.clock.now()
    chat.say("0")
    number = 0
    while not scheduler.lease():
        number += 1
        scheduler.clock.advance(WINDOW_MS - 100)
        chat.say(str(number))
        assert scheduler.clock.now() <= began + WINDOW_MAX_MS + WINDOW_MS
    assert scheduler.clock.now() >= began + WINDOW_MAX_MS
    assert chat.text("0").startswith("0\n1\n2")


def test_what_besides_the_text_was_said_last_counts(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a", metadata={"id": 1, "first": True}, timeout_ms=5)
    chat.say("b", metadata={"id": 2}, timeout_ms=7)
    chat.say("c")
    body = scheduler.view("a").body
    assert (body["metadata"], body["timeoutMs"]) == ({"id": 2, "first": True}, 7)
    assert body["params"]["message"] == "a\nb\nc"


def test_a_text_that_has_grown_too_long_begins_another_task_and_the_order_stays(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("a", "x" * 10)
    chat.say("b", "y" * (TEXT_CHARACTERS_MAX - 5))
    assert chat.say("c", "z" * 20).id == "c"  # it would fit the first, but came after the second
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a", "b", "c"]


def test_a_request_that_would_grow_too_large_begins_another_task(
    scheduler: Scheduler, chat: Chat
) -> None:
    third = {"x": "y" * (MERGED_CHARACTERS_MAX // 3)}  # kept for the task and for its message
    chat.say("a", metadata={"one": third})
    assert chat.say("b", metadata={"two": third}).id == "b"
    assert chat.say("c").id == "b"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a", "b"]


def test_a_request_that_would_get_too_many_keys_begins_another_task(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("a", metadata={f"a{number}": 1 for number in range(MERGED_KEYS_MAX)})
    assert chat.say("b", metadata={"b": 1}).id == "b"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a", "b"]


def test_the_message_to_collect_is_found_behind_many_plain_tasks(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.tune(mode="collect", cap=100)
    chat.say("running", debounce_ms=0)
    scheduler.lease()
    chat.say("first", debounce_ms=0)
    for number in range(2 * REQUESTS_AT_A_TIME + 1):
        scheduler.submit(f"plain-{number}", session=chat.key)
    assert chat.say("later", debounce_ms=0).id == "first"


def test_a_message_that_waits_for_nothing_takes_the_window_with_it(
    scheduler: Scheduler, chat: Chat
) -> None:
    chat.say("a")
    assert chat.say("b", debounce_ms=0).id == "a"
    scheduler.apply()
    assert scheduler.names() == ["a"]
    assert chat.text("a") == "a\nb"


@pytest.mark.parametrize("who", ["policy", "session", "message"])
def test_debouncing_can_be_switched_off_by(scheduler: Scheduler, chat: Chat, who: str) -> None:
    said: dict[str, Any] = {}
    if who == "policy":
        scheduler.set_policy(sessions={"debounceMs": 0})
    elif who == "session":
        chat.tune(debounce_ms=0)
    else:
        said = {"debounce_ms": 0}
    assert [chat.say(name, **said).id for name in "ab"] == ["a", "b"]
    assert scheduler.run_to_end() == ["a", "b"]


# -------------------------------------------------------------------- in order, at once


@pytest.mark.parametrize(
    "said", [{"no_merge": True}, {"media": ["cat.jpg"]}], ids=["plain", "media"]
)
def test_what_must_not_be_merged_lets_go_what_was_said_before_and_goes_at_once(
    scheduler: Scheduler, chat: Chat, said: dict[str, Any]
) -> None:
    chat.say("before")
    chat.say("more")
    chat.say("picture", **said)
    chat.say("after")
    assert chat.counts() == (1, 1, 1)
    assert scheduler.run_to_end() == ["before", "picture"]
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["after"]
    assert [chat.text(name) for name in ("before", "picture", "after")] == [
        "before\nmore",
        "picture",
        "after",
    ]


def test_it_lets_go_only_what_its_own_sender_said(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("other", sender="bob")
    chat.say("picture", no_merge=True)
    assert chat.counts() == (1, 0, 1)
    assert chat.say("still", sender="bob").id == "other"


def test_two_of_them_stay_two(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("one", no_merge=True)
    chat.say("two", no_merge=True)
    assert scheduler.run_to_end() == ["one", "two"]


def test_windows_that_end_together_run_in_the_order_in_which_they_began(
    scheduler: Scheduler, chat: Chat
) -> None:
    for number in range(6):
        chat.say(f"m{number}", sender=f"p{number}")
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == [f"m{number}" for number in range(6)]


# -------------------------------------------------------------------- nothing is lost


def test_a_restart_in_the_middle_of_a_window_loses_nothing(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    before = new_scheduler("before")
    Chat(before).say("a")
    before.clock.advance(300)
    Chat(before).say("b")
    before.engine.close()
    after = new_scheduler("after", before.clock)
    chat = Chat(after)
    assert after.lease() == []
    assert chat.say("c").id == "a"
    after.pass_time(WINDOW_MS)
    assert after.run_to_end() == ["a"]
    assert chat.text("a") == "a\nb\nc"


def test_a_window_that_ended_while_nobody_was_there_is_over(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    before = new_scheduler("before")
    Chat(before).say("a")
    before.engine.close()
    before.clock.advance(WINDOW_MS)
    after = new_scheduler("after", before.clock)
    assert after.names() == ["a"]


def test_messages_of_one_transaction_are_joined_too(scheduler: Scheduler, chat: Chat) -> None:
    requests = [Submit([chat.message(name)]) for name in "abc"]
    answers = scheduler.apply(*requests).answers
    assert [answer[0].id for answer in answers] == ["a", "a", "a"]
    assert chat.text("a") == "a\nb\nc"


def test_the_same_message_twice_is_joined_once(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a")
    key = IdempotencyKey("default", "m-7", "digest")
    for _ in range(3):
        task = chat.try_say("b", key=key)
        assert isinstance(task, Task)
        assert task.id == "a"
    assert chat.text("a") == "a\nb"
    scheduler.pass_time(WINDOW_MS)
    assert chat.try_say("b", key=key) == scheduler.view("a").task
    assert scheduler.run_to_end() == ["a"]


def test_a_growing_message_can_be_cancelled(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a")
    scheduler.cancel("a")
    assert chat.row() is None
    assert chat.say("b").id == "b"


def test_a_paused_lane_merges_all_the_same(scheduler: Scheduler, chat: Chat) -> None:
    scheduler.set_lane("main", paused=True)
    chat.say("a")
    assert chat.say("b").id == "a"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.lease() == []
    assert chat.say("c").id == "c", "the window is over although nothing can run"


def test_a_message_says_nothing_new_by_being_joined(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a")
    chat.say("b")
    assert scheduler.types("a") == ["created"]
    assert scheduler.tally().submitted == 1


# -------------------------------------------------------------------- order, and refusals


def test_only_the_newest_of_a_sender_grows(scheduler: Scheduler, chat: Chat) -> None:
    """What was said after it must not run before it."""
    chat.say("a")
    chat.say("b", callback_url="https://example.org/b")
    assert chat.say("c").id == "c"
    scheduler.pass_time(WINDOW_MS)
    assert scheduler.run_to_end() == ["a", "b", "c"]


@pytest.mark.parametrize("how", [{"debounce_ms": 0}, {"no_merge": True}, {"debounce_ms": 1}])
def test_what_a_sender_said_before_goes_first(
    scheduler: Scheduler, chat: Chat, how: dict[str, Any]
) -> None:
    chat.say("a")
    assert chat.say("b", lane="team", **how).id == "b"
    scheduler.pass_time(1)
    assert scheduler.run_to_end(lanes=("main", "team")) == ["a", "b"]


def test_what_others_said_stays_in_its_window(scheduler: Scheduler, chat: Chat) -> None:
    chat.say("a", sender="bob")
    chat.say("b", sender="ann", no_merge=True)
    assert scheduler.run_to_end() == ["b"]
    assert scheduler.view("a").task.gate == "debounce"


@pytest.mark.parametrize(
    "how", [{"mode": "interrupt"}, {"cap": 1}, {"max_concurrent": 3}, {"no_merge": True}]
)
def test_a_message_that_its_lane_refuses_has_changed_nothing(
    scheduler: Scheduler, chat: Chat, how: dict[str, Any]
) -> None:
    scheduler.set_lane("team", maxQueueSize=1)
    scheduler.submit("full", lane="team")
    chat.say_at_once("m1", "m2")
    run = scheduler.start(scheduler.lease_one())
    chat.say("m3")
    before = (chat.row(), scheduler.states("m1", "m2", "m3"))
    refused = chat.refused("new", lane="team", **how)
    assert refused.code == "queue_full"
    assert (chat.row(), scheduler.states("m1", "m2", "m3")) == before
    assert scheduler.view("m3").task.gate == "debounce"
    assert scheduler.complete(run).state == "done"


@pytest.mark.parametrize("how", [{"mode": "interrupt"}, {"cap": 1}])
def test_the_place_of_those_that_have_to_go_is_free_for_the_newcomer(
    scheduler: Scheduler, chat: Chat, how: dict[str, Any]
) -> None:
    scheduler.set_lane("main", maxQueueSize=1)
    chat.say_at_once("m1")
    run = scheduler.lease_one()
    chat.say_at_once("m2")
    chat.say("m3", debounce_ms=0, **how)
    assert scheduler.states("m2", "m3") == ["cancelled", "queued"]
    scheduler.complete(run)
    assert scheduler.run_to_end() == ["m3"]
