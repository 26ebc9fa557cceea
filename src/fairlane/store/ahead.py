"""Read ahead: fetch in one round trip the rows that a batch will most likely need.

If another node has written between two transactions, nothing is cached. Then the rows that the
batch names are read in one round trip; where that was to be expected, in the one that takes the
lock. The rest is read as needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairlane.core.counts import Line, Tally
from fairlane.core.model import Task
from fairlane.store.base import Read, Row
from fairlane.store.counters import WriterCache
from fairlane.store.tables.lines import Pair


class ReadAhead:
    """`seqs` are tasks that requests report on, `pairs` the lanes and agents of new ones, `worker`
    is the node, whose runs may have to stop.
    """

    def __init__(self, seqs: Iterable[int], pairs: Iterable[Pair], worker: str) -> None:
        self._seqs = [(seq,) for seq in dict.fromkeys(seqs)]
        self._pairs = list(dict.fromkeys(pairs))
        self._worker = worker

        self.reads = self._all_reads()

    def _all_reads(self) -> list[Read]:
        reads = [Read("lane_all"), Read("task_stopped", values={"worker": self._worker})]
        if self._seqs:
            reads += [Read("task_by_seq", self._seqs), Read("line_of_tasks", self._seqs)]
        if self._pairs:
            reads.append(Read("line_find", self._pairs))
        return reads

    def take(self, read: Sequence[Sequence[Row]], cache: WriterCache) -> list[tuple[int, int]]:
        """Put the rows into an empty cache; return the leases that `worker` has to stop."""
        lanes, stopped, *rest = read
        cache.lanes = {row[0]: Tally(*row[1:]) for row in lanes}
        if self._seqs:
            tasks, *rest = rest
            cache.tasks.update((row[0], Task(*row)) for row in tasks)
        for pair in self._pairs:
            cache.lines[pair] = {}
        for row in (row for rows in rest for row in rows):
            line = Line(*row)
            cache.lines.setdefault((line.lane, line.agent), {})[line.capability] = line
        return [(row[0], row[1]) for row in stopped]
