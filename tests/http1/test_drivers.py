"""Both drivers against a server that plays every part: good, slow, broken and hostile."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import InvalidRequest, PayloadTooLarge
from fairlane.http1.messages import (
    ConnectionClosed,
    MalformedResponse,
    Origin,
    ResponseCutShort,
)
from tests.http1.peer import (
    CLOSE,
    DRIP,
    DRIVERS,
    ENDLESS,
    HOLD,
    RESET,
    Driver,
    Peer,
    Step,
    ask,
    certified,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SOON_SECONDS = 0.2


@pytest.fixture(params=DRIVERS)
def opening(request: pytest.FixtureRequest) -> Callable[[ssl.SSLContext | None], Driver]:
    return DRIVERS[request.param]


@pytest.fixture
def driver(opening: Callable[[ssl.SSLContext | None], Driver]) -> Iterator[Driver]:
    one = opening(None)
    yield one
    one.close()


# --- responses ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "steps",
    [
        [OK],
        [bytes([one]) for one in OK],
        [b"HTTP/1.1 100 Continue\r\n\r\n", OK],
        [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK],
        [CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\nX-Trailer: 1\r\n\r\n"],
        [bytes([one]) for one in CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n"],
    ],
    ids=["length", "length, byte by byte", "100", "103", "chunked", "chunked, byte by byte"],
)
def test_a_response_is_read_and_its_connection_used_again(
    driver: Driver, steps: Sequence[Step]
) -> None:
    with Peer([steps, steps, steps]) as peer:
        for _ in range(3):
            answer = ask(driver, peer, "POST", "/a?b", body=b"body")
            assert (answer.status, answer.body) == (200, b"ok")
            assert answer.headers.keys() <= {"content-length", "transfer-encoding"}
    assert peer.connections == 1
    assert all(one.startswith(b"POST /a?b HTTP/1.1\r\n") for one in peer.requests)


@pytest.mark.parametrize(
    ("method", "steps", "body"),
    [
        ("GET", [b"HTTP/1.1 200 OK\r\n\r\no", b"k", CLOSE], b"ok"),
        ("GET", [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", CLOSE], b"ok"),
        ("GET", [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"], b"ok"),
        ("HEAD", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"], b""),
        ("GET", [OK + b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"], b"ok"),
        ("GET", [OK + b"garbage"], b"ok"),
    ],
    ids=["until close", "HTTP/1.0", "close", "HEAD", "a second response", "garbage"],
)
def test_a_response_is_read_and_its_connection_left(
    driver: Driver, method: str, steps: Sequence[Step], body: bytes
) -> None:
    with Peer([steps]) as peer:
        for _ in range(2):
            assert ask(driver, peer, method).body == body
    assert (peer.connections, len(peer.requests)) == (2, 2)


def test_what_comes_unasked_is_no_response_to_the_next_request(driver: Driver) -> None:
    late = threading.Event()
    unasked = b"HTTP/1.1 408 Timeout\r\nContent-Length: 3\r\n\r\nbad"
    with Peer([[OK, late, unasked, HOLD]], [[OK]]) as peer:
        assert ask(driver, peer).status == 200
        late.set()
        driver.notice()
        assert ask(driver, peer).status == 200
    assert peer.connections == 2


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_that_has_no_body_is_not_waited_for(driver: Driver, status: int) -> None:
    head = f"HTTP/1.1 {status} Odd\r\nContent-Length: 5\r\n\r\n".encode()
    with Peer([[head], [OK]]) as peer:
        assert ask(driver, peer)[0::2] == (status, b"")
        assert ask(driver, peer).body == b"ok"
    assert peer.connections == 1


def test_a_redirect_is_a_response_like_any_other(driver: Driver) -> None:
    with Peer([[OK]]) as elsewhere:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{elsewhere.port}/\r\n"
        with Peer([[f"{moved}Content-Length: 0\r\n\r\n".encode()]]) as peer:
            assert ask(driver, peer).status == 302
    assert elsewhere.connections == 0


def test_proxies_of_the_environment_are_not_asked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Peer([[OK]]) as proxy, Peer([[OK]]) as peer:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert ask(driver, peer).status == 200
    assert (proxy.connections, peer.connections) == (0, 1)


def test_a_large_body_goes_and_comes_whole(driver: Driver) -> None:
    body = bytes(range(256)) * 4000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with Peer([[head + body], [OK]]) as peer:
        assert ask(driver, peer, "POST", body=body).body == body
        assert ask(driver, peer).body == b"ok"
    assert peer.requests[0].endswith(body)
    assert peer.connections == 1


# --- what breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([CLOSE], ConnectionClosed),
        ([RESET], ConnectionError),
        ([b"HTTP/1.1 200 OK\r\nCont", CLOSE], ResponseCutShort),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", CLOSE], ResponseCutShort),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhalf", CLOSE], ResponseCutShort),
        ([CHUNKED + b"4\r\nhalf\r\n", CLOSE], ResponseCutShort),
        ([CHUNKED + b"4\r\nhalf\r\n", RESET], ConnectionError),
        ([b"+PONG\r\n", HOLD], MalformedResponse),
        ([ENDLESS(b"HTTP/1.1 103 Early Hints\r\n\r\n")], MalformedResponse),
        ([b"HTTP/1.1 200 OK\r\n", ENDLESS(b"X-More: x\r\n")], MalformedResponse),
        ([b"HTTP/1.1 200 OK\r\nX-Long: ", ENDLESS(b"x" * 4096)], MalformedResponse),
        ([CHUNKED + b"1;", ENDLESS(b"x" * 4096)], MalformedResponse),
        ([CHUNKED + b"0\r\n", ENDLESS(b"X-More: x\r\n")], MalformedResponse),
    ],
    ids=[
        *("close", "reset", "half a head", "interim only", "half a body", "half the chunks"),
        *("reset in a body", "no HTTP", "endless interim responses", "endless headers"),
        *("endless header", "endless chunk extension", "endless trailers"),
    ],
)
def test_a_broken_response_is_an_error_of_its_kind(
    driver: Driver, steps: Sequence[Step], kind: type[Exception]
) -> None:
    with Peer([steps]) as peer, pytest.raises(kind):
        ask(driver, peer)
    assert (peer.connections, len(peer.requests)) == (1, 1)


def test_a_missing_server_has_its_own_error(driver: Driver) -> None:
    with Peer([[OK]]) as peer:
        pass
    with pytest.raises(ConnectionRefusedError):
        ask(driver, peer)


@pytest.mark.parametrize(
    "steps",
    [
        [HOLD],
        [b"HTTP/1.1 200 OK\r\n", HOLD],
        [DRIP(b"HTTP/1.1 103 Early Hints\r\n\r\n")],
        [b"HTTP/1.1 200 OK\r\n", DRIP(b"X-More: x\r\n")],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n", HOLD],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n", DRIP(b"x")],
        [CHUNKED, DRIP(b"1\r\nx\r\n")],
    ],
    ids=["nothing", "half a head", "interim", "slow head", "half a body", "body", "slow chunks"],
)
def test_time_bounds_the_whole_exchange_however_lively_it_is(
    driver: Driver, steps: Sequence[Step]
) -> None:
    with Peer([steps]) as peer:
        with pytest.raises(TimeoutError):
            ask(driver, peer, seconds=SOON_SECONDS)
        peer.until(lambda: peer.ended == peer.connections)


def test_a_body_beyond_its_limit_is_cut_off(driver: Driver) -> None:
    with Peer([[b"HTTP/1.1 200 OK\r\n\r\n", ENDLESS(b"x" * 4096)]]) as peer:
        with pytest.raises(PayloadTooLarge, match="100000"):
            ask(driver, peer, bytes_max=100_000)
        peer.until(lambda: peer.ended == 1)


def test_a_header_with_a_line_break_reaches_nobody(driver: Driver) -> None:
    with Peer([[OK]]) as peer, pytest.raises(InvalidRequest):
        ask(driver, peer, headers={"X-A": "b\r\nX-C: d"})
    assert peer.connections == 0


# --- kept connections -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_kept_connection_that_was_closed_meanwhile_is_not_used(
    driver: Driver, method: str
) -> None:
    with Peer([[OK, CLOSE]]) as peer:
        for _ in range(3):
            assert ask(driver, peer, method).body == b"ok"
            driver.notice()
    assert (peer.connections, len(peer.requests)) == (3, 3)


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_a_repeatable_request_is_sent_again_when_its_kept_connection_ends(
    driver: Driver, end: Step
) -> None:
    with Peer([[OK], [end]], [[OK], [end]], [[OK]]) as peer:
        assert ask(driver, peer).body == b"ok"
        assert ask(driver, peer).body == b"ok"
        assert ask(driver, peer, "POST", repeatable=True).body == b"ok"
    assert (peer.connections, len(peer.requests)) == (3, 5)


@pytest.mark.parametrize("end", [CLOSE, RESET])
def test_another_request_is_never_sent_twice(driver: Driver, end: Step) -> None:
    with Peer([[OK], [end]], [[OK]]) as peer:
        assert ask(driver, peer).body == b"ok"
        with pytest.raises(ConnectionError):
            ask(driver, peer, "POST", body=b"once")
    assert (peer.connections, len(peer.requests)) == (1, 2)


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_nothing_is_sent_again_once_a_response_has_begun(driver: Driver, begun: bytes) -> None:
    with Peer([[OK], [begun, CLOSE]], [[OK]]) as peer:
        assert ask(driver, peer).body == b"ok"
        with pytest.raises(ResponseCutShort):
            ask(driver, peer)
    assert (peer.connections, len(peer.requests)) == (1, 2)


def test_a_new_connection_that_ends_is_no_reason_to_send_again(driver: Driver) -> None:
    with Peer([[CLOSE]], [[OK]]) as peer, pytest.raises(ConnectionClosed):
        ask(driver, peer)
    assert len(peer.requests) == 1


def test_closing_the_pool_disconnects(opening: Callable[[ssl.SSLContext | None], Driver]) -> None:
    with Peer([[OK]]) as peer:
        one = opening(None)
        assert ask(one, peer).body == b"ok"
        one.close()
        peer.until(lambda: peer.ended == 1)


# --- TLS ------------------------------------------------------------------------------------------


class Certified:
    def __init__(self, folder: Path) -> None:
        with certified(folder, "localhost", "127.0.0.1") as files:
            self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.server.load_cert_chain(*files)
            self.trusting = ssl.create_default_context(cafile=files[0])
        self.asked: list[str | None] = []
        self.server.sni_callback = lambda _, name, __: self.asked.append(name)


@pytest.fixture
def tls(tmp_path: Path) -> Certified:
    return Certified(tmp_path)


def test_tls_asks_for_the_name_and_keeps_the_connection(
    opening: Callable[[ssl.SSLContext | None], Driver], tls: Certified
) -> None:
    one = opening(tls.trusting)
    with Peer([[OK], [OK]], tls=tls.server) as peer:
        for _ in range(2):
            assert ask(one, Origin("localhost", peer.port, tls=True)).body == b"ok"
        assert ask(one, peer).body == b"ok"
        one.close()
    assert tls.asked == ["localhost", None]  # an address is no name to ask for
    assert peer.connections == 2


def test_tls_verifies_who_it_is(driver: Driver, tls: Certified) -> None:
    with Peer([[OK]], tls=tls.server) as peer, pytest.raises(ssl.SSLCertVerificationError):
        ask(driver, peer)
    assert peer.requests == []


def test_tls_verifies_the_name(
    opening: Callable[[ssl.SSLContext | None], Driver], tmp_path: Path
) -> None:
    with certified(tmp_path, "other.test") as files:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(*files)
        trusting = ssl.create_default_context(cafile=files[0])
    one = opening(trusting)
    with Peer([[OK]], tls=server) as peer, pytest.raises(ssl.SSLCertVerificationError):
        ask(one, Origin("localhost", peer.port, tls=True))
    one.close()
    assert peer.requests == []


def test_plain_text_is_no_tls(driver: Driver) -> None:
    with Peer(greeting=b"220 mail.test ESMTP\r\n") as peer, pytest.raises(ssl.SSLError):
        ask(driver, Origin("127.0.0.1", peer.port, tls=True))
    assert peer.requests == []
