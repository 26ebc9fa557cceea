"""OpenTelemetry traces: from a task's submission through its attempts to its webhooks.

Tracing is off unless the standard `OTEL_…` settings enable it; then nothing is imported. A trace is
carried by the W3C `traceparent`. It comes from the submitter, is stored with the task's request, so
it survives restarts and reaches other nodes and workers, and is sent to executors and webhook
receivers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from fairlane.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

log = logging.getLogger("fairlane.tracing")

HEADER: Final = "traceparent"
SUBMIT: Final = "submit"
ATTEMPT: Final = "attempt"
WEBHOOK: Final = "webhook"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Span:
    """One step of a trace that is in progress."""

    def __init__(self, span: OtelSpan, traceparent: str) -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, name: str, value: str | int) -> None:
        self._span.set_attribute(f"fairlane.{name}", value)

    def fail(self, reason: str) -> None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - an optional extra

        self._span.set_status(StatusCode.ERROR, reason)


class Tracer:
    """Spans for a provider of the OpenTelemetry SDK, which decides where they go."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import context, trace  # noqa: PLC0415 - an optional extra
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - as above

        self._provider = provider
        self._tracer = provider.get_tracer("fairlane", __version__)
        self._format = tracecontext.TraceContextTextMapPropagator()
        self._context = context
        self._kinds = {
            SUBMIT: trace.SpanKind.SERVER,
            ATTEMPT: trace.SpanKind.CONSUMER,
            WEBHOOK: trace.SpanKind.CLIENT,
        }

    @contextlib.contextmanager
    def within(self, traceparent: str | None) -> Iterator[None]:
        """Run the block inside the caller's trace, if it has one."""
        if traceparent is None:
            yield
            return
        token = self._context.attach(self._format.extract({HEADER: traceparent}))
        try:
            yield
        finally:
            self._context.detach(token)

    @contextlib.contextmanager
    def span(self, name: str, **about: str | int | None) -> Iterator[Span]:
        """Start a step of the current trace, or the first of a new one."""
        given = {f"fairlane.{key}": value for key, value in about.items() if value is not None}
        with self._tracer.start_as_current_span(
            name,
            kind=self._kinds[name],
            attributes=given,
            record_exception=False,  # its text may hold more than a trace should
        ) as span:
            carrier: dict[str, str] = {}
            self._format.inject(carrier)
            yield Span(span, carrier[HEADER])

    @contextlib.contextmanager
    def step(self, name: str, traceparent: object, **about: str | int | None) -> Iterator[Span]:
        """Start a step of the trace in which a task was submitted, or of a new one."""
        parent = traceparent if isinstance(traceparent, str) else ""
        with self.within(parent), self.span(name, **about) as span:
            yield span

    def close(self) -> None:
        """Send the spans that have not been sent."""
        self._provider.shutdown()


def kept_in(body: str, traceparent: str) -> str:
    """Return a request, as JSON text, with the trace that it belongs to."""
    rest = body[1:]
    return f'{{"{HEADER}":"{traceparent}"{"" if rest == "}" else ","}{rest}'


def from_settings(variable: Callable[[str], str | None]) -> Tracer | None:
    """Return a tracer as the standard settings ask for, or None."""
    exporter = (variable("OTEL_TRACES_EXPORTER") or "").strip().lower()
    disabled = (variable("OTEL_SDK_DISABLED") or "").strip().lower() == "true"
    if disabled or exporter == "none" or not (exporter or any(map(variable, _ENDPOINTS))):
        return None
    try:
        return _begin(exporter, named=bool(variable("OTEL_SERVICE_NAME")))
    except ImportError:
        log.warning(
            "OTEL_… enables traces, which need: pip install '.[otel]' in a clone of fairlane"
        )
        return None


def _begin(exporter: str, *, named: bool) -> Tracer | None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

    if exporter not in ("", "otlp"):
        log.warning("OTEL_TRACES_EXPORTER must be otlp or none, not %r: no traces", exporter[:40])
        return None
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": "fairlane"})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracer(provider)
