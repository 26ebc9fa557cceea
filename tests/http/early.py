"""A server that is started early, so that time has passed when the last tests look at it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.stage import HELD

if TYPE_CHECKING:
    from tests.http.api import Answer
    from tests.http.hooks import Hooks
    from tests.http.server import Server

POLICY = {"scheduler": {"resultTTLSec": 2}, "lanes": {HELD: {"paused": True}}}
FAR = "2099-01-01T00:00:00Z"


class Early:
    def __init__(self, server: Server, hooks: Hooks) -> None:
        self.server = server
        self.refused_once = hooks.new(500, 200)
        self.ended = self.told_twice = self.waiting = ""
        self.seen_after_its_end = False
        self.ran = 0

    async def begin(self) -> None:
        api = self.server.api
        task = {"agentId": "early", "action": "click", "tabId": "early"}
        while not self.seen_after_its_end and self.ran < 5:  # who does not look soon finds nothing
            self.ended = await api.submit(**task)
            self.ran += 1
            ended = await api.get(f"/tasks/{self.ended}/wait", timeoutMs=int(WAIT_SECONDS * 1000))
            assert ended.status == 404 or ended.json["state"] == "done", ended
            self.seen_after_its_end = (await api.get(f"/tasks/{self.ended}")).status == 200
        self.told_twice = await api.submit(**task, callbackUrl=self.refused_once.url)
        self.ran += 1
        answer = await self.submit_waiting()
        assert answer.status == 202, answer
        self.waiting = answer.json["taskId"]

    async def submit_waiting(self) -> Answer:
        body = {"agentId": "early", "action": "click", "lane": HELD, "deadline": FAR}
        return await self.server.api.post("/tasks", body, Idempotency_Key="early")
