"""A stage for work that waits: for other tasks, for a moment, for its next attempt; and its log.

Beyond what a `Stage` does it speaks the routes of dependencies, retries, batches and events, and
clears away what waits for ever. `Stream` reads `GET /events` as a browser's EventSource would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Self

import aiohttp
import msgspec

from tests.fakes.tab_instance import Behaviour
from tests.fakes.waiting import WAIT_SECONDS, TooLate
from tests.http.api import TERMINAL, Answer, eventually
from tests.http.stage import ONE, Stage

STUCK = "waiting_dependency,parked"
QUEUE = "queue"  # the built-in lane with one slot and strict priority
FOR_EVER = {"maxRetries": 1, "backoffMs": 60_000}  # the first failure is followed by a long wait
AT_ONCE = {"maxRetries": 3, "backoffMs": 0}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def ms_between(earlier: str, later: str) -> float:
    return (moment(later) - moment(earlier)) / timedelta(milliseconds=1)


class Work(Stage):
    # --- submitting -----------------------------------------------------------------------------

    async def echo(self, **fields: Any) -> str:
        """Submit the plainest task there is. A field that is None is left out."""
        body = {"agentId": self.agent, "handler": "echo", **fields}
        return await self.api.submit(**{k: v for k, v in body.items() if v is not None})

    async def park(self, **fields: Any) -> str:
        """A task that has used up its one attempt and is of a kind that parks."""
        hurry = {"timeoutMs": 20, "retryPolicy": {"maxRetries": 0}}
        task_id = await self.echo(handler="sleep", params={"ms": 600_000}, **hurry, **fields)
        await self.api.until(task_id, "parked")
        return task_id

    async def batch(self, *items: Any, **fields: Any) -> Answer:
        body = {"agentId": self.agent, "tasks": list(items), **fields}
        return await self.api.post("/tasks/batch", body)

    def echo_item(self, **fields: Any) -> dict[str, Any]:
        return {"handler": "echo", **fields}

    def action_item(self, *, fake: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
        item = self.task(fake=fake, **fields)
        del item["agentId"]
        return item

    def fail_next(self, times: int, status: int = 500, **headers: str) -> None:
        """So many actions without a `fake` of their own are refused, then all go well again."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"error": "not now"}
        self.instance.actions = Behaviour(status=status, body=body, headers=named, times=times)

    # --- verbs ----------------------------------------------------------------------------------

    async def retry(self, task_id: str) -> Answer:
        return await self.api.post(f"/tasks/{task_id}/retry")

    async def reset(self, task_id: str) -> Answer:
        return await self.api.post(f"/tasks/{task_id}/reset")

    async def delete(self, task_id: str) -> Answer:
        return await self.api.ask("DELETE", f"/tasks/{task_id}")

    async def bulk(self, verb: str, **body: Any) -> Answer:
        return await self.api.post(f"/tasks/{verb}", body)

    # --- looking --------------------------------------------------------------------------------

    async def states(self, *task_ids: str) -> list[str]:
        tasks = await asyncio.gather(*map(self.api.show, task_ids))
        return [task["state"] for task in tasks]

    async def waits_again(self, task_id: str, attempts: int = 1) -> dict[str, Any]:
        """The task in the wait that follows so many failed attempts."""

        async def look() -> dict[str, Any] | None:
            task = await self.api.show(task_id)
            if task["attempts"] > attempts or task["state"] in TERMINAL:
                raise TooLate(f"the wait was over before anybody looked: {task}")
            waits = task["state"] == "queued" and task.get("gate") == "delay"
            return task if waits and task["attempts"] == attempts else None

        return await eventually(look)

    async def passed(self, text: str) -> None:
        """Wait until the scheduler itself is past a moment: a task for then has run."""
        marker = await self.echo(agentId=self.new_agent("marker"), runAt=text)
        assert (await self.api.end_of(marker))["state"] == "done"

    async def settled(self, lane: str = ONE) -> None:
        """Wait until everything that could go before a new task in the lane has gone."""
        assert (await self.run(lane=lane, agentId=self.new_agent("marker")))["state"] == "done"

    # --- events ---------------------------------------------------------------------------------

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        answer = await self.api.get(f"/tasks/{task_id}/events")
        assert answer.status == 200, answer
        events: list[dict[str, Any]] = answer.json["events"]
        return events

    async def types(self, task_id: str) -> list[str]:
        return [event["type"].removeprefix("task.") for event in await self.events(task_id)]

    async def page(self, **query: Any) -> Answer:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        json = {"Accept": "application/json"}
        return await self.api.ask("GET", f"/events?{text}", headers=json)

    async def pages(self, after: int, **query: Any) -> list[dict[str, Any]]:
        """All events after one, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            answer = await self.page(after=after, **query)
            assert answer.status == 200, answer
            if not answer.json["events"]:
                return found
            found += answer.json["events"]
            assert answer.json["nextAfter"] > after
            after = answer.json["nextAfter"]

    async def newest(self) -> int:
        """The id of an event that was appended just now."""
        events = await self.events(await self.echo(agentId=self.new_agent("marker"), lane="held"))
        newest: int = events[-1]["id"]
        return newest

    def stream(
        self, last: int | None = None, *, accept: str = "text/event-stream", **query: Any
    ) -> Stream:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        resumed = {} if last is None else {"Last-Event-ID": str(last)}
        return Stream(f"{self.api.url}/events?{text}", {"Accept": accept, **resumed})

    # --- afterwards -----------------------------------------------------------------------------

    async def clear(self) -> None:
        self.instance.actions = Behaviour()
        while ids := (await self.api.get("/tasks", state=STUCK, limit=1000)).ids:
            await asyncio.gather(*map(self.api.cancel, ids))
        await super().clear()


class Frame(msgspec.Struct):
    """One event of a stream: its three lines, and the data decoded."""

    id: int
    event: str
    data: dict[str, Any]


class Stream:
    """`async with`: connected when the answer's head is there, gone afterwards."""

    method = "GET"

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None
        self._answer: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(trust_env=False)
        self._answer = await self._session.request(self.method, self._url, headers=self._headers)
        assert self._answer.status == 200, await self._answer.text()
        assert self._answer.content_type == "text/event-stream"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._answer is not None
        assert self._session is not None
        self._answer.close()
        await self._session.close()

    @property
    def headers(self) -> Mapping[str, str]:
        assert self._answer is not None
        return self._answer.headers

    async def frame(self) -> Frame:
        lines = await self.message()
        return Frame(int(lines["id"]), lines["event"], msgspec.json.decode(lines["data"]))

    async def message(self) -> dict[str, str]:
        """The lines of the next message; comments and advice on reconnecting are passed over."""
        lines: dict[str, str] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while (line := await self._line()) or "data" not in lines:
                if not line:
                    lines.clear()
                    continue
                name, colon, value = line.partition(":")
                if colon and name in {"id", "event", "data"}:
                    assert name not in lines, f"{name} twice in one message"
                    lines[name] = value.removeprefix(" ")
        return lines

    async def frames(self, count: int) -> list[Frame]:
        return [await self.frame() for _ in range(count)]

    async def until(self, event: str) -> list[Frame]:
        """Everything up to the first message of that type, which is the last one given."""
        found = [await self.frame()]
        while found[-1].event != event:
            found.append(await self.frame())
        return found

    async def _line(self) -> str:
        assert self._answer is not None
        line = await self._answer.content.readline()
        assert line, "the stream has ended"
        return line.decode("utf-8").rstrip("\r\n")
