"""`POST /workers/{name}/presence`: a worker whose connection breaks is gone at once."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.leases import CONNECTION_GONE
from tests.http.api import eventually
from tests.http.work import Stream

if TYPE_CHECKING:
    from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_MS = 600_000
_numbers = itertools.count(1)


class Held(Stream):
    """A connection that a worker keeps open."""

    method = "POST"


@pytest.fixture
def name() -> str:
    return f"present-{next(_numbers)}"


def held(work: Work, worker: str) -> Held:
    return Held(f"{work.api.url}/workers/{worker}/presence", {})


async def leased(work: Work, worker: str) -> str:
    handler = f"h-{worker}"
    task = await work.echo(handler=handler, lane="team")
    body = {"worker": worker, "handlers": [handler], "ttlMs": LONG_MS, "waitMs": 60_000}
    answer = await work.api.post("/leases", {**body, "start": True})
    assert answer.json["leases"], answer.json
    return task


async def test_a_worker_whose_connection_breaks_loses_its_leases_at_once(
    work: Work, name: str
) -> None:
    async with held(work, name) as stream:
        opened = await stream.message()
        assert opened["event"] == "open"
        assert json.loads(opened["data"]) == {"worker": name, "graceMs": 500}
        task = await leased(work, name)

    async def queued() -> dict[str, Any] | None:
        found = await work.api.show(task)
        return found if found["state"] == "queued" else None

    found = await eventually(queued)
    assert found["attemptLog"][0]["error"] == CONNECTION_GONE
    assert (await work.api.post(f"/tasks/{task}/cancel", {})).status == 200


async def test_a_worker_that_opens_another_connection_keeps_its_leases(
    work: Work, name: str
) -> None:
    async with held(work, name) as first:
        await first.message()
        task = await leased(work, name)
    async with held(work, name) as second:
        await second.message()
        other = f"{name}-other"
        async with held(work, other) as theirs:
            await theirs.message()
            lost = await leased(work, other)

        async def queued() -> bool:
            return (await work.api.show(lost))["state"] == "queued"

        await eventually(queued)  # by then the first connection was judged as well
        assert (await work.api.show(task))["state"] == "running"
        for one in (task, lost):
            await work.api.post(f"/tasks/{one}/cancel", {})


async def test_a_name_that_no_worker_may_have_is_refused(work: Work) -> None:
    for bad in ("node_1", "a b"):
        answer = await work.api.post(f"/workers/{bad}/presence", {})
        assert (answer.status, answer.json["code"]) == (400, "invalid_request")
        assert "worker" in answer.json["error"]
