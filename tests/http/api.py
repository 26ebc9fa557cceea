"""HTTP as a caller speaks it, and waiting for what a server brings about, but not for ever."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec

from tests.fakes.waiting import WAIT_SECONDS

T = TypeVar("T")

LIVE = "queued,assigned,running"
TERMINAL = frozenset({"done", "failed", "cancelled", "rejected"})


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def code(self) -> str:
        code: str = self.json["code"]
        return code

    @property
    def error(self) -> str:
        error: str = self.json["error"]
        return error

    @property
    def ids(self) -> list[str]:
        return [task["taskId"] for task in self.json["tasks"]]


class Api:
    def __init__(self, url: str) -> None:
        self.url = url
        # Some tests ask more at once than aiohttp would let through, and none wants a proxy.
        connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    # --- plain requests -------------------------------------------------------------------------

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Answer:
        data = msgspec.json.encode(body) if body is not None else raw
        content = {} if data is None else {"Content-Type": "application/json"}
        async with self._session.request(
            method,
            self.url + path,
            data=None if data is None else io.BytesIO(data),
            headers={**content, **(headers or {})},
            allow_redirects=False,
        ) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, **query: Any) -> Answer:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        return await self.ask("GET", f"{path}?{text}" if text else path)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.ask("POST", path, body, headers=named)

    # --- tasks ----------------------------------------------------------------------------------

    async def submit(self, **fields: Any) -> str:
        answer = await self.post("/tasks", fields)
        assert answer.status == 202, answer
        task_id: str = answer.json["taskId"]
        return task_id

    async def show(self, task_id: str) -> dict[str, Any]:
        answer = await self.get(f"/tasks/{task_id}")
        assert answer.status == 200, answer
        task: dict[str, Any] = answer.json
        return task

    async def cancel(self, task_id: str) -> Answer:
        return await self.post(f"/tasks/{task_id}/cancel")

    async def ended(self, *task_ids: str) -> list[dict[str, Any]]:
        """The tasks when all of them have ended."""
        return list(await asyncio.gather(*map(self._ended, task_ids)))

    async def end_of(self, task_id: str) -> dict[str, Any]:
        return await self._ended(task_id)

    async def _ended(self, task_id: str) -> dict[str, Any]:
        answer = await self.get(f"/tasks/{task_id}/wait", timeoutMs=int(WAIT_SECONDS * 1000))
        assert answer.status == 200, answer
        task: dict[str, Any] = answer.json
        assert task["state"] in TERMINAL, f"after {WAIT_SECONDS} s: {task}"
        return task

    async def until(self, task_id: str, *states: str) -> dict[str, Any]:
        """The task once it is in one of the states."""

        async def look() -> dict[str, Any] | None:
            task = await self.show(task_id)
            return task if task["state"] in states else None

        return await eventually(look)

    async def stats(self) -> dict[str, Any]:
        answer = await self.get("/scheduler/stats")
        assert answer.status == 200, answer
        stats: dict[str, Any] = answer.json
        return stats

    async def until_stats(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async def look() -> dict[str, Any] | None:
            stats = await self.stats()
            return stats if condition(stats) else None

        return await eventually(look)


async def eventually(
    look: Callable[[], Awaitable[T | None]], *, seconds: float = WAIT_SECONDS
) -> T:
    """What `look` finds, as soon as that is neither None nor False."""
    try:
        async with asyncio.timeout(seconds):
            while (found := await look()) is None or found is False:  # noqa: ASYNC110 - nobody says
                await asyncio.sleep(0.01)
            return found
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s") from None


def balance(stats: Mapping[str, Any]) -> int:
    """Submitted, minus everything that became of it: always zero."""
    metrics, queue = stats["metrics"], stats["queue"]
    ended = ("tasksCompleted", "tasksFailed", "tasksCancelled", "tasksParked")
    there = queue["totalQueued"] + queue["totalInflight"]
    left: int = metrics["tasksSubmitted"] - sum(metrics[name] for name in ended) - there
    return left
