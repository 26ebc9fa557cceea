"""Workers: what each can run and when it was last there. The table stays small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlane.core.workers import KnownWorker
from fairlane.store.base import Connection

KEPT_MAX: Final = 1000


def all_workers(connection: Connection) -> list[KnownWorker]:
    """Return all workers by name."""
    return [
        KnownWorker(
            name,
            server,
            frozenset(msgspec.json.decode(capabilities, type=list[str])),
            bool(any_handler),
            None if lanes is None else tuple(msgspec.json.decode(lanes, type=list[str])),
            *others,
        )
        for name, server, capabilities, any_handler, lanes, *others in connection.run("worker_list")
    ]


def save(connection: Connection, workers: Sequence[KnownWorker]) -> None:
    rows = [
        (
            one.name,
            one.server,
            _text(sorted(one.capabilities)),
            int(one.any_handler),
            None if one.lanes is None else _text(one.lanes),
            one.agent,
            one.address,
            one.version,
            one.slots,
            one.patience_ms,
            one.first_seen_at,
            one.seen_at,
        )
        for one in workers
    ]
    connection.run_rows("worker_save", rows)


def forget(connection: Connection, before: int) -> None:
    """Delete workers that were last seen before a time, and the oldest of too many."""
    connection.run("worker_forget", before=before, limit=KEPT_MAX)


def forget_other_nodes(connection: Connection, name: str) -> None:
    """Delete the workers of all other nodes, where only one process can serve."""
    connection.run("worker_forget_nodes", name=name)


def _text(words: Sequence[str]) -> str:
    return msgspec.json.encode(words).decode()
