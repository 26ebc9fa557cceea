"""A whole set-up: servers to kill, a tab instance, a receiver of webhooks, clients, a history."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from standardwebhooks.webhooks import Webhook as Verifier

from fairlane.store.opening import open_store
from tests.e2e import checks
from tests.e2e.asking import Asker
from tests.e2e.checks import Executed, Final, Webhook
from tests.e2e.history import INVOKE, OK, History
from tests.e2e.load import TABS, Load
from tests.e2e.processes import Program, Programs, show, until
from tests.fakes.waiting import WAIT_SECONDS
from tests.outbound.receivers import Receiver, answering, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LEASE_SECONDS = 15.0
SETTLE_SECONDS_MAX = 120.0
TAKEN_BACK_SECONDS = LEASE_SECONDS + WAIT_SECONDS  # what a dead node held is free by then

# Wide lanes, because the slots of a killed node stay taken until its leases run out, and no
# deadlines, because nothing but a kill is to end a task badly.
POLICY = {
    "lanes": {
        "main": {"maxInflight": 2000, "maxQueueSize": None},
        "browser": {
            "maxInflight": 2000,
            "maxPerAgentInflight": None,
            "maxQueueSize": None,
            "maxPerAgent": None,
        },
    },
    "kinds": {"action": {"deadlineSec": None}},
}


class Stage:
    def __init__(
        self, store: str, servers: list[Program], tabs: Program, hook: Receiver, history: History
    ) -> None:
        self.store = store
        self.servers = servers
        self.history = history
        self.ready: set[str] = set()
        self._tabs = tabs
        self._hook = hook

    def load(self, seed: int, *, tasks: int, rate: float) -> Load:
        return Load(
            self.history,
            seed,
            urls=lambda: sorted(self.ready),
            callback_url=self._hook.url,
            tasks=tasks,
            rate=rate,
        )

    async def start(self, server: Program) -> None:
        server.begin()
        await self.until_ready(server)

    async def until_ready(self, server: Program) -> None:
        await server.until_ready()
        self.ready.add(server.url)
        self.history.add(server.name, "ready", note=server.url)

    def kill(self, server: Program) -> None:
        """The clients learn of it only from their broken connections."""
        server.kill()
        self.ready.discard(server.url)
        self.history.add(server.name, "kill")

    async def begin_long_action(self, key: str, *, ms: int) -> None:
        params = {"key": key, "fake": {"delayMs": ms}}
        async with Asker(self.servers[0]) as asker:
            self.history.add("stage", INVOKE, key=key, group=key)
            task_id = await asker.submit(action="click", tabId=TABS[0], params=params)
            self.history.add("stage", OK, key=key, id=task_id, group=key)
            await asker.until_tasks([task_id], state="running")

    # ------------------------------------------------------------ the end

    async def until_free(self, seconds: float) -> None:
        """Wait until every lease that is open now is over, in whatever way."""
        before = checks.leases(self.store)

        def left() -> set[tuple[str, int]]:
            return before & checks.leases(self.store)

        await until(lambda: not left(), seconds, lambda: f"still leased: {left()}")

    async def settle(self) -> None:
        """Wait until everything has come to its end and everybody has been told."""
        async with aiohttp.ClientSession() as session:
            await until(lambda: self._idle(session), SETTLE_SECONDS_MAX, self._still_open)
        # A run that was cancelled holds its lease until it has really stopped and said so.
        await self.until_free(TAKEN_BACK_SECONDS)
        ended = checks.finals(self.store)
        await until(
            lambda: not checks.untold(ended, self.webhooks()),
            SETTLE_SECONDS_MAX,
            lambda: f"webhooks are owed: {checks.untold(ended, self.webhooks())[:20]}",
        )

    def _still_open(self) -> str:
        return f"not settled: {list(checks.unfinished(checks.finals(self.store)))[:20]}"

    async def _idle(self, session: aiohttp.ClientSession) -> bool:
        stats = await self.stats(session)
        return not (stats["queue"]["totalQueued"] or stats["queue"]["totalInflight"])

    async def stats(self, session: aiohttp.ClientSession) -> dict[str, Any]:
        async with session.get(f"{min(self.ready)}/scheduler/stats") as answer:
            found: dict[str, Any] = await answer.json()
            assert answer.status == 200, found
            return found

    def webhooks(self) -> list[Webhook]:
        """What was received."""
        found = []
        for received in self._hook.received:
            body = json.loads(received.body)
            found.append(Webhook(received.headers["webhook-id"], body["taskId"], body["state"]))
        return found

    def forged(self) -> list[str]:
        """Webhooks that the one secret of the store does not verify, over all its lives."""
        store = open_store(self.store)
        connection = store.reader()
        try:
            verifier = Verifier(store.vault.open(connection.run("secret_get")[0][0]))
        finally:
            connection.close()
        wrong = []
        for received in self._hook.received:
            headers = {name.lower(): value for name, value in received.headers.items()}
            try:
                verifier.verify(received.body, headers)
            except Exception as error:  # noqa: BLE001 - whatever it is, it does not verify
                wrong.append(f"webhook: {headers['webhook-id']} does not verify: {error!r}")
        return wrong

    async def executed(self) -> list[Executed]:
        """What the tab instance was asked to do, in the order of arrival."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self._tabs.url}/__record") as answer,
        ):
            record = msgspec.json.decode(await answer.read())
        requests = sorted(record["requests"], key=lambda request: request["arrived"])
        return [
            Executed(request["body"]["key"], request["tab"])
            for request in requests
            if request["what"] == "action"
        ]

    async def problems(self) -> list[str]:
        """Everything that is wrong at the end; `settle` comes before."""
        tasks = checks.finals(self.store)
        async with aiohttp.ClientSession() as session:
            stats = await self.stats(session)
        found = [
            *checks.lost(self.history, tasks),
            *checks.unexpected(self.history, tasks),
            *checks.duplicated(tasks),
            *checks.torn(self.history, tasks),
            *checks.unfinished(tasks),
            *checks.changed_their_mind(self.history, tasks),
            *checks.badly_ended(tasks),
            *checks.wrongly_executed(tasks, await self.executed()),
            *checks.wrongly_told(tasks, self.webhooks()),
            *checks.miscounted(tasks, stats),
            *checks.disagreements(self.store),
            *self.forged(),
        ]
        self._print_figures(tasks)
        return found[:50]

    def _print_figures(self, tasks: list[Final]) -> None:
        history = self.history
        states: dict[str, int] = {}
        for task in tasks:
            states[task.state] = states.get(task.state, 0) + 1
        told = self.webhooks()
        show(
            f"{history.count('kill')} kills, {len(history.acknowledged)} acknowledged, "
            f"{len(tasks)} in the store, {checks.recovered(history, tasks)} recovered, {states}, "
            f"{sum(task.attempts > 1 for task in tasks)} tried again, {len(told)} webhooks "
            f"({len(told) - len({one.message_id for one in told})} sent twice), "
            f"{history.entries[-1].at_ms / 1000:.1f} s"
        )


@asynccontextmanager
async def staged(
    programs: Programs,
    folder: Path,
    store: str,
    *,
    nodes: int = 1,
    processes: int = 1,
    title: str,
) -> AsyncIterator[Stage]:
    """Everything but the servers is running; those are the test's to start."""
    tabs = programs.tab_instance(*TABS)
    await tabs.start()
    policy = folder / "policy.json"
    policy.write_bytes(msgspec.json.encode(POLICY))
    async with receiving(answering(200)) as hook:
        outbound = hook.url.split("/")[2]
        flags = ["--instance", tabs.url, "--allow-outbound", outbound, "--policy", str(policy)]
        flags += ["--processes", str(processes)]
        servers = [programs.server(store, *flags, name=f"node-{n + 1}") for n in range(nodes)]
        with History(folder, title) as history:
            yield Stage(store, servers, tabs, hook, history)
