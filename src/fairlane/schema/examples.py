"""Examples of requests and responses for OpenAPI, by the name of the operation.

A test validates all of them against the schemas and sends each request to a scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_AT: Final = "2026-03-02T09:00:00.000Z"
_LATER: Final = "2026-03-02T09:05:00.000Z"
_TASK: Final = "tsk_019cadf1a80075b2a1f0c3d94e11"
_TOKEN: Final = 1_782_579_200_126_070
_LEASE: Final = f"lse_42_{_TOKEN}"
_CHILD: Final = "tsk_019cadf1a8003733518063fa71f3"
_BATCH: Final = "bat_019cadf1a80071c8b4d5e6f70812"
_JOB: Final = "job_019cadf1a8007d20a9b8c7d6e5f4"


class Example(NamedTuple):
    """The JSON of a request's body and of the response; None where there is no example."""

    request: Any = None
    response: Any = None


_REQUEST: Final = {
    "agentId": "ada",
    "handler": "summarise",
    "params": {"url": "https://example.com/report"},
}
_SHOWN: Final = {
    "taskId": _TASK,
    **_REQUEST,
    "kind": "handler",
    "lane": "main",
    "priority": 0,
    "createdAt": _AT,
    "maxAttempts": 3,
    "retryCount": 0,
    "position": 1,
}
_QUEUED: Final = {**_SHOWN, "state": "queued", "attempts": 0}
_RUNNING: Final = {
    **_SHOWN,
    "state": "running",
    "attempts": 1,
    "leaseId": _LEASE,
    "worker": "w1",
    "leaseExpiresAt": _LATER,
    "startedAt": _AT,
}
_DONE: Final = {
    **_SHOWN,
    "state": "done",
    "attempts": 1,
    "result": {"summary": "Sales grew by 4 %."},
    "latencyMs": 1200,
    "startedAt": _AT,
    "completedAt": "2026-03-02T09:00:01.200Z",
}
_ACCEPTED: Final = {"taskId": _TASK, "state": "queued", "position": 1, "createdAt": _AT}
_HELD: Final = {"leaseId": _LEASE, "taskId": _TASK}
_SCHEDULE: Final = {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"}
_REPORT: Final = {"name": "standup", "schedule": _SCHEDULE, "task": {"handler": "summarise"}}
_CEILING: Final = {
    "scope": "lane",
    "limit": 20,
    "inUse": 20,
    "setting": "lanes.main.maxInflight",
}
_LIMIT: Final = {"lanes": {"main": {"maxInflight": 20}}}

EXAMPLES: Final[Mapping[str, Example]] = {
    "submit": Example(_REQUEST, _ACCEPTED),
    "submit_batch": Example(
        {
            "agentId": "ada",
            "parallelism": 2,
            "tasks": [
                {"handler": "fetch", "key": "page"},
                {"handler": "summarise", "dependsOn": ["#page"]},
            ],
        },
        {
            "batchId": _BATCH,
            "tasks": [
                {"state": "queued", "taskId": _TASK, "position": 1},
                {"state": "waiting_dependency", "taskId": _CHILD, "position": 2},
            ],
            "submitted": 2,
            "accepted": 2,
            "rejected": 0,
        },
    ),
    "tasks": Example(response={"tasks": [_QUEUED], "count": 1}),
    "show": Example(response=_DONE),
    "wait_once": Example(response=_DONE),
    "why": Example(
        response={
            "taskId": _TASK,
            "state": "queued",
            "ready": True,
            "gate": None,
            "reason": "all 20 slots of lane main are in use",
            "waitingFor": [],
            "ceiling": _CEILING,
            "ceilings": [_CEILING],
            "position": 1,
            "estimateMs": 1500,
        }
    ),
    "cancel": Example(response={"status": "cancelled", "taskId": _TASK}),
    "cancel_many": Example(
        {"agentId": "ada", "state": "queued", "dryRun": True},
        {"matched": 1, "changed": 0, "dryRun": True, "taskIds": [_TASK]},
    ),
    "batch": Example(
        response={
            "batchId": _BATCH,
            "agentId": "ada",
            "state": "running",
            "total": 2,
            "open": 1,
            "createdAt": _AT,
            "byState": {"done": 1, "queued": 1},
            "parallelism": 2,
        }
    ),
    "lease": Example(
        {"worker": "w1", "handlers": ["summarise"], "waitMs": 30_000, "start": True},
        {
            "schemaVersion": 1,
            "now": _AT,
            "granted": 1,
            "leases": [
                {
                    "id": _TASK,
                    **_HELD,
                    "state": "running",
                    "leaseExpiresAt": _LATER,
                    "token": _TOKEN,
                    "attempt": 1,
                    "attempts": 0,
                    "priority": 0,
                    "task": _RUNNING,
                }
            ],
            "count": 1,
        },
    ),
    "report_leases": Example(
        {
            "worker": "w1",
            "handlers": ["summarise"],
            "reports": [
                {
                    "leaseId": _LEASE,
                    "verb": "complete",
                    "result": {"summary": "Sales grew by 4 %."},
                }
            ],
            "limit": 10,
        },
        {"now": _AT, "reports": [{**_HELD, "state": "done"}], "leases": []},
    ),
    "renew_lease": Example(
        {"progress": {"percent": 50}, "output": "half of the pages have been read\n"},
        {**_HELD, "state": "running", "leaseExpiresAt": _LATER, "cancelRequested": False},
    ),
    "complete_lease": Example(
        {"result": {"summary": "Sales grew by 4 %."}},
        {**_HELD, "state": "done", "schemaVersion": 1, "completed": _LEASE},
    ),
    "fail_lease": Example(
        {"error": "the page responded with 503", "retryAfterMs": 5000},
        {
            **_HELD,
            "state": "queued",
            "nextEligibleAt": "2026-03-02T09:00:05.000Z",
            "schemaVersion": 1,
            "released": _LEASE,
            "failed": True,
        },
    ),
    "message": Example(
        {"message": "A train to Rome, please.", "sender": "ada", "handler": "chat"},
        _ACCEPTED,
    ),
    "session": Example(
        response={
            "sessionKey": "chat:7",
            "running": [{"taskId": _TASK, "state": "running", "lane": "main", "startedAt": _AT}],
            "waiting": [],
            "debouncing": 0,
            "later": 0,
            "effectiveConcurrency": 1,
            "throttled": False,
            "generation": 0,
            "settings": {"mode": "queue", "cap": 10, "drop": "old", "maxConcurrent": 1},
            "why": "up to 1 at a time, as in its settings",
        }
    ),
    "create_cron_job": Example(
        _REPORT,
        {
            **_REPORT,
            "agentId": "default",
            "enabled": True,
            "overlap": "skip",
            "misfire": "once",
            "id": _JOB,
            "nextRunAt": "2026-03-03T08:00:00.000Z",
            "nextRunAtMs": 1_772_524_800_000,
            "state": {"consecutiveErrors": 0, "runs": 0, "nextRunAtMs": 1_772_524_800_000},
            "createdAt": _AT,
            "updatedAt": _AT,
        },
    ),
    "patch_policy": Example(
        _LIMIT,
        {
            "version": 2,
            "changed": True,
            "changes": [{"path": "lanes.main.maxInflight", "from": 30, "to": 20}],
            "policy": _LIMIT,
        },
    ),
    "list_events": Example(
        response={
            "events": [
                {
                    "id": 17,
                    "type": "task.started",
                    "timestamp": _AT,
                    "taskId": _TASK,
                    "agentId": "ada",
                    "lane": "main",
                    "state": "running",
                    "attempt": 1,
                    "worker": "w1",
                }
            ],
            "nextAfter": 17,
            "more": False,
        }
    ),
    "queue_add": Example(
        {"id": "review-7", "appId": "review", "repo": "/srv/repo", "inputs": {"pr": 7}},
        {
            "schemaVersion": 1,
            "id": "review-7",
            "appId": "review",
            "repo": "/srv/repo",
            "agentId": "default",
            "priority": 100,
            "enqueuedAt": _AT,
            "status": "pending",
            "inputs": {"pr": 7},
            "attempts": 0,
            "maxAttempts": 3,
        },
    ),
    "create_webhook": Example(
        {"url": "https://hooks.example.com/fairlane", "agentId": "ada"},
        {
            "id": "whk_019cadf1a8007e96dad7b14933ea",
            "agentId": "ada",
            "url": "https://hooks.example.com/fairlane",
            "state": "enabled",
            "createdAt": _AT,
            "secret": "whsec_(base64)",
        },
    ),
    "create_token": Example(
        {"name": "worker", "scopes": ["lease", "read"], "rate": "50/s"},
        {
            "id": "vYSZGFmVDaqj",
            "name": "worker",
            "scopes": ["read", "lease"],
            "createdAt": _AT,
            "rate": "50/s",
            "token": "fl_vYSZGFmVDaqj_(secret)",
        },
    ),
}
