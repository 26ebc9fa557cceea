"""Batches: tasks that were submitted together. `POST /tasks/batch` submits one (`tasks.py`)."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fairlane.core.access import Scope
from fairlane.core.batches import STATES, Batch
from fairlane.core.types import Cursor, Moment, PageLimit
from fairlane.schema.operation import GET, POST, IdOf, Operation, Request, Response, one_of
from fairlane.schema.wire import moment

BatchState = Annotated[str, one_of(STATES)]
BatchId = Annotated[str, IdOf("batch"), Meta(description="Id of the batch")]


class ListBatches(Request):
    agent: Annotated[str | None, Meta(description="Only batches of this agent")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class BatchRequest(Request):
    """The id of one batch."""

    batch_id: BatchId = field(name="id")


class BatchStatus(Response):
    batch: str
    agent: str
    state: BatchState
    total: int
    open: int
    created_at: Moment
    by_state: dict[str, int] | None = None
    parallelism: int | None = None
    completed_at: Moment | None = None
    callback_url: str | None = None


class BatchPage(Response):
    batches: list[BatchStatus]
    count: int
    next_cursor: str | None = None


class BatchCancelled(Response):
    batch: str
    cancelled: Annotated[int, Meta(description="Number of cancelled tasks")]
    state: BatchState


def batch_status(batch: Batch, by_state: dict[str, int] | None = None) -> BatchStatus:
    """Return the status of a batch, with the number of tasks in each state if that is known."""
    return BatchStatus(
        batch=batch.id,
        agent=batch.agent,
        state=batch.state,
        total=batch.total,
        open=batch.open,
        by_state=by_state,
        parallelism=batch.parallelism,
        created_at=moment(batch.created_at),
        completed_at=None if batch.completed_at is None else moment(batch.completed_at),
        callback_url=batch.callback_url,
    )


BATCHES: Final = Operation(
    "batches",
    GET,
    "/batches",
    ListBatches,
    BatchPage,
    Scope.READ,
    "List batches, newest first",
)
BATCH: Final = Operation(
    "batch",
    GET,
    "/batches/{id}",
    BatchRequest,
    BatchStatus,
    Scope.READ,
    "Show a batch with the number of its tasks in each state",
)
CANCEL_BATCH: Final = Operation(
    "cancel_batch",
    POST,
    "/batches/{id}/cancel",
    BatchRequest,
    BatchCancelled,
    Scope.CANCEL,
    "Cancel all open tasks of a batch",
)
