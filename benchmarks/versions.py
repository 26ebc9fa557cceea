"""Compare versions of Fairlane: CPU time per task of all their processes, in alternation.

    python -m benchmarks.versions before=/other/clone/.venv/bin/python after=.venv/bin/python

Each version is the interpreter of an environment that has it installed. The load generator, the
stub and the callers are those of this folder. In a measurement the processes of all versions are up
at the same time and take turns with small portions of the work, because the speed of a machine that
others use changes by a factor of two within minutes. `us` is the median of a version's portions;
`ratio` is the median of its ratio to the first version in the same turn, and repeats best. CPU time
is user and system time of the server or the embedding processes, the external worker, and
PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from benchmarks.servers import (
    WIDE_OPEN,
    NotStarted,
    Server,
    fairlane_server,
    sqlite_file,
    stub_instance,
)
from benchmarks.stacks import harness

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
TURNS = 12


class Running(NamedTuple):
    """The running processes of one version. `work` does a portion of `tasks` tasks; it returns how
    long that took if it knows better than its caller.
    """

    tasks: int
    pids: list[int]
    work: Callable[[], float | None]
    databases: tuple[int, ...] = ()  # PostgreSQL's main processes


Start = Callable[[str], AbstractContextManager[Running]]  # of an interpreter

# -------------------------------------------------------------------- over HTTP


@contextmanager
def submit(python: str, kind: str, *flags: str, connections: int = 64) -> Iterator[Running]:
    """One POST per task; no worker runs them."""
    tasks = 100 * connections
    with _server(python, *flags, policy=PAUSED) as server:

        def work() -> float:
            found = server.load(kind, tasks, connections=connections)
            assert found["statuses"] == {"202": tasks}, found
            return float(tasks / found["perSecond"])

        yield Running(tasks, [server.process.pid], work)


@contextmanager
def executed(python: str, tasks: int, policy: Any) -> Iterator[Running]:
    """Actions, submitted and executed through an HTTP stub."""
    with stub_instance() as port:
        instance = f"http://127.0.0.1:{port}"
        with _server(python, "--instance", instance, policy=policy) as server:

            def work() -> None:
                done = _completed(server)
                server.load("action", tasks)
                while _completed(server) < done + tasks:
                    time.sleep(0.02)

            yield Running(tasks, [server.process.pid], work)


def _completed(server: Server) -> int:
    found = server.get("/scheduler/stats")["metrics"]
    assert found["tasksFailed"] == 0, found
    return int(found["tasksCompleted"])


@contextmanager
def external(python: str) -> Iterator[Running]:
    """Submitted over HTTP and run by an external worker."""
    tasks, stack = 2000, "fairlane_sqlite"
    with _server(python) as server, tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "tally"
        tally.touch()
        url = f"http://127.0.0.1:{server.port}"
        with (
            harness.role(stack, "worker", url, str(tally), python=python) as worker,
            harness.role(stack, "client", url) as client,
        ):
            for process in (worker, client):
                harness.next_line(process)
            harness.until(tally, harness.WARM)

            def work() -> None:
                count = tally.stat().st_size + tasks
                _tell(client, str(tasks))
                harness.until(tally, count)

            yield Running(tasks, [server.process.pid, worker.pid], work)


@contextmanager
def stream(python: str) -> Iterator[Running]:
    """NDJSON streams, each with an idempotency key."""
    tasks = 40_000
    lines = b"".join(
        b'{"agentId":"agent-%d","handler":"unserved","params":{"n":%d}}\n' % (n % 10, n)
        for n in range(tasks)
    )
    with _server(python) as server:
        if not server.stream(lines[: lines.find(b"\n") + 1], "first"):
            raise NotStarted("this version reads no streams of lines")
        streams = iter(range(1_000_000))

        def work() -> None:
            assert server.stream(lines, f"bench-{next(streams)}") == tasks

        yield Running(tasks, [server.process.pid], work)


@contextmanager
def _server(python: str, *flags: str, policy: Any = WIDE_OPEN) -> Iterator[Server]:
    with sqlite_file() as url, fairlane_server(url, *flags, policy=policy, python=python) as server:
        yield server


# -------------------------------------------------------------------- Python API


@contextmanager
def life(python: str) -> Iterator[Running]:
    with sqlite_file() as url, _lives(python, url, 5120, 256, nodes=1) as running:
        yield running


@contextmanager
def postgres_life(python: str, callers: int, nodes: int) -> Iterator[Running]:
    with (
        _postgres() as (url, database),
        _lives(python, url, 3840, callers, nodes=nodes) as running,
    ):
        yield running._replace(databases=(database,))


@contextmanager
def _lives(python: str, url: str, tasks: int, callers: int, *, nodes: int) -> Iterator[Running]:
    """Processes that submit and run tasks; each does its part of a portion."""
    command = [python, "-m", "benchmarks.versions", "--life", url, str(callers)]
    part = tasks // nodes
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                harness.started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(nodes)
        ]
        for process in processes:
            harness.next_line(process)  # it has opened the store

        def work() -> None:
            for process in processes:
                _tell(process, f"{part} {tasks}")
            for process in processes:
                harness.next_line(process)

        yield Running(tasks, [process.pid for process in processes], work)


async def _node(url: str, callers: int) -> None:
    """For each line `part total`: run so many lives; print when all nodes have done theirs."""
    from fairlane import Fairlane

    async with Fairlane(url, policy=WIDE_OPEN) as app:

        @app.handler("noop")
        async def noop(_: Any) -> None:
            pass

        async def completed() -> int:
            return int((await app.stats())["metrics"]["tasksCompleted"])

        async def caller(number: int, tasks: int) -> None:
            for _ in range(tasks):
                await app.submit(handler="noop", agent=f"agent-{number % 10}", params={"n": number})

        print("ready", flush=True)
        goal = await completed()
        while line := await asyncio.to_thread(sys.stdin.readline):
            part, total = map(int, line.split())
            goal += total
            async with asyncio.TaskGroup() as group:
                for number in range(callers):
                    group.create_task(caller(number, part // callers))
            while await completed() < goal:  # noqa: ASYNC110 - the store is asked
                await asyncio.sleep(0.01)
            print("done", flush=True)


@contextmanager
def _postgres() -> Iterator[tuple[str, int]]:
    from tests.postgres import new_database, running_postgres

    with running_postgres() as server, new_database(server) as url:
        (home,) = parse_qs(urlsplit(server).query)["host"]
        yield url, int(Path(home, "data", "postmaster.pid").read_text().splitlines()[0])


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


# -------------------------------------------------------------------- versions in alternation

# The ways of doing the same work that take turns in a measurement, mostly one.
MEASUREMENTS: dict[str, dict[str, Start]] = {
    "submit, handler": {"": lambda python: submit(python, "unserved")},
    "submit, action": {"": lambda python: submit(python, "action")},
    "submit, processes, 64 connections": {
        "1": lambda python: submit(python, "unserved"),
        "2": lambda python: submit(python, "unserved", "--processes", "2"),
    },
    "submit, processes, 256 connections": {
        "1": lambda python: submit(python, "unserved", connections=256),
        "2": lambda python: submit(python, "unserved", "--processes", "2", connections=256),
    },
    "executed, 200 slots": {"": lambda python: executed(python, 2500, WIDE_OPEN)},
    "executed, 20 slots, 10 per agent": {"": lambda python: executed(python, 1500, FEW_SLOTS)},
    "python api, 256 callers": {"": life},
    "postgres, nodes x callers": {
        "1 x 128": lambda python: postgres_life(python, 128, 1),
        "2 x 64": lambda python: postgres_life(python, 64, 2),
    },
    "external worker": {"": external},
    "stream of lines": {"": stream},
}


def compare(versions: Mapping[str, str], turns: int, only: str) -> None:
    for name, ways in MEASUREMENTS.items():
        if only in name:
            _measure(name, ways, versions, turns)
    if only in "idle server":
        for version, python in versions.items():
            print(f"{'idle server':34} {version:8}         {_idle_mb(python):8.1f} MB", flush=True)


def _measure(name: str, ways: Mapping[str, Start], versions: Mapping[str, str], turns: int) -> None:
    with ExitStack() as stack:
        running: dict[tuple[str, str], Running] = {}
        for version, python in versions.items():
            for way, start in ways.items():
                try:
                    running[version, way] = stack.enter_context(start(python))
                except NotStarted as error:
                    print(f"{name:34} {version:8} {way:8} {error}", flush=True)
        for one in running.values():
            one.work()  # warm
        found: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in running}
        for turn in range(turns):
            for key in list(running)[:: -1 if turn % 2 else 1]:
                found[key].append(_portion(running[key]))
    first = next(iter(found))
    for (version, way), portions in found.items():
        us, per_s = (median(figures) for figures in zip(*portions, strict=True))
        text = f"{name:34} {version:8} {way:8} {us:5.0f} us {per_s:8.0f}/s"
        text += f"  ratio {_ratio(portions, found[first], 0):.3f}"
        if len(ways) > 1:
            other = next(key for key in found if key[0] == version)
            text += f"  rate against {other[1]}: {_ratio(portions, found[other], 1):.2f}"
        print(text, flush=True)


def _portion(one: Running) -> tuple[float, float]:
    """Return the CPU time per task in microseconds, and tasks per second."""
    before, began = _cpu_seconds(one), time.perf_counter()
    took = one.work() or time.perf_counter() - began
    return (_cpu_seconds(one) - before) / one.tasks * 1e6, one.tasks / took


def _cpu_seconds(one: Running) -> float:
    return sum(map(harness.living_cpu_seconds, one.pids)) + sum(
        map(harness.cpu_seconds, one.databases)
    )


def _ratio(
    portions: list[tuple[float, float]], others: list[tuple[float, float]], place: int
) -> float:
    pairs = zip(portions, others, strict=True)
    return median(mine[place] / other[place] for mine, other in pairs)


def _idle_mb(python: str) -> float:
    with _server(python) as server:
        server.get("/scheduler/stats")
        time.sleep(1.0)
        return server.rss_mb()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="NAME=PYTHON")
    parser.add_argument("--turns", type=int, default=TURNS, help="portions of each version")
    parser.add_argument("--only", default="", help="only measurements whose name has this word")
    parser.add_argument("--life", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.life:
        import uvloop

        from fairlane.embedded.app import tune

        tune()
        uvloop.run(_node(arguments.life[0], int(arguments.life[1])))
    else:
        versions = dict(one.split("=", 1) for one in arguments.versions)
        compare(versions or {"this": sys.executable}, arguments.turns, arguments.only)


if __name__ == "__main__":
    main()
