"""The checks of the scenario of inboxes find what they are for."""

from __future__ import annotations

from tests.chaos import inbox
from tests.chaos.inbox import Found, Sent


def task(name: str, *has: str, attempts: int = 1, error: str | None = None) -> Found:
    return Found(name, "done", attempts, name, error, has, None)


SENT = {
    "a-1": Sent("a", 1, "small", "t1"),
    "a-2": Sent("a", 2, "small", "t2"),
    "b-1": Sent("b", 1, "large", "t3"),
}


def test_a_message_without_a_run_is_lost_unless_its_task_says_why() -> None:
    tasks = {one.id: one for one in (task("t1", "a-1"), task("t2", "a-2", attempts=0))}
    assert [one.split()[0] for one in inbox.lost(SENT, tasks, {"b-1"})] == ["a-2"]
    tasks["t2"] = task("t2", "a-2", attempts=0, error="withdrawn: the sender withdrew the message")
    assert inbox.lost(SENT, tasks, {"b-1"}) == []


def test_a_message_in_two_runs_is_twice() -> None:
    assert inbox.twice([task("t1", "a-1"), task("t2", "a-1")], set()) != []
    assert inbox.twice([task("t1", "a-1")], {"a-1"}) != []
    assert inbox.twice([task("t1", "a-1")], set()) == []


def test_messages_of_a_sender_that_overtake_are_found() -> None:
    assert inbox.disordered(SENT, [task("t1", "a-2"), task("t2", "a-1")]) != []
    assert inbox.disordered(SENT, [task("t1", "a-1", "b-1", "a-2")]) == []


def test_rights_in_one_run_are_the_same() -> None:
    assert inbox.mixed(SENT, [task("t1", "a-1", "b-1")]) != []
    assert inbox.mixed(SENT, [task("t1", "a-1", "a-2")]) == []


def test_a_run_saw_what_it_has() -> None:
    ran = task("t1", "a-1", "a-2")
    assert inbox.unlike([ran._replace(saw=["a-1"])]) != []
    assert inbox.unlike([ran, ran._replace(saw=["a-1", "a-2"])]) == []
