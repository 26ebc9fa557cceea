"""Suspensions: a run gives its slot back until a time comes, tasks have ended, or a signal or a
message arrives.

A wait is a step: it has a place and a name among the steps of the run, and what ended it is its
recorded value. So the next run continues behind it. A task has one suspension at a time. Signals
belong to the task; the first value of a name wins, and one that comes early is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlane.core import moments, steps
from fairlane.core.errors import InvalidRequest
from fairlane.core.types import YEAR_MS, Identifier, Moment, json_name

TASKS_MAX: Final = 1000
SIGNALS_MAX: Final = 100

SignalName = Identifier


class Until(msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True):
    """What a run waits for; exactly one of the fields."""

    at: Annotated[Moment | None, Meta(description="A time")] = None
    delay_ms: Annotated[
        Annotated[int, Meta(ge=0, le=YEAR_MS)] | None,
        Meta(description="Delay from now, by the server's clock"),
    ] = None
    tasks: Annotated[
        Annotated[list[Identifier], Meta(min_length=1, max_length=TASKS_MAX)] | None,
        Meta(description="The end of these tasks, however they end"),
    ] = None
    signal: Annotated[SignalName | None, Meta(description="A signal of this name")] = None
    message: Annotated[
        bool | None, Meta(description="true: the next message of the task's session")
    ] = None


class Suspension(msgspec.Struct, frozen=True, gc=False):
    """What a suspended task waits for, and the step that the wait is. `until` is JSON text; `span`
    is 1 if the wait is a duration, which moves when the clock is set.
    """

    seq: int
    number: int
    name: str
    until: str
    span: int = 0

    @property
    def waits_for(self) -> Until:
        return _decoder.decode(self.until)


_decoder: Final = msgspec.json.Decoder(Until)


class TaskEnd(msgspec.Struct, frozen=True, gc=False):
    """An awaited task: its state, the length of its result, and its error."""

    seq: int
    id: str
    state: str
    size: int | None
    error: str | None


class Signal(msgspec.Struct, frozen=True, gc=False):
    """A value that a caller sent to a task, as JSON text."""

    seq: int
    name: str
    value: str
    at: int


def check(until: Until, field: str = "until") -> None:
    """Raise `InvalidRequest` unless exactly one thing is waited for, and its time is valid."""
    given = [
        json_name(name) for name in until.__struct_fields__ if getattr(until, name) is not None
    ]
    if len(given) != 1:
        raise InvalidRequest(
            f"field '{field}' must have exactly one of 'at', 'delayMs', 'tasks', 'signal' and "
            "'message'"
        )
    if until.message is False:
        raise InvalidRequest(f"field '{field}.message' must be true")
    if until.at is not None:
        try:
            moments.parse(until.at)
        except ValueError as error:
            raise InvalidRequest(f"field '{field}.at' is not a time: {error}") from None


def text(until: Until) -> str:
    return msgspec.json.encode(until).decode()


def default_name(until: Until) -> str:
    """Return the name of a wait that was given none: the same for the same wait."""
    if until.signal is not None:
        return f"signal:{until.signal}"[:128]
    text = msgspec.json.encode(until, order="sorted")
    return f"wait:{hashlib.sha256(text).hexdigest()[:16]}"


def wakes_at(until: Until, now: int) -> int | None:
    """Return when time ends the wait; None if something else does."""
    if until.delay_ms is not None:
        return moments.later(now, until.delay_ms)
    return None if until.at is None else moments.parse(until.at)


def fitting(ends: Sequence[TaskEnd], used: int) -> set[int]:
    """Return the tasks whose results still fit into the steps of a task, in order."""
    room = steps.TOTAL_CHARACTERS_MAX - used - _ENTRY_CHARACTERS * len(ends)
    found = set()
    for one in ends:
        if one.size is not None and one.size <= room:
            room -= one.size
            found.add(one.seq)
    return found


_ENTRY_CHARACTERS: Final = 400  # about what one entry has besides its result
_ERROR_CHARACTERS: Final = 200


class _Outcome(msgspec.Struct, rename=json_name, omit_defaults=True):
    task_id: str
    state: str
    result: msgspec.Raw | None = None
    error: str | None = None
    omitted: bool = False


def outcomes(ids: Sequence[str], ends: dict[str, TaskEnd], results: dict[int, str | None]) -> str:
    """Return the recorded value of a wait for tasks: how each of them ended, in order.

    `results` has the results that are kept. A task that has been deleted meanwhile has no entry.
    """
    found = []
    for id_ in ids:
        end = ends.get(id_)
        if end is None:
            continue
        text = results.get(end.seq)
        found.append(
            _Outcome(
                end.id,
                end.state,
                None if text is None else msgspec.Raw(text.encode()),
                None if end.error is None else end.error[:_ERROR_CHARACTERS],
                omitted=end.size is not None and text is None,
            )
        )
    return msgspec.json.encode(found).decode()
