"""A full store moves to another database under load: nothing lost, a short pause, one `kill -9`.

Tasks in all states fill the store. Callers then submit at a steady rate, each with a key that it
repeats until the submission is acknowledged, while `fairlane move` runs, is killed in the middle
and runs again. A supervisor starts the server again when it ends, as systemd does, on the new
store. There, the ids must be exactly the acknowledged ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import psycopg

from fairlane import AsyncClient
from fairlane.core.errors import CallerError, FairlaneError
from fairlane.store.closed import MoveNote, parse_note
from tests.chaos.table import row
from tests.e2e.processes import FAIRLANE, ROOT, until
from tests.fakes.ports import lasting_port
from tests.postgres import new_database, running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.processes import Programs

BLOCKED_SECONDS_MAX = 5.0
SQLITE = "sqlite:///"
POLICY = {
    "lanes": {"main": {"maxInflight": 500, "maxQueueSize": None, "maxPerAgent": 10_000_000}},
}
HANDLER, DROPPED, PARENT = "later", "dropped", "parent"
DAY_MS = 86_400_000
STREAMS = 4
PAUSE_SECONDS = 0.05
LOOK_SECONDS = 0.02  # the short form copies all tasks within a second
# What becomes of every twenty tasks.
STATES = ["queued"] * 11 + ["waiting"] * 2 + ["in a session"] * 2 + ["cancelled"] * 3 + ["done"] * 2
MOVED = 6  # the exit code of a server whose store was moved


class Size(NamedTuple):
    tasks: int = 1_000_000
    callers: int = 8
    rate: float = 100.0  # submissions in a second, of all callers
    seconds_max: float = 3600.0


SHORT = Size(tasks=12_000, callers=4, rate=50.0, seconds_max=300.0)


class Outcome(NamedTuple):
    stores: str
    filled: int
    acknowledged: int
    missing: int  # acknowledged, but not in the new store
    strange: int  # in the new store, but not acknowledged: submitted twice
    states: dict[str, int]
    states_expected: dict[str, int]
    resumed: bool
    rows: int
    fill_seconds: float
    first_seconds: float  # until the kill
    move_seconds: float
    blocked_ms: int
    down_seconds: float
    gap_seconds: float

    def row(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self.states.items()))
        return row(
            stores=self.stores,
            filled=f"{self.filled} in {self.fill_seconds:.0f} s",
            acknowledged_meanwhile=self.acknowledged,
            missing=self.missing,
            twice=self.strange,
            states=states,
            rows=self.rows,
            killed_after=f"{self.first_seconds:.0f} s",
            moved_in=f"{self.move_seconds:.0f} s more",
            writes_refused=f"{self.blocked_ms} ms",
            server_away=f"{self.down_seconds:.1f} s",
            longest_submission=f"{self.gap_seconds:.2f} s",
        )

    def problems(self, size: Size, *, blocked_max: float | None = None) -> list[str]:
        """Return what must not be."""
        found = []
        if self.missing or self.strange:
            found.append(f"{self.missing} tasks are missing, {self.strange} are there twice")
        if self.states != self.states_expected:
            found.append(f"the states are {self.states}, not {self.states_expected}")
        if self.filled < size.tasks or not self.acknowledged:
            found.append(f"{self.filled} tasks before, {self.acknowledged} meanwhile: too few")
        if not self.resumed:
            found.append("the second run did not continue the first")
        if blocked_max is not None and self.gap_seconds > blocked_max:
            found.append(f"one submission took {self.gap_seconds:.2f} s")
        return found


class Scene:
    def __init__(self, programs: Programs, folder: Path, store: str, size: Size, seed: int) -> None:
        self.size, self.store = size, store
        self._kill_at = size.tasks * random.Random(f"move {seed}").uniform(0.2, 0.8)
        self._programs, self._folder = programs, folder
        self._policy = folder / "policy.json"
        self._policy.write_bytes(msgspec.json.encode(POLICY))
        self._port = lasting_port()
        self._url = f"http://127.0.0.1:{self._port}"
        self._keys = {"XDG_DATA_HOME": str(folder)}  # the key of the secrets moves there
        self._server = self._serve(store, "old")
        self._ids: list[str] = []
        self._acknowledged: list[str] = []
        self._gap_seconds = 0.0
        self._down_seconds = 0.0
        self._over = False

    def _serve(self, store: str, name: str) -> Any:
        flags = ("--policy", str(self._policy), "--port", str(self._port))
        return self._programs.server(store, *flags, name=name, variables=self._keys)

    async def play(self) -> Outcome:
        with _other_store(self.store, self._folder) as target:
            async with asyncio.timeout(self.size.seconds_max):
                began = time.monotonic()
                await self._server.start()
                await self._fill()
                filled = time.monotonic() - began
                return await self._move(target, filled)

    # ---------------------------------------------------------------- the store

    async def _fill(self) -> None:
        async with AsyncClient(self._url, timeout=60) as client:
            await client.set_policy(POLICY)
            parent = await client.submit(handler=PARENT, delay_ms=DAY_MS)
            self._ids.append(parent.task_id)
            each = self.size.tasks // STREAMS
            await asyncio.gather(
                *(self._stream(client, parent.task_id, part, each) for part in range(STREAMS))
            )
            while True:
                done = await client.cancel_many(handler=DROPPED, limit=10_000)
                if not done.changed:
                    break
            await until(
                lambda: _nothing_runs(client), self.size.seconds_max, lambda: "tasks still run"
            )

    async def _stream(self, client: AsyncClient, parent: str, part: int, count: int) -> None:
        tasks = (_task(number, part, parent) for number in range(count))
        async for outcome in client.submit_many(tasks, idempotency_key=f"fill-{part}"):
            assert outcome.task_id, outcome
            self._ids.append(outcome.task_id)

    # ---------------------------------------------------------------- the move

    async def _move(self, target: str, fill_seconds: float) -> Outcome:
        before = _states(self.store)
        command = [str(FAIRLANE), "move", self.store, target, "--json"]
        mover = self._programs.add("move", command, r"(moved)", variables=self._keys)
        async with asyncio.TaskGroup() as group:
            for number in range(self.size.callers):
                group.create_task(self._submit(number))
            began = time.monotonic()
            mover.begin()
            await until(lambda: self._is_kill_due(target), self.size.seconds_max, mover.output)
            mover.kill()
            killed = time.monotonic()
            known = len(self._acknowledged)
            await until(lambda: len(self._acknowledged) > known, 60, self._server.output)
            supervisor = group.create_task(self._supervise(target))
            mover.begin()
            assert await mover.end(self.size.seconds_max) == 0, mover.output()
            await supervisor
            known = len(self._acknowledged)
            await until(
                lambda: len(self._acknowledged) > known + self.size.callers * 5,
                60,
                self._server.output,
            )
            self._over = True
        await self._check(target)
        report = json.loads(mover.output()[mover.output().index("{") :])
        found = await asyncio.to_thread(_ids, target)
        expected = {*self._ids, *self._acknowledged}
        return Outcome(
            stores=f"{self.store.partition(':')[0]} to {target.partition(':')[0]}",
            filled=len(self._ids),
            acknowledged=len(self._acknowledged),
            missing=len(expected - set(found)),
            strange=len(found) - len(expected & set(found)),
            states=_states(target),
            states_expected=dict(Counter(before) + Counter(queued=len(self._acknowledged))),
            resumed=report["resumed"],
            rows=report["rows"],
            fill_seconds=fill_seconds,
            first_seconds=killed - began,
            move_seconds=report["seconds"],
            blocked_ms=report["blockedMs"],
            down_seconds=self._down_seconds,
            gap_seconds=self._gap_seconds,
        )

    async def _submit(self, caller: int) -> None:
        """Submit at a steady rate; repeat each submission until it is acknowledged."""
        pause = self.size.callers / self.size.rate
        async with AsyncClient(self._url, timeout=10) as client:
            number = 0
            while not self._over:
                key, began = f"caller-{caller}-{number}", time.monotonic()
                self._acknowledged.append(await _accepted(client, key))
                took = time.monotonic() - began
                self._gap_seconds = max(self._gap_seconds, took)
                number += 1
                await asyncio.sleep(max(0.0, pause - took))

    async def _is_kill_due(self, target: str) -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        note = await asyncio.to_thread(_note, target)
        reached = note.copied.get("task") if note else None
        return reached is True or (isinstance(reached, list) and int(reached[0]) >= self._kill_at)

    async def _supervise(self, target: str) -> None:
        """Start the server on the new store when it has ended on the old one, as systemd does."""
        code = await self._server.end(self.size.seconds_max)
        assert code == MOVED, self._server.output()
        ended = time.monotonic()
        self._server = self._serve(target, "new")
        await asyncio.sleep(restart_seconds())
        await self._server.start()
        self._down_seconds = time.monotonic() - ended

    async def _check(self, target: str) -> None:
        """Let `fairlane doctor` count everything again."""
        doctor = self._programs.add(
            "doctor", [str(FAIRLANE), "doctor", "--store", target], r"(ok)", variables=self._keys
        )
        doctor.begin()
        assert await doctor.end(self.size.seconds_max) == 0, doctor.output()


def restart_seconds() -> float:
    """Return how long systemd waits before it starts the server again."""
    unit = (ROOT / "deploy" / "fairlane.service").read_text("utf-8")
    found = re.search(r"(?m)^RestartSec=(\d+)(ms)?$", unit)
    assert found
    return int(found[1]) / (1000 if found[2] else 1)


def _task(number: int, part: int, parent: str) -> dict[str, Any]:
    state = STATES[number % len(STATES)]
    task: dict[str, Any] = {
        "agentId": f"agent-{number % 500}",
        "handler": HANDLER,
        "params": {"url": f"https://site-{number % 977}.example/{part}/{number}"},
    }
    if state == "done":
        return {**task, "handler": "echo"}
    if state == "waiting":
        return {**task, "dependsOn": [parent]}
    if state == "cancelled":
        task["handler"] = DROPPED
    elif state == "in a session":
        task["sessionKey"] = f"chat-{part}-{number // 1000}"
    return {**task, "delayMs": DAY_MS}


async def _accepted(client: AsyncClient, key: str) -> str:
    while True:
        try:
            task = await client.submit(handler=HANDLER, delay_ms=DAY_MS, idempotency_key=key)
        except CallerError:
            raise
        except FairlaneError:  # no answer, or no server: the key makes a repetition safe
            await asyncio.sleep(PAUSE_SECONDS)
            continue
        return task.task_id


async def _nothing_runs(client: AsyncClient) -> bool:
    await asyncio.sleep(LOOK_SECONDS)
    echoes = await client.count_tasks(handler="echo", states=["queued", "assigned", "running"])
    return not echoes.count


@contextlib.contextmanager
def _other_store(store: str, folder: Path) -> Iterator[str]:
    """Give the address of a new store on the other database."""
    if not store.startswith(SQLITE):
        yield f"{SQLITE}{folder / 'moved.db'}"
        return
    with running_postgres() as server, new_database(server) as database:
        yield database


def _query(store: str, statement: str) -> list[tuple[Any, ...]]:
    """Read from a store directly: what is there, not what Fairlane says."""
    if store.startswith(SQLITE):
        name = store.removeprefix(SQLITE)
        with contextlib.closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True)) as file:
            return file.execute(statement).fetchall()
    with psycopg.connect(store) as connection:
        return connection.execute(statement.encode()).fetchall()


def _note(store: str) -> MoveNote | None:
    with contextlib.suppress(psycopg.errors.UndefinedTable, sqlite3.OperationalError):
        return parse_note(str(_query(store, "SELECT document FROM move")[0][0]))
    return None


def _ids(store: str) -> list[str]:
    return [str(id_) for (id_,) in _query(store, "SELECT id FROM task")]


def _states(store: str) -> dict[str, int]:
    found = _query(store, "SELECT state, count(*) FROM task GROUP BY state")
    return {str(state): int(count) for state, count in found}
