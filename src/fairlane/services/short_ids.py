"""Short ids: the beginning of an id stands for the id if it is the only one that begins so."""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.engine.node import Node
from fairlane.schema.operation import Operation, Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

CHARACTERS_MIN: Final = 6
SHOWN_MAX: Final = 5
_WHOLE: Final = re.compile(r"[a-z]+_[0-9a-f]{28}")
_DIGITS: Final = re.compile(r"[0-9a-f]+")
_PREFIXES: Final = {
    "task": "tsk",
    "batch": "bat",
    "job": "job",
    "approval": "apr",
    "template": "tpl",
    "delivery": "dlv",
    "endpoint": "whk",
}


async def expanded(node: Node, caller: Caller, operation: Operation[Q, R], request: Q) -> Q:
    """Return the request with whole ids in place of short ones.

    Raise `InvalidRequest` if several begin so. An id that is not found stays: the service says so.
    """
    changes = {}
    for name, thing in operation.ids.items():
        text = getattr(request, name)
        if isinstance(text, str) and text:
            found = await whole_id(node, caller, thing, text)
            if found != text:
                changes[name] = found
    return msgspec.structs.replace(request, **changes) if changes else request


async def whole_id(node: Node, caller: Caller, thing: str, text: str) -> str:
    """Return the id that a text stands for; the text itself if it is a whole id or none fits."""
    if len(text) < CHARACTERS_MIN or _WHOLE.fullmatch(text):
        return text
    views = node.views
    prefixes = [text]
    if _DIGITS.fullmatch(text):
        prefixes.append(f"{_PREFIXES[thing]}_{text}")
    for prefix in prefixes:
        found = await views.read(
            views.search.with_prefix, thing, prefix, caller.agent, SHOWN_MAX + 1
        )
        if found and found[0] == text:
            return text
        if len(found) == 1:
            return found[0]
        if found:
            raise _ambiguous(text, thing, found)
    return text


def _ambiguous(text: str, thing: str, found: list[str]) -> InvalidRequest:
    things = {"batch": "batches", "delivery": "deliveries"}.get(thing, f"{thing}s")
    more = ", ..." if len(found) > SHOWN_MAX else ""
    shown = found[:SHOWN_MAX]
    return InvalidRequest(
        f"'{text}' is the beginning of several {things}: {', '.join(shown)}{more}; "
        "use more characters",
        details={"candidates": shown},
    )
