"""What `Fairlane.submit` and `submit_batch` return: follow, change and await a task or a batch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from fairlane.core import lifecycle
from fairlane.core.errors import TaskFailed, task_failed
from fairlane.schema.batches import BatchCancelled, BatchStatus
from fairlane.schema.task_status import TaskStatus
from fairlane.schema.tasks import (
    BatchAccepted,
    BatchItem,
    TaskAccepted,
    TaskCancelled,
    TaskReset,
    TaskRetried,
)

if TYPE_CHECKING:
    from fairlane.embedded.app import Fairlane


class TaskHandle:
    """A submitted task: its `id`, its `position` in the queue, and methods to follow it.

    `warnings` say what may be wrong with it, such as a handler that no worker offers.
    """

    def __init__(self, app: Fairlane, task: TaskAccepted) -> None:
        self.id = task.task_id
        self.position = task.position
        self.warnings = task.warnings or []
        self._app = app

    @property
    def task_id(self) -> str:
        """Return the id; a handle may stand for it in `depends_on`."""
        return self.id

    async def show(self) -> TaskStatus:
        """Return the task as `GET /tasks/{id}` does."""
        return await self._app.show(self.id)

    async def cancel(self) -> TaskCancelled:
        """Cancel the task and return it. Raise `Conflict` if it has ended."""
        return await self._app.cancel(self.id)

    async def retry(self) -> TaskRetried:
        """Queue a failed or cancelled task again, with a full set of attempts."""
        return await self._app.retry(self.id)

    async def reset(self) -> TaskReset:
        """Queue a parked task again, with a full set of attempts."""
        return await self._app.reset(self.id)

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the end and return the result.

        Raise `TaskFailed` if the task did not end done, `TimeoutError` after `timeout` seconds.
        """
        view = await self._app.node.wait(self.id, timeout)
        if not view.task.terminal and view.task.state != lifecycle.PARKED:
            raise TimeoutError(f"task {self.id} is {view.task.state} after {timeout} s")
        if view.task.state != "done":
            raise task_failed(self.id, view.task.state, view.error)
        return None if view.result is None else msgspec.json.decode(view.result)


class BatchHandle(BatchAccepted, dict=True):
    """The response to a submitted batch, with handles of its tasks and methods to follow it."""

    _app: ClassVar[Fairlane]  # set on each handle; not a field, so that the JSON lacks it

    @property
    def id(self) -> str:
        """Return the id of the batch."""
        return self.batch

    @property
    def handles(self) -> list[TaskHandle | None]:
        """Return a handle for each item, in order; None for one that was rejected."""
        return [self._handle(item) for item in self.tasks]

    def _handle(self, item: BatchItem) -> TaskHandle | None:
        if item.task_id is None:
            return None
        task = TaskAccepted(item.task_id, item.state, item.position or 0, created_at="")
        return TaskHandle(self._app, task)

    async def show(self) -> BatchStatus:
        """Return the batch as `GET /batches/{id}` does."""
        return await self._app.batch(self.batch)

    async def cancel(self) -> BatchCancelled:
        """Cancel all open tasks of the batch."""
        return await self._app.cancel_batch(self.batch)

    async def results(self, timeout: float | None = None) -> list[Any]:
        """Wait for all tasks and return their results, in order.

        Raise `TaskFailed` for the first that was rejected or did not end done, `TimeoutError` after
        `timeout` seconds. All other tasks go on.
        """
        for number, item in enumerate(self.tasks):
            if item.task_id is None:
                raise TaskFailed(f"of item {number}", item.state, item.error)
        async with asyncio.timeout(timeout):
            return [await one.result() for one in self.handles if one is not None]


def batch_handle(app: Fairlane, accepted: BatchAccepted) -> BatchHandle:
    fields = {name: getattr(accepted, name) for name in accepted.__struct_fields__}
    handle = BatchHandle(**fields)
    handle.__dict__["_app"] = app
    return handle
