"""Arguments of client methods as the fields of requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeVar, overload

T = TypeVar("T")


@overload
def as_list(values: Sequence[T]) -> list[T]: ...


@overload
def as_list(values: Sequence[T] | None) -> list[T] | None: ...


def as_list(values: Sequence[T] | None) -> list[T] | None:
    return None if values is None else list(values)


@overload
def as_text(when: str | datetime) -> str: ...


@overload
def as_text(when: str | datetime | None) -> str | None: ...


def as_text(when: str | datetime | None) -> str | None:
    """Return a moment as RFC 3339 text."""
    return when.isoformat() if isinstance(when, datetime) else when
