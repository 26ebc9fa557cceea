"""Reclaim the leases of nodes and workers that have died, before the leases expire.

`core/presence.py` says when that is. Here it is checked once more under the write lock, where no
node can announce itself and no worker can open a connection at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fairlane.core import leases
from fairlane.core.model import Task
from fairlane.engine.presence_commands import ClosePresence, OpenPresence, ReclaimGone
from fairlane.engine.verbs import ticks
from fairlane.engine.verbs.tasks import backoffs
from fairlane.store.tables import nodes as node_table
from fairlane.store.tables import presence as table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction


def reclaim_gone(tx: Transaction, requests: Sequence[ReclaimGone], now: int) -> Iterator[int]:
    for request in requests:
        gone = frozenset(node_table.unlocked(tx.connection, dict.fromkeys(request.nodes)))
        node_table.mark_gone(tx.connection, gone, now)

        def is_gone(task: Task, gone: frozenset[str] = gone) -> bool:
            return task.worker in gone

        yield _reclaim(tx, now, is_gone) if gone else 0


def open_presence(tx: Transaction, requests: Sequence[OpenPresence], now: int) -> Iterator[None]:
    for request in requests:
        of = (request.worker, request.id, request.agent)
        table.insert(tx.connection, *of, server=request.server, now=now)
        yield None


def close_presence(tx: Transaction, requests: Sequence[ClosePresence], now: int) -> Iterator[int]:
    for request in requests:
        worker, agent = request.worker, request.agent
        known = table.of_worker(tx.connection, worker, agent)
        table.delete(tx.connection, worker, request.id)
        if not request.gone or known != [request.id]:
            yield 0
            continue

        def is_theirs(task: Task, worker: str = worker, agent: str | None = agent) -> bool:
            return task.worker == worker and agent in (None, task.agent)

        yield _reclaim(tx, now, is_theirs)


def _reclaim(tx: Transaction, now: int, is_gone: Callable[[Task], bool]) -> int:
    """Reclaim leases, except in lanes where only operators do that; return how many."""
    by_hand = ticks.by_hand(tx) or ()
    leased = tx.lookup.tasks(task_table.leased)
    tasks = [task for task in leased if task.lane not in by_hand and is_gone(task)]
    tx.counters.prepare(tasks)
    owns = backoffs(tx, tasks)
    for task in tasks:
        tx.apply(leases.reclaim(task, tx.policy, owns.get(task.seq), now, gone=True))
    tx.reclaimed += tasks
    if tasks:
        ticks.promote_due(tx, now)  # another worker may start them in this commit
    return len(tasks)
