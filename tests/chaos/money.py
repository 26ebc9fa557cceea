"""Money: random reservations, settlements, refunds, crashes and raises, and an exact ledger.

Callers lease tasks that need some of one budget, report random use or nothing at all, let leases
expire, take permits and raise the budget, while nodes are killed with `kill -9`. What a caller has
in writing (an acknowledged settlement) must stand in the ledger to the micro-unit, every balance
must follow from the one before, and only declared debt may exceed the limit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlane import AsyncClient
from fairlane.core.errors import CallerError, FairlaneError, LeaseLost
from tests.chaos.table import row
from tests.e2e.processes import until
from tests.fakes.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.e2e.processes import Program, Programs

RESOURCE, UNIT, LANE, HANDLER = "spend", "usd", "money", "buy"
AMOUNT = Decimal(200)
MICRO = Decimal("0.000001")
CRASH_TTL_MS = 200
LOOK_SECONDS = 0.25
# Kinds of entries that change the balance.
CHARGES = ("reserve", "settle", "refund", "debt", "reset")


class Size(NamedTuple):
    steps: int = 10_000
    callers: int = 64
    kills: int = 2
    seconds_max: float = 600.0


SHORT = Size(steps=600, callers=16, kills=1, seconds_max=180.0)


class Entry(NamedTuple):
    """One entry of the ledger, oldest first."""

    kind: str
    amount: Decimal
    balance: Decimal | None
    task: str | None


class Outcome(NamedTuple):
    store: str
    steps: int
    happened: Counter[str]
    unknown: int
    entries: int
    problems_found: Sequence[str]
    peak: Decimal
    kills: int
    seconds: float

    def row(self) -> str:
        happened = ", ".join(f"{count} {what}" for what, count in sorted(self.happened.items()))
        return row(
            store=self.store,
            steps=f"{self.steps} ({happened})",
            unknown=self.unknown,
            entries=self.entries,
            peak=self.peak,
            kills=self.kills,
            seconds=f"{self.seconds:.0f}",
        )

    def problems(self, size: Size) -> list[str]:
        found = list(self.problems_found)
        if self.steps < size.steps:
            found.append(f"only {self.steps} of {size.steps} steps were made")
        if self.kills != size.kills:
            found.append(f"{self.kills} nodes were killed, not {size.kills}")
        return found


class Account:
    """What the callers have in writing: what each task was charged, and which are uncertain."""

    def __init__(self) -> None:
        self.charged: dict[str, Decimal] = {}  # acknowledged
        self.open: dict[int, set[str]] = {}  # tasks of each caller that have not ended
        self.maybe: set[str] = set()  # a request without an answer may have concerned these
        self.happened: Counter[str] = Counter()
        self.steps = 0


def chain_problems(entries: Iterable[Entry]) -> list[str]:
    """Return where a balance does not follow from the one before."""
    found, balance = [], Decimal(0)
    for number, entry in enumerate(entries):
        if entry.kind not in CHARGES:
            continue
        balance += entry.amount
        if entry.balance != balance:
            found.append(
                f"entry {number} ({entry.kind} {entry.amount}): the balance is "
                f"{entry.balance}, not {balance}"
            )
            balance = entry.balance or balance
    return found[:10]


def overshoot(entries: Iterable[Entry], limit: Decimal) -> Decimal:
    """Return by how much reservations exceeded the limit, beyond declared debt and raises."""
    most, balance, debt, raised = Decimal(0), Decimal(0), Decimal(0), Decimal(0)
    for entry in entries:
        if entry.kind == "raise":
            raised += entry.amount
        elif entry.kind in CHARGES:
            balance += entry.amount
            debt += entry.amount if entry.kind == "debt" else 0
            if entry.kind == "reserve":
                most = max(most, balance - limit - raised - debt)
    return most


def wrong_tasks(entries: Iterable[Entry], account: Account) -> list[str]:
    """Return tasks whose entries do not sum to what was acknowledged."""
    sums: dict[str, Decimal] = {}
    for entry in entries:
        if entry.task is not None and entry.kind in CHARGES:
            sums[entry.task] = sums.get(entry.task, Decimal(0)) + entry.amount
    return [
        f"task {task} is charged {sums.get(task, Decimal(0))}, acknowledged was {charged}"
        for task, charged in account.charged.items()
        if task not in account.maybe and sums.get(task, Decimal(0)) != charged
    ][:10]


class Scene:
    def __init__(self, programs: Programs, folder: Path, store: str, size: Size, seed: int) -> None:
        limits = [{"unit": UNIT, "amount": str(AMOUNT), "resetEveryMs": 365 * 86_400_000}]
        lane = {"maxInflight": 1000, "maxQueueSize": None, "maxPerAgent": None}
        policy = {"lanes": {LANE: lane}, "resources": {RESOURCE: {"limits": limits}}}
        document = folder / "policy.json"
        document.write_bytes(msgspec.json.encode(policy))
        self.size = size
        self.seed = seed
        self.store = store
        self.account = Account()
        self.kills = 0
        count = 1 if store.startswith("sqlite") else 2
        self.nodes: list[Program] = [
            programs.server(
                store,
                "--policy",
                str(document),
                "--port",
                str(lasting_port()),
                name=f"node-{number}",
            )
            for number in range(count)
        ]

    async def play(self) -> Outcome:
        began = time.monotonic()
        await asyncio.gather(*(node.start() for node in self.nodes))
        killing = asyncio.create_task(self._kill_nodes())
        try:
            async with asyncio.timeout(self.size.seconds_max):
                await asyncio.gather(*(self._call(number) for number in range(self.size.callers)))
                await killing
        finally:
            killing.cancel()
        await until(self._is_quiet, self.size.seconds_max, lambda: "a reservation is still open")
        entries = await self._ledger()
        return Outcome(
            store="sqlite, 1 node"
            if len(self.nodes) == 1
            else f"postgresql, {len(self.nodes)} nodes",
            steps=self.account.steps,
            happened=self.account.happened,
            unknown=len(self.account.maybe),
            entries=len(entries),
            problems_found=[*self._problems(entries), *await self._standing(entries)],
            peak=max((entry.balance or Decimal(0) for entry in entries), default=Decimal(0)),
            kills=self.kills,
            seconds=time.monotonic() - began,
        )

    def _problems(self, entries: Sequence[Entry]) -> list[str]:
        beyond = overshoot(entries, AMOUNT)
        return [
            *chain_problems(entries),
            *wrong_tasks(entries, self.account),
            *([f"reservations exceeded the limit by {beyond}"] if beyond > 0 else []),
        ]

    async def _standing(self, entries: Sequence[Entry]) -> list[str]:
        """Return whether what the server shows is what its ledger sums to."""
        total = sum((one.amount for one in entries if one.kind in CHARGES), Decimal(0))
        async with AsyncClient(self.nodes[0].url) as client:
            (limit,) = (await client.resource(RESOURCE)).limits
        used = Decimal(str(limit.used)) + Decimal(str(limit.reserved))
        return [] if used == total else [f"used is {used}, the ledger sums to {total}"]

    # --- callers ----------------------------------------------------------------------------------

    async def _call(self, number: int) -> None:
        chance = random.Random(f"money {self.seed} {number}")
        async with AsyncClient(self.nodes[number % len(self.nodes)].url) as client:
            while self.account.steps < self.size.steps:
                try:
                    await self._turn(client, number, chance)
                except LeaseLost:  # an expired one, or a report that was repeated
                    self.account.maybe |= self.account.open.get(number, set())
                    self.account.happened["lost lease"] += 1
                except CallerError:
                    raise
                except FairlaneError:  # its node was killed: what it asked last may have happened
                    self.account.maybe |= self.account.open.get(number, set())
                    await asyncio.sleep(0.05)

    async def _turn(self, client: AsyncClient, number: int, chance: random.Random) -> None:
        if chance.random() < 0.02:
            await self._raise(client, chance)
            return
        need = _random_amount(chance, Decimal(2))
        agent = f"agent-{number}"
        submitted = await client.submit(
            handler=f"{HANDLER}-{number}",
            agent=agent,
            lane=LANE,
            needs={RESOURCE: {UNIT: str(need)}},
        )
        mine = self.account.open.setdefault(number, set())
        mine.add(submitted.task_id)
        crash = chance.random() < 0.1
        ttl_ms = CRASH_TTL_MS if crash else 60_000
        granted = await client.lease(
            f"caller-{number}",
            lanes=[LANE],
            handlers=[f"{HANDLER}-{number}"],
            ttl_ms=ttl_ms,
            start=True,
        )
        for lease in granted.leases:
            reserved = Decimal(str((lease.task.needs or {})[RESOURCE][UNIT]))
            self._step("reserve")
            if await self._end(client, lease, reserved, crash=crash, chance=chance):
                mine.discard(lease.task_id)

    async def _end(
        self,
        client: AsyncClient,
        lease: Any,
        reserved: Decimal,
        *,
        crash: bool,
        chance: random.Random,
    ) -> bool:
        """End a lease in a random way and write down what was acknowledged.

        Return whether the task has ended.
        """
        task, charged = lease.task_id, reserved
        if crash:  # no report: the reservation stands as used
            self._charge(task, charged)
            self._step("crash")
            return False
        if chance.random() < 0.3:
            charged += await self._permit(client, lease.lease_id, chance)
        used = reserved * chance.choice([0, 1, 2, 3]) / 4 if chance.random() < 0.8 else reserved * 2
        used = used.quantize(MICRO)
        way = chance.choice(["complete", "fail", "complete without usage", "release"])
        usage = {RESOURCE: {UNIT: str(used)}}
        if way == "complete":
            await client.complete_lease(lease.lease_id, usage=usage)
            charged += used - reserved
        elif way == "fail":
            await client.fail_lease(lease.lease_id, "no", retryable=False, usage=usage)
            charged += used - reserved
        elif way == "release":
            await client.release_lease(lease.lease_id, usage={RESOURCE: {UNIT: 0}})
            charged -= reserved
        else:
            await client.complete_lease(lease.lease_id)
        self._charge(task, charged)
        self._step(way)
        return way != "release"

    async def _permit(self, client: AsyncClient, lease_id: str, chance: random.Random) -> Decimal:
        """Take a permit and settle it, and return what it cost."""
        need = _random_amount(chance, Decimal(1))
        permit = await client.request_permit(lease_id, {RESOURCE: {UNIT: str(need)}})
        if not permit.granted:
            return Decimal(0)
        self._step("permit")
        if chance.random() < 0.3:  # settled as reserved at the end of the lease
            return need
        used = (need / 2).quantize(MICRO)
        for _ in range(2):  # the second time has no effect
            await client.settle_permit(
                lease_id, permit.permit_id, usage={RESOURCE: {UNIT: str(used)}}
            )
        return used

    async def _raise(self, client: AsyncClient, chance: random.Random) -> None:
        amount = _random_amount(chance, Decimal(100))
        await client.raise_resource(RESOURCE, UNIT, str(amount))
        self._step("raise")

    def _charge(self, task: str, amount: Decimal) -> None:
        self.account.charged[task] = self.account.charged.get(task, Decimal(0)) + amount

    def _step(self, what: str) -> None:
        self.account.steps += 1
        self.account.happened[what] += 1

    # --- faults and the end -----------------------------------------------------------------------

    async def _kill_nodes(self) -> None:
        for number in range(1, self.size.kills + 1):
            due = self.size.steps * number // (self.size.kills + 1)
            while self.account.steps < due:  # noqa: ASYNC110 - nobody announces a step
                await asyncio.sleep(LOOK_SECONDS)
            node = self.nodes[number % len(self.nodes)]
            node.kill()
            self.kills += 1
            await node.start()

    async def _is_quiet(self) -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        async with AsyncClient(self.nodes[0].url) as client:
            (limit,) = (await client.resource(RESOURCE)).limits
        return Decimal(str(limit.reserved)) == 0

    async def _ledger(self) -> list[Entry]:
        """Return all entries, oldest first."""
        found: list[Entry] = []
        async with AsyncClient(self.nodes[0].url) as client:
            cursor = None
            while True:
                page = await client.resource_ledger(RESOURCE, unit=UNIT, limit=1000, cursor=cursor)
                found += [_entry(one) for one in page.entries]
                if (cursor := page.next_cursor) is None:
                    return found[::-1]


def _entry(one: Any) -> Entry:
    balance = None if one.balance is None else Decimal(str(one.balance))
    return Entry(one.kind, Decimal(str(one.amount)), balance, one.task)


def _random_amount(chance: random.Random, most: Decimal) -> Decimal:
    return max(MICRO, (Decimal(chance.random()) * most).quantize(MICRO))
