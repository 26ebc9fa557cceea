from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import ExecutionFailed
from fairlane.worker.executors.base import Executor
from fairlane.worker.executors.builtin import BUILTIN, HandlerExecutor
from tests.fakes.runs import FakeRun
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.worker.executors.base import Work
    from fairlane.worker.executors.builtin import Handler

asker: contextvars.ContextVar[str] = contextvars.ContextVar("asker", default="unset")


class Handlers:
    """An executor whose handlers a test adds as it goes."""

    def __init__(self, *, threads_max: int = 32) -> None:
        self.known: dict[str, Handler] = dict(BUILTIN)
        self.executor = HandlerExecutor(self.known, threads_max=threads_max)

    async def run(self, handler: Handler | str, params: Any = None) -> Any:
        name = handler if isinstance(handler, str) else "tested"
        if not isinstance(handler, str):
            self.known[name] = handler
        return await self.executor.execute(FakeRun(kind="handler", handler=name, params=params))

    async def failure(self, handler: Handler | str, params: Any = None) -> ExecutionFailed:
        with pytest.raises(ExecutionFailed) as caught:
            await self.run(handler, params)
        return caught.value


@pytest.fixture
async def handlers() -> AsyncIterator[Handlers]:
    one = Handlers()
    yield one
    await one.executor.close()


def test_the_executor_keeps_the_contract(handlers: Handlers) -> None:
    executor: Executor = handlers.executor
    assert not executor.starts_itself


# --- the two that are always there ---------------------------------------------------------------


@pytest.mark.parametrize("params", [{"a": [1]}, None, {}])
async def test_echo_gives_its_params_back(handlers: Handlers, params: Any) -> None:
    assert await handlers.run("echo", params) == params


@pytest.mark.parametrize("ms", [0, 1])
async def test_sleep_says_how_long_it_slept(handlers: Handlers, ms: int) -> None:
    assert await handlers.run("sleep", {"ms": ms}) == {"sleptMs": ms}


async def test_sleep_really_waits(handlers: Handlers) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await handlers.run("sleep", {"ms": 30})
    assert loop.time() - began >= 0.03


@pytest.mark.parametrize(
    "params",
    [None, {}, [], "1", {"ms": -1}, {"ms": 600_001}, {"ms": 1.5}, {"ms": "1"}, {"ms": True}],
)
async def test_sleep_refuses_what_is_not_a_time(handlers: Handlers, params: Any) -> None:
    failure = await handlers.failure("sleep", params)
    assert failure.message == "sleep: params.ms must be a whole number from 0 to 600000"
    assert not failure.retryable


async def test_sleep_ends_when_it_is_cancelled(handlers: Handlers) -> None:
    sleeping = asyncio.create_task(handlers.run("sleep", {"ms": 600_000}))
    await asyncio.sleep(0)
    sleeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(sleeping, WAIT_SECONDS)


# --- which functions may be handlers -------------------------------------------------------------


async def where(_: Work) -> Any:
    return threading.current_thread().name


def where_plain(_: Work) -> Any:
    return threading.current_thread().name


class Called:
    async def __call__(self, work: Work) -> Any:
        return await where(work)


def with_prefix(prefix: str, work: Work) -> Any:
    return prefix + work.task_id


async def test_an_async_function_runs_on_the_loop(handlers: Handlers) -> None:
    assert await handlers.run(where) == threading.current_thread().name


async def test_an_object_with_an_async_call_runs_on_the_loop(handlers: Handlers) -> None:
    assert await handlers.run(Called()) == threading.current_thread().name


async def test_a_plain_function_runs_in_a_thread_of_the_executor(handlers: Handlers) -> None:
    assert (await handlers.run(where_plain)).startswith("fairlane-handler-")


async def test_a_partial_function_is_a_handler(handlers: Handlers) -> None:
    assert await handlers.run(functools.partial(with_prefix, "for ")) == "for tsk_1"


async def test_a_plain_wrapper_of_an_async_function_is_awaited(handlers: Handlers) -> None:
    assert await handlers.run(lambda work: where(work)) == threading.current_thread().name  # noqa: PLW0108 - the wrapper is the point


async def test_a_thread_sees_the_context_of_its_run(handlers: Handlers) -> None:
    asker.set("agent-a")

    def read_and_change(_: Work) -> str:
        seen = asker.get()
        asker.set("another caller")
        return seen

    assert await handlers.run(read_and_change) == "agent-a"
    assert asker.get() == "agent-a"


async def test_a_handler_registered_later_is_found(handlers: Handlers) -> None:
    failure = await handlers.failure("later")
    assert failure.message == 'no handler "later" in this worker'
    assert failure.retryable
    handlers.known["later"] = where
    await handlers.run("later")


async def test_a_task_without_a_handler_fails(handlers: Handlers) -> None:
    with pytest.raises(ExecutionFailed, match="no handler"):
        await handlers.executor.execute(FakeRun(kind="handler"))


# --- failing -------------------------------------------------------------------------------------


class Exploding:
    """A handler that raises, in both colours."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def plain(self, _: Work) -> Any:
        raise self._error

    async def on_loop(self, _: Work) -> Any:
        raise self._error


@pytest.mark.parametrize("colour", ["plain", "on_loop"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no such\nfile"), "ValueError: no such file"),
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError("not ours"), "CancelledError: not ours"),
        (OSError("\udc80"), "OSError: ?"),
    ],
)
async def test_what_a_handler_raises_is_the_failure_of_the_task(
    handlers: Handlers, error: BaseException, message: str, colour: str
) -> None:
    failure = await handlers.failure(getattr(Exploding(error), colour))
    assert (failure.message, failure.retryable) == (message, True)
    assert failure.__cause__ is error


async def test_a_plain_function_may_even_raise_stop_iteration(handlers: Handlers) -> None:
    failing = handlers.failure(Exploding(StopIteration(7)).plain)
    failure = await asyncio.wait_for(failing, WAIT_SECONDS)
    assert failure.message == "StopIteration: 7"


@pytest.mark.parametrize("colour", ["plain", "on_loop"])
async def test_a_failure_a_handler_words_itself_passes_through(
    handlers: Handlers, colour: str
) -> None:
    own = ExecutionFailed("paper jam", retryable=False, retry_after_ms=5)
    assert await handlers.failure(getattr(Exploding(own), colour)) is own


async def test_a_long_message_is_cut_on_a_character(handlers: Handlers) -> None:
    failure = await handlers.failure(Exploding(ValueError("ä" * 5_000)).plain)
    assert failure.message == "ValueError: " + "ä" * 1_018


@pytest.mark.parametrize("result", [object(), {("a",): 1}, "\udc80", {"x": lambda: 1}])
async def test_a_result_that_is_not_json_fails_for_good(handlers: Handlers, result: Any) -> None:
    failure = await handlers.failure(lambda _: result)
    assert failure.message.startswith("the handler's result cannot be encoded as JSON: ")
    assert not failure.retryable


async def test_a_result_that_holds_itself_fails_for_good(handlers: Handlers) -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert not (await handlers.failure(lambda _: ring)).retryable


# --- cancelling ----------------------------------------------------------------------------------


class Stuck:
    """A plain function that reports its start and ends when the test releases it."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.ended = threading.Semaphore(0)

    def __call__(self, _: Work) -> str:
        self.began.release()
        assert self.may_end.wait(WAIT_SECONDS)
        self.ended.release()
        return "done after all"

    async def until_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert await asyncio.to_thread(self.began.acquire, timeout=WAIT_SECONDS)


async def test_a_cancelled_async_handler_sees_it_and_ends(handlers: Handlers) -> None:
    began, cleaned_up = asyncio.Event(), asyncio.Event()

    async def waits(_: Work) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    running = asyncio.create_task(handlers.run(waits))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned_up.is_set()


async def test_a_timeout_from_outside_is_a_cancellation(handlers: Handlers) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await handlers.run("sleep", {"ms": 600_000})


async def test_a_cancelled_plain_handler_has_ended_only_when_its_thread_has(
    handlers: Handlers,
) -> None:
    stuck = Stuck()
    running = asyncio.create_task(handlers.run(stuck))
    await stuck.until_begun()
    running.cancel()
    assert await handlers.run("echo", {"a": 1}) == {"a": 1}
    assert not running.done()
    stuck.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, WAIT_SECONDS)
    assert stuck.ended.acquire(blocking=False)


async def test_a_second_cancel_does_not_wait_for_the_thread(handlers: Handlers) -> None:
    stuck = Stuck()
    running = asyncio.create_task(handlers.run(stuck))
    await stuck.until_begun()
    running.cancel()
    await asyncio.sleep(0)  # the first one arrives
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, WAIT_SECONDS)
    assert not stuck.ended.acquire(blocking=False)
    stuck.may_end.set()


# --- threads -------------------------------------------------------------------------------------


async def test_plain_handlers_run_side_by_side(handlers: Handlers) -> None:
    together = threading.Barrier(20)

    def meet(_: Work) -> int:
        return together.wait(WAIT_SECONDS)

    met = await asyncio.gather(*(handlers.run(meet) for _ in range(20)))
    assert sorted(met) == list(range(20))


async def test_an_idle_thread_is_used_again(handlers: Handlers) -> None:
    names = set()
    for _ in range(50):
        names.add(await handlers.run(where_plain))
        # The thread reports its result before it is idle; wait for that.
        await eventually(lambda: handlers.executor._threads._idle._value > 0)
    assert len(names) == 1


async def test_beyond_the_bound_a_handler_waits_for_a_thread() -> None:
    bounded, stuck = Handlers(threads_max=2), Stuck()
    running = [asyncio.create_task(bounded.run(stuck)) for _ in range(3)]
    await stuck.until_begun(2)
    assert not stuck.began.acquire(blocking=False)
    stuck.may_end.set()
    assert await asyncio.gather(*running) == ["done after all"] * 3
    await bounded.executor.close()


async def test_a_handler_cancelled_while_it_waits_for_a_thread_never_runs() -> None:
    bounded, stuck, called = Handlers(threads_max=1), Stuck(), threading.Event()
    holding = asyncio.create_task(bounded.run(stuck))
    await stuck.until_begun()
    waiting = asyncio.create_task(bounded.run(lambda _: called.set()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    stuck.may_end.set()
    await holding
    await bounded.run(where_plain)
    assert not called.is_set()
    await bounded.executor.close()


async def test_closing_does_not_wait_for_a_stuck_handler(handlers: Handlers) -> None:
    stuck = Stuck()
    running = asyncio.create_task(handlers.run(stuck))
    await stuck.until_begun()
    await asyncio.wait_for(handlers.executor.close(), WAIT_SECONDS)
    stuck.may_end.set()
    assert await running == "done after all"
    assert "closed" in (await handlers.failure(where_plain)).message


async def test_closing_lets_idle_threads_go() -> None:
    one = Handlers()
    name = await one.run(where_plain)
    (thread,) = (each for each in threading.enumerate() if each.name == name)
    await one.executor.close()
    await asyncio.to_thread(thread.join, WAIT_SECONDS)
    assert not thread.is_alive()


STUCK_PROGRAM = """
import asyncio, threading
from fairlane.worker.executors.builtin import HandlerExecutor
from tests.fakes.runs import FakeRun

began = threading.Event()

def stuck(work):
    began.set()
    threading.Event().wait()

async def main():
    executor = HandlerExecutor({"stuck": stuck})
    running = asyncio.create_task(executor.execute(FakeRun(kind="handler", handler="stuck")))
    while not began.is_set():
        await asyncio.sleep(0)
    running.cancel()  # as a drain does; the end of the program cancels it once more
    await asyncio.sleep(0)
    await executor.close()

asyncio.run(main())
print("ended")
"""


@pytest.mark.slow
def test_a_stuck_plain_handler_does_not_keep_the_process_from_ending() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STUCK_PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ended.stdout == "ended\n"
