"""One conversation on a server: what people say in it, and how it stands."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from tests.http.api import Answer, eventually

if TYPE_CHECKING:
    from tests.http.work import Work

LONG = {"handler": "sleep", "params": {"ms": 600_000}}
_numbers = itertools.count(1)


def ago(seconds: float) -> str:
    """The moment, as callers write it; in the future when negative."""
    moment = datetime.now(UTC) - timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Talk:
    """Its messages are echoed, at once unless they say something else about their window."""

    def __init__(self, work: Work, key: str | None = None) -> None:
        self.work = work
        self.api = work.api
        self.key = key or f"talk:{next(_numbers)}"
        self.path = f"/sessions/{self.key}"

    def body(self, text: str | None, **fields: Any) -> dict[str, Any]:
        """A field that is None is left out."""
        body = {
            "message": text,
            "agentId": self.work.agent,
            "handler": "echo",
            "debounceMs": 0,
            **fields,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def post(self, text: str | None, key: str | None = None, **fields: Any) -> Answer:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.api.ask(
            "POST", f"{self.path}/messages", self.body(text, **fields), headers=headers
        )

    async def say(self, text: str, **fields: Any) -> str:
        answer = await self.post(text, **fields)
        assert answer.status == 202, answer
        task_id: str = answer.json["taskId"]
        return task_id

    async def busy(self, **fields: Any) -> str:
        """Something that runs in the session until it is stopped."""
        task_id = await self.api.submit(
            agentId=self.work.agent, sessionKey=self.key, **LONG, **fields
        )
        await self.api.until(task_id, "running")
        return task_id

    async def ask(self, verb: str) -> dict[str, Any]:
        """`stop`, `stopall` or `reset`."""
        answer = await self.api.post(f"{self.path}/{verb}")
        assert answer.status == 200, answer
        stopped: dict[str, Any] = answer.json
        return stopped

    async def tune(self, **settings: Any) -> dict[str, Any]:
        answer = await self.api.ask("PATCH", self.path, settings)
        assert answer.status == 200, answer
        session: dict[str, Any] = answer.json
        return session

    async def unhurried(self) -> Self:
        """No window of it ends by itself before a test does."""
        await self.tune(debounceMaxMs=600_000)
        return self

    async def use(self, tokens: int, window: int = 100) -> dict[str, Any]:
        body = {"tokens": tokens, "contextWindow": window}
        answer = await self.api.ask("PUT", f"{self.path}/usage", body)
        assert answer.status == 200, answer
        session: dict[str, Any] = answer.json
        return session

    async def show(self) -> dict[str, Any]:
        answer = await self.api.get(self.path)
        assert answer.status == 200, answer
        session: dict[str, Any] = answer.json
        return session

    async def gone(self) -> None:
        """Wait until nothing is known of it any more."""

        async def look() -> bool | None:
            return (await self.api.get(self.path)).status == 404 or None

        await eventually(look)

    async def text(self, task_id: str) -> str:
        text: str = (await self.api.show(task_id))["params"]["message"]
        return text

    async def echoed(self, task_id: str) -> str:
        """What the run of the message has answered."""
        task = await self.api.end_of(task_id)
        assert task["state"] == "done", task
        text: str = task["result"]["message"]
        return text
