"""Takes the README's pictures: a real server, a small fleet at work on it, a real browser.

.venv/bin/python scripts/screenshots.py                 docs/images/dashboard-{light,dark}.png
.venv/bin/python scripts/screenshots.py --all FOLDER    every page, light, dark and on a phone
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, async_playwright

import fairlane

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
WARM_UP_SECONDS: Final = 45.0
DESKTOP: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
POLICY: Final = {
    "lanes": {
        "main": {"maxInflight": 24},
        "browser": {"maxInflight": 8, "maxPerAgentInflight": 4},
        "team": {"maxInflight": 12},
        "subagent": {"maxInflight": 16},
    },
    "agents": {"researcher": {"weight": 2}},
}
chance: Final = random.Random(7)  # noqa: S311 - the same picture each time, not a secret


# --- the fleet --------------------------------------------------------------------------------


def worker(url: str) -> fairlane.Worker:
    made = fairlane.Worker(url, name="worker-1", concurrency=80)

    def handles(name: str, seconds: float, failing: float = 0.0) -> None:
        @made.handler(name)
        async def run(_: Any) -> dict[str, Any]:
            fairlane.report_output(f"{name}: begin\n")
            await asyncio.sleep(seconds * chance.uniform(0.4, 1.6))
            if chance.random() < failing:
                raise fairlane.ExecutionFailed(f"{name}: the page did not answer within 10 s")
            fairlane.report_output(f"{name}: done\n")
            return {"pages": chance.randint(1, 40), "tokens": chance.randint(200, 9000)}

    handles("crawl", 1.2, failing=0.06)
    handles("summarise", 2.0)
    handles("research", 3.0)
    handles("index", 0.6)
    handles("review", 2.5, failing=0.1)
    handles("reply", 2.2)
    handles("report", 1.5, failing=0.15)
    return made


class Fleet:
    """Agents of different greed, sessions, a batch with dependencies, and cron jobs."""

    def __init__(self, client: fairlane.AsyncClient) -> None:
        self.client = client

    async def begin(self) -> None:
        schedule = {"kind": "every", "everyMs": 3000}
        task = {"handler": "report", "retryPolicy": {"maxRetries": 0}}
        await self._ask("/cron/jobs", name="health-report", schedule=schedule, task=task)
        nightly = {"kind": "cron", "expr": "30 2 * * *", "tz": "Europe/Berlin"}
        await self._ask("/cron/jobs", name="nightly-index", schedule=nightly, task=task)
        often = {"kind": "every", "everyMs": 5000}
        await self._ask("/cron/jobs", name="inbox-check", schedule=often, task={"handler": "index"})
        await self.batch()
        await self._ask("/tasks", handler="draft", agentId="writer", params={"topic": "fairness"})
        await self.flood("crawler", "crawl", 260)

    async def run(self) -> None:
        for turn in range(10_000):
            await self.flood("crawler", "crawl", chance.randint(6, 20))
            await self.flood("researcher", "research", chance.randint(2, 5))
            await self.flood("writer", "summarise", chance.randint(1, 4))
            await self.flood("reviewer", "review", chance.randint(0, 3), lane="team")
            await self.flood("indexer", "index", chance.randint(2, 9), lane="subagent")
            for name in ("anna", "bo", "chen"):
                if chance.random() < 0.5:
                    await self._ask(
                        f"/sessions/chat:{name}/messages",
                        message=f"Hello {turn}",
                        handler="reply",
                        agentId="support",
                        noMerge=True,
                    )
            if turn % 12 == 0:
                await self.batch()
            await asyncio.sleep(1.0)

    async def flood(self, agent: str, handler: str, count: int, **more: Any) -> None:
        for _ in range(count):
            page = f"https://example.com/{chance.randint(1, 9999)}"
            await self._ask(
                "/tasks",
                handler=handler,
                agentId=agent,
                params={"url": page},
                retryPolicy={"maxRetries": 1},
                **more,
            )

    async def batch(self) -> None:
        parts = [{"key": f"p{n}", "handler": "crawl"} for n in range(4)]
        tasks = [
            *parts,
            {
                "key": "merge",
                "handler": "summarise",
                "dependsOn": [f"#{one['key']}" for one in parts],
            },
            {"key": "check", "handler": "research", "dependsOn": ["#merge"]},
            {"key": "table", "handler": "index", "dependsOn": ["#merge"]},
            {"handler": "review", "dependsOn": ["#check", "#table"]},
        ]
        await self._ask("/tasks/batch", agentId="analyst", parallelism=3, tasks=tasks)

    async def _ask(self, path: str, **body: Any) -> Any:
        with contextlib.suppress(fairlane.FairlaneError):
            return await self.client.call("POST", path, body=body)
        return None


# --- the server -------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY), "utf-8")
    store = f"sqlite:///{folder / 'fairlane.db'}"
    flags = ["--store", store, "--port", "0", "--policy", str(policy)]
    command = [sys.executable, "-m", "fairlane", "serve", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.rsplit(" ", 1)[-1].strip()
        finally:
            process.send_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def at_work(url: str) -> AsyncIterator[None]:
    async with fairlane.AsyncClient(url) as client:
        fleet = Fleet(client)
        await fleet.begin()
        made = worker(url)
        running = [asyncio.create_task(made.run()), asyncio.create_task(fleet.run())]
        try:
            yield
        finally:
            running[1].cancel()
            made.stop()
            await asyncio.gather(*running, return_exceptions=True)


# --- the pictures -----------------------------------------------------------------------------


async def picture(
    browser: Browser, url: str, file: Path, theme: str, size: dict[str, int], **more: Any
) -> None:
    context = await browser.new_context(
        viewport=size,
        color_scheme=theme,
        device_scale_factor=more.get("scale", 1),
        reduced_motion="reduce",  # a bar that moves would be caught half way
    )
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_selector("main h1")
    await page.wait_for_timeout(more.get("settle_ms", 1500))
    await page.screenshot(path=file, full_page=more.get("whole", False))
    await context.close()


async def every_page(browser: Browser, url: str, folder: Path) -> None:
    async with fairlane.AsyncClient(url) as client:
        places = await _places(client)
    for name, place in places.items():
        for theme, size in (("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)):
            kind = "phone" if size is PHONE else theme
            file = folder / f"{name}-{kind}.png"
            await picture(browser, f"{url}/#/{place}", file, theme, size, whole=name != "tasks")


async def _places(client: fairlane.AsyncClient) -> dict[str, str]:
    async def listed(path: str, key: str, **query: Any) -> list[Any]:
        found: list[Any] = (await client.call("GET", path, query=query))[key]
        return found

    names = (
        *("overview", "tasks", "sessions", "cron", "batches", "policy", "events", "deliveries"),
        *("handlers", "workers", "queue", "templates", "audit", "tokens", "submit"),
        *("approvals", "resources", "failures"),
    )
    batches = await listed("/batches", "batches")
    inside = await listed("/tasks", "tasks", batchId=batches[-1]["batchId"])
    waiting = await listed("/tasks", "tasks", text="handler/draft", limit=1)
    jobs = await listed("/cron/jobs", "jobs")
    return {
        **{name: name for name in names},
        "task-in-batch": f"tasks/{inside[-5]['taskId']}",
        "task-waiting": f"tasks/{waiting[0]['taskId']}",
        "session": "sessions/chat:anna",
        "batch": f"batches/{batches[0]['batchId']}",
        "job": f"cron/{jobs[-1]['id']}",
    }


async def take(everything: Path | None, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as url:
        async with at_work(url), async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium(), args=["--no-sandbox"]
            )
            await asyncio.sleep(seconds)
            if everything is not None:
                await every_page(browser, url, everything)
            else:
                for theme in ("light", "dark"):
                    file = IMAGES / f"dashboard-{theme}.png"
                    await picture(
                        browser, f"{url}/#/overview", file, theme, DESKTOP, scale=1.5, whole=True
                    )
            await browser.close()


def chromium() -> str:
    found = subprocess.run([ROOT / "scripts" / "find-chromium"], check=True, capture_output=True)  # noqa: S603 - ours
    return found.stdout.decode().strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every page, to look at")
    parser.add_argument("--seconds", type=float, default=WARM_UP_SECONDS, help="of work before")
    given = parser.parse_args()
    (given.all or IMAGES).mkdir(parents=True, exist_ok=True)
    asyncio.run(take(given.all, given.seconds))
