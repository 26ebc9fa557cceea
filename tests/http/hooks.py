"""A receiver of webhooks on loopback that keeps what each of its addresses got."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.server import WEBHOOK_SECRET


class Delivery(NamedTuple):
    headers: dict[str, str]  # names in lower case
    raw: bytes
    genuine: bool  # when it arrived; later it is too old to be

    @property
    def task(self) -> Any:
        return msgspec.json.decode(self.raw)

    @property
    def event(self) -> str:
        return self.headers["x-pinchtab-event"]

    def verified(self) -> Any:
        """The body, if an independent library finds the signature to be right, and new."""
        return Webhook(WEBHOOK_SECRET).verify(self.raw, self.headers)


class Hook:
    """One address. `answers` are statuses, used up one by one; the last one stays."""

    def __init__(self, url: str, *answers: int, location: str | None = None) -> None:
        self.url = url
        self.answers = list(answers or (200,))
        self.location = location
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.deliveries: list[Delivery] = []
        self._arrived = asyncio.Condition()

    async def receive(self, delivery: Delivery) -> web.Response:
        async with self._arrived:
            self.deliveries.append(delivery)
            self._arrived.notify_all()
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await self.hangs.wait()
        headers = {"Location": self.location} if self.location else None
        return web.Response(status=status, headers=headers)

    async def until(self, count: int) -> list[Delivery]:
        async with asyncio.timeout(WAIT_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.deliveries) >= count)
        return list(self.deliveries)

    async def one(self) -> Delivery:
        return (await self.until(1))[0]


class Hooks:
    def __init__(self) -> None:
        self.port = 0
        self._hooks: dict[str, Hook] = {}
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=4 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        for hook in self._hooks.values():
            hook.hangs.set()
        await self._runner.cleanup()

    def new(self, *answers: int, location: str | None = None) -> Hook:
        path = f"/hook/{next(self._numbers)}"
        hook = Hook(f"http://{self.address}{path}", *answers, location=location)
        self._hooks[path] = hook
        return hook

    async def _receive(self, request: web.Request) -> web.Response:
        hook = self._hooks.get(request.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        raw = await request.read()
        delivery = Delivery(headers, raw, _is_genuine(headers, raw))
        return web.Response(status=404) if hook is None else await hook.receive(delivery)


def _is_genuine(headers: dict[str, str], raw: bytes) -> bool:
    try:
        Webhook(WEBHOOK_SECRET).verify(raw, headers)
    except WebhookVerificationError:
        return False
    return True
