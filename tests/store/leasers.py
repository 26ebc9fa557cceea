"""A leaser: takes tasks as fast as it can and writes down from when to when it held each.

Many of them at once, in threads or in processes, try to break a ceiling. What is written down lies
inside what was true: the lease began before its first moment and ended after its last.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from fairlane.clock import SystemClock
from fairlane.engine.commands import Complete
from fairlane.engine.engine import Engine
from fairlane.store.opening import open_store
from tests.store.scheduler import lease_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.core.model import Task
    from fairlane.store.base import Store


QUOTA = 6  # no leaser takes more, so that many have to take part


class Held(NamedTuple):
    leaser: str
    task: str
    agent: str
    session: str | None
    fencing_token: int
    from_ns: int
    to_ns: int


def take_all(store: Store, name: str) -> list[Held]:
    """Lease and complete until the quota is full or nothing is queued any more."""
    engine, reader = Engine(store, SystemClock(), name=name), store.reader()
    history: list[Held] = []
    try:
        while True:
            mine: list[tuple[Task, int]] = []
            while len(history) + len(mine) < QUOTA and (more := _lease(engine)):
                mine += more  # until the ceiling is felt
            history += _complete(engine, mine)
            if len(history) == QUOTA or not any(row[1] for row in reader.run("lane_view")):
                return history
            time.sleep(0.002)  # others want their turn
    finally:
        engine.close()
        reader.close()


def _lease(engine: Engine) -> list[tuple[Task, int]]:
    request = lease_request(worker=engine.name, ttl_ms=600_000)
    grants = engine.apply([], [request]).grants[0]
    return [(grant.task, time.monotonic_ns()) for grant in grants]


def _complete(engine: Engine, mine: list[tuple[Task, int]]) -> list[Held]:
    if not mine:
        return []
    to_ns = time.monotonic_ns()
    engine.apply([Complete(task.seq, task.fencing_token) for task, _ in mine])
    return [
        Held(engine.name, task.id, task.agent, task.session, task.fencing_token, from_ns, to_ns)
        for task, from_ns in mine
    ]


def most_at_once(
    history: Iterable[Held], of: Callable[[Held], str | None] = lambda _: ""
) -> Counter[str]:
    """Sweep over the intervals: how many were held at the busiest instant, by what `of` tells."""
    events = []
    for held in history:
        group = of(held)
        if group is not None:
            events += [(held.from_ns, 1, group), (held.to_ns, -1, group)]
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, step, group in sorted(events):
        now[group] += step
        most[group] = max(most[group], now[group])
    return most


def take_all_in_threads(store: Store, name: str, count: int) -> list[Held]:
    with ThreadPoolExecutor(count) as pool:
        parts = pool.map(lambda number: take_all(store, f"{name}.{number}"), range(count))
        return [held for part in parts for held in part]


if __name__ == "__main__":
    _url, _name, _count = sys.argv[1:]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    json.dump(take_all_in_threads(open_store(_url), _name, int(_count)), sys.stdout)
