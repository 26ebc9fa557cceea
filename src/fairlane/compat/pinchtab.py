"""PinchTab: its configuration as policy keys, and its HTTP headers.

The configuration has two forms: the whole file, of which only the section `scheduler` is used; and
that section alone, as PinchTab passes it on a reload. A document with Fairlane's keys beside
`scheduler` is Fairlane's, and its unknown keys are refused. Caution: `enabled`, `maxInflight` and
`workerCount` are keys of both programs with different meanings, so they do not show that a document
is PinchTab's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from fairlane.core import documents
from fairlane.core.documents import Schema
from fairlane.core.json_types import JsonMapping, JsonObject

SECTION: Final = "scheduler"

# The policy path of each key. PinchTab has two names for two of them.
_PATHS: Final[Mapping[str, documents.Path]] = {
    "enabled": ("enabled",),
    "strategy": ("lanes", "browser", "strategy"),
    "maxQueueSize": ("lanes", "browser", "maxQueueSize"),
    "maxPerAgent": ("lanes", "browser", "maxPerAgent"),
    "maxInflight": ("lanes", "browser", "maxInflight"),
    "maxPerAgentInflight": ("lanes", "browser", "maxPerAgentInflight"),
    "maxPerAgentFlight": ("lanes", "browser", "maxPerAgentInflight"),
    "resultTTLSec": ("retention", "resultTTLSec"),
    "resultTTL": ("retention", "resultTTLSec"),
    "workerCount": ("workerCount",),
}
_SHARED: Final = frozenset({"enabled", "maxInflight", "workerCount"})
_TTL: Final = "resultTTL"
_SESSIONS: Final = "sessions"
_SHOWN_MAX: Final = 20  # number of ignored sections that a note names

# A duration as Go writes it: 5m0s, 1h30m, 1.5h, 300ms.
_PART: Final = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)"
_SPAN: Final = re.compile(rf"(?:{_PART})+|0")
_SPAN_CHARACTERS_MAX: Final = 64
_UNIT_SECONDS: Final = {
    "ns": Fraction(1, 1_000_000_000),
    "us": Fraction(1, 1_000_000),
    "µs": Fraction(1, 1_000_000),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}


def is_section(document: JsonMapping, own: Schema) -> bool:
    """Return whether this is the section alone: it has a key that only PinchTab has, and none that
    only Fairlane has.
    """
    keys, ours = document.keys(), own.keys() - _SHARED | {SECTION}
    return bool(keys & (_PATHS.keys() - _SHARED)) and not keys & ours


def is_file(document: JsonMapping, own: Schema) -> bool:
    """Return whether this is the file: it has the section, and no key of Fairlane beside it."""
    rest = (key for key in document if key != SECTION)
    return SECTION in document and not any(_is_own(document, key, own) for key in rest)


def _is_own(document: JsonMapping, key: str, own: Schema) -> bool:
    """Return whether a key beside the section is Fairlane's. `sessions` is a section of PinchTab
    too.
    """
    rules, value = own.get(key), document[key]
    if key == _SESSIONS and isinstance(value, dict) and isinstance(rules, Mapping):
        return bool(value.keys() & rules.keys())
    return rules is not None


def reduced(document: JsonObject, own: Schema) -> JsonObject:
    """Return the file without its ignored sections, and the section alone as such a file."""
    if is_section(document, own):
        return {SECTION: document}
    return {SECTION: document[SECTION]} if is_file(document, own) else document


def notes(document: JsonMapping, own: Schema, meant: Schema) -> list[str]:
    """Name the ignored sections of the file, and the key that may be `meant` by each."""
    ignored = [key for key in document if key != SECTION]
    if not ignored or not is_file(document, own):
        return []
    words = [_shown(key, meant) for key in ignored[:_SHOWN_MAX]]
    if len(ignored) > _SHOWN_MAX:
        words.append(f"{len(ignored) - _SHOWN_MAX} more")
    return [f"ignored, because the document is a PinchTab configuration: {', '.join(words)}"]


def _shown(key: str, meant: Schema) -> str:
    hint = "" if key in meant else documents.nearest(key, meant).removeprefix("; ")
    return documents.quote_key(key) + (f" ({hint})" if hint else "")


def translated(document: JsonObject, own: Schema, problems: list[str]) -> JsonObject:
    """Return the document with Fairlane's keys; add its problems to `problems`."""
    if is_section(document, own):
        return _merged({}, document, (), problems)
    if SECTION not in document:
        return document
    foreign = is_file(document, own)
    rest = {key: value for key, value in document.items() if key != SECTION and not foreign}
    return _merged(rest, document[SECTION], (SECTION,), problems)


def _merged(
    result: JsonObject, section: object, path: documents.Path, problems: list[str]
) -> JsonObject:
    """Add the values of the section at `path`; empty and zero values are skipped."""
    if not isinstance(section, dict):
        problems.append(f"{SECTION} must be an object")
        return result
    for key, said in section.items():
        place = documents.format_path((*path, key))
        if key not in _PATHS:
            problems.append(f"unknown key {place}{documents.nearest(key, _PATHS)}")
            continue
        value = _seconds(said) if key == _TTL and isinstance(said, str) else said
        if value is None and said is not None:
            problems.append(f"{place} must be a number of seconds, or a duration such as 5m0s")
        elif value is False or (value is not None and value != 0):
            documents.put(result, _PATHS[key], value)
    return result


def _seconds(span: str) -> int | None:
    """Return a duration in whole seconds, rounded up; None if the value is not a duration."""
    if len(span) > _SPAN_CHARACTERS_MAX or not _SPAN.fullmatch(span):
        return None
    parts = re.findall(_PART, span)
    return math.ceil(sum(Fraction(number) * _UNIT_SECONDS[unit] for number, unit in parts))


# -------------------------------------------------------------------- headers

SOURCE: Final[Mapping[str, str]] = {"X-PinchTab-Source": "scheduler"}
HEADER_PREFIX: Final = "x-pinchtab"


def action_headers(tab_id: str) -> dict[str, str]:
    """Return the headers of a request that runs an action in a tab."""
    return {**SOURCE, "X-PinchTab-Tab-Id": tab_id}


def webhook_headers(event: str, task_id: str) -> dict[str, str]:
    """Return the headers that tell PinchTab's receivers what a webhook is about."""
    return {"X-PinchTab-Event": event, "X-PinchTab-Task-ID": task_id}
