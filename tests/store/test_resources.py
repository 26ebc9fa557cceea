"""Resources on both databases: reserve with the lease, wait, wake, settle, close, raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core import events
from fairlane.core.errors import InvalidRequest, LeaseLost, NeedsUnsatisfiable
from fairlane.core.model import Task
from fairlane.core.resources import Blocked
from fairlane.engine.commands import Complete, Fail, Release, SetPolicy, Submit
from fairlane.engine.reads import plan as planning
from fairlane.engine.reads import resource_recount
from fairlane.engine.reads import why as explaining
from fairlane.engine.resource_commands import (
    CloseResource,
    Closing,
    OpenResource,
    Permit,
    PermitGranted,
    PermitRefused,
    RaiseResource,
    ResourceReport,
    SettlePermit,
)
from fairlane.store.tables import resources as table
from tests.store.scheduler import Scheduler, lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.clock import ManualClock
    from fairlane.store.base import Store

M = 1_000_000
RESOURCES = {
    "gpt": {"limits": [{"unit": "tokens", "amount": 10, "perMs": 1000}]},
    "spend": {"limits": [{"unit": "usd", "amount": "1.5", "resetEveryMs": 60_000}], "by": "agent"},
    "gpu": {"limits": [{"unit": "mb", "amount": 8}]},
    "profile": {"limits": [{"amount": 1}], "by": "key"},
}


class World(Scheduler):
    def __init__(self, store: Store, clock: ManualClock | None = None) -> None:
        super().__init__(store, clock)
        self.set_policy(resources=RESOURCES, lanes={"main": {"maxInflight": 1000}})

    def take(self, limit: int = 1, **fields: Any) -> list[Task]:
        """Lease, and check that the store is in order afterwards."""
        grants = self.apply(waiting=[lease_request(limit, **fields)]).grants[0]
        self.check()
        return [grant.task for grant in grants]

    def end(self, task: Task, **report: Any) -> Any:
        made = ResourceReport(**report) if report else None
        answer = self.apply(Complete(task.seq, task.fencing_token, report=made)).answers[0]
        self.check()
        return answer

    def check(self) -> None:
        assert resource_recount.recount(self.reader) == []

    def state(self, resource: str, slot: str, key: str = "") -> Any:
        (account,) = table.accounts(self.reader, [(resource, key)])
        return account.states[slot]

    def gate(self, name: str) -> str | None:
        return self.view(name).task.gate


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    found = World(store)
    yield found
    found.check()
    found.close()


def test_a_lease_reserves_and_its_end_settles(world: World) -> None:
    world.submit("t", needs={"gpt": {"tokens": 4}, "spend": {"usd": "0.5"}})
    (task,) = world.take()
    assert world.state("gpt", "tokens:rate").reserved == 4 * M
    assert world.state("spend", "usd:budget", "a").reserved == 500_000
    world.end(task, usage={"gpt": {"tokens": 3}, "spend": {"usd": "0.7"}})
    rate = world.state("gpt", "tokens:rate")
    assert (rate.reserved, rate.used) == (0, 3 * M)
    assert world.state("spend", "usd:budget", "a").used == 700_000
    (account,) = table.accounts(world.reader, [("spend", "a")])
    kinds = [
        (e.kind, e.amount) for e, _ in table.entries(world.reader, account.id, after=0, limit=9)
    ]
    assert kinds == [("reserve", 500_000), ("debt", 200_000)]
    (used,) = table.usage(world.reader, "spend", first=0, last=10**9)
    assert (used.agent, used.used, used.settled) == ("a", 700_000, 1)


def test_what_does_not_fit_waits_and_wakes_at_the_moment(world: World) -> None:
    world.submit("t1", "t2", "t3", needs={"gpt": {"tokens": 6}})
    (first,) = world.take(9)
    assert [world.gate(name) for name in ("t1", "t2", "t3")] == [None, "resource", "resource"]
    world.end(first)
    assert world.take(9) == []
    world.clock.advance(999)
    assert world.take(9) == []
    world.clock.advance(1)
    (second,) = world.take(9)
    assert second.id == "t2"
    world.end(second, usage={"gpt": {"tokens": 1}})
    assert [task.id for task in world.take(9)] == ["t3"]


def test_a_pool_is_free_again_when_its_holder_ends(world: World) -> None:
    world.submit("t1", "t2", needs={"gpu": {"mb": 5}})
    (first,) = world.take(9)
    outcome = world.apply(Complete(first.seq, first.fencing_token), waiting=[lease_request(9)])
    assert [grant.task.id for grant in outcome.grants[0]] == ["t2"]


def test_blocked_tasks_block_no_others(world: World) -> None:
    world.submit(*[f"b{number}" for number in range(50)], needs={"profile/bank": {}})
    world.submit("free")
    world.submit("other", needs={"profile/shop": {}})
    assert sorted(task.id for task in world.take(9)) == ["b0", "free", "other"]


def test_all_or_nothing(world: World) -> None:
    world.submit("holder", needs={"gpu": {"mb": 8}})
    world.take()
    world.submit("both", needs={"gpt": {"tokens": 5}, "gpu": {"mb": 1}})
    world.submit("small", needs={"gpt": {"tokens": 10}})
    assert [task.id for task in world.take(9)] == ["small"]


def test_wrong_needs_are_refused(world: World) -> None:
    def refused(**needs: Any) -> Any:
        (answer,) = world.ask(Submit([submission("x", needs=needs)]))
        return answer

    assert isinstance(refused(gtp={}), InvalidRequest)
    assert isinstance(refused(gpt={"tokens": 11}), NeedsUnsatisfiable)
    assert not world.take()


def test_a_wrong_report_changes_nothing(world: World) -> None:
    world.submit("t", needs={"gpt": {"tokens": 4}, "gpu": {"mb": 1}})
    (task,) = world.take()
    for usage in ({"gpt": {"tokens": -1}}, {"gpt": {"images": 1}}, {"x": {}}, {"gpu": {"mb": 1}}):
        assert isinstance(world.end(task, usage=usage), InvalidRequest)
    assert isinstance(world.end(task, closed={"gtp": Closing(5)}), InvalidRequest)
    assert isinstance(world.end(task, observed={"gpt": {"x": 1}}), InvalidRequest)
    assert isinstance(world.end(task, observed={"gpt": {"tokens": "x"}}), InvalidRequest)
    assert world.state("gpt", "tokens:rate").reserved == 4 * M
    world.end(task)
    assert isinstance(world.end(task, usage={"gpt": {"tokens": 1}}), Task)  # repeated: no effect
    assert world.state("gpt", "tokens:rate").used == 4 * M


def test_a_release_before_the_start_returns_everything(world: World) -> None:
    world.submit("t", needs={"gpt": {"tokens": 4}})
    (task,) = world.take()
    world.apply(Release(task.seq, task.fencing_token))
    assert world.state("gpt", "tokens:rate").used == 0
    (task,) = world.take(start=True)
    world.apply(Release(task.seq, task.fencing_token))
    assert world.state("gpt", "tokens:rate").used == 4 * M


def test_the_reservation_of_a_dead_worker_counts_as_used(world: World) -> None:
    world.submit("t", needs={"gpt": {"tokens": 4}, "gpu": {"mb": 8}})
    (task,) = world.take(worker="w")
    world.clock.advance(16_000)
    world.apply()
    world.check()
    assert world.state("gpt", "tokens:rate").used == 4 * M
    assert world.state("gpu", "mb:pool").reserved == 0
    assert isinstance(world.end(task), LeaseLost)


def test_a_cancelled_run_holds_its_pool_until_it_stops(world: World) -> None:
    world.submit("t", needs={"gpu": {"mb": 8}})
    (task,) = world.take(start=True)
    world.cancel("t")
    assert world.state("gpu", "mb:pool").reserved == 8 * M
    world.end(task)
    assert world.state("gpu", "mb:pool").reserved == 0


def test_a_refusing_provider_closes_the_resource_for_all_and_costs_no_attempt(
    world: World,
) -> None:
    world.submit("t1", "t2", needs={"gpt": {"tokens": 1}})
    (task,) = world.take()
    report = ResourceReport(closed={"gpt": Closing(30_000, "429")})
    world.apply(Fail(task.seq, task.fencing_token, "429", report=report))
    assert world.view("t1").task.attempts == 0
    assert world.take(9) == []
    world.clock.advance(29_999)
    assert world.take(9) == []
    world.close()
    again = Scheduler(world.store, world.clock)
    assert again.engine.apply([], [lease_request(9)]).grants == [[]]
    assert again.engine.due_at == world.clock.now() + 1
    world.clock.advance(1)
    grants = again.engine.apply([], [lease_request(9)]).grants[0]
    assert sorted(grant.task.id for grant in grants) == ["t1", "t2"]
    again.close()
    world.reader = world.store.reader()


def test_an_operator_closes_opens_and_raises(world: World) -> None:
    world.ask(CloseResource("gpt", reason="maintenance"))
    world.submit("t", needs={"gpt": {"tokens": 1}})
    assert world.take() == []
    world.ask(OpenResource("gpt"))
    assert len(world.take()) == 1
    world.submit("m1", "m2", needs={"spend": {"usd": 1}})
    (first,) = world.take(9)
    world.end(first)
    assert world.take(9) == []
    world.ask(RaiseResource("spend", "usd", M, key="a"))
    assert [task.id for task in world.take(9)] == ["m2"]
    assert world.refused(RaiseResource("gpt", "tokens", M)).code == "conflict"
    assert world.refused(RaiseResource("spend", "eur", M, key="a")).code == "invalid_request"
    assert world.refused(CloseResource("gtp")).code == "not_found"


def test_a_budget_warns_once_in_a_window(world: World) -> None:
    world.set_policy(resources={"spend": {**RESOURCES["spend"], "warnAt": 0.8}})

    def use(name: str, amount: str) -> list[str]:
        world.submit(name, needs={"spend": {"usd": amount}})
        world.end(*world.take())
        return [event.type for event in world.events() if event.type == events.RESOURCE_WARNED]

    assert len(use("t1", "1.1")) == 0
    assert len(use("t2", "0.1")) == 1
    assert len(use("t3", "0.2")) == 1
    world.pass_time(60_000)
    assert len(use("t4", "1.1")) == 1
    assert len(use("t5", "0.3")) == 2


def test_every_change_of_a_resource_is_an_event(world: World) -> None:
    world.set_policy(resources={"spend": {**RESOURCES["spend"], "warnAt": 0.8}})
    world.ask(CloseResource("spend", key="a"))
    world.ask(OpenResource("spend", key="a"))
    world.ask(RaiseResource("spend", "usd", M, key="a"))
    world.submit("t1", "t2", needs={"spend": {"usd": 1}})
    world.take(2)
    recorded = {event.type for event in world.events() if event.resource}
    assert recorded == set(events.RESOURCES)


@pytest.mark.parametrize(("when", "state"), [("fail", "failed"), ("park", "parked")])
def test_a_spent_budget_ends_what_waits_for_it(world: World, when: str, state: str) -> None:
    spend = {**RESOURCES["spend"], "whenSpent": when}
    world.set_policy(resources={"spend": spend})
    world.submit("t1", "t2", needs={"spend": {"usd": 1}})
    (first,) = world.take(9)
    assert world.gate("t2") == "resource"  # what is reserved may come back
    world.end(first)
    assert world.view("t2").state == state
    world.submit("t3", needs={"spend": {"usd": 1}})
    assert world.view("t3").state == state


def test_a_budget_that_asks_says_so_once_per_window(world: World) -> None:
    world.set_policy(resources={"spend": {**RESOURCES["spend"], "whenSpent": "ask"}})
    world.submit("t1", "t2", "t3", needs={"spend": {"usd": 1}})
    (first,) = world.take(9)
    world.end(first)
    world.take(9)
    (account,) = table.accounts(world.reader, [("spend", "a")])
    assert account.asked_at == account.states["usd:budget"].window_at


def test_a_lower_limit_counts_at_once_and_a_removed_resource_keeps_tasks_waiting(
    world: World,
) -> None:
    world.submit("t1", "t2", needs={"gpu": {"mb": 4}})
    world.set_policy(resources={"gpu": {"limits": [{"unit": "mb", "amount": 4}]}})
    assert len(world.take(9)) == 1
    world.ask(SetPolicy({"resources": {"gpu": None}}, "patch", how="patch"))
    assert world.gate("t2") == "resource"
    world.set_policy(resources={"gpu": {"limits": [{"unit": "mb", "amount": 20}]}})
    assert [task.id for task in world.take(9)] == ["t2"]


def test_a_large_need_is_overtaken_only_a_few_times(world: World) -> None:
    world.submit("hold", agent="h", needs={"gpu": {"mb": 4}})
    world.take()
    world.submit("large", agent="l", needs={"gpu": {"mb": 8}})
    running: list[Task] = world.take(9)
    for number in range(40):
        world.submit(f"s{number}", agent=f"s{number}", needs={"gpu": {"mb": 4}})
        running += world.take(9)
        if running:
            world.end(running.pop(0))
    passed = [n for n in range(40) if world.view(f"s{n}").task.state != "queued"]
    assert len(passed) <= 10


def test_the_agent_that_took_least_goes_first(world: World) -> None:
    world.submit(*[f"a{n}" for n in range(6)], agent="ada", needs={"profile/x": {}})
    world.submit(*[f"b{n}" for n in range(6)], agent="bob", needs={"profile/x": {}})
    order = ""
    for _ in range(12):
        (task,) = world.take(9)
        order += task.id[0]
        world.end(task)
    assert order.count("ab") + order.count("ba") >= 10


# -------------------------------------------------------------------- permits


def permit(task: Task, until: float | None = None, **needs: Any) -> Permit:
    return Permit(task.seq, task.fencing_token, needs, until)


def test_a_permit_reserves_for_one_call(world: World) -> None:
    world.submit("t")
    (task,) = world.take(start=True)
    one = world.ask(permit(task, gpt={"tokens": 6}))
    assert isinstance(one, PermitGranted)
    refused = world.ask(permit(task, gpt={"tokens": 6}))
    assert isinstance(refused, PermitRefused)
    assert refused.retry_after_ms is None
    report = ResourceReport(usage={"gpt": {"tokens": 2}})
    world.ask(SettlePermit(task.seq, task.fencing_token, one.id, report))
    world.ask(SettlePermit(task.seq, task.fencing_token, one.id, report))
    assert world.state("gpt", "tokens:rate").used == 2 * M
    two = world.ask(permit(task, gpt={"tokens": 6}))
    assert isinstance(two, PermitGranted)
    world.end(task)
    rate = world.state("gpt", "tokens:rate")
    assert (rate.used, rate.reserved) == (8 * M, 0)
    assert isinstance(world.apply(permit(task, gpt={})).answers[0], LeaseLost)


def test_a_waiting_permit_goes_before_tasks_that_have_not_begun(world: World) -> None:
    world.submit("run", "hold")
    run, hold = world.take(2, start=True)
    held = world.ask(permit(hold, gpu={"mb": 8}))
    waiting = permit(run, until=1e9, gpu={"mb": 8})
    assert world.apply(waiting=[waiting]).grants == [[]]
    world.submit("next", needs={"gpu": {"mb": 1}})
    settle = SettlePermit(hold.seq, hold.fencing_token, held.id)
    lease, granted = world.apply(settle, waiting=[lease_request(9), waiting]).grants
    assert lease == []
    assert isinstance(granted[0], PermitGranted)
    settle = SettlePermit(run.seq, run.fencing_token, granted[0].id)
    (lease,) = world.apply(settle, waiting=[lease_request(9)]).grants
    assert [grant.task.id for grant in lease] == ["next"]


def test_a_new_permit_does_not_overtake_one_that_waits(world: World) -> None:
    world.submit("hold", "large", "small", "other")
    hold, large, small, other = world.take(4, start=True)
    held = world.ask(permit(hold, gpu={"mb": 6}))
    waiting = permit(large, until=1e9, gpu={"mb": 8})
    assert world.apply(waiting=[waiting]).grants == [[]]
    refused = world.apply(permit(small, gpu={"mb": 1}), waiting=[waiting]).answers[0]
    assert refused == PermitRefused(Blocked("gpu", "kept", None))
    elsewhere = world.apply(permit(other, gpt={"tokens": 1}), waiting=[waiting]).answers[0]
    assert isinstance(elsewhere, PermitGranted)
    settle = SettlePermit(hold.seq, hold.fencing_token, held.id)
    behind = permit(small, until=1e9, gpu={"mb": 1})
    (first, second) = world.apply(settle, waiting=[waiting, behind]).grants
    assert isinstance(first[0], PermitGranted)
    assert second == []


def test_nothing_is_kept_for_a_permit_that_no_longer_waits(world: World) -> None:
    world.submit("hold", "large", "small")
    hold, large, small = world.take(3, start=True)
    world.ask(permit(hold, gpu={"mb": 6}))
    assert world.apply(waiting=[permit(large, until=1e9, gpu={"mb": 8})]).grants == [[]]
    assert isinstance(world.ask(permit(small, gpu={"mb": 1})), PermitGranted)


def test_many_permits_wait_and_each_is_granted_once_in_order(world: World) -> None:
    names = [f"t{number}" for number in range(100)]
    world.submit(*names)
    tasks = world.take(100, start=True)
    held = world.ask(permit(tasks[0], gpu={"mb": 8}))
    waiting = [permit(task, until=1e9, gpu={"mb": 8}) for task in tasks[1:]]
    cancelled = waiting.pop(50)
    served = []
    while waiting:
        settle = SettlePermit(held.task.seq, held.task.fencing_token, held.id)
        grants = world.apply(settle, waiting=waiting).grants
        ((first, (held,)),) = [
            (request, found)
            for request, found in zip(waiting, grants, strict=True)
            if found and isinstance(found[0], PermitGranted)
        ]
        served.append(first.seq)
        waiting.remove(first)
    assert served == [task.seq for task in tasks[1:] if task.seq != cancelled.seq]


def test_a_permit_in_the_middle_of_many_hears_that_its_lease_has_ended(world: World) -> None:
    world.submit(*(f"t{number}" for number in range(80)))
    tasks = world.take(80, start=True)
    world.ask(permit(tasks[0], gpu={"mb": 8}))
    waiting = [permit(task, until=1e9, gpu={"mb": 8}) for task in tasks[1:]]
    assert not any(world.apply(waiting=waiting).grants)
    ended = tasks[60]
    grants = world.apply(Complete(ended.seq, ended.fencing_token), waiting=waiting).grants
    (found,) = [
        (request.seq, answer)
        for request, answers in zip(waiting, grants, strict=True)
        for answer in answers
    ]
    assert found[0] == ended.seq
    assert isinstance(found[1], LeaseLost)


def test_what_strangers_use_is_kept_free(world: World) -> None:
    world.submit("t1", "t2", needs={"gpt": {"tokens": 5}})
    first = world.take()[0]
    world.end(first, observed={"gpt": {"tokens": 2}})
    assert world.take() == []
    world.clock.advance(1000)
    assert len(world.take()) == 1


# -------------------------------------------------------------------- why and the plan


def why(world: World, name: str) -> Any:
    found = explaining.read(world.reader, name, moment=lambda _: world.engine.moment())
    assert found is not None
    return found.why


def test_a_waiting_task_says_what_it_lacks_and_who_holds_it(world: World) -> None:
    world.submit("t1", "t2", needs={"gpu": {"mb": 5}})
    world.take(9)
    found = why(world, "t2")
    assert found.gate == "resource"
    assert found.reason == "it needs 5 mb of gpu, but only 3 is available; held by t1"
    assert (list(found.waiting_for), list(found.holders)) == (["gpu"], ["t1"])
    world.ask(CloseResource("gpu", retry_after_ms=1000))
    assert "gpu is closed until" in why(world, "t2").reason
    world.ask(SetPolicy({"resources": {"gpu": None}}, "patch", how="patch"))
    assert "the policy no longer has gpu" in why(world, "t2").reason


def test_a_plan_reserves_as_a_lease_would(world: World) -> None:
    world.submit("t1", "t2", "t3", needs={"gpt": {"tokens": 5}})
    world.submit("free")
    (first,) = world.take()
    asked = planning.PlanQuery("main", None, 9)
    plan = planning.read(world.reader, asked, lambda _: world.engine.moment())
    assert [task.id for task in plan.leases] == ["t2", "free"]
    assert plan.counts["resource"] == 1
    world.end(first)
    assert world.state("gpt", "tokens:rate").reserved == 0
