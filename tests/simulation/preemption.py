"""Making room for critical work: only when that helps, the least important first, and not for ever.

A stop is judged on the world as it stands after the step: what was critical and could not be
leased is still there then.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.simulation.causes import Step, Violation, demand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fairlane.core.model import Task
    from tests.simulation.ledger import Seen

CRITICAL: Final = -20
IN_VAIN_MAX: Final = 25


class Preemption:
    def __init__(self) -> None:
        self.stops = 0
        self._in_vain: Counter[str] = Counter()  # stops in a lane since critical work was leased

    def judge_flags(self, seen: Seen) -> bool:
        """Whether this run was asked to stop in this step."""
        before, after = seen.before, seen.after
        name = f"task {after.seq}: preempt is {after.preempt}"
        if before is not None:
            same = (before.preempt is None) == (after.preempt is None)
            demand("preemption", same, f"{name}, was {before.preempt}")
        waits = after.state == "queued"
        demand("preemption", not (waits and after.preempt), f"{name} and it waits")
        if after.preempt != 1:
            leased = before is not None and before.lease_expires_at is not None
            same_run = leased and before is not None and before.preempt == 1 and not seen.closed
            demand("preemption", not same_run, f"{name} and it was to stop")
            return False
        return before is None or before.preempt == 0 or bool(seen.granted)

    def judge(
        self,
        stopped: Sequence[Task],
        running: Iterable[Task],
        wanted: Callable[[str], int],
        granted: Sequence[Task],
    ) -> None:
        """`running` are all live leases; `wanted` how much critical work of a lane could run."""
        for task in granted:
            if task.priority <= CRITICAL:
                self._in_vain[task.lane] = 0
        if not stopped:
            return
        self.stops += len(stopped)
        runs = [task for task in running if task.preempt is not None]
        for lane in sorted({task.lane for task in stopped}):
            mine = [task for task in runs if task.lane == lane]
            asked = [task for task in mine if task.preempt == 1]
            most = wanted(lane)
            name = f"{[task.seq for task in asked]} in {lane}"
            demand("preemption", len(asked) <= most, f"{name} were stopped for {most}")
            self._judge_choice([task for task in stopped if task.lane == lane], mine)
            self._in_vain[lane] += 1
            demand("preemption", self._in_vain[lane] <= IN_VAIN_MAX, f"{name}: again and again")

    def _judge_choice(self, stopped: Sequence[Task], runs: Sequence[Task]) -> None:
        for task in stopped:
            demand("preemption", task.priority > CRITICAL, f"task {task.seq} is critical itself")
        spared = [task for task in runs if task.preempt == 0 and task.priority > CRITICAL]
        for task in stopped:
            for other in spared:
                first = (task.priority, task.seq) > (other.priority, other.seq)
                demand("preemption", first, f"{task.seq} was stopped before {other.seq}")

    def judge_patience(self, step: Step, lane: str, wanted: int, running: Iterable[Task]) -> None:
        """Critical work that could run, finds its lane full and stops nobody, waits in vain."""
        runs = [task for task in running if task.lane == lane and task.preempt is not None]
        asked = sum(task.preempt == 1 for task in runs)
        spared = [t.seq for t in runs if t.preempt == 0 and t.priority > CRITICAL]
        if wanted > asked and spared:
            raise Violation("preemption", f"{spared} go on in {lane} at step {step.number}")
