"""Nodes say now and then that they are there, by a write that is as durable as any other.

So it also tells whether the store can be written at all, which is what readiness means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairlane.engine.commands import Beat
from fairlane.store.tables import nodes as table
from fairlane.store.transaction import Transaction

FORGET_MS: Final = 86_400_000
# A node renews its leases and says that it is there once per HEARD_SECONDS. When it has not been
# heard of for LEASE_MS its leases are over and it counts as silent.
HEARD_SECONDS: Final = 4.0
LEASE_MS: Final = 12_000


def beat(tx: Transaction, requests: Sequence[Beat], now: int) -> Iterator[None]:
    """The newest of each counts. A node that leaves is forgotten at once, one that died in a day.

    From a private store only one process serves: whatever else is written there is gone.
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
        )
        table.save(tx.connection, node)
    return iter([None] * len(requests))
