"""Calls of routes, as every verb makes them: who can be asked, and how names are spelled there."""

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
    """What a call may say besides its method and its path.

    `wait_ms` is how long the route was asked to wait before it answers.
    """

    query: Mapping[str, Any] | None
    headers: Mapping[str, str]
    body: Any
    idempotency_key: str | None
    wait_ms: int


class Calling(ABC, Generic[A]):
    """Somebody who can make a call. What it gives, now or to be awaited, is `A`."""

    @abstractmethod
    def call(self, method: str, path: str, **asked: Unpack[Asked]) -> A:
        """Any route: the document that it answers with. Raises the error that it answers with."""


def path_of(noun: str, thing: str, verb: str = "") -> str:
    """The path of one thing, or of a verb of it (`/cancel`), whatever its name has in it."""
    return f"/{noun}/{quote(thing, safe='')}{verb}"


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, as the routes spell them."""
    return {
        spelled(name): value for name, value in fields.items() if value is not None and value != ()
    }


def spelled(name: str) -> str:
    """An argument as the routes spell it."""
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
