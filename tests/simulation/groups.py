"""Batches: never more at once than asked for, never idle with work and room, told of once.

How many of a batch are open, have a place or are next to get one is counted from the task rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tests.simulation.causes import Violation, demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from fairlane.engine.commands import NewBatch
    from tests.simulation.ledger import Event, Group

COMPLETED: Final = "batch.completed"


class _Known(msgspec.Struct):
    asked: NewBatch
    total: int = 0
    completed: bool = False


class Groups:
    def __init__(self) -> None:
        self.completions = 0
        self.owed: dict[str, tuple[int, str]] = {}  # new webhooks of this step
        self._known: dict[str, _Known] = {}
        self._rows: dict[str, Group] = {}
        self._members: dict[str, tuple[int, ...]] = {}
        self._over: set[str] = set()  # completed before this step
        self._reopened: set[str] = set()
        self._told: dict[str, list[Event]] = {}

    def begin(self) -> None:
        self._reopened = set()
        self._told = {}
        self.owed = {}

    def born(self, batch: str, asked: Mapping[str, NewBatch]) -> None:
        """A task of it was made, or refused with a record."""
        if batch not in self._known:
            demand("nowhere", batch in asked, f"batch {batch} was never submitted")
            self._known[batch] = _Known(asked[batch])
        self._known[batch].total += 1

    def reopened(self, batch: str) -> None:
        self._reopened.add(batch)

    def told(self, event: Event) -> None:
        demand("events", event.type == COMPLETED and event.batch, f"{event} is of nobody")
        self._told.setdefault(event.batch or "", []).append(event)

    def is_completed(self, batch: str) -> bool:
        """Whether it is completed, or was at any time in this step."""
        return batch in self._told or batch in self._over or self._known[batch].completed

    def is_kept(self, batch: str) -> bool:
        return batch in self._rows

    def judge(
        self, rows: Mapping[str, Group], members: Mapping[str, Sequence[int]], kept: Set[str]
    ) -> list[Group]:
        """Compare what has moved with the tasks; `kept` are batches that have to be there.

        Returns those that are gone.
        """
        for id_ in kept | self._told.keys():
            if id_ not in rows:
                raise Violation("batch", f"{id_} is not there")
        self._over = set()
        for id_, row in rows.items():
            counted = tuple(members.get(id_, (0, 0, 0)))
            quiet = id_ not in self._told and id_ not in self._reopened
            if quiet and self._rows.get(id_) == row and self._members.get(id_) == counted:
                continue
            self._members[id_] = counted
            self._judge_row(row, counted)
        gone = [row for id_, row in self._rows.items() if id_ not in rows]
        for row in gone:
            demand("batch", self._known[row.id].completed, f"{row.id} went before its end")
        self._rows = dict(rows)
        return gone

    def _judge_row(self, row: Group, members: Sequence[int]) -> None:
        known, name = self._known.get(row.id), f"batch {row.id}"
        if known is None:
            raise Violation("batch", f"{name} has no tasks")
        open_, holders, waiting = members
        counted = (known.total, open_, holders, waiting)
        found = (row.total, row.open, row.holders, row.waiting)
        demand("counters", counted == found, f"{name} is {found}, counted {counted}")
        limit = known.asked.parallelism
        demand("fixed", row.parallelism == limit, f"{name}: {row.parallelism} at once")
        if limit is not None:
            demand("parallelism", holders <= limit, f"{name}: {holders} of {limit} at once")
            demand("batch", holders >= limit or not waiting, f"{name} stands still with room")
        else:
            demand("batch", not waiting, f"{name} waits for a place and has no limit")
        self._judge_end(row, known, done=not open_)

    def _judge_end(self, row: Group, known: _Known, *, done: bool) -> None:
        told = self._told.get(row.id, [])
        again = row.id in self._reopened
        due = done and (not known.completed or again)
        demand("completed", len(told) == int(due), f"batch {row.id}: {told}, due {due}")
        right = (row.completed_at is not None) == done
        demand("completed", right, f"batch {row.id}: {row.completed_at} while open {row.open}")
        if known.completed:
            self._over.add(row.id)
        known.completed = done
        for event in told:
            self.completions += 1
            state = "cancelled" if row.cancelled else "completed"
            demand("completed", event.detail == state, f"batch {row.id}: {event}")
            if row.callback_url:
                self.owed[f"msg_{row.id}_{event.id}"] = (row.seq, COMPLETED)
