"""The inbox of a run: who gets which message, in which order, and how far a reader is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core import inbox, sessions
from fairlane.core.errors import InvalidRequest
from fairlane.core.inbox import Address, Cursor, InboxMessage, WaitingMessage
from fairlane.core.model import SESSION_GATE, Change, Task

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = Address("a", "handler/work", "")


def task(seq: int, **fields: Any) -> Task:
    values: dict[str, Any] = {
        "seq": seq,
        "id": f"tsk_{seq}",
        "kind": "handler",
        "lane": "main",
        "agent": "a",
        "capability": "handler/work",
        "line": 1,
        "priority": 0,
        "rank": 0,
        "state": "queued",
        "gate": SESSION_GATE,
        "session": "s",
        "batch": None,
        "attempts": 0,
        "max_attempts": 1,
        "position": 0,
        "created_at": 0,
    }
    return Task(**{**values, **fields})


def waiting(
    seq: int, *senders: str, steers: bool = True, address: Address = RUN, text: str = "x"
) -> WaitingMessage:
    messages = [InboxMessage(f"m{seq}", sender, text, f"tsk_{seq}") for sender in senders]
    return WaitingMessage(task(seq), address, steers, messages)


def seqs(found: list[WaitingMessage]) -> list[int]:
    return [one.task.seq for one in found]


def body(**fields: Any) -> str:
    return msgspec.json.encode(fields).decode()


def test_a_message_that_does_not_reach_the_run_holds_back_its_senders() -> None:
    other = Address("a", "handler/work", "more rights")
    found = inbox.reachable(
        RUN,
        [
            waiting(1, "ann", steers=False),
            waiting(2, "ann"),
            waiting(3, "bob"),
            waiting(4, "cyd", "bob", address=other),
            waiting(5, "bob"),
            waiting(6),  # a task that is no message
            waiting(7, "dan"),
        ],
    )
    assert seqs(found) == [3, 7]


def test_a_run_that_waits_takes_messages_of_all_modes() -> None:
    every = [waiting(1, "ann", steers=False), waiting(2, "ann"), waiting(3)]
    assert seqs(inbox.reachable(RUN, every, any_mode=True)) == [1, 2]


def test_a_request_becomes_messages_with_their_texts() -> None:
    single = body(instruction="hi", steer=True, messages=[{"id": "m", "sender": "ann"}], media=[1])
    found = inbox.waiting_message(task(1), single, "")
    assert found.steers
    assert found.messages == [InboxMessage("m", "ann", "hi", "tsk_1", media=[1])]
    old = [{"id": "m", "sender": "ann"}, {"id": "n", "sender": "ann"}]
    merged = inbox.waiting_message(task(1), body(params={"message": "a\nb"}, messages=old), "")
    assert [one.text for one in merged.messages] == ["a\nb", ""], "from before each had its own"
    assert inbox.waiting_message(task(1), body(params={}), "").messages == []
    assert inbox.waiting_message(task(1), "{", "").messages == []


def test_damaged_requests_have_no_inbox_and_no_ids() -> None:
    assert (inbox.taken_by("{"), inbox.ids_of("{")) == ([], [])
    assert inbox.ids_of(body(messages=[{}])) == []
    kept = InboxMessage("n", "bob", "x", "tsk_2")
    assert inbox.ids_of(body(messages=[{"id": "m"}], inbox=[kept])) == ["m", "n"]


def test_taken_messages_are_kept_in_the_request_of_the_run() -> None:
    first = inbox.with_taken(body(instruction="go"), [waiting(1, "ann")])
    second = inbox.with_taken(first, [waiting(2, "bob", "cyd")])
    assert [one.sender for one in inbox.taken_by(second)] == ["ann", "bob", "cyd"]


def test_a_request_keeps_only_as_many_messages_as_fit() -> None:
    many = [waiting(n, *["ann"] * 400) for n in (1, 2, 3)]
    assert seqs(inbox.fitting(body(), many)) == [1, 2]
    large = [waiting(n, "ann", text="x" * 600_000) for n in (1, 2)]
    assert seqs(inbox.fitting(body(), large)) == [1]


def test_pages_show_what_was_taken_and_then_what_waits() -> None:
    taken = [InboxMessage(str(n), "ann", "x", "tsk_9") for n in range(150)]
    first = inbox.page(taken, [waiting(1, "ann")], 0)
    assert (len(first.messages), first.cursor, first.more) == (100, "100", True)
    second = inbox.page(taken, [waiting(1, "ann"), waiting(2, "bob")], 100)
    assert (len(second.messages), second.cursor, second.more) == (52, "150.1.2", False)
    third = inbox.page([], [waiting(1, *["ann"] * 300), waiting(2, "bob")], 0)
    assert (len(third.messages), third.cursor, third.more) == (300, "0.1", True)
    assert inbox.page(taken, [], 999).cursor == "150"


@pytest.mark.parametrize(
    "text", ["", ".", "x", "1.x", "1..2", "²", "9" * 19, ".".join(["1"] * 102)]
)
def test_other_texts_are_no_cursors(text: str) -> None:
    with pytest.raises(InvalidRequest, match="after"):
        inbox.parse_cursor(text)


def test_cursors_are_read_as_they_are_written() -> None:
    assert inbox.parse_cursor(None) == Cursor()
    assert inbox.parse_cursor(Cursor(3, (17, 21)).text()) == Cursor(3, (17, 21))


def test_a_repeated_read_is_behind_what_it_took() -> None:
    taken = [InboxMessage(str(n), "ann", "x", f"tsk_{n}") for n in range(4)]
    assert inbox.behind(taken, 1, {"tsk_1", "tsk_2"}) == 3
    assert inbox.behind(taken, 4, {"tsk_3"}) == 4


def test_a_taken_message_names_the_run_that_has_it() -> None:
    change = inbox.take(task(1), "tsk_run", 7)
    assert (change.after.state, change.after.gate, change.after.completed_at) == ("done", None, 7)
    assert inbox.taker_of(change.after, change.result) == "tsk_run"
    assert inbox.taker_of(task(1), None) is None
    assert inbox.taker_of(task(1, state="done", attempts=1), '{"takenBy": "x"}') is None
    assert inbox.taker_of(task(1, state="done"), None) is None
    assert inbox.taker_of(task(1, state="done"), '{"other": 1}') is None, "imported"


def test_a_wait_returns_one_value_for_merged_messages() -> None:
    one = msgspec.json.decode(inbox.as_value(waiting(1, "ann").messages))
    assert one == {"id": "m1", "sender": "ann", "text": "x", "taskId": "tsk_1"}
    both = msgspec.json.decode(inbox.as_value(waiting(1, "ann", "bob").messages))
    assert (both["text"], [part["sender"] for part in both["messages"]]) == ("x\nx", ["ann", "bob"])


def test_a_message_leaves_the_others_of_its_task() -> None:
    request = body(
        instruction="a\nb",
        sender="ann",
        metadata={"n": 2},
        messages=[
            {"id": "m", "sender": "ann", "text": "a", "metadata": {"n": 2}},
            {"id": "n", "sender": "bob", "text": "b"},
        ],
    )
    left = msgspec.json.decode(inbox.without(request, "m") or "")
    assert (left["instruction"], left["sender"]) == ("b", "bob")
    assert "metadata" not in left
    kept = msgspec.json.decode(inbox.without(request, "n") or "")
    assert (kept["instruction"], kept["metadata"]) == ("a", {"n": 2})
    assert inbox.without(body(params={"message": "a"}, messages=[{"id": "m"}]), "m") is None
    handled = body(
        params={"message": "a\nb", "k": 1}, messages=msgspec.json.decode(request)["messages"]
    )
    assert msgspec.json.decode(inbox.without(handled, "n") or "")["params"] == {
        "message": "a",
        "sender": "ann",
        "k": 1,
    }


def test_lines_leave_out_empty_texts() -> None:
    assert sessions.lines("a", " ", "", "b") == "a\nb"


def test_no_more_is_read_than_an_inbox_can_hold() -> None:
    read = []

    def line() -> Iterator[WaitingMessage]:
        for seq in range(1, 9):
            read.append(seq)
            yield waiting(seq, "ann", text="x" * 400_000)

    assert seqs(inbox.reachable(RUN, line())) == read == [1, 2, 3], "the third does not fit"
    assert seqs(inbox.fitting("{}", inbox.reachable(RUN, line()))) == [1, 2]
    assert seqs(inbox.reachable(RUN, line(), limit=1)) == [1]


@pytest.mark.parametrize(
    ("before", "after", "verb", "found"),
    [
        (None, {}, "submit", ["s"]),
        ({"gate": "debounce"}, {}, "promote", ["s"]),
        ({}, {"gate": None}, "promote", []),
        ({}, {"gate": None, "state": "cancelled"}, "cancel", ["s"]),
        ({}, {"gate": None, "state": "done"}, "take", []),
        ({"gate": None}, {"gate": None, "state": "cancelled"}, "cancel", []),
        (None, {"session": None, "gate": None}, "submit", []),
        (None, {"kind": "action"}, "submit", []),
    ],
)
def test_a_message_may_reach_a_run_when_a_task_joins_the_line_or_ends_in_it(
    before: dict[str, Any] | None, after: dict[str, Any], verb: str, found: list[str]
) -> None:
    change = Change(None if before is None else task(1, **before), task(1, **after), verb)
    assert inbox.sessions_with_messages([change, change]) == found
