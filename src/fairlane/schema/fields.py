"""Single fields of what callers send: the checks that all bodies share.

Every refusal is an `InvalidRequest` that names the field and says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from fairlane.core import lifecycle, moments
from fairlane.core.errors import InvalidRequest
from fairlane.core.policy import nearest
from fairlane.core.retries import Backoff
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.schema import json_limits

T = TypeVar("T", bound=msgspec.Struct)

DAY_MS: Final = 86_400_000

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
TAB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")


def within(field: str, value: float | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"field '{field}' must be from {low} to {high}")


def parse_deadline(text: str, field: str = "deadline") -> int:
    """Return RFC 3339 with a zone as milliseconds since 1970. Raise `InvalidRequest` otherwise."""
    try:
        return moments.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {field} format: {error}") from None


def matches(field: str, text: str, pattern: re.Pattern[str], *, empty: bool = False) -> None:
    if not pattern.fullmatch(text) and not (empty and not text):
        raise InvalidRequest(
            f"field '{field}' has characters that are not allowed, or is too long: "
            f"it must match ^{pattern.pattern}$"
        )


def short(field: str, text: str | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"field '{field}' must not be longer than {limit} characters")


def shallow(field: str, value: Any) -> None:
    if value is not None and too_deep(value):
        raise InvalidRequest(f"field '{field}' must not be nested deeper than {DEPTH_MAX} levels")


_AT: Final = re.compile(r"(.*) - at `\$\.?([^`]*)`")
_MISSING: Final = re.compile(r"Object missing required field `(.*?)`(?: - at `\$\.?([^`]*)`)?")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?([^`]*)`)?")


def decoded(
    decoder: msgspec.json.Decoder[Any],
    raw: bytes,
    fields: frozenset[str],
    *,
    later: str | None = None,
    inner: Mapping[str, frozenset[str]] | None = None,
    items_max: int = json_limits.ITEMS_MAX,
) -> Any:
    """Decode, or raise `InvalidRequest` in words that a caller can act on.

    `later` is the field whose items are decoded later, each for itself; `inner` are the fields of
    the objects inside it, by the name of the field that they are.
    """
    try:
        body = decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_in_words(str(error), fields, {**_INNER, **(inner or {})})) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_limits.malformed(raw, error) from None
    if later is None:
        json_limits.check(raw, body if isinstance(body, dict) else None, items_max=items_max)
    else:
        json_limits.check_without(raw, later)
    return body


def converted(value: Mapping[str, Any], kind: type[T]) -> T:
    """The same for what has been decoded already."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))
        raise InvalidRequest(_in_words(str(error), known, _INNER)) from None


_object_decoder = msgspec.json.Decoder(dict[str, Any])


def parse_object(raw: bytes, *, items_max: int = json_limits.ITEMS_MAX) -> dict[str, Any]:
    """Any JSON object, for bodies whose fields are checked elsewhere."""
    body: dict[str, Any] = decoded(_object_decoder, raw, frozenset(), items_max=items_max)
    if too_deep(body):
        raise InvalidRequest(f"the body must not be nested deeper than {DEPTH_MAX} levels")
    return body


# The fields of an object that several bodies have inside them.
_INNER: Final = {"retryPolicy": frozenset(Backoff.__struct_encode_fields__)}


def _in_words(message: str, fields: frozenset[str], inner: Mapping[str, frozenset[str]]) -> str:
    unknown = _UNKNOWN.match(message)
    if unknown:
        inside = f"{unknown[2]}." if unknown[2] else ""
        known = inner.get(unknown[2] or "", fields)
        return f"unknown field '{inside}{unknown[1]}'{nearest(unknown[1], known)}"
    missing = _MISSING.fullmatch(message)
    if missing:
        inside = f"{missing[2]}." if missing[2] else ""
        return f"missing required field '{inside}{missing[1]}'"
    found = _AT.fullmatch(message)
    if not found or not found[2]:
        return f"the body must be a JSON object: {message.split(' - at ', maxsplit=1)[0].lower()}"
    return f"field '{found[2]}': {found[1][0].lower()}{found[1][1:]}"


def parse_states(text: str) -> list[str] | None:
    """The states of a comma list; None for no filter. Raises for a word that is no state."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    states = []
    for word in words:
        state = lifecycle.state_from(word)
        if state is None:
            known = ", ".join(lifecycle.STATES)
            hint = nearest(word, lifecycle.STATES)
            raise InvalidRequest(f"'{word[:40]}' is not a state{hint or f'; known are {known}'}")
        states.append(state)
    return states or None
