"""Requests as bytes and responses from bytes, however these are cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.errors import InvalidRequest, PayloadTooLarge
from fairlane.http1.messages import (
    HEAD_BYTES_MAX,
    ConnectionClosed,
    MalformedResponse,
    Origin,
    ResponseCutShort,
    ResponseParser,
    encode_request,
)

HERE = Origin("127.0.0.1", 80)

# --- requests -------------------------------------------------------------------------------------


def test_a_request_is_written_as_it_stands() -> None:
    origin = Origin("a.test", 8080)
    request = encode_request(origin, "POST", "/a?b=%20", {"X-Kind": "caf\u00e9\tau lait"}, b"body")
    assert request.data == (
        b"POST /a?b=%20 HTTP/1.1\r\nHost: a.test:8080\r\nX-Kind: caf\xe9\tau lait\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("GET", None, None),
        ("HEAD", None, None),
        ("GET", b"ab", b"2"),
        ("POST", None, b"0"),
        ("POST", b"", b"0"),
        ("DELETE", None, b"0"),
    ],
)
def test_a_body_has_its_length(method: str, body: bytes | None, length: bytes | None) -> None:
    data = encode_request(HERE, method, "/", {}, body).data
    written = b"" if length is None else b"Content-Length: " + length + b"\r\n"
    expected = f"{method} / HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode() + written + b"\r\n"
    assert data == expected + (body or b"")


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (Origin("a.test", 80), "a.test"),
        (Origin("a.test", 443), "a.test:443"),
        (Origin("a.test", 443, tls=True), "a.test"),
        (Origin("a.test", 80, tls=True), "a.test:80"),
        (Origin("::1", 80), "[::1]"),
        (Origin("::1", 8080), "[::1]:8080"),
    ],
)
def test_the_host_header_names_the_port_unless_it_is_the_usual_one(
    origin: Origin, host: str
) -> None:
    assert f"\r\nHost: {host}\r\n".encode() in encode_request(origin, "GET", "/", {}, None).data


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("GET", "/", {"A": "b\r\nC: d"}),
        ("GET", "/", {"A": "b\nC: d"}),
        ("GET", "/", {"A": "b\rC: d"}),
        ("GET", "/", {"A": "b\x00"}),
        ("GET", "/", {"A": "b\x7f"}),
        ("GET", "/", {"A": "b\x85"}),
        ("GET", "/", {"A": "\u2028"}),
        ("GET", "/", {"A: b\r\nC": "d"}),
        ("GET", "/", {"A b": "c"}),
        ("GET", "/", {"A:": "c"}),
        ("GET", "/", {"": "c"}),
        ("GET", "/", {"\u00fc": "c"}),
        ("GET / HTTP/1.1\r\nA: b", "/", {}),
        ("", "/", {}),
        ("GET", "/ HTTP/1.1\r\nA: b", {}),
        ("GET", "/a b", {}),
        ("GET", "/\u00fc", {}),
        ("GET", "", {}),
        ("GET", "http://a.test/", {}),
    ],
)
def test_what_could_be_read_as_more_than_one_request_is_refused(
    method: str, target: str, headers: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest):
        encode_request(HERE, method, target, headers, None)


@given(st.text(), st.text(), st.text())
def test_no_text_adds_a_line(target: str, name: str, value: str) -> None:
    try:
        data = encode_request(HERE, "GET", f"/{target}", {name: value}, None).data
    except InvalidRequest:
        return
    lines = data.split(b"\r\n")
    assert len(lines) == 5
    assert not any(b"\r" in line or b"\n" in line for line in lines)


# --- responses ------------------------------------------------------------------------------------


class Parsed(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    reusable: bool


def parse(*pieces: bytes, method: str = "GET", bytes_max: int | None = None) -> Parsed:
    """Parse a response; with an open end, the peer closes after it."""
    parser = ResponseParser()
    parser.expect(method, bytes_max)
    body = b""
    for piece in pieces:
        parser.feed(piece)
        body += parser.take()
    reusable = parser.reusable
    if not parser.complete:
        parser.end()
        reusable = False
    return Parsed(parser.status, parser.headers, body, reusable)


class Example(NamedTuple):
    data: bytes
    parsed: Parsed


_NAMES = st.text("abcXYZ-", min_size=1, max_size=12).map(lambda name: f"X-{name}")
_VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)


@st.composite
def responses(draw: st.DrawFn) -> Example:
    status = draw(st.sampled_from([200, 201, 302, 404, 500, 599]))
    body = draw(st.binary(max_size=60))
    headers = draw(st.dictionaries(_NAMES, _VALUES, max_size=4))
    shown: dict[str, str] = {}
    for name, value in headers.items():
        before = shown.get(name.lower())
        shown[name.lower()] = value if before is None else f"{before}, {value}"
    interim = draw(st.lists(st.sampled_from([100, 102, 103]), max_size=2))
    framing = draw(st.sampled_from(["length", "chunked", "close", "none"]))
    if framing == "none":
        status, body = draw(st.sampled_from([204, 304])), b""
    lines, coded = [f"{name}: {value}" for name, value in headers.items()], body
    if framing == "length":
        lines.append(f"Content-Length: {len(body)}")
        shown["content-length"] = str(len(body))
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        shown["transfer-encoding"] = "chunked"
        coded = _chunked(draw, body)
    end = draw(st.sampled_from([b"\r\n", b"\n"]))
    heads = [b"HTTP/1.1 %d Wait%sX-Early: 1%s%s" % (one, end, end, end) for one in interim]
    head = end.join([b"HTTP/1.1 %d Odd" % status, *(line.encode() for line in lines), b"", b""])
    return Example(b"".join(heads) + head + coded, Parsed(status, shown, body, framing != "close"))


def _chunked(draw: st.DrawFn, body: bytes) -> bytes:
    coded = b""
    while body:
        size = draw(st.integers(1, len(body)))
        extension = draw(st.sampled_from([b"", b";a=b"]))
        coded += b"%x%s\r\n%s\r\n" % (size, extension, body[:size])
        body = body[size:]
    trailer = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n", b"Vary: a\r\nVary: b\r\n"]))
    return coded + b"0\r\n" + trailer + b"\r\n"


@given(responses(), st.data())
def test_any_splitting_of_a_response_parses_to_the_same(
    example: Example, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(example.data) - 1), max_size=12)))
    ends = [*cuts, len(example.data)]
    pieces = [example.data[a:b] for a, b in zip([0, *cuts], ends, strict=True)]
    assert parse(*pieces) == parse(example.data) == example.parsed


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nok",
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2;a=b\r\nok\r\n0\r\nX-T: u\r\n\r\n"
        ),
    ],
)
def test_every_boundary_may_be_between_two_pieces(data: bytes) -> None:
    whole = parse(data)
    assert (whole.status, whole.body, whole.reusable) == (200, b"ok", True)
    for cut in range(1, len(data)):
        assert parse(data[:cut], data[cut:]) == whole
    assert parse(*(data[index : index + 1] for index in range(len(data)))) == whole


def test_headers_of_one_name_are_joined_and_trailers_are_left_out() -> None:
    head = b"HTTP/1.1 200 OK\r\nVary: a\r\nVARY: b\r\nTransfer-Encoding: chunked\r\n\r\n"
    parsed = parse(head + b"0\r\nVary: c\r\nX-T: d\r\n\r\n")
    assert parsed.headers == {"vary": "a, b", "transfer-encoding": "chunked"}


@pytest.mark.parametrize(
    ("method", "head", "reusable"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", False),
        ("HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", False),
        ("GET", b"HTTP/1.1 204 None\r\n\r\n", True),
        ("GET", b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", True),
        ("GET", b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", True),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
        ("GET", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_response_without_a_body_is_complete_with_its_head(
    method: str, head: bytes, *, reusable: bool
) -> None:
    parser = ResponseParser()
    parser.expect(method, None)
    parser.feed(head)
    assert (parser.complete, parser.take(), parser.reusable) == (True, b"", reusable)


@pytest.mark.parametrize(
    "garbage", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", b"\x00\xff"]
)
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
def test_bytes_behind_a_response_spoil_the_connection_and_not_the_response(
    garbage: bytes, close: bytes, *, apart: bool
) -> None:
    data = b"HTTP/1.1 200 OK\r\n" + close + b"Content-Length: 2\r\n\r\nok"
    parsed = parse(data, garbage) if apart else parse(data + garbage)
    assert (parsed.status, parsed.body, parsed.reusable) == (200, b"ok", False)
    assert parsed.headers["content-length"] == "2"


MALFORMED = {
    "text": b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n",
    "redis": b"+PONG\r\n",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a status that is too large": b"HTTP/1.1 99999 Odd\r\n\r\n",
    "a status that is too small": b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
    "an upgrade": b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "a bare upgrade": b"HTTP/1.1 101 Go\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "length and chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "a coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "a coding in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "a size that is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a folded header": b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a space before a colon": b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
    "a NUL": b"HTTP/1.1 200 OK\r\nA: \x00\r\n\r\n",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_what_is_not_a_response_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedResponse):
        parse(data)
    with pytest.raises(MalformedResponse):
        parse(*(data[index : index + 1] for index in range(len(data))))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", b"\r\n"),
        (b"", b"HTTP/1.1 103 Early\r\n\r\n"),
        (b"HTTP/1.1 200 ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: ", b"x"),
        (b"HTTP/1.1 200 OK\r\n", b"x"),
        (CHUNKED + b"1;", b"x"),
        (CHUNKED, b"1;%s\r\nx\r\n" % (b"y" * 100)),
        (CHUNKED + b"0\r\n", b"A: b\r\n"),
    ],
    ids=[
        *("blank lines", "interim responses", "reason", "headers", "header value", "header name"),
        *("chunk extension", "chunk extensions", "trailers"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000, 65_536])
def test_what_is_not_body_has_a_bound(begin: bytes, more: bytes, size: int) -> None:
    piece = more * (size // len(more) or 1)
    parser = ResponseParser()
    parser.expect("GET", None)
    parser.feed(begin or b"\r\n")
    most = 2 * HEAD_BYTES_MAX // len(piece) + 1

    def feed_all() -> None:
        for _ in range(most):
            parser.feed(piece)

    with pytest.raises(MalformedResponse):
        feed_all()


def test_chunks_of_one_byte_are_no_excess_of_framing() -> None:
    count = HEAD_BYTES_MAX
    parsed = parse(CHUNKED, *([b"1\r\nx\r\n" * 64] * (count // 64)), b"0\r\n\r\n")
    assert (len(parsed.body), parsed.reusable) == (count, True)


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], ConnectionClosed),
        ([b"H"], ResponseCutShort),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"], ResponseCutShort),
        ([b"HTTP/1.1 200 OK\r\nContent-Len"], ResponseCutShort),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"o"], ResponseCutShort),
        ([CHUNKED, b"2\r\nok\r\n"], ResponseCutShort),
        ([CHUNKED, b"2\r\nok\r\n0\r\n"], ResponseCutShort),
    ],
)
def test_a_response_that_ends_too_early_is_distinguished(
    pieces: Sequence[bytes], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        parse(*pieces)


@pytest.mark.parametrize("sizes", [[1001], [1000, 1], [1, 1000], [500, 500, 1, 500]])
def test_a_body_is_handed_out_up_to_its_limit(sizes: Sequence[int]) -> None:
    parser = ResponseParser()
    parser.expect("GET", 1000)
    parser.feed(b"HTTP/1.1 200 OK\r\n\r\n")
    for size in sizes:
        parser.feed(b"x" * size)
    assert parser.take() == b"x" * 1000
    assert not parser.reusable
    for _ in range(2):
        with pytest.raises(PayloadTooLarge, match="1000"):
            parser.take()


def test_a_body_of_exactly_its_limit_is_no_excess() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1000
    assert parse(data, bytes_max=1000).reusable
    assert parse(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", bytes_max=0).reusable


def test_what_comes_unasked_spoils_the_connection() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 408 Timeout\r\n\r\n")
    assert not parser.reusable
