"""Requests to the routes of a scheduler in this process: thousands, without a network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, MutableMapping
from typing import Any, NamedTuple

import msgspec
import psycopg

from fairlane.embedded.app import Fairlane
from fairlane.http.app import HttpApp
from fairlane.http.cross_site import Doorkeeper
from fairlane.store import queries

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

    def __init__(self, app: Fairlane) -> None:
        self.app = app
        self.http = HttpApp(app.node, app.guard.check)
        self._door = Doorkeeper(self.http, [HOST])
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
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode("utf-8", "surrogatepass"),
            "query_string": query.encode("latin-1", "replace"),
            "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 9867),
        }
        return await self._answer(scope, data or b"")

    async def _answer(self, scope: MutableMapping[str, Any], body: bytes) -> Answer:
        said: list[MutableMapping[str, Any]] = []

        asked = False

        async def receive() -> MutableMapping[str, Any]:
            nonlocal asked
            if asked:  # nobody hangs up here
                await asyncio.get_running_loop().create_future()
            asked = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            said.append(message)

        await self._door(scope, receive, send)
        found = {name.decode(): value.decode("latin-1") for name, value in said[0]["headers"]}
        return Answer(said[0]["status"], found, b"".join(m.get("body", b"") for m in said[1:]))

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
        return store._open(readonly=True)
    return psycopg.connect(store.url, autocommit=True)


_TABLES = {
    queries.SQLITE: "SELECT name FROM sqlite_master WHERE type = 'table'",
    queries.POSTGRES: "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
}
# The sources of numbers, and what is written about who asks.
_BY_ITSELF = ("scheduler", "writer", "audit", "node", "token")
