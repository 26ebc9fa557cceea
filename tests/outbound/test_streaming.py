"""Answers that are read as they come, through the guard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import InvalidRequest, PayloadTooLarge, TargetRefused
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from fairlane.worker.executors import base
from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.waiting import TooLate, in_time
from tests.outbound.receivers import http, listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.http1.asynchronous import AsyncExchange


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender(Guard(["127.0.0.1"])) as one:
        yield one


@pytest.fixture
async def agent() -> AsyncIterator[ChatAgent]:
    async with ChatAgent() as one:
        yield one


def asking(
    sender: Sender,
    url: str,
    *,
    headers: dict[str, str] | None = None,
    max_bytes: int = 1000,
    timeout_seconds: float | None = None,
) -> AsyncExchange:
    return sender.stream(
        "POST",
        url,
        headers=headers or {},
        body=b'{"message": "hi"}',
        max_bytes=max_bytes,
        timeout_seconds=timeout_seconds,
    )


async def read(sender: Sender, url: str, **options: Any) -> bytes:
    async with asking(sender, url, **options) as answer:
        return b"".join([chunk async for chunk in answer])


async def test_the_guarded_sender_keeps_the_contract_of_executors(agent: ChatAgent) -> None:
    async with Sender(Guard(["127.0.0.1"])) as sender:
        streams: base.HttpSender = sender
        async with streams.stream(
            "GET", agent.url, headers={}, body=None, max_bytes=100, timeout_seconds=60.0
        ) as answer:
            assert (answer.status, [chunk async for chunk in answer]) == (404, [b"no such route"])


async def test_status_headers_and_body_come_apart(sender: Sender) -> None:
    answer_bytes = http("418 Teapot", "Retry-After: 7", body=b"short")
    async with listening(answer_bytes) as listener, asking(sender, listener.url) as answer:
        assert (answer.status, answer.headers["retry-after"]) == (418, "7")
        assert [chunk async for chunk in answer] == [b"short"]
    assert b'{"message": "hi"}' in listener.requests[0]


async def test_a_piece_is_there_before_the_next_is_sent(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["one", "two"], hang_after=1)
    async with asking(sender, f"{agent.url}/chat") as answer:
        assert await anext(answer) == b"one"
        agent.release()
        assert [chunk async for chunk in answer] == [b"two"]


async def test_a_connection_is_used_again_after_the_whole_body(sender: Sender) -> None:
    async with listening() as listener:
        for _ in range(3):
            assert await read(sender, listener.url) == b"ok"
    assert listener.connections == 1


async def test_leaving_early_disconnects(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["one"], hang_after=1)
    async with asking(sender, f"{agent.url}/chat") as answer:
        await anext(answer)
    await agent.until(lambda: agent.requests[0].outcome == "gone")
    assert [one.outcome for one in agent.requests] == ["gone"]


async def test_a_cancelled_reader_disconnects(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["one"], hang_after=1)
    reading = asyncio.create_task(read(sender, f"{agent.url}/chat"))
    await agent.until(lambda: bool(agent.requests) and agent.requests[0].pieces == 1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await agent.until(lambda: agent.requests[0].outcome == "gone")


async def test_a_body_up_to_the_bound_is_read(sender: Sender) -> None:
    async with listening(http(body=b"x" * 1000)) as listener:
        assert len(await read(sender, listener.url)) == 1000


async def test_beyond_the_bound_the_part_within_it_is_still_handed_out(sender: Sender) -> None:
    async with (
        listening(http(body=b"x" * 1001)) as listener,
        asking(sender, listener.url) as answer,
    ):
        assert await anext(answer) == b"x" * 1000
        for _ in range(2):
            with pytest.raises(PayloadTooLarge, match="1000"):
                await anext(answer)


async def test_beyond_the_bound_the_sender_disconnects(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["x" * 1001], hang_after=1)
    async with asking(sender, f"{agent.url}/chat") as answer:
        await anext(answer)
        with pytest.raises(PayloadTooLarge):
            await anext(answer)
        await agent.until(lambda: agent.requests[0].outcome == "gone")


async def test_an_endless_body_ends_at_the_bound(sender: Sender) -> None:
    async with listening(b"HTTP/1.1 200 OK\r\n\r\n") as listener:
        listener.then_endless = b"x" * 10_000
        with pytest.raises(PayloadTooLarge):
            await read(sender, listener.url, max_bytes=100_000)


async def test_a_body_that_breaks_off_is_an_error(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["one"], break_off=True)
    async with asking(sender, f"{agent.url}/chat") as answer:
        assert await anext(answer) == b"one"
        with pytest.raises(ConnectionError):
            await anext(answer)


async def test_time_is_up_in_the_middle_of_a_body(sender: Sender, agent: ChatAgent) -> None:
    agent.script = Script(pieces=["one"], hang_after=1)

    async def run_out(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await read(sender, f"{agent.url}/chat", timeout_seconds=seconds / 6)
        if not agent.requests:
            raise TooLate("time was up before it was asked")
        await agent.until(lambda: agent.requests[0].outcome == "gone")

    await in_time(run_out)


async def test_a_redirect_is_not_followed(sender: Sender) -> None:
    async with listening() as other:
        answer_bytes = http("307 Temporary", f"Location: {other.url}")
        async with listening(answer_bytes) as listener, asking(sender, listener.url) as answer:
            assert answer.status == 307
    assert other.connections == 0


async def test_no_proxy_of_the_environment_is_asked(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening() as proxy, listening() as listener:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert await read(sender, listener.url) == b"ok"
    assert (proxy.connections, listener.connections) == (0, 1)


async def test_the_guard_decides_before_anything_is_sent(agent: ChatAgent) -> None:
    async with Sender(Guard()) as strict:
        with pytest.raises(TargetRefused):
            await read(strict, f"{agent.url}/chat")
    assert agent.requests == []


async def test_exactly_the_checked_address_is_dialled(agent: ChatAgent) -> None:
    asked: list[str] = []

    async def lookup(host: str) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    port = agent.url.rpartition(":")[2]
    async with Sender(Guard(["agent.test"], lookup=lookup)) as one:
        assert b"finish" in await read(one, f"http://agent.test:{port}/chat")
    assert asked == ["agent.test"]


async def test_a_header_that_could_forge_others_is_refused(
    sender: Sender, agent: ChatAgent
) -> None:
    with pytest.raises(InvalidRequest):
        async with asking(sender, f"{agent.url}/chat", headers={"X-A": "1\r\nX-B: 2"}):
            pass
    assert agent.requests == []
