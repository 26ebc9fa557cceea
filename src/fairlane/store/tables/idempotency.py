"""Idempotency keys, and the answers to the requests that used them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlane.store.base import Connection


class KeyRow(NamedTuple):
    """`outcomes` is JSON text; the row is deleted with the task `seq`."""

    agent: str
    key: str
    digest: str
    outcomes: str
    seq: int
    created_at: int


class UsedKey(NamedTuple):
    agent: str
    key: str
    digest: str
    outcomes: str


def find(connection: Connection, keys: Iterable[tuple[str, str]]) -> list[UsedKey]:
    """Return the used keys among these, by agent and key."""
    rows = connection.run_rows("idempotency_find", list(dict.fromkeys(keys)))
    return [UsedKey(*row) for row in rows]


def insert(connection: Connection, rows: list[KeyRow]) -> None:
    connection.run_rows("idempotency_insert", rows)


def forget(connection: Connection, agent: str, prefix: str) -> None:
    """Forget the keys of an agent that begin with `prefix`, which ends with a period."""
    connection.run("idempotency_forget", agent=agent, from_key=prefix, to_key=f"{prefix[:-1]}/")
