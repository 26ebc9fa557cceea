"""Events: one row for each fact, in commit order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fairlane.core.events import Event
from fairlane.store.base import Connection, Row
from fairlane.store.pages import PAGE_BYTES_MAX, Page, read_page

_EVENT_WIDTH: Final = len(Event.__struct_fields__)


class EventFilter(msgspec.Struct, frozen=True):
    """Which events to read; all conditions must hold. `owner` is the agent that may see them."""

    task: str | None = None
    batch: str | None = None
    agent: str | None = None
    lane: str | None = None
    session: str | None = None
    types: tuple[str, ...] | None = None
    owner: str | None = None


class EventView(msgspec.Struct, frozen=True):
    """An event with fields of its task, which may be forgotten already."""

    event: Event
    task_id: str | None
    agent: str | None
    lane: str | None
    batch: str | None
    result: str | None
    session: str | None = None
    capability: str | None = None


def insert(connection: Connection, rows: list[Row]) -> None:
    """Insert events, each with the fields of `Event` in their order."""
    connection.run_rows("event_insert", rows)


def requeued_at(connection: Connection, seqs: Iterable[int]) -> dict[int, int]:
    """Return when tasks were last queued again after they had ended or parked, if ever."""
    rows = connection.run_rows("event_requeued", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def count_releases(connection: Connection, seqs: Iterable[int]) -> dict[int, int]:
    """Count how often tasks were released since they were last queued again."""
    rows = connection.run_rows("event_released", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def of_tasks(connection: Connection, seqs: Iterable[int]) -> dict[int, list[Event]]:
    """Return the events of tasks, without those of progress, oldest first."""
    history: dict[int, list[Event]] = {}
    for row in sorted(connection.run_rows("event_tasks", [(seq,) for seq in seqs])):
        history.setdefault(row[1], []).append(Event(*row))
    return history


def whole_logs(connection: Connection, seqs: Iterable[int]) -> dict[int, list[Event]]:
    """Return the events of tasks, with steps and signals but without progress, oldest first."""
    history: dict[int, list[Event]] = {}
    for row in sorted(connection.run_rows("event_whole", [(seq,) for seq in seqs])):
        history.setdefault(row[1], []).append(Event(*row))
    return history


def newest_progress(connection: Connection, seqs: Iterable[int]) -> dict[int, str]:
    """Return the progress that each task reported last, as JSON text; absent without any."""
    rows = connection.run_rows("progress_newest", [(seq,) for seq in seqs])
    return {row[0]: row[1] for row in rows}


def last(connection: Connection) -> int:
    """Return the number of the newest event."""
    number: int = connection.run("event_last")[0][0]
    return number


def page(
    connection: Connection,
    wanted: EventFilter,
    *,
    after: int,
    until: int,
    limit: int,
    bytes_max: int = PAGE_BYTES_MAX,
    newest: bool = False,
) -> Page[EventView]:
    """Return events with numbers above `after` and up to `until`, oldest first unless `newest`."""
    given = {**msgspec.structs.asdict(wanted), "after": after, "until": until}
    given["types"] = None if wanted.types is None else list(wanted.types)
    name = "event_list_down" if newest else "event_list"
    return read_page(connection, _view, name, limit, bytes_max, **given)


def before(connection: Connection, at: int) -> int:
    """Return the number of the last event before a time; 0 if there is none.

    Events are in the order of their commits, so their times increase unless the clock was set.
    """
    low, high = 0, last(connection)  # events up to `low` are before, those above `high` are not
    while low < high:
        middle = (low + high + 1) // 2
        rows = connection.run("event_from", first=middle)
        if rows and rows[0][0] <= high and rows[0][1] < at:
            low = rows[0][0]
        else:
            high = middle - 1
    return low


def _view(row: Row) -> EventView:
    return EventView(Event(*row[:_EVENT_WIDTH]), *row[_EVENT_WIDTH:])
