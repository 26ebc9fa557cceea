"""Responses that are read as they come, and what happens to connections besides."""

from __future__ import annotations

import asyncio
import select
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from fairlane.http1.asynchronous import (
    _AHEAD_BYTES_MAX,
    AsyncPool,
    Pinning,
    Resolver,
    SystemResolver,
    dial,
)
from fairlane.http1.blocking import BlockingPool
from fairlane.http1.keeping import KeptConnections
from fairlane.http1.messages import EncodedRequest, NameNotFound, Origin, encode_request
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.http1.peer import DRIP, ENDLESS, HOLD, IDLE_SECONDS, Peer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def get(peer: Peer) -> EncodedRequest:
    return encode_request(peer.origin, "GET", "/", {}, None, repeatable=True)


@asynccontextmanager
async def pool(
    *, idle_seconds: float = IDLE_SECONDS, resolver: Resolver | None = None
) -> AsyncIterator[AsyncPool]:
    one = AsyncPool(
        resolver or SystemResolver(), idle_seconds=idle_seconds, connect_seconds=WAIT_SECONDS
    )
    yield one
    await one.close()


# --- streams --------------------------------------------------------------------------------------


def test_a_blocking_stream_hands_out_each_piece_before_the_next_is_sent() -> None:
    more = threading.Event()
    one = BlockingPool(idle_seconds=IDLE_SECONDS)
    with Peer([[STREAM, b"3\r\none\r\n", more, b"3\r\ntwo\r\n0\r\n\r\n"], [OK]]) as peer:
        answer = one.open(get(peer), seconds=WAIT_SECONDS, bytes_max=None, whole=False)
        pieces = iter(answer)
        assert next(pieces) == b"one"
        more.set()
        assert list(pieces) == [b"two"]
        assert one.open(get(peer), seconds=WAIT_SECONDS, bytes_max=None).read() == b"ok"
        one.close()
    assert peer.connections == 1


def test_a_blocking_stream_that_is_left_disconnects() -> None:
    one = BlockingPool(idle_seconds=IDLE_SECONDS)
    with Peer([[STREAM, b"3\r\none\r\n", HOLD]]) as peer:
        answer = one.open(get(peer), seconds=WAIT_SECONDS, bytes_max=None, whole=False)
        pieces = iter(answer)
        assert next(pieces) == b"one"
        answer.close()
        peer.until(lambda: peer.ended == 1)
        one.close()


def test_a_blocking_stream_waits_for_each_piece_with_a_limit() -> None:
    one = BlockingPool(idle_seconds=IDLE_SECONDS)
    with Peer([[STREAM, DRIP(b"1\r\nx\r\n")]], [[STREAM, HOLD]]) as peer:
        answer = one.open(get(peer), seconds=WAIT_SECONDS, bytes_max=None, whole=False)
        pieces = iter(answer)
        ends = [(next(pieces), answer._end)[1] for _ in range(3)]
        assert ends == sorted(set(ends))
        answer.close()
        answer = one.open(get(peer), seconds=0.2, bytes_max=None, whole=False)
        with pytest.raises(TimeoutError):
            next(iter(answer))
        one.close()


async def test_a_stream_hands_out_each_piece_before_the_next_is_sent() -> None:
    more = threading.Event()
    with Peer([[STREAM, b"3\r\none\r\n", more, b"3\r\ntwo\r\n0\r\n\r\n"], [OK]]) as peer:
        async with pool() as one:
            async with one.exchange(get(peer), seconds=None, bytes_max=None) as answer:
                assert await anext(answer) == b"one"
                more.set()
                assert [piece async for piece in answer] == [b"two"]
            async with one.exchange(get(peer), seconds=None, bytes_max=None) as answer:
                assert await answer.read() == b"ok"
    assert peer.connections == 1


async def test_a_stream_waits_for_each_piece_and_not_for_ever() -> None:
    with Peer([[STREAM, b"3\r\none\r\n", HOLD]], [[DRIP(b"HTTP/1.1 100 Wait\r\n\r\n")]]) as peer:
        async with pool() as one:
            request = get(peer)
            exchange = one.exchange(request, seconds=None, bytes_max=None, wait_seconds=0.2)
            async with exchange as answer:
                assert await anext(answer) == b"one"
                with pytest.raises(TimeoutError):
                    await anext(answer)
            with pytest.raises(TimeoutError):  # the head, too, is waited for as a whole
                async with one.exchange(request, seconds=None, bytes_max=None, wait_seconds=0.2):
                    pass
            await asyncio.to_thread(peer.until, lambda: peer.ended == 2)


@pytest.mark.parametrize(
    "steps", [[HOLD], [b"HTTP/1.1 200 OK\r\n", HOLD], [STREAM, b"3\r\none\r\n", HOLD]]
)
async def test_cancelling_disconnects(steps: Sequence[bytes]) -> None:
    with Peer([steps]) as peer:
        async with pool() as one:

            async def read() -> bytes:
                async with one.exchange(get(peer), seconds=60, bytes_max=None) as answer:
                    return await answer.read()

            reading = asyncio.create_task(read())
            await asyncio.to_thread(peer.until, lambda: len(peer.requests) == 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await asyncio.to_thread(peer.until, lambda: peer.ended == 1)


async def test_a_reader_that_is_slow_holds_up_the_sender() -> None:
    """Data that was not read does not pile up in memory."""
    with Peer([[b"HTTP/1.1 200 OK\r\n\r\n", ENDLESS(b"x" * 65_536)]]) as peer:
        async with (
            pool() as one,
            one.exchange(get(peer), seconds=None, bytes_max=None) as answer,
        ):
            connection = answer._connection
            await eventually(lambda: connection._paused)
            assert sum(map(len, connection.response.body)) < 3 * _AHEAD_BYTES_MAX
            assert await anext(answer)
            assert await anext(answer)  # and continues after it was read


async def test_a_response_that_comes_before_the_request_was_sent_ends_its_connection() -> None:
    full = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    greedy = Peer(greeting=b"")  # reads one head, and no body
    body = b"x" * 20_000_000
    with greedy as peer:
        async with pool() as one:
            request = encode_request(peer.origin, "POST", "/", {}, body)

            def refuse() -> None:
                peer.until(lambda: peer.connections == 1)
                select.select(peer._open[:1], [], [], WAIT_SECONDS)  # the request has begun
                peer._open[0].sendall(full)

            refusing = asyncio.create_task(asyncio.to_thread(refuse))
            async with one.exchange(request, seconds=60, bytes_max=None) as answer:
                assert answer.status == 413
            await refusing
            assert len(one._kept) == 0


# --- where connections lead -----------------------------------------------------------------------


class Pins:
    """Names the addresses of each request, and refuses some peers."""

    def __init__(self, *pinned: Sequence[str] | Pinning, refused: str = "") -> None:
        self._pinned = list(pinned)
        self._refused = refused

    def pinned(self, origin: Origin) -> Sequence[str] | Pinning:
        del origin
        return self._pinned.pop(0)

    async def addresses(self, origin: Origin) -> list[str]:
        del origin
        return ["127.0.0.1"]

    def verify(self, origin: Origin, *, peer: str, own: str) -> None:
        assert (origin.host, own) == ("127.0.0.1", "127.0.0.1")
        if peer == self._refused:
            raise PermissionError("no such file")


async def test_a_kept_connection_is_used_only_if_it_leads_where_the_request_may_go() -> None:
    pins = Pins(["127.0.0.1"], ["127.0.0.1"], Pinning.LOOKUP, Pinning.ANYWHERE, ["127.0.0.2"])
    with Peer([[OK]] * 4) as peer:
        async with pool(resolver=pins) as one:
            for _ in range(4):
                async with one.exchange(get(peer), seconds=60, bytes_max=None) as answer:
                    assert await answer.read() == b"ok"
            with pytest.raises(ConnectionRefusedError):
                async with one.exchange(get(peer), seconds=60, bytes_max=None):
                    pass
    assert (peer.connections, len(peer.requests)) == (1, 4)


async def test_a_peer_that_is_refused_gets_no_byte() -> None:
    with Peer([[OK]]) as peer:
        async with pool(resolver=Pins(["127.0.0.1"], refused="127.0.0.1")) as one:
            with pytest.raises(PermissionError):
                async with one.exchange(get(peer), seconds=60, bytes_max=None):
                    pass
            await asyncio.to_thread(peer.until, lambda: peer.ended == 1)
    assert peer.requests == []


async def test_the_first_address_that_answers_is_used() -> None:
    with Peer([[OK]]) as peer:
        with await dial(["127.0.0.9", "127.0.0.8", "127.0.0.1"], peer.port) as dialled:
            assert dialled.getpeername() == ("127.0.0.1", peer.port)
        with pytest.raises(ConnectionRefusedError):
            await dial(["127.0.0.9", "127.0.0.8"], peer.port)
        with pytest.raises(NameNotFound):
            await dial([], peer.port)


async def test_a_name_without_an_address_is_reported() -> None:
    with pytest.raises(NameNotFound):
        await SystemResolver().addresses(Origin("no such name", 80))


# --- what is kept ---------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_when_its_time_is_up() -> None:
    with Peer([[OK, HOLD]]) as peer:
        async with pool(idle_seconds=0.05) as one:
            async with one.exchange(get(peer), seconds=60, bytes_max=None) as answer:
                assert await answer.read() == b"ok"
            await eventually(lambda: peer.ended == 1)
            assert len(one._kept) == 0


class Line:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


HERE, THERE = Origin("here.test", 80), Origin("there.test", 80)


def test_the_newest_connection_of_an_origin_is_taken_first() -> None:
    kept: KeptConnections[Line] = KeptConnections(lambda: 0.0, seconds=1)
    first, second, other = Line(), Line(), Line()
    kept.put(HERE, first)
    kept.put(THERE, other)
    kept.put(HERE, second)
    assert [kept.take(HERE) for _ in range(3)] == [second, first, None]
    assert kept.take(THERE) is other
    assert kept.take(Origin("there.test", 80, tls=True)) is None
    assert len(kept) == 0


def test_what_was_idle_for_too_long_is_closed_and_not_handed_out() -> None:
    now = [0.0]
    kept: KeptConnections[Line] = KeptConnections(lambda: now[0], seconds=10)
    old, older, young = Line(), Line(), Line()
    kept.put(HERE, older)
    kept.put(HERE, old)
    now[0] = 5.0
    kept.put(THERE, young)
    now[0] = 10.0
    assert kept.take(HERE) is None
    assert (old.closed, older.closed, young.closed) == (True, True, False)
    kept.close_expired()
    assert len(kept) == 1
    now[0] = 15.0
    kept.close_expired()
    assert (young.closed, len(kept)) == (True, 0)


def test_so_many_are_kept_of_one_origin_and_of_all() -> None:
    kept: KeptConnections[Line] = KeptConnections(lambda: 0.0, seconds=1, per_origin=2, total=3)
    here = [Line() for _ in range(3)]
    for line in here:
        kept.put(HERE, line)
    assert [line.closed for line in here] == [False, False, True]
    there = [Line() for _ in range(2)]
    for line in there:
        kept.put(THERE, line)
    assert [line.closed for line in (*here, *there)] == [True, False, True, False, False]
    assert len(kept) == 3


def test_after_the_end_nothing_is_kept() -> None:
    kept: KeptConnections[Line] = KeptConnections(lambda: 0.0, seconds=1)
    before, after, gone = Line(), Line(), Line()
    kept.put(HERE, before)
    kept.put(HERE, gone)
    kept.forget(gone)
    kept.forget(gone)
    kept.close()
    kept.put(HERE, after)
    assert (before.closed, after.closed, gone.closed, len(kept)) == (True, True, False, 0)
