"""Mount ASGI applications, such as the MCP library's, under a path of the server.

An application gets the body in one piece, and its response is sent when it has ended: a mounted
application responds with JSON and does not stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fairlane.core.access import CALLER
from fairlane.http.messages import Answer, HttpRequest, Raw

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


async def answer(application: Application, request: HttpRequest) -> Answer:
    """Return the application's response to a request whose caller was admitted."""
    started: Message = {}
    body = bytearray()
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await request.closed()
            return {"type": "http.disconnect"}
        given = True
        return {"type": "http.request", "body": await request.body(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
        else:
            body.extend(message.get("body", b""))

    # These libraries need a real asyncio task.
    await asyncio.ensure_future(_called(application(_scope(request), receive, send)))
    headers = {name.decode("latin-1"): text.decode("latin-1") for name, text in started["headers"]}
    headers = {name.lower(): text for name, text in headers.items()}
    headers.pop("content-length", None)
    kind = headers.pop("content-type", "")
    return Answer(started["status"], Raw(bytes(body), kind), headers or None)


async def _called(answering: Awaitable[None]) -> None:
    await answering


def _scope(request: HttpRequest) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": request.version,
        "scheme": "http",
        "method": request.method,
        "path": request.full_path,
        "raw_path": request.full_path.encode(),
        "query_string": request.query_string,
        "root_path": "",
        "headers": [*request.headers.items(), *request.repeated],
        "client": (request.address, 0) if request.address else None,
        "server": request.server,
        CALLER: request.caller,
    }
