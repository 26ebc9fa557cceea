"""Stopping: the first signal drains, the second ends at once, and neither loses anything."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.e2e import checks
from tests.e2e.asking import Asker
from tests.e2e.processes import until
from tests.fakes.signals import ignore_like_nohup
from tests.fakes.waiting import WAIT_SECONDS, steadily, within

if TYPE_CHECKING:
    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


def key(name: str) -> dict[str, str]:
    """What `checks` knows a task by."""
    return {"key": name}


async def sleeping(asker: Asker, *names: str, ms: int, **body: object) -> list[str]:
    params = [{"ms": ms, **key(name)} for name in names]
    return [await asker.submit(handler="sleep", params=one, **body) for one in params]


async def hanging(asker: Asker, *names: str, tab: str) -> list[str]:
    """Actions in one tab, one after the other, of which each goes on until it is let go."""
    params = [{**key(name), "fake": {"hang": True}} for name in names]
    return [await asker.submit(action="click", tabId=tab, params=one) for one in params]


async def let_go(tabs: Program) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(f"{tabs.url}/__release")


def states(store: str) -> dict[str, tuple[str, int]]:
    """State and attempts of every task, from the store itself."""
    found = checks.finals(store)
    assert not [task.key for task in found if task.leased], "a lease is left behind"
    assert checks.disagreements(store) == []
    return {task.key: (task.state, task.attempts) for task in found}


async def until_stopping(server: Program) -> None:
    await until(
        lambda: "stopping" in server.output(), WAIT_SECONDS, lambda: "the signal was not heard"
    )


@BOTH_SIGNALS
async def test_a_signal_lets_what_runs_finish_and_keeps_what_waits(
    programs: Programs, store_url: str, number: signal.Signals
) -> None:
    tabs = programs.tab_instance("one", "other")
    await tabs.start()
    server = programs.server(store_url, "--instance", tabs.url, "--drain-seconds", "600")
    await server.start()
    async with Asker(server) as asker:
        running = await hanging(asker, "running", tab="one")
        first, _ = await hanging(asker, "first", "behind it", tab="other")
        await asker.submit(handler="nobody-has-it", params=key("waiting"))
        await asker.until_tasks([*running, first], state="running")
        server.send(number)
        await until_stopping(server)
        refused = await asker.post("/tasks", {"handler": "echo", "params": key("late")})
        assert (refused.status, refused.body["code"]) == (503, "draining")
        assert (await asker.get("/health/ready")).status == 503
        await asker.until_tasks([*running, first], state="running")
        await let_go(tabs)
    assert await server.end() == 0
    assert states(store_url) == {
        "running": ("done", 1),
        "first": ("done", 1),
        "behind it": ("queued", 0),
        "waiting": ("queued", 0),
    }
    with pytest.raises(aiohttp.ClientConnectorError):
        async with Asker(server) as asker:
            await asker.get("/health/live")


async def test_what_does_not_finish_in_time_is_queued_again_without_losing_an_attempt(
    programs: Programs, store_url: str
) -> None:
    server = programs.server(store_url, "--drain-seconds", "0.3")
    names: list[str] = []

    async def stop() -> None:
        names.append(f"long {len(names)}")
        await server.start()
        async with Asker(server) as asker:
            await asker.until_tasks(await sleeping(asker, names[-1], ms=600_000), state="running")
        with within(5):
            server.send(signal.SIGTERM)
            assert await server.end() == 0
        assert states(store_url) == dict.fromkeys(names, ("queued", 0))

    await steadily(stop)


async def test_an_action_that_does_not_finish_in_time_fails_and_is_never_run_again(
    programs: Programs, store_url: str
) -> None:
    tabs = programs.tab_instance("tab")
    await tabs.start()
    server = programs.server(store_url, "--instance", tabs.url, "--drain-seconds", "0.3")
    await server.start()
    hang = {"params": {**key("first"), "fake": {"hang": True}}}
    async with Asker(server) as asker:
        first = await asker.submit(action="click", tabId="tab", **hang)
        await asker.submit(action="click", tabId="tab", params=key("second"))
        await asker.until_tasks([first], state="running")
    server.send(signal.SIGTERM)
    assert await server.end() == 0
    assert states(store_url) == {"first": ("failed", 1), "second": ("queued", 0)}
    await server.start()
    async with Asker(server) as asker, aiohttp.ClientSession() as session:
        (second,) = [task.id for task in checks.finals(store_url) if task.key == "second"]
        await asker.until_tasks([second], state="done")
        async with session.get(f"{tabs.url}/__record") as record:
            seen = [request["body"]["key"] for request in (await record.json())["requests"]]
    assert seen == ["first", "second"]


async def test_a_waiter_for_a_task_is_answered_when_the_server_stops(
    programs: Programs, store_url: str
) -> None:
    tabs = programs.tab_instance("tab")
    await tabs.start()
    server = programs.server(store_url, "--instance", tabs.url, "--drain-seconds", "600")

    async def stop() -> None:
        await server.start()
        async with Asker(server) as asker:
            (running,) = await hanging(asker, "running", tab="tab")
            waiting = await asker.submit(handler="nobody-has-it", params=key("waiting"))
            await asker.until_tasks([running], state="running")
            waits = [
                asyncio.create_task(asker.get(f"/tasks/{task}/wait?timeoutMs=60000"))
                for task in (running, waiting)
            ]
            await asker.get("/health/live")
            with within(4):
                server.send(signal.SIGTERM)
                await until_stopping(server)
                await let_go(tabs)
                answers = await asyncio.gather(*waits)
                assert await server.end() == 0
            assert [(one.status, one.body["state"]) for one in answers] == [
                (200, "done"),
                (200, "queued"),
            ]
        assert "Traceback" not in server.output()

    await steadily(stop)


async def test_a_second_signal_ends_it_at_once(programs: Programs, store_url: str) -> None:
    server = programs.server(store_url, "--drain-seconds", "600")
    names: list[str] = []

    async def end() -> None:
        names.append(f"long {len(names)}")
        await server.start()
        async with Asker(server) as asker:
            (task,) = await sleeping(asker, names[-1], ms=600_000)
            await asker.until_tasks([task], state="running")
            server.send(signal.SIGTERM)
            await until_stopping(server)
            with within(2):
                server.send(signal.SIGINT)
                assert await server.end() != 0
        assert "Traceback" not in server.output()
        assert checks.disagreements(store_url) == []
        found = {task.key: (task.state, task.attempts) for task in checks.finals(store_url)}
        assert found[names[-1]] == ("running", 1)

    await steadily(end)


async def test_closing_the_terminal_drains(programs: Programs, store_url: str) -> None:
    tabs = programs.tab_instance("tab")
    await tabs.start()
    server = programs.server(store_url, "--instance", tabs.url, "--drain-seconds", "600")
    await server.start()
    async with Asker(server) as asker:
        running = await hanging(asker, "running", tab="tab")
        await asker.until_tasks(running, state="running")
        server.send(signal.SIGHUP)
        await until_stopping(server)
        server.send(signal.SIGHUP)  # the shell sends one, and the system another
        await asker.until_tasks(running, state="running")
        await let_go(tabs)
    assert await server.end() == 0
    assert states(store_url) == {"running": ("done", 1)}


async def test_a_server_that_nohup_starts_outlives_its_terminal_and_stops_on_sigterm(
    programs: Programs, store_url: str
) -> None:
    server = programs.server(store_url, "--drain-seconds", "600")
    server.before = ignore_like_nohup
    await server.start()
    async with Asker(server) as asker:
        server.send(signal.SIGHUP)
        (task,) = await sleeping(asker, "short", ms=1)
        await asker.until_tasks([task], state="done")
    server.send(signal.SIGTERM)
    assert await server.end() == 0
    assert states(store_url) == {"short": ("done", 1)}


async def test_a_drain_under_load_leaves_no_lease_behind(
    programs: Programs, store_url: str
) -> None:
    """The moment matters: work may be handed out just when the signal comes."""
    server = programs.server(store_url, "--drain-seconds", "5")
    acknowledged: list[str] = []
    for life in range(4):
        await server.start()
        async with Asker(server) as asker:
            clients = [
                asyncio.create_task(_submit_until_refused(asker, f"{life}.{n}", acknowledged))
                for n in range(6)
            ]
            wanted = len(acknowledged) + 40 + 17 * life
            await until(lambda n=wanted: len(acknowledged) >= n, 60, lambda: "no answers")  # type: ignore[misc]  # the default binds the loop's value
            server.send(signal.SIGTERM)
            await asyncio.gather(*clients)
            assert await server.end() == 0
        found = states(store_url)
        assert set(acknowledged) <= found.keys()
        assert {state for state, _ in found.values()} <= {"done", "queued"}


async def _submit_until_refused(asker: Asker, name: str, acknowledged: list[str]) -> None:
    number = 0
    while True:
        number += 1
        body = {"handler": "sleep", "params": {"ms": number % 20, **key(f"{name}.{number}")}}
        try:
            answer = await asker.post("/tasks", body)
        except (aiohttp.ClientError, OSError):
            return
        if answer.status != 202:
            assert answer.body["code"] == "draining", answer
            return
        acknowledged.append(f"{name}.{number}")
