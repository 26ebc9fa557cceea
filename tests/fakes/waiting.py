"""Wait, with a limit, for a condition that another thread or the code under test causes.

A machine may stand still for seconds, and no test may fail by that. So how long something takes is
judged only where that is what is promised, and then by several tries (`steadily`); and a scene that
has to get somewhere before a moment comes is played again with a later moment (`in_time`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")

# The limit of a wait for an expected event, so that a test fails instead of hanging.
WAIT_SECONDS = 60.0


class TooSlow(AssertionError):
    """Something took too long, by the fault of the machine or of the code under test."""


class TooLate(AssertionError):
    """A moment came before a scene was where it had to be by then."""


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - no event announces such a condition
            await asyncio.sleep(0.001)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Judge how long something took that came to its end."""
    began = time.monotonic()
    yield
    judge(time.monotonic() - began, seconds)


def judge(took_seconds: float, seconds: float) -> None:
    if took_seconds >= seconds:
        raise TooSlow(f"it took {took_seconds:.2f} s, and not less than {seconds} s")


async def steadily(scene: Callable[[], Awaitable[T]]) -> T:
    """Play a scene that must not be slow; after a slow one three more, of which none may be.

    A machine that paused for a moment continues; code that is slow by itself stays slow.
    """
    try:
        return await scene()
    except TooSlow:
        return [await scene() for _ in range(3)][-1]


def steadily_here(scene: Callable[[], T]) -> T:
    """The same without a loop."""
    try:
        return scene()
    except TooSlow:
        return [scene() for _ in range(3)][-1]


async def in_time(scene: Callable[[float], Awaitable[T]]) -> T:
    """Play a scene that has so many seconds until a moment comes, or ten times as many."""
    for seconds in (0.3, 3.0):
        with contextlib.suppress(TooLate):
            return await scene(seconds)
    return await scene(30.0)
