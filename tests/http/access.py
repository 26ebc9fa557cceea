"""Callers with tokens, and a world of things that are one agent's.

Everything of the agent `a1` holds a word that nobody else may ever read, so that a leak is found
wherever it comes out.
"""

from __future__ import annotations

import asyncio
import io
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from fairlane.clock import SystemClock
from fairlane.core import access
from fairlane.core.access import Scope
from fairlane.engine.writing_node import WritingNode
from fairlane.http.app import HttpApp
from fairlane.http.messages import Route
from fairlane.store.opening import open_store
from tests.http.api import Answer, eventually
from tests.http.server import Server, serving

ALICE, BOB = "a1", "b1"
SECRET = "only-alice-knows"
RESOURCES = {
    "spend": {"limits": [{"unit": "usd", "amount": 50, "resetEvery": "day"}]},  # closed, raised
    "calls": {"limits": [{"unit": "slots", "amount": 1_000_000}]},
}
ROOMY = {"lanes": {"main": {"maxInflight": 10_000}}, "resources": RESOURCES}
ALL = [str(scope) for scope in Scope]
OF_AGENTS = [scope for scope in ALL if scope != Scope.ADMIN]
_numbers = itertools.count(1)


def routes() -> dict[tuple[str, str], Route]:
    """Every route that a server has, by method and path."""
    app = HttpApp(WritingNode(open_store("sqlite:///:memory:"), SystemClock()), lambda _: None)
    return {
        (method, path): route
        for path, methods in app.routes.items()
        for method, route in methods.items()
    }


class Callers:
    """Tokens of all kinds for one server, each made when it is first wanted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), trust_env=False
        )
        self._made: dict[Any, str] = {}
        self.root = ""

    async def close(self) -> None:
        await self._session.close()

    async def begin(self) -> None:
        """The first token is made while nobody needs one."""
        self.root = await self.new(scopes=ALL, by=None)

    async def new(self, *, by: str | None = "", **fields: Any) -> str:
        body = {"name": f"t{next(_numbers)}", **fields}
        answer = await self.ask("POST", "/tokens", body, token=self.root if by == "" else by)
        assert answer.status == 201, answer
        token: str = answer.json["token"]
        return token

    async def of(self, agent: str | None, *scopes: str) -> str:
        key = (agent, scopes)
        if key not in self._made:
            named = {} if agent is None else {"agentId": agent}
            self._made[key] = await self.new(scopes=list(scopes), **named)
        return self._made[key]

    async def without(self, scope: str) -> str:
        return await self.of(None, *(one for one in ALL if one != scope))

    async def alice(self) -> str:
        return await self.of(ALICE, *OF_AGENTS)

    async def bob(self) -> str:
        return await self.of(BOB, *OF_AGENTS)

    async def revoked(self) -> str:
        if "revoked" not in self._made:
            token = await self.new(scopes=ALL)
            answer = await self.ask("DELETE", f"/tokens/{id_of(token)}", token=self.root)
            assert answer.status == 200, answer
            self._made["revoked"] = token
        return self._made["revoked"]

    async def expired(self) -> str:
        if "expired" not in self._made:
            soon = datetime.now(UTC) + timedelta(seconds=2)
            token = await self.new(scopes=ALL, expiresAt=soon.isoformat(timespec="milliseconds"))

            async def over() -> bool | None:
                return (await self.ask("GET", "/whoami", token=token)).status == 401 or None

            await eventually(over)
            self._made["expired"] = token
        return self._made["expired"]

    async def wrong(self) -> str:
        """Of the right form, with the id of a token that there is."""
        return access.format_token(id_of(self.root), b"\1" * access.SECRET_BYTES)

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The whole answer; of a stream its beginning."""
        sent = {"Accept": "application/json", **(headers or {})}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = None if body is None else msgspec.json.encode(body)
        if data is not None:
            sent["Content-Type"] = "application/json"
        async with self._session.request(
            method,
            self.url + path,
            data=None if data is None else io.BytesIO(data),
            headers=sent,
            allow_redirects=False,
        ) as answer:
            if answer.content_type == "text/event-stream":
                return Answer(answer.status, answer.headers, await answer.content.readany())
            return Answer(answer.status, answer.headers, await answer.read())


def id_of(token: str) -> str:
    return token.split("_")[1]


@asynccontextmanager
async def guarded(folder: Path, store: str, **options: Any) -> AsyncIterator[Callers]:
    """A server that wants tokens, and callers who have some."""
    environment = {"FAIRLANE_MCP_WRITES": "true"}
    given = {"policy": ROOMY, "environment": environment, **options}
    async with serving(folder, store, **given) as server, calling(server) as callers:
        yield callers


@asynccontextmanager
async def calling(server: Server) -> AsyncIterator[Callers]:
    callers = Callers(server.url)
    try:
        await callers.begin()
        yield callers
    finally:
        await callers.close()


@dataclass
class World:
    """The names of things that are Alice's, and of one template that is everybody's."""

    names: dict[str, str] = field(default_factory=dict)

    @property
    def own(self) -> set[str]:
        """What nobody else may learn, not even that it exists."""
        shared = {"template", "lane", "file", "resource", "worker"}
        return {value for name, value in self.names.items() if name not in shared}


async def world(callers: Callers) -> World:
    """One of everything, each with names of its own."""
    alice, number = await callers.alice(), next(_numbers)
    names = {"lane": "team", "file": "none.js", "key": f"chat:{number}", "entry": f"entry-{number}"}
    names |= {"handler": f"nobody-{number}", "resource": "spend", "worker": f"idle-{number}"}
    body = {"handler": names["handler"], "params": {"text": SECRET}, "metadata": {"m": SECRET}}

    async def made(path: str, body: Any, token: str = alice) -> Any:
        answer = await callers.ask("POST", path, body, token=token)
        assert answer.status in (200, 201, 202), answer
        return answer.json

    leased = await made("/tasks", {**body, "handler": f"leased-{number}"})
    lease = {"worker": f"w-{number}", "handlers": [f"leased-{number}"], "ttlMs": 3_600_000}
    (granted,) = (await made("/leases", lease))["leases"]
    names |= {"leased": leased["taskId"], "lease": granted["leaseId"]}
    permit = {"token": granted["token"], "needs": {"calls": {"slots": 1}}}
    names["permit"] = (await made(f"/leases/{names['lease']}/permits", permit))["permitId"]
    names["task"] = (await made("/tasks", body))["taskId"]
    asks = (await made("/tasks", {**body, "approval": {"title": SECRET}}))["taskId"]
    asked = await callers.ask("GET", f"/approvals?taskId={asks}", token=alice)
    names["approval"] = asked.json["approvals"][0]["id"]
    batch = await made("/tasks/batch", {"tasks": [body, body]})
    names["batch"] = batch["batchId"]
    said = {"message": SECRET, "handler": "nobody", "noMerge": True}  # it waits for no more
    sent = await made(f"/sessions/{names['key']}/messages", said)
    names["message"] = sent["messageId"]
    await made("/queue", {"id": names["entry"], "repo": "/r", "note": SECRET})
    job = {
        "name": f"job-{number}",
        "schedule": {"kind": "cron", "expr": "0 0 1 1 *"},
        "task": {"handler": "nobody", "params": {"text": SECRET}},
    }
    names["job"] = (await made("/cron/jobs", job))["id"]
    url = f"https://example.com/hook-{number}"
    names["endpoint"] = (await made("/webhooks", {"url": url}))["id"]
    told = (await made("/tasks", {**body, "callbackUrl": url}))["taskId"]
    await made(f"/tasks/{told}/cancel", None)
    owed = await callers.ask("GET", f"/deliveries?taskId={told}", token=alice)
    names["delivery"] = owed.json["deliveries"][0]["id"]
    template = {"name": f"template-{number}", "instruction": "Go", "parameters": []}
    names["template"] = (await made("/templates", template, callers.root))["id"]
    return World(names)


async def everything(callers: Callers) -> dict[str, Any]:
    """All that there is, as an operator sees it: what has changed shows here."""
    paths = ["/tasks?limit=1000", "/batches?limit=1000", "/sessions?limit=1000", "/templates"]
    paths += [
        "/approvals?limit=1000",
        "/resources?limit=1000",
        "/cron/jobs?limit=1000",
        "/queue?limit=1000",
        "/policy/versions",
        "/tokens",
    ]
    asked = [callers.ask("GET", path, token=callers.root) for path in paths]
    found = dict(zip(paths, await asyncio.gather(*asked), strict=True))
    shapes = {path: answer.json for path, answer in found.items()}
    for token in shapes["/tokens"]["tokens"]:
        token.pop("lastUsedAt", None)
    return shapes
