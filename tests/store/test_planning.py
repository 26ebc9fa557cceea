"""A plan is what a lease would do: tried by doing it, at every step of random histories."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import LeaseLost, NotFound
from fairlane.core.model import Task
from fairlane.engine.commands import Submit
from fairlane.engine.reads import plan as planning
from fairlane.engine.reads.plan import Plan, PlanQuery
from tests.store.scheduler import Scheduler, submission, task_rows
from tests.store.stores import contents

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Store

ROUTES = ("handler/one", "handler/two", "action")
WORKER = "w"
AGENTS = tuple(f"agent-{number}" for number in range(30))


def plan(
    scheduler: Scheduler, lane: str = "queue", now: int | None = None, limit: int = 100
) -> Plan:
    asked = PlanQuery(lane, now, limit)
    return planning.read(scheduler.reader, asked, lambda _: scheduler.clock.now())


def reasons(found: Plan) -> dict[str, str]:
    return {task.id: reason for task, reason in found.skipped}


def leased(found: Plan) -> list[str]:
    return [task.id for task in found.leases]


def add(scheduler: Scheduler, *names: str, **fields: Any) -> list[Task]:
    return scheduler.submit(*names, lane="queue", **fields)


def take(scheduler: Scheduler, limit: int = 1, **fields: Any) -> list[Task]:
    grants = scheduler.lease(limit, lanes=("queue",), worker=WORKER, **fields)
    return [grant.task for grant in grants]


def test_an_empty_lane_has_an_empty_plan(scheduler: Scheduler) -> None:
    found = plan(scheduler)
    assert (found.leases, found.skipped, found.counts) == ([], [], {})
    assert (found.ceiling, found.in_flight, found.available) == (1, 0, 1)
    assert not found.truncated


def test_what_goes_first_is_leased_and_the_rest_waits_for_the_ceiling(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=2)
    add(scheduler, "c", priority=50)
    add(scheduler, "a", "b", priority=10)
    add(scheduler, "d", priority=100)
    found = plan(scheduler)
    assert leased(found) == ["a", "b"]
    assert [(task.id, reason) for task, reason in found.skipped] == [
        ("c", "concurrency-ceiling"),
        ("d", "concurrency-ceiling"),
    ]
    assert found.counts == {"concurrency-ceiling": 2}


def test_a_plan_changes_nothing_and_says_the_same_again(scheduler: Scheduler, store: Store) -> None:
    add(scheduler, "a", "b", "c")
    take(scheduler)
    before = contents(store)
    later = scheduler.clock.now() + 3_600_000
    assert plan(scheduler, now=later) == plan(scheduler, now=later)
    assert contents(store) == before


def test_a_plan_does_not_wait_for_the_writer_nor_hold_it_up(
    scheduler: Scheduler, store: Store
) -> None:
    add(scheduler, "a")
    writer = store.writer()
    writer.begin()
    try:
        assert leased(plan(scheduler)) == ["a"]
        with scheduler.reader.snapshot():
            writer.run("writer_save", name="x", commit_id=1, now=1)
            writer.commit()
    finally:
        writer.close()


def test_every_reason_is_reported(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxAttempts=2, backoffMs=10_000)
    add(scheduler, "failing", priority=1)
    scheduler.fail(scheduler.start(take(scheduler)[0]))
    add(scheduler, "parks", priority=2)
    (task,) = take(scheduler)
    scheduler.fail(task)
    scheduler.pass_time(10_000)
    tasks = take(scheduler)  # `failing` again, its second and last attempt
    scheduler.fail(tasks[0])
    add(scheduler, "done", priority=0)
    scheduler.complete(take(scheduler)[0])
    add(scheduler, "late", delay_ms=60_000)
    add(scheduler, "child", depends_on=("nobody",))
    add(scheduler, "s1", "s2", session="s")
    add(scheduler, "next", priority=-5)
    found = plan(scheduler)
    assert leased(found) == ["next"]
    assert reasons(found) == {
        "failing": "parked",
        "parks": "concurrency-ceiling",
        "done": "terminal",
        "late": "delay",
        "child": "dependency",
        "s1": "concurrency-ceiling",
        "s2": "session",
    }
    scheduler.fail(take(scheduler, 1)[0])
    assert reasons(plan(scheduler))["next"] == "backoff"


def test_a_paused_lane_leases_nothing(scheduler: Scheduler) -> None:
    add(scheduler, "a", "b")
    scheduler.set_lane("queue", paused=True)
    found = plan(scheduler)
    assert leased(found) == []
    assert reasons(found) == {"a": "paused", "b": "paused"}


def test_items_of_a_batch_wait_for_its_parallelism(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=5)
    items = [submission(name, lane="queue") for name in ("a", "b", "c")]
    scheduler.batch(*items, parallelism=1)
    found = plan(scheduler)
    assert leased(found) == ["a"]
    assert reasons(found) == {"b": "batch", "c": "batch"}


def test_the_very_moment_of_eligibility_counts(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", backoffMs=1000)
    add(scheduler, "a")
    scheduler.fail(take(scheduler)[0])
    at = scheduler.clock.now() + 1000
    assert reasons(plan(scheduler, now=at - 1)) == {"a": "backoff"}
    assert leased(plan(scheduler, now=at)) == ["a"]


def test_the_very_moment_of_expiry_counts(scheduler: Scheduler) -> None:
    """It frees the slot, and the task itself waits for its next attempt."""
    add(scheduler, "a", "b")
    (task,) = take(scheduler, ttl_ms=5000)
    at = scheduler.clock.now() + 5000
    assert plan(scheduler, now=at - 1).in_flight == 1
    found = plan(scheduler, now=at)
    assert (found.in_flight, leased(found)) == (0, ["b"])
    assert reasons(found) == {task.id: "leased"}
    assert found.counts == {"leased": 1}


def test_a_long_queue_is_counted_and_not_listed(scheduler: Scheduler) -> None:
    add(scheduler, *(f"t{number}" for number in range(30)))
    add(scheduler, *(f"d{number}" for number in range(12)), delay_ms=60_000)
    found = plan(scheduler, limit=5)
    assert found.counts == {"concurrency-ceiling": 29, "delay": 12}
    assert Counter(reasons(found).values()) == {"concurrency-ceiling": 5, "delay": 5}
    assert found.truncated
    assert not found.at_least


def test_a_plan_of_many_leases_stops_at_its_limit(scheduler: Scheduler) -> None:
    scheduler.set_lane("queue", maxInflight=50)
    add(scheduler, *(f"t{number}" for number in range(30)))
    found = plan(scheduler, limit=10)
    assert len(found.leases) == 10
    assert found.counts == {"limit": 20}
    assert found.truncated


def test_more_behind_a_gate_than_are_counted_are_reported_as_at_least(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "COUNT_MAX", 8)
    add(scheduler, *(f"d{number}" for number in range(12)), delay_ms=60_000)
    found = plan(scheduler, limit=5)
    assert (found.counts, found.at_least) == ({"delay": 8}, ["delay"])


def test_what_came_due_is_not_counted_as_held(scheduler: Scheduler) -> None:
    add(scheduler, *(f"d{number}" for number in range(6)), delay_ms=1000)
    add(scheduler, *(f"e{number}" for number in range(6)), delay_ms=9000)
    found = plan(scheduler, now=scheduler.clock.now() + 1000, limit=5)
    assert found.counts == {"concurrency-ceiling": 5, "delay": 6}


def test_an_unknown_lane_is_refused_with_the_nearest(scheduler: Scheduler) -> None:
    with pytest.raises(NotFound, match=r'lane "queu" is not in the policy; did you mean queue\?'):
        plan(scheduler, "queu")


# -------------------------------------------------------------------- random histories


def fields(chance: random.Random) -> dict[str, Any]:
    """A task of any kind that a plan has to judge."""
    found: dict[str, Any] = {
        "lane": chance.choice(["main", "queue"]),
        "capability": chance.choice(ROUTES[:2]),
        "priority": chance.choice([-20, 0, 0, 0, 5, 10]),
        "agent": chance.choice("abc" if chance.random() < 0.5 else AGENTS),
    }
    if chance.random() < 0.3:
        found["session"] = chance.choice(["s", "t"])
    if chance.random() < 0.2:
        found["delay_ms"] = chance.choice([500, 2000, 40_000])
    if chance.random() < 0.1:
        found["preemptible"] = True
    return found


class History:
    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.chance = random.Random(seed)
        self.open: list[Task] = []
        self.names = iter(range(10_000))

    def step(self) -> None:
        chance, scheduler = self.chance, self.scheduler
        what = chance.choice(["submit", "submit", "batch", "end", "end", "time", "cancel"])
        if what == "submit":
            items = [submission(f"t{next(self.names)}", **fields(chance)) for _ in range(4)]
            if chance.random() < 0.3:
                late = scheduler.clock.now() + chance.choice([300, 3000])
                items.append(submission(f"t{next(self.names)}", lane="queue", deadline_at=late))
            scheduler.apply(Submit(items))
        elif what == "batch":
            items = [submission(f"t{next(self.names)}", lane="main") for _ in range(3)]
            scheduler.batch(*items, name=f"b{next(self.names)}", parallelism=chance.randint(1, 2))
        elif what == "end" and self.open:
            self.end(self.open.pop(chance.randrange(len(self.open))))
        elif what == "cancel":
            rows = task_rows(scheduler.reader, states=["queued"], limit=3)
            for row in rows[:1]:
                scheduler.cancel(row[1])
        else:
            scheduler.clock.advance(chance.choice([10, 400, 1000, 5000]))

    def end(self, task: Task) -> None:
        scheduler = self.scheduler
        ways: list[Callable[[Task], Task]] = [
            scheduler.complete,
            scheduler.fail,
            scheduler.release,
        ]
        how = self.chance.choice(ways)
        with contextlib.suppress(LeaseLost):  # time may have taken it back
            how(task)

    def compare(self) -> int:
        """Plan, do it, and see the same; how many were leased."""
        scheduler, chance = self.scheduler, self.chance
        lane, limit = chance.choice(["main", "queue"]), chance.choice([1, 3, 50])
        later = chance.choice([0, 0, 600, 2500, 50_000])
        found = plan(scheduler, lane, now=scheduler.clock.now() + later, limit=limit)
        again = plan(scheduler, lane, now=scheduler.clock.now() + later, limit=limit)
        assert found == again
        scheduler.clock.advance(later)
        before = {task.id for task in self.tasks(lane)}
        routes = frozenset(ROUTES) | {"handler/work"}
        ttl_ms = chance.choice([2000, 100_000])
        grants = scheduler.lease(
            limit, lanes=(lane,), capabilities=routes, worker=WORKER, ttl_ms=ttl_ms
        )
        assert [grant.task.id for grant in grants] == leased(found)
        self.open += [grant.task for grant in grants]
        self.account(found, lane, limit, before)
        return len(grants)

    def account(self, found: Plan, lane: str, limit: int, before: set[str]) -> None:
        """Everything of the lane is leased, under way, or listed once with its reason."""
        listed = [task.id for task, _ in found.skipped]
        assert len(listed) == len(set(listed))
        assert not set(listed) & set(leased(found))
        if limit == 50:
            holding = {task.id for task in self.tasks(lane) if task.leased and not task.terminal}
            assert set(listed) | set(leased(found)) | holding == before
            assert Counter(reasons(found).values()) == found.counts

    def tasks(self, lane: str) -> list[Task]:
        width = len(Task.__struct_fields__)
        rows = task_rows(self.scheduler.reader, lane=lane, limit=10_000)
        return [Task(*row[:width]) for row in rows]


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_says_what_the_lease_then_does(scheduler: Scheduler, seed: int) -> None:
    scheduler.set_policy(
        lanes={
            "main": {"maxInflight": 4, "maxPerAgentInflight": 2, "reserved": {"critical": 1}},
            "queue": {"maxInflight": 2, "backoffMs": 700 if seed % 3 else 0},
        },
        agents={"a": {"weight": 2}},
    )
    history = History(scheduler, seed)
    given = 0
    for number in range(24):
        history.step()
        if number % 2:
            given += history.compare()
    assert given > 5
