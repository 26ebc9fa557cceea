"""Differences between two JSON documents, path by path, and the syntax of paths.

`applied(a, between(a, b))` is `b`. A path is joined with dots; a part that is not a plain word is
quoted as in JSON, so that every path can be parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonObject

Path = tuple[str, ...]

_PLAIN: Final = re.compile(r"[^\s.=\"\\]+")
_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s.=\"\\]+')


class Difference(msgspec.Struct, frozen=True):
    """A value that changed. A side on which the value is absent is unset."""

    path: Path
    before: Any = msgspec.UNSET
    after: Any = msgspec.UNSET


def between(before: object, after: object, path: Path = ()) -> list[Difference]:
    """Return the differences in key order. An object that only one side has is one difference."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if _same(before, after) else [Difference(path, before, after)]
    found: list[Difference] = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key, msgspec.UNSET), after.get(key, msgspec.UNSET)
        found += between(old, new, (*path, key))
    return found


def _same(one: object, other: object) -> bool:
    """Return whether two values are the same JSON; Python considers True equal to 1."""
    return type(one) is type(other) and bool(one == other)


def applied(document: object, differences: Iterable[Difference]) -> object:
    for difference in differences:
        document = _with(document, difference.path, difference.after)
    return document


def _with(document: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    head, *rest = path
    changed = dict(document)
    inner = _with(changed.get(head, {}), tuple(rest), value)
    if inner is msgspec.UNSET:
        changed.pop(head, None)
    else:
        changed[head] = inner
    return changed


# -------------------------------------------------------------------- paths


def format_path(path: Path) -> str:
    return ".".join(_format_part(part) for part in path)


def _format_part(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else msgspec.json.encode(part).decode()


def assignment(text: str) -> tuple[Path, str]:
    """Return the path and the value of `path.to.key=value`. Raise `InvalidRequest` if malformed."""
    path: list[str] = []
    place = 0
    while found := _PART.match(text, place):
        path.append(_read_part(found[0]))
        place = found.end()
        following = text[place : place + 1]
        place += 1
        if following == "=":
            return tuple(path), text[place:]
        if following != ".":
            break
    raise InvalidRequest(f"{text[:60]!r} must be PATH=VALUE, as in lanes.main.maxInflight=5")


def _read_part(part: str) -> str:
    if not part.startswith('"'):
        return part
    try:
        return msgspec.json.decode(part, type=str)
    except msgspec.DecodeError:
        raise InvalidRequest(f"{part[:40]} is not a quoted JSON string") from None


def nested(assignments: Iterable[tuple[Path, object]]) -> JsonObject:
    """Return the document with all assignments. Raise `InvalidRequest` if they contradict."""
    document: JsonObject = {}
    for path, value in assignments:
        place = document
        for part in path[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise InvalidRequest(
                    f"{format_path(path)} cannot be set: the same command sets a parent key"
                )
        if path[-1] in place:
            raise InvalidRequest(f"{format_path(path)} is set twice")
        place[path[-1]] = value
    return document
