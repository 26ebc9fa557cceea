"""A front and the process that writes, in one event loop: leases, news, limits, the codec."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlane import config
from fairlane.cli.fronts import Reception, started
from fairlane.clock import ManualClock
from fairlane.core.access import ALL, TRUSTED, Token
from fairlane.core.errors import Draining, InvalidPolicy, RateLimited, Unauthenticated
from fairlane.embedded.app import Fairlane
from fairlane.engine import commands, resource_commands
from fairlane.engine.codec import RemoteFailure, dumps, loads
from fairlane.engine.commands import (
    Complete,
    CreateToken,
    Fail,
    Lease,
    Report,
    RevokeToken,
    SetPolicy,
)
from fairlane.engine.fronts import CONFIRM_SECONDS
from fairlane.engine.node import News
from fairlane.engine.reads.inbox import InboxView
from fairlane.engine.resource_commands import Permit, PermitGranted, SettlePermit
from fairlane.engine.verbs.tokens import new_token
from fairlane.http.app import HttpApp
from fairlane.http.cross_site import Doorkeeper
from fairlane.http.messages import Answer, HttpRequest, Stream
from fairlane.http.server import HttpServer
from fairlane.schema.leases import LEASE, LeaseTasks
from fairlane.services import inbox_reads, presence, task_streams
from fairlane.services.catalog import perform
from fairlane.store.tables import presence as presence_table
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.http.fronted import Fronted, fronted

ONE = Lease("w", None, frozenset(), 1, None, any_handler=True, until=None)


@pytest.fixture
async def app(store_url: str) -> AsyncIterator[Fairlane]:
    async with Fairlane(store_url, drain_seconds=0, clock=ManualClock()) as found:
        yield found


@pytest.fixture
async def front(app: Fairlane) -> AsyncIterator[Fronted]:
    async with fronted(app) as found:
        yield found


async def state(app: Fairlane, task_id: str) -> str:
    return (await app.show(task_id)).state


# -------------------------------------------------------------------- leases


async def test_leases_that_a_dead_front_has_not_delivered_are_released(
    app: Fairlane, front: Fronted
) -> None:
    task = await app.submit(handler="nobody-here")
    (grant,) = await front.node.writer.ask(ONE)
    assert grant.task.id == task.id
    front.link.close()
    await eventually_state(app, task.id, "queued")
    assert (await app.show(task.id)).attempts == 0


async def test_leases_that_were_delivered_outlive_their_front(
    app: Fairlane, front: Fronted
) -> None:
    task = await app.submit(handler="nobody-here")
    request = LeaseTasks(worker="w", limit=1)
    found = await perform(front.node, TRUSTED, LEASE, request)
    assert found.count == 1
    other = await app.submit(handler="nobody-here")
    await front.node.writer.ask(ONE)  # not delivered; whatever came before it has arrived
    front.link.close()
    await eventually_state(app, other.id, "queued")
    assert await state(app, task.id) == "assigned"


def connections(app: Fairlane) -> list[str]:
    reader = app.node.store.reader()
    try:
        return presence_table.of_worker(reader, "w", None)
    finally:
        reader.close()


async def test_the_connections_of_workers_to_a_dead_front_are_forgotten(
    app: Fairlane, front: Fronted
) -> None:
    """Otherwise the worker seems to have another connection whenever the next one breaks."""
    held = presence.open_presence(front.node, TRUSTED, "w")
    await anext(held)
    assert len(connections(app)) == 1
    front.link.close()
    await eventually(lambda: not connections(app))
    await held.aclose()


async def test_connections_that_are_refused_or_never_begin_leave_nothing(app: Fairlane) -> None:
    http = HttpApp(app.node, lambda _: None, max_streams=1)
    _, text = await new(app)
    headers = {b"authorization": f"Bearer {text}".encode()}
    first, refused = [
        await http(HttpRequest("POST", "/workers/w/presence", headers=headers)) for _ in range(2)
    ]
    assert isinstance(refused, Answer)
    assert refused.status == 429
    assert isinstance(first, Stream)
    first.release()  # the worker has gone before the response began
    assert connections(app) == []


async def test_a_lease_that_waits_in_a_front_ends_with_its_caller(
    app: Fairlane, front: Fronted
) -> None:
    waiting = asyncio.create_task(front.node.writer.ask(ONE))
    await eventually(lambda: waits(app) == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    task = await app.submit(handler="nobody-here")
    (grant,) = await asyncio.wait_for(front.node.writer.ask(ONE), WAIT_SECONDS)
    assert grant.task.id == task.id


async def test_a_lease_that_waits_in_a_dead_front_takes_nothing(
    app: Fairlane, front: Fronted
) -> None:
    waiting = asyncio.create_task(front.node.writer.ask(ONE))
    await eventually(lambda: waits(app) == 1)
    front.link.close()
    with pytest.raises(ConnectionResetError):
        await waiting
    await eventually(lambda: waits(app) == 0)
    task = await app.submit(handler="nobody-here")
    assert await state(app, task.id) == "queued"


async def test_leases_are_refused_through_a_front_while_the_server_stops(
    app: Fairlane, front: Fronted
) -> None:
    app.node.draining = True  # the front has not heard of it yet
    with pytest.raises(Draining):
        await front.node.writer.ask(ONE)


@pytest.mark.parametrize("granted", [False, True], ids=["it waits", "its answer is on the way"])
async def test_a_permit_goes_back_when_its_caller_leaves_a_front(
    app: Fairlane, front: Fronted, *, granted: bool
) -> None:
    lock = {"profile": {"limits": [{"amount": 1}]}}
    await app.node.set_policy(SetPolicy({"resources": lock}, "test"))
    await asyncio.gather(*(app.submit(handler="nobody-here") for _ in range(2)))
    grants = await front.node.writer.ask(msgspec.structs.replace(ONE, limit=2, start=True))
    holder, other = ((one.task.seq, one.task.fencing_token) for one in grants)
    needs: dict[str, dict[str, Any]] = {"profile": {}}
    held = await front.node.writer.ask(Permit(*holder, needs))
    asked = Permit(*other, needs, until=app.clock.monotonic() + 1000)

    def waits_for_it() -> bool:
        return asked in [one.request for one in app.node.writer._waiting]

    waiting = asyncio.create_task(front.node.writer.ask(asked))
    await eventually(waits_for_it)
    if granted:
        front.read(go_on=False)
        app.node.writer.tell(SettlePermit(*holder, held.id, unused=True))
        await eventually(lambda: not waits_for_it())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    front.read(go_on=True)
    await front.node.writer.ask(SettlePermit(*holder, held.id, unused=True))
    again = await free_again(front, Permit(*holder, needs))
    assert again.task.seq == holder[0]


async def free_again(front: Fronted, permit: Permit) -> PermitGranted:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await front.node.writer.ask(permit)
            if isinstance(found, PermitGranted):
                return found
            await asyncio.sleep(0.001)


def waits(app: Fairlane) -> int:
    """How many leases wait that are not the built-in worker's."""
    found = [one for one in app.node.writer._waiting if one.request.worker == ONE.worker]
    return sum(not one.future.done() for one in found)


async def eventually_state(app: Fairlane, task_id: str, wanted: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await state(app, task_id) != wanted:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.001)


# -------------------------------------------------------------------- news


async def test_a_change_of_the_policy_is_answered_when_every_front_has_it(
    app: Fairlane, front: Fronted
) -> None:
    await app.node.set_policy(SetPolicy({"lanes": {"gpu": {"maxInflight": 1}}}, "test"))
    assert front.node.policy == app.node.policy
    assert "gpu" in front.node.policy.lanes


async def test_a_token_is_refused_by_a_front_as_soon_as_it_is_revoked(
    app: Fairlane, front: Fronted
) -> None:
    made, text = await new(app)
    http = HttpApp(front.node, lambda _: None)
    assert await status(http, text) == 200
    await app.node.writer.ask(RevokeToken(made.id))
    assert front.node.tokens._stale  # it has heard, and need not find out by looking
    asked = []
    for _ in range(20):  # some come while the first one reads the tokens
        asked.append(asyncio.create_task(status(http, text)))
        await asyncio.sleep(0)
    assert {await one for one in asked} == {401}


async def test_a_front_that_does_not_confirm_is_ended(
    app: Fairlane, front: Fronted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.engine.fronts.CONFIRM_SECONDS", 0.05)
    front.deaf = True
    made, _ = await new(app)
    assert made.id
    await eventually(lambda: front.link.closed)


async def test_a_front_that_is_starting_delays_no_change(app: Fairlane, front: Fronted) -> None:
    front.parent.begun = False
    front.deaf = True
    await asyncio.wait_for(new(app), CONFIRM_SECONDS / 2)
    await asyncio.sleep(0)
    assert not front.link.closed


async def test_a_front_that_is_silent_for_long_is_ended(
    app: Fairlane, front: Fronted, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert app.node.measure_fronts == front.links.measures
    await front.links.end_silent()
    assert not front.link.closed
    monkeypatch.setattr("fairlane.engine.fronts.SILENT_SECONDS", 0.05)
    front.deaf = True
    await front.links.end_silent()
    await eventually(lambda: front.link.closed)


@pytest.mark.slow
async def test_a_front_that_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlane.cli.fronts.WATCH_SECONDS", 0.05)
    monkeypatch.setattr("fairlane.engine.fronts.SILENT_SECONDS", 1.0)
    url = f"sqlite:///{tmp_path / 'fairlane.db'}"
    settings = config.load({"store": url, "processes": "2"}, environment={}, folder=tmp_path)
    async with Fairlane(url) as running:
        fronts = await started(settings, running, [], exposed=False)
        try:
            (hung,) = fronts.serving
            os.kill(hung.process.pid, signal.SIGSTOP)
            assert await hung.process.wait() == -signal.SIGKILL
            await eventually(lambda: bool(fronts.serving) and fronts.serving != [hung])
            assert fronts.serving[0].process.pid != hung.process.pid
        finally:
            await fronts.stop(1.0)


async def test_news_for_a_front_that_does_not_read_take_no_memory(
    app: Fairlane, front: Fronted
) -> None:
    task = await app.submit(handler="nobody-here")
    waiting = asyncio.create_task(front.node.wait(task.id, WAIT_SECONDS))
    await eventually(lambda: task.id in front.node._ends)
    front.read(go_on=False)
    many = News(ended=tuple(f"tsk_{number:032}" for number in range(1000)))
    while not front.parent.link.full:
        front.links.spread(many, False)
        await asyncio.sleep(0)
    before = front.unsent
    for _ in range(200):
        front.links.spread(many, False)
        await asyncio.sleep(0)
    await task.cancel()
    assert front.unsent - before < 100_000
    front.read(go_on=True)
    assert (await waiting).task.state == "cancelled"


async def test_the_end_of_a_task_reaches_a_wait_in_a_front(app: Fairlane, front: Fronted) -> None:
    task = await app.submit(handler="nobody-here")
    waiting = asyncio.create_task(front.node.wait(task.id, WAIT_SECONDS))
    await eventually(lambda: task.id in front.node._ends)
    await task.cancel()
    assert (await waiting).task.state == "cancelled"


async def test_a_message_wakes_the_read_that_waits_for_it_and_no_other_task_does(
    app: Fairlane, front: Fronted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = inbox_reads.read

    async def counting(*what: Any) -> InboxView:
        nonlocal reads
        reads += 1
        return await read(*what)

    monkeypatch.setattr(inbox_reads, "read", counting)
    said: Any = {"handler": "nobody-here", "debounce_ms": 0}
    await app.message("chat", "go", **said)
    (grant,) = await front.node.writer.ask(ONE)
    key = grant.task.seq, grant.task.fencing_token
    for node in (app.node, front.node):
        reading = asyncio.create_task(inbox_reads.awaited(node, key, 0, 60_000))
        await eventually(lambda node=node: "chat" in node._lines)
        before = reads
        for _ in range(20):
            await app.submit(handler="nobody-here")
        if not app.node.store.shared:
            assert reads <= before + 1, "its first look behind the waiter"
        sent = await app.message("chat", "now", mode="steer", **said)
        view = await reading
        assert [one.id for one in view.page.messages] == [sent.message_id]
        await app.withdraw_message("chat", sent.message_id)
    assert not app.node._lines


async def test_a_drain_reaches_the_waits_of_a_front(app: Fairlane, front: Fronted) -> None:
    task = await app.submit(handler="nobody-here")
    waiting = asyncio.create_task(front.node.wait(task.id, WAIT_SECONDS))
    await eventually(lambda: task.id in front.node._ends)
    await app.drain()
    assert (await waiting).task.state == "queued"
    assert front.node.draining
    assert front.node.drained


# -------------------------------------------------------------------- limits


async def test_the_rate_of_a_token_holds_over_all_processes(app: Fairlane, front: Fronted) -> None:
    _, text = await new(app, rate="3/s")
    ways = [HttpApp(app.node, lambda _: None), HttpApp(front.node, lambda _: None)]
    found = [await status(ways[number % 2], text) for number in range(6)]
    assert found == [200, 200, 200, 429, 429, 429]


async def test_the_lines_of_a_stream_count_against_the_rate_in_any_process(
    app: Fairlane, front: Fronted
) -> None:
    made, _ = await new(app, rate="10/s")
    await front.node.tokens.refresh()
    caller = made.caller()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(2):
            yield b'{"handler":"nobody-here"}\n' * 20

    found = task_streams.stream(front.node, caller, pieces())
    assert (await anext(found)).count(b"queued") == 20
    with pytest.raises(RateLimited):  # its time does not pass here
        await front.node.spend(caller)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(found), 0.2)


async def test_the_metrics_are_those_of_the_whole_server(app: Fairlane, front: Fronted) -> None:
    await app.submit(handler="nobody-here")
    with front.node.follow():
        here, there = [
            await HttpApp(node, lambda _: None)(HttpRequest("GET", "/metrics", named=TRUSTED))
            for node in (app.node, front.node)
        ]
    assert isinstance(here, Answer)
    assert isinstance(there, Answer)
    for answer in (here, there):
        text = answer.shape.body.decode()
        assert "fairlane_processes 2\n" in text
        assert "fairlane_stream_clients 1\n" in text
        assert 'fairlane_tasks_submitted_total{lane="main"} 1\n' in text


async def new(app: Fairlane, **fields: Any) -> tuple[Token, str]:
    kept, text = new_token(Token(0, "", "t", "", " ".join(sorted(ALL)), 0, **fields))
    return await app.node.writer.ask(CreateToken(kept)), text


async def status(http: HttpApp, token: str) -> int:
    request = HttpRequest("GET", "/tasks", headers={b"authorization": f"Bearer {token}".encode()})
    found = await http(request)
    assert isinstance(found, Answer)
    return found.status


# -------------------------------------------------------------------- connections


class Gone:
    """A front that has died, which the process that writes does not know yet."""

    def give(self, _: socket.socket) -> bool:
        return False


@pytest.mark.parametrize("serving", [[], [Gone()]])
async def test_a_connection_that_no_front_takes_is_served_by_the_process_that_writes(
    app: Fairlane, serving: list[Any]
) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host, port = listener.getsockname()
    http = HttpServer(HttpApp(app.node, lambda _: None), Doorkeeper([f"{host}:{port}"]))
    fronts: Any = SimpleNamespace(serving=serving)
    reception = Reception(listener, http, fronts)
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET /health/live HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            line = await asyncio.wait_for(reader.readline(), WAIT_SECONDS)
            assert line == b"HTTP/1.1 200 OK\r\n"
            writer.close()
    finally:
        reception.close()
        await http.stop(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, port)


# -------------------------------------------------------------------- the codec


@pytest.mark.parametrize(
    "error",
    [
        Draining("later", retry_after_ms=5),
        InvalidPolicy(["a", "b"]),
        RateLimited("slow", details={"rate": "1/s"}),
        Unauthenticated("no"),
    ],
)
def test_an_error_arrives_as_it_was(error: Exception) -> None:
    found = loads(dumps(error))
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert str(found) == str(error)


def test_an_unforeseen_error_arrives_as_a_failure() -> None:
    found = loads(dumps(ZeroDivisionError("x")))
    assert isinstance(found, RemoteFailure)
    assert str(found) == "ZeroDivisionError: x"


@pytest.mark.parametrize("value", [None, 3, "x", [], [1, None], TRUSTED, [ONE, [ONE]]])
def test_a_value_arrives_as_it_was(value: object) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("tag", ["os:system", "fairlane.config:load", "builtins:eval"])
def test_only_types_of_this_package_are_decoded(tag: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        loads(msgspec.msgpack.encode((tag, {})))


@pytest.mark.parametrize(
    "command",
    [
        kind
        for module in (commands, resource_commands)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, msgspec.Struct)
        and kind is not msgspec.Struct
    ],
)
def test_every_command_has_a_decoder(command: type) -> None:
    assert msgspec.msgpack.Decoder(command).type is command


async def test_reports_of_several_leases_reach_the_writer(app: Fairlane, front: Fronted) -> None:
    tasks = [await app.submit(handler="nobody-here") for _ in range(2)]
    grants = await front.node.writer.ask(msgspec.structs.replace(ONE, limit=2))
    keys = [(grant.task.seq, grant.task.fencing_token) for grant in grants]
    reports = [Complete(*keys[0], '"well"', begun=True), Fail(*keys[1], "no", begun=True)]
    answers = await front.node.writer.ask(Report(reports))
    assert [answer.state for answer in answers] == ["done", "queued"]
    assert (await app.show(tasks[0].id)).result == "well"


async def test_a_request_that_cannot_be_read_fails_alone(app: Fairlane, front: Fronted) -> None:
    class Unknown(msgspec.Struct):
        """Not of this package."""

    with pytest.raises(RemoteFailure):
        await front.link.ask(Unknown())[1]
    task = await app.submit(handler="nobody-here")
    (grant,) = await front.node.writer.ask(ONE)
    assert grant.task.id == task.id
