"""Tracing is off, and costs nothing, unless the standard settings ask for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fairlane.tracing import from_settings, kept_in

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_nothing_is_imported_for_who_asks_for_no_traces() -> None:
    program = (
        "import sys, fairlane.cli.server, fairlane.tracing as t;"
        "assert t.from_settings({}.get) is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
    ],
)
def test_only_what_is_asked_for_begins(settings: dict[str, str]) -> None:
    assert from_settings(settings.get) is None


def test_a_request_keeps_its_trace_and_everything_else() -> None:
    assert kept_in('{"a":1}', CALLER) == f'{{"traceparent":"{CALLER}","a":1}}'
    assert kept_in("{}", CALLER) == f'{{"traceparent":"{CALLER}"}}'
