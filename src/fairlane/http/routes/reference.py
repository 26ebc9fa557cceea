"""`GET /docs`: the operations as a page to read, made from `/openapi.json`. It needs no script."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from typing import Any, Final

from fairlane.http.messages import Answer, HttpRequest, Raw, Route, Routes
from fairlane.schema.openapi import JSON, Schema

PATH: Final = "/docs"
_HTML: Final = "text/html; charset=utf-8"
_PAGES: Final = ("/ui/", "/approve/", PATH)  # for browsers, not for programs


class ReferencePage:
    def __init__(self, describe: Callable[[], Schema]) -> None:
        """`describe` returns the OpenAPI document; it is called once."""
        self._describe = describe
        self._page: Raw | None = None

    def routes(self) -> Routes:
        return {PATH: {"GET": Route(self.show, None)}}

    async def show(self, request: HttpRequest) -> Answer:
        request.query()
        if self._page is None:
            self._page = Raw("".join(_page(self._describe())).encode(), _HTML)
        return Answer(200, self._page)


def _page(document: Schema) -> Iterator[str]:
    groups: dict[str, list[tuple[str, Schema]]] = {}
    for path, methods in document["paths"].items():
        if path.startswith(_PAGES):
            continue
        tag = path.strip("/").partition("/")[0] or "server"
        groups.setdefault(tag, []).extend(
            (f"{method.upper()} {path}", described) for method, described in methods.items()
        )
    version = _text(document["info"]["version"])
    yield (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="/ui/icon.svg"><link rel="stylesheet" href="/ui/approve.css">'
        "<title>Fairlane HTTP API</title></head>"
        f'<body><main><h1>Fairlane HTTP API {version}</h1><p><a href="/openapi.json">OpenAPI</a> '
        '· <a href="/">Dashboard</a></p><p>'
    )
    yield " · ".join(f'<a href="#{_text(tag)}">{_text(tag)}</a>' for tag in sorted(groups))
    yield "</p>"
    for tag in sorted(groups):
        yield f'<h2 id="{_text(tag)}">{_text(tag)}</h2>'
        for name, described in groups[tag]:
            yield from _operation(name, described, document["components"]["schemas"])
    yield "</main></body></html>"


def _operation(name: str, described: Schema, schemas: Schema) -> Iterator[str]:
    summary = _text(described.get("summary", ""))
    yield f"<details><summary><code>{_text(name)}</code> {summary}</summary>"
    fields = [
        (one["name"], one["in"], one.get("description", ""))
        for one in described.get("parameters", ())
    ]
    fields += _body(described, schemas)
    if fields:
        yield "<ul>"
        for field, place, about in fields:
            yield f"<li><code>{_text(field)}</code> ({_text(place)}) {_text(about)}</li>"
        yield "</ul>"
    yield "</details>"


def _body(described: Schema, schemas: Schema) -> list[tuple[str, str, str]]:
    content = described.get("requestBody", {}).get("content", {})
    schema: Any = content.get(JSON, {}).get("schema", {})
    schema = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    fields = schema.get("properties", {})
    return [(name, "body", one.get("description", "")) for name, one in fields.items()]


def _text(value: object) -> str:
    return html.escape(str(value))
