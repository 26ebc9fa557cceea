"""What a lease looks like on the wire, and that its worker gets the very request of the task."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core.events import Attempt
from fairlane.core.submissions import TaskRequest, submission
from fairlane.schema import decoding, wire
from fairlane.schema.leases import LeaseStatus, lease_grant, lease_state
from fairlane.schema.task_status import TaskStatus, request_of, task_status
from tests.unit.core import rows
from tests.unit.core.rows import NOW

FULL: dict[str, Any] = {
    "agentId": "ada",
    "handler": "count",
    "params": {"a": [1, None]},
    "metadata": {"m": 1},
    "dependsOn": ["tsk_2", "tsk_3"],
    "retryPolicy": {"maxRetries": 1, "backoffMs": 2},
    "timeoutMs": 5,
    "preemptible": True,
    "key": "k",
    "sessionKey": "s",
    "priority": "high",
    "deadline": "2099-01-01T00:00:00Z",
    "callbackUrl": "https://example.com",
    "lane": "team",
}


def stored(**fields: Any) -> str:
    request = decoding.decode(msgspec.json.encode(fields), TaskRequest)
    return submission(request, task_id="tsk_1").body


@pytest.mark.parametrize(
    "fields",
    [
        {"handler": "count"},
        FULL,
        {"agentId": "ada", "action": "click", "tabId": "t", "ref": "e1", "selector": "#x"},
        {"instruction": "go", "llmConfig": {"apiKey": "secret"}},
    ],
    ids=["plain", "full", "action", "instruction"],
)
def test_the_request_can_be_read_back_from_the_shape_of_its_task(fields: dict[str, Any]) -> None:
    body = stored(**fields)
    log = [Attempt(1, NOW, "w1", NOW, "retrying", "why")]
    row = rows.running(
        session="s", batch="b", deadline_at=NOW, eligible_at=NOW, callback_url="u", completed_at=NOW
    )
    for state in ("running", "parked"):
        row.state = state
        status = task_status(row, body, '"result"', "error", log, secrets=True)
        read = msgspec.json.decode(wire.encode(status), type=TaskStatus)
        assert request_of(read) == msgspec.json.decode(body)


def test_a_lease_tells_what_its_worker_has_to_know() -> None:
    body = stored(**FULL)
    inputs = [("tsk_3", "done", "[3]"), ("tsk_2", "done", None)]
    lease = msgspec.json.decode(wire.encode(lease_grant(rows.assigned(), body, inputs, 1000)))
    assert (lease["leaseId"], lease["token"], lease["attempt"]) == ("lse_1_7", 7, 1)
    assert lease["timeoutMs"] == 5
    assert lease["inputs"] == [
        {"taskId": "tsk_2", "state": "done", "result": None},
        {"taskId": "tsk_3", "state": "done", "result": [3]},
    ]


def test_a_timeout_is_the_kinds_when_the_task_names_none() -> None:
    assert lease_grant(rows.assigned(), "{}", (), 1000).timeout_ms == 1000
    assert "timeoutMs" not in lease_grant(rows.assigned(), "{}", (), None)


def test_the_state_of_a_lease_has_moments_only_when_there_are_any() -> None:
    done = LeaseStatus(**lease_state(rows.queued(state="done", fencing_token=7)))
    assert done.to_dict() == {
        "leaseId": "lse_1_7",
        "taskId": "tsk_1",
        "state": "done",
    }
    waits = LeaseStatus(**lease_state(rows.queued(gate="delay", eligible_at=NOW)))
    assert waits.next_eligible_at == wire.moment(NOW)
