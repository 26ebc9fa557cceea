"""Requests to the routes of a scheduler in this process: thousands, without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import psycopg

from fairlane.embedded.app import Fairlane
from fairlane.engine.node import Node
from fairlane.http.app import HttpApp
from fairlane.http.cross_site import Doorkeeper
from fairlane.http.messages import HttpRequest, Stream, encoded, refusal
from fairlane.http.responses import response
from fairlane.store import queries
from tests.hostile.wires import parsed

HOST = "127.0.0.1:9867"


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.raw)


class Inside:
    """What comes in goes through the door as from a network."""

    def __init__(self, app: Fairlane, node: Node | None = None) -> None:
        """`node` is asked instead of the scheduler's own."""
        self.app = app
        self.http = HttpApp(node or app.node, app.guard.check)
        self._door = Doorkeeper([HOST])
        self._reader: Any = None

    async def ask(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        data = msgspec.json.encode(body) if body is not None else raw
        given = {"host": HOST, "accept": "application/json", **(headers or {})}
        if data is not None:
            given.setdefault("content-type", "application/json")
            given["content-length"] = str(len(data))
        path, _, query = target.partition("?")
        fields = {name.lower().encode(): text.encode("latin-1") for name, text in given.items()}
        request = HttpRequest(method, path, query.encode("latin-1", "replace"), fields, data or b"")
        request.address, request.server = "127.0.0.1", ("127.0.0.1", 9867)
        return await self._answer(request)

    async def _answer(self, request: HttpRequest) -> Answer:
        problem = self._door.problem(request)
        found = encoded(refusal(problem)) if problem else await self.http(request)
        if isinstance(found, Stream):
            try:
                return Answer(200, {}, b"".join([piece async for piece in found.pieces]))
            finally:
                found.release()
        (said,) = parsed(response(found, b"1"))
        return Answer(said.status, said.headers, said.body)

    def kept(self) -> dict[str, str]:
        """A digest of each table, but for those that keeping watch writes by itself."""
        if self._reader is None:
            self._reader = _reader(self.app)
        names = self._reader.execute(_TABLES[self.app.node.store.dialect]).fetchall()
        return {name: self._digest(name) for (name,) in names if name not in _BY_ITSELF}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _digest(self, name: str) -> str:
        rows = self._reader.execute(f'SELECT * FROM "{name}"').fetchall()
        return hashlib.sha256(repr(sorted(map(repr, rows))).encode()).hexdigest()


def _reader(app: Fairlane) -> Any:
    store: Any = app.node.store  # one in memory can be looked into only from inside
    if store.dialect == queries.SQLITE:
        return store.open_file(readonly=True)
    return psycopg.connect(store.url, autocommit=True)


_TABLES = {
    queries.SQLITE: "SELECT name FROM sqlite_master WHERE type = 'table'",
    queries.POSTGRES: "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
}
# The sources of numbers, and what is written about who asks.
_BY_ITSELF = ("scheduler", "writer", "audit", "node", "presence", "token", "worker", "handler_hour")
