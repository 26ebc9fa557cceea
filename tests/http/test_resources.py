"""Resources over HTTP: needs, settling, permits, operators' routes, and who sees what."""

from __future__ import annotations

import asyncio
import csv
import io
import itertools
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from tests.http.api import Answer, Api, eventually
from tests.http.server import Server, serving
from tests.postgres import new_database

pytestmark = pytest.mark.asyncio(loop_scope="session")

POLICY = {
    "lanes": {"main": {"maxInflight": 1000}},
    "resources": {
        "gpt": {
            "limits": [
                {"unit": "requests", "amount": 100, "perMs": 3_600_000},
                {"unit": "tokens", "amount": 10_000, "perMs": 3_600_000},
            ],
        },
        "spend": {
            "limits": [{"unit": "usd", "amount": "10", "resetEvery": "month"}],
            "by": "agent",
        },
        "gpu": {"limits": [{"unit": "mb", "amount": 1000}], "by": "key"},
        "profile": {"limits": [{"amount": 1}], "by": "key"},
        "nested": {
            "limits": [{"unit": "usd", "amount": "10", "resetEvery": "month"}],
            "by": ["session", "agent"],
        },
    },
}
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["sqlite", "postgresql"])
async def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("resources")
    store = f"sqlite:///{folder / 'f.db'}"
    with ExitStack() as stack:
        if request.param == "postgresql":
            store = stack.enter_context(new_database(request.getfixturevalue("postgres_url")))
        async with serving(folder, store, policy=POLICY) as server:
            yield server


class Fleet:
    """A test's own agent, handler and keys on the shared server."""

    def __init__(self, api: Api) -> None:
        number = next(_numbers)
        self.api = api
        self.agent = f"agent-{number}"
        self.handler = f"job-{number}"
        self.key = f"key-{number}"

    async def submit(self, needs: Any = None, **fields: Any) -> str:
        body = {"agentId": self.agent, "handler": self.handler, "needs": needs, **fields}
        return await self.api.submit(**{k: v for k, v in body.items() if v is not None})

    async def lease(self, **fields: Any) -> list[dict[str, Any]]:
        body = {"worker": self.agent, "handlers": [self.handler], "start": True, **fields}
        answer = await self.api.post("/leases", body)
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json["leases"]
        return found

    async def one(self, needs: Any = None, **fields: Any) -> dict[str, Any]:
        await self.submit(needs, **fields)
        (lease,) = await self.lease(waitMs=30_000)
        return lease

    async def say(self, lease: dict[str, Any], verb: str, **body: Any) -> Answer:
        return await self.api.post(f"/leases/{lease['leaseId']}/{verb}", body)

    async def well(self, lease: dict[str, Any], verb: str, **body: Any) -> dict[str, Any]:
        answer = await self.say(lease, verb, **body)
        assert answer.status == 200, answer
        shape: dict[str, Any] = answer.json
        return shape

    async def limit(self, name: str, key: str | None = None, unit: str = "usd") -> dict[str, Any]:
        query = {} if key is None else {"key": key}
        answer = await self.api.get(f"/resources/{name}", **query)
        assert answer.status == 200, answer
        (found,) = [one for one in answer.json["limits"] if one["unit"] == unit]
        return dict(found)


@pytest.fixture
def fleet(server: Server) -> Fleet:
    return Fleet(server.api)


def spend(amount: object) -> dict[str, Any]:
    return {"spend": {"usd": amount}}


# --- needs ---


async def test_needs_are_shown_by_every_read_of_the_task(fleet: Fleet) -> None:
    needs = {"gpt": {"requests": 1, "tokens": "12.5"}, f"profile/{fleet.key}": {}}
    task_id = await fleet.submit(needs)
    assert (await fleet.api.show(task_id))["needs"] == needs
    (listed,) = (await fleet.api.get("/tasks", agentId=fleet.agent)).json["tasks"]
    assert listed["needs"] == needs
    (lease,) = await fleet.lease()
    assert lease["task"]["needs"] == needs
    await fleet.well(lease, "complete")


@pytest.mark.parametrize(
    ("needs", "code", "part"),
    [
        ({"gptt": {}}, "invalid_request", "did you mean gpt"),
        ({"gpt": {"token": 1}}, "invalid_request", "did you mean tokens"),
        ({"gpt": {"tokens": -1}}, "invalid_request", "needs.gpt.tokens"),
        ({"gpt": {"tokens": "NaN"}}, "invalid_request", "needs.gpt.tokens"),
        ({"gpt": {"tokens": 0.0000001}}, "invalid_request", "at most 6 places"),
        ({"gpt": {"tokens": 10_001}}, "needs_unsatisfiable", "10000"),
        ({"gpt/x": {}}, "invalid_request", "has no keys"),
        ({"profile": {}}, "invalid_request", "needs a key"),
    ],
)
async def test_needs_that_cannot_be_are_refused(
    fleet: Fleet, needs: Any, code: str, part: str
) -> None:
    body = {"agentId": fleet.agent, "handler": fleet.handler, "needs": needs}
    answer = await fleet.api.post("/tasks", body)
    assert (answer.status, answer.code) == (400, code)
    assert part in answer.error


async def test_a_task_that_waits_for_a_lock_says_so(fleet: Fleet) -> None:
    lock = {f"profile/{fleet.key}": {}}
    holder = await fleet.one(lock)
    waiting = await fleet.submit(lock)
    assert await fleet.lease() == []
    assert (await fleet.api.show(waiting))["gate"] == "resource"
    shown = (await fleet.api.get("/resources/profile", key=fleet.key)).json
    assert (shown["waiting"], [one["taskId"] for one in shown["holders"]]) == (
        1,
        [holder["taskId"]],
    )
    await fleet.well(holder, "complete")
    (lease,) = await fleet.lease(waitMs=30_000)
    assert lease["taskId"] == waiting
    await fleet.well(lease, "complete")


# --- settling ---


async def test_use_is_charged_refunded_and_owed_to_the_micro_unit(fleet: Fleet) -> None:
    first = await fleet.one(spend("0.300001"))
    assert (await fleet.limit("spend", fleet.agent))["reserved"] == "0.300001"
    await fleet.well(first, "complete", usage=spend("0.1"))
    second = await fleet.one(spend(0.2))
    await fleet.well(second, "complete", usage=spend("0.5"))
    third = await fleet.one(spend("0.000001"))
    await fleet.well(third, "fail", error="no", retryable=False)
    limit = await fleet.limit("spend", fleet.agent)
    assert (limit["used"], limit["reserved"]) == ("0.600001", 0)
    entries = (await fleet.api.get("/resources/spend/ledger", key=fleet.agent)).json["entries"]
    of_unit = await fleet.api.get("/resources/spend/ledger", key=fleet.agent, unit="usd")
    assert of_unit.json["entries"] == entries
    other = await fleet.api.get("/resources/spend/ledger", key=fleet.agent, unit="us")
    assert other.json["entries"] == []
    assert sum(Decimal(str(entry["amount"])) for entry in entries) == Decimal("0.600001")
    assert {"reserve", "refund", "debt"} <= {entry["kind"] for entry in entries}


@pytest.mark.parametrize("amount", [-1, "NaN", "1e3", True, "0.0000001"])
async def test_a_use_that_is_not_an_amount_is_refused_and_changes_nothing(
    fleet: Fleet, amount: object
) -> None:
    lease = await fleet.one(spend(1))
    answer = await fleet.say(lease, "complete", usage=spend(amount))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert (await fleet.api.show(lease["taskId"]))["state"] == "running"
    assert (await fleet.limit("spend", fleet.agent))["reserved"] == 1
    await fleet.well(lease, "complete", usage=spend(0))
    assert (await fleet.limit("spend", fleet.agent))["used"] == 0


async def test_use_of_something_else_is_refused(fleet: Fleet) -> None:
    lease = await fleet.one(spend(1))
    answer = await fleet.say(lease, "complete", usage={"gpt": {"tokens": 1}})
    assert answer.status == 400
    assert "was not reserved" in answer.error
    await fleet.well(lease, "release")


async def test_a_release_refunds_and_settling_twice_has_no_effect(fleet: Fleet) -> None:
    lease = await fleet.one(spend(1))
    await fleet.well(lease, "release", usage=spend(0))
    assert (await fleet.limit("spend", fleet.agent))["used"] == 0
    again = await fleet.say(lease, "complete", usage=spend(1))
    assert again.code == "lease_lost"
    assert (await fleet.limit("spend", fleet.agent))["used"] == 0


# --- permits ---


async def test_a_permit_is_granted_and_settled_once(fleet: Fleet) -> None:
    lease = await fleet.one()
    granted = await fleet.well(lease, "permits", needs=spend("0.5"))
    assert granted["granted"] is True
    assert (await fleet.limit("spend", fleet.agent))["reserved"] == "0.5"
    for amount in ("0.2", "0.4"):  # the second time has no effect
        path = f"permits/{granted['permitId']}/settle"
        await fleet.well(lease, path, usage=spend(amount))
    limit = await fleet.limit("spend", fleet.agent)
    assert (limit["used"], limit["reserved"]) == ("0.2", 0)
    await fleet.well(lease, "complete")


async def test_a_permit_without_room_says_why_and_when(fleet: Fleet) -> None:
    lease = await fleet.one()
    await fleet.well(lease, "permits", needs=spend(9))
    denied = await fleet.well(lease, "permits", needs=spend(2))
    assert denied["granted"] is False
    assert denied["resource"] == f"spend/{fleet.agent}"
    assert denied["reason"]
    await fleet.well(lease, "complete")


async def test_a_permit_waits_until_there_is_room(fleet: Fleet) -> None:
    lease, other = await fleet.one(), await fleet.one()
    lock = {f"profile/{fleet.key}": {}}
    first = await fleet.well(lease, "permits", needs=lock)
    denied = await fleet.well(other, "permits", needs=lock)
    assert denied["granted"] is False
    waiting = asyncio.create_task(fleet.well(other, "permits", needs=lock, waitMs=60_000))
    await fleet.well(lease, f"permits/{first['permitId']}/settle")
    assert (await waiting)["granted"] is True
    await fleet.well(lease, "complete")
    await fleet.well(other, "complete")


async def test_the_end_of_a_lease_settles_its_permits_as_reserved(fleet: Fleet) -> None:
    lease = await fleet.one()
    await fleet.well(lease, "permits", needs=spend("0.5"))
    await fleet.well(lease, "complete")
    limit = await fleet.limit("spend", fleet.agent)
    assert (limit["used"], limit["reserved"]) == ("0.5", 0)


async def test_a_permit_is_settled_by_the_next_one_and_by_renew(fleet: Fleet) -> None:
    lease = await fleet.one()
    first = await fleet.well(lease, "permits", needs=spend(1))
    settle = {"permitId": first["permitId"], "usage": spend("0.25")}
    second = await fleet.well(lease, "permits", needs=spend(1), settle=settle)
    assert (await fleet.limit("spend", fleet.agent))["used"] == "0.25"
    report = {"permitId": second["permitId"], "usage": spend("0.5")}
    await fleet.well(lease, "renew", permits=[report])
    limit = await fleet.limit("spend", fleet.agent)
    assert (limit["used"], limit["reserved"]) == ("0.75", 0)
    await fleet.well(lease, "complete")


# --- closing, opening, raising ---


async def test_a_429_closes_the_resource_for_all_tasks_and_costs_no_attempt(fleet: Fleet) -> None:
    need = {f"gpu/{fleet.key}": {"mb": 1}}
    lease = await fleet.one(need)
    closed = {f"gpu/{fleet.key}": {"retryAfterMs": 400, "reason": "429"}}
    await fleet.well(lease, "fail", error="too many requests", closed=closed)
    shown = (await fleet.api.get("/resources/gpu", key=fleet.key)).json
    assert (shown["state"], shown["reason"]) == ("closed", "429")
    task = await fleet.api.show(lease["taskId"])
    assert (task["state"], task["attempts"]) == ("queued", 0)
    (again,) = await fleet.lease(waitMs=60_000)
    assert again["taskId"] == lease["taskId"]
    await fleet.well(again, "complete")


async def test_an_operator_closes_and_opens(fleet: Fleet) -> None:
    need = {f"gpu/{fleet.key}": {"mb": 1}}
    body = {"key": fleet.key, "reason": "maintenance"}
    closed = (await fleet.api.post("/resources/gpu/close", body)).json
    assert (closed["state"], closed["reason"], "closedUntil" in closed) == (
        "closed",
        "maintenance",
        False,
    )
    task_id = await fleet.submit(need)
    assert await fleet.lease() == []
    assert (await fleet.api.show(task_id))["gate"] == "resource"
    opened = (await fleet.api.post("/resources/gpu/open", {"key": fleet.key})).json
    assert opened["state"] == "open"
    (lease,) = await fleet.lease(waitMs=30_000)
    await fleet.well(lease, "complete")


async def test_a_raise_lets_the_next_task_start(fleet: Fleet) -> None:
    held = await fleet.one(spend(9))
    await fleet.submit(spend(2))
    assert await fleet.lease() == []
    body = {"key": fleet.agent, "unit": "usd", "amount": "1.5", "reason": "release day"}
    raised = (await fleet.api.post("/resources/spend/raise", body)).json
    assert (raised["limits"][0]["raised"], raised["limits"][0]["available"]) == ("1.5", "2.5")
    (lease,) = await fleet.lease(waitMs=30_000)
    for one in (held, lease):
        await fleet.well(one, "complete")


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("gptt/close", {}, "gpt"),
        ("gpt/raise", {"unit": "tokens", "amount": 1}, "no budget"),
        ("spend/raise", {"unit": "eur", "amount": 1, "key": "a"}, "eur"),
        ("spend/raise", {"unit": "usd", "amount": -1, "key": "a"}, "amount"),
        ("gpt/close", {"forMs": 1, "until": "2030-01-01T00:00:00Z"}, "not both"),
        ("gpt/close", {"until": "soon"}, "until"),
    ],
)
async def test_wrong_changes_are_refused(
    fleet: Fleet, path: str, body: dict[str, Any], part: str
) -> None:
    answer = await fleet.api.post(f"/resources/{path}", body)
    assert answer.status in (400, 404, 409), answer
    assert part in answer.error


# --- reads ---


async def test_resources_are_listed_with_their_limits(fleet: Fleet) -> None:
    lease = await fleet.one(spend("0.5"))
    found = (await fleet.api.get("/resources", limit=1000)).json
    names = [(one["name"], one.get("key")) for one in found["resources"]]
    assert ("gpt", None) in names
    assert ("spend", fleet.agent) in names
    assert found["count"] == len(found["resources"])
    await fleet.well(lease, "complete")


async def test_usage_is_counted_per_agent_and_day_and_exported_as_csv(fleet: Fleet) -> None:
    for amount in ("0.25", "0.5"):
        await fleet.well(await fleet.one(spend(1)), "complete", usage=spend(amount))
    report = (await fleet.api.get("/resources/spend/usage", key=fleet.agent)).json
    (row,) = report["rows"]
    assert (row["agentId"], row["unit"], row["used"]) == (fleet.agent, "usd", "0.75")
    text = (await fleet.api.get("/resources/spend/usage", key=fleet.agent, format="csv")).raw
    (line,) = csv.DictReader(io.StringIO(text.decode()))
    assert (line["agentId"], line["used"]) == (fleet.agent, "0.75")


async def test_the_use_of_several_levels_is_counted_once(fleet: Fleet) -> None:
    async def counted() -> float:
        lines = (await fleet.api.get("/metrics")).raw.decode().splitlines()
        start = 'fairlane_resource_usage_total{resource="nested",unit="usd"} '
        return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))

    before = await counted()
    lease = await fleet.one({"nested": {"usd": 1}}, sessionKey=fleet.agent)
    await fleet.well(lease, "complete", usage={"nested": {"usd": "0.75"}})
    report = (await fleet.api.get("/resources/nested/usage")).json
    mine = [row["used"] for row in report["rows"] if row["agentId"] == fleet.agent]
    assert mine == ["0.75"]
    of_session = {"key": f"session:{fleet.agent}"}
    assert (await fleet.api.get("/resources/nested/usage", **of_session)).json["count"] == 1
    assert await counted() == before + 0.75


async def test_a_list_of_resources_has_pages(fleet: Fleet) -> None:
    for number in range(3):
        await fleet.one({f"profile/{fleet.agent}-{number}": {}})
    everything = (await fleet.api.get("/resources", limit=1000)).json["resources"]
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await fleet.api.get("/resources", limit=2, **cursor)).json
        found += page["resources"]
        if "nextCursor" not in page:
            break
        cursor = {"cursor": page["nextCursor"]}
    names = [(one["name"], one.get("key")) for one in found]
    assert names == [(one["name"], one.get("key")) for one in everything]


async def test_metrics_show_limits_and_use(fleet: Fleet) -> None:
    lease = await fleet.one({"gpt": {"requests": 1, "tokens": 5}})
    lines = (await fleet.api.get("/metrics")).raw.decode().splitlines()
    assert 'fairlane_resource_limit{resource="gpt",unit="tokens"} 10000' in lines
    assert any(line.startswith('fairlane_resource_reserved{resource="gpt"') for line in lines)
    await fleet.well(lease, "release", usage={"gpt": {"requests": 0, "tokens": 0}})


async def test_metrics_name_the_agents_that_used_most_today(fleet: Fleet) -> None:
    await fleet.well(await fleet.one(spend(1)), "complete", usage=spend("98765.5"))
    labels = f'resource="spend",unit="usd",agent="{fleet.agent}"'
    start = "fairlane_resource_agent_used_today{"
    lines = (await fleet.api.get("/metrics")).raw.decode().splitlines()
    found = [line for line in lines if line.startswith(f'{start}resource="spend"')]
    assert f"{start}{labels}}} 98765.5" in found
    assert len(found) <= 21, "20 agents and all others"


async def test_history_follows_the_use(fleet: Fleet) -> None:
    lease = await fleet.one(spend("0.5"))

    async def look() -> Any:
        shown = (await fleet.api.get("/resources/spend/history", key=fleet.agent)).json
        return [
            limit
            for point in shown["points"]
            for limit in point["limits"]
            if limit["taken"] == "0.5"
        ] or None

    assert (await eventually(look))[0]["amount"] == 10
    await fleet.well(lease, "complete")
