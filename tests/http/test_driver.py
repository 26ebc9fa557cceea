"""A driver runs a coroutine as a task of asyncio's does, only sooner."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from fairlane.http.driver import Driver
from tests.fakes.waiting import WAIT_SECONDS

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="outside")
Told = list[object]


async def driven(coroutine: Coroutine[Any, Any, None], *, cancel: bool = False) -> None:
    """Run a coroutine with a driver, which must not be begun by a task, until it has ended."""
    loop = asyncio.get_running_loop()
    driver = Driver(loop, coroutine)
    loop.call_soon(driver.start)
    async with asyncio.timeout(WAIT_SECONDS):
        await asyncio.sleep(0)
        if cancel:
            assert driver.cancel()
        while not driver.done():  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0)
    assert not driver.cancel()


async def tasked(coroutine: Coroutine[Any, Any, None], *, cancel: bool = False) -> None:
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    if cancel:
        task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def gives_way(told: Told) -> None:
    told.append(asyncio.current_task() is not None)
    await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    told.append("woken")


async def fails_inside(told: Told) -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_exception, KeyError("k"))
    try:
        await future
    except KeyError as error:
        told.append(str(error))


async def is_late(told: Told) -> None:
    try:
        async with asyncio.timeout(0.001):
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        told.append("late")
    task = asyncio.current_task()
    assert task is not None
    told.append(task.cancelling())
    await asyncio.sleep(0)
    told.append("went on")


async def is_cancelled(told: Told) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        told.append("cancelled")
        raise


async def says_it_is_cancelled_and_goes_on(told: Told) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        told.append("cancelled")
    await asyncio.sleep(0)
    told.append("went on")


async def cancels_itself(told: Told) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    try:
        await asyncio.sleep(0.001)
    except asyncio.CancelledError:
        told.append("cancelled")


async def has_company(told: Told) -> None:
    told.extend(await asyncio.gather(asyncio.sleep(0, "a"), asyncio.to_thread(str, "b")))


async def sets_a_variable(told: Told) -> None:
    VARIABLE.set("inside")
    await asyncio.sleep(0.001)
    told.append(VARIABLE.get())


@pytest.mark.parametrize(
    ("work", "cancel"),
    [
        (gives_way, False),
        (fails_inside, False),
        (is_late, False),
        (is_cancelled, True),
        (says_it_is_cancelled_and_goes_on, True),
        (cancels_itself, False),
        (has_company, False),
        (sets_a_variable, False),
    ],
)
async def test_a_coroutine_cannot_tell_a_driver_from_a_task(
    work: Callable[[Told], Coroutine[Any, Any, None]], *, cancel: bool
) -> None:
    by_task: Told = []
    by_driver: Told = []
    await tasked(work(by_task), cancel=cancel)
    await driven(work(by_driver), cancel=cancel)
    assert by_driver == by_task != []
    assert VARIABLE.get() == "outside"


async def test_what_waits_for_nothing_is_over_at_once() -> None:
    told: Told = []

    async def work() -> None:
        told.append("done")

    loop = asyncio.get_running_loop()
    driver = Driver(loop, work())
    seen: list[tuple[bool, Told]] = []
    loop.call_soon(lambda: (driver.start(), seen.append((driver.done(), [*told]))))
    await asyncio.sleep(0)
    assert seen == [(True, ["done"])]


async def test_what_it_raises_reaches_the_loop() -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    async def work(first: Awaitable[None]) -> None:
        await first
        raise ValueError("nobody catches this")

    await driven(work(asyncio.sleep(0)))
    assert [type(one) for one in reported] == [ValueError]
