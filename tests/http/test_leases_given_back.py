"""A lease that nobody has received goes back at once, and costs no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.embedded.app import Fairlane
from fairlane.http.app import HttpApp
from fairlane.http.messages import Answer


class Unwritable:
    """What no encoder of JSON knows."""


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Fairlane]:
    async with Fairlane(store_url, drain_seconds=0, clock=ManualClock()) as found:
        for number in range(3):
            await found.submit(handler="nobody-here", metadata={"number": number})
        yield found


class Caller:
    """Asks for leases; what it is sent, and whether it is still there, is the test's to say."""

    def __init__(self, app: Fairlane) -> None:
        self.app = app
        self.http = HttpApp(app.node, app.guard.check)
        self.gone = asyncio.get_running_loop().create_future()
        self.sent: list[MutableMapping[str, Any]] = []
        self._body = b'{"worker":"w","limit":10,"waitMs":1}'
        self._asked = False

    async def ask(self, send: Any = None) -> None:
        scope = {"type": "http", "method": "POST", "path": "/leases", "query_string": b""}
        await self.http({**scope, "headers": []}, self._receive, send or self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body}
        await self.gone
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)


async def all_are_queued_again(app: Fairlane) -> None:
    """Asked of the writer, so that everything before it has been done."""
    await app.submit(handler="nobody-here", lane="team")
    tasks = (await app.tasks(lane="main"))["tasks"]
    assert [(task["state"], task["attempts"]) for task in tasks] == [("queued", 0)] * 3
    again = Caller(app)
    await again.ask()
    assert msgspec.json.decode(again.sent[-1]["body"])["count"] == 4


async def test_leases_go_back_when_the_response_cannot_be_written(
    app: Fairlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(app)
    handler = caller.http.routes["/leases"]["POST"].handler

    async def unwritable(request: Any) -> Any:
        answer = await handler(request)
        assert isinstance(answer, Answer)
        assert answer.shape["count"] == 3
        return msgspec.structs.replace(answer, shape={**answer.shape, "odd": Unwritable()})

    route = caller.http.routes["/leases"]["POST"]
    changed = {"POST": msgspec.structs.replace(route, handler=unwritable)}
    monkeypatch.setitem(caller.http.routes, "/leases", changed)
    await caller.ask()
    assert caller.sent[0]["status"] == 500
    assert msgspec.json.decode(caller.sent[1]["body"])["code"] == "internal_error"
    await all_are_queued_again(app)


async def test_leases_go_back_when_the_response_cannot_be_sent(app: Fairlane) -> None:
    async def broken(_: Any) -> None:
        raise ConnectionResetError("nobody reads this")

    with pytest.raises(ConnectionResetError):
        await Caller(app).ask(broken)
    await all_are_queued_again(app)


async def test_leases_go_back_when_the_caller_goes_while_they_are_granted(app: Fairlane) -> None:
    """It was there when they were granted, and gone when its token was looked at once more."""
    caller = Caller(app)
    tokens = app.node.tokens
    require = tokens.require

    async def goes_now(who: Any) -> None:
        caller.gone.set_result(None)
        await asyncio.sleep(0)  # the request hears of it in the next turn of the loop
        await asyncio.sleep(0)
        await require(who)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "require", goes_now)
        await caller.ask()
    assert msgspec.json.decode(caller.sent[-1]["body"])["leases"] == []
    await all_are_queued_again(app)


async def test_leases_go_back_when_the_caller_is_cancelled_meanwhile(app: Fairlane) -> None:
    caller = Caller(app)
    tokens = app.node.tokens
    reached = asyncio.Event()

    async def never(_: Any) -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "require", never)
        asking = asyncio.create_task(caller.ask())
        await reached.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert caller.sent == []
    await all_are_queued_again(app)
