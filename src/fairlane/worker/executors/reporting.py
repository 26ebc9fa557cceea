"""Functions that a running handler may call: `report_output` and `report_progress`.

They find the current run, in async handlers and in the threads of plain functions. Caution:
threads that a handler starts itself do not know the run unless they get its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlane.schema import wire
from fairlane.worker.executors import current as current_run
from fairlane.worker.executors.base import Run


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


def current() -> tuple[Run, asyncio.AbstractEventLoop]:
    """Return the current run and its event loop. Raise `RuntimeError` outside of a handler."""
    return current_run.running("report")


def _tell(say: Callable[[Run], None]) -> None:
    run, loop = current()
    if is_running(loop):  # now: its end may follow at once
        say(run)
    else:
        loop.call_soon_threadsafe(say, run)


def is_running(loop: asyncio.AbstractEventLoop) -> bool:
    return current_run.is_on(loop)
