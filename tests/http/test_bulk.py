"""Cancel, retry and reset of many tasks by a filter: `POST /tasks/{cancel,retry,reset}`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fairlane.core.submissions import BATCH_MAX
from fairlane.engine.node import PAGE
from tests.http.stage import HANG, HELD, ONE, on_sqlite
from tests.http.work import AT_ONCE, Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

VERBS = ["cancel", "retry", "reset"]


async def failed(work: Work, count: int, **fields: Any) -> list[str]:
    ids = [await work.submit(fake={"status": 400}, **fields) for _ in range(count)]
    assert {task["state"] for task in await work.api.ended(*ids)} == {"failed"}
    return ids


async def test_a_filter_cancels_what_it_matches_and_nothing_else(work: Work) -> None:
    mine = [await work.submit(lane=HELD) for _ in range(3)]
    other = await work.submit(lane=HELD, agentId=work.new_agent())
    answer = await work.bulk("cancel", agentId=work.agent)
    assert answer.status == 200
    assert sorted(answer.json["taskIds"]) == sorted(mine)
    assert (answer.json["matched"], answer.json["changed"]) == (3, 3)
    assert answer.json["dryRun"] is False
    assert await work.states(*mine, other) == ["cancelled"] * 3 + ["queued"]
    for one in mine:
        assert await work.types(one) == ["created", "cancelled"]


async def test_a_dry_run_counts_and_changes_nothing(work: Work) -> None:
    queued = [await work.submit(lane=HELD) for _ in range(2)]
    bad = await failed(work, 2)
    parked = await work.park()
    for verb, ids in (("cancel", queued), ("retry", bad), ("reset", [parked])):
        states = await work.states(*ids)
        answer = await work.bulk(verb, agentId=work.agent, state=states[0], dryRun=True)
        assert answer.status == 200
        assert (answer.json["matched"], answer.json["changed"]) == (len(ids), 0)
        assert answer.json["dryRun"] is True
        assert sorted(answer.json["taskIds"]) == sorted(ids)
        assert await work.states(*ids) == states


async def test_ended_tasks_are_not_touched_by_a_cancel(work: Work) -> None:
    done = (await work.run())["taskId"]
    (bad,) = await failed(work, 1)
    running = await work.submit(lane=ONE, fake=HANG)
    waiting = await work.echo(dependsOn=["tsk_nobody00"])
    parked = await work.park()
    await work.api.until(running, "running")
    before = [await work.api.show(one) for one in (done, bad)]
    answer = await work.bulk("cancel", agentId=work.agent)
    assert (answer.status, answer.json["changed"]) == (200, 3)
    assert [await work.api.show(one) for one in (done, bad)] == before
    assert await work.states(running, waiting, parked) == ["cancelled"] * 3


async def test_parents_and_children_of_one_filter_are_cancelled_once_each(work: Work) -> None:
    parent = await work.submit(lane=HELD)
    children = [await work.echo(dependsOn=[parent]) for _ in range(3)]
    answer = await work.bulk("cancel", agentId=work.agent)
    assert (answer.json["matched"], answer.json["changed"]) == (4, 4)
    for one in (parent, *children):
        assert await work.types(one) == ["created", "cancelled"]


async def test_children_count_also_where_their_parent_is_cancelled_in_another_step(
    work: Work,
) -> None:
    parent = await work.submit(lane=HELD)
    item = work.echo_item(dependsOn=[parent])
    for _ in range(-(-PAGE // BATCH_MAX)):
        assert (await work.batch(*[item] * BATCH_MAX)).json["rejected"] == 0
    answer = await work.bulk("cancel", agentId=work.agent)
    assert (answer.json["matched"], answer.json["changed"]) == (PAGE + 1, PAGE + 1)


async def test_failed_and_cancelled_tasks_are_retried(work: Work) -> None:
    bad = await failed(work, 3)
    cancelled = await work.submit(lane=HELD)
    await work.api.cancel(cancelled)
    done = (await work.run())["taskId"]
    answer = await work.bulk("retry", agentId=work.agent, state="failed")
    assert (answer.status, answer.json["changed"]) == (200, 3)
    await work.api.ended(*bad)
    for one in bad:
        assert (await work.types(one)).count("requeued") == 1
    answer = await work.bulk("retry", agentId=work.agent, state=["cancelled", "done"])
    assert (answer.status, answer.json["changed"]) == (200, 1)
    assert await work.states(cancelled, done) == ["queued", "done"]


async def test_a_family_is_brought_back_together(work: Work) -> None:
    """Parent and child match both: the child is not refused because its parent was failed."""
    parent = await work.submit(lane=HELD)
    child = await work.echo(dependsOn=[parent])
    await work.api.cancel(parent)
    assert await work.states(parent, child) == ["cancelled", "cancelled"]
    assert (await work.bulk("retry", agentId=work.agent)).status == 200
    assert await work.states(parent, child) == ["queued", "waiting_dependency"]


async def test_parked_tasks_are_reset(work: Work) -> None:
    parked = [await work.park() for _ in range(2)]
    queued = await work.submit(lane=HELD)
    answer = await work.bulk("reset", agentId=work.agent)
    assert (answer.status, answer.json["changed"]) == (200, 2)
    assert sorted(answer.json["taskIds"]) == sorted(parked)
    assert await work.states(queued) == ["queued"]
    for one in parked:
        assert (await work.types(one))[3] == "requeued"


async def test_tasks_are_found_by_every_filter(work: Work) -> None:
    key = f"chat:{work.agent}"
    action = await work.submit(lane=HELD)
    session = await work.submit(lane=HELD, sessionKey=key)
    handler = await work.echo(lane=HELD)
    batch = await work.batch(work.echo_item(lane=HELD))

    async def matched(**body: Any) -> list[str]:
        answer = await work.bulk("cancel", dryRun=True, **body)
        assert answer.status == 200, answer
        return sorted(answer.json["taskIds"])

    everything = sorted([action, session, handler, *batch.ids])
    assert await matched(agentId=work.agent) == everything
    assert await matched(lane=HELD, agentId=work.agent) == everything
    assert await matched(lane=ONE, agentId=work.agent) == []
    assert await matched(sessionKey=key) == [session]
    assert await matched(batchId=batch.json["batchId"]) == batch.ids
    assert await matched(kind="action", agentId=work.agent) == sorted([action, session])
    assert await matched(kind="handler", agentId=work.agent) == sorted([handler, *batch.ids])
    assert await matched(state="queued", agentId=work.agent) == everything
    assert await matched(state="pending, running", agentId=work.agent) == everything
    assert await matched(state=["running", "parked"], agentId=work.agent) == []


async def test_at_most_a_hundred_ids_are_named_and_all_are_changed(work: Work) -> None:
    ids: list[str] = []
    for count in (100, 50):
        ids += (await work.batch(*[work.echo_item(lane=HELD)] * count)).ids
    answer = await work.bulk("cancel", agentId=work.agent)
    assert (answer.json["matched"], answer.json["changed"]) == (150, 150)
    assert len(set(answer.json["taskIds"])) == 100
    assert set(answer.json["taskIds"]) < set(ids)
    assert set(await work.states(*ids)) == {"cancelled"}


async def test_nothing_found_is_no_error(work: Work) -> None:
    for verb in VERBS:
        answer = await work.bulk(verb, agentId=work.agent)
        assert (answer.status, answer.json["matched"], answer.json["taskIds"]) == (200, 0, [])


async def test_a_cancel_by_filter_is_final_for_running_tasks(work: Work) -> None:
    ids = [await work.submit(fake=HANG, retryPolicy=AT_ONCE) for _ in range(4)]
    entries = await work.arrived(4)
    await work.bulk("cancel", agentId=work.agent, state="running")
    await work.instance.until(lambda: all(one.outcome == "gone" for one in entries))
    assert set(await work.states(*ids)) == {"cancelled"}
    assert len(work.actions(work.agent)) == 4


@on_sqlite
@pytest.mark.parametrize("verb", VERBS)
async def test_a_filter_is_required_and_has_to_be_right(work: Work, verb: str) -> None:
    task_id = await work.submit(lane=HELD)
    wrong: list[tuple[Any, str]] = [
        ({}, "at least one of agentId"),
        ({"dryRun": True}, "at least one of agentId"),
        ({"agentid": work.agent}, "agentId"),
        ({"agentId": 5}, "agentId"),
        ({"agentId": work.agent, "dryRun": "yes"}, "dryRun"),
        ({"agentId": work.agent, "state": "runing"}, "running"),
        ({"agentId": work.agent, "state": [5]}, "state"),
        ({"agentId": work.agent, "kind": "acton"}, "action"),
    ]
    answers = await asyncio.gather(*(work.bulk(verb, **body) for body, _ in wrong))
    for answer, (body, named) in zip(answers, wrong, strict=True):
        assert (answer.status, answer.code) == (400, "invalid_request"), body
        assert named in answer.error, answer.error
    assert await work.states(task_id) == ["queued"]


@on_sqlite
@pytest.mark.parametrize("verb", VERBS)
async def test_an_empty_filter_is_refused_also_beside_one_that_is_not(
    work: Work, verb: str
) -> None:
    task_id = await work.submit(lane=HELD)
    names = ["agentId", "state", "lane", "sessionKey", "batchId", "kind"]
    empty: list[tuple[str, Any]] = [*((name, "") for name in names), ("state", []), ("state", " ,")]
    for name, value in empty:
        for others in ({}, {"agentId": work.agent, "lane": HELD}):
            answer = await work.bulk(verb, **{**others, name: value})
            assert (answer.status, answer.code) == (400, "invalid_request"), (name, others)
            told = "must be one of action" if name == "kind" else "is empty"
            assert f"field '{name}' {told}" in answer.error
    assert await work.states(task_id) == ["queued"]
