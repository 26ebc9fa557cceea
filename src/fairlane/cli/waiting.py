"""Waiting for tasks and for batches, and what the end of it means for the exit code."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from fairlane.cli import exits
from fairlane.cli.backends import Backend
from fairlane.cli.output import Say, Shape, complain
from fairlane.client.sync import AT_REST
from fairlane.clock import SystemClock
from fairlane.core import lifecycle
from fairlane.core.errors import NotFound
from fairlane.schema import wire

if TYPE_CHECKING:
    from fairlane.cli.human import HumanOutput

# While several tasks are waited for, each is looked at in turn.
_TURN_SECONDS: Final = 0.25


def wait_for(side: Backend, out: HumanOutput, ids: Sequence[str], seconds: float | None) -> int:
    """Print the tasks in the order asked for, when all have come to rest or the time is up."""
    ids = list(dict.fromkeys(ids))
    with out.progress(len(ids)) as say:
        found = _until_at_rest(side, ids, seconds, say)
    out.ended(list(found.values()))
    left = [task["taskId"] for task in found.values() if task["state"] not in AT_REST]
    return _verdict({task["state"] for task in found.values()}, left)


def wait_for_batch(side: Backend, out: HumanOutput, batch_id: str, seconds: float) -> int:
    """The same for a batch. A parked task is as good as an end: it waits for a person."""
    total = sum(side.client.batch(batch_id)["byState"].values())
    with out.progress(total, plain=True) as say:
        batch = _until_batch_at_rest(side, batch_id, seconds, say)
    members = _members(side, batch_id)
    out.batch_ended(batch, members)
    left = [task["taskId"] for task in members if task["state"] not in AT_REST]
    return _verdict(set(batch["byState"]), left)


def _members(side: Backend, batch_id: str) -> list[Shape]:
    """Return all tasks of a batch, oldest first; large results make pages short."""
    found: list[Shape] = []
    cursor: str | None = None
    while True:
        page = side.client.tasks(batch=batch_id, limit=wire.LIST_LIMIT_MAX, cursor=cursor)
        found += page["tasks"]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found[::-1]


def _verdict(states: set[str], left: Sequence[str]) -> int:
    if left:
        complain(f"the time is up: {len(left)} not ended yet, first {left[0]}")
        return exits.TIME_IS_UP
    return exits.OK if states == {lifecycle.DONE} else exits.NOT_WELL


def _until_at_rest(
    side: Backend, ids: Sequence[str], seconds: float | None, say: Say
) -> dict[str, Shape]:
    clock = SystemClock()
    end = float("inf") if seconds is None else clock.monotonic() + seconds
    found: dict[str, Shape] = {}
    waiting = deque(ids)
    say(0, f"waiting for {ids[0]}" if len(ids) == 1 else f"waiting for {len(ids)} tasks")
    while waiting and not (clock.monotonic() >= end and len(found) == len(ids)):
        turn = side.look_seconds if len(waiting) == 1 else min(side.look_seconds, _TURN_SECONDS)
        left = min(turn, max(0.0, end - clock.monotonic()))
        task = found[waiting[0]] = _looked_at(side, waiting[0], left)
        if task["state"] in AT_REST:
            waiting.popleft()
        else:
            waiting.rotate(-1)
        if waiting:
            done = len(ids) - len(waiting)
            say(done, _awaited(waiting[0], found.get(waiting[0]), done, len(ids)))
    return {task_id: found[task_id] for task_id in ids}


def _awaited(task_id: str, task: Shape | None, done: int, total: int) -> str:
    state = task["state"] if task else ""
    if total > 1:
        return f"{done} of {total} ended; waiting for {task_id}" + (f" ({state})" if state else "")
    hint = "; see fairlane why" if state in (lifecycle.QUEUED, lifecycle.WAITING) else ""
    return f"waiting for {task_id} ({state}{hint})"


def _looked_at(side: Backend, task_id: str, seconds: float) -> Shape:
    try:
        return side.client.wait(task_id, seconds)
    except NotFound:  # of several, which?
        raise NotFound(f'task "{task_id}" not found') from None


def _until_batch_at_rest(side: Backend, batch_id: str, seconds: float, say: Say) -> Shape:
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while True:
        batch = side.client.batch(batch_id)
        by_state: Mapping[str, int] = batch["byState"]
        done = sum(number for state, number in by_state.items() if state in AT_REST)
        say(done, _told(by_state))
        left = end - clock.monotonic()
        if done == sum(by_state.values()) or left <= 0:
            return batch
        clock.sleep(min(side.look_seconds, _TURN_SECONDS, left))


def _told(by_state: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in by_state.items())
