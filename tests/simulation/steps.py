"""Steps of the wall clock: what the first commit after one must have done to every row.

No time has passed, so every span in progress has as long to go as before: its end has moved with
the clock. What a caller named by the clock stays. The rows of the last reading are moved here, by
rules of their own, before they are compared: whatever the engine moved otherwise, or not at all,
is then a change without a cause. In particular, no lease runs out and no wait lasts longer
because somebody has set the clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from fairlane.clock import reading_of
from tests.simulation.ledger import LIVE

if TYPE_CHECKING:
    from fairlane.clock import ManualClock
    from fairlane.core.model import Task
    from fairlane.core.policy import Policy
    from tests.simulation.ground import Ground
    from tests.simulation.histories import Life

LEAST_MS: Final = 1000  # smaller steps are left alone
CRITICAL: Final = -20


class ClockWatch:
    """By how much the clock was set since the last commit of anybody."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._known = self._ahead()

    def committed(self) -> int:
        """The step that this commit must have taken in, 0 for none."""
        by, self._known = self._ahead() - self._known, self._ahead()
        return by if abs(by) >= LEAST_MS else 0

    def _ahead(self) -> int:
        ahead = reading_of(self._clock).ahead
        assert ahead is not None
        return ahead


def take_in(ground: Ground, by: int, now: int) -> None:
    """Move everything that was known before the step; `now` is by the clock as it is set."""
    for seq, task in list(ground.reader.tasks.items()):
        moved = _moved(task, ground.histories.lives[seq], ground.policy, by)
        if moved is not task:
            ground.reader.replace(moved)
            ground.books.move(task, moved)
            if seq in ground.open:
                ground.open[seq] = moved
    for told in ground.marks.known.values():
        if by < 0 and told.cutoff_at is not None and told.cutoff_at > now:
            told.cutoff_at += by


def _moved(task: Task, life: Life, policy: Policy, by: int) -> Task:
    live = task.state in LIVE
    if task.lease_expires_at is None and not live:
        return task
    after = msgspec.structs.replace(task)
    if after.lease_expires_at is not None:
        after.lease_expires_at += by
    if live:
        life.moved_ms += by
        after.queued_at += by
        if after.deadline_at is not None and not life.named:
            after.deadline_at += by
        if after.eligible_at is not None and _waits_for_a_span(task, life):
            after.eligible_at += by
        if policy.lanes[task.lane].aging_ms is not None and task.priority > CRITICAL:
            life.aged_ms += by
            after.rank += by
    return after


def _waits_for_a_span(task: Task, life: Life) -> bool:
    """A window, a retry or a delay; the moment that its caller named is none."""
    tried = task.fencing_token > 0
    return task.gate == "debounce" or tried or life.submission.delay_ms is not None
