"""Resources and approvals measured: pairs per second, blocked tasks, waking, decisions.

`python -m benchmarks.resources [--quick]` prints one line for each; `make bench` includes them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from datetime import datetime
from statistics import median
from typing import Any

from benchmarks.ours import Row, percentiles, run_in_loop
from benchmarks.servers import WIDE_OPEN, sqlite_file
from fairlane.clock import SystemClock
from fairlane.core.model import Submission, capability_of
from fairlane.embedded.app import Fairlane
from fairlane.engine.commands import Complete, Lease, SetPolicy, Submit
from fairlane.engine.engine import Engine, apply_one
from fairlane.store.opening import open_store

LARGE = 10**9
POLICY: dict[str, Any] = {
    **WIDE_OPEN,
    "resources": {
        "gpt": {"limits": [{"unit": "tokens", "amount": LARGE, "perMs": 1000}]},
        "lock": {"limits": [{"amount": 1}], "by": "key"},
    },
}
WORK = capability_of("handler", "noop")
TURNS, BATCH = 40, 100


# -------------------------------------------------------------------- reserve and settle


def pairs(store: str, tasks: int, callers: int) -> Row:
    """Lifecycles of tasks that reserve and settle, beside tasks without needs, in alternation."""
    rounds = [
        [run_in_loop(_pairs(store, tasks // 3, callers, needs=needs)) for needs in (False, True)]
        for _ in range(3)
    ]
    plain, with_needs = (max(one[which] for one in rounds) for which in (0, 1))
    return {
        "pairs_per_s": round(with_needs),
        "without_needs_per_s": round(plain),
        "permit_pairs_per_s": round(run_in_loop(_permits(store, tasks // 2, callers))),
    }


async def _pairs(store: str, tasks: int, callers: int, *, needs: bool) -> float:
    done = asyncio.Event()
    ran = 0
    async with Fairlane(store, policy=POLICY) as app:

        @app.handler("noop")
        async def noop(_: Any) -> None:
            nonlocal ran
            ran += 1
            if ran == tasks // callers * callers:
                done.set()

        async def caller(number: int) -> None:
            wanted: Any = {"gpt": {"tokens": 3}} if needs else None
            for _ in range(tasks // callers):
                await app.submit(handler="noop", agent=f"agent-{number % 10}", needs=wanted)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number))
        await done.wait()
        return ran / (time.perf_counter() - began)


async def _permits(store: str, count: int, runs: int) -> float:
    """`runs` tasks take permits one after another, each settled with the amount used."""
    each = max(1, count // runs)
    async with Fairlane(store, policy=POLICY) as app:

        @app.handler("noop")
        async def calls(work: Any) -> None:
            for _ in range(each):
                async with work.permit(gpt={"tokens": 3}) as permit:
                    permit.used(tokens=2)

        began = time.perf_counter()
        handles = [await app.submit(handler="noop") for _ in range(runs)]
        await asyncio.gather(*(handle.result() for handle in handles))
        return each * runs / (time.perf_counter() - began)


# -------------------------------------------------------------------- blocked tasks in front


def blocked(tasks: int, agents: int) -> Row:
    """Lease and finish batches of 100 with so many blocked tasks in front, and with none.

    The two stores take turns; the ratio is the median of neighbouring turns.
    """
    with sqlite_file() as crowded, sqlite_file() as empty:
        engines = [_engine(empty, 0, agents), _engine(crowded, tasks, agents)]
        turns: list[list[float]] = [[], []]
        for number in range(TURNS):
            for engine, found in zip(engines, turns, strict=True):
                found.append(_turn(engine, agents, number))
        for engine in engines:
            engine.close()
    ratios = [mine / free for free, mine in zip(*turns, strict=True)][5:]
    return {
        "lease_us": round(median(turns[1][5:]) / BATCH * 1e6, 1),
        "lease_us_without": round(median(turns[0][5:]) / BATCH * 1e6, 1),
        "ratio": round(median(ratios), 2),
    }


def _engine(url: str, tasks: int, agents: int) -> Engine:
    store = open_store(url)
    store.migrate()
    engine = Engine(store, SystemClock(), name="bench")
    apply_one(engine, SetPolicy(POLICY, "bench"))
    engine.apply([Submit([_submission("holder", "holder", {"lock/taken": {}})])])
    _lease(engine, 1)
    for start in range(0, tasks, 1000):
        numbers = range(start, min(tasks, start + 1000))
        needs: Any = {"lock/taken": {}}
        made = [_submission(f"b{n}", f"agent-{n % agents}", needs) for n in numbers]
        engine.apply([Submit(made)])
    return engine


def _turn(engine: Engine, agents: int, number: int) -> float:
    names = [(f"t{number}-{n}", f"agent-{n % agents}") for n in range(BATCH)]
    engine.apply([Submit([_submission(*name, None) for name in names])])
    began = time.perf_counter()
    granted = _lease(engine, BATCH)
    took = time.perf_counter() - began
    assert len(granted) == BATCH, f"{len(granted)} were leased"
    engine.apply([Complete(one.task.seq, one.task.fencing_token) for one in granted])
    return took


def _lease(engine: Engine, limit: int) -> list[Any]:
    wanted = Lease("bench", ("main",), frozenset({WORK}), limit, 600_000)
    return engine.apply([], [wanted]).grants[0]


def _submission(name: str, agent: str, needs: Any) -> Submission:
    body = f'{{"agentId": "{agent}", "handler": "noop"}}'
    return Submission(id=name, agent=agent, kind="handler", capability=WORK, body=body, needs=needs)


# -------------------------------------------------------------------- waking and deciding


def waking(store: str, rounds: int, waiting: int) -> Row:
    """From the moment at which a closed resource opens to the start of each task that waited."""
    return run_in_loop(_waking(store, rounds, waiting))


async def _waking(store: str, rounds: int, waiting: int) -> Row:
    late: list[float] = []
    async with Fairlane(store, policy=POLICY) as app:
        started: asyncio.Queue[float] = asyncio.Queue()

        @app.handler("noop")
        async def noop(_: Any) -> None:
            started.put_nowait(time.time())

        for _ in range(rounds):
            await app.close_resource("gpt")
            needs: Any = {"gpt": {"tokens": 1}}
            await asyncio.gather(*(app.submit(handler="noop", needs=needs) for _ in range(waiting)))
            status = await app.close_resource("gpt", for_ms=200)
            opens_at = datetime.fromisoformat(status.closed_until or "").timestamp()
            found = [await started.get() for _ in range(waiting)]
            late += [(at - opens_at) * 1000 for at in found]
        assert started.empty(), "a task started twice"
    return percentiles(late)


def waking_after_restart(store: str, waiting: int) -> Row:
    """The same, when the process that knew of the reset ended before it."""
    return run_in_loop(_waking_after_restart(store, waiting))


async def _waking_after_restart(store: str, waiting: int) -> Row:
    async with Fairlane(store, policy=POLICY) as app:
        await app.close_resource("gpt")
        needs: Any = {"gpt": {"tokens": 1}}
        for _ in range(waiting):
            await app.submit(handler="noop", needs=needs)
        status = await app.close_resource("gpt", for_ms=3000)
    opens_at = datetime.fromisoformat(status.closed_until or "").timestamp()
    started: asyncio.Queue[float] = asyncio.Queue()
    async with Fairlane(store, policy=POLICY) as app:

        @app.handler("noop")
        async def noop(_: Any) -> None:
            started.put_nowait(time.time())

        assert time.time() < opens_at, "the restart took too long"
        late = [(await started.get() - opens_at) * 1000 for _ in range(waiting)]
        assert started.empty(), "a task started twice"
    return percentiles(late)


def decisions(store: str, opened: int, samples: int) -> Row:
    """From a decision to the start of its task, with so many open approvals."""
    return run_in_loop(_decisions(store, opened, samples))


async def _decisions(store: str, opened: int, samples: int) -> Row:
    async with Fairlane(store, policy=POLICY) as app:
        started: asyncio.Queue[float] = asyncio.Queue()

        @app.handler("noop")
        async def noop(_: Any) -> None:
            started.put_nowait(time.perf_counter())

        question: Any = {"title": "Go on?"}
        for _ in range(opened):
            await app.submit(handler="noop", approval=question)
        page = await app.approvals(state="open", limit=min(opened, samples))
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(2)
        idle = (time.process_time() - cpu) / (time.perf_counter() - began)
        waits = []
        for one in page.approvals:
            decided = time.perf_counter()
            await app.decide(one.id, "approve", hash=one.hash)
            waits.append((await started.get() - decided) * 1000)
        stats = await app.stats()
        return {
            **percentiles(waits),
            "open": opened,
            "idle_cpu_percent": round(idle * 100, 1),
            "slots": stats.queue.total_inflight,
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resources", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the numbers")
    scale = 0.1 if parser.parse_args().quick else 1.0
    for name, run, _ in plan_of(scale):
        with sqlite_file() as url:
            row = run(url)
        words = " ".join(f"{key}={value}" for key, value in row.items())
        sys.stdout.write(f"{name}: {words}\n")
        sys.stdout.flush()


def plan_of(scale: float) -> list[tuple[str, Callable[[str], Row], str]]:
    """Name, measurement, and the bar it is held against."""

    def n(count: int) -> int:
        return max(100, int(count * scale))

    return [
        ("reserve and settle", lambda store: pairs(store, n(60_000), 256), ">= 5,000 pairs/s"),
        ("lease past blocked tasks", lambda _: blocked(n(100_000), n(1000)), "ratio <= 1.5"),
        ("wake at the reset", lambda store: waking(store, 20, 100), "<= 100 ms"),
        ("wake after a restart", lambda store: waking_after_restart(store, 100), "<= 100 ms"),
        ("decision to running", lambda store: decisions(store, n(10_000), n(1000)),
         "p99 <= 100 ms, no slot"),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
