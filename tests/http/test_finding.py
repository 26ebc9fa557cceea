"""Find and act: filters, order, counts, bulk changes in steps, short ids, failures by error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.http.stage import HELD
from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def listed(work: Work, **query: Any) -> list[str]:
    answer = await work.api.get("/tasks", agentId=work.agent, **query)
    assert answer.status == 200, answer
    return answer.ids


async def test_tasks_are_found_by_handler_value_and_time_in_both_orders(work: Work) -> None:
    one = await work.echo(lane=HELD, metadata={"customer": 42})
    two = await work.echo(lane=HELD, handler="sleep", metadata={"customer": "43"})
    three = await work.echo(lane=HELD, metadata={"customer": 43, "tags": ["slow", "eu"]})
    assert await listed(work, sort="oldest") == [one, two, three]
    assert await listed(work, handler="echo") == [three, one]
    assert await listed(work, where="metadata.customer=43", sort="oldest") == [two, three]
    assert await listed(work, where="metadata.customer=43,metadata.tags=eu") == [three]
    assert await listed(work, since="1h") == [three, two, one]
    assert await listed(work, until="1h") == []
    created = (await work.api.show(two))["createdAt"]
    assert one not in await listed(work, since=created)
    assert await listed(work, text=work.agent) == [three, two, one]
    page = await work.api.get("/tasks", agentId=work.agent, sort="oldest", limit=2)
    rest = await work.api.get(
        "/tasks", agentId=work.agent, sort="oldest", limit=2, cursor=page.json["nextCursor"]
    )
    assert (page.ids, rest.ids) == ([one, two], [three])
    count = (await work.api.get("/tasks/count", agentId=work.agent, handler="echo")).json
    assert count == {"count": 2, "byState": {"queued": 2}, "complete": True}


async def test_tasks_are_found_by_tag_and_priority_and_counted_from_an_offset(work: Work) -> None:
    one = await work.echo(lane=HELD, metadata={"tags": ["eu", "slow"]}, priority="high")
    two = await work.echo(lane=HELD, metadata={"tags": ["eu"]}, priority=7)
    three = await work.echo(lane=HELD)
    assert await listed(work, tag="eu") == [two, one]
    assert await listed(work, tag="eu", where="metadata.tags=slow") == [one]
    assert await listed(work, priority="high") == [one]
    assert await listed(work, priority="7") == [two]
    assert await listed(work, priority="normal") == [three]
    assert await listed(work, offset=1) == [two, one]
    assert await listed(work, offset=1, limit=1, sort="oldest") == [two]
    assert await listed(work, offset=3) == []
    page = await work.api.get("/tasks", agentId=work.agent, offset=1, limit=1)
    rest = await work.api.get(
        "/tasks", agentId=work.agent, offset=1, limit=1, cursor=page.json["nextCursor"]
    )
    assert (page.ids, rest.ids) == ([two], [one])
    dry = await work.bulk("cancel", dryRun=True, tag="eu", priority="-10")
    assert dry.json["matched"] == 1


async def test_tasks_are_counted_in_the_words_of_browseros(work: Work) -> None:
    parent = await work.echo(lane=HELD)
    await work.echo(dependsOn=[parent])
    stats = (await work.api.get("/tasks/stats")).json
    assert stats["pending"] >= 1
    assert stats["waiting_dependency"] >= 1
    assert sum(stats.values()) == 2 * stats["total"]
    assert set(stats) == {
        *("total", "pending", "queued", "running", "completed", "failed", "cancelled"),
        "waiting_dependency",
    }


async def test_a_filter_that_is_wrong_is_refused_by_name(work: Work) -> None:
    for query, named in (
        ({"since": "soon"}, "field 'since': 'soon' is not a time"),
        ({"finishedUntil": "25:00"}, "field 'finishedUntil'"),
        ({"where": "customer=42"}, "use metadata.NAME=VALUE"),
        ({"sort": "age"}, "newest"),
        ({"priority": "urgent"}, "field 'priority' must be a whole number or one of critical"),
        ({"priority": "9" * 30}, "field 'priority' must be a whole number"),
        ({"offset": "-1"}, "offset"),
        ({"sort": "oldest", "failure": "err_1"}, "field 'sort'"),
    ):
        answer = await work.api.get("/tasks", **query)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert named in answer.error


async def test_a_bulk_change_goes_on_where_its_limit_ended(work: Work) -> None:
    ids = [await work.echo(lane=HELD, metadata={"run": work.agent}) for _ in range(5)]
    wanted = {"where": [f"metadata.run={work.agent}"], "handler": "echo"}
    dry = await work.bulk("cancel", dryRun=True, **wanted)
    assert (dry.json["matched"], dry.json["changed"]) == (5, 0)
    first = await work.bulk("cancel", limit=3, **wanted)
    assert (first.json["matched"], first.json["changed"]) == (3, 3)
    assert await work.states(*ids) == ["queued"] * 2 + ["cancelled"] * 3
    rest = await work.bulk("cancel", limit=3, cursor=first.json["nextCursor"], **wanted)
    assert (rest.json["changed"], "nextCursor" in rest.json) == (2, False)
    again = await work.bulk("retry", limit=2, finishedSince="1h", agentId=work.agent)
    assert (again.json["changed"], await work.states(*ids)) == (
        2,
        ["queued"] * 2 + ["cancelled"] * 3,
    )


async def test_the_beginning_of_an_id_is_enough(work: Work) -> None:
    one = await work.echo(lane=HELD)
    short = one[:22]
    assert (await work.api.get(f"/tasks/{short}")).json["taskId"] == one
    assert (await work.api.get(f"/tasks/{short.removeprefix('tsk_')}")).json["taskId"] == one
    assert (await work.api.get(f"/tasks/{short}/why")).json["taskId"] == one
    events = (await work.api.get(f"/tasks/{short}/events")).json["events"]
    assert {event["taskId"] for event in events} == {one}
    assert (await work.api.get(f"/tasks/{one[:5]}")).status == 404
    assert (await work.api.get(f"/tasks/{short}x")).status == 404
    batch = await work.batch(work.echo_item(lane=HELD), work.echo_item(lane=HELD))
    known = batch.json["batchId"]
    assert (await work.api.get(f"/batches/{known[:24]}")).json["batchId"] == known
    answer = await work.api.get("/tasks/tsk_01")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "is the beginning of several tasks: tsk_" in answer.error
    assert len(answer.json["details"]["candidates"]) == 5
    assert (await work.api.post(f"/tasks/{short}/cancel")).json["taskId"] == one


async def test_failures_are_grouped_by_error_and_retried_together(work: Work) -> None:
    failed = [
        await work.submit(fake={"status": 400, "body": {"error": f"no room {n}"}}) for n in range(2)
    ]
    await work.api.ended(*failed)
    parked = await work.park()
    groups = (await work.api.get("/failures", agentId=work.agent, since="1h")).json
    assert (groups["considered"], groups["complete"]) == (3, True)
    by_state = {(one["failed"], one["parked"]): one for one in groups["failures"]}
    group, other = by_state[2, 0], by_state[0, 1]
    assert sorted(group["taskIds"]) == sorted(failed)
    assert "<number>" in group["error"]
    assert other["handlers"] == {"sleep": 1}
    assert group["firstSeen"] <= group["lastSeen"]
    name = group["fingerprint"]
    assert sorted(await listed(work, failure=name)) == sorted(failed)
    assert (await work.api.get("/tasks/count", failure=name, agentId=work.agent)).json[
        "byState"
    ] == {"failed": 2}
    path = f"/failures/{name}/retry"
    dry = await work.api.post(path, {"agentId": work.agent, "dryRun": True})
    assert (dry.json["matched"], dry.json["changed"]) == (2, 0)
    done = await work.api.post(path, {"agentId": work.agent})
    assert (done.json["matched"], done.json["changed"]) == (2, 2)
    path = f"/failures/{other['fingerprint']}/retry"
    assert (await work.api.post(path, {"agentId": work.agent})).json["taskIds"] == [parked]
    assert (await work.api.post("/failures/err_none/retry", {})).status == 404
    await work.api.ended(*failed)
