"""Compare versions of Fairlane: CPU time per task of all their processes, in alternation.

    python -m benchmarks.versions before=/other/clone/.venv/bin/python after=.venv/bin/python

Each version is the interpreter of an environment that has it installed. The load generator, the
stub and the figures are those of this folder. The versions take turns in every measurement, and a
figure is the median of the rounds. CPU time is user and system time of the server or the embedding
process with all its children, the external worker, and PostgreSQL. It repeats within 15 % on a
machine that others use too; rates do not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.servers import WIDE_OPEN, Server, fairlane_server, sqlite_file, stub_instance
from benchmarks.stacks import harness

Row = dict[str, float]

FEW_SLOTS = {
    **WIDE_OPEN,
    "lanes": {
        **WIDE_OPEN["lanes"],
        "browser": {
            **WIDE_OPEN["lanes"]["browser"],
            "maxInflight": 20,
            "maxPerAgentInflight": 10,
        },
    },
}
PAUSED = {
    **WIDE_OPEN,
    "lanes": {name: {**lane, "paused": True} for name, lane in WIDE_OPEN["lanes"].items()},
}
WARM = 2000
_MISSING = 4  # the exit code of a measurement that a version cannot do


# -------------------------------------------------------------------- over HTTP


def submit(kind: str, requests: int, *flags: str) -> Row:
    """One POST per task on 64 connections; no worker runs them."""
    with sqlite_file() as url, fairlane_server(url, *flags, policy=PAUSED) as server:
        pid = server.process.pid
        server.load(kind, WARM)
        before, busiest = harness.cpu_seconds(pid), _each(pid)
        found = server.load(kind, requests)
        used = harness.cpu_seconds(pid) - before
        most = max(now - busiest.get(one, 0.0) for one, now in _each(pid).items())
    assert found["statuses"] == {"202": requests}, found
    row = {"us": _us(used, requests), "per_s": found["perSecond"]}
    return row | ({"busiest_us": _us(most, requests)} if flags else {})


def _each(pid: int) -> dict[int, float]:
    """Return the CPU time of each process of a server alone."""
    return {one: harness.own_cpu_seconds(one) for one in (pid, *harness.descendants(pid))}


def executed(requests: int, policy: Any = WIDE_OPEN) -> Row:
    """Actions, submitted and executed through an HTTP stub."""
    with sqlite_file() as url, stub_instance() as port:
        instance = f"http://127.0.0.1:{port}"
        with fairlane_server(url, "--instance", instance, policy=policy) as server:
            pid = server.process.pid
            server.load("action", WARM // 4)
            _until_completed(server, WARM // 4)
            before = harness.cpu_seconds(pid)
            found = server.load("action", requests)
            _until_completed(server, WARM // 4 + requests)
            took = time.perf_counter() - found["began"]
            used = harness.cpu_seconds(pid) - before
    return {"us": _us(used, requests), "per_s": round(requests / took)}


def _until_completed(server: Server, count: int) -> None:
    while (done := server.get("/scheduler/stats")["metrics"])["tasksCompleted"] < count:
        assert done["tasksFailed"] == 0, done
        time.sleep(0.02)


def external(tasks: int) -> Row:
    """Submitted over HTTP and run by an external worker."""
    row = harness.measure("fairlane_sqlite", tasks)
    kept = {"us": row["cpu_us"], "server_us": row["server_us"], "worker_us": row["worker_us"]}
    return kept | {"per_s": row["lifecycle_per_s"]}


def stream(tasks: int) -> Row:
    """One NDJSON stream with an idempotency key."""
    lines = b"".join(
        b'{"agentId":"agent-%d","handler":"unserved","params":{"n":%d}}\n' % (n % 10, n)
        for n in range(tasks)
    )
    with sqlite_file() as url, fairlane_server(url) as server:
        before, began = harness.cpu_seconds(server.process.pid), time.perf_counter()
        answered = server.stream(lines)
        took = time.perf_counter() - began
        used = harness.cpu_seconds(server.process.pid) - before
    if not answered:
        sys.exit(_MISSING)
    assert answered == tasks, answered
    return {"us": _us(used, tasks), "per_s": round(tasks / took)}


def idle_memory() -> Row:
    with sqlite_file() as url, fairlane_server(url) as server:
        server.get("/scheduler/stats")
        time.sleep(1.0)
        return {"mb": round(server.rss_mb(), 1)}


# -------------------------------------------------------------------- Python API


def life(tasks: int, callers: int) -> Row:
    with sqlite_file() as url:
        return _lives(url, tasks, callers, nodes=1)


def postgres_life(tasks: int, callers: int, nodes: int) -> Row:
    """Lives on PostgreSQL, by nodes that start together; CPU time of the nodes and PostgreSQL."""
    with _postgres() as (url, pid):
        _lives(url, nodes * 4 * callers, callers, nodes=nodes)  # warm
        before = harness.cpu_seconds(pid)
        row = _lives(url, tasks, callers, nodes=nodes)
        database = harness.cpu_seconds(pid) - before
    return {**row, "us": row["us"] + _us(database, tasks), "postgres_us": _us(database, tasks)}


def _lives(url: str, tasks: int, callers: int, *, nodes: int) -> Row:
    part = tasks // nodes // callers * callers
    words = ["--life", url, str(part), str(callers), str(part * nodes)]
    command = [sys.executable, "-m", "benchmarks.versions", *words]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(nodes)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it has opened the store
    began = time.perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    used = 0.0
    for process in processes:
        assert process.stdout is not None
        used += json.loads(process.stdout.readline())["cpu_seconds"]
    took = time.perf_counter() - began
    for process in processes:
        process.communicate("", 60)
    return {"us": _us(used, part * nodes), "per_s": round(part * nodes / took)}


async def _node(url: str, tasks: int, callers: int, total: int) -> None:
    from fairlane import Fairlane

    async with Fairlane(url, policy=WIDE_OPEN) as app:

        @app.handler("noop")
        async def noop(_: Any) -> None:
            pass

        async def completed() -> int:
            return int((await app.stats())["metrics"]["tasksCompleted"])

        goal = await completed() + total
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        before = time.process_time()

        async def caller(number: int) -> None:
            for _ in range(tasks // callers):
                await app.submit(handler="noop", agent=f"agent-{number % 10}", params={"n": number})

        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number))
        while await completed() < goal:  # noqa: ASYNC110 - the store is asked
            await asyncio.sleep(0.05)
        print(json.dumps({"cpu_seconds": time.process_time() - before}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextmanager
def _postgres() -> Iterator[tuple[str, int]]:
    from tests.postgres import new_database, running_postgres

    with running_postgres() as server, new_database(server) as url:
        (home,) = parse_qs(urlsplit(server).query)["host"]
        yield url, int(Path(home, "data", "postmaster.pid").read_text().splitlines()[0])


# -------------------------------------------------------------------- versions in alternation


MEASUREMENTS: dict[str, Callable[[], Row]] = {
    "submit, handler": lambda: submit("unserved", 12_000),
    "submit, action": lambda: submit("action", 12_000),
    "submit, handler, two processes": lambda: submit("unserved", 12_000, "--processes", "2"),
    "executed, 200 slots": lambda: executed(5_000),
    "executed, 20 slots, 10 per agent": lambda: executed(3_000, FEW_SLOTS),
    "python api, 256 callers": lambda: life(25_600, 256),
    "postgres, 1 node, 128 callers": lambda: postgres_life(6_400, 128, 1),
    "postgres, 2 nodes, 64 callers each": lambda: postgres_life(6_400, 64, 2),
    "external worker": lambda: external(4_000),
    "stream of lines": lambda: stream(200_000),
    "idle server": idle_memory,
}


def compare(versions: dict[str, str], rounds: int, only: str) -> None:
    for name in MEASUREMENTS:
        if only not in name:
            continue
        found: dict[str, list[Row]] = {version: [] for version in versions}
        for _ in range(rounds):
            for version, python in versions.items():
                row = _measured(python, name)
                if row is not None:
                    found[version].append(row)
        for version, rows in found.items():
            figures = {key: median(row[key] for row in rows) for key in (rows or [{}])[0]}
            text = " ".join(f"{key}={value:g}" for key, value in figures.items())
            spread = sorted(row.get("us", 0) for row in rows)
            print(f"{name:36} {version:8} {text or 'not offered':60} {spread}", flush=True)


def _measured(python: str, name: str) -> Row | None:
    command = [python, "-m", "benchmarks.versions", "--measure", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        refused = done.returncode == _MISSING or "unrecognized arguments" in done.stderr
        if not refused:
            print(done.stderr[-2000:], file=sys.stderr)
        return None
    row: Row = json.loads(done.stdout)
    return row


def _us(seconds: float, tasks: int) -> int:
    return round(seconds / tasks * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only measurements whose name has this word")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--life", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(MEASUREMENTS[arguments.measure]()))
    elif arguments.life:
        import uvloop

        from fairlane.embedded.app import tune

        tune()
        url, *numbers = arguments.life
        uvloop.run(_node(url, *map(int, numbers)))
    else:
        versions = dict(one.split("=", 1) for one in arguments.versions)
        compare(versions or {"this": sys.executable}, arguments.rounds, arguments.only)


if __name__ == "__main__":
    main()
