"""Exit codes: one table for people (`MEANINGS`), one from errors to codes (`exit_code`).

Scripts rely on the numbers: they never change their meaning.
"""

from __future__ import annotations

from typing import Final

from fairlane.core import errors

OK: Final = 0
NOT_WELL: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
REFUSED: Final = 4
UNREACHABLE: Final = 5
SET_UP: Final = 6
DEFECT: Final = 70
TIME_IS_UP: Final = 124
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = {
    OK: "it worked",
    NOT_WELL: "a waited-for task did not end done, or doctor found something",
    USAGE: "the command is wrong, or a value in it",
    NOT_FOUND: "there is no such task, batch, template, cron job, session or lane",
    REFUSED: "refused: full, stopping, or the task's state does not allow it",
    UNREACHABLE: "the server or the store does not answer",
    SET_UP: "the set-up is wrong: a person has to change something",
    DEFECT: "a defect, here or in the server",
    TIME_IS_UP: "the time to wait is up",
    INTERRUPTED: "interrupted by Ctrl-C",
    PIPE_CLOSED: "nobody reads the output any more",
}

# The first that fits counts, so the narrow ones stand before their families.
_BY_CLASS: Final[tuple[tuple[type[errors.FairlaneError], int], ...]] = (
    (errors.NotFound, NOT_FOUND),
    (errors.Unauthenticated, REFUSED),
    (errors.Forbidden, REFUSED),
    (errors.Conflict, REFUSED),
    (errors.IdempotencyConflict, REFUSED),
    (errors.MessageStale, REFUSED),
    (errors.LeaseLost, REFUSED),
    (errors.CallerError, USAGE),
    (errors.StoreUnavailable, UNREACHABLE),
    (errors.Unreachable, UNREACHABLE),
    (errors.BusyError, REFUSED),
    (errors.InvalidSettings, USAGE),
    (errors.OperatorError, SET_UP),
    (errors.TargetRefused, REFUSED),
    (errors.TaskFailed, NOT_WELL),
)


def exit_code(error: errors.FairlaneError) -> int:
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), DEFECT)
