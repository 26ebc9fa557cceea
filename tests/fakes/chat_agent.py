"""A chat agent: `POST /chat` answers with server-sent events, and everything asked is remembered.

In a test it is an async context manager; as a program it prints one JSON line with its address:

    python -m tests.fakes.chat_agent --port 0 --token T

A `Script` says what it answers: to every message (`agent.script`), to one message by its text
(`agent.scripts`), or to one request by the field `fake` of its body, where llmConfig ends up. From
outside the process the same is done with `POST /__behave {"": {...}, "a message": {...}}` and
`POST /__release`; `GET /__record` tells what happened. The routes with `__` need no token.
Without a script it says the message back, word by word, and finishes.
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
    from collections.abc import AsyncIterator, Callable

EVENT_STREAM = "text/event-stream"


class Script(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    events: list[Any] | None = None  # each as the data of one event
    pieces: list[Any] | None = None  # before the events: text and bytes as they are, one by one
    done: bool = False  # the end mark behind the events
    pause_ms: int = 0  # before each piece
    hang_after: int | None = None  # so many pieces, until release() or the caller goes away
    break_off: bool = False  # close the connection where the stream should end
    drop: bool = False  # close it without an answer
    content_type: str | None = EVENT_STREAM
    status: int | None = None  # an answer in one piece instead of a stream, with `body`
    body: Any = None  # text and bytes go out as they are, everything else as JSON
    headers: dict[str, str] = {}
    times: int | None = None  # for so many requests, then the usual again


class Entry(msgspec.Struct, rename="camel"):
    """One request. `arrived` and `finished` come from one counter, so they give the order."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: Any
    arrived: int
    finished: int | None = None
    pieces: int = 0  # how many have been written
    outcome: str = "open"  # open, answered, dropped, gone (the caller went away)
    status: int | None = None

    @property
    def message(self) -> Any:
        return self.body.get("message") if isinstance(self.body, dict) else None


class Record(msgspec.Struct, rename="camel"):
    requests: list[Entry]
    max_concurrent: int


class ChatAgent:
    def __init__(self, token: str | None = None, *, port: int = 0) -> None:
        self.token = token
        self.pause_ms = 0  # of the usual answer
        self.script: Script | None = None
        self.scripts: dict[str, Script] = {}
        self.requests: list[Entry] = []
        self.max_concurrent = 0
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
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_get("/__record", self._serve_record)
        app.router.add_post("/__behave", self._serve_behave)
        app.router.add_post("/__release", self._serve_release)
        app.router.add_route("*", "/{path:.*}", self._serve_chat)
        return app

    # --- what a test does with it ---------------------------------------------------------------

    def release(self) -> None:
        """Let everything that hangs go on; what comes later hangs again."""
        self._released.set()
        self._released = asyncio.Event()

    def record(self) -> Record:
        return Record(self.requests, self.max_concurrent)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that happens here makes the condition true."""
        async with asyncio.timeout(WAIT_SECONDS), self._changed:
            await self._changed.wait_for(condition)

    # --- routes ---------------------------------------------------------------------------------

    async def _serve_chat(self, request: web.Request) -> web.StreamResponse:
        async with self._recorded(request) as entry:
            script = self._refusal(entry) or self._script(entry)
            if script.drop:
                return self._hang_up(request, entry)
            if script.status is None:
                return await self._stream(request, entry, script)
            await self._pause(script, 0)
            entry.status = script.status
            return _answer(script)

    async def _serve_record(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(self.record())
        return web.Response(body=body, content_type="application/json")

    async def _serve_behave(self, request: web.Request) -> web.Response:
        scripts = msgspec.json.decode(await request.read(), type=dict[str, Script])
        self.script = scripts.pop("", self.script)
        self.scripts.update(scripts)
        return web.Response(status=204)

    async def _serve_release(self, _: web.Request) -> web.Response:
        self.release()
        return web.Response(status=204)

    # --- how it answers -------------------------------------------------------------------------

    def _refusal(self, entry: Entry) -> Script | None:
        if self.token is not None and entry.headers.get("authorization") != f"Bearer {self.token}":
            return Script(status=401, body={"error": "unauthorized"})
        if (entry.method, entry.path) != ("POST", "/chat"):
            return Script(status=404, body="no such route")
        if not isinstance(entry.message, str):
            return Script(status=400, body={"error": "message must be a text"})
        return None

    def _script(self, entry: Entry) -> Script:
        script = self.scripts.get(entry.message, self.script)
        if "fake" in entry.body:
            script = msgspec.convert(entry.body["fake"], Script)
        if script is not None and script.times is not None:
            script.times -= 1
            script = None if script.times < 0 else script
        events = usual_events(entry.message)
        return script or Script(events=events, done=True, pause_ms=self.pause_ms)

    async def _stream(
        self, request: web.Request, entry: Entry, script: Script
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers=script.headers)
        if script.content_type is not None:
            answer.content_type = script.content_type
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        entry.status = answer.status
        for number, piece in enumerate(_pieces(script)):
            await self._pause(script, number)
            await answer.write(piece)
            entry.pieces += 1
            await self._tell()
        await self._pause(script, entry.pieces)
        if script.break_off:
            return self._hang_up(request, entry)
        await answer.write_eof()
        return answer

    async def _pause(self, script: Script, number: int) -> None:
        if script.pause_ms:
            await asyncio.sleep(script.pause_ms / 1000)
        if script.hang_after == number:
            await self._released.wait()

    def _hang_up(self, request: web.Request, entry: Entry) -> web.StreamResponse:
        entry.outcome = "dropped"
        if request.transport is not None:
            request.transport.close()
        return web.StreamResponse()

    @contextlib.asynccontextmanager
    async def _recorded(self, request: web.Request) -> AsyncIterator[Entry]:
        entry = Entry(
            method=request.method,
            path=request.path_qs,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=_decoded(await request.read()),
            arrived=next(self._count),
        )
        self.requests.append(entry)
        running = sum(one.finished is None for one in self.requests)
        self.max_concurrent = max(self.max_concurrent, running)
        await self._tell()
        try:
            yield entry
            entry.outcome = "answered" if entry.outcome == "open" else entry.outcome
        except (asyncio.CancelledError, ConnectionError):
            entry.outcome = "gone"
            raise
        finally:
            entry.finished = next(self._count)
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def usual_events(message: str) -> list[Any]:
    words = [{"type": "text-delta", "id": "t", "delta": word} for word in message.split()]
    return [{"type": "start"}, *words, {"type": "finish", "text": message}]


def event(document: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(document) + b"\n\n"


def _pieces(script: Script) -> list[bytes]:
    pieces = [piece.encode() if isinstance(piece, str) else piece for piece in script.pieces or []]
    pieces += [event(document) for document in script.events or []]
    return pieces + [b"data: [DONE]\n\n"] * script.done


def _answer(script: Script) -> web.Response:
    assert script.status is not None
    if isinstance(script.body, bytes):
        return web.Response(status=script.status, body=script.body, headers=script.headers)
    if script.body is None or isinstance(script.body, str):
        return web.Response(status=script.status, text=script.body, headers=script.headers)
    return web.json_response(script.body, status=script.status, headers=script.headers)


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body) if body else None
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")


# --- as a program -------------------------------------------------------------------------------


async def serve(agent: ChatAgent) -> None:
    stop = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(one, stop.set)
    async with agent:
        sys.stdout.write(msgspec.json.encode({"url": agent.url}).decode() + "\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="a chat agent for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token")
    parser.add_argument("--pause-ms", type=int, default=0, help="before each piece of the usual")
    options = parser.parse_args()
    agent = ChatAgent(options.token, port=options.port)
    agent.pause_ms = options.pause_ms
    asyncio.run(serve(agent))


if __name__ == "__main__":
    main()
