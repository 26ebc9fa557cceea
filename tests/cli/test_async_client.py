"""The client for programs with an event loop: the same verbs, answers and errors as `Client`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient, Client
from fairlane.core.errors import InvalidSettings, NotFound, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cli.conftest import Server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


def test_both_clients_have_the_same_verbs() -> None:
    def verbs(kind: type) -> dict[str, list[str]]:
        public = {name for name in dir(kind) if not name.startswith("_")}
        return {
            name: list(inspect.signature(getattr(kind, name)).parameters) for name in sorted(public)
        }

    assert verbs(AsyncClient) == verbs(Client)


async def test_answers_are_those_of_the_other_client(
    client: AsyncClient, server: Server, agent: str
) -> None:
    made = await client.submit(handler="echo", agent=agent, params={"n": 1})
    task = await client.wait(made["taskId"], 10)
    assert task["result"] == {"n": 1}
    with Client(server.url) as other:
        assert other.show(made["taskId"]) == task
        assert other.tasks(agent=agent) == await client.tasks(agent=agent)


async def test_a_submission_with_a_key_is_made_once(client: AsyncClient, agent: str) -> None:
    one, other = [
        await client.submit(handler="echo", agent=agent, idempotency_key=agent) for _ in range(2)
    ]
    assert one["taskId"] == other["taskId"]


async def test_waiting_ends_when_the_time_is_up(client: AsyncClient, agent: str) -> None:
    made = await client.submit(handler="nobody", agent=agent)
    assert (await client.wait(made["taskId"], 0.05))["state"] == "queued"
    await client.cancel(made["taskId"])


async def test_errors_are_raised_by_their_codes(client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client.show("tsk_nowhere")


async def test_many_may_ask_at_once(client: AsyncClient, agent: str) -> None:
    made = await asyncio.gather(
        *(client.submit(handler="echo", agent=agent, params={"n": n}) for n in range(50))
    )
    ended = await asyncio.gather(*(client.wait(one["taskId"], 10) for one in made))
    assert [one["result"] for one in ended] == [{"n": n} for n in range(50)]


async def test_events_are_read_to_their_end_or_followed(client: AsyncClient, agent: str) -> None:
    made = await client.submit(handler="echo", agent=agent)
    await client.wait(made["taskId"], 10)
    seen = [event["type"] async for event in client.events(follow=False, task=made["taskId"])]
    assert seen == ["task.created", "task.started", "task.completed"]
    followed: list[Any] = []
    async for event in client.events(after=0, agent=agent):
        followed.append(event["type"])
        if event["type"] == "task.completed":
            break
    assert followed == seen


async def test_output_is_followed_to_its_end(client: AsyncClient, agent: str) -> None:
    made = await client.submit(handler="nobody-but-me", agent=agent, lane="team")
    (lease,) = (await client.lease("w", handlers=["nobody-but-me"], lanes=["team"]))["leases"]
    pieces: list[str] = []

    async def follow() -> None:
        stream = client.output(made["taskId"], follow=True)
        pieces.extend([piece["text"] async for piece in stream])

    following = asyncio.create_task(follow())
    await client.output_lease(lease["leaseId"], "one ")
    await client.output_lease(lease["leaseId"], "two")
    await client.complete_lease(lease["leaseId"])
    await asyncio.wait_for(following, 60)
    assert "".join(pieces) == "one two"
    assert (await client.output(made["taskId"]))["text"] == "one two"


async def test_a_missing_server_is_reported() -> None:
    async with AsyncClient("http://127.0.0.1:1", reconnect_seconds=0) as client:
        with pytest.raises(Unreachable, match="start one with fairlane serve"):
            await client.stats()
        with pytest.raises(Unreachable):
            async for _ in client.events():
                pass


async def test_a_server_that_is_not_fairlane_is_reported(server: Server) -> None:
    async with AsyncClient(f"{server.url}/tasks", timeout=5) as client:
        with pytest.raises(NotFound):
            await client.stats()
        with pytest.raises(NotFound):
            async for _ in client.events():
                pass


async def test_a_server_that_is_too_slow_is_not_waited_for(server: Server) -> None:
    async with AsyncClient(server.url, timeout=0.000001) as client:
        with pytest.raises(Unreachable, match="no response within"):
            await client.stats()


def test_a_wrong_address_is_refused_at_once() -> None:
    with pytest.raises(InvalidSettings, match="url must look like"):
        AsyncClient("127.0.0.1:9867")
