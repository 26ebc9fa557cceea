"""Requests through the guard: what is sent, what comes back, and the caller's message."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.errors import (
    ExecutionFailed,
    FairlaneError,
    InvalidRequest,
    PayloadTooLarge,
    TargetRefused,
)
from fairlane.http1.messages import MalformedResponse, NameNotFound
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import (
    UNREACHABLE,
    OutboundResponse,
    Sender,
    asked_wait_ms,
)
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time
from tests.outbound.receivers import http, listening

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOUR_MS = 3_600_000
NOON = 1_800_000_000_000  # Fri, 15 Jan 2027 08:00:00 GMT


async def send(
    url: str,
    *,
    guard: Guard | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = WAIT_SECONDS,
    max_response_bytes: int = 1000,
) -> OutboundResponse:
    async with Sender(guard or Guard(["127.0.0.1"])) as sender:
        return await sender.post(
            url,
            body=b'{"a": 1}',
            headers=headers or {},
            timeout_seconds=timeout_seconds,
            max_response_bytes=max_response_bytes,
        )


async def failure(
    url: str, *, timeout_seconds: float = 5.0, max_response_bytes: int = 1000
) -> FairlaneError:
    """The error of a failing request, which does not reveal the target."""
    with pytest.raises(ExecutionFailed) as failed:
        await send(url, timeout_seconds=timeout_seconds, max_response_bytes=max_response_bytes)
    assert failed.value.message == UNREACHABLE
    assert failed.value.retryable
    return failed.value


async def test_a_post_arrives_as_it_was_given() -> None:
    async with listening(http("201 Created", "X-Kind: test", body=b"made")) as listener:
        answer = await send(f"{listener.url}a/../b?c=%2F", headers={"X-Fairlane-Name": "v\t~"})
    assert (answer.status, answer.body, answer.truncated) == (201, b"made", False)
    assert answer.headers["x-kind"] == "test"
    head, body = listener.requests[0].split(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /a/../b?c=%2F HTTP/1.1"
    assert body == b'{"a": 1}'
    assert {"X-Fairlane-Name: v\t~", "Accept-Encoding: identity", "Content-Length: 8"} <= set(lines)
    assert any(line.startswith("User-Agent: fairlane/") for line in lines)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    async with listening() as elsewhere:
        moved = http(f"{status} Moved", f"Location: {elsewhere.url}")
        async with listening(moved) as listener:
            assert (await send(listener.url)).status == status
    assert (listener.connections, elsewhere.connections) == (1, 0)


async def test_a_refused_target_is_never_reached() -> None:
    async with listening() as listener:
        with pytest.raises(ExecutionFailed, match=f"^{UNREACHABLE}$"):
            await send(listener.url, guard=Guard())
        with pytest.raises(InvalidRequest, match="credentials"):
            await send(f"http://user@127.0.0.1:{listener.port}/")
    assert listener.connections == 0


async def test_what_one_sender_keeps_open_does_not_widen_what_another_may_reach() -> None:
    """Executors may reach more than webhooks; each has a sender with a guard of its own."""
    async with (
        listening() as listener,
        Sender(Guard(["127.0.0.1"])) as wide,
        Sender(Guard()) as narrow,
    ):
        assert (
            await wide.post(listener.url, body=b"", headers={}, timeout_seconds=5)
        ).status == 200
        with pytest.raises(ExecutionFailed):
            await narrow.post(listener.url, body=b"", headers={}, timeout_seconds=5)
    assert (listener.connections, len(listener.requests)) == (1, 1)


async def test_all_that_brings_no_answer_looks_the_same() -> None:
    """Or its text would let a caller who may choose a URL scan ports and names."""

    async def inside(_: str) -> list[str]:
        return ["10.0.0.1"]

    async def nowhere(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async with listening() as closed:
        refusing = closed.url
    async with listening(answer=None) as silent, listening(b"+PONG\r\n\r\n") as other:
        targets = [
            ("http://a.test/", Guard(lookup=inside)),
            ("http://a.test/", Guard(lookup=nowhere)),
            ("http://10.0.0.1/", Guard()),
            ("http://a.test:22/", Guard()),
            (refusing, Guard(["127.0.0.1"])),
            (silent.url, Guard(["127.0.0.1"])),
            (other.url, Guard(["127.0.0.1"])),
        ]
        texts = set()
        for url, guard in targets:
            with pytest.raises(ExecutionFailed) as refusal:
                await send(url, guard=guard, timeout_seconds=0.3)
            error = refusal.value
            texts.add((error.code, error.message, error.retryable, error.retry_after_ms))
    assert texts == {("execution_failed", UNREACHABLE, True, None)}


async def test_a_receiver_that_never_answers_runs_into_the_timeout() -> None:
    async def run_out(seconds: float) -> None:
        async with listening(answer=None) as listener:
            error = await failure(listener.url, timeout_seconds=seconds / 6)
        assert isinstance(error.__cause__, TimeoutError)
        if not listener.requests:
            raise TooLate("time was up before it was asked")
        assert listener.connections == 1

    await in_time(run_out)


async def test_a_receiver_that_drips_runs_into_the_timeout() -> None:
    async with listening(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nbegun") as listener:
        error = await failure(listener.url, timeout_seconds=0.05)
    assert isinstance(error.__cause__, TimeoutError)


async def test_an_answer_is_read_up_to_its_bound() -> None:
    async with listening(http(body=b"x" * 1000)) as listener:
        whole = await send(listener.url)
    assert (len(whole.body), whole.truncated) == (1000, False)
    async with listening(http(body=b"x" * 1001)) as listener:
        cut = await send(listener.url)
    assert (len(cut.body), cut.truncated, cut.status) == (1000, True, 200)


async def test_an_endless_answer_is_cut_off() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with listening(head) as listener:
        listener.then_endless = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        answer = await send(listener.url, max_response_bytes=100_000)
    assert (len(answer.body), answer.truncated) == (100_000, True)


@pytest.mark.parametrize(
    ("answer", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-More: x\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"x" * 4096),
        (b"HTTP/1.1 200 ", b"x" * 4096),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-More: x\r\n"),
    ],
    ids=["headers", "one header", "status line", "trailers"],
)
async def test_endless_headers_are_cut_off_long_before_time_is_up(
    answer: bytes, endless: bytes
) -> None:
    async with listening(answer) as listener:
        listener.then_endless = endless
        async with asyncio.timeout(10):
            error = await failure(listener.url, timeout_seconds=60)
    assert isinstance(error.__cause__, MalformedResponse)


@pytest.mark.parametrize(
    ("answer", "endless"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x" * 4096),
    ],
    ids=["announcements", "chunk extension"],
)
async def test_an_answer_that_never_begins_runs_into_the_timeout(
    answer: bytes, endless: bytes
) -> None:
    async with listening(answer) as listener:
        listener.then_endless = endless
        error = await failure(listener.url, timeout_seconds=0.2)
    assert isinstance(error.__cause__, TimeoutError | MalformedResponse)


async def test_a_body_that_drips_runs_into_the_timeout_however_lively_it_is() -> None:
    async with listening(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n") as listener:
        listener.then_endless = b"x"
        error = await failure(listener.url, timeout_seconds=0.2, max_response_bytes=10**8)
    assert isinstance(error.__cause__, TimeoutError)


async def test_a_packed_answer_is_not_unpacked() -> None:
    packed = bytes.fromhex("1f8b0800000000000003")
    async with listening(http("200 OK", "Content-Encoding: gzip", body=packed)) as listener:
        assert (await send(listener.url)).body == packed


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n",
        b"+PONG\r\n\r\n",
        b"HTTP/1.1 99999 Odd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
    ids=["nothing", "half", "bad chunk", "ssh", "redis", "status", "header", "length", "lengths"],
)
async def test_a_broken_answer_is_a_failure_in_words_of_ours(answer: bytes) -> None:
    async with listening(answer) as listener:
        listener.hang_up = True
        error = await failure(listener.url)
    assert isinstance(error.__cause__, ConnectionError)


async def test_a_reset_is_a_failure_in_words_of_ours() -> None:
    async with listening() as listener:
        listener.reset = True
        error = await failure(listener.url)
    assert isinstance(error.__cause__, ConnectionError)


async def test_a_closed_port_is_a_failure_in_words_of_ours() -> None:
    async with listening() as listener:
        url = listener.url
    assert isinstance((await failure(url)).__cause__, ConnectionRefusedError)


async def test_plain_text_where_tls_should_be_is_a_failure_in_words_of_ours() -> None:
    async with listening(b"220 mail.test ESMTP\r\n") as listener:
        listener.greets = True
        error = await failure(listener.url.replace("http:", "https:"))
    assert isinstance(error.__cause__, ssl.SSLError)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*_self_signed(tmp_path))
    async with listening(tls=context) as listener:
        error = await failure(listener.url.replace("http:", "https:"))
    assert isinstance(error.__cause__, ssl.SSLCertVerificationError)
    assert listener.requests == []


def _self_signed(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subject = ["-nodes", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *subject, *files], check=True, capture_output=True)
    return certificate, key


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Fairlane-A", "a\r\nX-B: b"),
        ("X-Fairlane-A", "a\nb"),
        ("X-Fairlane-A", "a\x00"),
        ("X-Fairlane-A", "\x7f"),
        ("X-Fairlane-A", "\u00fc"),
        ("X-Fairlane-A", "\u2028"),
        ("X-Fairlane-A\r\nX-B", "b"),
        ("X-Fairlane A", "b"),
        ("X-A", "b"),
        ("Cookie", "a=b"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Fairlane-" + "a" * 65, "b"),
        ("", "b"),
        ("X-Fairlane-\u00fc", "b"),
        ("Host", "evil.test"),
        ("hOsT", "evil.test"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("Upgrade", "websocket"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "Basic x"),
    ],
)
async def test_a_header_that_could_forge_a_message_is_not_sent(name: str, value: str) -> None:
    async with listening() as listener:
        with pytest.raises(InvalidRequest, match="header"):
            await send(listener.url, headers={name: value})
    assert listener.connections == 0


# --- Retry-After ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("0", 0),
        ("120", 120_000),
        (" 120 ", 120_000),
        ("000120", 120_000),
        ("86400", 24 * HOUR_MS),
        ("86401", 24 * HOUR_MS),
        ("9" * 5000, 24 * HOUR_MS),
        ("Fri, 15 Jan 2027 09:00:00 GMT", HOUR_MS),
        ("Fri, 15 Jan 2027 10:00:00 +0100", HOUR_MS),
        ("Fri, 15 Jan 2027 09:00:00 -0000", HOUR_MS),
        ("Fri, 15 Jan 2027 07:00:00 GMT", 0),
        ("Fri, 15 Jan 2100 07:00:00 GMT", 24 * HOUR_MS),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("\u0661", None),
        ("Fri, 99 Jan 2027 09:00:00 GMT", None),
        (f"Fri, 15 Jan {'9' * 20} 09:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -1400", 24 * HOUR_MS),
    ],
)
def test_the_wait_that_is_asked_for_is_understood_and_bounded(
    text: str, wait_ms: int | None
) -> None:
    assert asked_wait_ms({"retry-after": text}, now=NOON) == wait_ms


def test_no_wait_is_asked_for_without_the_header() -> None:
    assert asked_wait_ms({}, now=NOON) is None


@given(st.text() | st.text("0123456789 :,+-GMTFriJan"))
def test_any_text_for_a_wait_is_understood_or_ignored(text: str) -> None:
    wait_ms = asked_wait_ms({"retry-after": text}, now=NOON)
    assert wait_ms is None or 0 <= wait_ms <= 24 * HOUR_MS


# --- for executors --------------------------------------------------------------------------------


async def ask(sender: Sender, url: str, **options: float | None) -> bytes:
    async with sender.stream(
        "GET",
        url,
        headers={"Authorization": "Bearer t"},
        body=None,
        max_bytes=1000,
        timeout_seconds=options.get("timeout_seconds", WAIT_SECONDS),
    ) as answer:
        return b"".join([piece async for piece in answer])


async def test_a_sender_answers_and_keeps_its_connection() -> None:
    async with listening() as listener, Sender(Guard(["127.0.0.1"])) as sender:
        for _ in range(3):
            assert await ask(sender, listener.url, timeout_seconds=None) == b"ok"
    assert (listener.connections, len(listener.requests)) == (1, 3)
    assert b"GET / HTTP/1.1" in listener.requests[0]
    assert b"Authorization: Bearer t" in listener.requests[0]


async def test_a_sender_tells_apart_what_went_wrong() -> None:
    async with (
        listening(http(body=b"x" * 1001)) as listener,
        Sender(Guard(["127.0.0.1"])) as sender,
    ):
        with pytest.raises(PayloadTooLarge, match="1000"):
            await ask(sender, listener.url)
        listener.answer = None
        with pytest.raises(TimeoutError):
            await ask(sender, listener.url, timeout_seconds=0.05)
        listener.reset = True
        with pytest.raises(ConnectionError):
            await ask(sender, listener.url)
        with pytest.raises(TargetRefused):
            await ask(sender, "http://127.0.0.2/")


async def test_a_sender_reports_an_unknown_name_as_such() -> None:
    async def nowhere(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async with Sender(Guard(lookup=nowhere)) as sender:
        with pytest.raises(NameNotFound):
            await ask(sender, "http://a.test/")
