"""Reads that find tasks: pages of lists, ids, counts, failures, short ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from fairlane.core import events
from fairlane.core.fingerprints import Failure, FailureGroup, fingerprint, groups
from fairlane.core.model import INSTRUCTION
from fairlane.store.base import Connection
from fairlane.store.pages import Page
from fairlane.store.tables import events as event_table
from fairlane.store.tables import task_search, task_views
from fairlane.store.tables.task_search import Filter
from fairlane.store.tables.task_views import TaskView

TaskViews = TypeVar("TaskViews", bound=list[TaskView])


class AskStore(Protocol):
    """How a read gets a connection: `Views.ask`."""

    def __call__(self, read: Callable[..., Any], /, *arguments: Any, **values: Any) -> Any: ...


class SearchViews:
    def __init__(self, ask: AskStore) -> None:
        self._ask = ask

    def newest(self) -> int:
        """Return the number of the newest task; 0 if there is none."""
        found: list[tuple[int, str]] = self._ask(task_search.ids, Filter(), 1)
        return found[0][0] if found else 0

    def ids(self, wanted: Filter, limit: int, *, oldest: bool = False) -> list[tuple[int, str]]:
        """Return sequence numbers and ids, newest first unless `oldest`."""
        found: list[tuple[int, str]] = self._ask(task_search.ids, wanted, limit, oldest=oldest)
        return found

    def page(
        self, wanted: Filter, limit: int, *, brief: bool = False, oldest: bool = False
    ) -> Page[TaskView]:
        """Return tasks, newest first unless `oldest`. `brief` leaves out their results, and their
        attempt logs except for instructions, whose logs tell how long the last attempt ran.
        """

        def find(connection: Connection) -> Page[TaskView]:
            found = task_search.ids(connection, wanted, limit + 1, oldest=oldest)
            seqs = [seq for seq, _ in found]
            return task_views.in_order(connection, seqs, limit, brief=brief)

        page: Page[TaskView] = self._ask(with_logs, find, INSTRUCTION if brief else None)
        return page

    def page_of(self, seqs: list[int], *, brief: bool) -> Page[TaskView]:
        """Return the tasks with these numbers, in this order."""

        def find(connection: Connection) -> Page[TaskView]:
            return task_views.in_order(connection, seqs, len(seqs) or 1, brief=brief)

        page: Page[TaskView] = self._ask(with_logs, find, INSTRUCTION if brief else None)
        return page

    def counts(self, wanted: Filter) -> dict[str, int]:
        """Count tasks by state."""
        found: dict[str, int] = self._ask(task_search.counts, wanted)
        return found

    def failures(self, wanted: Filter, limit: int) -> list[Failure]:
        """Return failed and parked tasks, newest first."""

        def read(connection: Connection) -> list[Failure]:
            with connection.snapshot():
                return task_search.failures(connection, wanted, limit)

        found: list[Failure] = self._ask(read)
        return found

    def failures_like(
        self, wanted: Filter, limit: int, name: str
    ) -> tuple[list[Failure], int | None]:
        """Return those of the next failures that have this fingerprint, and the number of the last
        failure that was read if more may follow. It takes long enough to belong in a thread.
        """
        found = self.failures(wanted, limit)
        known: dict[str | None, str] = {}
        for one in found:
            if one.error not in known:
                known[one.error] = fingerprint(one.error)
        same = [one for one in found if known[one.error] == name]
        return same, found[-1].seq if len(found) == limit else None

    def failure_groups(
        self, wanted: Filter, limit: int, since: int | None, until: int | None
    ) -> tuple[list[FailureGroup], int, bool]:
        """Return the newest failures of a time range in groups, how many there were, and whether
        these are all. It takes long enough to belong in a thread.
        """
        found = self.failures(wanted, limit)
        within = [one for one in found if one.is_within(since, until)]
        return groups(within), len(within), len(found) < limit

    def unknown(self, task_ids: Sequence[str], agent: str | None) -> list[str]:
        """Return the ids that no task has; with `agent`, also those of other agents."""
        found: list[str] = self._ask(task_search.unknown, task_ids, agent)
        return found

    def with_prefix(self, table: str, prefix: str, agent: str | None, limit: int) -> list[str]:
        """Return the ids that begin with a text."""
        found: list[str] = self._ask(task_search.with_prefix, table, prefix, agent, limit)
        return found


def with_logs(
    connection: Connection, find: Callable[[Connection], TaskViews], kind: str | None = None
) -> TaskViews:
    """Return tasks with their attempt logs from one snapshot; with `kind`, only its logs."""
    with connection.snapshot():
        views = find(connection)
        logged = [view.task for view in views if kind in (None, view.task.kind)]
        history = event_table.of_tasks(
            connection, [task.seq for task in logged if task.fencing_token]
        )
    for number, view in enumerate(views):
        log = tuple(events.attempts(history.get(view.task.seq, ())))
        if log:
            views[number] = msgspec.structs.replace(view, log=log)
    return views
