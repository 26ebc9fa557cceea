"""Clients: they submit, look, and cancel, all the time and whatever happens to the servers.

Some are careful: they repeat a submission with its Idempotency-Key until it is answered. The others
forget about a submission whose answer got lost, which then may or may not exist.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from tests.e2e.history import (
    CANCEL_OK,
    INVOKE,
    MISSING,
    OK,
    REFUSED,
    SEEN,
    UNKNOWN,
    History,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLIENT = "client-"
CLIENTS = [f"{CLIENT}{number}" for number in range(8)]
TABS = [f"{client}-{letter}" for client in CLIENTS for letter in "ab"]
ANSWER_SECONDS_MAX = 30.0
RETRY_SECONDS = 0.02
LOST = (aiohttp.ClientError, OSError, TimeoutError)


class Order(msgspec.Struct):
    """What a client wants done; `items` has more than one when it is a batch."""

    group: str
    agent: str
    items: dict[str, dict[str, Any]]
    careful: bool


class Load:
    """The clients' common ground: where the servers are, what to ask for, and when it is enough."""

    def __init__(
        self,
        history: History,
        seed: int,
        *,
        urls: Callable[[], list[str]],
        callback_url: str,
        tasks: int,
        rate: float,
    ) -> None:
        self.history = history
        self.rng = random.Random(seed)
        self.over = False  # faults have ended: stop as soon as enough was acknowledged
        self._urls = urls
        self._callback_url = callback_url
        self._tasks = tasks
        self._pause_seconds = len(CLIENTS) / rate

    async def run(self) -> None:
        clients = [self._client(name) for name in CLIENTS]
        async with asyncio.TaskGroup() as group:
            for client in (*clients, self._watcher("watcher-0"), self._watcher("watcher-1")):
                group.create_task(client)

    @property
    def _enough(self) -> bool:
        return self.over and len(self.history.acknowledged) >= self._tasks

    async def _client(self, name: str) -> None:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            for order in self._orders(name):
                await self._place(session, name, order)
                await asyncio.sleep(self.rng.uniform(0, 2 * self._pause_seconds))

    # ------------------------------------------------------------ what is asked for

    def _orders(self, name: str) -> Iterator[Order]:
        for number in itertools.count():
            if self._enough:
                return
            is_batch = self.rng.random() < 0.05
            keys = [f"{name}.{number}"]
            if is_batch:
                keys = [f"{name}.{number}.{item}" for item in range(self.rng.randint(2, 9))]
            items = {key: self._handler(key) if is_batch else self._task(key, name) for key in keys}
            yield Order(f"{name}.{number}", name, items, careful=self.rng.random() < 0.5)

    def _task(self, key: str, agent: str) -> dict[str, Any]:
        body = self._action(key, agent) if self.rng.random() < 0.3 else self._handler(key)
        body["agentId"] = agent
        if self.rng.random() < 0.3:
            body["callbackUrl"] = self._callback_url
        return body

    def _handler(self, key: str) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return {"handler": "echo", "params": {"key": key}}
        ms = 250 if self.rng.random() < 0.05 else self.rng.randint(1, 30)
        return {"handler": "sleep", "params": {"key": key, "ms": ms}}

    def _action(self, key: str, agent: str) -> dict[str, Any]:
        """Each tab belongs to one agent, so what happens in it is in the order of one session."""
        params = {"key": key, "fake": {"delayMs": self.rng.randint(0, 10)}}
        tab = f"{agent}-{self.rng.choice('ab')}"
        return {"action": "click", "tabId": tab, "ref": "e1", "params": params}

    # ------------------------------------------------------------ asking

    async def _place(self, session: aiohttp.ClientSession, name: str, order: Order) -> None:
        for key in order.items:
            self.history.add(name, INVOKE, key=key, group=order.group)
        while True:
            if await self._asked(session, name, order) or not order.careful:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _asked(self, session: aiohttp.ClientSession, name: str, order: Order) -> bool:
        """Ask once and write down what came of it; whether it was acknowledged."""
        url = self._url()
        if url is None:
            self._note(name, REFUSED, order, "no server")
            return False
        headers = {"Idempotency-Key": order.group} if order.careful else {}
        path, body = "/tasks", next(iter(order.items.values()))
        if len(order.items) > 1:
            path, body = "/tasks/batch", {"agentId": order.agent, "tasks": [*order.items.values()]}
        try:
            async with session.post(url + path, json=body, headers=headers) as answer:
                found = await answer.json()
                status = answer.status
        except aiohttp.ClientConnectorError as error:
            self._note(name, REFUSED, order, f"{type(error).__name__} {url}")
            return False
        except LOST as error:
            self._note(name, UNKNOWN, order, f"{type(error).__name__} {url}")
            return False
        if status != 202:
            # Of a store that went away while it was written to, nobody knows what it has kept.
            what = UNKNOWN if found.get("code") == "store_unavailable" else REFUSED
            assert found.get("code") in ("store_unavailable", "draining"), (status, found)
            self._note(name, what, order, str(found))
            return False
        ids = [item["taskId"] for item in found.get("tasks", [found])]
        for key, task_id in zip(order.items, ids, strict=True):
            self.history.add(name, OK, key=key, id=task_id, group=order.group, note=url)
        return True

    def _note(self, name: str, what: str, order: Order, note: str) -> None:
        for key in order.items:
            self.history.add(name, what, key=key, group=order.group, note=note)

    def _url(self) -> str | None:
        urls = self._urls()
        return self.rng.choice(urls) if urls else None

    # ------------------------------------------------------------ looking and cancelling

    async def _watcher(self, name: str) -> None:
        """What was acknowledged must be there, at every later moment, on every server."""
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            while not self._enough:
                url = self._url()
                if url is not None and self.history.acknowledged:
                    recent = self.history.acknowledged[-2000:]
                    one = self.rng.choice(recent[-20:] if self.rng.random() < 0.5 else recent)
                    await self._look(session, name, url, *one)
                await asyncio.sleep(RETRY_SECONDS)

    async def _look(
        self, session: aiohttp.ClientSession, name: str, url: str, key: str, task_id: str
    ) -> None:
        try:
            if key.startswith(CLIENT) and self.rng.random() < 0.1:
                async with session.post(f"{url}/tasks/{task_id}/cancel", json={}) as answer:
                    await answer.read()
                    if answer.status == 200:
                        self.history.add(name, CANCEL_OK, key=key, id=task_id)
                return
            async with session.get(f"{url}/tasks/{task_id}") as answer:
                found = await answer.json()
                if answer.status == 200:
                    self.history.add(name, SEEN, key=key, id=task_id, note=found["state"])
                elif answer.status != 503:
                    self.history.add(
                        name, MISSING, key=key, id=task_id, note=f"{answer.status} {found}"
                    )
        except LOST:
            return


_TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
