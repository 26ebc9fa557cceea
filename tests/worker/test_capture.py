"""What handlers print and log is output of their tasks, unless the program opts out."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator

import pytest

from fairlane import Fairlane
from fairlane.worker.executors.base import Work

log = logging.getLogger("shop")


def plain(work: Work) -> None:
    print("plain", work.params["n"])  # noqa: T201 - this is what handlers do
    log.warning("low on %s", "paper")
    sys.stderr.write("to stderr\n")


async def awaited(work: Work) -> None:
    print("async", work.params["n"])  # noqa: T201 - this is what handlers do
    await asyncio.sleep(0)
    await asyncio.to_thread(print, "from a thread")


async def output_of(app: Fairlane, handler: str, n: int) -> str:
    task = await app.submit(handler=handler, params={"n": n})
    await task.result(timeout=60)
    return (await app.output(task.id)).text


@pytest.fixture
async def app() -> AsyncIterator[Fairlane]:
    async with Fairlane("sqlite:///:memory:", drain_seconds=0) as app:
        app.handler("plain")(plain)
        app.handler("async")(awaited)
        yield app


async def test_each_task_gets_what_its_own_handler_wrote(
    app: Fairlane, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = await asyncio.gather(*(output_of(app, name, n) for n in (1, 2) for name in HANDLERS))
    assert texts == [
        "plain 1\nWARNING shop: low on paper\nto stderr\n",
        "async 1\nfrom a thread\n",
        "plain 2\nWARNING shop: low on paper\nto stderr\n",
        "async 2\nfrom a thread\n",
    ]
    print("not in a handler")  # noqa: T201 - this is what handlers do
    seen = capsys.readouterr()
    assert seen.out.count("plain") == 2
    assert "not in a handler" in seen.out
    assert seen.err.count("to stderr") == 2


HANDLERS = ("plain", "async")


async def test_streams_are_as_before_when_the_scheduler_has_stopped() -> None:
    before = (sys.stdout, sys.stderr, list(logging.getLogger().handlers))
    async with Fairlane("sqlite:///:memory:", drain_seconds=0) as app:
        app.handler("plain")(plain)
        await output_of(app, "plain", 1)
        assert sys.stdout is not before[0]
        assert sys.stdout.isatty() is before[0].isatty()
    assert (sys.stdout, sys.stderr, list(logging.getLogger().handlers)) == before


async def test_a_program_can_opt_out() -> None:
    before = sys.stdout
    async with Fairlane("sqlite:///:memory:", drain_seconds=0, capture_output=False) as app:
        app.handler("plain")(plain)
        assert await output_of(app, "plain", 1) == ""
        assert sys.stdout is before
