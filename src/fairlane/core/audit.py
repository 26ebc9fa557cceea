"""What the audit log is made of: who did what to what, and how that went."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

DONE: Final = "done"
REFUSED: Final = "refused"  # who may do it asked for what cannot be
DENIED: Final = "denied"  # who may not do it has asked
BLOCKED: Final = "blocked"  # a target that nobody may reach
Outcome = Literal["done", "refused", "denied", "blocked"]


class Entry(msgspec.Struct, frozen=True):
    who: str
    action: str
    target: str
    outcome: str
    detail: str | None = None


class Written(msgspec.Struct, frozen=True):
    """An entry as it is kept."""

    id: int
    at: int
    who: str
    action: str
    target: str
    outcome: str
    detail: str | None
