"""Nodes: the serving processes, as each has reported itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlane.store.base import Connection


class NodeRow(NamedTuple):
    name: str
    host: str
    pid: int
    version: str
    started_at: int
    seen_at: int
    draining: int
    lock_key: int | None = None
    gone_at: int | None = None


def all_nodes(connection: Connection) -> list[NodeRow]:
    return [NodeRow(*row) for row in connection.run("node_list")]


def save(connection: Connection, node: NodeRow) -> None:
    connection.run(
        "node_save",
        name=node.name,
        host=node.host,
        pid=node.pid,
        version=node.version,
        started_at=node.started_at,
        draining=node.draining,
        now=node.seen_at,
        lock_key=node.lock_key,
    )


def delete(connection: Connection, name: str) -> None:
    connection.run("node_leave", name=name)


def unlocked(connection: Connection, names: Iterable[str]) -> list[str]:
    """Return which of these nodes do not hold their locks. Only PostgreSQL has such locks."""
    return [row[0] for row in connection.run_rows("node_unlocked", [(name,) for name in names])]


def mark_gone(connection: Connection, names: Iterable[str], now: int) -> None:
    connection.run_rows("node_gone", [(name, now) for name in names])


def forget_others(connection: Connection, name: str, before: int) -> None:
    """Delete all other nodes that were last seen before a time."""
    connection.run("node_forget", name=name, before=before)
