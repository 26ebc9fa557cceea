"""What all checks stand on: the rows as they were read, and what has followed from them so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlane.core.policy import FAIR, Policy
from tests.simulation.families import Families
from tests.simulation.groups import Groups
from tests.simulation.histories import Histories
from tests.simulation.ledger import SLOTS, Books, Reader, Seen
from tests.simulation.marks import Marks
from tests.simulation.preemption import Preemption
from tests.simulation.talks import Talks

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from fairlane.engine.commands import Lease
    from fairlane.store.sqlite import SqliteStore


class Ground:
    def __init__(self, store: SqliteStore) -> None:
        self.reader = Reader(store)
        self.books = Books()
        self.policy = Policy()
        self.histories = Histories()
        self.families = Families()
        self.groups = Groups()
        self.preemption = Preemption()
        self.marks = Marks()
        self.talks = Talks(self)
        self.changed: list[Seen] = []
        self.ids: dict[str, int] = {}
        self.open: dict[int, Task] = {}  # not ended, or ended and still leased
        self.last_token = 0
        self.granted = 0
        self.owed: dict[str, tuple[int, str]] = {}
        self.delivery_states: dict[str, str] = {}

    def task(self, task_id: str) -> Task | None:
        """The row of a task that is kept."""
        return self.reader.tasks.get(self.ids.get(task_id, 0))

    def lanes(self, lease: Lease) -> list[str]:
        lanes = self.policy.lanes if lease.lanes is None else lease.lanes
        return [lane for lane in lanes if lane in self.policy.lanes]

    def has_room(self, lane: str) -> bool:
        overall = self.policy.max_inflight
        if overall is not None and self.books.overall_slots() >= overall:
            return False
        return self.books.lanes[lane][SLOTS] < self.policy.lanes[lane].max_inflight

    def may_run(self, lane: str, agent: str) -> bool:
        ceiling = self.ceiling(lane, agent)
        return ceiling is None or self.books.slots[lane, agent] < ceiling

    def ceiling(self, lane: str, agent: str) -> int | None:
        fair = self.policy.lanes[lane].strategy == FAIR
        return self.policy.agent_ceiling(lane, agent) if fair else None
