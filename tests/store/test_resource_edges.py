"""Resources at their edges: restarts, forgotten rows, changed policies, and very large amounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlane.engine.commands import Prune
from tests.store.test_resources import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store


@pytest.fixture
def world(store: Store) -> Iterator[World]:
    found = World(store)
    yield found
    found.check()
    found.close()


# -------------------------------------------------------------------- lines


def test_a_delayed_task_finds_its_line_after_a_restart(world: World, store: Store) -> None:
    world.submit("late", needs={"gpt": {"tokens": 1}}, delay_ms=1000)
    world.engine.close()
    again = World(store, world.clock)
    again.submit("now", needs={"gpt": {"tokens": 1}})
    again.clock.advance(1000)
    assert {task.id for task in again.take(9)} == {"late", "now"}
    again.close()


def test_a_delayed_task_finds_its_line_after_that_was_forgotten(world: World) -> None:
    month = 30 * 86_400_000
    world.submit("early", needs={"gpt": {"tokens": 1}})
    world.submit("late", needs={"gpt": {"tokens": 1}}, delay_ms=month)
    world.end(*world.take())
    world.clock.advance(month - 1)
    world.ask(Prune(dry_run=False))
    world.engine.close()
    world.submit("now", needs={"gpt": {"tokens": 10}})
    (now,) = world.take(9)
    world.clock.advance(1)
    assert world.take(9) == []
    assert world.gate("late") == "resource"
    world.end(now, usage={"gpt": {"tokens": 0}})
    assert [task.id for task in world.take(9)] == ["late"]
