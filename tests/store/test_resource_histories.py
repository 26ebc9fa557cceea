"""Random histories of reserve, settle, refund, crash, close, raise and policy changes by many
callers, with the rules of resources checked after every commit.

`python -m tests.store.test_resource_histories SEED STEPS` runs a long one on SQLite. It checks
every new entry of the ledger after every commit, but recounts everything only now and then, so that
its cost does not grow with the square of its length.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core import limits
from fairlane.core.errors import FairlaneError
from fairlane.core.policy import Policy
from fairlane.core.resources import Account, ResourcePolicy, limits_of
from fairlane.engine.commands import Cancel, Complete, Fail, Release
from fairlane.engine.reads import resource_recount
from fairlane.engine.resource_commands import (
    CloseResource,
    Closing,
    OpenResource,
    Permit,
    PermitGranted,
    RaiseResource,
    ResourceReport,
    SettlePermit,
)
from fairlane.engine.verbs import leasing, resources
from fairlane.store import accounts
from fairlane.store.opening import open_store
from fairlane.store.tables import resources as table
from tests.store.scheduler import Scheduler, lease_request
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from fairlane.store.base import Store

CALLERS = 64
M = 1_000_000
RECOUNT_EVERY = 200  # commits of a long history


def declared(rng: random.Random) -> dict[str, Any]:
    return {
        "rate": {"limits": [{"unit": "t", "amount": rng.randint(8, 20), "perMs": 700}]},
        "bucket": {
            "limits": [
                {"unit": "t", "amount": rng.randint(8, 20), "perMs": 700, "window": "bucket"}
            ]
        },
        "spend": {
            "limits": [{"unit": "usd", "amount": rng.randint(8, 20), "resetEveryMs": 3000}],
            "by": "agent",
        },
        "pool": {"limits": [{"unit": "mb", "amount": rng.randint(8, 20)}]},
        "lock": {"limits": [{"amount": 1}], "by": "key"},
    }


class History:
    """The history of one seed."""

    def __init__(self, store: Store, seed: int, recount_every: int = 1) -> None:
        self.rng = random.Random(seed)
        self.recount_every = recount_every
        self.commits = 0
        self.happened: Counter[str] = Counter()  # entries of the ledger by kind
        self.accounts: dict[int, Account] = {}  # as the last commit left them
        self.balances: dict[tuple[int, str], int] = {}  # by account and slot
        self.scheduler = Scheduler(store)
        self.running: list[Task] = []
        self.permits: list[tuple[Task, int]] = []
        self.seen: dict[int, int] = {}  # the last ledger entry of each account
        self.count = 0
        self.scheduler.set_policy(resources=declared(self.rng), lanes={"main": {"maxInflight": 30}})

    def step(self) -> None:
        rng = self.rng
        self.scheduler.clock.advance(rng.choice([0, 0, 1, 7, 60, 300]))
        batch = [made for _ in range(rng.randint(0, 4)) if (made := self.request()) is not None]
        wanted = [lease_request(rng.randint(1, 4), ttl_ms=2000, start=rng.random() < 0.5)]
        outcome = self.scheduler.apply(*batch, waiting=wanted if rng.random() < 0.7 else [])
        for request, answer in zip(batch, outcome.answers, strict=True):
            if isinstance(answer, PermitGranted):
                self.permits.append((answer.task, answer.id))
            assert not isinstance(answer, FairlaneError) or answer.code in (
                "lease_lost",
                "not_found",
                "conflict",
            ), (request, answer)
        for grants in outcome.grants:
            self.running += [grant.task for grant in grants]
            for grant in grants:
                self.check_reserved(grant.task)
        self.check(outcome.now)

    def needs(self) -> dict[str, Any]:
        rng = self.rng
        every: dict[str, Any] = {
            "rate": {"t": rng.randint(1, 8)},
            "bucket": {"t": f"{rng.randint(0, 7)}.{rng.randint(1, 999999):06d}"},
            "spend": {"usd": f"{rng.randint(0, 3)}.{rng.randint(1, 999999):06d}"},
            "pool": {"mb": rng.randint(1, 8)},
            f"lock/{rng.choice('ab')}": {},
        }
        return {name: every[name] for name in rng.sample(sorted(every), rng.randint(1, 3))}

    def request(self) -> Any:
        rng = self.rng
        kind = rng.choice(["submit"] * 3 + ["end"] * 4 + ["permit", "settle", "operate", "policy"])
        if kind == "submit":
            self.count += 1
            agent = f"a{rng.randrange(CALLERS)}"
            needs = self.needs() if rng.random() < 0.9 else None
            self.scheduler.try_submit(f"t{self.count}", agent=agent, needs=needs)
            return None
        if kind == "policy":
            if rng.random() < 0.1:
                self.scheduler.set_policy(resources=declared(rng))
            return None
        if kind == "operate":
            return self.operate()
        if not self.running:
            return None
        if kind == "end":
            return self.end(self.running.pop(rng.randrange(len(self.running))))
        if kind == "permit":
            task = rng.choice(self.running)
            needs = {name: units for name, units in self.needs().items() if name != "pool"}
            return Permit(task.seq, task.fencing_token, needs)
        return self.settle()

    def settle(self) -> Any:
        if not self.permits:
            return None
        task, number = self.rng.choice(self.permits)  # perhaps a second time
        return SettlePermit(task.seq, task.fencing_token, number)

    def end(self, task: Task) -> Any:
        rng = self.rng
        needs = resources.needs_of(task.needs or "{}")
        usage = {
            name: {unit: f"{rng.randint(0, 9)}.{rng.randint(0, 999999):06d}" for unit in units}
            for name, units in needs.items()
            if name in ("rate", "bucket", "spend") and rng.random() < 0.5
        }
        closed = None
        if rng.random() < 0.05:
            closed = {rng.choice(["rate", "bucket", "pool"]): Closing(rng.randint(1, 900))}
        report = ResourceReport(usage or None, closed, None)
        key = (task.seq, task.fencing_token)
        what = rng.random()
        if what < 0.15:
            return None  # the worker died
        if what < 0.25:
            return Release(*key, report=report)
        if what < 0.35:
            return Cancel(task.id)
        if what < 0.5:
            return Fail(*key, "no luck", report=report)
        return Complete(*key, report=report)

    def operate(self) -> Any:
        rng = self.rng
        name = rng.choice(["rate", "bucket", "pool"])
        return rng.choice(
            [
                CloseResource(name, retry_after_ms=rng.randint(1, 500)),
                OpenResource(name),
                RaiseResource("spend", "usd", rng.randint(1, 3) * M, key=f"a{rng.randrange(9)}"),
            ]
        )

    def check(self, now: int) -> None:
        reader = self.scheduler.reader
        self.commits += 1
        if self.commits % self.recount_every == 0:
            assert resource_recount.recount(reader) == []
        policy: Policy = self.scheduler.engine.policy
        for account in table.all_accounts(reader):
            if self.recount_every == 1 or self.accounts.get(account.id) != account:
                self.accounts[account.id] = account
                self.check_ledger(account, policy.resources[account.resource])
            assert (
                not account.blocked
                or account.wake_at is None
                or account.wake_at > now
                or (
                    self.scheduler.engine.due_at is not None and self.scheduler.engine.due_at <= now
                )
            ), f"nothing will wake {account.label}"

    def check_reserved(self, task: Task) -> None:
        """A lease holds everything that its task needs, at every account."""
        held = {
            (one.need, slot.partition(":")[0], amount)
            for reservation in table.reservations(self.scheduler.reader, [task.seq])
            if not reservation.permit
            for one in reservation.held
            for slot, amount in one.amounts.items()
        }
        needed = {
            (name, unit, amount)
            for name, units in resources.needs_of(task.needs or "{}").items()
            for unit, amount in units.items()
        }
        assert held == needed, task.id

    def check_ledger(self, account: Account, found: ResourcePolicy) -> None:
        """Every balance follows from the one before, the last is what is used and reserved, and no
        reservation leaves more used and reserved than the ceiling, whatever the debt.
        """
        every = {limit.slot: limit for limit in limits_of(found.limits)}
        last = self.seen.get(account.id, 0)
        for entry, _ in table.entries(self.scheduler.reader, account.id, after=last, limit=10_000):
            self.seen[account.id] = entry.id
            self.happened[entry.kind] += 1
            limit, name = every[entry.slot], (account.id, entry.slot)
            self.balances[name] = self.balances.get(name, 0) + entry.amount
            assert entry.balance == self.balances[name], entry
            if entry.kind == accounts.RESERVE:
                assert entry.balance <= limits.ceiling(limit, account.state(limit)), entry
        for limit in every.values():
            balance = self.balances.get((account.id, limit.slot), 0)
            assert balance == limits.committed(limit, account.state(limit)), account

    def finish(self) -> None:
        """End everything that runs; then every task that waits gets its turn."""
        for name in ("rate", "bucket", "pool"):
            self.scheduler.ask(OpenResource(name))
        idle = 0  # looks in a row at which nothing was leased
        while idle < 300:
            self.scheduler.clock.advance(200)
            outcome = self.scheduler.apply(waiting=[lease_request(30, ttl_ms=2000)])
            grants = outcome.grants[0]
            idle = 0 if grants else idle + 1
            self.scheduler.apply(*(Complete(g.task.seq, g.task.fencing_token) for g in grants))
            tally = self.scheduler.tally()
            if not tally.queued and not tally.slots:
                break
        assert not self.scheduler.tally().queued
        assert resource_recount.recount(self.scheduler.reader) == []


def run(store: Store, seed: int, steps: int) -> int:
    """Run a history to its end; return how many tasks were completed."""
    return play(History(store, seed), steps)


def play(history: History, steps: int) -> int:
    try:
        for _ in range(steps):
            history.step()
        history.finish()
        return history.scheduler.tally().completed
    finally:
        history.scheduler.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_rules_of_resources_hold_after_every_commit(store: Store, seed: int) -> None:
    assert run(store, seed, 150) > 50


def _lost_touch(self: accounts.Accounts, account: Any) -> None:
    self.save(account)


_enter = accounts.Accounts.enter


def _forgotten_debt(
    self: accounts.Accounts, account: Any, limit: Any, kind: str, amount: int, **more: Any
) -> None:
    if kind != accounts.DEBT:
        _enter(self, account, limit, kind, amount, **more)


_reserve = resources.reserve


def _partial_reserve(tx: Any, task: Any, needs: Any = None) -> Any:
    if needs is None:
        needs = resources.needs_of(task.needs)
        found = _reserve(tx, task, dict(list(needs.items())[:1]))
        found.permit = 0
        return found
    return _reserve(tx, task, needs)


def _no_check(*_: Any, **__: Any) -> bool:
    return True


PLANTS: dict[str, tuple[Any, str, Any]] = {
    "a release wakes no line": (accounts.Accounts, "touch", _lost_touch),
    "debt misses in the ledger": (accounts.Accounts, "enter", _forgotten_debt),
    "a lease does not ask whether its needs fit": (resources, "admits", _no_check),
    "a reservation is kept after its end": (resources, "settle_ended", lambda _: None),
    "a lease reserves a part of its needs": (leasing.resources, "reserve", _partial_reserve),
    "a settled reservation stays open": (accounts.Accounts, "drop", lambda *_: None),
    "an agent's reservation is not recorded": (leasing.resources, "reserve", lambda *_: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", sorted(PLANTS))
def test_a_planted_bug_is_caught(
    sqlite_store: Store, plant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, bug = PLANTS[plant]
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises((AssertionError, KeyError)):
        run(sqlite_store, 1, 150)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        long_store = open_store(f"{SQLITE}{folder}/fairlane.db")
        long_store.migrate()
        long_history = History(long_store, int(sys.argv[1]), RECOUNT_EVERY)
        ended = play(long_history, int(sys.argv[2]))
        what = ", ".join(f"{count} {kind}" for kind, count in long_history.happened.most_common())
        sys.stdout.write(f"{long_history.commits} commits, {ended} tasks completed: {what}\n")
        long_store.close()
