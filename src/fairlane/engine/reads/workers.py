"""Workers from the store and from the memory of this server, each with its state.

The store lags by a few seconds, and on a private store by as long as nothing is written. So a
server adds what it has heard itself; another process that reads a private store compares with the
newest entry there instead of the present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fairlane.core import workers
from fairlane.core.workers import DRAINING, ONLINE, SILENT, KnownWorker
from fairlane.engine.verbs.nodes import LEASE_MS
from fairlane.store.base import Connection
from fairlane.store.tables import nodes as node_table
from fairlane.store.tables import task_views
from fairlane.store.tables import workers as worker_table
from fairlane.store.tables.nodes import NodeRow


class Presence(msgspec.Struct, frozen=True):
    """What a serving process knows by itself: its name, the workers that it has heard, and the
    names of workers that wait for tasks. `runs` are the capabilities of its own worker, None if it
    has none.
    """

    here: str
    heard: Sequence[KnownWorker]
    waiting: frozenset[str]
    runs: frozenset[str] | None = None
    draining: bool = False


class NodeView(msgspec.Struct, frozen=True):
    """A serving process, as it reported itself when it was last `seen_at`."""

    name: str
    host: str
    pid: int
    version: str
    started_at: int
    seen_at: int
    draining: int
    gone_at: int | None
    running: int


def read_nodes(connection: Connection) -> list[NodeView]:
    """Return the nodes that serve, with how many runs each has in progress."""
    running = task_views.count_by_worker(connection)
    return [
        NodeView(*node[:7], node.gone_at, running.get(node.name, 0))
        for node in node_table.all_nodes(connection)
    ]


def read(
    connection: Connection, now: int, presence: Presence | None, *, shared: bool
) -> list[KnownWorker]:
    """Return all known workers, online ones first. `presence` is None for a process that
    does not serve.
    """
    with connection.snapshot():
        found = {one.name: one for one in worker_table.all_workers(connection)}
        running = task_views.count_by_worker(connection)
        nodes = {one.name: one for one in node_table.all_nodes(connection)}
    if presence is not None:
        found |= _heard(presence, found)
    elif not shared:
        now = max((one.seen_at for one in found.values()), default=now)
    for name, node in nodes.items():
        found.setdefault(name, KnownWorker(name, name, first_seen_at=node.started_at))
    rules = _Rules(now, presence, shared, nodes, running)
    all_ = [rules.judged(one) for one in found.values()]
    return sorted(all_, key=lambda one: (one.state == SILENT, not one.is_node, one.name))


def _heard(presence: Presence, stored: Mapping[str, KnownWorker]) -> dict[str, KnownWorker]:
    """Return what this server has heard; a worker that was known before keeps its first time."""
    heard = {one.name: one for one in presence.heard}
    if presence.runs is not None:
        here = heard.get(presence.here) or KnownWorker(presence.here, presence.here)
        heard[here.name] = msgspec.structs.replace(here, capabilities=presence.runs)
    for name in heard.keys() & stored.keys():
        first = stored[name].first_seen_at
        heard[name] = msgspec.structs.replace(heard[name], first_seen_at=first)
    # Another server may have heard it later.
    return {
        name: one
        for name, one in heard.items()
        if name not in stored or one.seen_at >= stored[name].seen_at or one.is_node
    }


class _Rules(msgspec.Struct, frozen=True):
    now: int
    presence: Presence | None
    shared: bool
    nodes: Mapping[str, NodeRow]
    running: Mapping[str, int]

    def judged(self, worker: KnownWorker) -> KnownWorker:
        running = self.running.get(worker.name, 0)
        if worker.is_node:
            return self._node(worker, running)
        waits = self.presence is not None and worker.name in self.presence.waiting
        served = self.presence is not None or bool(self.nodes)
        return workers.judged(worker, self.now, running=running, waits=waits, served=served)

    def _node(self, worker: KnownWorker, running: int) -> KnownWorker:
        node = self.nodes.get(worker.name)
        is_here = self.presence is not None and self.presence.here == worker.name
        if node is None:
            state = SILENT
            return msgspec.structs.replace(worker, running=running, state=state)
        seen_at = self.now if is_here else node.seen_at
        is_silent = self.shared and (node.gone_at is not None or self.now - seen_at > LEASE_MS)
        drains = bool(node.draining)
        if is_here and self.presence is not None:
            drains = self.presence.draining
        return msgspec.structs.replace(
            worker,
            address=f"{node.host}:{node.pid}",
            version=node.version,
            first_seen_at=node.started_at,
            seen_at=seen_at if self.shared or is_here else max(worker.seen_at, node.seen_at),
            running=running,
            state=SILENT if is_silent else DRAINING if drains else ONLINE,
        )
