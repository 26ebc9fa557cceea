"""`GET /attention`: what is wrong, and the command that fixes it, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.http.api import eventually

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.conftest import Serve

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def items(api: Api) -> dict[str, dict[str, Any]]:
    """What is listed, by kind; each kind once."""
    answer = (await api.get("/attention")).json
    found = {one["kind"]: one for one in answer["items"]}
    assert len(found) == answer["count"] == len(answer["items"])
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str | None:
    return request.getfixturevalue("fresh_postgres") if request.param == "postgresql" else None


@pytest.mark.slow
async def test_what_is_wrong_is_listed_and_the_command_fixes_it(
    serve: Serve, store: str | None
) -> None:
    policy = {"resources": {"gpt": {"limits": [{"unit": "r", "amount": 5, "perMs": 60_000}]}}}
    server = await serve(store, policy=policy)
    api = server.api
    answer = (await api.get("/attention")).json
    assert (answer["count"], answer["items"]) == (0, [])
    assert answer["summary"].startswith("nothing needs attention")

    nobody = (await api.post("/tasks", {"handler": "ehco"})).json["taskId"]
    await api.post("/lanes/team/pause")
    await api.submit(handler="echo", lane="team")
    child = await api.submit(handler="echo", dependsOn=["tsk_nowhere"])
    await api.post("/resources/gpt/close", {"forMs": 60_000, "reason": "429"})
    parked = await api.submit(
        handler="sleep", params={"ms": 600_000}, timeoutMs=1, retryPolicy={"maxRetries": 0}
    )
    await api.until(parked, "parked")
    found = await items(api)
    assert set(found) == {"noWorker", "paused", "closed", "dependency", "parked"}
    assert "did you mean echo?" in found["noWorker"]["text"]
    assert found["paused"]["command"] == "fairlane lanes resume team"
    assert found["closed"]["command"] == "fairlane resources open gpt"
    assert found["dependency"]["taskIds"] == [child]
    assert found["parked"]["command"] == f"fairlane reset {parked}"
    assert (await api.get("/attention")).json["summary"] == "5 things need attention"

    await api.post("/lanes/team/resume")
    await api.post("/resources/gpt/open", {})
    for task in (nobody, child, parked):
        await api.cancel(task)

    async def calm() -> bool:
        return not await items(api)

    await eventually(calm)


async def test_failing_jobs_and_webhooks_are_listed(serve: Serve) -> None:
    server = await serve()
    api = server.api
    job = {
        "name": "broken",
        "schedule": {"kind": "cron", "expr": "0 0 1 1 *"},
        "task": {"handler": "sleep", "params": {"ms": "x"}},
    }
    made = (await api.post("/cron/jobs", job)).json["id"]
    await api.post(f"/cron/jobs/{made}/run")

    async def failing() -> dict[str, Any] | None:
        return (await items(api)).get("cron")

    found = await eventually(failing)
    assert found["text"].startswith("cron job broken failed 1 time: ")
    assert found["command"] == f"fairlane cron run {made}"
