"""A database as the first version left it: its schema, and rows as it wrote them."""

from __future__ import annotations

import json
from typing import Any, Final

from fairlane.store import migrate
from tests.store.stopping import schema_of

NOW: Final = 1_700_000_000_000
TOKEN_LAST: Final = 90
SECRET: Final = "whsec_of_the_first_version"

# The columns of a task, in their order then; `line` was the agent's name, or nothing in a lane
# ordered by priority.
_TASK: Final[dict[str, Any]] = {
    "seq": 0,
    "id": "",
    "kind": "handler",
    "lane": "main",
    "agent": "ada",
    "route": "handler/work",
    "line": None,
    "priority": 0,
    "state": "queued",
    "gate": None,
    "session": None,
    "batch": None,
    "attempts": 0,
    "max_attempts": 3,
    "position": 1,
    "created_at": NOW,
    "deadline_at": None,
    "eligible_at": None,
    "queued_at": NOW,
    "started_at": None,
    "completed_at": None,
    "token": 0,
    "worker": None,
    "lease_expires_at": None,
    "callback_url": None,
}
_ENDED: Final = {"attempts": 1, "started_at": NOW, "completed_at": NOW + 5, "worker": "old"}
_LEASED: Final = {"attempts": 1, "worker": "old", "lease_expires_at": NOW + 15_000}
_RUNNING: Final = {**_LEASED, "state": "running", "started_at": NOW}

# Everything that could be found in a store: all states, both kinds of lanes, sessions, batches.
TASKS: Final[dict[str, dict[str, Any]]] = {
    "done": {**_ENDED, "state": "done", "token": 1, "callback_url": "https://r.example/"},
    "failed": {**_ENDED, "state": "failed", "token": 2, "deadline_at": NOW + 60_000},
    "cancelled": {"state": "cancelled", "completed_at": NOW + 6},
    "rejected": {"state": "rejected", "completed_at": NOW, "position": 0},
    "parked": {"state": "parked", "session": "t", "attempts": 3, "token": 3, "started_at": NOW},
    "late": {"priority": 5},
    "soon": {"priority": -5},
    "waits": {"gate": "delay", "attempts": 1, "token": 4, "eligible_at": NOW + 8000},
    "talks": {**_RUNNING, "session": "s", "token": 5},
    "listens": {"gate": "session", "session": "s"},
    "dreams": {"gate": "delay", "session": "s", "eligible_at": NOW + 90_000},
    "stopped": {**_RUNNING, "state": "cancelled", "token": 6, "completed_at": NOW + 7},
    "assigned": {**_LEASED, "state": "assigned", "token": 7, "agent": "bob"},
    "bobs": {"agent": "bob"},
    "urgent": {"agent": "bob", "priority": -20},
    "action": {"kind": "action", "route": "action", "lane": "browser", "max_attempts": 1},
    "half done": {**_ENDED, "state": "done", "token": 8, "batch": "open"},
    "half open": {"batch": "open", "priority": 7},
    "half retried": {**_TASK, "batch": "open", "gate": "delay", "token": 9, "eligible_at": NOW + 9},
    "over 1": {**_ENDED, "state": "done", "token": 10, "batch": "over"},
    "over 2": {**_ENDED, "state": "failed", "token": 11, "batch": "over", "completed_at": NOW + 9},
    "low": {"lane": "queue", "line": "", "priority": 9, "agent": "cyd"},
    "high": {"lane": "queue", "line": "", "priority": -9, "agent": "ada"},
    "first": {"lane": "queue", "line": "", "priority": 0, "agent": "bob"},
    "second": {"lane": "queue", "line": "", "priority": 0, "agent": "ada"},
    "was queued": {**_ENDED, "lane": "queue", "line": "", "state": "done", "token": 12},
}
_COUNTERS: Final = (
    *("queued", "ready", "urgent", "inflight", "slots", "parked", "submitted", "completed"),
    *("failed", "cancelled", "rejected", "expired", "dispatched", "waited_ms"),
)


def rows() -> list[dict[str, Any]]:
    """The rows of the table `task`."""
    found = []
    for seq, (name, fields) in enumerate(TASKS.items(), 1):
        row = {**_TASK, **fields, "seq": seq, "id": name}
        row["line"] = row["agent"] if row["line"] is None else row["line"]
        found.append(row)
    return found


def make(url: str) -> None:
    """Create the database."""
    with schema_of(url) as schema:
        schema.begin()
        schema.version()
        ((number, text),) = [file for file in migrate.files() if file[0] == 1]
        for statement in migrate.statements(text, schema.dialect):
            schema.run(statement)
        for statement in _statements():
            schema.run(statement)
        schema.commit(number)


def _statements() -> list[str]:
    tasks = rows()
    made = [_insert("task", row) for row in tasks]
    made += [_insert("request", {"seq": t["seq"], "body": _body(t["id"])}) for t in tasks]
    for task in tasks:
        if task["state"] in {"done", "failed", "parked"}:
            result = f'"{task["id"]}"' if task["state"] == "done" else None
            error = None if result else "no luck"
            made.append(_insert("result", {"seq": task["seq"], "result": result, "error": error}))
    made += [_insert("lane", {"name": n, **c}) for n, c in _counted(tasks, "lane").items()]
    for key, counters in _counted(tasks, "lane", "agent", "route").items():
        lane, agent, route = key.split("|")
        share = float(sum(t["lane"] == lane and t["agent"] == agent and _slot(t) for t in tasks))
        names = {"lane": lane, "agent": agent, "route": route}
        made.append(_insert("line", {**names, **counters, "share": share, "served": 0}))
    session = {"key": "s", "holders": 1, "waiting": 1, "max_concurrent": 1}
    made += [_insert("session", session), _insert("policy", _policy())]
    made += [_insert("idempotency", _key()), _insert("delivery", _delivery())]
    made.append(
        f"UPDATE scheduler SET last_seq = {len(tasks)}, last_token = {TOKEN_LAST},"
        f" policy_version = 1, webhook_secret = '{SECRET}'"
    )
    return made


def _counted(tasks: list[dict[str, Any]], *keys: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for task in tasks:
        counters = found.setdefault("|".join(task[k] for k in keys), dict.fromkeys(_COUNTERS, 0))
        state, ready = task["state"], task["state"] == "queued" and task["gate"] is None
        counters["queued"] += state == "queued"
        counters["ready"] += ready
        counters["urgent"] += ready and task["priority"] <= -20
        counters["inflight"] += state in {"assigned", "running"}
        counters["slots"] += _slot(task)
        counters["parked"] += state == "parked"
        counters["submitted"] += state != "rejected"
        counters["completed"] += state == "done"
        for total in ("failed", "cancelled", "rejected"):
            counters[total] += state == total
        counters["dispatched"] += task["token"] > 0
    return found


def _slot(task: dict[str, Any]) -> bool:
    return task["lease_expires_at"] is not None


def _body(name: str) -> str:
    return json.dumps({"name": name, "params": {"of": name}})


def _policy() -> dict[str, Any]:
    """As it was kept then, without anything that has come since."""
    limits = {"maxPerAgentInflight": None, "maxQueueSize": None, "maxPerAgent": None}
    lane = {**limits, "strategy": "fair-fifo", "paused": False}
    lanes = {
        "browser": {**lane, "maxInflight": 20},
        "main": {**lane, "maxInflight": 12},
        "queue": {**lane, "maxInflight": 1, "strategy": "priority"},
    }
    kind = {"timeoutMs": None, "backoffMs": 1000, "backoffMultiplier": 2.0, "jitter": 0.0}
    kind |= {"deadlineSec": None, "maxBackoffMs": 60_000}
    kinds = {
        "action": {**kind, "lane": "browser", "maxAttempts": 1, "whenSpent": "fail"},
        "handler": {**kind, "lane": "main", "maxAttempts": 3, "whenSpent": "park"},
    }
    document: dict[str, Any] = {
        "enabled": True,
        "maxInflight": None,
        "workerCount": 0,
        "agents": {},
    }
    document |= {"lanes": lanes, "kinds": kinds, "retention": {"days": 30, "resultTTLSec": None}}
    return {"version": 1, "document": json.dumps(document), "source": "http", "created_at": NOW}


def _key() -> dict[str, Any]:
    row = {"agent": "ada", "key": "k", "digest": "d", "answer": '["late"]', "seq": 6}
    return {**row, "created_at": NOW}


def _delivery() -> dict[str, Any]:
    row = {"id": "msg_done", "seq": 1, "url": "https://r.example/", "event": "task.completed"}
    return {**row, "state": "due", "due_at": NOW, "attempts": 0, "created_at": NOW}


def _insert(table: str, row: dict[str, Any]) -> str:
    values = ", ".join(_literal(value) for value in row.values())
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})"


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(int(value))
