"""HTTP that is cut, doubled, endless, slow or no HTTP: refused in JSON, and the connection closed.

Behind the door there is an echo, so that what gets through is seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from fairlane.http.connection import HttpConnection
from fairlane.http.limits import HEADERS_BYTES_MAX, HEADERS_MAX, URL_BYTES_MAX
from tests.fakes.waiting import TooLate, TooSlow, in_time, steadily, within
from tests.hostile.echo import Echo
from tests.hostile.wires import HURRY_SECONDS, Door, Said, Wire, door

JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def check_refused(answers: list[Said], *statuses: int) -> None:
    (answer,) = answers
    assert answer.status in statuses, answer
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["connection"] == "close"
    assert answer.json["code"]
    assert answer.json["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/0.9\r\nHost: %h\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: %h\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: %h\r\n\r\n",
        b"GET / http/1.1\r\nHost: %h\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: %h\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: %h\r\n\r\n",
        b"GET http://%h/ HTTP/1.1\r\nHost: %h\r\n\r\n",
        b"GET //evil.example/ HTTP/1.1\r\n\r\n",
        b"CONNECT %h HTTP/1.1\r\nHost: %h\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: %h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nHost: %h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nhost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : %h\r\n\r\n",
        b"GET / HTTP/1.1\r\n Host: %h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nBad Name: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nBad\x00: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nX: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nno colon\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nUpgrade: h2c\r\nConnection: upgrade\r\n"
        + JSON
        + b"Content-Length: 2\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: +5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: 5, 5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: 0x5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: many\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: %h\r\nContent-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: %h\r\nContent-Length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\n" + JSON + CHUNKED + b"zz\r\n{}",
        b"POST / HTTP/1.1\r\nHost: %h\r\n" + JSON + CHUNKED + b"-1\r\n{}",
        b"POST / HTTP/1.1\r\nHost: %h\r\n" + JSON + CHUNKED + b"2\r\n{}XX\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\n" + JSON + CHUNKED + b"f" * 20 + b"\r\n",
        b"POST / HTTP/1.1\r\nHost: %h\r\n" + JSON + CHUNKED + b"0\r\nX-Fairlane: 1\r\n\r\n",
    ],
    ids=lambda raw: ascii(raw)[2:60],
)
async def test_what_cannot_be_read_in_one_way_only_is_refused(
    entry: Door, echo: Echo, raw: bytes
) -> None:
    answers = await entry.say(raw.replace(b"%h", entry.host.encode()))
    check_refused(answers, 400, 408, 415, 421)
    assert echo.seen == []
    assert (await entry.ask("GET", "/well")).status == 200


async def test_an_address_of_eight_kibibytes_is_long_enough(entry: Door, echo: Echo) -> None:
    most = "/" + "a" * (URL_BYTES_MAX - 1)
    assert (await entry.ask("GET", most)).status == 200
    too_long = await entry.ask("GET", most + "a")
    assert (too_long.status, too_long.json["code"]) == (414, "uri_too_long")
    query = await entry.ask("GET", "/?" + "a" * URL_BYTES_MAX)
    assert query.status == 414
    assert len(echo.seen) == 1


async def test_there_may_be_a_hundred_headers(entry: Door, echo: Echo) -> None:
    many = [f"X-{number}: 1" for number in range(HEADERS_MAX - 2)]
    assert (await entry.ask("GET", "/", *many)).status == 200
    answer = await entry.ask("GET", "/", *many, "X-More: 1")
    assert (answer.status, answer.json["code"]) == (431, "headers_too_large")
    assert len(echo.seen) == 1


async def test_headers_may_have_sixteen_kibibytes(entry: Door, echo: Echo) -> None:
    assert (await entry.ask("GET", "/", "X: " + "a" * (HEADERS_BYTES_MAX - 100))).status == 200
    answer = await entry.ask("GET", "/", "X: " + "a" * HEADERS_BYTES_MAX)
    assert (answer.status, answer.json["code"]) == (431, "headers_too_large")
    assert len(echo.seen) == 1


@pytest.mark.parametrize("endless", [b"GET /" + b"a" * 1000, b"a" * 1000, b"X: a\r\n" * 100])
async def test_a_head_without_end_is_cut_off(entry: Door, echo: Echo, endless: bytes) -> None:
    wire = await entry.open()
    if not endless.startswith(b"GET"):
        await wire.send(f"GET / HTTP/1.1\r\nHost: {entry.host}\r\n".encode())
    sent = 0
    try:
        while sent < 5_000_000:
            await wire.send(endless)
            sent += len(endless)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    assert sent < 5_000_000
    await wire.close()
    assert echo.seen == []


@pytest.mark.parametrize(
    "begun",
    [
        b"G",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: %h\r\nX: a",
        b"POST /x HTTP/1.1\r\nHost: %h\r\n" + JSON + b"Content-Length: 20\r\n\r\n{",
        b"POST /x HTTP/1.1\r\nHost: %h\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
    ids=["a letter", "a line", "a header", "a body", "a chunk"],
)
async def test_a_request_that_does_not_end_is_given_up(
    entry: Door, echo: Echo, begun: bytes
) -> None:
    async def begin() -> None:
        with within(5):
            answers = await entry.say(begun.replace(b"%h", entry.host.encode()))
        check_refused(answers, 408)
        assert answers[0].json["code"] == "request_timeout"
        assert echo.seen == []

    await steadily(begin)


@pytest.mark.parametrize("slow", ["head", "body"])
async def test_dripping_does_not_help(entry: Door, echo: Echo, slow: str) -> None:
    async def drip() -> None:
        wire = await entry.open()
        head = f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\nContent-Length: 9999\r\n".encode()
        await wire.send(head + JSON + (b"\r\n" if slow == "body" else b""))
        drops: list[bytes] = []
        dripping = asyncio.create_task(_drip(wire, b"{" if slow == "body" else b"X: y\r\n", drops))
        with within(5):
            answers = await wire.answers()
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        await wire.close()
        assert [one.status for one in answers] == [408]
        assert echo.seen == []
        if len(drops) < 3:
            raise TooSlow("the machine stood still, and nothing has dripped")

    await steadily(drip)


async def _drip(wire: Wire, piece: bytes, drops: list[bytes]) -> None:
    """Some within the time for a request, and never as many as are too many."""
    while True:
        await wire.send(piece)
        drops.append(piece)
        await asyncio.sleep(HURRY_SECONDS / 10)


async def test_a_large_body_has_time_as_long_as_it_comes(echo: Echo) -> None:
    """Three times as long as a request may take of which nothing comes."""

    async def send(seconds: float) -> None:
        class Timed(HttpConnection):
            read_seconds = seconds

        async with door(echo, Timed) as entry:
            wire = await entry.open()
            head = f"POST /x HTTP/1.1\r\nHost: {entry.host}\r\nConnection: close\r\n"
            length = f"Content-Length: {len(piece) * pieces}\r\n\r\n"
            await wire.send(head.encode() + JSON + length.encode())
            latest, gaps = time.monotonic(), []
            with contextlib.suppress(ConnectionError):  # a server that has given up hangs up
                for _ in range(pieces):
                    await wire.send(piece)
                    await asyncio.sleep(seconds / 2)  # time is what is tested here
                    gaps.append(time.monotonic() - latest)
                    latest = time.monotonic()
            answers = await wire.answers()
            await wire.close()
        if max(gaps, default=0) > seconds * 0.7:
            raise TooLate("the machine stood still, and nothing came for as long as may be")
        assert [one.status for one in answers] == [200]

    piece, pieces = b" " * 1_500_000, 6
    await in_time(send)
    assert echo.seen[-1] == ("POST", "/x", len(piece) * pieces)


async def test_line_breaks_between_requests_do_not_keep_a_connection(entry: Door) -> None:
    wire = await entry.open()
    await wire.send(b"\r\n\r\n")
    assert await wire.answers() == []
    await wire.close()


async def test_what_stands_behind_a_request_does_not_spoil_its_answer(
    entry: Door, echo: Echo
) -> None:
    answers = await entry.say(f"GET /a HTTP/1.1\r\nHost: {entry.host}\r\n\r\n{{garbage".encode())
    assert answers[0].status == 200
    assert echo.seen == [("GET", "/a", 0)]
    assert [one.status for one in answers[1:]] in ([], [400])


async def test_an_upgrade_is_answered_as_the_request_that_it_is(entry: Door, echo: Echo) -> None:
    for name in ("websocket", "h2c"):
        asked = ("Connection: upgrade", f"Upgrade: {name}")
        head = "\r\n".join(["GET /a HTTP/1.1", f"Host: {entry.host}", *asked])
        (answer,) = await entry.say(head.encode() + b"\r\n\r\nGET /b HTTP/1.1\r\n\r\n")
        assert answer.status == 200
    assert [path for _, path, _ in echo.seen] == ["/a", "/a"]


async def test_requests_one_after_the_other_are_answered_in_order(entry: Door) -> None:
    one = f"POST /{{}} HTTP/1.1\r\nHost: {entry.host}\r\nContent-Length: 30000\r\n"
    body = b"\r\n" + b" " * 30_000
    raw = b"".join(one.format(name).encode() + JSON + body for name in "abcdef")
    last = f"GET /end HTTP/1.1\r\nHost: {entry.host}\r\nConnection: close\r\n\r\n"
    answers = await entry.say(raw + last.encode())
    assert [answer.json["path"] for answer in answers] == [f"/{n}" for n in "abcdef"] + ["/end"]


async def test_an_error_tells_nothing_of_the_inside(
    entry: Door, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await entry.ask("GET", "/broken")
    assert (answer.status, answer.json["code"]) == (500, "internal_error")
    assert b"secret" not in answer.body
    assert b"SELECT" not in answer.body
    assert answer.headers["x-request-id"] in caplog.text
