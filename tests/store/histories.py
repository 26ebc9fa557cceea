"""One history of requests that uses every verb, for tests that compare how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.engine.commands import (
    Cancel,
    ClaimDeliveries,
    Complete,
    Fail,
    IdempotencyKey,
    Reclaim,
    Release,
    Renew,
    SetPolicy,
    SettleDelivery,
    Start,
    Submit,
    UseSecret,
)
from tests.store.scheduler import lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.engine.engine import Outcome
    from tests.store.scheduler import Scheduler

URL = "https://receiver.example/hook"


def play(scheduler: Scheduler, before_each: Callable[[], None] = lambda: None) -> list[Outcome]:
    """Go through a task's whole life and its accidents; what came of each batch."""
    outcomes: list[Outcome] = []

    def apply(*batch: Any, limit: int = 0) -> Outcome:
        before_each()
        waiting = [lease_request(limit)] if limit else []
        outcomes.append(scheduler.apply(*batch, waiting=waiting))
        return outcomes[-1]

    key = IdempotencyKey("a", "key", "digest")
    apply(SetPolicy({"lanes": {"main": {"maxInflight": 3, "maxQueueSize": 6}}}, "test"))
    apply(
        UseSecret("secret"), Submit([submission("s1", session="s"), submission("s2", session="s")])
    )
    apply(Submit([submission(f"t{number}", "b", callback_url=URL) for number in range(6)], key))
    granted = apply(limit=3).grants[0]
    one, two, three = (grant.task for grant in granted)
    apply(
        Start(one.seq, one.fencing_token),
        Start(two.seq, two.fencing_token),
        Renew(three.seq, three.fencing_token, 30_000),
    )
    apply(
        Complete(one.seq, one.fencing_token, '"result"'),
        Fail(two.seq, two.fencing_token, "no luck"),
        Release(three.seq, three.fencing_token),
        Cancel("t3"),
        limit=3,
    )
    apply(Submit([submission("late", deadline_at=scheduler.clock.now() + 500)]), Cancel("t4"))
    scheduler.clock.advance(1500)
    again = apply(limit=1).grants[0]
    (owed, *_) = apply(ClaimDeliveries(5)).answers[0]
    apply(SettleDelivery(owed.id, delivered=False, error="500", retry_after_ms=5000))
    apply(Reclaim("node"), *(Cancel(grant.task.id) for grant in again))
    apply(Submit([submission("t9")], key))
    scheduler.clock.advance(60_000)
    apply(limit=3)
    return outcomes
