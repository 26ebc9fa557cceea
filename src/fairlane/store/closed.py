"""Stores that no process may serve from: half of a copy, or moved to another address.

In both cases the table `scheduler` has another name. Every write transaction of every version of
Fairlane starts by reading that table, so none can write. The table `move` says why.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core.errors import StoreMoved
from fairlane.core.json_types import JsonObject

SCHEDULER: Final = "scheduler"
CLOSED: Final = "scheduler_closed"  # what the table is called while the store is closed
MOVE: Final = "move"
CHANGES: Final = "move_change"
READ_MOVE: Final = f"SELECT document FROM {MOVE}"  # noqa: S608 - our own text


class MoveNote(msgspec.Struct, omit_defaults=True, rename="camel"):
    """What a store knows of its part in a move. `other` is the address of the other store."""

    id: str
    role: str  # FROM or TO
    other: str
    done: bool = False  # FROM: the other store has everything
    copied: dict[str, bool | list[str | int]] = {}  # TO: tables, all or up to a key
    changes: int = 0  # TO: the number of the last change that was taken over
    indexes: list[str] = []  # TO: statements that create the missing ones


FROM: Final = "from"
TO: Final = "to"


def parse_note(document: str) -> MoveNote:
    return msgspec.json.decode(document, type=MoveNote)


def closed_error(name: str, document: str | None) -> StoreMoved:
    """Return the error for a process that opens a closed store called `name`."""
    if document is None:
        return StoreMoved(f"{name} is not complete: restore it again into an empty store")
    note = parse_note(document)
    if note.role == FROM:
        return StoreMoved(
            f"{name} was moved to {note.other}; use that store", details=_details(note)
        )
    return StoreMoved(
        f"{name} is an unfinished copy of {note.other}; run fairlane move again to finish it",
        details=_details(note),
    )


def _details(note: MoveNote) -> JsonObject:
    return {"moveId": note.id, "other": note.other}
