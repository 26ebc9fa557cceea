"""`on_event`: listeners get all events in order, and a failing listener affects nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Fairlane
from tests.fakes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = "sqlite://:memory:"
Event = dict[str, Any]


async def test_listeners_hear_everything_once_and_in_order() -> None:
    app = Fairlane(MEMORY)
    heard: list[tuple[str, int]] = []

    @app.on_event
    async def first(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(("first", event["id"]))

    @app.on_event
    def second(event: Event) -> None:
        heard.append(("second", event["id"]))

    async with app:
        tasks = [await app.submit(handler="echo") for _ in range(20)]
        for task in tasks:
            await task.result(timeout=60)
    assert heard == [(name, number) for number in range(1, 61) for name in ("first", "second")]


async def test_a_listener_gets_no_past_events(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'own.db'}"
    async with Fairlane(store) as app:
        await (await app.submit(handler="echo")).result(timeout=60)
    app = Fairlane(store)
    heard: list[Event] = []
    app.on_event(heard.append)
    async with app:
        task = await app.submit(handler="echo")
        await task.result(timeout=60)
    assert [event["taskId"] for event in heard] == [task.id] * 3


async def test_a_listener_may_come_later() -> None:
    heard: list[str] = []
    async with Fairlane(MEMORY) as app:
        await app.submit(handler="nobody")
        app.on_event(lambda event: heard.append(event["taskId"]))
        task = await app.submit(handler="nobody")
        await eventually(lambda: bool(heard))
    assert heard == [task.id]


async def test_a_listener_that_fails_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Fairlane(MEMORY)
    heard: list[str] = []

    @app.on_event
    async def cancelled(_: Event) -> None:
        raise asyncio.CancelledError

    @app.on_event
    def fails(_: Event) -> None:
        raise SystemExit(3)

    app.on_event(lambda event: heard.append(event["type"]))
    with caplog.at_level(logging.WARNING, "fairlane.listeners"):
        async with app:
            await (await app.submit(handler="echo")).result(timeout=60)
    assert heard == ["task.created", "task.started", "task.completed"]
    messages = [record.message for record in caplog.records if record.name == "fairlane.listeners"]
    assert messages[:2] == [
        "a listener was cancelled at event 1 (task.created)",
        "a listener failed at event 1 (task.created)",
    ]
    assert len(messages) == 6


@pytest.mark.parametrize("plain", [True, False])
async def test_a_slow_listener_does_not_hold_up_the_engine(*, plain: bool) -> None:
    app = Fairlane(MEMORY)
    goes_on, heard = threading.Event(), []

    def slow(event: Event) -> None:
        heard.append(event["id"])
        goes_on.wait(10)

    async def slow_too(event: Event) -> None:
        heard.append(event["id"])
        await asyncio.to_thread(goes_on.wait, 10)

    app.on_event(slow if plain else slow_too)
    async with app:
        tasks = [await app.submit(handler="echo") for _ in range(10)]
        for task in tasks:
            await task.result(timeout=60)
        await eventually(lambda: len(heard) == 1)
        goes_on.set()
    assert heard == list(range(1, 31))


@pytest.mark.slow
async def test_a_listener_that_never_returns_does_not_keep_the_node_from_ending() -> None:
    app, never = Fairlane(MEMORY, drain_seconds=0.1), threading.Event()
    app.on_event(lambda _: never.wait())
    async with asyncio.timeout(60):
        async with app:
            task = await app.submit(handler="echo", params={"n": 1})
            assert await task.result(timeout=60) == {"n": 1}
    assert not never.is_set()
    never.set()


@pytest.mark.slow
async def test_events_of_other_nodes_are_heard(fresh_postgres: str) -> None:
    one, other = Fairlane(fresh_postgres), Fairlane(fresh_postgres)
    heard: list[str] = []
    one.on_event(lambda event: heard.append(event["taskId"]))
    async with one, other:
        task = await other.submit(handler="nobody")
        await eventually(lambda: bool(heard))
    assert heard == [task.id]
