"""Functions that a running handler may call: `report_output` and `report_progress`.

They find their run, in async handlers and in the threads of plain ones. The trap: threads that a
handler starts itself do not know the run unless they get its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

from fairlane.schema import wire
from fairlane.worker.executors.base import Run

_current: ContextVar[tuple[Run, asyncio.AbstractEventLoop]] = ContextVar("fairlane_run")


def begin(run: Run) -> None:
    """Make `run` the current run, in this task and its calls."""
    _current.set((run, asyncio.get_running_loop()))


def report_output(text: str) -> None:
    """Store text that the task has produced so far; `GET /tasks/{id}/output` shows it.

    Returns at once.
    """
    _tell(lambda run: run.output(text))


def report_progress(progress: object) -> None:
    """Publish progress, any JSON value, as a `task.progress` event. Returns at once.

    At most one report per second is published: the newest. Raise `ValueError` if it is too large.
    """
    size = len(wire.encode(progress))
    if size > wire.PROGRESS_BYTES_MAX:
        raise ValueError(
            f"progress must not be larger than {wire.PROGRESS_BYTES_MAX} bytes of JSON"
        )
    _tell(lambda run: run.progress(progress))


def _tell(say: Callable[[Run], None]) -> None:
    found = _current.get(None)
    if found is None:
        raise RuntimeError("only a handler that is running can report")
    run, loop = found
    if _is_running(loop):  # now: its end may follow at once
        say(run)
    else:
        loop.call_soon_threadsafe(say, run)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
