"""Task streams: tasks as lines of JSON, each with its own outcome.

Over HTTP a stream is NDJSON in both directions. The operation below does the same for one piece of
a stream in a JSON body; the clients send long streams in such pieces, so that each can be repeated.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.errors import FairlaneError
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.submissions import TaskRequest
from fairlane.schema.operation import POST, Header, Operation, Query, Request, Response
from fairlane.schema.task_status import TaskState
from fairlane.schema.tasks import Once, Warnings
from fairlane.schema.wire import one_line

LINES_MAX: Final = 1000  # of one piece, and of one transaction
LINE_MAX: Final = 2**32 - 1
STREAM_PATH: Final = "/tasks/stream"

RawLine = Annotated[
    msgspec.Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/StreamTask"})
]

# -------------------------------------------------------------------- requests


class StreamTask(TaskRequest, gc=False):
    """One line: a task as for POST /tasks, optionally with a key of its own."""

    idempotency_key: Annotated[
        Once | None, Meta(description="A repeated line with the same key has no further effect")
    ] = None


class SubmitLines(Request):
    """A piece of a stream. Its items stay raw: each is checked on its own and has its own
    outcome.
    """

    tasks: Annotated[
        list[RawLine],
        Meta(
            description="The tasks, each as for POST /tasks",
            extra_json_schema={"minItems": 1, "maxItems": LINES_MAX},
        ),
    ]
    first_line: Annotated[
        Annotated[int, Meta(ge=1, le=LINE_MAX, description="Number of the first line")], Query()
    ] = 1
    idempotency_key: Annotated[Once | None, Header("Idempotency-Key")] = None


# -------------------------------------------------------------------- responses


class LineOutcome(Response):
    """The outcome of one line: its task, or an error."""

    line: int
    task_id: str | None = None
    state: TaskState | None = None
    code: str | None = None
    error: str | None = None
    details: JsonObject | None = None
    warnings: Warnings = None


class LinesSubmitted(Response):
    tasks: Annotated[list[LineOutcome], Meta(description="The outcomes, in the order of the lines")]
    accepted: int
    rejected: int


class StreamEnd(Response):
    """The last line of a stream. `code` and `error` say why it ended early."""

    end: bool
    accepted: int
    rejected: int
    code: str | None = None
    error: str | None = None


# -------------------------------------------------------------------- conversions


def line_outcome(
    line: int, outcome: Task | FairlaneError, warnings: list[str] | None = None
) -> LineOutcome:
    if isinstance(outcome, Task):
        return LineOutcome(line, outcome.id, outcome.state, warnings=warnings)
    return LineOutcome(
        line, code=outcome.code, error=one_line(outcome.message), details=outcome.details
    )


# -------------------------------------------------------------------- operations

SUBMIT_LINES: Final = Operation(
    "submit_lines",
    POST,
    STREAM_PATH,
    SubmitLines,
    LinesSubmitted,
    Scope.SUBMIT,
    "Submit many tasks, each on its own; as NDJSON, a stream of any length",
    status=202,
    item=StreamTask,
)
