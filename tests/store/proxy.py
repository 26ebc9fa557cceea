"""A little proxy in front of PostgreSQL that loses the answer to a COMMIT, as a bad network does.

It passes everything on until it sees a COMMIT go by. That one still reaches the server, but before
the server's answer comes back the caller's connection is cut.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_SOCKET = ".s.PGSQL.5432"
_CHUNK = 65_536


class CommitCutter:
    """Cuts one connection at its next COMMIT whenever it is armed."""

    def __init__(self, server_url: str, folder: Path) -> None:
        address = urlsplit(server_url)
        query = parse_qs(address.query)
        self._server = f"{query['host'][0]}/{_SOCKET}"
        self.url = address._replace(query=urlencode({"host": str(folder)})).geturl()
        self.cuts = 0
        self._armed = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{_SOCKET}")
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]

    def arm(self) -> None:
        self._armed.set()

    def __enter__(self) -> CommitCutter:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                for task in (self._pass_on, self._pass_back):
                    thread = threading.Thread(target=task, args=(caller, server))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, caller: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while chunk := caller.recv(_CHUNK):
                if self._armed.is_set() and b"COMMIT\x00" in chunk:
                    self._armed.clear()
                    self.cuts += 1
                    caller.shutdown(socket.SHUT_RDWR)
                server.sendall(chunk)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _pass_back(self, caller: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while chunk := server.recv(_CHUNK):
                caller.sendall(chunk)
        for end in (caller, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


TO_SERVER = "to the server"
TO_CLIENT = "to the client"


class Freezer:
    """A proxy that passes everything on until it is told to freeze; then its callers hang.

    With `after` bytes it freezes in the middle of whatever goes that way then: a message of which
    one side has the beginning and will never have the end. Nobody is disconnected.
    """

    def __init__(self, server_url: str, folder: Path) -> None:
        address = urlsplit(server_url)
        query = parse_qs(address.query)
        self._server = f"{query['host'][0]}/{_SOCKET}"
        self.url = address._replace(query=urlencode({"host": str(folder)})).geturl()
        self.frozen = threading.Event()
        self._moving = threading.Event()
        self._moving.set()
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}
        self._ends: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{_SOCKET}")
        self._listener.listen(100)
        self._threads = [threading.Thread(target=self._accept)]

    def freeze(self) -> None:
        self._moving.clear()
        self.frozen.set()

    def freeze_after(self, size: int, way: str) -> None:
        with self._lock:
            self._left[way] = size

    def thaw(self) -> None:
        self.frozen.clear()
        self._moving.set()

    def __enter__(self) -> Freezer:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self.thaw()
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._ends += [caller, server]
                server.connect(self._server)
                for ends in ((caller, server, TO_SERVER), (server, caller, TO_CLIENT)):
                    thread = threading.Thread(target=self._pass, args=ends)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        with suppress(OSError):
            while self._moving.wait() and (chunk := source.recv(_CHUNK)):
                self._count(len(chunk), way)
                self._moving.wait()
                target.sendall(chunk)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _count(self, size: int, way: str) -> None:
        with self._lock:
            if way in self._left:
                self._left[way] -= size
                if self._left[way] <= 0:
                    del self._left[way]
                    self.freeze()
