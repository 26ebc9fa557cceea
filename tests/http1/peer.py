"""A little server on raw sockets that plays a script, and both drivers behind one face."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fairlane.http1.asynchronous import AsyncPool, SystemResolver
from fairlane.http1.blocking import BlockingPool
from fairlane.http1.messages import EncodedRequest, Origin, encode_request
from tests.fakes.waiting import WAIT_SECONDS, eventually

if TYPE_CHECKING:
    import ssl

IDLE_SECONDS = 600.0  # nothing expires unless a test is about that


class CLOSE:
    """Close the connection."""


class RESET:
    """Close the connection so that the other side gets a reset."""


class HOLD:
    """Send nothing more, and wait until the other side closes."""


class ENDLESS(NamedTuple):
    """Send these bytes until the other side closes."""

    data: bytes


class DRIP(NamedTuple):
    """Send these bytes one by one and slowly, from the beginning again when they are used up."""

    data: bytes


Step = bytes | type[CLOSE] | type[RESET] | type[HOLD] | ENDLESS | DRIP | threading.Event
Script = Sequence[Sequence[Step]]  # for each request of a connection, what happens


class Peer:
    """Plays the first script on the first connection, and so on; the last one again and again.

    A connection whose script has ended is read no further, but stays open.
    """

    def __init__(
        self, *scripts: Script, tls: ssl.SSLContext | None = None, greeting: bytes = b""
    ) -> None:
        self.connections = 0
        self.ended = 0  # connections that the other side has ended
        self.requests: list[bytes] = []
        self._scripts = scripts or ([],)
        self._greeting = greeting
        self._tls = tls
        self._changed = threading.Condition()
        self._over = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]

    @property
    def origin(self) -> Origin:
        return Origin("127.0.0.1", self.port, self._tls is not None)

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS)

    def __enter__(self) -> Peer:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        for one in self._open:
            one.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listening.accept()
                self._open.append(one)
                with self._changed:
                    script = self._scripts[min(self.connections, len(self._scripts) - 1)]
                    self.connections += 1
                    self._changed.notify_all()
                self._start(self._play, one, script)

    def _play(self, plain: socket.socket, script: Script) -> None:
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one = self._tls.wrap_socket(plain, server_side=True) if self._tls else plain
            self._open.append(one)
            one.sendall(self._greeting)
            for steps in script:
                request = _request(one)
                if not request:
                    self._note_end()
                    return
                with self._changed:
                    self.requests.append(request)
                    self._changed.notify_all()
                for step in steps:
                    self._do(one, step)
            if not _request(one):
                self._note_end()
        except OSError:
            self._note_end()

    def _note_end(self) -> None:
        with self._changed:
            self.ended += 1
            self._changed.notify_all()

    def _do(self, one: socket.socket, step: Step) -> None:
        if isinstance(step, bytes):
            one.sendall(step)
        elif isinstance(step, threading.Event):
            assert step.wait(WAIT_SECONDS)
        elif isinstance(step, ENDLESS | DRIP):
            slow = isinstance(step, DRIP)
            pieces = [bytes([byte]) for byte in step.data] if slow else [step.data]
            pause = 0.01 if slow else 0.0
            for piece in itertools.cycle(pieces):
                one.sendall(piece)
                if self._over.wait(pause):
                    return
        elif step is HOLD:
            while one.recv(65_536):
                pass
        else:
            _end(one, reset=step is RESET)


def _end(one: socket.socket, *, reset: bool) -> None:
    if reset:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _request(one: socket.socket) -> bytes:
    """One request, or nothing if the other side closed before it was complete."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = one.recv(65_536)
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
    while len(body) < length:
        more = one.recv(65_536)
        if not more:
            return b""
        body += more
    return head + b"\r\n\r\n" + body


class Answered(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Driver(Protocol):
    """Either driver, for requests whose response is read to its end."""

    def send(
        self, request: EncodedRequest, *, seconds: float, bytes_max: int | None
    ) -> Answered: ...

    def notice(self) -> None:
        """Wait until what the peer did to the kept connection has arrived."""
        ...

    def close(self) -> None: ...


class BlockingDriver:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.pool = BlockingPool(idle_seconds=IDLE_SECONDS, tls=tls)

    def send(self, request: EncodedRequest, *, seconds: float, bytes_max: int | None) -> Answered:
        exchange = self.pool.open(request, seconds=seconds, bytes_max=bytes_max)
        return Answered(exchange.status, exchange.headers, exchange.read())

    def notice(self) -> None:
        for kept in self.pool._kept._since:
            assert select.select([kept._socket], [], [], WAIT_SECONDS)[0]

    def close(self) -> None:
        self.pool.close()


class AsyncDriver:
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._runner = asyncio.Runner(loop_factory=type(self).loop)
        self.pool = self._runner.run(self._pool(tls))

    async def _pool(self, tls: ssl.SSLContext | None) -> AsyncPool:
        return AsyncPool(
            SystemResolver(), idle_seconds=IDLE_SECONDS, connect_seconds=WAIT_SECONDS, tls=tls
        )

    def send(self, request: EncodedRequest, *, seconds: float, bytes_max: int | None) -> Answered:
        return self._runner.run(self._send(request, seconds, bytes_max))

    async def _send(
        self, request: EncodedRequest, seconds: float, bytes_max: int | None
    ) -> Answered:
        async with self.pool.exchange(request, seconds=seconds, bytes_max=bytes_max) as answer:
            return Answered(answer.status, answer.headers, await answer.read())

    def notice(self) -> None:
        self._runner.run(eventually(lambda: not len(self.pool._kept)))

    def close(self) -> None:
        self._runner.run(self.pool.close())
        self._runner.close()


class UvloopDriver(AsyncDriver):
    """On the event loop that a server runs on."""

    loop = staticmethod(uvloop.new_event_loop)


DRIVERS: dict[str, Callable[[ssl.SSLContext | None], Driver]] = {
    "blocking": BlockingDriver,
    "asyncio": AsyncDriver,
    "uvloop": UvloopDriver,
}


def ask(
    driver: Driver,
    peer: Peer | Origin,
    method: str = "GET",
    target: str = "/",
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    repeatable: bool | None = None,
    seconds: float = WAIT_SECONDS,
    bytes_max: int | None = 10_000_000,
) -> Answered:
    request = encode_request(
        peer.origin if isinstance(peer, Peer) else peer,
        method,
        target,
        headers or {},
        body,
        repeatable=method in ("GET", "HEAD") if repeatable is None else repeatable,
    )
    return driver.send(request, seconds=seconds, bytes_max=bytes_max)


@contextlib.contextmanager
def certified(folder: Path, *names: str) -> Iterator[tuple[Path, Path]]:
    """A certificate for these names that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    alternatives: list[x509.GeneralName] = [
        x509.IPAddress(IPv4Address(name)) if name[0].isdigit() else x509.DNSName(name)
        for name in names
    ]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "certificate.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    yield files
