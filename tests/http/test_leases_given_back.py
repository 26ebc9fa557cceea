"""A lease that nobody has received goes back at once, and costs no attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.embedded.app import Fairlane
from fairlane.http.app import HttpApp
from fairlane.http.messages import Answer, HttpRequest, Raw, Stream
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.hostile.wires import SECONDS_MAX, door

BODY = b'{"worker":"w","limit":10,"waitMs":1}'


class Unwritable:
    """What no encoder of JSON knows."""


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Fairlane]:
    async with Fairlane(store_url, drain_seconds=0, clock=ManualClock()) as found:
        for number in range(3):
            await found.submit(handler="nobody-here", metadata={"number": number})
        yield found


class Leaving(HttpRequest):
    """A request for leases, whose caller goes when the test says so."""

    def __init__(
        self, gone: asyncio.Future[None], body: bytes = b"", path: str = "/leases"
    ) -> None:
        super().__init__("POST" if body else "GET", path, raw=body)
        self._gone = gone

    async def closed(self) -> None:
        await asyncio.shield(self._gone)


class Caller:
    """Asks for leases; whether it is still there is the test's to say."""

    def __init__(self, app: Fairlane) -> None:
        self.app = app
        self.http = HttpApp(app.node, app.guard.check)
        self.gone = asyncio.get_running_loop().create_future()
        self.sent: Answer | None = None

    async def ask(self) -> None:
        answer = await self.http(Leaving(self.gone, BODY))
        assert isinstance(answer, Answer)
        self.sent = answer

    @property
    def json(self) -> Any:
        assert self.sent is not None
        return msgspec.json.decode(self.sent.shape.body)


async def all_are_queued_again(app: Fairlane) -> None:
    """Asked of the writer, so that everything before it has been done."""
    await app.submit(handler="nobody-here", lane="team")
    tasks = (await app.tasks(lane="main"))["tasks"]
    assert [(task["state"], task["attempts"]) for task in tasks] == [("queued", 0)] * 3
    again = Caller(app)
    await again.ask()
    assert again.json["count"] == 4


async def test_leases_go_back_when_the_response_cannot_be_written(
    app: Fairlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(app)
    handler = caller.http.routes["/leases"]["POST"].handler

    async def unwritable(request: Any) -> Any:
        answer = await handler(request)
        assert isinstance(answer, Answer)
        assert answer.shape.count == 3
        return msgspec.structs.replace(answer, shape={"odd": Unwritable()})

    route = caller.http.routes["/leases"]["POST"]
    changed = {"POST": msgspec.structs.replace(route, handler=unwritable)}
    monkeypatch.setitem(caller.http.routes, "/leases", changed)
    await caller.ask()
    assert caller.sent is not None
    assert caller.sent.status == 500
    assert caller.json["code"] == "internal_error"
    await all_are_queued_again(app)


async def test_leases_go_back_when_the_response_cannot_be_sent(app: Fairlane) -> None:
    """The caller goes when its leases have been granted and before it is told."""
    http = HttpApp(app.node, app.guard.check)
    answered: asyncio.Future[Answer | Stream] = asyncio.get_running_loop().create_future()

    async def answer(request: HttpRequest) -> Answer | Stream:
        answer = await http(request)
        await wire.close()
        await request.closed()
        answered.set_result(answer)
        return answer

    async with door(answer) as entry, asyncio.timeout(SECONDS_MAX):
        wire = await entry.open()
        head = f"POST /leases HTTP/1.1\r\nHost: {entry.host}\r\nContent-Length: {len(BODY)}\r\n"
        await wire.send(head.encode() + b"Content-Type: application/json\r\n\r\n" + BODY)
        granted = await answered
    assert isinstance(granted, Answer)
    assert isinstance(granted.shape, Raw)
    assert msgspec.json.decode(granted.shape.body)["count"] == 3
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
    assert caller.json["code"] == "invalid_request"  # for a caller who is gone
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
    assert caller.sent is None
    await all_are_queued_again(app)


async def test_a_wait_for_a_task_ends_when_its_caller_goes(app: Fairlane) -> None:
    """The clock of this scheduler stands still, so nothing else would end it."""
    task = await app.submit(handler="nobody-here")
    caller = Caller(app)
    asking = asyncio.create_task(caller.http(Leaving(caller.gone, path=f"/tasks/{task.id}/wait")))
    await eventually(lambda: bool(app.node._ends))
    caller.gone.set_result(None)
    answer = await asyncio.wait_for(asking, WAIT_SECONDS)
    assert isinstance(answer, Answer)
    assert answer.status == 400  # for a caller who is gone
    assert not app.node._ends
