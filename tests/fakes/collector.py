"""A collector of traces on loopback that speaks OTLP over HTTP and keeps what it gets."""

from __future__ import annotations

import asyncio
import gzip
from typing import NamedTuple, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fakes.waiting import WAIT_SECONDS


class Span(NamedTuple):
    name: str
    trace: str
    id: str
    parent: str
    failed: str | None
    about: dict[str, str | int]
    service: str

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace}-{self.id}-01"


class Collector:
    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""
        self._arrived = asyncio.Condition()
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def named(self, name: str, count: int) -> list[Span]:
        """The spans of a name, as soon as there are so many."""

        def found() -> list[Span]:
            return [span for span in self.spans if span.name == name]

        async with asyncio.timeout(WAIT_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(found()) >= count)
        return found()

    async def _receive(self, request: web.Request) -> web.Response:
        raw = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        message = ExportTraceServiceRequest.FromString(raw)
        async with self._arrived:
            for part in message.resource_spans:
                named = {one.key: one.value.string_value for one in part.resource.attributes}
                for scope in part.scope_spans:
                    self.spans += [_span(one, named["service.name"]) for one in scope.spans]
            self._arrived.notify_all()
        return web.Response(body=b"", content_type="application/x-protobuf")


def _span(one: object, service: str) -> Span:
    about = {
        pair.key: pair.value.string_value or pair.value.int_value
        for pair in one.attributes  # type: ignore[attr-defined]  # protobuf makes its types itself
    }
    status = one.status  # type: ignore[attr-defined]  # as above
    return Span(
        one.name,  # type: ignore[attr-defined]  # as above
        one.trace_id.hex(),  # type: ignore[attr-defined]  # as above
        one.span_id.hex(),  # type: ignore[attr-defined]  # as above
        one.parent_span_id.hex(),  # type: ignore[attr-defined]  # as above
        status.message if status.code == 2 else None,
        about,
        service,
    )
