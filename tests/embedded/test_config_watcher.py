"""A configuration that is watched: it is taken over when it changes, unless it is wrong."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from fairlane import ConfigWatcher, Fairlane
from tests.fakes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

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


async def test_what_stays_wrong_is_told_once_and_again_after_it_was_right(
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
    told = [line.partition("stays: ")[2] for line in caplog.messages if "not taken over" in line]
    assert told == [
        "gone",
        "no JSON",
        "lanes.main.maxInflight must be a whole number from 1 to 100000",
        "gone",
    ]
