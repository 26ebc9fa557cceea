"""An application that returns the request it received."""

from __future__ import annotations

import msgspec

from fairlane.core.errors import InvalidRequest
from fairlane.http.messages import JSON, Answer, HttpRequest, Raw

ANY_SIZE = 1 << 30


class Echo:
    """`seen` are the requests that got through, by path and size of the body."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    async def __call__(self, request: HttpRequest) -> Answer:
        try:
            size = len(await request.body(ANY_SIZE))
        except InvalidRequest:
            return Answer(400, "nobody gets this: the caller has gone")
        self.seen.append((request.method, request.full_path, size))
        if request.full_path == "/broken":
            raise RuntimeError("at /srv/inside/secret.py: SELECT * FROM token")
        kind = "text/html; charset=utf-8" if request.full_path == "/" else JSON
        body = msgspec.json.encode({"path": request.full_path, "size": size})
        headers = {"Cache-Control": "no-cache"} if request.full_path == "/ui/kept.js" else None
        return Answer(200, Raw(body, kind), headers)
