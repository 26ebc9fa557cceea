"""Reads of what is watched: how things stand, why a task waits, and which nodes there are. `Views`
has them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from fairlane.clock import Clock
from fairlane.core.counts import Tally
from fairlane.engine.reads import why as explaining
from fairlane.engine.telemetry.history import LINES_MAX, Sample, Waiting
from fairlane.store import migrate
from fairlane.store.base import Connection, Row

T = TypeVar("T")


class NodeView(msgspec.Struct, frozen=True):
    """A process that serves, as it told of itself when it was last `seen_at`."""

    name: str
    host: str
    pid: int
    version: str
    started_at: int
    seen_at: int
    draining: int
    running: int


class WatchViews(ABC):
    @abstractmethod
    def _run(self, name: str, /, **values: Any) -> list[Row]: ...

    @abstractmethod
    def _ask(self, read: Callable[[Connection], T]) -> T: ...

    @abstractmethod
    def _moment(self, connection: Connection, clock: Clock) -> int: ...

    def sample(self, clock: Clock) -> Sample:
        """How things stand at this moment, by the clock that judges."""

        def read(connection: Connection) -> Sample:
            with connection.snapshot():
                return Sample(
                    self._moment(connection, clock),
                    {row[0]: Tally(*row[1:]) for row in connection.run("lane_view")},
                    [(row[0], row[1], row[2]) for row in connection.run("slots_by_agent")],
                    [Waiting(*row) for row in connection.run("lines_ready", limit=LINES_MAX)],
                )

        return self._ask(read)

    def nodes(self, clock: Clock) -> tuple[int, list[NodeView]]:
        """What time it is, and the nodes that serve, with how many runs each has under way."""

        def read(connection: Connection) -> tuple[int, list[NodeView]]:
            with connection.snapshot():
                running = {row[0]: row[1] for row in connection.run("slots_by_worker")}
                rows = connection.run("node_list")
                found = [NodeView(*(*row, running.get(row[0], 0))) for row in rows]
                return self._moment(connection, clock), found

        return self._ask(read)

    def why(
        self,
        task_id: str,
        pace_of: explaining.PaceOf,
        agent: str | None,
        servers: explaining.Servers,
    ) -> explaining.Explained | None:
        """Why it does not run yet. With `agent`, other tasks are named only when they are its."""
        return self._ask(
            lambda connection: explaining.read(connection, task_id, pace_of, agent, servers)
        )

    def serving(
        self, here: str, clock: Clock, routes: Callable[[], frozenset[str] | None]
    ) -> explaining.Servers:
        """Return what tells how many tasks each server runs, by the clock that judges."""
        return explaining.serving(here, lambda found: self._moment(found, clock), routes)

    def schema(self) -> tuple[int, int]:
        """The number of the store's schema, and of the one that this program was made for."""
        return self._run("schema_number")[0][0] or 0, _newest_schema()

    def webhooks_owed(self, limit: int) -> int:
        """How many wait to be sent; not more than `limit` are counted."""
        owed: int = self._run("delivery_owed", limit=limit)[0][0]
        return owed


@lru_cache(maxsize=1)
def _newest_schema() -> int:
    return migrate.files()[-1][0]
