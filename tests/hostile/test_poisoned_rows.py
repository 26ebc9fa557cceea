"""Rows that an older version, or a hand, has left in the store: each harms nothing but itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
import pytest

from fairlane.clock import ManualClock
from fairlane.core import moments
from fairlane.embedded.app import Fairlane
from fairlane.store import queries
from tests.fakes.ports import lasting_port
from tests.fakes.waiting import WAIT_SECONDS
from tests.hostile.extremes import Reader
from tests.hostile.inside import Inside

pytestmark = pytest.mark.slow

MINUTE_MS: Final = 60_000
POISON: Final = (moments.MAX + 1, moments.MIN - 1, 2**63 - 1, -(2**63))
COLUMNS: Final = {
    queries.SQLITE: "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
    " WHERE m.type = 'table'",
    queries.POSTGRES: "SELECT table_name, column_name FROM information_schema.columns"
    " WHERE table_schema = 'public'",
}
# What is more than a text in the store, and which of its rows.
DOCUMENTS: Final = {
    "request.body": "true",
    "result.result": "result IS NOT NULL",
    "event.detail": "type = 'task.progress'",
    "session.settings": "settings IS NOT NULL",
    "job.definition": "true",
    "template.definition": "true",
    "delivery.log": "true",
}
JUNK: Final = ("{", "", "[]", '{"name":1,"params":[],"llmConfig":1}')


class Store:
    """What a hand does to the store behind the scheduler's back."""

    def __init__(self, app: Fairlane) -> None:
        self._store: Any = app.node.store
        self.kind = self._store.dialect

    def run(self, statement: str) -> list[Any]:
        """Carries out a statement; the rows that it has found."""
        if self.kind == queries.POSTGRES:
            with psycopg.connect(self._store.url) as connection:
                found = connection.execute(statement)
                return found.fetchall() if found.description else []
        # By the scheduler's own driver: two of them in one process undo each other's locks.
        file = self._store.open_file()
        try:
            return list(file.execute(statement))
        finally:
            file.close()


@pytest.fixture
def store(inside: Inside) -> Store:
    return Store(inside.app)


@pytest.fixture
async def inside(store_url: str) -> AsyncIterator[Inside]:
    policy = {"lanes": {name: {"maxInflight": 1000} for name in ("main", "cron", "queue")}}
    options: dict[str, Any] = {"drain_seconds": 0, "allow_outbound": ["127.0.0.1"]}
    async with Fairlane(store_url, policy=policy, clock=ManualClock(), **options) as app:
        found = Inside(app)
        await _furnish(found)
        yield found


async def _furnish(inside: Inside) -> None:
    """Something of everything, in the states that it is easily brought to."""
    back = {"callbackUrl": f"http://127.0.0.1:{lasting_port()}/", "handler": "n"}
    later = {"handler": "n", "delayMs": 3_600_000, "deadline": "2030-01-01T00:00:00Z"}
    assert (await inside.ask("POST", "/tasks", back)).status == 202
    (first,) = await _leases(inside, 1)
    done = await inside.ask("POST", f"/leases/{first}/complete", {"result": [1]})
    assert done.status == 200, done
    for target, body in (
        *[("/tasks", {**back, "params": {"n": number}}) for number in range(8)],
        ("/tasks", later),
        ("/tasks", {"instruction": "go", "llmConfig": {"apiKey": "abcdef"}, "lane": "queue"}),
        ("/tasks/batch", {"agentId": "a", "tasks": [{"handler": "n"}] * 2}),
        *[("/sessions/s/messages", {"message": "m", "handler": "n"}) for _ in range(2)],
        ("/sessions/s2/messages", {"message": "m", "handler": "n"}),
        ("/sessions/s2/stopall", {}),
        ("/queue", {"runId": "r"}),
        *[("/templates", {"name": name, "instruction": "go"}) for name in ("t1", "t2")],
        *[("/cron/jobs", _job(name)) for name in ("j1", "j2")],
        ("/webhooks", {"url": "https://hooks.example.com/a"}),
    ):
        answer = await inside.ask("POST", target, body)
        assert answer.status < 300, (target, answer)
    assert (await inside.ask("PATCH", "/sessions/s", {"cap": 3})).status == 200
    reports = {
        "complete": {"result": {"a": 1}},
        "fail": {"error": "it broke"},
        "renew": {"progress": {"percent": 5}},
        "release": {},
    }
    for (verb, body), lease in zip(reports.items(), await _leases(inside, 5), strict=False):
        answer = await inside.ask("POST", f"/leases/{lease}/{verb}", body)
        assert answer.status == 200, answer


def _job(name: str) -> dict[str, Any]:
    schedule = {"kind": "every", "everyMs": MINUTE_MS}
    return {"name": name, "schedule": schedule, "task": {"handler": "n"}, "overlap": "allow"}


async def _leases(inside: Inside, limit: int) -> list[str]:
    answer = await inside.ask("POST", "/leases", {"worker": "w", "limit": limit})
    assert answer.status == 200, answer
    return [one["leaseId"] for one in answer.json["leases"]]


async def _goes_on(inside: Inside, reader: Reader) -> None:
    """What is new is done beside what is damaged, and time passes."""
    for aging_ms in (1000, None):
        policy = {"lanes": {"main": {"agingMs": aging_ms}}}
        assert (await inside.ask("PATCH", "/policy", policy)).status == 200
    back = f"http://127.0.0.1:{lasting_port()}/"
    body = {"handler": "new", "priority": "critical", "callbackUrl": back}
    submitted = await inside.ask("POST", "/tasks", body)
    assert submitted.status == 202, submitted
    asked = {"worker": "w2", "limit": 100, "handlers": ["new"]}
    leased = (await inside.ask("POST", "/leases", asked)).json["leases"]
    assert [one["taskId"] for one in leased] == [submitted.json["taskId"]]
    done = await inside.ask("POST", f"/leases/{leased[0]['leaseId']}/complete", {"result": 1})
    assert done.status == 200, done
    await _is_sent(inside, submitted.json["taskId"])
    await _leases(inside, 1000)
    clock = inside.app.node.clock
    assert isinstance(clock, ManualClock)
    clock.advance(10 * MINUTE_MS)
    inside.app.node.writer.nudge()
    assert (await inside.ask("POST", "/leases/reclaim", {})).status == 200
    for target, body in (("/tasks/retry", {"state": "failed"}), ("/queue/drain", {"limit": 5})):
        answer = await inside.ask("POST", target, body)
        assert answer.status == 200, (target, answer)
    message = {"message": "one more", "handler": "n"}
    assert (await inside.ask("POST", "/sessions/s/messages", message)).status == 202
    assert inside.app.node.writer.trouble is None
    await reader.everything()


async def _is_sent(inside: Inside, task_id: str) -> None:
    """A webhook is tried, whatever is wrong with others that are owed; nobody answers it here."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = (await inside.ask("GET", f"/deliveries?taskId={task_id}")).json["deliveries"]
            if found and "lastError" in found[0]:
                return


def _holds_moments(column: str) -> bool:
    return column.endswith("_at") or column in ("at", "previous_until")


@pytest.mark.parametrize("poison", POISON)
async def test_moments_out_of_bounds_are_shown_as_the_bound(
    inside: Inside, store: Store, poison: int
) -> None:
    columns = [one for one in store.run(COLUMNS[store.kind]) if _holds_moments(one[1])]
    assert len(columns) > 30
    before = (await inside.ask("GET", "/tasks")).json["count"]
    reader = Reader(inside)
    kept = ("scheduler", "writer", "node")  # how nodes find one another
    for table, column in columns:
        if table not in kept:
            store.run(f'UPDATE "{table}" SET {column} = {poison} WHERE {column} IS NOT NULL')
            await reader.ask("/tasks?limit=1000")
    listed = (await inside.ask("GET", "/tasks?limit=1000")).json
    assert listed["count"] >= before
    bound = moments.text(moments.clamped(poison))
    assert {task["createdAt"] for task in listed["tasks"]} == {bound}
    await reader.everything()
    await _goes_on(inside, reader)


@pytest.mark.parametrize("junk", JUNK)
async def test_damaged_documents_are_shown_as_such_and_the_rest_goes_on(
    inside: Inside, store: Store, junk: str
) -> None:
    for where, which in DOCUMENTS.items():
        table, _, column = where.partition(".")
        assert store.run(f"SELECT count(*) FROM {table} WHERE {which}")[0][0] > 0, where
        store.run(f"UPDATE {table} SET {column} = '{junk}' WHERE {which}")
    reader = Reader(inside)
    await reader.everything()
    for path, name in (("/cron/jobs", "jobs"), ("/templates", "templates")):
        listed = (await inside.ask("GET", path)).json[name]
        assert [one["unreadable"] for one in listed] == [["definition"]] * 2
        await _is_of_no_use(inside, f"{path}/{listed[0]['id']}", listed[0])
    if junk[:1] != "{" or junk == "{":
        tasks = (await inside.ask("GET", "/tasks?limit=1000")).json["tasks"]
        assert {"request"} <= {part for task in tasks for part in task["unreadable"]}
    await _goes_on(inside, reader)


async def _is_of_no_use(inside: Inside, target: str, shape: dict[str, Any]) -> None:
    """It can be deleted, and not changed or used."""
    changed = await inside.ask("PATCH", target, {"name": "new"})
    used = "run" if "schedule" in shape else "instantiate"
    for answer in (changed, await inside.ask("POST", f"{target}/{used}", {})):
        assert (answer.status, answer.json["code"]) == (409, "conflict"), answer
    assert (await inside.ask("DELETE", target)).status == 200


async def test_a_damaged_job_keeps_its_name_and_holds_up_no_other(
    inside: Inside, store: Store
) -> None:
    store.run("UPDATE job SET definition = '{' WHERE name = 'j1'")
    again = await inside.ask("POST", "/cron/jobs", _job("j1"))
    assert (again.status, again.json["code"]) == (409, "conflict")
    await _goes_on(inside, Reader(inside))
    jobs = {one["name"]: one for one in (await inside.ask("GET", "/cron/jobs")).json["jobs"]}
    assert jobs["j2"]["state"]["runs"] > 0
    assert jobs["(damaged)"]["disabledReason"].startswith("its stored definition is damaged")


async def test_a_damaged_request_fails_alone_and_the_others_of_its_batch_are_leased(
    inside: Inside, store: Store
) -> None:
    made = [await inside.ask("POST", "/tasks", {"handler": "of-a-batch"}) for _ in range(3)]
    ids = [answer.json["taskId"] for answer in made]
    store.run(
        f"UPDATE request SET body = 'nul' WHERE seq = (SELECT seq FROM task WHERE id = '{ids[1]}')"
    )
    asked = {"worker": "w", "limit": 10, "handlers": ["of-a-batch"]}
    leased = (await inside.ask("POST", "/leases", asked)).json["leases"]
    assert [one["taskId"] for one in leased] == [ids[0], ids[2]]
    ended = (await inside.ask("GET", f"/tasks/{ids[1]}/wait?timeoutMs=10000")).json
    assert (ended["state"], ended["unreadable"]) == ("failed", ["request"])
    assert ended["error"] == "the stored request cannot be read; submit the task again"


async def test_the_servers_own_worker_fails_a_damaged_request_alone(
    inside: Inside, store: Store
) -> None:
    """It runs the others that it was given with it, and goes on."""
    body = {"lanes": {"main": {"paused": True}}}
    assert (await inside.ask("PATCH", "/policy", body)).status == 200
    made = [await inside.ask("POST", "/tasks", {"handler": "echo"}) for _ in range(3)]
    ids = [answer.json["taskId"] for answer in made]
    store.run(
        f"UPDATE request SET body = '[]' WHERE seq = (SELECT seq FROM task WHERE id = '{ids[1]}')"
    )
    assert (await inside.ask("POST", "/lanes/main/resume", {})).status == 200
    ended = [(await inside.ask("GET", f"/tasks/{id_}/wait?timeoutMs=20000")).json for id_ in ids]
    assert [one["state"] for one in ended] == ["done", "failed", "done"]
    later = (await inside.ask("POST", "/tasks", {"handler": "echo"})).json["taskId"]
    assert (await inside.ask("GET", f"/tasks/{later}/wait?timeoutMs=20000")).json["state"] == "done"
