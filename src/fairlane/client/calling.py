"""Calls of routes: the interface that every client method uses, and the names of its fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from fairlane.core.policy import nearest

A = TypeVar("A")

_SHORT: Final = {"agent": "agentId", "session": "sessionKey", "tab": "tabId", "batch": "batchId"}


class Asked(TypedDict, total=False):
    """The optional parts of a call.

    `wait_ms` is how long the route may wait before it responds.
    """

    query: Mapping[str, Any] | None
    headers: Mapping[str, str]
    body: Any
    idempotency_key: str | None
    wait_ms: int


class Calling(ABC, Generic[A]):
    """A client that can call routes. `A` is its result: the response, or a coroutine for it."""

    @abstractmethod
    def call(self, method: str, path: str, **asked: Unpack[Asked]) -> A:
        """Call any route and return its JSON. Raise the error that it responds with."""


def path_of(noun: str, thing: str, verb: str = "") -> str:
    """Return the path of an object, or of a verb on it (`/cancel`), with its name quoted."""
    return f"/{noun}/{quote(thing, safe='')}{verb}"


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value, by their JSON names."""
    return {
        spelled(name): value for name, value in fields.items() if value is not None and value != ()
    }


def spelled(name: str) -> str:
    """Return the JSON name of an argument."""
    return _SHORT.get(name) or camel(name)


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def moment(when: str | datetime | None) -> str | None:
    return when.isoformat() if isinstance(when, datetime) else when


def refuse_unknown(verb: str, fields: Iterable[str], known: Mapping[str, Any]) -> None:
    """Raise `TypeError` for a name that is no argument, as a call does."""
    for name in fields:
        if name not in known:
            hint = nearest(name, known)
            raise TypeError(f"{verb}() got an unexpected keyword argument '{name}'{hint}")
