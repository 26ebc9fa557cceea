"""The inbox of a run: messages of its session that reach it while it works.

A message that steers is a task that waits for the turn of its session, like any other message. The
run that has the turn may take it. Then the message's task is done, and the run's request keeps the
message in `inbox`, for further attempts. A message that no run takes is the next turn of its
session, in order. So none is lost and none is read by two runs, however a run ends.

A message reaches only runs of the same agent and handler whose submitter has the same rights. One
that does not reach a run holds back later messages of its senders, so that they stay in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from fairlane.core import lifecycle, sessions
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.core.model import ACTION, SESSION_GATE, Change, Task, copied
from fairlane.core.types import json_name

SHOWN_MAX: Final = 100  # messages in one response
WAITING_READ_MAX: Final = 200  # waiting tasks of a session that are considered
READ_AT_A_TIME: Final = 25  # of these
INBOX_MESSAGES_MAX: Final = 1000
INBOX_CHARACTERS_MAX: Final = 1_048_576  # of the run's request with its inbox
CURSOR_CHARACTERS_MAX: Final = 2048
_DIGITS_MAX: Final = 18


class Address(NamedTuple):
    """Who a message is for, or what a run is: a message reaches runs with the same address.

    `rights` is equal for tokens that may do the same.
    """

    agent: str
    capability: str
    rights: str


class InboxMessage(msgspec.Struct, frozen=True, gc=False, rename=json_name, omit_defaults=True):
    """A message in the inbox of a run. `task` is the task that the message was."""

    id: str
    sender: str
    text: str
    task: str = msgspec.field(name="taskId")
    sent_at: str | None = None
    media: list[Any] | None = None
    metadata: JsonObject | None = None


class WaitingMessage(msgspec.Struct, frozen=True, gc=False):
    """A task that waits for the turn, with the messages that it consists of; none if it is not a
    message.
    """

    task: Task
    address: Address
    steers: bool
    messages: list[InboxMessage]


class Cursor(msgspec.Struct, frozen=True):
    """What the reader of an inbox has: the first `count` messages that the run has taken, and
    the messages of these waiting tasks, by number.
    """

    count: int = 0
    shown: tuple[int, ...] = ()

    def text(self) -> str:
        return ".".join(map(str, (self.count, *self.shown)))


def parse_cursor(text: str | None) -> Cursor:
    """Return the cursor. Raise `InvalidRequest` for a text that is none."""
    if text is None:
        return Cursor()
    parts = text.split(".")
    valid = all(one.isascii() and one.isdigit() and len(one) <= _DIGITS_MAX for one in parts)
    if not valid or len(parts) > SHOWN_MAX + 1:
        raise InvalidRequest("field 'after' must be the cursor of an earlier response")
    count, *shown = map(int, parts)
    return Cursor(count, tuple(shown))


class _MessageParts(msgspec.Struct, rename=json_name):
    """The parts of a request that are about messages."""

    instruction: str | None = None
    params: JsonObject | None = None
    media: list[Any] | None = None
    metadata: JsonObject | None = None
    steer: bool = False
    messages: list[JsonObject] = []
    inbox: list[InboxMessage] = []


_decoder: Final = msgspec.json.Decoder(_MessageParts)


def waiting_message(task: Task, body: str, rights: str) -> WaitingMessage:
    """Return a waiting task as a message. A damaged request is none."""
    address = Address(task.agent, task.capability, rights)
    try:
        request: JsonObject = msgspec.json.decode(body)
        steers = _decoder.decode(body).steer
        entries = sessions.messages_with_text(request)
        found = [msgspec.convert({**one, "taskId": task.id}, InboxMessage) for one in entries]
    except (msgspec.DecodeError, RecursionError):
        return WaitingMessage(task, address, steers=False, messages=[])
    return WaitingMessage(task, address, steers, found)


def taken_by(body: str) -> list[InboxMessage]:
    """Return the messages that the runs of a task have taken, in order."""
    try:
        return _decoder.decode(body).inbox
    except (msgspec.DecodeError, RecursionError):
        return []


def ids_of(body: str) -> list[str]:
    """Return the ids of the messages that a task consists of, and of those taken by its runs; none
    if the request is damaged.
    """
    try:
        found = _decoder.decode(body)
        return [*(str(one["id"]) for one in found.messages), *(one.id for one in found.inbox)]
    except (msgspec.DecodeError, KeyError, RecursionError):
        return []


def reachable(
    run: Address,
    waiting: Iterable[WaitingMessage],
    *,
    any_mode: bool = False,
    limit: int = WAITING_READ_MAX,
) -> list[WaitingMessage]:
    """Return the messages that a run may take, oldest first, and no more than an inbox can hold.

    With `any_mode`, the run waits for a message, and may take messages of all modes.
    """
    held: set[str] = set()
    found: list[WaitingMessage] = []
    room = INBOX_CHARACTERS_MAX
    for one in waiting:
        senders = {message.sender for message in one.messages}
        if one.address != run or not (one.steers or any_mode) or senders & held:
            held |= senders
        elif senders:
            found.append(one)
            room -= _size(one)
            if room < 0 or len(found) == limit:
                break
    return found


def _size(message: WaitingMessage) -> int:
    return len(msgspec.json.encode(message.messages))


def sessions_with_messages(changes: Iterable[Change]) -> list[str]:
    """Return the sessions in which a message may reach a run now: a task begins to wait for its
    turn, or one that may have held back another ends.
    """
    found: dict[str, None] = {}
    for change in changes:
        before, after = change.before, change.after
        if after.session is not None and after.kind != ACTION:
            waited = before is not None and before.gate == SESSION_GATE
            left = waited and after.terminal and change.verb != lifecycle.TAKE
            if after.gate == SESSION_GATE or left:
                found[after.session] = None
    return [*found]


def fitting(body: str, chosen: Sequence[WaitingMessage]) -> list[WaitingMessage]:
    """Return the first of the messages, as many as the request of the run can keep.

    A run never sees the others: it could not take them, so they are the next turn.
    """
    room = INBOX_CHARACTERS_MAX - len(body)
    count = INBOX_MESSAGES_MAX - len(taken_by(body))
    found = []
    for one in chosen:
        room -= _size(one)
        count -= len(one.messages)
        if room < 0 or count < 0:
            break
        found.append(one)
    return found


def with_taken(body: str, chosen: Iterable[WaitingMessage]) -> str:
    """Return the request of a run with further messages in its inbox."""
    request: JsonObject = msgspec.json.decode(body)
    new = [message for one in chosen for message in one.messages]
    request["inbox"] = [*request.get("inbox", ()), *new]
    return msgspec.json.encode(request).decode()


def as_value(messages: Sequence[InboxMessage]) -> str:
    """Return the messages of a task as one JSON value: the first, with the text of all."""
    first, *others = messages
    if not others:
        return msgspec.json.encode(first).decode()
    text = sessions.lines(*(one.text for one in messages))
    whole = msgspec.to_builtins(msgspec.structs.replace(first, text=text))
    return msgspec.json.encode({**whole, "messages": messages}).decode()


class InboxPage(msgspec.Struct, frozen=True):
    """The next messages of an inbox. `more`: there are others behind them."""

    messages: list[InboxMessage]
    cursor: str
    more: bool = False


def page(taken: Sequence[InboxMessage], waiting: Sequence[WaitingMessage], after: int) -> InboxPage:
    """Return what a reader gets that has the first `after` messages of those taken."""
    messages = [*taken[after : after + SHOWN_MAX]]
    count, shown = min(after, len(taken)) + len(messages), []
    more = count < len(taken)
    for one in waiting:
        fits = len(messages) + len(one.messages) <= SHOWN_MAX or not messages
        if more or not fits:
            more = True
            break
        messages += one.messages
        shown.append(one.task.seq)
    return InboxPage(messages, Cursor(count, tuple(shown)).text(), more)


def behind(taken: Sequence[InboxMessage], after: int, tasks: Collection[str]) -> int:
    """Return how many of the taken messages a reader has that has the first `after`, and those of
    `tasks`, which were taken next.
    """
    while after < len(taken) and taken[after].task in tasks:
        after += 1
    return after


def take(task: Task, run: str, now: int) -> Change:
    """End the task of a message that a run has taken."""
    after = copied(task)
    after.state = lifecycle.step(task.state, lifecycle.TAKE)
    after.gate = None
    after.completed_at = now
    result = msgspec.json.encode(_Taken(run)).decode()
    return Change(task, after, lifecycle.TAKE, result=result)


class _Taken(msgspec.Struct, rename=json_name):
    taken_by: str


def taker_of(task: Task, result: str | None) -> str | None:
    """Return the task whose run has taken this message; None if this is not such a message."""
    if task.state != lifecycle.DONE or task.attempts or result is None:
        return None
    try:
        return msgspec.json.decode(result, type=_Taken).taken_by
    except msgspec.DecodeError:
        return None  # imported with a result of its own


# -------------------------------------------------------------------- withdraw


def without(body: str, message_id: str) -> str | None:
    """Return the request of a waiting task without one of its messages; None if it has no other."""
    request: JsonObject = msgspec.json.decode(body)
    left = [one for one in sessions.messages_with_text(request) if one["id"] != message_id]
    if not left:
        return None
    text = sessions.lines(*(one["text"] for one in left))
    if "instruction" in request:
        request["instruction"] = text
    else:
        said = {"message": text, "sender": left[0]["sender"]}
        request["params"] = {**(request.get("params") or {}), **said}
    metadata: JsonObject = {}
    for one in left:
        metadata.update(one.get("metadata") or {})
    request.pop("metadata", None)
    if metadata:
        request["metadata"] = metadata
    request["messages"], request["sender"] = left, left[0]["sender"]
    return msgspec.json.encode(request).decode()
