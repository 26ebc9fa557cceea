"""A head that came before is not parsed again; what is answered is the same."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from fairlane.http.heads import HEAD_BYTES_MAX, HEADS_MAX, KnownHeads
from fairlane.http.messages import Answer, HttpRequest
from tests.hostile.echo import Echo
from tests.hostile.test_pieces import CHUNKS, JSON, LAST, bytes_of, said
from tests.hostile.wires import Door, Hurried, door

if TYPE_CHECKING:
    from fairlane.http.server import HttpServer

TURN_SECONDS = 0.002  # in which the server answers what it got
SIMPLE = f'POST /b HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: 7\r\n\r\n{{"a":1}}'
KNOWN = [
    SIMPLE,
    "GET /a?x=1 HTTP/1.1\r\nHost: %h\r\n\r\n",
    "HEAD /h HTTP/1.1\r\nHost: %h\r\nAccept: */*\r\n\r\n",
    f"PUT /%41 HTTP/1.1\r\nHost: %h\r\nAuthorization: Bearer x\r\n{JSON}Content-Length: 0\r\n\r\n",
    f"POST /early HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: 2\r\n\r\n{{}}",
]
PARSED = [
    f"POST /c HTTP/1.1\r\nHost: %h\r\n{JSON}{CHUNKS}",
    f"POST /d HTTP/1.1\r\nHost: %h\r\n{JSON}Idempotency-Key: k\r\nContent-Length: 2\r\n\r\n{{}}",
    f"POST /e HTTP/1.1\r\nHost: %h\r\n{JSON}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{{}}",
    f"POST /f HTTP/1.1\r\nHost: %h\r\nVia: a\r\nVia: b\r\n{JSON}Content-Length: 2\r\n\r\n{{}}",
    f"POST /g HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: 02\r\n\r\n{{}}",
    f"GET /{'x' * HEAD_BYTES_MAX} HTTP/1.1\r\nHost: %h\r\n\r\n",
]
REFUSED = [
    "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "POST /x HTTP/1.1\r\nHost: %h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    "GET / HTTP/1.1\r\nHost: %h\r\nOrigin: http://evil.example\r\n\r\n",
]
ENDS = [
    LAST,
    *REFUSED,
    "GET /z HTTP/1.0\r\nHost: %h\r\n\r\n",
    "BROKEN\r\n\r\n",
]


class Early(Echo):
    """Answers one path before it has read the body."""

    async def __call__(self, request: HttpRequest) -> Answer:
        if request.full_path == "/early":
            self.seen.append((request.method, request.full_path, -1))
            return Answer(200, {"early": True})
        return await super().__call__(request)


class Counting(Hurried):
    known: ClassVar[list[str]] = []  # paths of requests whose heads were not parsed

    def _take_known(self, head: Any, start: int, data: bytes) -> None:
        self.known.append(head.path)
        super()._take_known(head, start, data)


class _Nothing(KnownHeads):
    def note(self, *_: object) -> None:
        """Forget all of them."""


class Forgetful(Hurried):
    """Parses each head."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        server.heads = _Nothing(server.door)


@pytest.fixture(autouse=True)
def _start_at_nothing() -> None:
    Counting.known.clear()


async def told(
    entry: Door, turns: list[str], address: str = "127.0.0.1"
) -> list[tuple[int, bytes]]:
    """What is answered if each text arrives after the server could answer the one before."""
    pieces = [bytes_of(text, entry) for text in turns]
    return await said(entry, pieces, address=address, between=lambda: asyncio.sleep(TURN_SECONDS))


@pytest.mark.parametrize("text", KNOWN)
async def test_a_head_that_came_twice_is_not_parsed_again(text: str) -> None:
    echo = Early()
    async with door(echo, Counting) as entry:
        answers = await told(entry, [text, text, LAST])
        assert Counting.known == []
        answers = await told(entry, [*[text] * 5, LAST])
    assert len(Counting.known) == 5
    assert len(set(answers[:-1])) == 1
    assert len(answers) == 6
    assert len(set(echo.seen)) == 2
    assert len(echo.seen) == 9


@pytest.mark.parametrize("text", REFUSED)
async def test_a_known_head_is_refused_each_time(text: str) -> None:
    echo = Early()
    async with door(echo, Counting) as entry:
        answers = [await told(entry, [text, LAST]) for _ in range(5)]
    assert len(Counting.known) == 3
    assert len(answers[0]) == 1
    assert answers[0][0][0] in (403, 415, 421)
    assert all(one == answers[0] for one in answers)
    assert echo.seen == []


@pytest.mark.parametrize("text", PARSED)
async def test_other_heads_are_parsed_each_time(text: str) -> None:
    async with door(Early(), Counting) as entry:
        answers = [await told(entry, [text, LAST]) for _ in range(5)]
    assert Counting.known == []
    assert all(one == answers[0] for one in answers)


async def test_the_body_is_that_of_the_request(entry: Door, echo: Echo) -> None:
    bodies = [b'{"a":1}', b'{"b":2}', b"[1,2,3]", b"garbage", b'{"c":3}']
    heard = []

    async def app(request: HttpRequest) -> Answer:
        heard.append(await request.body())
        return Answer(200, {})

    async with door(app, Counting) as other:
        turns = [SIMPLE[:-7] + body.decode() for body in bodies]
        await told(other, [*turns, LAST])
    assert heard[:-1] == bodies
    assert Counting.known == ["/b"] * 3


async def test_a_request_inside_the_body_of_another_is_part_of_that_body() -> None:
    """A proxy may pass such a body on; nobody asked for the request in it."""
    echo = Early()
    async with door(echo, Counting) as entry:
        inner = bytes_of(SIMPLE, entry)
        outer = f"POST /outer HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: {len(inner)}\r\n\r\n"
        early = KNOWN[-1]
        await told(entry, [SIMPLE, SIMPLE, SIMPLE, early, early, LAST])
        assert Counting.known == ["/b"]
        echo.seen.clear()
        # The second is answered before the rest of its body comes together with the next head.
        await told(entry, [outer, SIMPLE, early[:-1], early[-1] + outer, SIMPLE, LAST])
    paths = [(path, size) for _, path, size in echo.seen]
    assert paths == [("/outer", len(inner)), ("/early", -1), ("/outer", len(inner)), ("/last", 0)]
    assert Counting.known == ["/b"]


async def test_a_host_that_one_address_admits_is_not_admitted_on_another() -> None:
    async with door(Early(), Counting, address="0.0.0.0") as entry:
        text = SIMPLE.replace("%h", f"127.0.0.3:{entry.port}")
        turns = [text, text, text, LAST]
        told_there = await told(entry, turns, "127.0.0.3")
        told_here = await told(entry, [text], "127.0.0.1")
    assert [status for status, _ in told_there] == [200] * 4
    assert [status for status, _ in told_here] == [421]
    assert Counting.known == ["/b"] * 2


async def test_the_number_of_known_heads_is_bounded() -> None:
    async with door(Early(), Counting) as entry:
        for number in range(HEADS_MAX + 5):
            text = f"GET /{number} HTTP/1.1\r\nHost: %h\r\n\r\n"
            await asyncio.gather(*(_ask(entry, text) for _ in range(2)))
    assert len(Counting.known) < HEADS_MAX


async def _ask(entry: Door, text: str) -> None:
    wire = await entry.open()
    await wire.send(bytes_of(text, entry))
    await wire._reader.readuntil(b"\r\n\r\n")
    await wire.close()


@pytest.mark.parametrize("seed", range(60))
async def test_the_same_is_answered_as_by_a_server_that_parses_each_head(seed: int) -> None:
    chance = random.Random(seed)
    turns = [KNOWN[seed % 5], *(part for _ in range(10) for part in _part(chance))]
    turns.append(chance.choice(ENDS))
    first, second = Early(), Early()
    async with door(first, Counting) as knows, door(second, Forgetful) as parses:
        for text in KNOWN * 3:
            await told(knows, [text, LAST])
        first.seen.clear()
        Counting.known.clear()
        answers = await told(knows, turns)
        assert Counting.known
        assert answers == [
            (status, body.replace(parses.host.encode(), knows.host.encode()))
            for status, body in await told(parses, turns)
        ]
    assert first.seen == second.seen


def _part(chance: random.Random) -> list[str]:
    """One request or some, in one piece or in some, with or without something stray."""
    text = chance.choice(KNOWN * 3 + PARSED)
    other = chance.choice(KNOWN)
    place = chance.randint(1, len(text) - 1)
    return chance.choice(
        [
            [text],
            [text],
            [text],
            [text + other],
            [text[:place], text[place:]],
            [text[:place], text[place:] + other],
            [text + other[:9], other[9:]],
            ["\r\n" + text],
            [text + "\r\n"],
        ]
    )
