"""Serve the dashboard: a page, a style sheet and modules that use the public API.

The files are read once, at start, and identified by a hash of their bytes. A browser revalidates
its copy on each load, and the copy is nearly always current.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from fairlane.core.errors import NotFound
from fairlane.http.messages import Answer, HttpRequest, Raw, Route, Routes

PAGE: Final = "index.html"
TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Dashboard:
    def __init__(self) -> None:
        folder = resources.files("fairlane.http").joinpath("dashboard")
        self._files = dict(_walk(folder))

    def routes(self) -> Routes:
        return {
            "/ui/{file}": {"GET": Route(self.file, None, open=True)},
            "/ui/pages/{file}": {"GET": Route(self.page_file, None, open=True)},
        }

    async def file(self, request: HttpRequest) -> Answer:
        return self.serve(request, request.path["file"])

    async def page_file(self, request: HttpRequest) -> Answer:
        return self.serve(request, f"pages/{request.path['file']}")

    def serve(self, request: HttpRequest, name: str = PAGE) -> Answer:
        if name not in self._files:
            raise NotFound("the dashboard has no such file; the dashboard is at /")
        raw, tag = self._files[name]
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if name == PAGE:
            headers["Vary"] = "Accept"
        known = (request.header(b"if-none-match") or "").split(",")
        if tag in map(str.strip, known):
            return Answer(304, Raw(b"", raw.type), headers)
        return Answer(200, raw, headers)


def wants_page(request: HttpRequest) -> bool:
    """Return whether the client is a browser that expects a page."""
    return "text/html" in (request.header(b"accept") or "")


def _walk(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, tuple[Raw, str]]]:
    for file in folder.iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if file.is_dir():
            yield from _walk(file, f"{prefix}{file.name}/")
        elif kind is not None:
            body = file.read_bytes()
            yield prefix + file.name, (Raw(body, kind), f'"{hashlib.sha256(body).hexdigest()}"')
