"""`schedule`: work of a session that a program waits for, and every way in which it may end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Fairlane
from fairlane.core import errors
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from fairlane.worker.executors.base import Work

MEMORY = "sqlite://:memory:"


@pytest.fixture
async def app() -> AsyncIterator[Fairlane]:
    async with Fairlane(MEMORY, drain_seconds=0) as app:
        yield app


class Room:
    """Functions that stay in it until they are let out, one by one or all."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.began: list[str] = []
        self._changed = asyncio.Condition()
        self._out: set[str] = set()
        self._open = False

    def function(self, name: str) -> Callable[[Work], Awaitable[str]]:
        async def stay(_: Work) -> str:
            async with self._changed:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.began.append(name)
                self._changed.notify_all()
                try:
                    await self._changed.wait_for(lambda: self._open or name in self._out)
                finally:
                    self.inside -= 1
                    self._changed.notify_all()
            return name

        return stay

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    async def let_out(self, *names: str) -> None:
        """Those, or without a name everybody from now on."""
        async with self._changed:
            self._out.update(names)
            self._open = not names
            self._changed.notify_all()


class Chat:
    """Calls of `schedule` under way, each known by its name."""

    def __init__(self, app: Fairlane, session: str = "chat", **always: Any) -> None:
        self.app = app
        self.session = session
        self.always = always
        self.room = Room()

    async def say(self, name: str, **fields: Any) -> asyncio.Task[Any]:
        """Returns when it has been admitted or refused, so that the order is known."""
        before = await self.tasks()
        call = self.app.schedule(
            session=self.session, fn=self.room.function(name), **{**self.always, **fields}
        )
        calling = asyncio.create_task(call)
        async with asyncio.timeout(WAIT_SECONDS):
            while not calling.done() and await self.tasks() == before:
                await asyncio.wait([calling], timeout=0.002)
        return calling

    async def tasks(self) -> int:
        count: int = (await self.app.tasks(session=self.session))["count"]
        return count

    async def waiting(self) -> list[str]:
        shape = await self.app.session(self.session)
        return [one["taskId"] for one in shape["waiting"]]


async def outcome(calling: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> Any:
    async with asyncio.timeout(WAIT_SECONDS):
        return await calling


# --- what runs ------------------------------------------------------------------------------------


async def test_an_async_and_a_plain_function_run_and_their_results_come_back(app: Fairlane) -> None:
    main = threading.get_ident()

    async def here(work: Work) -> dict[str, Any]:
        return {"task": work.task_id, "here": threading.get_ident() == main}

    def there(_: Work) -> bool:
        return threading.get_ident() == main

    told = await outcome(app.schedule(session="s", fn=here))
    assert told["here"] is True
    shown = await app.show(told["task"])
    assert (shown["state"], shown["sessionKey"], shown["lane"]) == ("done", "s", "main")
    assert shown["result"] == told
    assert await outcome(app.schedule(session="s", fn=there, lane="subagent")) is False


@pytest.mark.slow
async def test_a_function_runs_in_the_process_that_has_it(store_url: str) -> None:
    """On a shared store, whichever node is asked; a private one has but one."""
    async with contextlib.AsyncExitStack() as stack:
        numbers = range(1 if store_url.startswith("sqlite") else 2)
        apps = [
            await stack.enter_async_context(Fairlane(store_url, drain_seconds=0)) for _ in numbers
        ]

        def number_of(app: Fairlane) -> Callable[[Work], int]:
            return lambda _: apps.index(app)

        calls = [
            app.schedule(session=f"s{n % 3}", fn=number_of(app)) for n in range(12) for app in apps
        ]
        results = await outcome(asyncio.create_task(_all(calls)))
        assert results == [*numbers] * 12


async def test_a_handler_gets_the_message_and_its_params(app: Fairlane) -> None:
    call = app.schedule(session="s", handler="echo", message="Hi", sender="ada", params={"n": 1})
    assert await outcome(call) == {"message": "Hi", "sender": "ada", "n": 1}
    assert await outcome(app.schedule(session="s", handler="echo", params={"n": 2})) == {"n": 2}


async def test_what_a_function_raises_is_raised_once_and_not_tried_again(app: Fairlane) -> None:
    calls: list[int] = []

    async def breaks(_: Work) -> None:
        calls.append(1)
        raise LookupError("no such thing")

    def breaks_plainly(_: Work) -> None:
        raise errors.ExecutionFailed("not today")

    with pytest.raises(LookupError, match="no such thing"):
        await outcome(app.schedule(session="s", fn=breaks))
    with pytest.raises(errors.ExecutionFailed, match="not today"):
        await outcome(app.schedule(session="s", fn=breaks_plainly))
    assert calls == [1]
    tasks = (await app.tasks(session="s"))["tasks"]
    assert [task["state"] for task in tasks] == ["failed", "failed"]
    assert tasks[1]["error"] == "LookupError: no such thing"


async def test_a_result_that_is_not_json_is_reported(app: Fairlane) -> None:
    with pytest.raises(errors.ExecutionFailed, match="cannot be encoded as JSON"):
        await outcome(app.schedule(session="s", fn=lambda _: object()))


async def test_a_handler_that_fails_is_a_failed_task(app: Fairlane) -> None:
    with pytest.raises(errors.TaskFailed, match=r"params\.ms") as caught:
        await outcome(app.schedule(session="s", handler="sleep", params={"ms": -1}))
    assert (caught.value.state, caught.value.code) == ("failed", "task_failed")


async def test_messages_in_a_window_are_one_run_with_one_result(app: Fairlane) -> None:
    async def first(work: Work) -> Any:
        return work.request["params"]["message"]

    async def never(_: Work) -> None:
        raise AssertionError

    window: dict[str, Any] = {"session": "s", "debounce_ms": 300, "sender": "ada"}
    calls = [app.schedule(message="a", fn=first, **window)]
    calls += [app.schedule(message=text, fn=never, **window) for text in "bc"]
    results = await outcome(asyncio.create_task(_all(calls)))
    assert results == ["a\nb\nc"] * 3
    assert (await app.tasks(session="s"))["count"] == 1


async def _all(calls: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*calls))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "nothing to run: give 'fn', 'handler' or 'message'"),
        ({"fn": print, "handler": "echo"}, "give either 'fn' or 'handler', not both"),
        ({"fn": print, "mode": "quick"}, "field 'mode' must be one of collect"),
        ({"fn": print, "max_concurrent": 0}, "field 'maxConcurrent' must be"),
        ({"fn": print, "lane": "no lane"}, "field 'lane'"),
        ({"message": " "}, "field 'instruction' must not be empty"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    app: Fairlane, fields: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match=complaint):
        await outcome(app.schedule(session="s", **fields))


async def test_mistakes_of_the_program_are_reported(app: Fairlane) -> None:
    with pytest.raises(TypeError, match=r"did you mean sender\?"):
        await app.schedule(session="s", fn=print, sendr="x")  # type: ignore[call-arg]  # on purpose
    with pytest.raises(errors.InvalidRequest, match="sessionKey"):
        await app.schedule(session="", fn=print)
    resting = Fairlane(MEMORY)
    with pytest.raises(RuntimeError, match="has not been started"):
        await resting.schedule(session="s", fn=print)
    await resting.stop()


# --- how many at once -----------------------------------------------------------------------------


async def test_a_lane_is_never_fuller_than_its_ceiling() -> None:
    policy = {"lanes": {"main": {"maxInflight": 2}}}
    async with Fairlane(MEMORY, policy=policy, drain_seconds=0) as app:
        room = Room()
        calls = [
            asyncio.create_task(app.schedule(session=f"s{n}", fn=room.function(str(n))))
            for n in range(6)
        ]
        for done in range(3):
            await room.until(lambda done=done: len(room.began) == 2 * done + 2)  # type: ignore[misc]  # bound now
            await room.let_out(*room.began)
        assert await outcome(asyncio.create_task(_all(calls))) == list("012345")
        assert room.most == 2


async def test_one_session_runs_one_at_a_time_in_order(app: Fairlane) -> None:
    chat = Chat(app)
    calls = [await chat.say(name) for name in "abc"]
    await chat.room.let_out()
    assert await outcome(asyncio.create_task(_all(calls))) == ["a", "b", "c"]
    assert (chat.room.began, chat.room.most) == (["a", "b", "c"], 1)


async def test_two_sessions_run_at_the_same_time(app: Fairlane) -> None:
    room = Room()
    calls = [app.schedule(session=name, fn=room.function(name)) for name in "ab"]
    running = asyncio.create_task(_all(calls))
    await room.until(lambda: room.inside == 2)
    await room.let_out()
    assert await outcome(running) == ["a", "b"]


async def test_a_group_runs_as_many_at_once_as_it_may_in_order(app: Fairlane) -> None:
    chat = Chat(app, max_concurrent=3)
    calls = [await chat.say(name) for name in "abcd"]
    await chat.room.until(lambda: chat.room.inside == 3)
    assert len(await chat.waiting()) == 1
    await chat.room.let_out()
    assert await outcome(asyncio.create_task(_all(calls))) == list("abcd")
    assert (sorted(chat.room.began[:3]), chat.room.began[3]) == (["a", "b", "c"], "d")
    assert chat.room.most == 3


# --- too many -------------------------------------------------------------------------------------


async def test_the_oldest_is_dropped_when_too_many_wait(app: Fairlane) -> None:
    chat = Chat(app, cap=2, drop="old")
    first = await chat.say("1")
    await chat.room.until(lambda: chat.room.inside == 1)
    second, third = await chat.say("2"), await chat.say("3")
    fourth = await chat.say("4")
    with pytest.raises(errors.QueueDropped) as caught:
        await outcome(second)
    assert (caught.value.code, caught.value.state) == ("queue_dropped", "cancelled")
    assert not third.done()
    await chat.room.let_out()
    assert [await outcome(one) for one in (first, third, fourth)] == ["1", "3", "4"]


async def test_the_newest_is_refused_when_the_session_says_so(app: Fairlane) -> None:
    chat = Chat(app, cap=1, drop="new")
    kept = [await chat.say("1"), await chat.say("2")]
    with pytest.raises(errors.SessionQueueFull) as caught:
        await outcome(await chat.say("3"))
    assert caught.value.code == "session_queue_full"
    await chat.room.let_out()
    assert [await outcome(one) for one in kept] == ["1", "2"]


async def test_a_full_lane_refuses() -> None:
    policy = {"lanes": {"main": {"maxInflight": 1, "maxQueueSize": 1}}}
    async with Fairlane(MEMORY, policy=policy, drain_seconds=0) as app:
        chat = Chat(app)
        calls = [await chat.say("1")]
        await chat.room.until(lambda: chat.room.inside == 1)
        calls.append(await chat.say("2"))
        with pytest.raises(errors.QueueFull):
            await outcome(await chat.say("3"))
        await chat.room.let_out()
        assert await outcome(asyncio.create_task(_all(calls))) == ["1", "2"]


# --- interrupted, stopped, reset ------------------------------------------------------------------


async def test_an_interrupting_message_ends_the_run_and_then_runs(app: Fairlane) -> None:
    chat = Chat(app, mode="interrupt")
    first = await chat.say("1")
    await chat.room.until(lambda: chat.room.inside == 1)
    second = await chat.say("2")
    with pytest.raises(errors.Interrupted) as caught:
        await outcome(first)
    assert caught.value.code == "interrupted"
    await chat.room.let_out()
    assert await outcome(second) == "2"
    assert chat.room.most == 1


async def test_stop_ends_the_oldest_run_and_the_next_one_starts(app: Fairlane) -> None:
    chat = Chat(app)
    first, second, third = [await chat.say(name) for name in "123"]
    await chat.room.until(lambda: chat.room.inside == 1)
    assert len((await app.stop_session("chat"))["stopped"]) == 1
    with pytest.raises(errors.Stopped):
        await outcome(first)
    await chat.room.until(lambda: chat.room.began == ["1", "2"])
    await chat.room.let_out()
    assert [await outcome(one) for one in (second, third)] == ["2", "3"]


async def test_stopall_ends_what_runs_and_what_waits_but_nothing_later(app: Fairlane) -> None:
    chat = Chat(app)
    calls = [await chat.say(name) for name in "123"]
    await chat.room.until(lambda: chat.room.inside == 1)
    answer = await app.stop_all("chat")
    assert (len(answer["stopped"]), len(answer["drained"])) == (1, 2)
    for one in calls:
        with pytest.raises(errors.Stopped):
            await outcome(one)
    later = await chat.say("4")
    await chat.room.let_out()
    assert await outcome(later) == "4"


async def test_a_message_from_before_a_stopall_is_stale(app: Fairlane) -> None:
    chat = Chat(app)
    await app.stop_all("chat")
    early = datetime.now(UTC) - timedelta(minutes=1)
    with pytest.raises(errors.MessageStale) as caught:
        await outcome(await chat.say("1", sent_at=early))
    assert caught.value.code == "message_stale"
    assert await outcome(app.schedule(session="chat", handler="echo", params={"n": 1}))


async def test_a_reset_ends_all_and_late_completions_change_nothing(app: Fairlane) -> None:
    chat = Chat(app)
    goes_on, ends = threading.Event(), threading.Event()

    def deaf(_: Work) -> str:
        goes_on.set()
        ends.wait(WAIT_SECONDS)
        return "too late"

    first = asyncio.create_task(app.schedule(session="chat", fn=deaf))
    await asyncio.to_thread(goes_on.wait, WAIT_SECONDS)
    second = await chat.say("2")
    answer = await app.reset_session("chat")
    assert answer["generation"] == 1
    for one in (first, second):
        with pytest.raises(errors.SessionReset) as caught:
            await outcome(one)
        assert caught.value.code == "session_reset"
    ends.set()
    await chat.room.let_out()
    assert await outcome(await chat.say("3")) == "3"
    assert (await app.show(answer["stopped"][0]))["state"] == "cancelled"


async def test_a_waiter_gets_an_error_when_its_lane_is_cleared(app: Fairlane) -> None:
    await app.pause_lane("team")
    calling = await Chat(app).say("1", lane="team")
    assert (await app.clear_lane("team"))["cancelled"] == 1
    with pytest.raises(errors.LaneCleared) as caught:
        await outcome(calling)
    assert caught.value.code == "lane_cleared"


async def test_a_plain_cancel_has_no_code_of_its_own(app: Fairlane) -> None:
    chat = Chat(app)
    calling = await chat.say("1")
    await app.cancel((await app.tasks(session="chat"))["tasks"][0]["taskId"])
    with pytest.raises(errors.TaskFailed) as caught:
        await outcome(calling)
    assert (caught.value.code, caught.value.state) == ("task_failed", "cancelled")


# --- who stops waiting ----------------------------------------------------------------------------


async def _states(app: Fairlane, session: str = "chat") -> list[str]:
    return [task["state"] for task in (await app.tasks(session=session))["tasks"]]


async def test_a_caller_that_stops_waiting_cancels_the_task(app: Fairlane) -> None:
    chat = Chat(app)
    first, second = await chat.say("1"), await chat.say("2")
    await chat.room.until(lambda: chat.room.inside == 1)
    for calling in (second, first):
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outcome(calling)
    assert await _states(app) == ["cancelled", "cancelled"]
    await chat.room.until(lambda: chat.room.inside == 0)


async def test_a_caller_that_leaves_during_the_submit_leaves_no_task(app: Fairlane) -> None:
    await app.pause_lane("team")
    calling = asyncio.create_task(app.schedule(session="chat", fn=print, lane="team"))
    await asyncio.wait([calling], timeout=0)  # it has asked, and not been answered
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await outcome(calling)
    assert await _states(app) == ["cancelled"]


async def test_when_time_is_up_the_task_is_cancelled(app: Fairlane) -> None:
    with pytest.raises(TimeoutError, match=r"it did not end within 0\.05 s"):
        await outcome(app.schedule(session="chat", handler="nobody", timeout=0.05))
    assert await _states(app) == ["cancelled"]


async def test_a_timeout_of_the_function_itself_is_its_own(app: Fairlane) -> None:
    async def times_out(_: Work) -> None:
        raise TimeoutError("the other side is slow")

    with pytest.raises(TimeoutError, match="the other side is slow"):
        await outcome(app.schedule(session="chat", fn=times_out, timeout=60))


async def test_a_joined_message_lives_as_long_as_anybody_waits_for_it(app: Fairlane) -> None:
    window: dict[str, Any] = {"session": "chat", "handler": "echo", "debounce_ms": 300}
    first, second = [
        asyncio.create_task(app.schedule(message=text, **window)) for text in ("a", "b")
    ]
    async with asyncio.timeout(WAIT_SECONDS):
        while await _said(app) != "a\nb":
            await asyncio.wait([first], timeout=0.002)
    first.cancel()
    assert (await outcome(second))["message"] == "a\nb"


async def _said(app: Fairlane) -> str | None:
    tasks = (await app.tasks(session="chat"))["tasks"]
    text: str | None = tasks[0]["params"]["message"] if tasks else None
    return text


# --- the end of the node --------------------------------------------------------------------------


async def test_a_draining_node_refuses_and_lets_what_runs_finish() -> None:
    async with Fairlane(MEMORY, drain_seconds=WAIT_SECONDS) as app:
        chat = Chat(app)
        running, waiting = await chat.say("1"), await chat.say("2")
        await chat.room.until(lambda: chat.room.inside == 1)
        draining = asyncio.create_task(app.drain())
        while not app.node.draining:
            await asyncio.wait([draining], timeout=0.002)
        with pytest.raises(errors.Draining) as caught:
            await outcome(await chat.say("3"))
        assert caught.value.code == "draining"
        await chat.room.let_out("1")
        assert await outcome(running) == "1"
        with pytest.raises(errors.Draining):
            await outcome(waiting)
        await draining
        assert chat.room.began == ["1"]


async def test_a_function_that_does_not_finish_in_time_is_interrupted() -> None:
    async with Fairlane(MEMORY, drain_seconds=0) as app:
        chat = Chat(app)
        calling = await chat.say("1")
        await chat.room.until(lambda: chat.room.inside == 1)
    with pytest.raises(errors.Draining):
        await outcome(calling)
    assert chat.room.inside == 0


async def test_a_function_of_a_program_that_is_gone_ends_with_an_error(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    gone = Fairlane(store, drain_seconds=0)
    await gone.start()
    await gone.pause_lane("main")
    calling = await Chat(gone).say("1")
    task_id = (await gone.tasks(session="chat"))["tasks"][0]["taskId"]
    await _crash(gone, calling)
    async with Fairlane(store, drain_seconds=0) as app:
        following = asyncio.create_task(app.schedule(session="chat", fn=lambda _: "well"))
        await app.resume_lane("main")
        assert await outcome(following) == "well"
        shown = await app.show(task_id)
        assert (shown["state"], shown["attempts"]) == ("failed", 1)
        assert shown["error"].startswith(
            "the program that should have run this function has exited"
        )


async def _crash(app: Fairlane, calling: asyncio.Task[Any]) -> None:
    """What a killed process leaves behind: the store as it was at that moment."""
    await asyncio.to_thread(app.node.stop)
    calling.cancel()
    with contextlib.suppress(asyncio.CancelledError, errors.FairlaneError):
        await calling
    await app.stop()


# --- how full the conversation is -----------------------------------------------------------------


class Context:
    """What a program knows about its conversations."""

    def __init__(self) -> None:
        self.tokens = 0
        self.asked: list[str] = []

    def __call__(self, session: str) -> tuple[int, int]:
        self.asked.append(session)
        return self.tokens, 100


async def test_a_full_conversation_goes_one_by_one_until_it_falls() -> None:
    context = Context()
    async with Fairlane(MEMORY, token_estimate=context, drain_seconds=0) as app:
        chat = Chat(app, max_concurrent=3)
        context.tokens = 59
        calls = [await chat.say("1"), await chat.say("2")]
        await chat.room.until(lambda: chat.room.inside == 2)
        context.tokens = 60
        calls += [await chat.say(name) for name in "345"]
        assert chat.room.inside == 2  # those that run go on
        await chat.room.let_out("1")
        assert await outcome(calls[0]) == "1"
        shape = await app.session("chat")
        assert (shape["throttled"], len(shape["waiting"])) == (True, 3)
        context.tokens = 10
        await chat.room.let_out("2")
        await chat.room.until(lambda: chat.room.inside == 3)
        await chat.room.let_out()
        assert await outcome(asyncio.create_task(_all(calls))) == list("12345")
        assert (await app.session("chat"))["usage"] == {"tokens": 10, "contextWindow": 100}
        assert context.asked == ["chat"] * 10


async def test_an_estimate_may_be_async_and_may_know_nothing() -> None:
    async def estimate(session: str) -> tuple[int, int] | None:
        return (1, 2) if session == "known" else None

    async with Fairlane(MEMORY, token_estimate=estimate, drain_seconds=0) as app:
        for session in ("known", "unknown"):
            await outcome(app.schedule(session=session, handler="echo"))
        assert (await app.session("known"))["usage"] == {"tokens": 1, "contextWindow": 2}
        with pytest.raises(errors.NotFound):
            await app.session("unknown")


@pytest.mark.parametrize("wrong", [ValueError("lost count"), "abc", (1, 0), (-1, 5), 7])
async def test_an_estimate_that_goes_wrong_is_logged_and_ignored(
    caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    def estimate(_: str) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    async with Fairlane(MEMORY, token_estimate=estimate, drain_seconds=0) as app:
        with caplog.at_level(logging.WARNING, "fairlane.scheduling"):
            assert await outcome(app.schedule(session="s", fn=lambda _: 1)) == 1
    assert (
        len(
            [
                line
                for line in caplog.messages
                if "cannot estimate the context usage of session 's'" in line
            ]
        )
        == 2
    )
