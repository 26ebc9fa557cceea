"""Conditions on the parameters and metadata of tasks: `metadata.customer=42`.

A value matches if it reads the same as text, so `42` matches the number and the text. A list
matches if one of its items does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from fairlane.core.errors import InvalidRequest

CONDITIONS_MAX: Final = 8
TEXT_CHARACTERS_MAX: Final = 200
_FIELDS: Final = ("metadata", "params")
# Both databases take such a name as it is.
_NAME: Final = re.compile(r'[^\x00-\x1f."\\\[\]{}]{1,100}')


class Condition(msgspec.Struct, frozen=True):
    """The value at `keys` of a request reads as `value`. `path` is the same place for SQLite."""

    keys: tuple[str, ...]
    path: str
    value: str


def parse(text: str) -> Condition:
    """Return the condition of `params.NAME=VALUE` or `metadata.NAME=VALUE`. Raise
    `InvalidRequest` for other text.
    """
    place, equals, value = text.partition("=")
    keys = tuple(place.strip().split("."))
    good = keys[0] in _FIELDS and len(keys) > 1 and all(map(_NAME.fullmatch, keys))
    if not equals or not good or len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest(
            f"'{text[:40]}' is not a condition; use metadata.NAME=VALUE or params.NAME=VALUE"
        )
    return Condition(keys, "$" + "".join(f'."{key}"' for key in keys), value.strip())


def stored(texts: Sequence[str], tag: str | None = None) -> str | None:
    """Return conditions, with that on a tag, as the JSON text that statements read; None for no
    condition.
    """
    if len(texts) > CONDITIONS_MAX:
        raise InvalidRequest(f"field 'where' has more than {CONDITIONS_MAX} conditions")
    found = [parse(text) for text in texts]
    if tag is not None:
        found.append(Condition(("metadata", "tags"), '$."metadata"."tags"', tag.strip()))
    return msgspec.json.encode(found).decode() if found else None


def like(text: str | None) -> str | None:
    """Return the LIKE pattern that finds a text, with the escape character `!`; None for none."""
    if text is None or not text.strip():
        return None
    return "%" + re.sub(r"([!%_])", r"!\1", text.strip()) + "%"
