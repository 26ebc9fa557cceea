"""Nodes: the serving processes, as each has reported itself."""

from __future__ import annotations

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
    )


def delete(connection: Connection, name: str) -> None:
    connection.run("node_leave", name=name)


def forget_others(connection: Connection, name: str, before: int) -> None:
    """Delete all other nodes that were last seen before a time."""
    connection.run("node_forget", name=name, before=before)
