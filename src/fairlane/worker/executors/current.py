"""The run that the calling code belongs to, in async handlers and in the threads of plain ones.

Caution: threads that a handler starts itself do not know the run unless they get its context.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlane.worker.executors.base import Run

_current: ContextVar[tuple[Run, asyncio.AbstractEventLoop]] = ContextVar("fairlane_run")


def begin(run: Run) -> None:
    """Make `run` the current run, in this task and its calls."""
    _current.set((run, asyncio.get_running_loop()))


def is_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the calling code runs on this event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def running(doing: str) -> tuple[Run, asyncio.AbstractEventLoop]:
    """Return the current run and its loop. Raise `RuntimeError` if there is none."""
    found = _current.get(None)
    if found is None:
        raise RuntimeError(f"only a running handler can {doing}")
    return found
