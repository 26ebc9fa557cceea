"""Heartbeats of nodes, written as durably as anything else.

A heartbeat therefore also shows whether the store can be written, which is what readiness means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairlane.engine.commands import Beat
from fairlane.store.tables import nodes as table
from fairlane.store.tables import presence
from fairlane.store.tables import workers as worker_table
from fairlane.store.transaction import Transaction

FORGET_MS: Final = 86_400_000
# A node renews its leases and beats once per HEARD_SECONDS. After LEASE_MS without either, its
# leases have expired and it counts as silent.
HEARD_SECONDS: Final = 4.0
LEASE_MS: Final = 12_000


def beat(tx: Transaction, requests: Sequence[Beat], now: int) -> Iterator[None]:
    """Record the newest heartbeat of each node. A node that leaves is removed at once, a dead one
    after a day.

    Only one process serves from a private store: any other node recorded there has ended.
    """
    for request in {request.name: request for request in requests}.values():
        if request.leaves:
            table.delete(tx.connection, request.name)
            continue
        before = now if request.alone else now - FORGET_MS
        table.forget_others(tx.connection, request.name, before)
        node = table.NodeRow(
            name=request.name,
            host=request.host,
            pid=request.pid,
            version=request.version,
            started_at=request.started_at,
            seen_at=now,
            draining=int(request.draining),
            lock_key=request.lock_key,
        )
        table.save(tx.connection, node)
        presence.forget_of_others(tx.connection, request.name)
        if request.alone:
            worker_table.forget_other_nodes(tx.connection, request.name)
    return iter([None] * len(requests))
