"""The same bytes give the same responses, however the network cuts them."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING
from urllib.parse import unquote

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.http.connection import _split
from tests.hostile.wires import SECONDS_MAX, Said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.hostile.echo import Echo
    from tests.hostile.wires import Door

JSON = "Content-Type: application/json\r\n"
CHUNKS = 'Transfer-Encoding: chunked\r\n\r\n3\r\n{"a\r\n4\r\n":1}\r\n0\r\n\r\n'
REQUESTS = [
    "GET /a HTTP/1.1\r\nHost: %h\r\n\r\n",
    "HEAD /h?x=1 HTTP/1.1\r\nHost: %h\r\nAccept: */*\r\n\r\n",
    f'POST /b HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: 7\r\n\r\n{{"a":1}}',
    f"POST /c HTTP/1.1\r\nHost: %h\r\n{JSON}{CHUNKS}",
    f"PUT /%41 HTTP/1.1\r\nHost: %h\r\n{JSON}Content-Length: 0\r\n\r\n",
]
LAST = "GET /last HTTP/1.1\r\nHost: %h\r\nConnection: close\r\n\r\n"
REFUSED = [
    "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    f"POST /x HTTP/1.1\r\nHost: %h\r\n{JSON}{JSON}Content-Length: 2\r\n\r\n{{}}",
    "POST /x HTTP/1.1\r\nHost: %h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
    f"POST /x HTTP/1.1\r\nHost: %h\r\n{JSON}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}XX",
]


async def _read_each() -> None:
    for _ in range(3):  # so that the server reads a piece before the next
        await asyncio.sleep(0)


async def said(
    entry: Door,
    pieces: list[bytes],
    *,
    address: str = "127.0.0.1",
    between: Callable[[], Awaitable[None]] = _read_each,
) -> list[tuple[int, bytes]]:
    """What is answered to pieces that arrive one by one."""
    wire = await entry.open(address)
    reading = asyncio.create_task(wire._reader.read())
    try:
        for piece in pieces:
            if wire._writer.is_closing():
                break
            wire._writer.write(piece)
            await between()
        async with asyncio.timeout(SECONDS_MAX):
            raw = await reading
    finally:
        reading.cancel()
        await wire.close()
    return [(one.status, one.body) for one in _parsed(raw)]


def _parsed(raw: bytes) -> list[Said]:
    """Of a response to HEAD, which is known by its length, no body comes."""
    found = []
    while raw:
        head, _, raw = raw.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = b"" if raw.startswith(b"HTTP/1.1 ") else raw[:length]
        raw = raw[len(body) :]
        found.append(Said(int(head[9:12]), {}, body))
    return found


def bytes_of(text: str, entry: Door) -> bytes:
    return text.replace("%h", entry.host).encode()


def cut(raw: bytes, *at: int) -> list[bytes]:
    places = [0, *sorted(at), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(places) if a < b]


@pytest.mark.parametrize("text", [*REQUESTS[2:4], *REFUSED])
async def test_a_request_cut_anywhere_has_the_same_response(
    entry: Door, echo: Echo, text: str
) -> None:
    last = LAST if text not in REFUSED else ""
    raw = bytes_of(text + last, entry)
    whole = await said(entry, [raw])
    assert len(whole) == (2 if last else 1)
    seen = len(echo.seen)
    for place in range(1, len(raw)):
        assert await said(entry, cut(raw, place)) == whole, raw[:place]
    assert len(echo.seen) == seen * len(raw)


@pytest.mark.parametrize("seed", range(25))
async def test_pipelined_requests_are_answered_in_order_however_they_are_cut(
    entry: Door, echo: Echo, seed: int
) -> None:
    chance = random.Random(seed)
    texts = [chance.choice(REQUESTS) for _ in range(chance.randint(1, 12))]
    broken = chance.choice(["", *REFUSED])
    raw = bytes_of("".join(texts) + (broken or LAST), entry)
    paths = [unquote(text.split()[1].partition("?")[0]) for text in texts]
    for _ in range(4):
        echo.seen.clear()
        places = [chance.randint(0, len(raw)) for _ in range(chance.randint(0, 6))]
        answers = await said(entry, cut(raw, *places))
        assert [status for status, _ in answers[: len(texts)]] == [200] * len(texts)
        assert [path for _, path, _ in echo.seen[: len(texts)]] == paths
        # What cannot be read may have no response of its own behind others.
        assert len(answers) - len(texts) in ((0, 1) if broken else (1,))


async def test_a_client_that_still_sends_gets_the_response(entry: Door, echo: Echo) -> None:
    """Half a megabyte comes behind a head that is refused."""
    size = 1 << 19
    head = "POST /x HTTP/1.1\r\nHost: evil.example\r\n"
    raw = f"{head}{JSON}Content-Length: {size}\r\n\r\n".encode() + b" " * size
    for _ in range(10):
        assert [status for status, _ in await said(entry, cut(raw, 100, 200_000))] == [421]
    assert echo.seen == []


@given(st.text(alphabet="ab/?#%4Z&=;.", max_size=30))
def test_an_address_is_split_as_the_parser_does(text: str) -> None:
    url = f"/{text}".encode()
    parsed = httptools.parse_url(url)
    assert _split(url) == (unquote(parsed.path.decode()), parsed.query or b"")
