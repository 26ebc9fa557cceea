"""A failed attempt keeps its traceback: in the task, and in the log of the process that ran it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fairlane import Fairlane
from fairlane.core.errors import ExecutionFailed
from fairlane.worker.executors.base import Work

ONCE: Any = {"maxRetries": 0}


def divide(work: Work) -> float:
    return 1 / work.params.get("by", 0)


async def divide_soon(work: Work) -> float:
    await asyncio.to_thread(threading.get_ident)
    return divide(work)


@pytest.fixture
async def app() -> AsyncIterator[Fairlane]:
    async with Fairlane("sqlite:///:memory:", drain_seconds=0) as app:
        app.handler("plain")(divide)
        app.handler("async")(divide_soon)
        yield app


@pytest.mark.parametrize("handler", ["plain", "async"])
async def test_the_traceback_starts_in_the_handler_and_ends_with_the_error(
    app: Fairlane, handler: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fairlane")
    task = await app.submit(handler=handler, retry_policy=ONCE)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await task.result(timeout=60)
    (attempt,) = (await app.show(task.id))["attemptLog"]
    text = attempt["traceback"]
    assert text.splitlines()[0] == "Traceback (most recent call last):"
    assert "in divide\n" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert "fairlane/worker" not in text
    (record,) = [one for one in caplog.records if task.id in one.getMessage()]
    assert record.levelno == logging.WARNING
    assert "in divide\n" in record.getMessage()


async def test_a_failure_that_the_handler_declares_has_no_traceback(app: Fairlane) -> None:
    @app.handler("declared")
    def declared(_: Work) -> None:
        raise ExecutionFailed("the site is closed", retryable=False)

    task = await app.submit(handler="declared")
    with pytest.raises(Exception, match="the site is closed"):
        await task.result(timeout=60)
    (attempt,) = (await app.show(task.id))["attemptLog"]
    assert "traceback" not in attempt


async def test_each_attempt_keeps_its_own_traceback_also_after_a_reset(app: Fairlane) -> None:
    turns = iter("abcd")

    @app.handler("turns")
    def take_turns(_: Work) -> None:
        raise ValueError(next(turns))

    task = await app.submit(handler="turns", retry_policy={"maxRetries": 1, "backoffMs": 1})
    with pytest.raises(Exception, match="parked: ValueError: b"):
        await task.result(timeout=60)
    await app.reset(task.id)
    with pytest.raises(Exception, match="parked: ValueError: d"):
        await task.result(timeout=60)
    log = (await app.show(task.id))["attemptLog"]
    assert [one["traceback"][-13:] for one in log] == [f"ValueError: {turn}" for turn in "abcd"]
    brief = (await app.tasks())["tasks"]
    assert all("traceback" not in attempt for one in brief for attempt in one["attemptLog"])
