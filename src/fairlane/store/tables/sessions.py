"""Sessions, and their tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import astuple

from fairlane.core.model import Task
from fairlane.core.sessions import Session
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page


def by_key(connection: Connection, keys: Iterable[str]) -> list[Session]:
    return [Session(*row) for row in connection.run_rows("session_find", [(key,) for key in keys])]


def save(connection: Connection, sessions: Iterable[Session]) -> None:
    """Save sessions; `limit`, their last field, follows from the policy."""
    connection.run_rows("session_save", [astuple(session)[:-1] for session in sessions])


def forget(connection: Connection, keys: Iterable[str]) -> None:
    connection.run_rows("session_forget", [(key,) for key in keys])


def idle(connection: Connection, before: int, limit: int) -> list[str]:
    """Return sessions without tasks that have not been touched since a time."""
    return [row[0] for row in connection.run("session_old", before=before, limit=limit)]


def busy(connection: Connection) -> list[str]:
    """Return sessions in which tasks wait or more than one has the turn."""
    return [row[0] for row in connection.run("session_waiting")]


def view(connection: Connection, key: str) -> Session | None:
    rows = connection.run("session_view", key=key)
    return Session(*rows[0]) if rows else None


def page(connection: Connection, after: str, agent: str | None, limit: int) -> Page[Session]:
    """Return sessions by key, after `after`; of one agent or of all."""
    return read_page(connection, _session, "session_list", limit, after=after, agent=agent)


def _session(row: Row) -> Session:
    return Session(*row)


# -------------------------------------------------------------------- their tasks


def waiting_tasks(connection: Connection, *, session: str) -> list[Task]:
    """Return the tasks that wait for the turn, including those in their debounce window."""
    return [Task(*row) for row in connection.run("session_open", session=session)]


def debouncing_tasks(connection: Connection, *, session: str) -> list[Task]:
    """Return the messages whose debounce window is open."""
    return [Task(*row) for row in connection.run("session_grown", session=session)]


def leased_tasks(connection: Connection, *, session: str) -> list[Task]:
    return [Task(*row) for row in connection.run("session_turns", session=session)]


def turn_tasks(connection: Connection, *, session: str) -> list[Task]:
    """Return the tasks that have the turn and no lease: ready, or waiting for their retry."""
    return [Task(*row) for row in connection.run("session_held", session=session)]


def next_tasks(connection: Connection, keys: Iterable[str], limit: int) -> list[Task]:
    """Return the first `limit` tasks of each session that wait for the turn."""
    rows = connection.run_rows("session_next", [(key,) for key in keys], limit=limit)
    return [Task(*row) for row in rows]


def ready_tasks(connection: Connection, keys: Iterable[str]) -> list[Task]:
    return [Task(*row) for row in connection.run_rows("session_ready", [(key,) for key in keys])]


def count_ahead(connection: Connection, task: Task, limit: int) -> int:
    """Count the tasks of its session that get the turn before it, up to `limit`."""
    count: int = connection.run(
        "why_session_ahead",
        session=task.session,
        priority=task.priority,
        seq=task.seq,
        limit=limit,
    )[0][0]
    return count


# -------------------------------------------------------------------- the recount


class SessionCounts(NamedTuple):
    """`interrupted` is the session's mark, or in a recount the number of its runs that stop."""

    holders: int = 0
    waiting: int = 0
    debouncing: int = 0
    later: int = 0
    interrupted: int = 0


def stored_counts(connection: Connection) -> dict[str, SessionCounts]:
    return {row[0]: SessionCounts(*row[1:]) for row in connection.run("session_all")}


def recount(connection: Connection) -> dict[str, SessionCounts]:
    return {row[0]: SessionCounts(*row[1:]) for row in connection.run("session_recount")}
