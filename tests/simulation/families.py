"""Parents and children: nobody runs before its parents are done, nobody waits for nothing.

The graph is kept from what was asked and the ends of tasks from their events. The edges in the
store have to say the same, except those of parents whose end is still on its way: the store has
to know these, and they have to get on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation.causes import Violation, demand
from tests.simulation.histories import CANCELLED, ENDINGS, ORPHANED, REQUEUED, UNBLOCKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.core.model import Task
    from tests.simulation.ledger import Event, Row

_OPEN, _MET, _BROKEN = range(3)
BAD: Final = ("failed", "cancelled", "rejected")
STEPS_MAX: Final = 60  # that the end of a parent may be on its way, while others end too


class Families:
    def __init__(self) -> None:
        self.parents: dict[str, tuple[str, ...]] = {}  # by the id of the child, as asked for
        self.ends: dict[str, str] = {}  # how each task has ended, also when it is forgotten
        self.orphans: set[str] = set()
        self.unsettled: dict[str, int] = {}
        self.mended = 0
        self.under_way = 0  # steps after which the end of some parent was on its way
        self._gone: set[str] = set()
        self._leaving: set[str] = set()  # those of them that have gone in this step
        self._unknown: dict[str, set[str]] = {}  # by child: parents that were forgotten by then
        self._ages: Counter[str] = Counter()
        self._lately: dict[str, set[str]] = {}  # how tasks have ended at any time in this step
        self._begun: set[str] = set()  # tasks that have begun again in this step

    def born(self, task: Task, parents: Iterable[str]) -> None:
        self.parents[task.id] = found = tuple(dict.fromkeys(parents))
        unknown = self._gone.intersection(found) - self.unsettled.keys()
        if unknown:
            self._unknown[task.id] = unknown

    def begin(self) -> None:
        self._lately = {}
        self._begun = set()
        self._leaving = set()

    def enter(self, task: Task, event: Event) -> None:
        """Take what has become of a task into account. Everything, before anything is judged."""
        id_ = task.id
        if event.type in ENDINGS:
            if id_ in self.ends:
                self._lately.setdefault(id_, set()).add(self.ends[id_])
            self.ends[id_] = ENDINGS[event.type]
            self._lately.setdefault(id_, set()).add(self.ends[id_])
        elif event.type == REQUEUED and id_ in self.ends:
            self._lately.setdefault(id_, set()).add(self.ends.pop(id_))
            self._begun.add(id_)

    def judge_event(self, task: Task, event: Event, *, asked: bool) -> None:
        """`asked` says that somebody asked for it to begin again."""
        orphaned = event.type == CANCELLED and (event.detail or "").startswith(ORPHANED)
        parents = self.parents.get(task.id, ())
        if event.type == UNBLOCKED:
            self.demand_done(task, "was unblocked")
        elif orphaned:
            _, parent, state = (event.detail or "").split(" ")
            possible = {self.ends.get(parent, ""), *self._lately.get(parent, ())}
            demand("family", parent in parents, f"task {task.seq}: {parent} is no parent")
            bad = state in BAD and state in possible
            demand("family", bad, f"task {task.seq}: {event.detail}, which is {possible}")
        elif event.type == REQUEUED and not asked:
            moved = any(p in self._begun or p in self.unsettled for p in parents)
            demand("family", moved, f"task {task.seq} was revived by no parent")
            self.mended += 1
        if orphaned:
            self.orphans.add(task.id)
        else:
            self.orphans.discard(task.id)

    def forget(self, task: Task) -> None:
        """A pruned task is unknown to later tasks, but known to its children."""
        self.orphans.discard(task.id)
        self._gone.add(task.id)
        self._leaving.add(task.id)

    def end_of(self, parent: str, child: str) -> str | None:
        """How a parent has ended, as far as the child may know."""
        return None if parent in self._unknown.get(child, ()) else self.ends.get(parent)

    def demand_done(self, task: Task, what: str) -> None:
        """All of its parents are done."""
        for parent in self.parents.get(task.id, ()):
            state = self.end_of(parent, task.id)
            demand("parents", state == "done", f"task {task.seq} {what}: {parent} is {state}")

    def is_broken(self, id_: str) -> bool:
        """One of its parents ended badly, now or at any time in this step."""
        for parent in self.parents.get(id_, ()):
            states = {self.end_of(parent, id_), *self._lately.get(parent, ())}
            if states.intersection(BAD) or parent in self.unsettled:
                return True
        return False

    def demand_no_cycle(self, task: Task) -> None:
        found = task.id not in self.ends and self.cycle_through(task.id, self.parents[task.id])
        demand("cycle", not found, f"task {task.id} waits for itself")

    def cycle_through(self, id_: str, parents: Iterable[str]) -> bool:
        """Whether a task with these parents waits for itself, however indirectly."""
        ahead, met = list(parents), set()
        while ahead:
            one = ahead.pop()
            if one == id_:
                return True
            if one not in met and one not in self._gone - self._leaving:
                met.add(one)
                # At that moment, what has ended or gone in this step had perhaps not done so yet.
                ahead += [
                    p
                    for p in self.parents.get(one, ())
                    if self.end_of(p, one) is None or p in self._lately
                ]
        return False

    # ------------------------------------------------------------ after every step

    def judge(
        self,
        blocked: Mapping[int, Task],
        ids: Mapping[int, str],
        edges: Sequence[Row],
        open_edges: int,
        unsettled: Mapping[str, int],
    ) -> None:
        """`edges` are all, with the `ids` of all tasks by number, or only the open ones."""
        self._judge_age(unsettled)
        unmet = Counter(child for child, _, state in edges if state == _OPEN)
        if ids:
            self._judge_edges(ids, edges)
        demand("edges", sum(unmet.values()) == open_edges, f"{open_edges}: {unmet}")
        for seq, task in blocked.items():
            if task.unmet != unmet[seq]:
                raise Violation("edges", f"task {seq}: {task.unmet}, {unmet[seq]} are open")
        if not (self._lately or unsettled or ids):
            return
        for seq, task in blocked.items():
            demand("stranded", self._waits_for(task.id), f"task {seq} waits for nobody")
        for id_ in self.orphans:
            reason = [p for p in self.parents[id_] if p in unsettled or self.end_of(p, id_) in BAD]
            demand("orphan", reason, f"{id_} stays cancelled, and none of its parents is")

    def _waits_for(self, id_: str) -> list[str]:
        """Parents that have not ended, or whose end is on its way."""
        settled = [p for p in self.parents[id_] if p not in self.unsettled]
        bad = [p for p in settled if self.end_of(p, id_) in BAD]
        demand("family", not bad, f"{id_} waits, although {bad} ended badly")
        return [p for p in self.parents[id_] if p in self.unsettled or not self.end_of(p, id_)]

    def _judge_age(self, unsettled: Mapping[str, int]) -> None:
        self.unsettled = dict(unsettled)
        self.under_way += bool(unsettled)
        self._ages = Counter({parent: self._ages[parent] + 1 for parent in unsettled})
        for parent, age in self._ages.items():
            demand("stranded", age <= STEPS_MAX, f"the end of {parent} does not arrive")

    def _judge_edges(self, ids: Mapping[int, str], edges: Sequence[Row]) -> None:
        """Every edge is there and says what became of the parent."""
        kept: Counter[int] = Counter()
        for child, parent, state in edges:
            id_ = ids.get(child)
            if id_ is None or parent not in self.parents[id_]:
                raise Violation("edges", f"task {child} has an edge from {parent}")
            kept[child] += 1
            end = self.end_of(parent, id_)
            if state != _right_state(end) and parent not in self.unsettled:
                raise Violation("edges", f"{parent} is {end}, its edge to {child} is {state}")
        for seq, id_ in ids.items():
            if kept[seq] != len(self.parents.get(id_, ())) and self.ends.get(id_) != "rejected":
                raise Violation("edges", f"task {seq} has {kept[seq]} of {self.parents[id_]}")

    # ------------------------------------------------------------ at the end

    def excused(self, tasks: Mapping[str, Task]) -> set[str]:
        """Return the tasks that wait, directly or indirectly, for an unknown or parked task."""
        found: set[str] = set()
        waiting = [task for task in tasks.values() if task.state == "waiting_dependency"]
        while True:
            more = {
                task.id
                for task in waiting
                if task.id not in found
                if any(self._holds(p, task.id, tasks, found) for p in self.parents[task.id])
            }
            if not more:
                return found
            found |= more

    def _holds(self, parent: str, child: str, tasks: Mapping[str, Task], excused: set[str]) -> bool:
        if self.end_of(parent, child) is not None:
            return False
        task = tasks.get(parent)
        return task is None or task.state == "parked" or parent in excused


def _right_state(end: str | None) -> int:
    if end is None:
        return _OPEN
    return _MET if end == "done" else _BROKEN
