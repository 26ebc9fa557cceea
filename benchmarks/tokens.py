"""The cost of tokens: the same submissions to a server without tokens and to one with them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.ours import Row
from benchmarks.servers import Server, fairlane_server, sqlite_file

Round = tuple[float, float]  # submissions per second, microseconds of work for each


def cost(store: str, requests: int, rounds: int = 5) -> Row:
    """Submissions/s, in turns: without tokens, and with one that is bound to nothing.

    Beside it what the servers worked for each: on a busy machine that says more.
    """
    without: list[Round] = []
    with_one: list[Round] = []
    with beside(store) as other, fairlane_server(store) as free, fairlane_server(other) as guarded:
        token = guarded.post("/tokens", {"name": "bench", "scopes": ["submit"]})["token"]
        _submitted(free, requests // 4)
        _submitted(guarded, requests // 4, token)
        for _ in range(rounds):
            without.append(_submitted(free, requests // rounds))
            with_one.append(_submitted(guarded, requests // rounds, token))
    before, after = _middle(without), _middle(with_one)
    return {
        "per_s": round(after[0]),
        "without_per_s": round(before[0]),
        "lower_by_percent": round((1 - after[0] / before[0]) * 100, 1),
        "cpu_us": round(after[1]),
        "without_cpu_us": round(before[1]),
    }


def _middle(rounds: list[Round]) -> Round:
    return statistics.median(one[0] for one in rounds), statistics.median(one[1] for one in rounds)


@contextmanager
def beside(store: str) -> Iterator[str]:
    """Another store of the same kind."""
    if not store.startswith("sqlite"):
        raise ValueError("measured on SQLite, where each request looks whether tokens have changed")
    with sqlite_file() as other:
        yield other


def _submitted(server: Server, requests: int, token: str = "") -> Round:
    before = server.cpu_seconds()
    found = server.load("unserved", requests, token=token)
    if found["statuses"] != {"202": requests}:
        raise RuntimeError(f"not all were accepted: {found['statuses']}")
    return float(found["perSecond"]), (server.cpu_seconds() - before) / requests * 1_000_000
