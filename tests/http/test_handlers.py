"""What ran in the last hours, by handler and by agent, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.http.api import eventually

if TYPE_CHECKING:
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_runs_and_failures_are_counted_by_handler_and_agent(server: Server) -> None:
    api = server.api
    body = {"worker": "totals-w", "handlers": ["totals"], "limit": 2, "start": True}
    retry = {"retryPolicy": {"maxRetries": 0}}
    for agent in ("totals-a", "totals-b"):
        await api.submit(handler="totals", agentId=agent, **retry)
    leases = (await api.post("/leases", body)).json["leases"]
    assert len(leases) == 2
    for lease, verb in zip(leases, ("complete", "fail"), strict=True):
        said = {"token": lease["token"], **({"error": "no"} if verb == "fail" else {})}
        assert (await api.post(f"/leases/{lease['leaseId']}/{verb}", said)).status == 200

    async def counted() -> bool:
        found = (await api.get("/handlers", window="1h", handler="totals")).json
        return bool(found["handlers"]) and found["handlers"][0]["done"] == 1

    await eventually(counted)
    found = (await api.get("/handlers", window="1h", handler="totals")).json
    (one,) = found["handlers"]
    assert (one["name"], one["kind"]) == ("totals", "handler")
    assert (one["starts"], one["failures"], one["failureRate"]) == (2, 1, 0.5)
    assert sum(one["endedByHour"]) == 2
    assert len(one["failuresByHour"]) == 2
    assert {row["agentId"] for row in found["agents"]} == {"totals-a", "totals-b"}
    mine = (await api.get("/handlers", agentId="totals-a", handler="totals")).json
    assert [row["starts"] for row in mine["handlers"]] == [1]
