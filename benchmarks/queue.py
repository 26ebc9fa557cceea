"""The queue measured as a host meets it: by commands, each a process of its own, and in process.

Commands run as they do when they are installed, with their bytecode at hand, against a server and
on the store itself. cool-workflow's figures on a machine of two cores: 188 s for 1,000 `queue add`;
with 10,000 entries 135 ms for `sched plan` and 161 ms for `sched lease`.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.ours import Row
from benchmarks.servers import fairlane_server
from fairlane.cli.direct import StoreBackend
from fairlane.clock import SystemClock
from fairlane.core.entries import QueueEntry
from fairlane.engine.commands import Enqueue
from fairlane.engine.engine import Engine, apply_one
from fairlane.schema.queue import AddEntry, new_entry
from fairlane.store.opening import open_store

FAIRLANE = str(Path(sys.executable).parent / "fairlane")
STEP = 10_000
TURNS = 7


def adds(store: str, count: int) -> Row:
    """`fairlane queue add` so often, one after the other, and the same calls by one client."""
    with fairlane_server(store) as server:
        where = ("--url", f"http://127.0.0.1:{server.port}")
        _command("queue", "list", *where)
        began = time.perf_counter()
        for number in range(count):
            _command("queue", "add", "--app", "review", "--id", f"command-{number}", *where)
        by_command = time.perf_counter() - began
    with StoreBackend(store, create=True).client as client:
        began = time.perf_counter()
        for number in range(1000):
            client.queue_add(id=f"call-{number}", app="review")
        by_call = time.perf_counter() - began
    return {
        "commands_s_per_1000": round(by_command / count * 1000, 1),
        "calls_s_per_1000": round(by_call, 2),
    }


def plan_and_lease(store: str, count: int) -> Row:
    """With so many entries: a plan, and a lease of one, as commands and as calls (medians)."""
    _fill(store, count)
    with fairlane_server(store, policy={"lanes": {"queue": {"maxInflight": 1000}}}) as server:
        row = _by_command("--url", f"http://127.0.0.1:{server.port}", name="command")
    row |= _by_command("--store", store, name="store_command")
    with StoreBackend(store, create=False).client as client:
        client.plan()
        plan_calls = [_timed(client.plan) for _ in range(20)]
        lease_calls = [
            _timed(lambda: client.lease("bench", lanes=["queue"], limit=1)) for _ in range(20)
        ]
    return {
        **row,
        "plan_call_ms": round(median(plan_calls), 2),
        "lease_call_ms": round(median(lease_calls), 2),
    }


def _by_command(*where: str, name: str) -> Row:
    _command("sched", "plan", *where)
    plans = [_timed(lambda: _command("sched", "plan", *where)) for _ in range(TURNS)]
    one_more = ("sched", "lease", "--limit", "1", *where)
    leases = [_timed(lambda: _command(*one_more)) for _ in range(TURNS)]
    return {f"plan_{name}_ms": round(median(plans)), f"lease_{name}_ms": round(median(leases))}


def _fill(url: str, count: int) -> None:
    store = open_store(url)
    store.migrate()
    engine = Engine(store, SystemClock(), name="bench")
    for start in range(0, count, STEP):
        found = [_entry(number) for number in range(start, min(count, start + STEP))]
        apply_one(engine, Enqueue(found))
    engine.close()


def _entry(number: int) -> QueueEntry:
    request = AddEntry(app="review", priority=number % 200)
    return new_entry(request, entry_id=f"entry-{number}")


def _command(*words: str) -> None:
    command = [FAIRLANE, *words, "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, env=_environment(), check=True)


@cache
def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    folder = tempfile.TemporaryDirectory(prefix="fairlane-bench-")
    atexit.register(folder.cleanup)
    return {**kept, "PYTHONPYCACHEPREFIX": folder.name}


def _timed(ask: Callable[[], Any]) -> float:
    """In milliseconds."""
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1000
