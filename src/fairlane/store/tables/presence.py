"""Connections that workers keep open, so that a server notices when they die."""

from __future__ import annotations

from fairlane.store.base import Connection


def insert(
    connection: Connection, worker: str, id_: str, agent: str | None, *, server: str, now: int
) -> None:
    connection.run(
        "presence_open", worker=worker, id=id_, agent=agent or "", server=server, now=now
    )


def of_worker(connection: Connection, worker: str, agent: str | None) -> list[str]:
    """Return the ids of a worker's connections with tokens of one agent, or of no agent."""
    return [row[0] for row in connection.run("presence_find", worker=worker, agent=agent or "")]


def delete(connection: Connection, worker: str, id_: str) -> None:
    connection.run("presence_close", worker=worker, id=id_)


def forget_of_others(connection: Connection, name: str) -> None:
    """Forget the connections to servers that have ended."""
    connection.run("presence_forget", name=name)
