"""Submissions and task rows for tests of the core, as short to write as what they are about."""

from __future__ import annotations

from typing import Any

from fairlane.core import lifecycle
from fairlane.core.model import Submission, Task

NOW = 1_700_000_000_000
TOKEN = 7


def submission(**given: Any) -> Submission:
    fields = {"id": "tsk_1", "kind": "action", "agent": "ada", "capability": "action", "body": "{}"}
    return Submission(**{**fields, **given})


def queued(**given: Any) -> Task:
    """A task that is ready to be leased."""
    fields: dict[str, Any] = {
        "seq": 1,
        "id": "tsk_1",
        "kind": "handler",
        "lane": "main",
        "agent": "ada",
        "capability": "handler/count",
        "line": 3,
        "priority": 0,
        "rank": 0,
        "state": lifecycle.QUEUED,
        "gate": None,
        "session": None,
        "batch": None,
        "attempts": 0,
        "max_attempts": 3,
        "position": 1,
        "created_at": NOW,
        "queued_at": NOW,
    }
    return Task(**{**fields, **given})


def waiting(**given: Any) -> Task:
    """A task that waits for one other."""
    fields = {"state": lifecycle.WAITING, "gate": "dependency", "unmet": 1}
    return queued(**{**fields, **given})


def assigned(**given: Any) -> Task:
    """A task in its first attempt that was leased and not started."""
    fields = {
        "state": lifecycle.ASSIGNED,
        "attempts": 1,
        "fencing_token": TOKEN,
        "worker": "w1",
        "lease_expires_at": NOW + 1000,
    }
    return queued(**{**fields, **given})


def running(**given: Any) -> Task:
    return assigned(**{"state": lifecycle.RUNNING, "started_at": NOW, **given})


def stopped(**given: Any) -> Task:
    """A task that was cancelled while it ran, and whose worker has not reported back."""
    return running(**{"state": lifecycle.CANCELLED, "completed_at": NOW, **given})
