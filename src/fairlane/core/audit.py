"""Entries of the audit log: the actor, the action, its target and its outcome."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DONE: Final = "done"
REFUSED: Final = "refused"  # an allowed caller asked for something impossible
DENIED: Final = "denied"  # the caller was not allowed to do it
BLOCKED: Final = "blocked"  # an outbound target that the guard does not allow
Outcome = Literal["done", "refused", "denied", "blocked"]


class Entry(msgspec.Struct, frozen=True):
    who: str
    action: str
    target: str
    outcome: str
    detail: str | None = None


class AuditRecord(msgspec.Struct, frozen=True):
    """A stored entry."""

    id: int
    at: int
    who: str
    action: str
    target: str
    outcome: str
    detail: str | None
