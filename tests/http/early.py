"""A server that is started early, so that time has passed when the last tests look at it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time
from tests.http.api import eventually
from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.http.api import Answer
    from tests.http.hooks import Hooks
    from tests.http.server import Server

POLICY = {"scheduler": {"resultTTLSec": 3600}, "lanes": {HELD: {"paused": True}}}
FORGETFUL = {"scheduler": {"resultTTLSec": 2}}
FAR = "2099-01-01T00:00:00Z"


class Early:
    def __init__(self, server: Server, hooks: Hooks) -> None:
        self.server = server
        self.refused_once = hooks.new(500, 200)
        self.ended = self.told_twice = self.waiting = ""
        self.lasting: asyncio.Task[timedelta] | None = None
        self.ran = 0

    async def begin(self) -> None:
        api = self.server.api
        self.ended = await self.run()
        assert (await api.end_of(self.ended))["state"] == "done"
        self.told_twice = await self.run(callbackUrl=self.refused_once.url)
        answer = await self.submit_waiting()
        assert answer.status == 202, answer
        self.waiting = answer.json["taskId"]
        await self.refused_once.until(1)
        assert (await api.show(self.ended))["state"] == "done", "it is kept for an hour"
        await self.forget_soon()
        self.lasting = asyncio.create_task(in_time(self._lasting))

    async def end(self) -> None:
        if self.lasting is not None:
            self.lasting.cancel()
            await asyncio.gather(self.lasting, return_exceptions=True)

    async def _lasting(self, _: float) -> timedelta:
        """How long one that has ended can be seen, at least."""
        path = f"/tasks/{await self.run()}"
        ended = await self.server.api.get(f"{path}/wait", timeoutMs=60_000)
        if ended.status == 404:
            raise TooLate("it was forgotten before anybody looked")
        assert ended.json["state"] == "done", ended
        async with asyncio.timeout(WAIT_SECONDS):
            while (await self.server.api.get(path)).status != 404:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.2)
        return datetime.now(UTC) - datetime.fromisoformat(ended.json["completedAt"])

    async def forget_soon(self) -> None:
        """From now on what has ended is kept for two seconds."""
        self.server.write_policy(FORGETFUL)

        async def changed() -> bool | None:
            stats = await self.server.api.stats()
            return stats["config"]["resultTTL"] == "2s" or None

        await eventually(changed)

    async def run(self, **fields: str) -> str:
        """Submit what will be done."""
        self.ran += 1
        task = {"agentId": "early", "action": "click", "tabId": "early", **fields}
        return await self.server.api.submit(**task)

    async def submit_waiting(self) -> Answer:
        body = {"agentId": "early", "action": "click", "lane": HELD, "deadline": FAR}
        return await self.server.api.post("/tasks", body, Idempotency_Key="early")
