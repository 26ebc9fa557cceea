"""The command of an import: tasks that ended in another program."""

from __future__ import annotations

import msgspec

from fairlane.core.finished import FinishedTask


class ImportFinished(msgspec.Struct, frozen=True):
    """Answer: the list of tasks that were imported; ids that exist are left out."""

    tasks: list[FinishedTask]
