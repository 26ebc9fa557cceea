"""`POST /leases/report`: many reports and the next leases in one request, on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlane.testing import MemoryFairlane
from tests.fakes.waiting import WAIT_SECONDS
from tests.http.access import Callers, guarded
from tests.http.api import Answer
from tests.http.stage import ONE
from tests.http.test_leases import Ext, waits
from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]


@pytest.fixture
def ext(work: Work) -> Ext:
    return Ext(work)


def said(lease: Json, verb: str, **fields: Any) -> Json:
    return {"leaseId": lease["leaseId"], "verb": verb, **fields}


async def send(ext: Ext, *reports: Any, **fields: Any) -> Answer:
    ask = {"worker": ext.name, "lanes": [ext.lane], "handlers": [ext.handler]}
    return await ext.api.post("/leases/report", {**ask, "reports": [*reports], **fields})


async def outcomes(ext: Ext, *reports: Any, **fields: Any) -> list[Json]:
    answer = await send(ext, *reports, **fields)
    assert answer.status == 200, answer
    assert len(answer.json["reports"]) == len(reports)
    found: list[Json] = answer.json["reports"]
    return found


async def several(ext: Ext, count: int, **fields: Any) -> list[Json]:
    for _ in range(count):
        await ext.submit(**fields)
    return await ext.leases(limit=count)


async def test_each_report_has_its_outcome_in_the_order_of_the_request(ext: Ext) -> None:
    one, two, three, four, five = await several(ext, 5)
    found = await outcomes(
        ext,
        said(one, "complete", result={"n": 1}),
        said(two, "fail", error="no", retryable=False),
        said(three, "release"),
        said(four, "start"),
        said(five, "renew", ttlMs=60_000, progress={"percent": 50}),
    )
    assert [one["state"] for one in found] == ["done", "failed", "queued", "running", "assigned"]
    assert [one["taskId"] for one in found] == [
        lease["taskId"] for lease in (one, two, three, four, five)
    ]
    assert all("code" not in one for one in found)
    assert (await ext.api.show(one["taskId"]))["result"] == {"n": 1}
    assert (await ext.api.show(two["taskId"]))["error"] == "no"
    await outcomes(ext, said(four, "release"), said(five, "release"))


async def test_a_stale_report_is_lost_alone(ext: Ext) -> None:
    old, fine = await several(ext, 2)
    await ext.well(old, "release")
    stale, done = await outcomes(ext, said(old, "complete", result=1), said(fine, "complete"))
    assert (stale["code"], stale["leaseId"]) == ("lease_lost", old["leaseId"])
    assert stale["details"]["taskId"] == old["taskId"]
    assert done["state"] == "done"


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        ({"verb": "complete"}, "missing required field 'leaseId'"),
        ({"leaseId": "lse_1_1", "verb": "finish"}, "field 'verb' must be one of"),
        ({"leaseId": "lse_1_1", "verb": "complete", "resul": 1}, "did you mean result?"),
        ({"leaseId": "lse_1_1", "verb": "complete", "error": "x"}, "field 'error' does not belong"),
        ({"leaseId": "lse_1_1", "verb": "fail"}, "missing required field 'error'"),
        ({"leaseId": "lse_1_1", "verb": "fail", "error": " "}, "field 'error' must not be empty"),
        ({"leaseId": "lse_1_1", "verb": "output"}, "missing required field 'output'"),
        ({"leaseId": "lse_1_1", "verb": "renew", "part": 1}, "field 'part' needs 'output'"),
        ({"leaseId": "lse_1_1", "verb": "start", "token": 2}, "not the fencing token"),
        ({"leaseId": "nothing", "verb": "start"}, "is not a lease id"),
        (7, "must be a JSON object"),
    ],
)
async def test_a_bad_report_is_answered_with_its_problem_and_the_others_count(
    ext: Ext, report: Any, problem: str
) -> None:
    (lease,) = await several(ext, 1)
    bad, done = await outcomes(ext, report, said(lease, "complete"))
    assert problem in bad["error"]
    assert "state" not in bad
    assert done["state"] == "done"


async def test_reports_about_one_lease_are_applied_in_their_order(ext: Ext) -> None:
    (lease,) = await several(ext, 1)
    found = await outcomes(
        ext,
        said(lease, "start"),
        said(lease, "output", output="half ", part=0),
        said(lease, "renew", progress=1, output="whole", part=1),
        said(lease, "complete", result="r"),
        said(lease, "complete", result="r"),
        said(lease, "renew"),
    )
    assert [one.get("state", one.get("code")) for one in found] == [
        *("running", None, "running", "done", "done", "lease_lost"),
    ]
    output = (await ext.api.get(f"/tasks/{lease['taskId']}/output")).json
    assert output["text"] == "half whole"
    types = await ext.work.types(lease["taskId"])
    assert types == ["created", "started", "progress", "completed"]


async def test_a_repeated_request_changes_nothing_more(ext: Ext) -> None:
    one, two = await several(ext, 2)
    reports = said(one, "complete", result={"a": 1}), said(two, "fail", error="no", retryable=False)
    first = await outcomes(ext, *reports)
    again = await outcomes(ext, *reports)
    assert again[0] == first[0]
    assert again[1]["code"] == "lease_lost"
    other = await outcomes(ext, said(one, "complete", result={"a": 2}))
    assert "different result" in other[0]["error"]


async def test_a_cancelled_task_is_reported_by_the_renewal(ext: Ext) -> None:
    (lease,) = await several(ext, 1)
    await ext.api.cancel(lease["taskId"])
    (found,) = await outcomes(ext, said(lease, "renew"))
    assert (found["state"], found["cancelRequested"]) == ("cancelled", True)
    await outcomes(ext, said(lease, "release"))


async def test_the_slot_that_a_report_frees_is_leased_by_the_same_request(
    ext: Ext, work: Work
) -> None:
    narrow = Ext(work, lane=ONE)
    narrow.handler = ext.handler
    for _ in range(2):
        await narrow.submit()
    (first,) = await narrow.leases(limit=5)
    answer = await send(narrow, said(first, "complete"), limit=5, start=True)
    (second,) = answer.json["leases"]
    assert second["state"] == "running"
    assert await outcomes(narrow, said(second, "complete"), limit=5)


async def test_without_a_limit_nothing_is_leased(ext: Ext) -> None:
    await ext.submit()
    answer = await send(ext)
    assert answer.json["leases"] == answer.json["reports"] == []
    (lease,) = (await send(ext, limit=1)).json["leases"]
    await outcomes(ext, said(lease, "complete"))


async def test_it_waits_for_a_task_as_long_as_the_caller_says(ext: Ext) -> None:
    await waits(ext.api, 0)
    asked = asyncio.create_task(send(ext, limit=1, waitMs=60_000))
    await waits(ext.api, 1)
    task_id = await ext.submit()
    answer = await asyncio.wait_for(asked, WAIT_SECONDS)
    (lease,) = answer.json["leases"]
    assert lease["taskId"] == task_id
    await outcomes(ext, said(lease, "complete"))


async def test_an_unknown_lane_refuses_the_request_and_applies_nothing(ext: Ext) -> None:
    (lease,) = await several(ext, 1)
    answer = await send(ext, said(lease, "complete"), limit=1, lanes=["nowhere"])
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert (await ext.api.show(lease["taskId"]))["state"] == "assigned"
    await ext.well(lease, "release")


async def test_too_many_reports_are_refused(ext: Ext) -> None:
    answer = await send(ext, *[{}] * 1001)
    assert answer.status == 400
    assert "must not have more than 1000" in answer.error


async def test_a_deep_result_is_as_good_as_in_a_request_of_its_own(ext: Ext) -> None:
    deep: Any = 1
    for _ in range(64):
        deep = [deep]
    one, two = await several(ext, 2)
    fine, refused = await outcomes(
        ext, said(one, "complete", result=deep), said(two, "complete", result=[deep])
    )
    assert fine["state"] == "done"
    assert "must not be nested deeper" in refused["error"]
    await ext.well(two, "release")


@pytest_asyncio.fixture(loop_scope="session")
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    async with guarded(tmp_path, f"sqlite:///{tmp_path / 'fairlane.db'}") as callers:
        yield callers


async def test_an_agents_token_reports_on_its_own_tasks_only(callers: Callers) -> None:
    alice, bob = await callers.alice(), await callers.bob()
    leases = {}
    for token in (alice, bob):
        await callers.ask("POST", "/tasks", {"handler": "apart"}, token=token)
        ask = {"worker": "w", "handlers": ["apart"]}
        answer = await callers.ask("POST", "/leases", ask, token=token)
        (leases[token],) = answer.json["leases"]
    both = [said(leases[token], "complete") for token in (alice, bob)]
    answer = await callers.ask(
        "POST", "/leases/report", {"worker": "w", "reports": both}, token=alice
    )
    mine, other = answer.json["reports"]
    assert mine["state"] == "done"
    assert (other["code"], other.get("details")) == ("lease_lost", None)
    answer = await callers.ask(
        "POST", "/leases/report", {"worker": "w", "reports": both[1:]}, token=bob
    )
    assert answer.json["reports"][0]["state"] == "done"


async def test_a_stopping_server_takes_reports_and_grants_nothing() -> None:
    async with MemoryFairlane() as app:
        await app.submit(handler="outside")
        (lease,) = (await app.lease("w")).leases
        await app.submit(handler="outside")
        app.node.draining = True
        report = {"leaseId": lease.lease_id, "verb": "complete"}
        answer = await app.report_leases("w", [report], limit=5)
        assert (answer.reports[0].state, answer.leases) == ("done", [])
        app.node.draining = False
