"""How a stack is measured: callers submit one task after the other, a worker runs them.

A round starts the server and a worker, warms both up, and then counts from the first submission to
the last run. The CPU time is that of the server's and the worker's processes with their children,
user and system; the client's stands apart, because every stack has another one.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

CALLERS = 64
CONCURRENCY = 200
WARM = 200
START_SECONDS_MAX = 60
DRAIN_SECONDS_MAX = 150
NOT_MEASURED = 3
_TICKS = os.sysconf("SC_CLK_TCK")

Mark = Callable[[], object]


class NotMeasured(Exception):
    """Something that a stack needs is missing; the message says what."""


class Stack(ABC):
    """One server with its client and its worker."""

    name: ClassVar[str]
    store: ClassVar[str]
    note: ClassVar[str] = ""
    durable: ClassVar[bool] = True  # a submitted task is on disk when the call returns
    share: ClassVar[float] = 1.0  # of the tasks, so that a slow stack does not take all the time

    @abstractmethod
    def version(self) -> str:
        """Return the version; raise `NotMeasured` if the stack is not installed."""

    @abstractmethod
    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        """Start the server with its data in the folder."""

    @abstractmethod
    async def connect(self, url: str) -> Callable[[], Any]:
        """Return the coroutine function that submits one no-op and waits until it is durable."""

    @abstractmethod
    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        """Run tasks until the process is terminated; `mark` counts each."""

    async def register(self, url: str) -> None:  # noqa: B027 - not every server needs it
        """Tell the server about the worker."""

    def facts(self, url: str) -> dict[str, Any]:
        """Return further figures after a round."""
        del url
        return {}


class Server:
    def __init__(self, url: str, *processes: int) -> None:
        self.url = url
        self.processes = processes


# -------------------------------------------------------------------- one round


def measure(module: str, tasks: int) -> dict[str, Any]:
    """Run one round in this process's children."""
    stack = load(module)
    count = max(100, round(tasks * stack.share))
    version = stack.version()
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        tally = folder / "tally"
        tally.touch()
        (folder / "data").mkdir()
        server = cleanup.enter_context(stack.server(folder / "data"))
        worker = cleanup.enter_context(role(module, "worker", server.url, str(tally)))
        next_line(worker)
        asyncio.run(stack.register(server.url))
        client = cleanup.enter_context(role(module, "client", server.url))
        next_line(client)  # warmed up
        until(tally, WARM)
        before = stack.facts(server.url)
        groups = (server.processes, (worker.pid,), (client.pid,))
        used = [sum(map(cpu_seconds, group)) for group in groups]
        began = time.perf_counter()
        assert client.stdin is not None
        client.stdin.write(f"{count}\n")
        client.stdin.flush()
        took = json.loads(next_line(client))["seconds"]
        until(tally, WARM + count)
        seconds = time.perf_counter() - began
        time.sleep(0.5)  # the last reports
        now = [sum(map(cpu_seconds, group)) for group in groups]
        after = stack.facts(server.url)
    us = [round((end - start) / count * 1e6) for start, end in zip(used, now, strict=True)]
    facts = {key: round((after[key] - before[key]) / count, 1) for key in after}
    return {
        "stack": stack.name,
        "version": version,
        "store": stack.store,
        "durable": stack.durable,
        "tasks": count,
        "lifecycle_per_s": round(count / seconds),
        "submit_per_s": round(count / took),
        "cpu_us": us[0] + us[1],
        "server_us": us[0],
        "worker_us": us[1],
        "client_us": us[2],
        **facts,
        "note": stack.note,
    }


def until(tally: Path, count: int) -> None:
    give_up_at = time.monotonic() + DRAIN_SECONDS_MAX
    while tally.stat().st_size < count:
        if time.monotonic() > give_up_at:
            left = count - tally.stat().st_size
            raise NotMeasured(f"{left} tasks had not run after {DRAIN_SECONDS_MAX} s")
        time.sleep(0.002)


@contextmanager
def role(module: str, *words: str, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    command = [python, "-m", "benchmarks.stacks.harness", module, *words]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NotMeasured("a client or worker ended before it was ready")
    return line


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that does not outlive the block."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its descendants, ended ones included."""
    return sum(own_cpu_seconds(one, ended=True) for one in [pid, *descendants(pid)])


def own_cpu_seconds(pid: int, *, ended: bool = False) -> float:
    """User and system time of a process alone; with `ended`, also of its ended children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0  # it has just ended: its parent has its time
    return sum(map(int, fields[11 : 15 if ended else 13])) / _TICKS


def living_cpu_seconds(pid: int) -> float:
    """User and system time of a process and its living descendants, in nanoseconds' steps."""
    return sum(map(_exact_cpu_seconds, [pid, *descendants(pid)]))


def _exact_cpu_seconds(pid: int) -> float:
    """Read the CPU clock of a process, whose number the C library computes like this."""
    return time.clock_gettime(~pid << 3 | 2)


def descendants(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < give_up_at:
        if process.poll() is not None:
            raise NotMeasured(f"the server ended with exit code {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise NotMeasured(f"the server did not listen on port {port}")


def post_json(url: str, body: Any) -> Any:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


# -------------------------------------------------------------------- client and worker processes


async def _submit(stack: Stack, url: str) -> None:
    """Submit as many tasks as each line of the input says, and print how long it took."""
    submit = await stack.connect(url)

    async def callers(total: int) -> None:
        left = iter(range(total))

        async def caller() -> None:
            for _ in left:
                await submit()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    await callers(WARM)
    print("warm", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await callers(int(line))
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


async def _work(stack: Stack, url: str, tally: str) -> None:
    file = os.open(tally, os.O_WRONLY | os.O_APPEND)
    await stack.work(url, lambda: os.write(file, b"."), lambda: print("ready", flush=True))


def load(module: str) -> Stack:
    stack: Stack = importlib.import_module(f"benchmarks.stacks.{module}").STACK()
    return stack


def _leave(*_: object) -> NoReturn:
    """Turn SIGTERM into an exit that runs every `finally`: no process is left behind."""
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module")
    parser.add_argument("role", choices=["measure", "client", "worker"])
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    words = arguments.words
    if arguments.role == "client":
        asyncio.run(_submit(load(arguments.module), words[0]))
    elif arguments.role == "worker":
        asyncio.run(_work(load(arguments.module), *words))
    else:
        signal.signal(signal.SIGTERM, _leave)
        try:
            print(json.dumps(measure(arguments.module, int(words[0]))))
        except (NotMeasured, ImportError) as missing:
            print(missing, file=sys.stderr)
            sys.exit(NOT_MEASURED)


if __name__ == "__main__":
    main()
