"""A task's life as a table: which verb moves which state where.

The code only looks things up here, the documentation is generated from it, and every write in the
store is guarded by the state that the table was asked about. A move that is not in the table raises
`IllegalMove` and changes nothing. Nothing leaves `done` and `rejected`; only a manual retry leaves
`failed` and `cancelled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NEW: Final = "new"  # where a submission starts; never visible
QUEUED: Final = "queued"
WAITING: Final = "waiting_dependency"
ASSIGNED: Final = "assigned"
RUNNING: Final = "running"
PARKED: Final = "parked"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REJECTED: Final = "rejected"

SUBMIT: Final = "submit"
REJECT: Final = "reject"
LEASE: Final = "lease"
START: Final = "start"
COMPLETE: Final = "complete"
FAIL: Final = "fail"
BACK_OFF: Final = "back_off"
PARK: Final = "park"
RELEASE: Final = "release"
SUSPEND: Final = "suspend"
TAKE: Final = "take"
EXPIRE: Final = "expire"
CANCEL: Final = "cancel"
RESET: Final = "reset"
RETRY: Final = "retry"
BLOCK: Final = "block"
UNBLOCK: Final = "unblock"

# Verbs that keep the state: a gate opens or closes, one of several dependencies is done, a lease is
# renewed, a run is pre-empted, or a lease that outlived its task is closed.
PROMOTE: Final = "promote"
HOLD: Final = "hold"
MEET: Final = "meet"
RENEW: Final = "renew"
PREEMPT: Final = "preempt"
CLOSE: Final = "close"

MOVES: Final[Mapping[str, Mapping[str, str]]] = {
    NEW: {SUBMIT: QUEUED, REJECT: REJECTED},
    QUEUED: {
        BLOCK: WAITING,
        LEASE: ASSIGNED,
        TAKE: DONE,
        FAIL: FAILED,
        PARK: PARKED,
        CANCEL: CANCELLED,
        EXPIRE: FAILED,
    },
    WAITING: {UNBLOCK: QUEUED, CANCEL: CANCELLED, EXPIRE: FAILED},
    ASSIGNED: {
        START: RUNNING,
        COMPLETE: DONE,
        FAIL: FAILED,
        BACK_OFF: QUEUED,
        PARK: PARKED,
        RELEASE: QUEUED,
        SUSPEND: QUEUED,
        EXPIRE: FAILED,
        CANCEL: CANCELLED,
    },
    RUNNING: {
        COMPLETE: DONE,
        FAIL: FAILED,
        BACK_OFF: QUEUED,
        PARK: PARKED,
        RELEASE: QUEUED,
        SUSPEND: QUEUED,
        EXPIRE: FAILED,
        CANCEL: CANCELLED,
    },
    PARKED: {RESET: QUEUED, CANCEL: CANCELLED},
    FAILED: {RETRY: QUEUED},
    CANCELLED: {RETRY: QUEUED},
}

IN_FLIGHT: Final = frozenset({ASSIGNED, RUNNING})
IN_QUEUE: Final = frozenset({QUEUED, WAITING})
TERMINAL: Final = frozenset({DONE, FAILED, CANCELLED, REJECTED})
STATES: Final = (WAITING, QUEUED, ASSIGNED, RUNNING, PARKED, DONE, FAILED, CANCELLED, REJECTED)

# Words of other schedulers for the same states.
SPOKEN: Final[Mapping[str, str]] = {"pending": QUEUED, "completed": DONE}


class IllegalMove(Exception):
    """A verb was applied to a state that the table does not allow: a defect, not bad input."""


def step(state: str, verb: str) -> str:
    """Return the state that `verb` leads to from `state`."""
    try:
        return MOVES[state][verb]
    except KeyError:
        raise IllegalMove(f"{verb} does not apply to a task that is {state}") from None


def state_from(word: str) -> str | None:
    """Return the state that `word` means, or None if there is none."""
    state = SPOKEN.get(word, word)
    return state if state in STATES else None
