"""A caller at a terminal: sends one request at a time to one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aiohttp

from tests.e2e.processes import until
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.e2e.processes import Program


class Answer(NamedTuple):
    status: int
    body: dict[str, Any]


class Asker:
    def __init__(self, server: Program) -> None:
        self._server = server

    async def __aenter__(self) -> Self:
        # No connection is kept: after a restart it would be the dead server's.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Answer:
        async with self._session.get(self._server.url + path) as answer:
            return Answer(answer.status, await answer.json())

    async def post(self, path: str, body: dict[str, Any]) -> Answer:
        async with self._session.post(self._server.url + path, json=body) as answer:
            return Answer(answer.status, await answer.json())

    async def delete(self, path: str) -> Answer:
        async with self._session.delete(self._server.url + path) as answer:
            return Answer(answer.status, await answer.json())

    async def submit(self, **body: Any) -> str:
        answer = await self.post("/tasks", {"agentId": "agent-a", **body})
        assert answer.status == 202, answer
        return str(answer.body["taskId"])

    async def sleep(self, ms: int, **body: Any) -> str:
        return await self.submit(handler="sleep", params={"ms": ms}, **body)

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.get(f"/tasks/{task_id}")
        assert answer.status == 200, answer
        return answer.body

    async def until_tasks(
        self, ids: Iterable[str], seconds: float = WAIT_SECONDS, **wanted: Any
    ) -> None:
        """Wait until all these tasks have all these values."""
        ids = list(ids)
        found: list[dict[str, Any]] = []

        async def have() -> bool:
            found[:] = [await self.task(one) for one in ids]
            return all(task[name] == value for task in found for name, value in wanted.items())

        await until(have, seconds, lambda: f"not all are {wanted}: {found}")
