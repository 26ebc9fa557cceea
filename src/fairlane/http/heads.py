"""Heads of requests that were parsed before: the same bytes are not parsed again.

A client that keeps a connection open sends nearly the same head with each request. Its meaning
depends on nothing but its bytes, so it is parsed and checked once. Only complete requests that
arrive in one piece qualify, with a body whose length the head declares; all other requests, and the
first two with a head, go through the parser.
"""

from __future__ import annotations

from typing import Final

from fairlane.http.cross_site import Doorkeeper
from fairlane.http.exchange import Exchange

HEADS_MAX: Final = 512
HEAD_BYTES_MAX: Final = 1024
_BLANK_LINE: Final = b"\r\n\r\n"
# A body that is framed otherwise, a client that waits for permission, and values that differ in
# each request.
_NEVER: Final = (b"transfer-encoding", b"expect", b"upgrade", b"idempotency-key", b"traceparent")


class Head:
    """A head that the parser has accepted, with the length of the body that it declares.

    `admitted` says that the doorkeeper admits it on every connection.
    """

    __slots__ = ("admitted", "headers", "length", "method", "path", "query")

    def __init__(self, exchange: Exchange, length: int, *, admitted: bool) -> None:
        self.method = exchange.method
        self.path = exchange.route_path
        self.query = exchange.query_string
        self.headers = exchange.headers
        self.length = length
        self.admitted = admitted


class KnownHeads:
    def __init__(self, door: Doorkeeper) -> None:
        self._door = door
        self._heads: dict[bytes, Head] = {}
        self._seen: set[int] = set()  # hashes of heads that came once

    def find(self, data: bytes) -> tuple[Head, int] | None:
        """Return the head of a complete request and where its body starts; None if the data has to
        be parsed.
        """
        start = data.find(_BLANK_LINE, 0, HEAD_BYTES_MAX) + len(_BLANK_LINE)
        head = self._heads.get(data[:start])
        if head is None or len(data) - start != head.length:
            return None
        return head, start

    def note(self, data: bytes, exchange: Exchange) -> None:
        """Note the head of the one request that `data` consists of, if it came before."""
        start = data.find(_BLANK_LINE, 0, HEAD_BYTES_MAX) + len(_BLANK_LINE)
        length = len(data) - start
        if start < len(_BLANK_LINE) or not _is_plain(exchange, length):
            return
        text = data[:start]
        number = hash(text)
        if number not in self._seen:
            if len(self._seen) >= HEADS_MAX:
                self._seen.clear()
            self._seen.add(number)
            return
        if len(self._heads) >= HEADS_MAX:
            self._heads.clear()
        self._heads[text] = Head(exchange, length, admitted=self._door.always_admits(exchange))


def _is_plain(exchange: Exchange, length: int) -> bool:
    headers = exchange.headers
    declared = headers.get(b"content-length", b"0")
    return (
        exchange.version == "1.1"
        and exchange.keep_alive
        and not exchange.repeated
        and declared == b"%d" % length
        and not any(name in headers for name in _NEVER)
    )
