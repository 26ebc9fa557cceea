"""A watched configuration: a change is applied, unless it is invalid."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import ConfigWatcher, Fairlane
from fairlane.core.errors import InvalidPolicy
from tests.fakes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY = "sqlite://:memory:"


class File:
    """What is read, and how often it was."""

    def __init__(self) -> None:
        self.content: dict[str, Any] | Exception = {}
        self.reads = 0

    def load(self) -> dict[str, Any]:
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def read_again(self, times: int) -> Callable[[], bool]:
        until = self.reads + times
        return lambda: self.reads >= until


def _ceiling(document: dict[str, Any]) -> Any:
    return document["policy"]["lanes"]["main"]["maxInflight"]


async def test_a_document_that_has_changed_is_taken_over() -> None:
    file = File()
    async with Fairlane(MEMORY) as app:
        watcher = ConfigWatcher(0.01, file.load, app)
        watcher.start()
        file.content = {"lanes": {"main": {"maxInflight": 3}}}
        await eventually(file.read_again(3))
        await watcher.stop()
        assert _ceiling(await app.policy()) == 3


async def test_what_stays_wrong_is_reported_once_and_again_after_it_was_right(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = File()
    contents: list[dict[str, Any] | Exception] = [
        OSError("gone"),
        ValueError("no JSON"),
        {"lanes": {"main": {"maxInflight": "x"}}},
        {},
        OSError("gone"),
    ]
    with caplog.at_level(logging.WARNING, "fairlane"):
        async with Fairlane(MEMORY) as app:
            watcher = ConfigWatcher(0.01, file.load, app)
            watcher.start()
            for file.content in contents:
                await eventually(file.read_again(4))
            await watcher.stop()
    told = [line.partition("in effect: ")[2] for line in caplog.messages if "was refused" in line]
    assert told == [
        "gone",
        "no JSON",
        "lanes.main.maxInflight must be a whole number from 1 to 100000",
        "gone",
    ]


async def test_a_document_that_is_changed_in_place_is_noticed() -> None:
    file = File()
    kept: dict[str, Any] = {"lanes": {"main": {"maxInflight": 3}}}
    file.content = kept
    async with Fairlane(MEMORY) as app:
        watcher = ConfigWatcher(0.01, file.load, app)
        await watcher.look()
        kept["lanes"]["main"]["maxInflight"] = 4
        await watcher.look()
        assert _ceiling(await app.policy()) == 4
        kept["lanes"]["main"]["maxInflight"] = "x"
        with pytest.raises(InvalidPolicy):
            await watcher.look()
        kept["lanes"]["main"]["maxInflight"] = 5
        await watcher.look()
        assert _ceiling(await app.policy()) == 5


async def test_what_equals_the_last_document_but_is_another_is_noticed() -> None:
    """In Python `True == 1`, in JSON not."""
    file = File()
    async with Fairlane(MEMORY) as app:
        watcher = ConfigWatcher(0.01, file.load, app)
        file.content = {"enabled": 0}
        with pytest.raises(InvalidPolicy):
            await watcher.look()
        file.content = {"enabled": False}
        await watcher.look()
        assert (await app.policy())["policy"]["enabled"] is False


class Remote:
    """A loader whose call is async without being an async function."""

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"lanes": {"main": {"maxInflight": 6}}}


@pytest.mark.parametrize("load", [Remote(), Remote().__call__])
async def test_a_loader_may_be_async(load: Any) -> None:
    async with Fairlane(MEMORY) as app:
        await ConfigWatcher(0.01, load, app).look()
        assert _ceiling(await app.policy()) == 6


@pytest.mark.parametrize(
    "document",
    [
        {"maxQueueSize": 7, "maxInflight": 3},
        {"scheduler": {"maxQueueSize": 7, "maxInflight": 3}},
        {"scheduler": {"maxQueueSize": 7, "maxInflight": 3}, "server": {"port": "9867"}},
    ],
)
async def test_a_loader_may_return_what_pinchtabs_returns(
    document: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fairlane"):
        async with Fairlane(MEMORY) as app:
            await ConfigWatcher(0.01, lambda: document, app).look()
            browser = (await app.policy())["policy"]["lanes"]["browser"]
    assert (browser["maxQueueSize"], browser["maxInflight"]) == (7, 3)
    told = [line for line in caplog.messages if "ignored" in line]
    assert [line.rpartition(": ")[2] for line in told] == ["server"] * ("server" in document)


@pytest.mark.parametrize("loaded", [None, [], "x"])
async def test_an_invalid_document_is_reported(loaded: Any) -> None:
    async with Fairlane(MEMORY) as app:
        with pytest.raises(InvalidPolicy, match="a policy must be a JSON object"):
            await ConfigWatcher(0.01, lambda: loaded, app).look()
