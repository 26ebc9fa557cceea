"""JSON documents written by people, merged by a schema.

A schema says for each key which values it accepts. Merging a document either applies all of it or
reports every problem by its path; nothing here knows what the keys mean. With `defaults` it is a
JSON merge patch: null restores a default, and removes a name that has none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fairlane.core.json_types import JsonMapping, JsonObject

Check = Callable[[object], str | None]
Path = tuple[str, ...]

# Spells "no limit" in a patch, where null means the default.
NO_LIMIT: Final = "none"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
_NOTHING: Final = object()


class Field(msgspec.Struct, frozen=True):
    """With `zero_keeps` a zero keeps the current value; with `may_lack` null removes the key."""

    check: Check
    zero_keeps: bool = False
    may_lack: bool = False


class Names(msgspec.Struct, frozen=True):
    """An object whose keys are names that match `pattern`."""

    fields: JsonMapping
    pattern: re.Pattern[str]


Schema = JsonMapping  # of fields, names and further schemas


class Reading(msgspec.Struct):
    """The state of one merge: the problems, and the defaults if the document is a patch.

    `words` are further keys at the top of the document that can be suggested.
    """

    defaults: JsonObject | None = None
    words: frozenset[str] = frozenset()
    problems: list[str] = msgspec.field(default_factory=list)

    def complain(self, path: Path, problem: str) -> None:
        self.problems.append(f"{format_path(path)} {problem}")

    def unknown(self, path: Path, known: Any) -> None:
        words = {*known, *self.words} if len(path) == 1 else known
        self.problems.append(f"unknown key {format_path(path)}{nearest(path[-1], words)}")

    def resets(self, value: object) -> bool:
        return value is None and self.defaults is not None


def merge_document(
    current: JsonObject, document: object, schema: Schema, reading: Reading, path: Path = ()
) -> JsonObject:
    """Return `current` merged with `document`; add problems to `reading`."""
    merged = dict(current)
    if not isinstance(document, dict):
        reading.complain(path, "must be an object")
        return merged
    for key, value in document.items():
        rule, place = schema.get(key), (*path, key)
        if rule is None:
            reading.unknown(place, schema)
        elif reading.resets(value):
            _bring_back(merged, place, reading.defaults)
        elif isinstance(rule, Field):
            problem = _set(merged, key, value, rule)
            if problem:
                reading.complain(place, problem)
        elif isinstance(rule, Names):
            merged[key] = _named(merged[key], value, rule, reading, place)
        else:
            merged[key] = merge_document(merged.get(key, {}), value, rule, reading, place)
    return merged


def _set(merged: JsonObject, key: str, value: object, rule: Field) -> str | None:
    """Store `value`, or report its problem."""
    if rule.zero_keeps and value == 0 and not isinstance(value, bool):
        return None
    if value is None and rule.may_lack:
        merged.pop(key, None)
        return None
    if value == NO_LIMIT and rule.check(None) is None:
        value = None
    problem = rule.check(value)
    if problem is None:
        merged[key] = value
    return problem


def _named(
    current: JsonObject, document: object, rule: Names, reading: Reading, path: Path
) -> JsonObject:
    merged = dict(current)
    if not isinstance(document, dict):
        reading.complain(path, "must be an object")
        return merged
    for name, entry in document.items():
        place = (*path, name)
        if not rule.pattern.fullmatch(name):
            reading.complain(place, f"must be a name like {rule.pattern.pattern}")
        elif reading.resets(entry):
            _bring_back(merged, place, reading.defaults)
        else:
            merged[name] = merge_document(merged.get(name, {}), entry, rule.fields, reading, place)
    return merged


def _bring_back(merged: JsonObject, path: Path, defaults: object) -> None:
    """Restore the default at `path`; remove a key that has none."""
    for part in path:
        defaults = defaults.get(part, _NOTHING) if isinstance(defaults, dict) else _NOTHING
    if defaults is _NOTHING:
        merged.pop(path[-1], None)
    else:
        merged[path[-1]] = defaults


def put(document: JsonObject, path: Path, value: object) -> None:
    """Set `value` unless the document already sets the key."""
    for part in path[:-1]:
        inner = document.get(part, {})
        if not isinstance(inner, dict):
            return  # the merge reports it
        document[part] = dict(inner)
        document = document[part]
    document.setdefault(path[-1], value)


def known(document: object, schema: Schema, unknown: list[str], path: Path = ()) -> Any:
    """Return the part of a document that the schema knows; add other paths to `unknown`."""
    if not isinstance(document, dict):
        return document
    kept: JsonObject = {}
    for key, value in document.items():
        rule, place = schema.get(key), (*path, key)
        if rule is None:
            unknown.append(format_path(place))
        elif isinstance(rule, Field):
            kept[key] = value
        elif isinstance(rule, Names) and isinstance(value, dict):
            kept[key] = known(value, dict.fromkeys(value, rule.fields), unknown, place)
        else:
            kept[key] = known(value, rule, unknown, place)
    return kept


# -------------------------------------------------------------------- checks of values


def whole(low: int, high: int, *, optional: bool = False) -> Check:
    def check(value: object) -> str | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            return f"must be a whole number from {low} to {high}" + " or null" * optional
        return None

    return check


def number(low: float, high: float) -> Check:
    def check(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number from {low} to {high}"
        return None if low <= value <= high else f"must be a number from {low} to {high}"

    return check


def one_of(*words: str) -> Check:
    def check(value: object) -> str | None:
        return None if value in words else f"must be one of {', '.join(words)}"

    return check


def flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


# -------------------------------------------------------------------- words in messages


def format_path(path: Path) -> str:
    return ".".join(map(quote_key, path))


def quote_key(key: str) -> str:
    """Return a key for use in a message: as it is, or quoted and cut if it is not a plain word."""
    return key if _PLAIN.fullmatch(key) else repr(key[:20])


def nearest(word: str, known: Any) -> str:
    """Return `; did you mean x?` for the nearest known word, or an empty text."""
    # Compare only this much: a caller may send a million characters, and no known word is that
    # long.
    found = difflib.get_close_matches(word[:100], list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
