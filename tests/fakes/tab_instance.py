"""A tab instance: lists its tabs, carries out actions on them, and remembers everything asked.

In a test it is an async context manager; as a program it prints one JSON line with its address:

    python -m tests.fakes.tab_instance --port 0 --tabs a,b --token T

`Behaviour` says how it misbehaves: for all actions (`instance.actions`), for the listing
(`instance.listing`), or for one action by its param `fake`. From outside the process the same is
done with `POST /__behave {"actions": {...}, "listing": {...}}`, `POST /__release` and
`PUT /__tabs ["a", "b"]`; `GET /__record` tells what happened. The routes with `__` need no token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

import msgspec
from aiohttp import web

from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

TABS, ACTION = "tabs", "action"


class Behaviour(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    delay_ms: int = 0
    hang: bool = False  # until release() or the caller goes away
    drop: bool = False  # close the connection without an answer
    break_off: bool = False  # close it in the middle of one
    status: int | None = None
    body: Any = None  # text and bytes go out as they are, everything else as JSON
    headers: dict[str, str] = {}
    times: int | None = None  # for so many requests, then normal again


class Entry(msgspec.Struct, rename="camel"):
    """One request. `arrived` and `finished` come from one counter, so they give the order."""

    what: str  # tabs, action, or the path of anything else
    method: str
    path: str
    tab: str | None
    headers: dict[str, str]  # names in lower case
    body: Any
    arrived: int
    finished: int | None = None
    outcome: str = "open"  # open, answered, dropped, gone (the caller went away)
    status: int | None = None


class Record(msgspec.Struct, rename="camel"):
    requests: list[Entry]
    max_concurrent: int
    max_concurrent_per_tab: dict[str, int]


class TabInstance:
    def __init__(
        self, tabs: Iterable[str] = (), token: str | None = None, *, port: int = 0
    ) -> None:
        self.tabs = list(tabs)
        self.token = token
        self.actions = Behaviour()
        self.listing = Behaviour()
        self.requests: list[Entry] = []
        self.max_concurrent = 0
        self.max_concurrent_per_tab: dict[str, int] = {}
        self.url = ""
        self._port = port
        self._count = itertools.count(1)
        self._released = asyncio.Event()
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    # --- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        # Cancelling the handler is how it notices that the caller went away.
        self._runner = web.AppRunner(
            self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, self._port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        self.release()
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2 * 1024 * 1024)
        app.router.add_get("/tabs", self._serve_tabs)
        app.router.add_post("/tabs/{tab}/action", self._serve_action)
        app.router.add_get("/__record", self._serve_record)
        app.router.add_post("/__behave", self._serve_behave)
        app.router.add_post("/__release", self._serve_release)
        app.router.add_put("/__tabs", self._serve_set_tabs)
        app.router.add_route("*", "/{path:.*}", self._serve_anything)
        return app

    # --- what a test does with it ---------------------------------------------------------------

    def move(self, tab: str, to: TabInstance) -> None:
        self.tabs.remove(tab)
        to.tabs.append(tab)

    def release(self) -> None:
        """Let everything that hangs go on; what comes later hangs again."""
        self._released.set()
        self._released = asyncio.Event()

    def seen(self, what: str) -> list[Entry]:
        return [entry for entry in self.requests if entry.what == what]

    def record(self) -> Record:
        return Record(self.requests, self.max_concurrent, self.max_concurrent_per_tab)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a request makes the condition true."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    # --- routes ---------------------------------------------------------------------------------

    async def _serve_tabs(self, request: web.Request) -> web.StreamResponse:
        tabs = [{"id": tab, "title": f"Tab {tab}", "url": "about:blank"} for tab in self.tabs]
        async with self._recorded(request, TABS) as entry:
            refusal = self._unauthorized(request)
            usual = refusal or web.json_response({"tabs": tabs})
            return await self._behave(request, entry, self.listing, usual)

    async def _serve_action(self, request: web.Request) -> web.StreamResponse:
        async with self._recorded(request, ACTION) as entry:
            refusal = self._unauthorized(request) or self._unacceptable(entry)
            if refusal is not None:
                return await self._behave(request, entry, Behaviour(), refusal)
            how = self.actions
            if "fake" in entry.body:
                how = msgspec.convert(entry.body["fake"], Behaviour)
            usual = web.json_response(
                {"success": True, "result": {entry.body["kind"]: True, "received": entry.body}},
                headers={"X-PinchTab-Tab-Id": str(entry.tab)},
            )
            return await self._behave(request, entry, how, usual)

    async def _serve_anything(self, request: web.Request) -> web.StreamResponse:
        async with self._recorded(request, request.path) as entry:
            nothing = web.Response(status=404, text="404 page not found")
            return await self._behave(request, entry, Behaviour(), nothing)

    async def _serve_record(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(self.record())
        return web.Response(body=body, content_type="application/json")

    async def _serve_behave(self, request: web.Request) -> web.Response:
        how = msgspec.json.decode(await request.read(), type=dict[str, Behaviour])
        self.actions = how.get("actions", self.actions)
        self.listing = how.get("listing", self.listing)
        return web.Response(status=204)

    async def _serve_release(self, _: web.Request) -> web.Response:
        self.release()
        return web.Response(status=204)

    async def _serve_set_tabs(self, request: web.Request) -> web.Response:
        self.tabs = msgspec.json.decode(await request.read(), type=list[str])
        return web.Response(status=204)

    # --- how it answers -------------------------------------------------------------------------

    def _unauthorized(self, request: web.Request) -> web.Response | None:
        if self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        code = "bad_token" if "Authorization" in request.headers else "missing_token"
        return _error(401, "unauthorized", code=code)

    def _unacceptable(self, entry: Entry) -> web.Response | None:
        if not isinstance(entry.body, dict) or not entry.body.get("kind"):
            return _error(400, "missing required field 'kind'")
        if entry.body.get("tabId", entry.tab) != entry.tab:
            return _error(400, "tabId in body does not match path id")
        if entry.tab not in self.tabs:
            return _error(404, f"tab {entry.tab} not found")
        return None

    async def _behave(
        self, request: web.Request, entry: Entry, how: Behaviour, usual: web.Response
    ) -> web.StreamResponse:
        if how.times is not None:
            how.times -= 1
            how = Behaviour() if how.times < 0 else how
        if how.delay_ms:
            await asyncio.sleep(how.delay_ms / 1000)
        if how.hang:
            await self._released.wait()
        if how.drop or how.break_off:
            entry.outcome = "dropped"
            return await _broken(request, half=how.break_off)
        answer = usual if how.status is None else _answer(how)
        entry.status = answer.status
        return answer

    @contextlib.asynccontextmanager
    async def _recorded(self, request: web.Request, what: str) -> AsyncIterator[Entry]:
        entry = Entry(
            what=what,
            method=request.method,
            path=request.path_qs,
            tab=request.match_info.get("tab"),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=_decoded(await request.read()),
            arrived=next(self._count),
        )
        self.requests.append(entry)
        self._count_open(entry)
        await self._tell()
        try:
            yield entry
            entry.outcome = "answered" if entry.outcome == "open" else entry.outcome
        except asyncio.CancelledError:
            entry.outcome = "gone"
            raise
        finally:
            entry.finished = next(self._count)
            await self._tell()

    def _count_open(self, entry: Entry) -> None:
        if entry.what != ACTION:
            return
        running = [one for one in self.seen(ACTION) if one.finished is None]
        same_tab = sum(one.tab == entry.tab for one in running)
        tab, most = str(entry.tab), self.max_concurrent_per_tab
        self.max_concurrent = max(self.max_concurrent, len(running))
        most[tab] = max(most.get(tab, 0), same_tab)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


async def _broken(request: web.Request, *, half: bool) -> web.StreamResponse:
    answer = web.StreamResponse()
    if half:
        answer.content_length = 1000
        await answer.prepare(request)
        await answer.write(b'{"success":')
    if request.transport is not None:
        request.transport.close()
    return answer


def _answer(how: Behaviour) -> web.Response:
    assert how.status is not None
    if isinstance(how.body, bytes):
        return web.Response(status=how.status, body=how.body, headers=how.headers)
    if how.body is None or isinstance(how.body, str):
        return web.Response(status=how.status, text=how.body, headers=how.headers)
    return web.json_response(how.body, status=how.status, headers=how.headers)


def _error(status: int, text: str, *, code: str = "error") -> web.Response:
    return web.json_response({"code": code, "error": text}, status=status)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")


# --- as a program -------------------------------------------------------------------------------


async def serve(instance: TabInstance) -> None:
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    async with instance:
        sys.stdout.write(msgspec.json.encode({"url": instance.url}).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="a tab instance for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tabs", default="", help="ids, with commas between them")
    parser.add_argument("--token")
    parser.add_argument("--delay-ms", type=int, default=0, help="how long every action takes")
    options = parser.parse_args()
    tabs = [tab for tab in options.tabs.split(",") if tab]
    instance = TabInstance(tabs, options.token, port=options.port)
    instance.actions = Behaviour(delay_ms=options.delay_ms)
    asyncio.run(serve(instance))


if __name__ == "__main__":
    main()
