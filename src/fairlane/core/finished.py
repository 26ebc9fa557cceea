"""Tasks that ended in another program and are imported with their results."""

from __future__ import annotations

import msgspec

from fairlane.core.model import Submission


class FinishedTask(msgspec.Struct, frozen=True):
    """A submission and how it ended. `state` is `done`, `failed` or `cancelled`.

    `result` is JSON text. A task that never ran has no `started_at`.
    """

    submission: Submission
    state: str
    created_at: int
    completed_at: int
    started_at: int | None = None
    attempts: int = 1
    result: str | None = None
    error: str | None = None
