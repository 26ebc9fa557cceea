"""Inbox: messages in all modes at random moments, while server and worker are killed.

Each person sends messages one after another, each under one of two tokens with different rights,
withdraws some, and repeats requests that got no answer. Afterwards the store says what became of
every acknowledged message: it is part of exactly one run, or its task says why it is not. Messages
of a person keep their order, no run has messages of different rights, and each run saw what the
store says that it has. Meanwhile probes measure how long a message takes until a run can read it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from fairlane import AsyncClient
from fairlane.core.errors import CallerError, FairlaneError, SessionBusy
from tests.chaos.inbox_worker import HANDLER
from tests.chaos.table import row
from tests.e2e.processes import FAIRLANE, until
from tests.fakes.ports import lasting_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from fairlane.schema.task_status import TaskStatus
    from tests.e2e.processes import Program, Programs

# How often each mode is chosen; those that cancel what waits are rare.
MODES = {"steer": 60, "queue": 15, "followup": 5, "collect": 14, "reject": 4}
MODES |= {"interrupt": 1, "rollback": 1}
WITHDRAWN_SHARE = 0.03
RIGHTS = {"small": ("submit", "read", "cancel"), "large": ("all",)}
# Why the task of an acknowledged message may end without a run.
REASONS = ("withdrawn: ", "interrupted: ", "rolled_back: ")
POLICY = {
    "sessions": {"cap": 10_000, "debounceMs": 20, "debounceMaxMs": 100},
    "lanes": {"main": {"maxQueueSize": 1_000_000, "maxInflight": 400}},
}
PROBE_KEY = "probe"
PAUSE_SECONDS = 0.05


class Size(NamedTuple):
    messages: int = 100_000
    people: int = 80
    kills: int = 200
    probes: int = 2000
    seconds_max: float = 3000.0


SHORT = Size(messages=300, people=12, kills=2, probes=10, seconds_max=120.0)


class Sent(NamedTuple):
    """An acknowledged message: its place among those of its sender, and its rights."""

    sender: str
    number: int
    rights: str
    task: str


class Found(NamedTuple):
    """A task as the store has it: what it consists of, and what its handler says that it saw."""

    id: str
    state: str
    attempts: int
    started_at: str
    error: str | None
    has: Sequence[str]
    saw: Sequence[str] | None


class Outcome(NamedTuple):
    store: str
    sent: int
    refused: int
    withdrawn: int
    taken: int
    runs: int
    lost: Sequence[str]
    twice: Sequence[str]
    disordered: Sequence[str]
    mixed: Sequence[str]
    unlike: Sequence[str]
    kills: int
    delays_ms: Sequence[float]
    seconds: float

    def row(self) -> str:
        return row(
            store=self.store,
            messages=f"{self.sent} ({self.taken} in inboxes, {self.withdrawn} withdrawn)",
            refused=self.refused,
            runs=self.runs,
            lost=len(self.lost),
            twice=len(self.twice),
            out_of_order=len(self.disordered),
            mixed_rights=len(self.mixed),
            kills=self.kills,
            readable_p50_ms=f"{share(self.delays_ms, 0.5):.0f}",
            readable_p99_ms=f"{share(self.delays_ms, 0.99):.0f} of {len(self.delays_ms)}",
            seconds=f"{self.seconds:.0f}",
        )

    def problems(self, size: Size) -> list[str]:
        found = [
            f"{name}: {one}"
            for name in ("lost", "twice", "disordered", "mixed", "unlike")
            for one in getattr(self, name)[:5]
        ]
        if self.sent + self.refused < size.messages:
            found.append(f"only {self.sent} of {size.messages} messages were sent")
        if self.kills < size.kills:
            found.append(f"only {self.kills} of {size.kills} kills")
        if not (self.taken and self.withdrawn):
            found.append("no message was taken, or none withdrawn: the scenario shows nothing")
        return found


def share(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


# -------------------------------------------------------------------- what must hold


def consumers(tasks: Iterable[Found]) -> dict[str, list[str]]:
    """Return the tasks that ran with each message."""
    found: dict[str, list[str]] = {}
    for task in tasks:
        for id_ in task.has if task.attempts else ():
            found.setdefault(id_, []).append(task.id)
    return found


def lost(sent: dict[str, Sent], tasks: dict[str, Found], withdrawn: set[str]) -> list[str]:
    known = consumers(tasks.values())
    found = []
    for id_, one in sent.items():
        task = tasks.get(one.task)
        error = (task.error if task else None) or ""
        if id_ not in known and id_ not in withdrawn and not error.startswith(REASONS):
            found.append(f"{id_} in {one.task}: {task and task.state} {error}")
    return found


def twice(tasks: Iterable[Found], withdrawn: set[str]) -> list[str]:
    known = consumers(tasks)
    found = [f"{id_} in {owners}" for id_, owners in known.items() if len(owners) > 1]
    return found + [f"{id_} was withdrawn and ran" for id_ in withdrawn if id_ in known]


def disordered(sent: dict[str, Sent], tasks: Iterable[Found]) -> list[str]:
    """Return messages that a run got after a later one of their sender."""
    last: dict[str, int] = {}
    found = []
    for task in sorted(tasks, key=lambda one: one.started_at):
        for id_ in task.has if task.attempts else ():
            one = sent.get(id_)
            if one is not None:
                if last.get(one.sender, -1) > one.number:
                    found.append(f"{id_} in {task.id} after {last[one.sender]}")
                last[one.sender] = max(one.number, last.get(one.sender, -1))
    return found


def mixed(sent: dict[str, Sent], tasks: Iterable[Found]) -> list[str]:
    """Return tasks with messages of different rights."""
    return [
        f"{task.id}: {task.has}"
        for task in tasks
        if len({sent[id_].rights for id_ in task.has if id_ in sent}) > 1
    ]


def unlike(tasks: Iterable[Found]) -> list[str]:
    """Return runs that saw something else than the store says, or something twice."""
    return [
        f"{task.id} saw {task.saw}, has {task.has}"
        for task in tasks
        if task.saw is not None and list(task.saw) != list(task.has)
    ]


# -------------------------------------------------------------------- the scene


class Scene:
    def __init__(self, programs: Programs, folder: Path, store: str, size: Size, seed: int) -> None:
        self.size, self.seed, self.store = size, seed, store
        self.random = random.Random(seed)
        self._programs, self._folder = programs, folder
        self.tokens: dict[str, str] = {}
        port = lasting_port()
        self.url = f"http://127.0.0.1:{port}"
        flags = ("--port", str(port), "--drain-seconds", "0")
        self.server = programs.server(store, *flags)
        self.worker: Program | None = None
        self.sent: dict[str, Sent] = {}
        self.tried = self.refused = self.kills = 0
        self.withdrawn: set[str] = set()
        self.unsure: set[str] = set()  # a withdrawal got no answer
        self.delays_ms: list[float] = []
        self.over = False

    async def play(self) -> Outcome:
        began = time.monotonic()
        for name, scopes in RIGHTS.items():
            self.tokens[name] = self._token(name, scopes)
        words = [self.url, self.tokens["large"], "worker-1"]
        command = [sys.executable, "-m", "tests.chaos.inbox_worker", *words]
        self.worker = self._programs.add("worker", command, r"(leases)\n")
        await self.server.start()
        await self.worker.start()
        async with AsyncClient(self.url, token=self.tokens["large"]) as client:
            await client.set_policy(POLICY)
        async with asyncio.timeout(self.size.seconds_max):
            probing = asyncio.create_task(self._probe())
            killing = asyncio.create_task(self._kill())
            await asyncio.gather(*(self._talk(n) for n in range(self.size.people)))
            self.over = True
            await killing
            await probing
            await until(self._is_over, self.size.seconds_max, lambda: "it does not end")
        return await self._outcome(time.monotonic() - began)

    def _token(self, name: str, scopes: Sequence[str]) -> str:
        words = [w for scope in scopes for w in ("--scope", scope)]
        done = subprocess.run(
            [str(FAIRLANE), "token", "create", "--name", name, *words, "--store", self.store],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return next(word for word in done.stdout.split() if word.startswith("fl_"))

    # ---------------------------------------------------------------- people

    async def _talk(self, person: int) -> None:
        """Send messages in order; two people share a session."""
        chance = random.Random(f"{self.seed} {person}")
        clients = {name: AsyncClient(self.url, token=token) for name, token in self.tokens.items()}
        key, sender = f"chat:{person // 2}", f"p{person}"
        number = 0
        try:
            while self.tried < self.size.messages:
                self.tried += 1
                number += 1
                rights = chance.choice(list(RIGHTS))
                id_ = f"{sender}-{number}"
                mode = chance.choices(list(MODES), list(MODES.values()))[0]
                task = await self._send(clients[rights], key, sender, id_, mode)
                if task is None:
                    continue
                self.sent[id_] = Sent(sender, number, rights, task)
                if chance.random() < WITHDRAWN_SHARE:
                    await self._withdraw(clients[rights], key, id_)
                await asyncio.sleep(chance.random() * 0.02)
        finally:
            for client in clients.values():
                await client.close()

    async def _send(
        self, client: AsyncClient, key: str, sender: str, id_: str, mode: Any
    ) -> str | None:
        """Return the task of the message; None if it was refused."""
        while True:
            try:
                done: Any = await client.message(
                    key,
                    id_,
                    sender=sender,
                    message_id=id_,
                    mode=mode,
                    handler=HANDLER,
                    idempotency_key=id_,
                )
            except SessionBusy:
                self.refused += 1
                return None
            except CallerError:
                raise
            except FairlaneError:  # no answer, or a server that stops: the key makes it safe
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            task: str = done.task_id
            return task

    async def _withdraw(self, client: AsyncClient, key: str, id_: str) -> None:
        try:
            await client.withdraw_message(key, id_)
        except CallerError:
            return  # a run has it, or it has ended
        except FairlaneError:
            self.unsure.add(id_)
            return
        self.withdrawn.add(id_)

    # ---------------------------------------------------------------- probes and kills

    async def _probe(self) -> None:
        """Send messages to a run of our own, and measure when it can read them."""
        async with AsyncClient(self.url, token=self.tokens["large"]) as client:
            while not self.over or not self.delays_ms:
                try:
                    await self._measure(client)
                except FairlaneError:  # killed meanwhile: a new run
                    await asyncio.sleep(PAUSE_SECONDS)
                if len(self.delays_ms) >= self.size.probes:
                    return

    async def _measure(self, client: AsyncClient) -> None:
        said: Any = {"handler": PROBE_KEY, "sender": PROBE_KEY, "debounce_ms": 0}
        await client.message(PROBE_KEY, "go", mode="interrupt", **said)
        grants = await client.lease(PROBE_KEY, handlers=[PROBE_KEY], wait_ms=2000, ttl_ms=60_000)
        if not grants.leases:
            return
        lease, cursor = grants.leases[0].lease_id, None
        for _ in range(50):
            reading = asyncio.create_task(client.lease_inbox(lease, after=cursor, wait_ms=10_000))
            try:
                await asyncio.sleep(0.02)
                kills, began = self.kills, time.monotonic()
                await client.message(PROBE_KEY, "now", mode="steer", **said)
                page = await reading
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            cursor = page.cursor
            if page.messages and kills == self.kills:
                self.delays_ms.append((time.monotonic() - began) * 1000)
            if self.over:
                break
        await client.lease_inbox(lease, after=cursor)
        await client.complete_lease(lease)

    async def _kill(self) -> None:
        """Kill server and worker in turn, whenever a part of the messages has been sent."""
        assert self.worker is not None
        for number in range(1, self.size.kills + 1):
            due = self.size.messages * number // (self.size.kills + 1)
            await until(
                lambda due=due: self.tried >= due or self.over,
                self.size.seconds_max,
                lambda: "nobody sends",
            )
            program = (self.server, self.worker)[number % 2]
            program.kill()
            self.kills += 1
            await program.start()

    async def _is_over(self) -> bool:
        try:
            async with AsyncClient(self.url, token=self.tokens["large"]) as client:
                await client.stop_all(PROBE_KEY)
                queue = (await client.stats()).queue
        except FairlaneError:
            return False
        return not (queue.total_queued or queue.total_inflight)

    # ---------------------------------------------------------------- the end

    async def _outcome(self, seconds: float) -> Outcome:
        tasks = {one.id: one for one in await self._tasks()}
        every = list(tasks.values())
        withdrawn = self.withdrawn - self.unsure
        return Outcome(
            store=self.store.partition(":")[0],
            sent=len(self.sent),
            refused=self.refused,
            withdrawn=len(withdrawn),
            taken=sum(task.state == "done" and not task.attempts for task in every),
            runs=sum(task.attempts > 0 for task in every),
            lost=lost(self.sent, tasks, withdrawn | self.unsure),
            twice=twice(every, withdrawn),
            disordered=disordered(self.sent, every),
            mixed=mixed(self.sent, every),
            unlike=unlike(every),
            kills=self.kills,
            delays_ms=self.delays_ms,
            seconds=seconds,
        )

    async def _tasks(self) -> list[Found]:
        found: list[Found] = []
        async with AsyncClient(self.url, token=self.tokens["large"]) as client:
            cursor = None
            while True:
                page = await client.tasks(lane="main", limit=1000, cursor=cursor)
                found += [as_found(task) for task in page.tasks if task.handler == HANDLER]
                if (cursor := page.next_cursor) is None:
                    return found


def as_found(task: TaskStatus) -> Found:
    has = [one.id for one in (*(task.messages or ()), *(task.inbox or ()))]
    saw = task.result.get("saw") if isinstance(task.result, dict) else None
    started = task.started_at or ""
    return Found(task.task_id, task.state, task.attempts, started, task.error, has, saw)
