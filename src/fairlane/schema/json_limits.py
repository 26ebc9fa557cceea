"""Limits of JSON in requests: no duplicate keys, no U+0000, a bound on everything.

Python's JSON parsers are lenient where two programs may read the same text differently: they keep
the last of two equal keys, and numbers of any size. This module checks the parsed value, and names
each problem and its place.

Nearly every body is short and valid, so a cheap check comes first; only a text that may exceed a
limit is examined piece by piece.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from fairlane.core.errors import InvalidRequest
from fairlane.core.validation import DEPTH_MAX

STRING_CHARACTERS_MAX: Final = 262_144
KEYS_MAX: Final = 1000
ITEMS_MAX: Final = 10_000
NUMBER_MAX: Final = 2**63 - 1

# A text up to this length cannot exceed the limits of strings, keys and items.
_SHORT_BYTES: Final = 4096
_SHOWN_MAX: Final = 60
_SPACED_COLON: Final = re.compile(rb"[ \n\t\r]:")
_HALF_PAIR: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)

_decoder = msgspec.json.Decoder()


def check(raw: bytes, value: object = None, *, items_max: int = ITEMS_MAX) -> None:
    """Raise `InvalidRequest` if valid JSON exceeds a limit; `value` is the parsed JSON, if known.

    The body may be one level deeper than its fields may be.
    """
    if value is None:
        try:
            value = _decoder.decode(raw)
        except RecursionError:
            raise InvalidRequest("the body is nested too deeply") from None
    keys, objects = _count(value)
    odd = keys < 0 or b"\\u0000" in raw
    if odd or len(raw) > _SHORT_BYTES or objects > DEPTH_MAX:
        texts = odd or len(raw) > STRING_CHARACTERS_MAX
        if keys < 0 or not _bounded(value, items_max, texts=texts):
            _complain(value, items_max)
    if keys != raw.count(b":") and not _one_colon_each(raw, keys):
        _check_keys(raw)


def are_within_limits(joined: bytes, texts: Sequence[bytes]) -> bool:
    """Return True only if `check` accepts each of these texts; `joined` has each on its own line.

    False means that they have to be checked one by one.
    """
    if len(joined) > _SHORT_BYTES and max(map(len, texts)) > _SHORT_BYTES:
        return False
    if b"\\u0000" in joined:
        return False
    values = _decoder.decode_lines(joined)
    keys, objects = _count(values)
    if keys != joined.count(b":"):
        return False
    # Few enough brackets in each line cannot exceed the depth.
    return objects <= DEPTH_MAX or all(
        one.count(b"{") + one.count(b"[") <= DEPTH_MAX for one in texts
    )


def _one_colon_each(raw: bytes, keys: int) -> bool:
    """Return True only if every colon follows a quoted key, so that counting colons counts keys."""
    return keys == raw.count(b'":') and not _SPACED_COLON.search(raw)


def check_without(raw: bytes, field: str) -> None:
    """Check all but one field, whose items are checked one by one later."""
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    left_out = fields.get(field)
    check(raw if left_out is None else raw.replace(bytes(left_out), b"0", 1))


def check_any(raw: bytes) -> None:
    """Check that text which another program will parse is JSON within the limits."""
    try:
        value = _decoder.decode(raw)
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(raw, error) from None
    check(raw, value)


def malformed(raw: bytes, error: Exception) -> InvalidRequest:
    """Return why JSON cannot be parsed. Our parser reports half a surrogate pair as truncated."""
    half = "an escape is half of a surrogate pair"
    return InvalidRequest(
        f"the body is not valid JSON: {half if _HALF_PAIR.search(raw) else error}"
    )


def _count(value: object) -> tuple[int, int]:
    """Return the number of keys in all objects, and of objects and lists.

    The number of keys is negative if a number is too large.
    """
    keys = 0
    nested = [value] if type(value) is dict or type(value) is list else []
    for one in nested:
        parts: Iterable[Any] = one
        if type(one) is dict:
            keys += len(one)
            parts = one.values()
        for inner in parts:
            kind = type(inner)
            if kind is dict or kind is list:
                nested.append(inner)  # the loop also visits what is appended
            elif kind is int and not -NUMBER_MAX <= inner <= NUMBER_MAX:
                return -1, 0
    return keys, len(nested)


def _bounded(value: Any, items_max: int, *, texts: bool) -> bool:
    """Return whether everything is within its limits; texts are checked only if `texts` is set."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        inner: list[Any] = []
        for one in level:
            is_object = type(one) is dict
            if len(one) > (KEYS_MAX if is_object else items_max):
                return False
            parts = one.values() if is_object else one
            if texts and not (all(map(_is_short, parts)) and all(map(_is_short, one))):
                return False
            inner += [part for part in parts if type(part) is dict or type(part) is list]
        if not inner:
            return True
        level = inner
    return False


def _is_short(one: object) -> bool:
    if type(one) is not str:
        return True
    return len(one) <= STRING_CHARACTERS_MAX and "\0" not in one


def _complain(value: object, items_max: int) -> None:
    """Raise an error that names the first value that exceeds a limit."""
    level: list[tuple[str, object]] = [("", value)]
    for depth in range(DEPTH_MAX + 2):
        inner: list[tuple[str, object]] = []
        for path, one in level:
            _check_one(path, one, items_max)
            if type(one) is dict or type(one) is list:
                if depth > DEPTH_MAX:
                    levels = f"must not be nested deeper than {DEPTH_MAX} levels"
                    raise InvalidRequest(f"{_named(path)} {levels}")
                inner += _inside(path, one)
        level = inner


def _check_one(path: str, one: Any, items_max: int) -> None:
    kind = type(one)
    if kind is str:
        _check_text(_named(path), one)
    elif kind is int and not -NUMBER_MAX <= one <= NUMBER_MAX:
        raise InvalidRequest(f"{_named(path)} must be from -{NUMBER_MAX} to {NUMBER_MAX}")
    elif kind is list and len(one) > items_max:
        raise InvalidRequest(f"{_named(path)} must not have more than {items_max} items")
    elif kind is dict:
        if len(one) > KEYS_MAX:
            raise InvalidRequest(f"{_named(path)} must not have more than {KEYS_MAX} keys")
        for key in one:
            _check_text(f"a key in {_named(path)}", key)


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{what}: the character U+0000 is not allowed in any text")
    if not _is_short(text):
        raise InvalidRequest(f"{what} must not be longer than {STRING_CHARACTERS_MAX} characters")


def _inside(path: str, one: Any) -> Iterator[tuple[str, Any]]:
    """Yield the content of an object or a list with its path. Paths have a maximum length."""
    short = path if len(path) <= _SHOWN_MAX else f"{path[:_SHOWN_MAX].rstrip('[')}…"
    if type(one) is list:
        return ((f"{short}[{number}]", inner) for number, inner in enumerate(one))
    dotted = f"{short}." if short else ""
    return ((f"{dotted}{key[:_SHOWN_MAX]}", inner) for key, inner in one.items())


def _named(path: str) -> str:
    return f"field '{path}'" if path else "the body"


class _Pairs(list[tuple[str, object]]):
    """An object with all its pairs, duplicate keys included."""


def _check_keys(raw: bytes) -> None:
    """Check for duplicate keys exactly, and slowly: parse the text again with all pairs."""
    nested: list[tuple[str, object]] = [("", json.loads(raw, object_pairs_hook=_Pairs))]
    for path, one in nested:
        if isinstance(one, _Pairs):
            _check_pairs(path, one)
            nested += _inside(path, dict(one))  # the loop also visits what is appended
        elif isinstance(one, list):
            nested += _inside(path, list(one))  # as above


def _check_pairs(path: str, pairs: _Pairs) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(
                f"{_named(path)} has the key '{key[:_SHOWN_MAX]}' twice; send it once"
            )
        seen.add(key)
