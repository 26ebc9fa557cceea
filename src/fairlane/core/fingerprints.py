"""Failures that are alike: errors that differ only in numbers, ids and addresses.

The template of an error has a mark for each of these. Its fingerprint is a short hash of the
template, so it stays the same across stores and restarts. Numbers that say what went wrong, such as
the status in `HTTP 403`, stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlane.core import lifecycle

TEMPLATE_CHARACTERS_MAX: Final = 300
_READ_CHARACTERS_MAX: Final = 2000
HANDLERS_MAX: Final = 10
TASKS_MAX: Final = 5
NO_ERROR: Final = "no error message"

_VARYING: Final = re.compile(
    r"(?P<kept>\b(?:http|status|code|returned|responded|response|errno|error|exit|signal)"
    r"[ :=/(#]{1,3}\d{1,3}\b(?![.:]?\d))"
    r"|(?P<url>\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>)\]]+)"
    r"|(?P<address>[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"
    r"|\[[0-9a-f:]*:[0-9a-f:]+\](?::\d+)?|\b0x[0-9a-f]+\b)"
    r"|(?P<id>\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"
    r"|\b[a-z]{2,8}_(?=\w*\d)[0-9a-z]{6,}\b|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b)"
    r"|(?P<number>[-+]?\d+(?:[.,:]\d+)*)",
    re.IGNORECASE,
)


def template(error: str | None) -> str:
    """Return an error without what varies, on one line."""
    text = " ".join((error or "")[:_READ_CHARACTERS_MAX].split()) or NO_ERROR
    return _VARYING.sub(_mark, text)[:TEMPLATE_CHARACTERS_MAX]


def _mark(found: re.Match[str]) -> str:
    kind = found.lastgroup
    return found[0] if kind == "kept" else f"<{kind}>"


def fingerprint(error: str | None) -> str:
    """Return the name of the failures that have an error like this one."""
    return "err_" + hashlib.sha256(template(error).encode("utf-8", "replace")).hexdigest()[:12]


class Failure(msgspec.Struct, frozen=True):
    """A task that has failed or is parked. `capability` is what a worker must offer to run it."""

    seq: int
    id: str
    state: str
    capability: str
    at: int
    error: str | None

    def is_within(self, since: int | None, until: int | None) -> bool:
        """Return whether it failed in a range of times, which ends before `until`."""
        return (since is None or self.at >= since) and (until is None or self.at < until)


class FailureGroup(msgspec.Struct):
    """Failures with the same fingerprint; `tasks` and `capabilities` name the newest of them."""

    fingerprint: str
    template: str
    example: str | None
    first_at: int
    last_at: int
    count: int = 0
    failed: int = 0
    parked: int = 0
    capabilities: dict[str, int] = {}
    tasks: list[str] = []


def groups(failures: Iterable[Failure]) -> list[FailureGroup]:
    """Return failures, which are newest first, by their fingerprint; the largest group is first."""
    found: dict[str, FailureGroup] = {}
    known: dict[str | None, str] = {}  # few texts repeat often
    for one in failures:
        if one.error not in known:
            known[one.error] = fingerprint(one.error)
        name = known[one.error]
        group = found.get(name)
        if group is None:
            text = template(one.error)
            group = found[name] = FailureGroup(name, text, one.error, one.at, one.at)
        group.count += 1
        group.failed += one.state == lifecycle.FAILED
        group.parked += one.state == lifecycle.PARKED
        group.first_at = min(group.first_at, one.at)
        group.last_at = max(group.last_at, one.at)
        group.capabilities[one.capability] = group.capabilities.get(one.capability, 0) + 1
        if len(group.tasks) < TASKS_MAX:
            group.tasks.append(one.id)
    return sorted(found.values(), key=lambda group: (-group.count, -group.last_at))
