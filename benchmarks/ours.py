"""Fairlane measured: through its Python API, over HTTP, at size, and at rest."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import closing
from statistics import median
from typing import Any, TypeVar

from benchmarks.servers import WIDE_OPEN, fairlane_server, memory_mb, stub_instance
from fairlane.clock import SystemClock
from fairlane.core.model import Submission
from fairlane.embedded.app import Fairlane, tune
from fairlane.engine.commands import Complete, Lease, SetPolicy, Submit
from fairlane.engine.engine import Engine, apply_one
from fairlane.store.opening import open_store
from fairlane.store.tables import lines as line_table

T = TypeVar("T")

Row = dict[str, Any]
ROUNDS = 3


# -------------------------------------------------------------------- Python API


def sessions(store: str, count: int, each: int) -> Row:
    """The same with `count` sessions of `each` tasks: no two of one session run at once."""
    rounds = [
        run_in_loop(_lifecycle(store, count * each, 250, sessions=count)) for _ in range(ROUNDS)
    ]
    return max(rounds, key=lambda row: row["lifecycle_per_s"])


def lifecycle(store: str, tasks: int, callers: int) -> Row:
    """`callers` submit one by one; the worker in the same process runs a no-op for each.

    The best of three rounds, as for the peers: the machine's own speed varies.
    """
    rounds = [run_in_loop(_lifecycle(store, tasks // ROUNDS, callers)) for _ in range(ROUNDS)]
    return max(rounds, key=lambda row: row["lifecycle_per_s"])


async def _lifecycle(
    store: str, tasks: int, callers: int, *, total: int | None = None, sessions: int = 0
) -> Row:
    """`total` is how many must have been completed in the store; other nodes may take part."""
    ran = 0
    async with Fairlane(store, policy=WIDE_OPEN) as app:

        @app.handler("noop")
        async def noop(_: Any) -> None:
            nonlocal ran
            ran += 1

        async def caller(number: int) -> None:
            for turn in range(tasks // callers):
                await app.submit(
                    handler="noop",
                    agent=f"agent-{number % 10}",
                    params={"n": number},
                    session=f"chat:{(turn * callers + number) % sessions}" if sessions else None,
                )

        goal = total or await _completed(app) + tasks
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number))
        submitted = time.perf_counter()
        while await _completed(app) < goal:  # noqa: ASYNC110 - the store is asked
            await asyncio.sleep(0.002)
        ended = time.perf_counter()
    assert total or ran == tasks, f"{ran} of {tasks} ran"
    return {
        "submit_per_s": round(tasks / (submitted - began)),
        "lifecycle_per_s": round(tasks / (ended - began)),
    }


async def _completed(app: Fairlane) -> int:
    count: int = (await app.stats())["metrics"]["tasksCompleted"]
    return count


def lifecycle_on_nodes(store: str, tasks: int, callers: int, nodes: int) -> Row:
    """The same on several processes at once, on one database."""
    part = tasks // nodes // callers * callers
    command = [sys.executable, "-m", "benchmarks.ours", store, str(part), str(callers)]
    command.append(str(part * nodes))
    began = time.perf_counter()
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(nodes)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # imported and ready
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        process.wait(180)
        if process.returncode:
            raise RuntimeError("a node failed")
    return {"lifecycle_per_s": round(tasks / (time.perf_counter() - began))}


def latency(store: str, samples: int = 300) -> Row:
    """Submit to handler started, one at a time, on an idle scheduler."""
    return run_in_loop(_latency(store, samples))


async def _latency(store: str, samples: int) -> Row:
    started: asyncio.Queue[float] = asyncio.Queue()
    async with Fairlane(store) as app:

        @app.handler("now")
        async def now(_: Any) -> None:
            started.put_nowait(time.perf_counter())

        waits = []
        for _ in range(samples + 20):
            began = time.perf_counter()
            handle = await app.submit(handler="now")
            waits.append((await started.get() - began) * 1000)
            await handle.result()
    return percentiles(waits[20:])


def percentiles(values: list[float]) -> Row:
    ordered = sorted(values)
    ranks = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {name: round(ordered[int(len(ordered) * rank)], 2) for name, rank in ranks.items()}


# -------------------------------------------------------------------- over HTTP


def http_submit(store: str, requests: int) -> Row:
    """One POST per task, durable before its 202; no worker runs them."""
    with fairlane_server(store) as server:
        server.load("unserved", 2000)
        before = server.cpu_seconds()
        found = server.load("unserved", requests)
        found["server_us"] = round((server.cpu_seconds() - before) / requests * 1e6)
    assert found["statuses"] == {"202": requests}, found
    return found


def http_stream(store: str, tasks: int) -> Row:
    """One stream of lines, each answered after its commit."""
    lines = [
        b'{"agentId":"agent-%d","handler":"unserved","params":{"n":%d}}\n' % (n % 10, n)
        for n in range(tasks)
    ]
    with fairlane_server(store) as server:
        before, began = server.cpu_seconds(), time.perf_counter()
        answered = server.stream(b"".join(lines))
        took, used = time.perf_counter() - began, server.cpu_seconds() - before
    assert answered == tasks, answered
    return {"tasks_per_s": round(tasks / took), "server_us": round(used / tasks * 1e6)}


def http_batch(store: str, requests: int) -> Row:
    with fairlane_server(store) as server:
        found = server.load("batch", requests)
    assert found["statuses"] == {"202": requests}, found
    return {"tasks_per_s": found["perSecond"] * 50}


def http_echo(store: str, requests: int) -> Row:
    """Submitted over HTTP and run by the built-in worker, until all are done."""
    with fairlane_server(store) as server:
        return _executed(server, "echo", requests)


def http_actions(store: str, requests: int) -> Row:
    """Submitted over HTTP and executed through an HTTP tab instance, until all are done."""
    with (
        stub_instance() as port,
        fairlane_server(store, "--instance", f"http://127.0.0.1:{port}") as server,
    ):
        return _executed(server, "action", requests)


def _executed(server: Any, kind: str, requests: int) -> Row:
    began, before = time.perf_counter(), server.cpu_seconds()
    found = server.load(kind, requests)
    assert found["statuses"] == {"202": requests}, found
    while (done := server.get("/scheduler/stats")["metrics"])["tasksCompleted"] < requests:
        assert done["tasksFailed"] == 0, done
        time.sleep(0.01)
    # The generator's own start-up is not the server's time.
    rate = round(requests / (time.perf_counter() - found["began"]))
    used = round((server.cpu_seconds() - before) / requests * 1e6)
    return {"executed_per_s": rate, "server_us": used, "_": began}


# -------------------------------------------------------------------- at size, at rest


def flat(stores: Sequence[tuple[str, int, int]]) -> list[Row]:
    """Lease and finish batches of 100 with a backlog, on stores with so many tasks and agents.

    The stores take turns, 15 batches each and the first five of them to warm up. A ratio is that
    of two turns that followed each other, and the median of those: this machine may be twice as
    fast a moment later.
    """
    words = [str(word) for store in stores for word in store]
    command = [sys.executable, "-m", "benchmarks.ours", "--flat", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: list[Row] = json.loads(done.stdout)
    return result


def _flat(words: Sequence[str]) -> list[Row]:
    sizes = [int(word) for word in words[2::3]]
    engines = [_filled(*store) for store in zip(words[0::3], words[1::3], sizes, strict=True)]
    leases: list[list[float]] = [[] for _ in engines]
    cycles: list[list[float]] = [[] for _ in engines]
    for _ in range(8):
        for engine, agents, lease, cycle in zip(engines, sizes, leases, cycles, strict=True):
            for number in range(15):
                _turn(engine, agents, lease if number >= 5 else [], cycle if number >= 5 else [])
    rss_mb = round(memory_mb("VmHWM"))
    turns = [[median(lease[at : at + 10]) for at in range(0, len(lease), 10)] for lease in leases]
    return [
        {
            "lease_us": round(median(lease) * 10_000, 1),
            "cycle_us": round(median(cycle) * 10_000, 1),
            "lease_ratio": round(median(mine / first for mine, first in both), 2),
            "rss_mb": rss_mb,
        }
        for lease, cycle, both in zip(
            leases, cycles, (zip(turn, turns[0], strict=True) for turn in turns), strict=True
        )
    ]


def _filled(url: str, queued: str, agents: int) -> Engine:
    store = open_store(url)
    store.migrate()
    engine = Engine(store, SystemClock(), name="bench")
    apply_one(engine, SetPolicy(WIDE_OPEN, "bench"))
    with closing(store.reader()) as reader:
        if line_table.lanes(reader):
            return engine  # filled by a run before this one
    for start in range(0, int(queued), 1000):
        engine.apply([Submit([_submission(n, agents)]) for n in range(start, start + 1000)])
    return engine


def _turn(engine: Engine, agents: int, leases: list[float], cycles: list[float]) -> None:
    routes = frozenset({"handler/noop"})
    request = Lease("bench", None, routes, 100, 60_000, started=routes)
    began = time.perf_counter()
    grants = engine.apply([], [request]).grants[0]
    leases.append(time.perf_counter() - began)
    assert len(grants) == 100
    engine.apply([Complete(grant.task.seq, grant.task.fencing_token) for grant in grants])
    first = time.time_ns() // 1000  # ids that no run before has used
    engine.apply([Submit([_submission(first + n, agents)]) for n in range(100)])
    cycles.append(time.perf_counter() - began)


def _submission(number: int, agents: int) -> Submission:
    return Submission(
        id=f"tsk_{number:016x}",
        kind="handler",
        agent=f"agent-{number % agents}",
        capability="handler/noop",
        body='{"handler":"noop","params":{"n":1}}',
    )


def ready_and_rss(store: str) -> Row:
    """How long a server takes to be ready on an existing store, and what it holds then."""
    began = time.perf_counter()
    with fairlane_server(store) as server:
        ready = time.perf_counter() - began
        server.load("unserved", 2000)
        return {"ready_s": round(ready, 2), "rss_mb": round(server.rss_mb())}


def idle(store: str, seconds: float = 10.0) -> Row:
    with fairlane_server(store) as server:
        server.load("echo", 100)
        time.sleep(1.0)
        before = server.cpu_seconds()
        time.sleep(seconds)
        return {"cpu_percent": round((server.cpu_seconds() - before) / seconds * 100, 2)}


def idle_jobs(store: str, jobs: int, seconds: float = 10.0) -> Row:
    """Enabled cron jobs of which none falls due while this is measured."""
    schedule = {"kind": "every", "everyMs": 86_400_000}
    with fairlane_server(store) as server:
        for first in range(0, jobs, 1000):
            numbers = range(first, min(first + 1000, jobs))
            several = [
                {"name": f"job-{n}", "schedule": schedule, "task": {"handler": "echo"}}
                for n in numbers
            ]
            server.post("/cron/jobs", {"jobs": several})
        server.load("echo", 100)
        time.sleep(1.0)
        before = server.cpu_seconds()
        time.sleep(seconds)
        percent = (server.cpu_seconds() - before) / seconds * 100
        return {"cpu_percent": round(percent, 2), "rss_mb": round(server.rss_mb())}


def fairness(store: str) -> Row:
    """One agent floods 10,000 tasks of 10 ms; 99 quiet agents submit one each, with 10 slots."""
    return run_in_loop(_fairness(store))


async def _fairness(store: str) -> Row:
    policy = {"lanes": {"main": {"maxInflight": 10, "maxQueueSize": 1_000_000}}}
    async with Fairlane(store, policy=policy, drain_seconds=0) as app:
        started: dict[str, float] = {}

        @app.handler("work")
        async def work(task: Any) -> None:
            started.setdefault(task.agent, time.perf_counter())
            await asyncio.sleep(0.010)

        flood = [app.submit(handler="work", agent="flood") for _ in range(10_000)]
        await asyncio.gather(*flood)
        asked: dict[str, float] = {}

        async def quiet(number: int) -> None:
            agent = f"quiet-{number}"
            asked[agent] = time.perf_counter()
            handle = await app.submit(handler="work", agent=agent)
            await handle.result(60)

        await asyncio.gather(*(quiet(number) for number in range(99)))
        waits = [(started[agent] - at) * 1000 for agent, at in asked.items()]
        flooded = (await app.stats())["queue"]["agentCounts"].get("flood", 0)
    assert flooded > 0, "the flood had already ended; the figure is meaningless"
    return {"quiet_max_ms": round(max(waits), 1), "quiet_median_ms": round(median(waits), 1)}


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    import uvloop

    tune()
    return uvloop.run(work)


def main() -> None:
    if sys.argv[1] == "--flat":
        print(json.dumps(_flat(sys.argv[2:])))
        return
    print("ready", flush=True)
    sys.stdin.read()
    tasks, callers, total = (int(word) for word in sys.argv[2:5])
    run_in_loop(_lifecycle(sys.argv[1], tasks, callers, total=total))


if __name__ == "__main__":
    main()
