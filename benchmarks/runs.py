"""Durable runs measured: steps, suspended runs at rest, waking many at once, the inbox.

`python -m benchmarks.runs [--quick] [--only WORD]` prints one line for each; `make bench` includes
them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.ours import Row, percentiles, run_in_loop
from benchmarks.servers import WIDE_OPEN, fairlane_server, sqlite_file
from fairlane import AsyncClient
from fairlane.clock import SystemClock
from fairlane.core.model import Submission, capability_of
from fairlane.core.suspensions import Until
from fairlane.embedded.app import Fairlane
from fairlane.engine.commands import Complete, Lease, SetPolicy, Submit
from fairlane.engine.engine import Engine, apply_one
from fairlane.engine.step_commands import Suspend
from fairlane.store.opening import open_store

ROUNDS = 3
WORK = capability_of("handler", "waits")
DAY_MS = 86_400_000
WAITS = (
    Until(signal="paid"),
    Until(delay_ms=DAY_MS),
    Until(at="2099-01-01T00:00:00Z"),
)
TEN_SLOTS = {
    "lanes": {"main": {"maxInflight": 10, "maxQueueSize": 1_000_000}},
}
IDLE_SECONDS = 20.0


# -------------------------------------------------------------------- steps


def steps(store: str, count: int, runs: int) -> Row:
    """`runs` tasks record steps one after another, in the process of the scheduler."""
    rounds = [run_in_loop(_steps(store, count // runs, runs)) for _ in range(ROUNDS)]
    alone = run_in_loop(_steps(store, 200, 1))
    best = max(rounds, key=lambda row: row["steps_per_s"])
    return {**best, "commits_per_step_alone": alone["commits_per_step"]}


async def _steps(store: str, each: int, runs: int) -> Row:
    async with Fairlane(store, policy=WIDE_OPEN) as app:
        begun, go = asyncio.Semaphore(0), asyncio.Event()

        @app.handler("steps")
        async def handler(work: Any) -> None:
            begun.release()
            await go.wait()
            for number in range(each):
                await work.step(f"step-{number}", _fetched, number)

        handles = [await app.submit(handler="steps") for _ in range(runs)]
        for _ in range(runs):
            await begun.acquire()
        commits = sum(app.node.metrics.commits.counts)
        cpu, began = time.process_time(), time.perf_counter()
        go.set()
        await asyncio.gather(*(handle.result(600) for handle in handles))
        took, used = time.perf_counter() - began, time.process_time() - cpu
        made = sum(app.node.metrics.commits.counts) - commits
    total = each * runs
    return {
        "steps_per_s": round(total / took),
        "cpu_us": round(used / total * 1e6, 1),
        "commits_per_step": round(made / total, 3),
    }


def _fetched(number: int) -> dict[str, int]:
    return {"page": number}


# -------------------------------------------------------------------- suspended runs at rest


def suspended(count: int) -> Row:
    """A server on a store with so many suspended runs, and on one with as many that are done."""
    with sqlite_file() as resting, sqlite_file() as done:
        _fill(resting, count, suspend=True)
        _fill(done, count, suspend=False)
        with_runs, without = _at_rest(resting), _at_rest(done)
    return {
        "runs": count,
        "slots": with_runs["slots"],
        "rss_mb": with_runs["rss_mb"],
        "rss_mb_without": without["rss_mb"],
        "idle_cpu_percent": with_runs["cpu"],
        "idle_cpu_percent_without": without["cpu"],
    }


def _fill(url: str, count: int, *, suspend: bool) -> None:
    store = open_store(url)
    store.migrate()
    engine = Engine(store, SystemClock(), name="bench")
    apply_one(engine, SetPolicy(WIDE_OPEN, "bench"))
    waits = itertools.cycle(WAITS)
    for start in range(0, count, 500):
        made = [_submission(f"t{n}", n) for n in range(start, min(count, start + 500))]
        engine.apply([Submit(made)])
        wanted = Lease("bench", ("main",), frozenset({WORK}), len(made), 600_000, start=True)
        keys = [
            (one.task.seq, one.task.fencing_token) for one in engine.apply([], [wanted]).grants[0]
        ]
        assert len(keys) == len(made)
        if suspend:
            engine.apply([Suspend(*key, "wait", next(waits)) for key in keys])
        else:
            engine.apply([Complete(*key, "null") for key in keys])
    engine.close()


def _submission(name: str, number: int) -> Submission:
    agent = f"agent-{number % 100}"
    body = f'{{"agentId": "{agent}", "handler": "waits"}}'
    return Submission(id=name, agent=agent, kind="handler", capability=WORK, body=body)


def _at_rest(url: str) -> Row:
    with fairlane_server(url) as server:
        server.load("echo", 100)
        time.sleep(2.0)
        before = server.cpu_seconds()
        time.sleep(IDLE_SECONDS)
        used = server.cpu_seconds() - before
        return {
            "cpu": round(used / IDLE_SECONDS * 100, 2),
            "rss_mb": round(server.rss_mb()),
            "slots": server.get("/scheduler/stats")["queue"]["totalInflight"],
        }


# -------------------------------------------------------------------- waking


def waking(store: str, waiting: int, samples: int) -> Row:
    """From a signal to the start of the run that waited for it, with `waiting` others."""
    return run_in_loop(_waking(store, waiting, samples))


async def _waking(store: str, waiting: int, samples: int) -> Row:
    async with Fairlane(store, policy=WIDE_OPEN, drain_seconds=0) as app:
        resumed: asyncio.Queue[float] = asyncio.Queue()

        @app.handler("waits")
        async def handler(work: Any) -> None:
            await work.signal("go")
            resumed.put_nowait(time.perf_counter())

        handles = [await app.submit(handler="waits") for _ in range(waiting)]
        await _until_suspended(app, waiting)
        delays = []
        for handle in handles[:samples]:
            began = time.perf_counter()
            await app.send_signal(handle.id, "go")
            delays.append((await resumed.get() - began) * 1000)
        return {**percentiles(delays), "waiting": waiting}


async def _until_suspended(app: Fairlane, count: int) -> None:
    while (await app.stats()).queue.total_inflight:  # noqa: ASYNC110 - no event announces it
        await asyncio.sleep(0.05)
    found = await app.count_tasks(states=["queued"])
    assert found.count == count, found


def resuming(store: str, runs: int) -> Row:
    """So many runs of one agent wake at one moment, on ten slots. Ten other agents submit tasks
    all the time: how long these wait, before and meanwhile.
    """
    return run_in_loop(_resuming(store, runs))


async def _resuming(store: str, runs: int) -> Row:
    async with Fairlane(store, policy=TEN_SLOTS, drain_seconds=0) as app:
        resumed: list[float] = []
        others: list[tuple[float, float]] = []
        asked: dict[str, float] = {}

        @app.handler("waits")
        async def handler(work: Any) -> None:
            await work.signal("go")
            resumed.append(time.perf_counter())
            await asyncio.sleep(0.002)

        @app.handler("other")
        async def other(work: Any) -> None:
            at = asked.pop(work.params["name"])
            others.append((at, time.perf_counter() - at))
            await asyncio.sleep(0.002)

        async def agent(number: int) -> None:
            for turn in itertools.count():
                name = f"{number}-{turn}"
                asked[name] = time.perf_counter()
                await app.submit(handler="other", agent=f"other-{number}", params={"name": name})
                await asyncio.sleep(0.1)

        handles = [await app.submit(handler="waits", agent="sleeper") for _ in range(runs)]
        await _until_suspended(app, runs)
        agents = [asyncio.create_task(agent(number)) for number in range(10)]
        await asyncio.sleep(5)
        woken_at = time.perf_counter()
        await asyncio.gather(*(app.send_signal(handle.id, "go") for handle in handles))
        ready_at = time.perf_counter()
        while len(resumed) < runs:  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(0.05)
        ended_at = time.perf_counter()
        for one in agents:
            one.cancel()
        await asyncio.gather(*agents, return_exceptions=True)
    before = [took * 1000 for at, took in others if at < woken_at]
    meanwhile = [took * 1000 for at, took in others if woken_at <= at < ended_at]
    return {
        "runs": runs,
        "woken_s": round(ready_at - woken_at, 2),
        "all_resumed_s": round(ended_at - woken_at, 2),
        "others_before_p99_ms": percentiles(before)["p99_ms"],
        **{f"others_{name}": value for name, value in percentiles(meanwhile).items()},
        "others_most_ms": round(max(meanwhile), 1),
        "others": len(meanwhile),
    }


# -------------------------------------------------------------------- the inbox


def readable(store: str, samples: int, readers: int) -> Row:
    """From `POST` of a message that steers to the response of a read that waits for it, over HTTP;
    `readers` other runs wait for messages, too, and one of them gets one for each sample.
    """
    with fairlane_server(store) as server:
        url = f"http://127.0.0.1:{server.port}"
        before = server.cpu_seconds()
        delays = run_in_loop(_readable(url, samples, readers))
        used = server.cpu_seconds() - before
    return {
        **percentiles(delays),
        "most_ms": round(max(delays), 1),
        "readers": readers,
        "server_ms_per_message": round(used / (samples * (2 if readers else 1)) * 1000, 2),
    }


async def _readable(url: str, samples: int, readers: int) -> list[float]:
    async with AsyncClient(url) as client:
        said: Any = {"handler": "reads", "debounce_ms": 0}
        keys = [f"chat-{number}" for number in range(readers + 1)]
        for key in keys:
            await client.message(key, "go", **said)
        leases: list[Any] = []
        while len(leases) < len(keys):
            leases += (await client.lease("bench", limit=100, ttl_ms=600_000)).leases
        mine = next(one for one in leases if one.task.session == keys[0])
        loops = [
            asyncio.create_task(_read_all(client, one.lease_id))
            for one in leases
            if one is not mine
        ]
        delays, cursor = [], None
        for number in range(samples):
            reading = asyncio.create_task(_read(client, mine.lease_id, cursor))
            await asyncio.sleep(0.01)
            if readers:
                await client.message(keys[1 + number % readers], "x", mode="steer", **said)
            began = time.perf_counter()
            await client.message(keys[0], "now", mode="steer", **said)
            page, at = await reading
            delays.append((at - began) * 1000)
            cursor = page.cursor
            await client.lease_inbox(mine.lease_id, after=cursor)
        for one in loops:
            one.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        return delays


async def _read(client: AsyncClient, lease: str, cursor: str | None) -> tuple[Any, float]:
    page = await client.lease_inbox(lease, after=cursor, wait_ms=30_000)
    return page, time.perf_counter()


async def _read_all(client: AsyncClient, lease: str) -> None:
    cursor = None
    while True:
        page, _ = await _read(client, lease, cursor)
        cursor = page.cursor


# -------------------------------------------------------------------- all


def plan_of(scale: float) -> list[tuple[str, Callable[[str], Row], str]]:
    """Name, measurement, and the bar it is held against."""

    def n(count: int) -> int:
        return max(100, int(count * scale))

    return [
        ("steps of 64 runs", lambda store: steps(store, n(32_000), 64),
         ">= 5,000 steps/s, one commit each"),
        ("suspended runs at rest", lambda _: suspended(n(100_000)),
         "no slot, RSS and CPU as without"),
        ("signal to running", lambda store: waking(store, n(2000), n(500)), "p99 <= 50 ms"),
        ("many resumed at once", lambda store: resuming(store, n(10_000)),
         "others are not starved"),
        ("message to readable", lambda store: readable(store, n(1000), 0), "p99 <= 50 ms"),
        ("message to readable, 200 readers", lambda store: readable(store, n(1000), 200),
         "p99 <= 50 ms"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.runs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the numbers")
    parser.add_argument("--only", metavar="WORD", default="")
    arguments = parser.parse_args()
    for name, run, bar in plan_of(0.1 if arguments.quick else 1.0):
        if arguments.only in name:
            with sqlite_file() as url:
                row = run(url)
            words = " ".join(f"{key}={value}" for key, value in row.items())
            sys.stdout.write(f"{name}: {words} ({bar})\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
