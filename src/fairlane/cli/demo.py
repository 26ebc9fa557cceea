"""`fairlane demo`: a small fleet at work on a temporary server.

The real server runs in this process on a store in memory, so nothing is left when it ends. The
fleet talks to it over HTTP as any program would. Its tasks only sleep, which keeps the load low.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import sys
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fairlane.cli.commands import system as top
from fairlane.cli.output import Columns, Fields, moment_ms, span
from fairlane.cli.output.terminal import console as make_console
from fairlane.cli.output.terminal import drawn_table
from fairlane.cli.server import serve
from fairlane.client.asynchronous import AsyncClient
from fairlane.client.sync import Client
from fairlane.config import Settings
from fairlane.core import events
from fairlane.core.errors import BusyError
from fairlane.core.json_types import JsonObject
from fairlane.worker.executors.base import Work
from fairlane.worker.external import Worker

NO_TOKEN: Final = ""  # the server has none, even if the environment sets one
LOOK_SECONDS: Final = 0.5
SLOTS: Final = 8
POLICY: Final = {
    "lanes": {"main": {"maxInflight": SLOTS}},
    "agents": {"favoured": {"weight": 2}},
    "retention": {"resultTTLSec": 600},  # the demo may run for days, and everything is in memory
}
# How many waiting tasks each of these agents always has.
BACKLOGS: Final = {"greedy": 300, "favoured": 10, "modest": 10}
HABITS: Final = {
    "greedy": "always has 300 tasks waiting",
    "favoured": "always has 10 waiting, and twice the weight",
    "modest": "always has 10 waiting",
    "quiet": "submits one task every two seconds",
}
WORK_MS: Final = 400
BATCH_MAX: Final = 100
QUIET_SECONDS: Final = 2.0
TALK: Final = ("Good morning!", "What is on today?", "and tomorrow?", "Thanks. Book the train.")
PIPELINE_SECONDS: Final = 12.0
CRON_MS: Final = 5000


def run(port: int, seconds: float | None) -> None:
    fleet = Fleet(seconds)
    settings = Settings(
        host="127.0.0.1",
        port=port,
        store="sqlite://:memory:",
        drain_seconds=0.0,
        log_level="warning",
    )
    serve(settings, beside=fleet.show)


class AgentTally:
    """The tasks of one agent, and how long the last of them waited."""

    def __init__(self) -> None:
        self.submitted = self.started = self.done = 0
        self.waits_ms: deque[int] = deque(maxlen=20)

    @property
    def waiting(self) -> int:
        return self.submitted - self.started

    @property
    def running(self) -> int:
        return self.started - self.done

    @property
    def wait_ms(self) -> int | None:
        """Return the median wait of the last twenty tasks that started."""
        return round(statistics.median(self.waits_ms)) if self.waits_ms else None


class Fleet:
    """The agents, counted by the events of the server."""

    def __init__(self, seconds: float | None) -> None:
        self.tallies = {name: AgentTally() for name in HABITS}
        self._seconds = seconds
        self._submitted_at: dict[str, int] = {}

    async def show(self, url: str) -> None:
        """Run the agents and draw the result until the time is up or the task is cancelled."""
        console = make_console(sys.stdout)
        console.print(f"the dashboard is at {url}/ until the demo ends; press Ctrl-C to stop it")
        try:
            async with _limit(self._seconds), AsyncClient(url, token=NO_TOKEN) as client:
                await client.patch_policy(POLICY, note="demo")
                async with asyncio.TaskGroup() as group:
                    for work in self._works(client, url):
                        group.create_task(work)
                    group.create_task(self._draw(console, url))
        finally:
            console.print(Group(Text(""), self.table(), *self._summary()))

    def _works(self, client: AsyncClient, url: str) -> list[Coroutine[object, None, None]]:
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

    def _count(self, tally: AgentTally, event: JsonObject) -> None:
        at = moment_ms(event["timestamp"])
        if event["type"] == events.CREATED:
            tally.submitted += 1
            self._submitted_at[event["taskId"]] = at
        elif event["type"] == events.STARTED:
            tally.started += 1
            tally.waits_ms.append(at - self._submitted_at.pop(event["taskId"], at))
        else:
            tally.done += 1

    async def _keep(self, client: AsyncClient, name: str, waiting: int) -> None:
        """Submit more tasks as soon as a tenth of the backlog has started."""
        tally, submitted = self.tallies[name], 0
        task = {"handler": "sleep", "params": {"ms": WORK_MS}}
        while True:
            missing = waiting - (submitted - tally.started)
            if missing >= waiting / 10:
                missing = min(missing, BATCH_MAX)
                await client.submit_batch([task] * missing, agent=name)
                submitted += missing
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
                with contextlib.suppress(BusyError):  # the next update follows soon
                    seen = await asyncio.to_thread(top.look, client)
                    live.update(self._screen(url, seen, console.width), refresh=True)
                await asyncio.sleep(LOOK_SECONDS)

    def _screen(self, url: str, seen: dict[str, Fields], width: int) -> Group:
        title = Text(f"fairlane demo: {url}/", style="bold")
        title.append("  press Ctrl-C to stop it", style="bright_black")
        return Group(title, Text(""), self.table(), Text(""), top.draw(seen, width=width))

    def table(self) -> Table:
        columns: Columns = {
            "AGENT": "name",
            "SUBMITTED": lambda row: row["tally"].submitted,
            "RUNNING": lambda row: row["tally"].running,
            "WAITING": lambda row: row["tally"].waiting,
            "DONE": lambda row: row["tally"].done,
            "WAITS": lambda row: _wait(row["tally"].wait_ms),
            "WHAT IT DOES": lambda row: HABITS[row["name"]],
        }
        rows = [{"name": name, "tally": tally} for name, tally in self.tallies.items()]
        return drawn_table(columns, rows)

    def _summary(self) -> Sequence[Text]:
        greedy, quiet = self.tallies["greedy"], self.tallies["quiet"]
        if quiet.wait_ms is None:
            return ()
        submitted = f"greedy submitted {greedy.submitted} tasks, quiet {quiet.submitted}"
        return [Text(f"{submitted}; the tasks of quiet start after {span(quiet.wait_ms)}")]


def _wait(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else span(milliseconds)


@contextlib.asynccontextmanager
async def _limit(seconds: float | None) -> AsyncIterator[None]:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            yield


# -------------------------------------------------------------------- other callers


async def _reply(url: str) -> None:
    """Run an external worker, as a chat gateway would."""
    worker = Worker(
        url, token=NO_TOKEN, lanes=["team"], name="demo-worker", concurrency=4, drain_seconds=0
    )

    @worker.handler("reply")
    async def reply(work: Work) -> dict[str, str]:
        await asyncio.sleep(1.5)
        return {"reply": f"You said: {work.params['message']}"}

    await worker.run()


async def _talk(client: AsyncClient, name: str, chat: str) -> None:
    """Send messages of one chat: they run in order, and close ones are merged."""
    for text in itertools.cycle(TALK):
        await client.message(chat, text, sender=name, agent=name, handler="reply", lane="team")
        await asyncio.sleep(0.3 if text.endswith("?") else 4.0)


async def _pipelines(client: AsyncClient) -> None:
    """Submit batches whose tasks depend on each other."""
    pages: list[JsonObject] = [
        {"key": f"page-{n}", "handler": "sleep", "params": {"ms": 600 + 300 * n}} for n in range(4)
    ]
    summary = {
        "key": "summary",
        "handler": "sleep",
        "params": {"ms": 900},
        "dependsOn": [f"#{page['key']}" for page in pages],
    }
    mail = {"handler": "echo", "params": {"to": "team"}, "dependsOn": ["#summary"]}
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
