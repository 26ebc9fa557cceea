"""Resources at their edges: restarts, forgotten rows, changed policies, and very large amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, InvalidRequest
from fairlane.engine.commands import Complete, Prune, SetPolicy
from fairlane.engine.reads import accounts as reads
from fairlane.engine.resource_commands import (
    CloseResource,
    Closing,
    Permit,
    RaiseResource,
    ResourceReport,
    SettlePermit,
)
from fairlane.engine.verbs import permits, ticks
from fairlane.store.tables import resources as table
from tests.store.test_resources import RESOURCES, M, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    found = World(store)
    yield found
    found.check()
    found.close()


# -------------------------------------------------------------------- lines


def test_a_delayed_task_finds_its_line_after_a_restart(world: World, store: Store) -> None:
    world.submit("late", needs={"gpt": {"tokens": 1}}, delay_ms=1000)
    world.engine.close()
    again = World(store, world.clock)
    again.submit("now", needs={"gpt": {"tokens": 1}})
    again.clock.advance(1000)
    assert {task.id for task in again.take(9)} == {"late", "now"}
    again.close()


def test_a_delayed_task_finds_its_line_after_that_was_forgotten(world: World) -> None:
    month = 30 * 86_400_000
    world.submit("early", needs={"gpt": {"tokens": 1}})
    world.submit("late", needs={"gpt": {"tokens": 1}}, delay_ms=month)
    world.end(*world.take())
    world.clock.advance(month - 1)
    world.ask(Prune(dry_run=False))
    world.engine.close()
    world.submit("now", needs={"gpt": {"tokens": 10}})
    (now,) = world.take(9)
    world.clock.advance(1)
    assert world.take(9) == []
    assert world.gate("late") == "resource"
    world.end(now, usage={"gpt": {"tokens": 0}})
    assert [task.id for task in world.take(9)] == ["late"]


def test_a_closed_resource_wakes_its_waiters_at_its_reset_after_a_restart(
    world: World, store: Store
) -> None:
    world.ask(CloseResource("gpt", retry_after_ms=60_000))
    reset_at = world.clock.now() + 60_000
    names = {f"t{number}" for number in range(5)}
    world.submit(*sorted(names), needs={"gpt": {"tokens": 1}})
    world.engine.close()
    world.clock.advance(20_000)
    again = World(store, world.clock)
    assert again.take(99) == []
    while again.clock.now() < reset_at:
        due_at = again.engine.due_at
        assert due_at is not None
        again.clock.advance(due_at - again.clock.now())
        started = again.take(99, start=True)
        assert bool(started) == (again.clock.now() == reset_at)
    assert {task.id for task in started} == names
    assert again.take(99) == []
    again.close()


# -------------------------------------------------------------------- amounts


def test_use_that_no_account_can_count_is_refused(world: World) -> None:
    world.submit(*(f"t{number}" for number in range(6)), needs={"spend": {"usd": "0.1"}})
    tasks = world.take(9)
    most = {"spend": {"usd": 10**12}}
    ends = [world.end(task, usage=most) for task in tasks]
    assert [isinstance(end, InvalidRequest) for end in ends] == [False] * 3 + [True] * 3
    assert "usage.spend.usd" in str(ends[-1])
    world.end(tasks[-1])
    assert world.state("spend", "usd:budget", "a").used == 3 * 10**12 * M + 100_000


def test_a_permit_cannot_settle_what_no_account_can_count(world: World) -> None:
    world.submit("t")
    (task,) = world.take()
    key = (task.seq, task.fencing_token)
    permits = [world.ask(Permit(*key, {"gpt": {"tokens": 2}})).id for _ in range(5)]
    report = ResourceReport({"gpt": {"tokens": 10**12}})
    settled = [world.apply(SettlePermit(*key, number, report)).answers[0] for number in permits]
    assert [isinstance(one, InvalidRequest) for one in settled] == [False] * 3 + [True] * 2
    world.check()


def test_the_use_of_a_day_is_counted_without_bound(world: World) -> None:
    for number in range(12):
        world.submit(f"t{number}", needs={"gpt": {"tokens": 1}})
        (task,) = world.take()
        world.end(task, usage={"gpt": {"tokens": 10**12}})
        world.clock.advance(1000)
    (used,) = table.usage(world.reader, "gpt", first=0, last=10**9)
    assert used.used >= 4 * 10**12 * M
    assert used.settled == 12


def test_a_budget_is_raised_within_what_can_be_counted(world: World) -> None:
    most = RaiseResource("spend", "usd", 10**12 * M, "a")
    world.ask(most)
    refused = world.refused(most)
    assert isinstance(refused, Conflict)
    assert "spend/a" in refused.message


# -------------------------------------------------------------------- a changed policy


def _patch(world: World, resources: dict[str, Any]) -> None:
    world.ask(SetPolicy({"resources": resources}, "patch", how="patch"))
    world.check()


GONE: dict[str, Any] = {
    "its resource": None,
    "its limit": {"limits": [{"unit": "requests", "amount": 4, "perMs": 1000}]},
}


@pytest.mark.parametrize("what", sorted(GONE))
def test_a_reservation_that_outlives_its_limit_is_returned_in_the_ledger(
    world: World, what: str
) -> None:
    world.submit("t", needs={"gpt": {"tokens": 4}})
    (task,) = world.take()
    _patch(world, {"gpt": GONE[what]})
    world.end(task)
    _patch(world, {"gpt": {"limits": [{"unit": "tokens", "amount": 10, "perMs": 1000}]}})
    assert world.state("gpt", "tokens:rate").reserved == 0


def test_what_was_used_stays_used_when_a_budget_gets_a_shorter_window(world: World) -> None:
    _patch(world, {"money": {"limits": [{"unit": "usd", "amount": 10, "resetEvery": "week"}]}})
    world.submit("t", needs={"money": {"usd": 8}})
    world.end(*world.take())
    world.clock.advance(2 * 86_400_000)
    _patch(world, {"money": {"limits": [{"unit": "usd", "amount": 10, "resetEvery": "day"}]}})
    assert world.state("money", "usd:budget").used == 8 * M
    world.clock.advance(86_400_000)
    world.submit("u", needs={"money": {"usd": 8}})
    assert [task.id for task in world.take()] == ["u"]


# -------------------------------------------------------------------- reports


@pytest.mark.parametrize(
    ("name", "word"), [("profile", "needs a key"), ("profile/a b", "must match"), ("gpt/x", "keys")]
)
@pytest.mark.parametrize("field", ["closed", "observed"])
def test_a_report_names_an_account_as_needs_do(
    world: World, field: str, name: str, word: str
) -> None:
    world.submit("t")
    (task,) = world.take()
    value: Any = Closing(1000) if field == "closed" else {"lock": 1}
    report = ResourceReport(**{field: {name: value}})
    answer = world.apply(Complete(task.seq, task.fencing_token, report=report)).answers[0]
    assert isinstance(answer, InvalidRequest)
    assert f"'{field}.{name}'" in answer.message
    assert word in answer.message
    assert table.all_accounts(world.reader) == []


def test_debt_that_passes_the_mark_warns_once(world: World) -> None:
    limits = [{"unit": "usd", "amount": 10, "resetEvery": "week"}]
    _patch(world, {"money": {"limits": limits, "warnAt": 0.8}})
    world.submit("t", "u", needs={"money": {"usd": 1}})
    for task in world.take(2):
        world.end(task, usage={"money": {"usd": 12}})
    assert [event.type for event in world.events()].count("resource.warned") == 1


def test_a_run_has_a_bounded_number_of_open_permits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permits, "OPEN_MAX", 3)
    world.submit("t", needs={"spend": {"usd": "0.1"}})
    (task,) = world.take()
    wanted = Permit(task.seq, task.fencing_token, {"gpt": {"tokens": 1}})
    answers = world.apply(*[wanted] * 4).answers
    assert [isinstance(answer, Conflict) for answer in answers] == [False] * 3 + [True]
    settle = SettlePermit(task.seq, task.fencing_token, answers[0].id)
    _, granted = world.apply(settle, wanted).answers
    assert not isinstance(granted, Conflict)
    world.end(task)
    assert world.state("gpt", "tokens:rate").reserved == 0


# -------------------------------------------------------------------- many accounts


def test_accounts_are_listed_in_pages_whatever_their_names(world: World) -> None:
    _patch(world, {"gpt-5": RESOURCES["gpt"], "profile-2": RESOURCES["profile"]})
    world.submit("t", needs={"profile-2/x": {}, **{f"profile/k{n}": {} for n in range(5)}})
    world.take()
    policy, now = world.engine.policy, world.clock.now()
    labels, after = [], ""
    while True:
        page = reads.accounts(world.reader, policy, now, after=after, limit=2)
        if not page:
            break
        labels += [view.account.label for view in page]
        after = labels[-1]
    keys = [f"profile/k{n}" for n in range(5)]
    assert labels == ["gpt", "gpt-5", "gpu", *keys, "profile-2/x"]


def test_an_agent_lists_its_own_accounts_only(world: World) -> None:
    _patch(world, {"both": {**RESOURCES["spend"], "by": ["agent", "lane"]}})
    needs: Any = {"spend": {"usd": "0.1"}, "both": {"usd": "0.1"}}
    world.submit("t", agent="a", needs=needs)
    world.submit("u", agent="b", needs=needs)
    world.take(2)
    found = reads.accounts(world.reader, world.engine.policy, world.clock.now(), agent="b")
    labels = [view.account.label for view in found]
    assert labels == ["both/agent:b", "both/lane:main", "gpt", "gpu", "spend/b"]


def test_holders_are_found_among_many_reservations(world: World) -> None:
    world.submit(*(f"t{n}" for n in range(30)), agent="a", needs={"gpu": {"mb": "0.1"}})
    world.submit("mine", agent="b", needs={"gpu": {"mb": 1}, "profile/bank": {}})
    world.take(40)
    policy, now = world.engine.policy, world.clock.now()
    everybody = reads.account(world.reader, policy, now, ("gpu", ""), None)
    assert len(everybody.holders) == reads.HOLDERS_SHOWN
    (mine,) = reads.account(world.reader, policy, now, ("gpu", ""), "b").holders
    assert (mine.task_id, mine.amounts) == ("mine", {"mb": M})
    (holder,) = reads.account(world.reader, policy, now, ("profile", "bank"), None).holders
    assert holder.task_id == "mine"


def test_the_use_of_the_first_accounts_and_of_all_without_keys_is_followed(world: World) -> None:
    for number in range(5):
        world.submit(f"t{number}", needs={f"profile/k{number}": {}})
    world.submit("g", needs={"gpt": {"tokens": 1}})
    world.take(9)
    found = reads.sampled(world.reader, world.engine.policy, world.clock.now(), 2)
    assert {view.account.label for view in found} == {"gpt", "profile/k0", "profile/k1"}


def test_the_use_of_a_day_names_the_agents_that_used_most(world: World) -> None:
    nested = {"limits": [{"unit": "usd", "amount": 99, "resetEvery": "day"}]}
    world.set_policy(
        resources={
            "spend": {**nested, "by": ["session", "agent"]},
            "gpt": {"limits": [{"unit": "t", "amount": 99, "perMs": 1000}]},
            "unused": nested,
        }
    )
    for agent, usd in (("ada", 3), ("bob", 5), ("cy", 1), ("dan", 1)):
        needs = {"spend": {"usd": usd}, "gpt": {"t": 1}}
        world.submit(agent, agent=agent, needs=needs, session=f"s-{agent}")
    for task in world.take(9):
        world.end(task)
    now, policy = world.clock.now(), world.engine.policy
    prefixes = {name: one.usage_prefix for name, one in policy.resources.items()}

    def used(now: int, top: int) -> list[tuple[object, ...]]:
        found = table.usage_of_agents(world.reader, prefixes, day=now // reads.DAY_MS, top=top)
        return sorted((one.resource, one.agent or "", one.used / M) for one in found)

    assert used(now, 2) == [
        ("gpt", "", 2),
        ("gpt", "ada", 1),
        ("gpt", "bob", 1),
        ("spend", "", 2),
        ("spend", "ada", 3),
        ("spend", "bob", 5),
    ]
    assert len(used(now, 20)) == 8
    assert used(now + reads.DAY_MS, 20) == []


def test_an_old_ledger_is_forgotten_even_if_nothing_else_happens(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "LEDGER_STEP", 4)
    world.submit("t")
    (task,) = world.take()
    key = (task.seq, task.fencing_token)
    for _ in range(5):
        granted = world.ask(Permit(*key, {"gpt": {"tokens": 1}}))
        world.ask(SettlePermit(*key, granted.id))
    world.clock.advance(30 * 86_400_000)
    for _ in range(4):
        world.apply()
    (account,) = table.accounts(world.reader, [("gpt", "")])
    kept = table.entries(world.reader, account.id, after=0, limit=99)
    assert [entry.kind for entry, _ in kept] in ([], ["reset"])
