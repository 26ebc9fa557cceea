"""An application that says what has reached it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Message = MutableMapping[str, Any]


class Echo:
    """`seen` are the requests that got through, by path and size of the body."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            if not message.get("more_body"):
                break
        self.seen.append((scope["method"], scope["path"], size))
        if scope["path"] == "/broken":
            raise RuntimeError("at /srv/inside/secret.py: SELECT * FROM token")
        kind = b"text/html; charset=utf-8" if scope["path"] == "/" else b"application/json"
        body = msgspec.json.encode({"path": scope["path"], "size": size})
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        if scope["path"] == "/ui/kept.js":
            headers.append((b"cache-control", b"no-cache"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
