"""Functions that run once in this process, for a caller in this process that waits for the result.

The store keeps everything about such a task except the function. Caution: once the process has
ended, no worker can run it. A worker that leases it then fails it with that error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane.core.errors import ExecutionFailed
from fairlane.worker.executors import current
from fairlane.worker.executors.base import Run, Work
from fairlane.worker.executors.builtin import Handler, HandlerExecutor, is_async

GONE: Final = "the program that should have run this function has exited; schedule it again"
BEGUN: Final = "the function was already started once and will not be started again"


class Call(msgspec.Struct):
    """A task that a caller in this process waits for, with its function if it has one.

    `error` is what the function raised; `given_up` says that it will not run any more.
    """

    function: Handler | None = None
    waiters: int = 0
    begun: bool = False
    given_up: bool = False
    error: Exception | None = None


class CallExecutor(HandlerExecutor):
    """Runs the functions of calls, found by the task's id."""

    def __init__(self, calls: Mapping[str, Call]) -> None:
        super().__init__({})
        self._calls = calls

    async def execute(self, run: Run) -> object:
        call = self._calls.get(run.work.task_id)
        if call is None or call.function is None:
            raise ExecutionFailed(GONE, retryable=False)
        if call.begun:
            raise ExecutionFailed(BEGUN, retryable=False)
        call.begun = True
        current.begin(run)
        try:
            return await self.run(_remembering(call, call.function), run.work)
        except ExecutionFailed as error:
            call.error = call.error or error
            raise ExecutionFailed(error.message, retryable=False) from error


def _remembering(call: Call, function: Handler) -> Handler:
    """Return the function wrapped so that its exception is kept for the waiting caller."""
    if is_async(function):

        async def run_async(work: Work) -> object:
            try:
                return await function(work)
            except Exception as error:
                call.error = error
                raise

        return run_async

    def run_plain(work: Work) -> object:
        try:
            return function(work)
        except Exception as error:
            call.error = error
            raise

    return run_plain
