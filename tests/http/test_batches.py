"""Batches as a whole: how much of one runs at once, items that name each other, its life and end.

Facts of specs/browseros.md section 12: 24, 80; weakness 12 of section 13 (parallelism and webhook
of a batch count for something, status and cancel exist, nothing is half inserted). What seed 2
says about batches is in test_batch.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.api import Answer
from tests.http.stage import HANG, HELD, TINY, on_sqlite
from tests.http.work import FOR_EVER, Work

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def accepted(work: Work, *items: Any, **fields: Any) -> Answer:
    answer = await work.batch(*items, **fields)
    assert (answer.status, answer.json["rejected"]) == (202, 0), answer
    return answer


async def shown(work: Work, batch_id: str) -> dict[str, Any]:
    answer = await work.api.get(f"/batches/{batch_id}")
    assert answer.status == 200, answer
    batch: dict[str, Any] = answer.json
    return batch


async def count(work: Work) -> int:
    found: int = (await work.api.get("/tasks", agentId=work.agent, limit=1000)).json["count"]
    return found


# --- parallelism --------------------------------------------------------------------------------


@pytest.mark.parametrize("parallelism", [1, 3])
async def test_no_more_items_run_at_once_than_the_batch_says(work: Work, parallelism: int) -> None:
    items = [work.action_item(fake=HANG, params={"n": n}) for n in range(7)]
    answer = await accepted(work, *items, parallelism=parallelism)
    for done in range(0, 7, parallelism):
        await work.arrived(min(done + parallelism, 7))
        states = await work.states(*answer.ids)
        assert states.count("queued") == max(7 - done - parallelism, 0)
        work.instance.release()
    tasks = await work.api.ended(*answer.ids)
    assert {task["state"] for task in tasks} == {"done"}
    assert work.most_at_once() == parallelism
    assert sorted(work.numbers()) == list(range(7))


async def test_an_item_that_waits_for_its_batch_says_so_and_others_pass_it(work: Work) -> None:
    items = [work.action_item(fake=HANG) for _ in range(3)]
    answer = await accepted(work, *items, parallelism=1)
    await work.arrived(1)
    tasks = [await work.api.show(one) for one in answer.ids]
    assert [task.get("gate") for task in tasks[1:]] == ["batch", "batch"]
    assert (await work.run())["state"] == "done"
    other = await accepted(work, work.action_item(), work.action_item(), parallelism=1)
    assert {task["state"] for task in await work.api.ended(*other.ids)} == {"done"}
    assert await work.states(*answer.ids[1:]) == ["queued", "queued"]


async def test_one_at_a_time_is_in_the_order_of_the_batch(work: Work) -> None:
    items = [work.action_item(params={"n": n}) for n in range(12)]
    answer = await accepted(work, *items, parallelism=1)
    await work.api.ended(*answer.ids)
    assert work.numbers() == list(range(12))
    assert work.most_at_once() == 1


async def test_without_a_number_only_the_lane_limits_a_batch(work: Work) -> None:
    answer = await accepted(work, *(work.action_item(fake=HANG) for _ in range(10)))
    await work.arrived(10)
    assert set(await work.states(*answer.ids)) == {"running"}


@pytest.mark.parametrize("how", ["failed", "cancelled", "cancelled waiting", "retrying", "delayed"])
async def test_the_place_of_an_item_is_free_when_it_does_not_run(work: Work, how: str) -> None:
    first: dict[str, Any] = {
        "failed": work.action_item(fake={"status": 400}),
        "cancelled": work.action_item(fake=HANG),
        "cancelled waiting": work.action_item(lane=HELD),
        "retrying": work.action_item(fake={"status": 500}, retryPolicy=FOR_EVER),
        "delayed": work.action_item(delayMs=60_000),
    }[how]
    items = [first, work.action_item(params={"n": 1}), work.action_item(params={"n": 2})]
    answer = await accepted(work, *items, parallelism=1)
    if how == "cancelled":
        await work.arrived(1)
    if how.startswith("cancelled"):
        await work.api.cancel(answer.ids[0])
    tasks = await work.api.ended(*answer.ids[1:])
    assert [task["state"] for task in tasks] == ["done", "done"]
    assert work.numbers() == [1, 2]


async def test_an_item_that_waits_for_a_later_one_does_not_lock_the_batch(work: Work) -> None:
    items = [
        work.action_item(dependsOn=["#last"], params={"n": 2}),
        work.action_item(key="last", params={"n": 1}),
    ]
    answer = await accepted(work, *items, parallelism=1)
    assert {task["state"] for task in await work.api.ended(*answer.ids)} == {"done"}
    assert work.numbers() == [1, 2]


@pytest.mark.parametrize("value", [0, 11, -1, 1.5, "2", True, []], ids=repr)
async def test_a_parallelism_outside_one_to_ten_is_refused(work: Work, value: Any) -> None:
    answer = await work.batch(work.echo_item(lane=HELD), parallelism=value)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "parallelism" in answer.error
    assert await count(work) == 0


@pytest.mark.parametrize("value", [1, 10])
async def test_one_and_ten_are_fine(work: Work, value: int) -> None:
    answer = await accepted(work, work.echo_item(lane=HELD), parallelism=value)
    assert (await shown(work, answer.json["batchId"]))["parallelism"] == value


# --- items that name each other -----------------------------------------------------------------


async def test_the_example_of_the_documentation_can_be_sent(work: Work) -> None:
    items = [
        {"key": "open", "instruction": "Navigate to https://example.com", "dependsOn": []},
        {"instruction": "Extract page title", "dependsOn": ["#open"]},
        {"instruction": "Take screenshot", "dependsOn": ["#open"]},
    ]
    answer = await accepted(work, *items)
    states = [one["state"] for one in answer.json["tasks"]]
    assert states == ["queued", "waiting_dependency", "waiting_dependency"]
    first, *others = [await work.api.show(one) for one in answer.ids]
    assert {first["kind"], first["lane"]} == {"instruction"}
    assert [task["dependsOn"] for task in others] == [[first["taskId"]]] * 2


async def test_and_actions_in_its_shape_run_in_its_order(work: Work) -> None:
    items = [
        work.action_item(key="open", action="navigate", fake={"delayMs": 20}),
        work.action_item(action="title", dependsOn=["#open"]),
        work.action_item(action="screenshot", dependsOn=["#open"]),
    ]
    answer = await accepted(work, *items)
    tasks = await work.api.ended(*answer.ids)
    assert [task["state"] for task in tasks] == ["done"] * 3
    first, *others = work.actions()
    assert first.body["kind"] == "navigate"
    assert {one.body["kind"] for one in others} == {"title", "screenshot"}
    for one in others:
        assert (first.finished or 0) < one.arrived
        assert [given["taskId"] for given in one.body["inputs"]] == [answer.ids[0]]


async def test_keys_and_ids_may_be_mixed_and_come_in_any_order(work: Work) -> None:
    outside = await work.submit(lane=HELD)
    items = [
        work.echo_item(key="c", dependsOn=["#b", outside, "#a"]),
        work.echo_item(key="b", dependsOn=["#a"]),
        work.echo_item(key="a"),
    ]
    answer = await accepted(work, *items)
    c, b, a = answer.ids
    await work.api.ended(a, b)
    task = await work.api.show(c)
    assert (task["state"], task["dependsOn"]) == ("waiting_dependency", [b, outside, a])


async def test_a_key_means_an_item_of_its_own_batch_only(work: Work) -> None:
    first = await accepted(work, work.echo_item(key="a", lane=HELD))
    second = await accepted(
        work, work.echo_item(key="a", lane=HELD), work.echo_item(dependsOn=["#a"])
    )
    task = await work.api.show(second.ids[1])
    assert task["dependsOn"] == [second.ids[0]] != first.ids


async def test_an_unknown_key_rejects_its_item_and_those_behind_it(work: Work) -> None:
    items = [
        work.echo_item(key="fine", lane=HELD),
        work.echo_item(key="lost", dependsOn=["#nowhere"]),
        work.echo_item(key="behind", dependsOn=["#lost", "#fine"]),
        work.echo_item(dependsOn=["#behind"]),
        work.echo_item(dependsOn=["#fine"]),
    ]
    answer = await work.batch(*items)
    assert answer.status == 202
    outcomes = answer.json["tasks"]
    states = [one["state"] for one in outcomes]
    assert states == ["queued", *["rejected"] * 3, "waiting_dependency"]
    assert (answer.json["accepted"], answer.json["rejected"]) == (2, 3)
    assert [one["code"] for one in outcomes[1:4]] == ["invalid_request"] * 3
    assert "nowhere" in outcomes[1]["error"]
    assert await count(work) == 2


@pytest.mark.parametrize("why", ["invalid", "full"])
async def test_an_item_whose_parent_is_refused_is_rejected_too(work: Work, why: str) -> None:
    if why == "full":
        for _ in range(3):
            await work.submit(lane=TINY)
    bad = {"lane": TINY} if why == "full" else {"priority": 1.5}
    items = [
        work.echo_item(key="bad", **bad),
        work.echo_item(key="child", dependsOn=["#bad"]),
        work.echo_item(dependsOn=["#child"]),
        work.echo_item(lane=HELD),
    ]
    answer = await work.batch(*items)
    assert answer.status == 202
    states = [one["state"] for one in answer.json["tasks"]]
    assert states == ["rejected", "rejected", "rejected", "queued"]
    named = "bad" if why == "invalid" else answer.json["tasks"][0]["taskId"]
    assert named in answer.json["tasks"][1]["error"]


async def test_a_key_is_kept_with_its_task(work: Work) -> None:
    task = await work.api.show(await work.submit(lane=HELD, key="a"))
    assert task["key"] == "a"


@on_sqlite
@pytest.mark.parametrize("key", ["", "#a", "two words", 5, "x" * 129], ids=str)
async def test_a_key_that_is_not_an_identifier_rejects_its_item(work: Work, key: Any) -> None:
    answer = await work.batch(work.echo_item(key=key, lane=HELD), work.echo_item(lane=HELD))
    assert answer.status == 202
    assert [one["state"] for one in answer.json["tasks"]] == ["rejected", "queued"]
    assert "key" in answer.json["tasks"][0]["error"]


async def test_a_key_that_two_items_have_is_refused(work: Work) -> None:
    items = [work.echo_item(key="a", lane=HELD), work.echo_item(key="a", lane=HELD)]
    answer = await work.batch(*items, work.echo_item(dependsOn=["#a"]))
    assert answer.status == 400 or answer.json["rejected"] >= 1
    text = answer.error if answer.status == 400 else str(answer.json["tasks"])
    assert "key" in text


# --- how large ----------------------------------------------------------------------------------


async def test_a_hundred_items_are_the_most_without_an_action(work: Work) -> None:
    items = [work.echo_item(lane=HELD)] * 99 + [{"instruction": "x", "lane": HELD}]
    await accepted(work, *items)
    assert await count(work) == 100
    answer = await work.batch(*items, work.echo_item(lane=HELD))
    assert (answer.status, answer.code) == (400, "batch_too_large")
    assert answer.json["details"] == {"submitted": 101, "max": 100}
    assert await count(work) == 100


async def test_one_action_makes_it_fifty(work: Work) -> None:
    items = [work.echo_item(lane=HELD)] * 49 + [work.action_item(lane=HELD)]
    await accepted(work, *items)
    answer = await work.batch(work.echo_item(lane=HELD), *items)
    assert (answer.status, answer.code) == (400, "batch_too_large")
    assert answer.json["details"] == {"submitted": 51, "max": 50}
    assert await count(work) == 50


async def test_one_item_is_a_batch(work: Work) -> None:
    answer = await accepted(work, work.echo_item())
    await work.api.ended(*answer.ids)
    assert (await shown(work, answer.json["batchId"]))["total"] == 1


# --- its life -----------------------------------------------------------------------------------


async def test_a_batch_shows_how_far_it_is(work: Work) -> None:
    hook = work.hooks.new()
    items = [
        work.echo_item(key="a"),
        work.action_item(fake={"status": 400}),
        work.action_item(fake=HANG),
        work.echo_item(lane=HELD),
        work.echo_item(dependsOn=["tsk_nobody00"]),
    ]
    answer = await accepted(work, *items, parallelism=5, callbackUrl=hook.url)
    await work.api.ended(*answer.ids[:2])
    await work.api.until(answer.ids[2], "running")
    batch = await shown(work, answer.json["batchId"])
    created = (await work.api.show(answer.ids[0]))["createdAt"]
    expected = {
        "batchId": answer.json["batchId"],
        "state": "running",
        "total": 5,
        "byState": {"done": 1, "failed": 1, "running": 1, "queued": 1, "waiting_dependency": 1},
        "parallelism": 5,
        "createdAt": created,
        "callbackUrl": hook.url,
    }
    assert {name: batch[name] for name in expected} == expected
    assert "completedAt" not in batch


async def test_a_batch_is_completed_when_its_last_task_has_ended(work: Work) -> None:
    items = [work.echo_item(), work.action_item(fake={"status": 400}), work.echo_item(lane=HELD)]
    answer = await accepted(work, *items)
    batch_id = answer.json["batchId"]
    await work.api.ended(*answer.ids[:2])
    assert (await shown(work, batch_id))["state"] == "running"
    await work.api.cancel(answer.ids[2])
    batch = await shown(work, batch_id)
    assert (batch["state"], batch["total"]) == ("completed", 3)
    assert batch["byState"] == {"done": 1, "failed": 1, "cancelled": 1}
    assert batch.get("parallelism") is None
    assert batch["completedAt"] == (await work.api.show(answer.ids[2]))["completedAt"]


async def test_the_end_of_a_batch_is_reported_once_as_event_and_as_webhook(work: Work) -> None:
    hook, own, marker = (work.hooks.new() for _ in range(3))
    before = await work.newest()
    items = [work.echo_item(), work.echo_item(callbackUrl=own.url), work.echo_item()]
    answer = await accepted(work, *items, webhookUrl=hook.url)
    batch_id = answer.json["batchId"]
    await work.api.ended(*answer.ids)
    events = await work.pages(before, batchId=batch_id)
    assert [one["type"] for one in events].count("batch.completed") == 1
    assert (events[-1]["type"], events[-1]["batchId"]) == ("batch.completed", batch_id)
    assert "taskId" not in events[-1]
    assert {one["batchId"] for one in events} == {batch_id}

    deliveries = await hook.until(3)
    await work.run(callbackUrl=marker.url)
    await marker.one()
    told = sorted(one.event for one in hook.deliveries)
    assert told == ["batch.completed", "task.completed", "task.completed"]
    (of_batch,) = [one for one in deliveries if one.event == "batch.completed"]
    assert of_batch.verified() == await shown(work, batch_id)
    assert of_batch.headers["x-pinchtab-task-id"] == batch_id
    assert [one.task["taskId"] for one in own.deliveries] == [answer.ids[1]]


async def test_a_cancelled_batch_ends_whatever_its_tasks_were_doing(work: Work) -> None:
    hook = work.hooks.new()
    before = await work.newest()
    items = [
        work.echo_item(),
        work.action_item(fake=HANG, key="runs"),
        work.echo_item(lane=HELD),
        work.echo_item(dependsOn=["#runs"]),
        work.echo_item(delayMs=60_000),
    ]
    answer = await accepted(work, *items, callbackUrl=hook.url)
    batch_id = answer.json["batchId"]
    await work.api.ended(answer.ids[0])
    (entry,) = await work.arrived(1)
    cancelled = await work.api.post(f"/batches/{batch_id}/cancel")
    assert cancelled.status == 200
    assert cancelled.json == {"batchId": batch_id, "cancelled": 4, "state": "cancelled"}
    await work.instance.until(lambda: entry.outcome == "gone")
    assert await work.states(*answer.ids) == ["done", *["cancelled"] * 4]
    batch = await shown(work, batch_id)
    assert (batch["state"], batch["byState"]) == ("cancelled", {"done": 1, "cancelled": 4})
    assert [one.event for one in await hook.until(6)].count("batch.completed") == 1
    events = await work.pages(before, batchId=batch_id, type="batch.completed")
    assert len(events) == 1


async def test_a_completed_batch_cannot_be_cancelled(work: Work) -> None:
    answer = await accepted(work, work.echo_item())
    batch_id = answer.json["batchId"]
    await work.api.ended(*answer.ids)
    before = await shown(work, batch_id)
    refused = await work.api.post(f"/batches/{batch_id}/cancel")
    assert (refused.status, refused.code) == (409, "conflict")
    assert await shown(work, batch_id) == before


async def test_a_batch_whose_task_is_taken_up_again_has_another_end(work: Work) -> None:
    hook = work.hooks.new()
    before = await work.newest()
    work.fail_next(1)
    answer = await accepted(work, work.action_item(), work.echo_item(), callbackUrl=hook.url)
    batch_id = answer.json["batchId"]
    await work.api.ended(*answer.ids)
    assert (await shown(work, batch_id))["byState"] == {"failed": 1, "done": 1}
    assert (await work.retry(answer.ids[0])).status == 200
    await work.api.end_of(answer.ids[0])
    batch = await shown(work, batch_id)
    assert (batch["state"], batch["byState"]) == ("completed", {"done": 2})
    assert len(await work.pages(before, batchId=batch_id, type="batch.completed")) == 2
    told = [one for one in await hook.until(5) if one.event == "batch.completed"]
    assert len({one.headers["webhook-id"] for one in told}) == 2


async def test_an_unknown_batch_is_404(work: Work) -> None:
    for answer in (
        await work.api.get("/batches/bat_nobody00"),
        await work.api.post("/batches/bat_nobody00/cancel"),
    ):
        assert (answer.status, answer.code) == (404, "not_found")


async def test_batches_are_listed_newest_first_and_page_by_page(work: Work) -> None:
    ids = [(await accepted(work, work.echo_item(lane=HELD))).json["batchId"] for _ in range(5)]
    found: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while len(found) < 5:
        answer = await work.api.get("/batches", **query)
        assert answer.status == 200, answer
        assert len(answer.json["batches"]) == 2
        found += [batch["batchId"] for batch in answer.json["batches"]]
        query["cursor"] = answer.json["nextCursor"]
        await accepted(work, work.echo_item(lane=HELD))
    assert found[:5] == ids[::-1]
    (newest,) = (await work.api.get("/batches", limit=1)).json["batches"]
    assert newest.items() <= (await shown(work, newest["batchId"])).items()
    assert {"batchId", "state", "total", "createdAt"} <= set(newest)


# --- one batch, however often it is sent --------------------------------------------------------


async def test_a_batch_that_is_sent_again_with_its_key_is_the_same_one(work: Work) -> None:
    items = [work.echo_item(key="a", lane=HELD), work.echo_item(dependsOn=["#a"])]
    body = {"agentId": work.agent, "tasks": items, "parallelism": 2}
    answers = await asyncio.gather(
        *(work.api.post("/tasks/batch", body, Idempotency_Key="b") for _ in range(8))
    )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.raw for answer in answers}) == 1
    assert await count(work) == 2
    other = {**body, "parallelism": 3}
    answer = await work.api.post("/tasks/batch", other, Idempotency_Key="b")
    assert (answer.status, answer.code) == (409, "idempotency_conflict")


async def test_a_batch_is_there_as_a_whole_or_not_at_all(work: Work) -> None:
    """A reader sees none or all of its tasks while it is inserted."""
    seen: set[int] = set()

    async def look() -> None:
        while (found := await count(work)) < 100:
            seen.add(found)

    looking = asyncio.create_task(look())
    await accepted(work, *[work.echo_item(lane=HELD)] * 100)
    await asyncio.wait_for(looking, WAIT_SECONDS)
    assert seen <= {0}
