"""What a run knows: its session, its messages, its cron job and its trace, wherever it looks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient, Fairlane, Worker
from fairlane.core import sessions
from fairlane.core.model import Submission
from fairlane.schema.sessions import MessageAccepted
from fairlane.testing import MemoryFairlane
from fairlane.worker.executors.action import headers_of as action_headers
from fairlane.worker.executors.base import Work
from fairlane.worker.executors.instruction import headers_of
from tests.fakes.chat_agent import ChatAgent
from tests.http.server import serving
from tests.unit.core.rows import queued

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    async with MemoryFairlane() as app:
        yield app


class Seen:
    """Handlers `note` of a scheduler that remember their work."""

    def __init__(self, app: Fairlane) -> None:
        self.works: list[Work] = []

        @app.handler("note")
        async def note(work: Work) -> None:
            self.works.append(work)


async def test_two_messages_of_one_session_reach_the_agent_in_one_conversation() -> None:
    async with ChatAgent() as agent:
        async with Fairlane("sqlite://:memory:", agent=agent.url, drain_seconds=0) as app:
            for number, text in enumerate(["Hello", "And?"]):
                media = [{"url": f"https://a.example/{number}.png"}]
                sent = await app.message(
                    "chat:7", text, sender="ann", media=media, message_id=f"tg-{number}"
                )
                await app.wait_once(sent.task_id)
            other = await app.message("chat:8", "Hi")
            await app.wait_once(other.task_id)
        first, second, third = agent.requests
    assert first.body["conversationId"] == second.body["conversationId"]
    assert third.body["conversationId"] != first.body["conversationId"]
    assert second.body["sessionKey"] == "chat:7"
    assert second.body["sender"] == "ann"
    assert second.body["media"] == [{"url": "https://a.example/1.png"}]
    assert second.body["messages"] == [
        {"id": "tg-1", "sender": "ann", "media": [{"url": "https://a.example/1.png"}]}
    ]
    headers = second.headers
    assert headers["x-fairlane-session"] == "chat:7"
    assert headers["x-fairlane-conversation-id"] == second.body["conversationId"]
    assert (headers["x-fairlane-sender"], headers["x-fairlane-message-id"]) == ("ann", "tg-1")


async def test_a_reset_starts_a_new_conversation(app: MemoryFairlane) -> None:
    seen = Seen(app)
    for text in ("one", "two"):
        await app.message("chat:1", text, handler="note", no_merge=True)
        await app.settle()
    await app.reset_session("chat:1")
    for text in ("three", "four"):
        await app.message("chat:1", text, handler="note", no_merge=True)
        await app.settle()
    ids = [work.conversation_id for work in seen.works]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert None not in ids


async def test_agents_do_not_share_a_conversation(app: MemoryFairlane) -> None:
    seen = Seen(app)
    for agent in ("a", "b"):
        await app.submit(handler="note", agent=agent, session="s")
        await app.settle()
    a, b = seen.works
    assert (a.session, b.session) == ("s", "s")
    assert a.conversation_id != b.conversation_id


async def test_merged_messages_keep_their_ids_and_metadata(app: MemoryFairlane) -> None:
    seen = Seen(app)
    sent = [
        await app.message(
            "chat:2",
            f"line {number}",
            handler="note",
            sender="ann",
            metadata={"n": number},
            sent_at="2026-01-01T00:00:00Z",
        )
        for number in (1, 2, 3)
    ]
    task = await app.show(sent[0].task_id)
    await app.advance(1)
    await app.settle()
    (work,) = seen.works
    expected = [
        {
            "id": one.message_id,
            "sender": "ann",
            "sentAt": "2026-01-01T00:00:00.000Z",
            "metadata": {"n": number},
            "text": f"line {number}",
        }
        for number, one in enumerate(sent, 1)
    ]
    assert work.messages == expected
    assert task["messages"] == expected
    assert len({one.message_id for one in sent}) == 3
    assert (work.sender, work.metadata) == ("ann", {"n": 3})


async def test_a_cron_run_knows_its_job_its_trigger_and_its_slot(app: MemoryFairlane) -> None:
    seen = Seen(app)
    every = {"kind": "every", "everyMs": 60_000}
    job = await app.create_cron_job(
        {"name": "report", "schedule": every, "task": {"handler": "note"}}
    )
    await app.advance(60)
    await app.settle()
    await app.run_cron_job("report")
    await app.settle()
    scheduled, manual = (work.cron for work in seen.works)
    assert scheduled is not None
    assert manual is not None
    assert (scheduled["jobId"], scheduled["jobName"]) == (job.id, "report")
    assert (scheduled["trigger"], manual["trigger"]) == ("schedule", "manual")
    assert scheduled["slotAt"] == job.next_run_at
    assert seen.works[0].conversation_id is None, "runs of a job are no conversation"
    shown = await app.show(seen.works[0].task_id)
    assert shown["cron"] == scheduled
    headers = action_headers(seen.works[0], "t1")
    assert headers["X-Fairlane-Cron-Job"] == job.id
    assert headers["X-Fairlane-Cron-Trigger"] == "schedule"
    assert headers["X-Fairlane-Cron-Slot"] == scheduled["slotAt"]


async def test_a_worker_on_the_network_knows_the_same(tmp_path: Path) -> None:
    seen: list[Work] = []
    async with serving(tmp_path, f"sqlite:///{tmp_path / 'f.db'}") as server:
        worker = Worker(server.url)

        @worker.handler("remote")
        async def note(work: Work) -> None:
            seen.append(work)

        running = asyncio.create_task(worker.run())
        async with AsyncClient(server.url) as client:
            sent = await client.message(
                "chat:3",
                "Hi",
                handler="remote",
                sender="bo",
                media=[1],
                metadata={"chat": 3},
                message_id="m1",
            )
            assert isinstance(sent, MessageAccepted)
            shown = await client.wait(sent.task_id)
        worker.stop()
        await running
    (work,) = seen
    assert (work.session, work.sender) == ("chat:3", "bo")
    assert work.conversation_id == shown["conversationId"]
    message = {"id": "m1", "sender": "bo", "media": [1], "metadata": {"chat": 3}}
    assert work.messages == [message]
    assert shown["messages"] == [message]


async def test_params_and_metadata_are_always_dicts(app: MemoryFairlane) -> None:
    seen = Seen(app)
    await app.submit(handler="note")
    await app.settle()
    (work,) = seen.works
    assert (work.params, work.metadata, work.messages) == ({}, {}, [])
    assert (work.session, work.conversation_id, work.sender, work.cron) == (None,) * 4


@pytest.mark.parametrize(
    ("given", "expected"),
    [(TRACEPARENT, TRACE), ("nonsense", None), (None, None)],
    ids=["valid", "damaged", "none"],
)
def test_the_trace_id_is_part_of_the_traceparent(given: str | None, expected: str | None) -> None:
    assert work_of({"traceparent": given}).trace_id == expected


@pytest.mark.parametrize("sender", ["Zoë\r\nX-Evil: 1", "100% ☕", "a\0b"])
def test_what_a_header_cannot_carry_is_encoded(sender: str) -> None:
    value = headers_of(work_of({"sender": sender, "instruction": "x"}))["X-Fairlane-Sender"]
    assert value.isascii()
    assert value.isprintable()
    assert "%" in value


def work_of(request: dict[str, Any]) -> Work:
    return Work("tsk_1", "a", "handler", "main", 1, None, request)


async def test_events_name_the_session_and_are_filtered_by_it(app: MemoryFairlane) -> None:
    mine = await app.submit(handler="echo", session="chat:5")
    await app.submit(handler="echo", session="chat:6")
    await app.submit(handler="echo")
    await app.settle()
    page = await app.list_events(session="chat:5")
    assert {event.task for event in page.events} == {mine.id}
    assert {event.session for event in page.events} == {"chat:5"}
    every = (await app.list_events()).events
    assert {event.session for event in every} == {"chat:5", "chat:6", None}
    followed = [event async for event in app.events(session="chat:6", follow=False)]
    assert {event["sessionKey"] for event in followed} == {"chat:6"}


def test_a_submission_repeated_after_a_reset_is_the_same() -> None:
    from fairlane.engine.verbs.repetition import _is_stored

    body = '{"handler":"echo"}'
    made = Submission("t", "handler", "a", "handler/echo", body)
    stored = queued(agent="a")
    assert _is_stored(made, stored, '{"handler":"echo","generation":2}')
    assert not _is_stored(made, stored, '{"handler":"sleep","generation":2}')


def test_messages_of_a_single_message_have_its_media() -> None:
    request = {"messages": [{"id": "1"}], "media": ["m"], "metadata": {"a": 1}}
    assert sessions.messages_of(request) == [{"id": "1", "media": ["m"], "metadata": {"a": 1}}]
    assert sessions.messages_of({}) == []
