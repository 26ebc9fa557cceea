"""Read ahead: fetch in one round trip the rows that a batch will most likely need.

If another node has written between two transactions, the cache is in doubt. Then the rows that the
batch names are read in one round trip; where that was to be expected, in the one that takes the
lock. Tasks that this node knows are read only if their rows have changed. The rest is read as
needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core.counts import Line, Tally
from fairlane.core.model import Task
from fairlane.store.base import Read, Row
from fairlane.store.counters import WriterCache
from fairlane.store.tables.lines import Pair

_UNKNOWN: Final = 0  # the number of no transaction


class ReadAhead:
    """`seqs` are tasks that requests report on, `pairs` the lanes and agents of new ones, `worker`
    is the node, whose runs may have to stop. `known` are tasks and the transactions that wrote
    their rows.
    """

    def __init__(
        self,
        seqs: Iterable[int],
        pairs: Iterable[Pair],
        worker: str,
        known: Mapping[int, tuple[Task, int]],
    ) -> None:
        self._tasks = {seq: known.get(seq) for seq in seqs}
        found = [one[0] for one in self._tasks.values() if one is not None]
        self._pairs = dict.fromkeys([*pairs, *((task.lane, task.agent) for task in found)])
        self._worker = worker
        self.reads = self._all_reads()

    def _all_reads(self) -> list[Read]:
        reads = [Read("lane_all"), Read("task_stopped", values={"worker": self._worker})]
        if self._tasks:
            rows = [(seq, one[1] if one else _UNKNOWN) for seq, one in self._tasks.items()]
            reads.append(Read("task_changed", rows))
        unknown = [(seq,) for seq, one in self._tasks.items() if one is None]
        if unknown:
            reads.append(Read("line_of_tasks", unknown))
        if self._pairs:
            reads.append(Read("line_find", list(self._pairs)))
        return reads

    def take(self, read: Sequence[Sequence[Row]], cache: WriterCache) -> list[tuple[int, int]]:
        """Put the rows into an empty cache; return the leases that `worker` has to stop."""
        lanes, stopped, *rest = read
        cache.lanes = {row[0]: Tally(*row[1:]) for row in lanes}
        if self._tasks:
            changed, *rest = rest
            self._take_tasks(changed, cache)
        for pair in self._pairs:
            cache.lines[pair] = {}
        for row in (row for rows in rest for row in rows):
            line = Line(*row)
            cache.lines.setdefault((line.lane, line.agent), {})[line.capability] = line
        return [(row[0], row[1]) for row in stopped]

    def _take_tasks(self, changed: Sequence[Row], cache: WriterCache) -> None:
        found = {seq: one[0] for seq, one in self._tasks.items() if one is not None}
        for seq, transaction, *columns in changed:
            cache.known.pop(seq, None)
            found.pop(seq, None)
            if transaction is not None:  # otherwise it was deleted
                found[seq] = Task(*columns)
                cache.known[seq] = (found[seq], transaction)
        cache.tasks.update(found)
