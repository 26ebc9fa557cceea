"""Arguments of client methods as the fields of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

import msgspec

from fairlane.client.calling import refuse_unknown

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


@overload
def as_list(values: Sequence[T]) -> list[T]: ...


@overload
def as_list(values: Sequence[T] | None) -> list[T] | None: ...


def as_list(values: Sequence[T] | None) -> list[T] | None:
    """Return a list as it is sent; the server refuses what is none."""
    return list(values) if isinstance(values, Sequence) and not isinstance(values, str) else values


@overload
def as_text(when: str | datetime) -> str: ...


@overload
def as_text(when: str | datetime | None) -> str | None: ...


def as_text(when: str | datetime | None) -> str | None:
    """Return a moment as RFC 3339 text."""
    return when.isoformat() if isinstance(when, datetime) else when


def as_object(value: Mapping[str, Any] | None) -> Any:
    """Return an object as it is sent; the server checks what is in it."""
    return dict(value) if isinstance(value, Mapping) else value


def as_raw(values: Sequence[Mapping[str, Any]]) -> list[msgspec.Raw]:
    """Return objects that are sent as they are, each to be checked on its own."""
    return [msgspec.Raw(msgspec.json.encode(value)) for value in values]


def as_body(kind: type[S], method: str, fields: Mapping[str, Any]) -> S:
    """Return a typed body; the server checks its values. Raise `TypeError` for an unknown name."""
    refuse_unknown(method, fields, dict.fromkeys(kind.__struct_fields__))
    return kind(**{name: _plain(value) for name, value in fields.items()})


def _plain(value: Any) -> Any:
    return as_text(value) if isinstance(value, datetime) else as_list(as_object(value))
