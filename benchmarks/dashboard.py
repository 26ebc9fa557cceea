"""What an open dashboard costs the server, and how long a page of a long list takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ours import Row
from benchmarks.servers import Server, fairlane_server

ROOT = Path(__file__).parents[1]
ENTRIES_MAX = 20_000
SETTLED_MS = 2000  # an open dashboard, not one that is being opened


def cost(store: str, requests: int, rounds: int = 5) -> Row:
    """Executed tasks/s, in turns without and with the overview open in a real browser, and what
    a task costs the server's processor meanwhile.

    The browser runs on the same cores, so tasks/s fall by more than they would with a browser
    elsewhere; the processor time is the server's alone.
    """
    closed: list[tuple[float, float]] = []
    opened: list[tuple[float, float]] = []
    with fairlane_server(store) as server, browser() as chromium:
        _executed(server, requests)
        for _ in range(rounds):
            closed.append(_measured(server, requests))
            page = chromium.new_page()
            page.goto(f"http://127.0.0.1:{server.port}/#/overview")
            page.wait_for_selector(".lanes")
            page.wait_for_timeout(SETTLED_MS)
            opened.append(_measured(server, requests))
            page.close()
    (before, before_us), (after, after_us) = (
        (statistics.median(rates), statistics.median(costs))
        for rates, costs in (zip(*closed, strict=True), zip(*opened, strict=True))
    )
    return {
        "executed_per_s": round(after),
        "closed_per_s": round(before),
        "lower_by_percent": round((1 - after / before) * 100, 1),
        "cpu_us": round(after_us),
        "closed_cpu_us": round(before_us),
    }


def _measured(server: Server, requests: int) -> tuple[float, float]:
    began = server.cpu_seconds()
    rate = _executed(server, requests)
    return rate, (server.cpu_seconds() - began) / requests * 1_000_000


def _executed(server: Server, requests: int) -> float:
    before = server.get("/scheduler/stats")["metrics"]["tasksCompleted"]
    found = server.load("echo", requests)
    while server.get("/scheduler/stats")["metrics"]["tasksCompleted"] < before + requests:
        time.sleep(0.01)
    return requests / (time.perf_counter() - float(found["began"]))


def listing(store: str, tasks: int, pages: int = 20) -> Row:
    """Milliseconds from the click on “Older” until the next hundred of them stand there."""
    policy = {"lanes": {"queue": {"paused": True}}}
    with fairlane_server(store, policy=policy) as server, browser() as chromium:
        for start in range(0, tasks, ENTRIES_MAX):
            numbers = range(start, min(tasks, start + ENTRIES_MAX))
            entries = [{"id": f"q-{number:08}", "status": "pending"} for number in numbers]
            server.post("/queue/import", {"schemaVersion": 1, "entries": entries})
        page = chromium.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/#/tasks")
        page.wait_for_selector("[data-row]")
        took = [page.evaluate(_TURN) for _ in range(pages)]
    ordered = sorted(took)
    return {"p50_ms": round(ordered[len(ordered) // 2]), "max_ms": round(ordered[-1])}


# In the page itself, so that no remote control is measured with it.
_TURN = """() => new Promise((resolve) => {
  const first = document.querySelector("[data-row]").dataset.row;
  const began = performance.now();
  [...document.querySelectorAll(".pager button")].at(-1).click();
  const look = () => {
    const now = document.querySelector("[data-row]")?.dataset.row;
    if (now && now !== first) resolve(performance.now() - began);
    else requestAnimationFrame(look);
  };
  look();
})"""


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = subprocess.run([ROOT / "scripts" / "find-chromium"], check=True, capture_output=True)
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        path = found.stdout.decode().strip()
        chromium = playwright.chromium.launch(executable_path=path, args=flags)
        yield chromium
        chromium.close()
