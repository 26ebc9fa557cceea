"""`fairlane demo`: a small fleet at work on a server that leaves nothing behind.

The server is the real one, in this process, on a store in memory: when it ends, by whatever signal,
there is nothing to clear away. Everything else here talks to it over HTTP like anybody's program.
The work is sleep, so that the machine has little to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlane.cli import drawing, exits, top
from fairlane.cli.output import Shape
from fairlane.cli.serve import serve
from fairlane.client.asynchronous import AsyncClient
from fairlane.client.sync import Client
from fairlane.config import Settings
from fairlane.core import events
from fairlane.core.errors import BusyError
from fairlane.worker.executors.base import Work
from fairlane.worker.external import Worker

NO_TOKEN: Final = ""  # the server has none, whatever the environment says
LOOK_SECONDS: Final = 0.5
SLOTS: Final = 8
POLICY: Final = {
    "lanes": {"main": {"maxInflight": SLOTS}},
    "agents": {"favoured": {"weight": 2}},
    "retention": {"resultTTLSec": 600},  # it may go on for days, and all of it is in memory
}
# How many tasks each of these always has waiting.
BACKLOGS: Final = {"greedy": 300, "favoured": 10, "modest": 10}
HABITS: Final = {
    "greedy": "always has 300 tasks waiting",
    "favoured": "has 10 waiting, and twice the weight",
    "modest": "has 10 waiting",
    "quiet": "has one task every two seconds",
}
WORK_MS: Final = 400
BATCH_MAX: Final = 100
QUIET_SECONDS: Final = 2.0
TALK: Final = ("Good morning!", "What is on today?", "and tomorrow?", "Thanks. Book the train.")
PIPELINE_SECONDS: Final = 12.0
CRON_MS: Final = 5000


def run(args: argparse.Namespace) -> int:
    fleet = Fleet(args.seconds)
    settings = Settings(
        host="127.0.0.1",
        port=args.port,
        store="sqlite://:memory:",
        drain_seconds=0.0,
        log_level="warning",
    )
    serve(settings, beside=fleet.show)
    return exits.OK


class Tally:
    """What one agent has asked for, and how long the last of it has waited."""

    def __init__(self) -> None:
        self.asked = self.started = self.done = 0
        self.waits_ms: deque[int] = deque(maxlen=20)

    @property
    def waiting(self) -> int:
        return self.asked - self.started

    @property
    def running(self) -> int:
        return self.started - self.done

    @property
    def wait_ms(self) -> int | None:
        """Of the last twenty that have begun, in the middle."""
        return round(statistics.median(self.waits_ms)) if self.waits_ms else None


class Fleet:
    """The agents, and what is known of them from the server's events."""

    def __init__(self, seconds: float | None) -> None:
        self.tallies = {name: Tally() for name in HABITS}
        self._seconds = seconds
        self._asked_at: dict[str, int] = {}

    async def show(self, url: str) -> None:
        """Let them work, and draw what becomes of it, until the time is up or this is cancelled."""
        console = drawing.console(sys.stdout)
        console.print(f"the dashboard is at {url}/ and goes away with the demo; Ctrl-C ends it")
        try:
            async with _limit(self._seconds), AsyncClient(url, token=NO_TOKEN) as client:
                await client.patch_policy(POLICY, note="the demo")
                async with asyncio.TaskGroup() as group:
                    for work in self._works(client, url):
                        group.create_task(work)
                    group.create_task(self._draw(console, url))
        finally:
            console.print(Group(Text(""), self.table(), *self._moral()))

    def _works(self, client: AsyncClient, url: str) -> list[Any]:
        backlogs = [self._keep(client, name, waiting) for name, waiting in BACKLOGS.items()]
        return [
            self._watch(client),
            *backlogs,
            self._be_quiet(client),
            _reply(url),
            _talk(client, "ada", "chat:ada"),
            _talk(client, "grace", "chat:grace"),
            _pipelines(client),
            _cron(client),
        ]

    async def _watch(self, client: AsyncClient) -> None:
        types = (events.CREATED, events.STARTED, events.COMPLETED)
        async for event in client.events(after=0, types=types):
            tally = self.tallies.get(event["agentId"])
            if tally is not None:
                self._count(tally, event)

    def _count(self, tally: Tally, event: dict[str, Any]) -> None:
        at = drawing.moment_of(event["timestamp"])
        if event["type"] == events.CREATED:
            tally.asked += 1
            self._asked_at[event["taskId"]] = at
        elif event["type"] == events.STARTED:
            tally.started += 1
            tally.waits_ms.append(at - self._asked_at.pop(event["taskId"], at))
        else:
            tally.done += 1

    async def _keep(self, client: AsyncClient, name: str, waiting: int) -> None:
        """Ask for more as soon as a tenth of the backlog has begun."""
        tally, asked = self.tallies[name], 0
        task = {"handler": "sleep", "params": {"ms": WORK_MS}}
        while True:
            missing = waiting - (asked - tally.started)
            if missing >= waiting / 10:
                missing = min(missing, BATCH_MAX)
                await client.submit_batch([task] * missing, agent=name)
                asked += missing
            await asyncio.sleep(0.1)

    async def _be_quiet(self, client: AsyncClient) -> None:
        while True:
            await asyncio.sleep(QUIET_SECONDS)
            await client.submit(handler="sleep", agent="quiet", params={"ms": WORK_MS})

    # ---------------------------------------------------------------- drawing

    async def _draw(self, console: Console, url: str) -> None:
        if not console.is_terminal:
            return
        with (
            Client(url, token=NO_TOKEN) as client,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                with contextlib.suppress(BusyError):  # the next look is soon
                    seen = await asyncio.to_thread(top.look, client)
                    live.update(self._screen(url, seen, console.width), refresh=True)
                await asyncio.sleep(LOOK_SECONDS)

    def _screen(self, url: str, seen: dict[str, Shape], width: int) -> Group:
        title = Text(f"fairlane demo: {url}/", style="bold")
        title.append("  Ctrl-C ends it", style="bright_black")
        return Group(title, Text(""), self.table(), Text(""), top.draw(seen, width=width))

    def table(self) -> Table:
        rows = [
            [
                Text(name),
                *(_number(count) for count in (tally.asked, tally.running, tally.waiting)),
                _number(tally.done),
                Text("-" if tally.wait_ms is None else drawing.span(tally.wait_ms)),
                Text(HABITS[name]),
            ]
            for name, tally in self.tallies.items()
        ]
        names = ("AGENT", "ASKED", "RUNNING", "WAITING", "DONE", "WAITS", "WHAT IT DOES")
        return drawing.table(names, rows)

    def _moral(self) -> Sequence[Text]:
        greedy, quiet = self.tallies["greedy"], self.tallies["quiet"]
        if quiet.wait_ms is None:
            return ()
        asked = f"greedy has asked for {greedy.asked} tasks, quiet for {quiet.asked}"
        return [Text(f"{asked}; quiet's begin after {drawing.span(quiet.wait_ms)}")]


def _number(count: int) -> Text:
    return Text(str(count), justify="right")


@contextlib.asynccontextmanager
async def _limit(seconds: float | None) -> AsyncIterator[None]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


# -------------------------------------------------------------------- the others


async def _reply(url: str) -> None:
    """A worker of its own, as one would run beside a chat gateway."""
    worker = Worker(
        url, token=NO_TOKEN, lanes=["team"], name="demo-worker", concurrency=4, drain_seconds=0
    )

    @worker.handler("reply")
    async def reply(work: Work) -> dict[str, str]:
        await asyncio.sleep(1.5)
        return {"reply": f"You said: {work.request['params']['message']}"}

    await worker.run()


async def _talk(client: AsyncClient, name: str, chat: str) -> None:
    """Messages of one chat run in order; two that come together become one."""
    for text in itertools.cycle(TALK):
        await client.message(chat, text, sender=name, agent=name, handler="reply", lane="team")
        await asyncio.sleep(0.3 if text.endswith("?") else 4.0)


async def _pipelines(client: AsyncClient) -> None:
    """Batches whose tasks wait for one another."""
    pages: list[dict[str, Any]] = [
        {"key": f"page-{n}", "handler": "sleep", "params": {"ms": 600 + 300 * n}} for n in range(4)
    ]
    summary = {
        "key": "summary",
        "handler": "sleep",
        "params": {"ms": 900},
        "dependsOn": [f"#{page['key']}" for page in pages],
    }
    mail = {"handler": "echo", "params": {"to": "everybody"}, "dependsOn": ["#summary"]}
    tasks = [{"lane": "subagent", **task} for task in (*pages, summary, mail)]
    while True:
        await client.submit_batch(tasks, agent="researcher", parallelism=2)
        await asyncio.sleep(PIPELINE_SECONDS)


async def _cron(client: AsyncClient) -> None:
    job = {
        "name": "look-around",
        "agentId": "janitor",
        "schedule": {"kind": "every", "everyMs": CRON_MS},
        "task": {"handler": "sleep", "params": {"ms": WORK_MS}},
    }
    await client.create_cron_job(job)
