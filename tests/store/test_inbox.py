"""The inbox of a run in the store: taken once, in order, and the next turn if it was not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core import inbox
from fairlane.core.access import Token
from fairlane.core.errors import (
    InvalidRequest,
    LeaseLost,
    MessageTaken,
    NotFound,
    SessionBusy,
)
from fairlane.core.inbox import InboxPage, parse_cursor
from fairlane.core.suspensions import Until
from fairlane.engine.commands import Reclaim, Submit
from fairlane.engine.inbox_commands import TakeMessages, WithdrawMessage
from fairlane.engine.reads import inbox as reads
from fairlane.engine.reads import why
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import Checkpoint, Suspend, SuspendOutcome
from fairlane.store.tables import tokens
from tests.store.chat import WINDOW_MS, Chat
from tests.store.scheduler import Scheduler, lease_request

if TYPE_CHECKING:
    from fairlane.core.model import Submission, Task


class NamedChat(Chat):
    """A chat whose messages have ids."""

    def message(self, name: str, text: str | None = None, **said: Any) -> Submission:
        said.setdefault("message_id", f"msg_{name}")
        return super().message(name, text, **said)


@pytest.fixture
def chat(scheduler: Scheduler) -> Chat:
    return NamedChat(scheduler)


def read(chat: Chat, task: Task, after: str | None = None) -> InboxPage:
    """Acknowledge what a cursor names, and read on."""
    cursor = parse_cursor(after)
    take = TakeMessages(task.seq, task.fencing_token, cursor.count, cursor.shown)
    page: InboxPage = chat.scheduler.ask(take).page
    return page


def take(chat: Chat, task: Task, after: int = 0) -> list[str]:
    page: InboxPage = chat.scheduler.ask(TakeMessages(task.seq, task.fencing_token, after)).page
    return texts(page)


def look(chat: Chat, task: Task, after: str | None = None) -> InboxPage:
    """Read without taking anything."""
    scheduler, key = chat.scheduler, (task.seq, task.fencing_token)
    count, now = parse_cursor(after).count, scheduler.clock.now()
    return reads.read(scheduler.reader, scheduler.store.vault, key, count, now).page


def texts(page: InboxPage) -> list[str]:
    return [one.text for one in page.messages]


def running(chat: Chat, name: str = "run", **said: Any) -> Task:
    chat.say(name, debounce_ms=0, **said)
    return chat.scheduler.lease_one()


def steer(chat: Chat, *names: str, **said: Any) -> None:
    for name in names:
        chat.say(name, mode="steer", **said)


def withdraw(chat: Chat, message: str) -> Any:
    return chat.scheduler.ask(WithdrawMessage("chat", message))


def is_sound(chat: Chat) -> None:
    assert recount(chat.scheduler.reader) == []


def token(scheduler: Scheduler, name: str, scopes: str, agent: str | None = None) -> str:
    """A stored token; the tests submit with its id."""
    connection = scheduler.store.writer()
    seq = len(tokens.all_tokens(connection)) + 1000
    connection.begin()
    tokens.insert(connection, Token(seq, name, name, "x", scopes, 0, agent))
    connection.commit()
    connection.close()
    return name


def say_with(chat: Chat, name: str, submitter: str | None, **said: Any) -> Task:
    made = msgspec.structs.replace(chat.message(name, **said), submitter=submitter)
    (answer,) = chat.scheduler.ask(Submit([made]))
    return answer  # type: ignore[no-any-return]  # a refusal fails the test that uses it


# -------------------------------------------------------------------- take


def test_a_run_takes_what_was_sent_to_it_once_and_in_order(chat: Chat) -> None:
    run = running(chat)
    steer(chat, "a", "b")
    steer(chat, "c", sender="bob")
    assert take(chat, run) == ["a", "b", "c"]
    assert take(chat, run, 3) == []
    assert take(chat, run) == ["a", "b", "c"], "a repeated request, or a further attempt"
    view = chat.scheduler.view("a")
    assert (view.state, view.result) == ("done", '{"takenBy":"run"}')
    chat.scheduler.complete(run)
    assert chat.scheduler.names(9) == []
    is_sound(chat)


def test_a_cursor_takes_exactly_the_messages_that_it_came_with(chat: Chat) -> None:
    run = running(chat)
    chat.say("early", sender="bob")  # its window is open, so it does not reach the run yet
    steer(chat, "a")
    first = read(chat, run)
    assert texts(first) == ["a"]
    chat.scheduler.ask(WithdrawMessage("chat", "early"))
    chat.say("window", sender="cyd", mode="queue", debounce_ms=1)
    steer(chat, "b")
    second = read(chat, run, first.cursor)
    assert texts(second) == ["b"]
    again = read(chat, run, first.cursor)
    assert texts(again) == ["b"], "the response was lost: nothing is read twice"
    third = read(chat, run, second.cursor)
    assert (texts(third), third.cursor) == ([], "2")
    is_sound(chat)


def test_an_earlier_message_that_becomes_readable_late_is_not_taken_unread(chat: Chat) -> None:
    chat.say("old", sender="bob", mode="steer")  # in its window, because nothing runs
    run = running(chat, lane="main")
    steer(chat, "new")
    first = read(chat, run)
    assert texts(first) == ["new"]
    chat.scheduler.clock.advance(WINDOW_MS)
    chat.scheduler.apply()
    second = read(chat, run, first.cursor)
    assert texts(second) == ["old"]
    assert chat.scheduler.view("old").state == "queued"


@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "expire"])
def test_what_a_run_did_not_take_is_the_next_turn(chat: Chat, end: str) -> None:
    scheduler = chat.scheduler
    run = running(chat)
    steer(chat, "a", "b", "c")
    page = read(chat, run)
    read(chat, run, f"0.{page.cursor.split('.')[1]}")  # it took only the first
    if end == "complete":
        scheduler.complete(run)
    elif end == "fail":
        scheduler.fail(run, retryable=False)
    elif end == "cancel":
        scheduler.cancel("run")
        late = TakeMessages(run.seq, run.fencing_token)
        assert isinstance(scheduler.refused(late), LeaseLost), "its messages are the next turn's"
        scheduler.complete(run)
    else:
        scheduler.ask(Reclaim("node"))
        scheduler.cancel("run")
    following = scheduler.lease_one()
    assert following.id == "b"
    assert take(chat, following) == ["c"]
    scheduler.complete(following)
    assert scheduler.names(9) == []
    is_sound(chat)


def test_a_further_attempt_gets_what_earlier_attempts_took(chat: Chat) -> None:
    scheduler = chat.scheduler
    run = running(chat)
    steer(chat, "a")
    assert take(chat, run) == ["a"]
    scheduler.ask(Reclaim("node"))
    steer(chat, "b")
    again = scheduler.lease_one()
    assert (again.id, again.fencing_token > run.fencing_token) == ("run", True)
    assert isinstance(scheduler.refused(TakeMessages(run.seq, run.fencing_token)), LeaseLost), (
        "the first attempt is over"
    )
    assert take(chat, again) == ["a", "b"]


def test_messages_that_do_not_steer_keep_later_ones_of_their_sender_waiting(chat: Chat) -> None:
    run = running(chat)
    chat.say_at_once("first")
    steer(chat, "second")
    steer(chat, "other", sender="bob")
    assert take(chat, run) == ["other"]
    chat.scheduler.complete(run)
    following = chat.scheduler.lease_one()
    assert (following.id, take(chat, following)) == ("first", ["second"])


def test_messages_reach_only_runs_of_their_agent_and_handler(chat: Chat) -> None:
    run = running(chat)
    steer(chat, "agent", agent="b", sender="x")
    plain = chat.message("handler", sender="y", mode="steer")
    chat.scheduler.ask(Submit([msgspec.structs.replace(plain, capability="handler/other")]))
    steer(chat, "mine")
    assert take(chat, run) == ["mine"]


def test_merged_messages_are_taken_together_each_with_its_text(chat: Chat) -> None:
    chat.say("a", mode="steer", sender="bob")
    chat.say("b", mode="steer", sender="bob", metadata={"n": 2})
    run = running(chat)
    chat.scheduler.clock.advance(WINDOW_MS)
    chat.scheduler.apply()
    page = read(chat, run)
    assert [(one.text, one.task, one.metadata) for one in page.messages] == [
        ("a", "a", None),
        ("b", "a", {"n": 2}),
    ]


def test_a_long_inbox_comes_in_pages(chat: Chat) -> None:
    run = running(chat)
    names = [f"m{number:03}" for number in range(130)]
    chat.tune(cap=1000)
    steer(chat, *names)
    page = read(chat, run)
    assert (len(page.messages), page.more) == (100, True)
    rest = read(chat, run, page.cursor)
    assert (texts(page) + texts(rest), rest.more) == (names, False)
    assert take(chat, run, 100) == names[100:]


def test_a_full_inbox_shows_nothing_that_would_be_the_next_turn_as_well(chat: Chat) -> None:
    """A reader acts on what it is shown, so it must be able to take it."""
    run = running(chat)
    text = "x" * 90_000
    chat.tune(cap=100)
    names = [f"m{number:02}" for number in range(14)]
    for name in names:
        chat.say(name, text, mode="steer", no_merge=True)
    seen: list[str] = []
    cursor: str | None = None
    for _ in names:
        page = look(chat, run, cursor)
        if not page.messages:
            break
        seen += [one.task for one in page.messages]
        cursor = read(chat, run, page.cursor).cursor
    assert seen == names[:11], "1,048,576 characters"
    chat.scheduler.complete(run)
    assert chat.scheduler.names(9) == names[11:12]


def test_what_waits_is_read_a_few_at_a_time(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "READ_AT_A_TIME", 2)
    scheduler = chat.scheduler
    small, large = token(scheduler, "small", "submit"), token(scheduler, "large", "admin submit")
    say_with(chat, "run", large, debounce_ms=0)
    run = scheduler.lease_one()
    for number, submitter in enumerate((small, small, large, large, small, large, large)):
        say_with(chat, f"m{number}", submitter, sender=f"p{number}", mode="steer", no_merge=True)
    assert take(chat, run) == ["m2", "m3", "m5", "m6"]
    scheduler.complete(run)
    assert scheduler.names(9) == ["m0"]
    is_sound(chat)


def test_a_run_without_a_session_has_an_empty_inbox(scheduler: Scheduler) -> None:
    scheduler.submit("plain")
    task = scheduler.lease_one()
    page = scheduler.ask(TakeMessages(task.seq, task.fencing_token)).page
    assert (page.messages, page.cursor) == ([], "0")


# -------------------------------------------------------------------- modes


def test_a_busy_session_rejects_and_stores_nothing(chat: Chat) -> None:
    run = running(chat)
    before = chat.scheduler.view("run").task.seq
    error = chat.refused("late", mode="reject")
    assert isinstance(error, SessionBusy)
    assert error.details == {"sessionKey": "chat", "running": 1, "waiting": 0}
    chat.scheduler.complete(run)
    assert chat.say("free", mode="reject").seq == before + 1
    assert isinstance(chat.refused("second", mode="reject"), SessionBusy), "it has the turn"
    is_sound(chat)


def test_a_rollback_forgets_the_turn_and_starts_the_new_message(chat: Chat) -> None:
    scheduler = chat.scheduler
    run = running(chat)
    scheduler.ask(Checkpoint(run.seq, run.fencing_token, "draft", "1"))
    steer(chat, "more")
    assert take(chat, run) == ["more"]
    steer(chat, "unread")
    chat.say("instead", mode="rollback")
    assert scheduler.names(9) == [], "the old run has not ended yet"
    scheduler.complete(run)
    (grant,) = scheduler.lease(9)
    assert grant.task.id == "instead"
    body = msgspec.json.decode(grant.body)
    assert body["rolledBack"] == ["msg_run", "msg_more"]
    view = scheduler.view("run")
    assert (view.state, view.task.steps) == ("cancelled", None)
    assert (view.error or "").startswith("rolled_back: ")
    assert scheduler.view("unread").state == "cancelled"
    is_sound(chat)


def test_a_rollback_of_nothing_just_starts(chat: Chat) -> None:
    chat.say("only", mode="rollback")
    (grant,) = chat.scheduler.lease(9)
    assert "rolledBack" not in msgspec.json.decode(grant.body)


def test_a_session_can_steer_by_default(chat: Chat) -> None:
    chat.tune(mode="steer")
    run = running(chat)
    chat.say("a")
    assert take(chat, run) == ["a"]


# -------------------------------------------------------------------- rights


def test_messages_of_different_rights_are_not_merged(chat: Chat) -> None:
    scheduler = chat.scheduler
    small, large = token(scheduler, "small", "submit"), token(scheduler, "large", "admin submit")
    twin = token(scheduler, "twin", "submit")
    chat.tune(mode="collect", cap=100)
    run = running(chat)
    first = say_with(chat, "a", small, debounce_ms=0)
    assert say_with(chat, "b", twin, debounce_ms=0).id == first.id, "another token, equal rights"
    assert say_with(chat, "c", large, debounce_ms=0).id == "c"
    assert say_with(chat, "d", None, debounce_ms=0).id == "d", "without a token: all rights"
    assert say_with(chat, "e", small, debounce_ms=0).id == "e", "behind those, to stay in order"
    assert say_with(chat, "f", "gone", debounce_ms=0).id == "f", "an unknown token"
    scheduler.complete(run)
    is_sound(chat)


def test_a_message_does_not_steer_a_run_with_other_rights(chat: Chat) -> None:
    scheduler = chat.scheduler
    small, large = token(scheduler, "small", "submit"), token(scheduler, "large", "admin submit")
    say_with(chat, "run", large, debounce_ms=0)
    run = scheduler.lease_one()
    say_with(chat, "low", small, mode="steer", sender="eve")
    say_with(chat, "mine", large, mode="steer")
    assert take(chat, run) == ["mine"]
    scheduler.complete(run)
    assert scheduler.names(9) == ["low"]


# -------------------------------------------------------------------- withdraw


def test_a_waiting_message_is_withdrawn_and_never_runs(chat: Chat) -> None:
    run = running(chat)
    steer(chat, "a", "b")
    done = withdraw(chat, "msg_a")
    assert (done.task.state, done.left) == ("cancelled", 0)
    assert (chat.scheduler.view("a").error or "").startswith("withdrawn: ")
    assert withdraw(chat, "a").task.state == "cancelled", "a repeated request"
    assert take(chat, run) == ["b"]
    assert isinstance(chat.scheduler.refused(WithdrawMessage("chat", "msg_b")), MessageTaken)
    assert isinstance(chat.scheduler.refused(WithdrawMessage("chat", "msg_run")), MessageTaken)
    assert isinstance(chat.scheduler.refused(WithdrawMessage("chat", "msg_x")), NotFound)
    chat.scheduler.complete(run)
    assert isinstance(chat.scheduler.refused(WithdrawMessage("chat", "run")), MessageTaken)
    assert chat.scheduler.names(9) == []
    is_sound(chat)


def test_a_message_is_found_by_its_id_among_many(chat: Chat) -> None:
    chat.tune(cap=1000)
    run = running(chat)
    for number in range(60):
        chat.say(f"m{number}", sender=f"p{number}", message_id=f"telegram-{number}", mode="steer")
    assert withdraw(chat, "telegram-3").task.id == "m3"
    assert withdraw(chat, "m59").task.id == "m59"
    assert len(take(chat, run)) == 58
    is_sound(chat)


def test_one_of_several_merged_messages_is_withdrawn(chat: Chat) -> None:
    chat.say("a", metadata={"a": 1})
    chat.say("b", metadata={"b": 1}, message_id="telegram-2")
    chat.say("c")
    done = withdraw(chat, "telegram-2")
    assert (done.task.id, done.task.state, done.left) == ("a", "queued", 2)
    body = chat.scheduler.view("a").body
    assert body["params"]["message"] == "a\nc"
    assert body["metadata"] == {"a": 1}
    assert [one["id"] for one in body["messages"]] == ["msg_a", "msg_c"]
    assert withdraw(chat, "a").left == 0, "by the id of the task: all of it"
    chat.scheduler.clock.advance(WINDOW_MS)
    assert chat.scheduler.names(9) == []


def test_another_agents_message_cannot_be_withdrawn(chat: Chat) -> None:
    chat.say("a", agent="mine")
    refused = chat.scheduler.refused(WithdrawMessage("chat", "msg_a", "other"))
    assert isinstance(refused, NotFound)
    assert chat.scheduler.view("a").state == "queued"


# -------------------------------------------------------------------- wait for a message


def suspend(scheduler: Scheduler, task: Task) -> SuspendOutcome:
    done: SuspendOutcome = scheduler.ask(
        Suspend(task.seq, task.fencing_token, "message", Until(message=True))
    )
    return done


def test_a_run_that_waits_for_a_message_wakes_with_it(chat: Chat) -> None:
    scheduler = chat.scheduler
    run = running(chat)
    assert suspend(scheduler, run).suspended
    found = why.read(scheduler.reader, "run")
    assert found is not None
    assert "waits for a message to its session" in found.why.reason
    outcome = scheduler.apply(
        Submit([chat.message("hello", debounce_ms=0)]), waiting=[lease_request(9)]
    )
    (grant,) = outcome.grants[0]
    assert grant.task.id == "run", "in the commit of the message, and whatever its mode"
    value = msgspec.json.decode(grant.steps[0].value)
    assert (value["id"], value["text"], value["sender"]) == ("msg_hello", "hello", "ann")
    assert scheduler.view("hello").state == "done"
    scheduler.complete(grant.task)
    assert scheduler.names(9) == []
    is_sound(chat)


def test_a_message_that_came_before_the_wait_does_not_suspend(chat: Chat) -> None:
    run = running(chat)
    chat.say_at_once("early")
    done = suspend(chat.scheduler, run)
    assert not done.suspended
    assert msgspec.json.decode(done.value or "")["text"] == "early"
    assert chat.scheduler.view("early").state == "done"
    is_sound(chat)


def test_a_message_in_the_same_commit_as_the_wait_is_not_missed(chat: Chat) -> None:
    scheduler = chat.scheduler
    run = running(chat)
    scheduler.apply(
        Suspend(run.seq, run.fencing_token, "message", Until(message=True)),
        Submit([chat.message("hello", debounce_ms=0)]),
    )
    (grant,) = scheduler.lease(9)
    assert (grant.task.id, len(grant.steps)) == ("run", 1)


def test_a_message_reaches_a_waiting_run_when_the_one_before_it_is_withdrawn(chat: Chat) -> None:
    run = running(chat)
    assert suspend(chat.scheduler, run).suspended
    chat.say("other", agent="other", debounce_ms=0)
    chat.say("mine", debounce_ms=0)
    assert chat.scheduler.names(9) == [], "its sender told another agent something before"
    withdraw(chat, "msg_other")
    (grant,) = chat.scheduler.lease(9)
    assert grant.task.id == "run"
    assert msgspec.json.decode(grant.steps[0].value)["text"] == "mine"
    is_sound(chat)


def test_a_debounced_message_wakes_a_run_when_its_window_ends(chat: Chat) -> None:
    run = running(chat)
    suspend(chat.scheduler, run)
    chat.say("one")
    chat.say("two")
    assert chat.scheduler.names(9) == []
    chat.scheduler.clock.advance(WINDOW_MS)
    (grant,) = chat.scheduler.lease(9)
    value = msgspec.json.decode(grant.steps[0].value)
    assert (grant.task.id, value["text"]) == ("run", "one\ntwo")
    assert [one["text"] for one in value["messages"]] == ["one", "two"]


def test_a_task_without_a_session_cannot_wait_for_a_message(scheduler: Scheduler) -> None:
    scheduler.submit("plain")
    task = scheduler.lease_one()
    refused = scheduler.refused(
        Suspend(task.seq, task.fencing_token, "message", Until(message=True))
    )
    assert isinstance(refused, InvalidRequest)
