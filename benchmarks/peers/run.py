"""Runs every peer in a process of its own, one after another, on one Redis and one PostgreSQL.

A peer that cannot be measured (not installed, no server, too slow, broken) is named on standard
error and left out; the others go on. Nothing that was started here outlives `measure`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.peers import PEERS, servers

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120
STOP_SECONDS_MAX = 15

# A slow peer gets fewer tasks, so that the whole run stays short; a fast one gets more, so that
# its start does not show.
SHARES = {"procrastinate_postgres": 0.5, "pgqueuer_postgres": 2.0}


def measure(
    tasks: int, postgres_url: str | None = None, *, python: str = sys.executable
) -> list[dict[str, Any]]:
    """One row per peer that could be measured; `python` is one that has the peers installed."""
    with ExitStack() as stack:
        redis_url = _started(stack, servers.redis_server)
        postgres_url = postgres_url or _started(stack, servers.postgres_server)
        rows = [_measure_one(python, name, tasks, postgres_url, redis_url) for name in PEERS]
    return [row for row in rows if row is not None]


def _started(stack: ExitStack, server: Callable[[], AbstractContextManager[str]]) -> str | None:
    """The server's URL; if None, each peer tries to start its own and says what is missing."""
    try:
        return stack.enter_context(server())
    except servers.NotMeasured:
        return None


def _measure_one(
    python: str, name: str, tasks: int, postgres_url: str | None, redis_url: str | None
) -> dict[str, Any] | None:
    command = [python, "-m", f"benchmarks.peers.{name}", "--tasks", str(_share(name, tasks))]
    for option, url in (("--postgres", postgres_url), ("--redis", redis_url)):
        command += [option, url] if url else []
    code, output, complaints = _run(command)
    if code == 0:
        row: dict[str, Any] = json.loads(output.splitlines()[-1])
        return row
    reason = complaints.strip().splitlines()[-1:] or [f"exit code {code}"]
    print(f"{name}: left out: {reason[0]}", file=sys.stderr)
    return None


def _share(name: str, tasks: int) -> int:
    return max(1, round(tasks * SHARES.get(name, 1.0)))


def _run(command: list[str]) -> tuple[int, str, str]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, complaints = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return 1, "", f"not done within {SECONDS_MAX} s"
    finally:
        _stop(process)
    return process.returncode, output, complaints


def _stop(process: subprocess.Popen[str]) -> None:
    """Ask the peer to clean up after itself; if it cannot, end its whole group of processes."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _leave(*_: object) -> NoReturn:
    sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure other Python queues on no-op tasks.")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--postgres", metavar="URL", help="use this server; default: start one")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    for row in measure(arguments.tasks, arguments.postgres):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
