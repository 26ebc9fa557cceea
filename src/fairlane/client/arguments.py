"""Convert arguments of client methods to fields of requests."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar, overload

import msgspec

from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import nearest
from fairlane.core.types import json_name

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


class TaskReference(Protocol):
    """What stands for a task in `depends_on`: a handle, or the response to its submission."""

    @property
    def task_id(self) -> str | None: ...


@overload
def as_list(values: Sequence[T]) -> list[T]: ...


@overload
def as_list(values: Sequence[T] | None) -> list[T] | None: ...


def as_list(values: Sequence[T] | None) -> list[T] | None:
    """Return a list as it is sent; the server rejects other values."""
    return list(values) if isinstance(values, Sequence) and not isinstance(values, str) else values


@overload
def as_text(when: str | datetime) -> str: ...


@overload
def as_text(when: str | datetime | None) -> str | None: ...


def as_text(when: str | datetime | None) -> str | None:
    """Return a time as RFC 3339 text."""
    return when.isoformat() if isinstance(when, datetime) else when


def as_object(value: JsonMapping | None) -> Any:
    """Return an object as it is sent; the server checks its content."""
    return dict(value) if isinstance(value, Mapping) else value


def as_objects(values: Sequence[JsonMapping] | None) -> Any:
    """Return objects as they are sent; the server checks them."""
    return None if values is None else [dict(value) for value in values]


def as_raw(values: Sequence[JsonMapping]) -> list[msgspec.Raw]:
    """Return objects that are sent unchanged; the server checks each on its own.

    A handle in them stands for the id of its task.
    """
    return [msgspec.Raw(encoded(value)) for value in values]


def encoded(value: object) -> bytes:
    """Return JSON. Raise `TypeError` that names the part that JSON cannot hold."""
    try:
        return msgspec.json.encode(value, enc_hook=_task_id)
    except TypeError as error:
        problem = _unsendable(value, "")
        raise TypeError(problem or str(error)) from None


def _task_id(value: object) -> str:
    task_id = getattr(value, "task_id", None)
    if not isinstance(task_id, str):
        raise TypeError(type(value).__name__)
    return task_id


def _unsendable(value: object, path: str) -> str | None:
    """Return a message about the first part of a value that JSON cannot hold."""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        parts = [(f".{shown}", getattr(value, name)) for shown, name in names]
    elif isinstance(value, Mapping):
        parts = [(f".{name}", one) for name, one in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [(f"[{number}]", one) for number, one in enumerate(value)]
    else:
        try:
            msgspec.json.encode(value, enc_hook=_task_id)
        except TypeError:
            field = path.removeprefix(".") or "value"
            return f"field {field!r} is of type {type(value).__name__}, which JSON cannot hold"
    found = (_unsendable(one, path + step) for step, one in parts)
    return next((problem for problem in found if problem is not None), None)


def as_body(kind: type[S], method: str, fields: JsonMapping) -> S:
    """Return a typed body; the server checks its values. Raise `TypeError` for an unknown name."""
    if not fields.keys() <= _names(kind):
        refuse_unknown(method, fields, dict.fromkeys(kind.__struct_fields__))
    body = kind(
        **{
            name: value if type(value) in _SENT_AS_IS else _plain(value)
            for name, value in fields.items()
        }
    )
    if fields.get("depends_on"):
        body.depends_on = [  # type: ignore[attr-defined]  # both kinds of bodies have it
            one if isinstance(one, str) else _task_id(one) for one in fields["depends_on"]
        ]
    return body


_SENT_AS_IS: Final = frozenset({str, int, bool, dict, list, type(None)})


@functools.cache
def _names(kind: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(kind.__struct_fields__)


def _plain(value: Any) -> Any:
    return as_text(value) if isinstance(value, datetime) else as_list(as_object(value))


def given(**fields: object) -> JsonObject:
    """Return the fields that have a value, by their JSON names."""
    return {
        json_name(name): value
        for name, value in fields.items()
        if value is not None and value != ()
    }


def refuse_unknown(verb: str, fields: Iterable[str], known: JsonMapping) -> None:
    """Raise `TypeError` for a name that is not an argument, as Python does."""
    for name in fields:
        if name not in known:
            hint = nearest(name, known)
            raise TypeError(f"{verb}() got an unexpected keyword argument '{name}'{hint}")
