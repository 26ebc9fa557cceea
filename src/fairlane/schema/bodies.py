"""A task request as JSON, for callers that do not submit typed values yet."""

from __future__ import annotations

from fairlane.core.errors import InvalidRequest
from fairlane.core.model import Submission
from fairlane.core.submissions import TaskRequest, invalid_task, submission
from fairlane.schema import decoding


def parse_task(raw: bytes, *, task_id: str, agent: str | None = None) -> Submission:
    """Return the submission of a JSON body; `agent` holds where the body names none."""
    request = decoding.decode(raw, TaskRequest)
    try:
        return submission(request, task_id=task_id, agent=agent)
    except InvalidRequest as error:
        raise invalid_task(error) from None
