"""What is written behind an option, read: spans, numbers, JSON. Only the form counts here."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

NO_JSON: Final = object()
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def span_ms(text: str) -> int | None:
    """Milliseconds of `30s`, `5m` and the like, or None when it is no span."""
    found = _SPAN.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


def json_object(text: str) -> dict[str, Any]:
    value = parsed(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text[:40]!r}")
    return value


def json_value(text: str) -> Any:
    value = parsed(text)
    if value is NO_JSON:
        raise argparse.ArgumentTypeError(f"must be JSON, not {text[:40]!r}")
    return value


def pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text[:40]!r}")
    found = parsed(value)
    return name, value if found is NO_JSON else found


def parsed(text: str) -> Any:
    """The JSON that a text holds, or `NO_JSON`."""
    from fairlane.schema import wire  # noqa: PLC0415 - help has no use for it

    try:
        return wire.decode(text.encode())
    except (wire.DecodeError, RecursionError):
        return NO_JSON


def priority(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text[:40]!r}")
    return int(text)


def seconds(text: str) -> float:
    span = span_ms(text)
    if span is not None:
        return span / 1000
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be seconds, or like 5m or 2h, not {text[:40]!r}")
    return float(text)


def milliseconds(text: str) -> int:
    """A bare number is milliseconds here; a span has its unit."""
    found = span_ms(text)
    if found is None and not re.fullmatch(r"\d{1,12}", text):
        raise argparse.ArgumentTypeError(f"must be milliseconds, or like 30s, not {text[:40]!r}")
    return int(text) if found is None else found


def whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text[:40]!r}")
    return int(text)


def port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text[:40]!r}")
    return int(text)


def number(text: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"must be a number, not {text[:40]!r}")
    return float(text)
