"""The log of what happened: which events there are, and reading them as a stream and as pages.

Seed 3's table of events, and weakness 5 of specs/browseros.md section 11 (all of them are emitted).
A reader that comes back with the last id it saw misses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.stage import HANG, HELD, ONE, TINY, on_sqlite
from tests.http.work import Frame, Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELDS = {
    *("id", "type", "timestamp", "taskId", "batchId", "agentId", "lane", "state"),
    *("attempt", "error", "result", "worker", "policyVersion", "handler"),
}


def brief(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"].removeprefix("task."), event["state"]) for event in events]


# --- what is told -------------------------------------------------------------------------------


async def test_a_task_that_goes_well_is_created_started_and_completed(work: Work) -> None:
    task = await work.api.end_of(await work.echo(params={"n": 1}))
    events = await work.events(task["taskId"])
    assert brief(events) == [("created", "queued"), ("started", "running"), ("completed", "done")]
    for event in events:
        assert set(event) <= FIELDS
        assert isinstance(event["id"], int)
        assert MOMENT.fullmatch(event["timestamp"])
        assert event["taskId"] == task["taskId"]
        assert (event["agentId"], event["lane"]) == (work.agent, "main")
        assert "error" not in event
        assert "batchId" not in event
    created, started, completed = events
    assert [event["timestamp"] for event in events] == [
        task["createdAt"],
        task["startedAt"],
        task["completedAt"],
    ]
    assert not {"attempt", "worker", "result"} & set(created)
    assert (started["attempt"], completed["attempt"]) == (1, 1)
    assert started["worker"]
    assert completed["result"] == {"n": 1}
    assert created["id"] < started["id"] < completed["id"]


async def test_failures_are_reported_as_retrying_until_the_last_one(work: Work) -> None:
    policy = {"maxRetries": 1, "backoffMs": 0}
    task = await work.run(fake={"status": 500, "body": "no"}, retryPolicy=policy)
    events = await work.events(task["taskId"])
    assert brief(events) == [
        ("created", "queued"),
        ("started", "running"),
        ("retrying", "queued"),
        ("started", "running"),
        ("failed", "failed"),
    ]
    assert [event.get("attempt") for event in events] == [None, 1, 1, 2, 2]
    errors = [event.get("error") for event in events]
    assert errors == [None, None, task["error"], None, task["error"]]


async def test_a_parked_task_is_reported_as_parked(work: Work) -> None:
    task_id = await work.park()
    events = await work.events(task_id)
    assert brief(events)[2:] == [("parked", "parked")]
    assert events[2]["error"]
    await work.reset(task_id)
    assert brief(await work.events(task_id))[3] == ("requeued", "queued")


async def test_a_cancel_is_an_event(work: Work) -> None:
    task_id = await work.submit(lane=HELD)
    await work.api.cancel(task_id)
    events = await work.events(task_id)
    assert brief(events) == [("created", "queued"), ("cancelled", "cancelled")]
    running = await work.submit(fake=HANG)
    await work.arrived(1)
    await work.api.cancel(running)
    assert await work.types(running) == ["created", "started", "cancelled"]


async def test_a_refused_task_is_reported_as_rejected(work: Work) -> None:
    for _ in range(3):
        await work.submit(lane=TINY)
    task_id = (await work.post(lane=TINY)).json["details"]["taskId"]
    (event,) = await work.events(task_id)
    assert (event["type"], event["state"]) == ("task.rejected", "rejected")
    assert "queue full" in event["error"]


async def test_a_child_is_reported_as_unblocked_or_as_cancelled(work: Work) -> None:
    parent = await work.submit(lane=ONE, fake=HANG)
    child = await work.echo(dependsOn=[parent])
    await work.arrived(1)
    work.instance.release()
    await work.api.end_of(child)
    assert brief(await work.events(child)) == [
        ("created", "waiting_dependency"),
        ("unblocked", "queued"),
        ("started", "running"),
        ("completed", "done"),
    ]
    end = (await work.events(parent))[-1]
    assert end["id"] < (await work.events(child))[1]["id"]
    late = await work.echo(dependsOn=[await work.echo(lane=HELD)])
    (parent,) = (await work.api.show(late))["dependsOn"]
    await work.api.cancel(parent)
    last = (await work.events(late))[-1]
    assert (last["type"], last["error"]) == ("task.cancelled", f"dependency {parent} cancelled")


async def test_a_retry_by_hand_is_reported_as_requeued(work: Work) -> None:
    work.fail_next(1)
    task_id = (await work.run())["taskId"]
    await work.retry(task_id)
    await work.api.end_of(task_id)
    types = ["created", "started", "failed", "requeued", "started", "completed"]
    assert await work.types(task_id) == types


async def test_a_filter_accepts_the_new_name_of_a_manual_retry(work: Work) -> None:
    work.fail_next(1)
    task_id = (await work.run())["taskId"]
    await work.retry(task_id)
    await work.api.end_of(task_id)
    for name in ("task.requeued", "task.retried", "task.retried,task.requeued"):
        found = await work.pages(0, type=name, taskId=task_id)
        assert [event["type"] for event in found] == ["task.requeued"]


async def test_a_pre_empted_task_is_reported_as_released(work: Work) -> None:
    task_id = await work.submit(lane=ONE, fake=HANG, preemptible=True)
    await work.arrived(1)
    urgent = await work.submit(lane=ONE, priority="critical")
    await work.api.end_of(urgent)
    await work.arrived(3)
    work.instance.release()
    await work.api.end_of(task_id)
    assert brief(await work.events(task_id)) == [
        ("created", "queued"),
        ("started", "running"),
        ("released", "queued"),
        ("started", "running"),
        ("completed", "done"),
    ]


async def test_a_task_that_expires_is_reported_as_failed(work: Work) -> None:
    task_id = await work.expiring(lane=HELD)
    await work.api.end_of(task_id)
    events = await work.events(task_id)
    assert brief(events) == [("created", "queued"), ("failed", "failed")]
    assert events[1]["error"] == "deadline exceeded while queued"


async def test_ids_have_no_gaps_and_follow_the_order_of_what_happened(work: Work) -> None:
    before = await work.newest()
    ids = [await work.echo(agentId=work.new_agent()) for _ in range(20)]
    await work.api.ended(*ids)
    after = await work.newest()
    events = await work.pages(before)
    numbers = [event["id"] for event in events]
    assert numbers[: after - before] == list(range(before + 1, after + 1))
    stamps = [event["timestamp"] for event in events]
    assert stamps == sorted(stamps)
    for task_id in ids:
        own = [event for event in events if event.get("taskId") == task_id]
        assert own == await work.events(task_id)


async def test_the_events_of_an_unknown_task_are_404(work: Work) -> None:
    answer = await work.api.get("/tasks/tsk_nobody00/events")
    assert (answer.status, answer.code) == (404, "not_found")


# --- as a stream --------------------------------------------------------------------------------


async def test_a_stream_has_what_happens_from_now_on(work: Work) -> None:
    old = await work.echo()
    await work.api.end_of(old)
    async with work.stream(agentId=work.agent) as stream:
        assert stream.headers["Cache-Control"] in {"no-cache", "no-store"}
        new = await work.echo()
        frames = await stream.until("task.completed")
    assert [frame.event for frame in frames] == ["task.created", "task.started", "task.completed"]
    for frame in frames:
        assert (frame.id, frame.event) == (frame.data["id"], frame.data["type"])
    assert [frame.data for frame in frames] == await work.events(new)


@on_sqlite
@pytest.mark.parametrize("accept", ["*/*", "text/event-stream, */*;q=0.1"])
async def test_a_stream_is_given_unless_json_is_asked_for(work: Work, accept: str) -> None:
    async with work.stream(agentId=work.agent, accept=accept) as stream:
        await work.echo(lane=HELD)
        assert (await stream.frame()).event == "task.created"


@pytest.mark.parametrize("how", ["header", "query", "both"])
async def test_a_stream_goes_on_after_the_last_event_that_was_seen(work: Work, how: str) -> None:
    task_id = await work.echo()
    await work.api.end_of(task_id)
    events = await work.events(task_id)
    seen = events[0]["id"]
    last = None if how == "query" else seen
    # A browser that comes back sends the header to the address it was given: the header is newer.
    query = {"header": {}, "query": {"after": seen}, "both": {"after": 0}}[how]
    async with work.stream(last, taskId=task_id, **query) as stream:
        frames = await stream.frames(2)
    assert [frame.data for frame in frames] == events[1:]


async def test_a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice(work: Work) -> None:
    """Under load, cut off again and again in the middle."""
    start = await work.newest()
    agents = [work.new_agent("load") for _ in range(4)]
    total = 160 * 3

    async def submit(n: int) -> str:
        return await work.echo(agentId=agents[n % 4], params={"n": n}, lane="main")

    async def read() -> list[Frame]:
        seen: list[Frame] = []
        while len([one for one in seen if one.data.get("agentId") in agents]) < total:
            last = seen[-1].id if seen else start
            async with work.stream(last) as stream:
                for _ in range(23):
                    seen.append(await stream.frame())
                    if len([one for one in seen if one.data.get("agentId") in agents]) == total:
                        break
        return seen

    reading = asyncio.create_task(read())
    ids = await asyncio.gather(*(submit(n) for n in range(160)))
    await work.api.ended(*ids)
    frames = await asyncio.wait_for(reading, WAIT_SECONDS)
    numbers = [frame.id for frame in frames]
    assert numbers == list(range(start + 1, start + 1 + len(frames)))
    events = await work.pages(start)
    assert [frame.data for frame in frames] == events[: len(frames)]


async def test_two_readers_see_the_same(work: Work) -> None:
    start = await work.newest()
    mine: dict[str, Any] = {"agentId": work.agent}
    async with work.stream(start, **mine) as one, work.stream(**mine) as two:
        answer = await work.batch(*[work.echo_item()] * 10)
        await work.api.ended(*answer.ids)
        assert await one.frames(30) == await two.frames(30)


async def test_streams_show_only_what_was_asked_for(work: Work) -> None:
    start = await work.newest()
    task_id = await work.echo(lane=ONE)
    await work.api.end_of(task_id)
    batch = await work.batch(work.echo_item(), work.action_item(fake={"status": 400}))
    await work.api.ended(*batch.ids)
    batch_id = batch.json["batchId"]

    async def told(**query: Any) -> list[tuple[str, str]]:
        pages = await work.pages(start, **query)
        async with work.stream(start, **query) as stream:
            frames = await stream.frames(len(pages))
        assert [frame.data for frame in frames] == pages
        return [(page.get("taskId", ""), page["type"]) for page in pages]

    kinds = ["task.created", "task.started", "task.completed"]
    assert await told(taskId=task_id) == [(task_id, kind) for kind in kinds]
    in_batch = await told(batchId=batch_id)
    assert len(in_batch) == 7
    assert in_batch[-1] == ("", "batch.completed")
    assert await told(lane=ONE, agentId=work.agent) == [(task_id, kind) for kind in kinds]
    failed = await told(type="task.failed", agentId=work.agent)
    assert failed == [(batch.ids[1], "task.failed")]
    ends = await told(type="task.failed,task.completed", agentId=work.agent)
    assert sorted(ends) == sorted(
        [(task_id, kinds[2]), (batch.ids[0], kinds[2]), (batch.ids[1], "task.failed")]
    )
    both = await told(type="task.completed", batchId=batch_id)
    assert both == [(batch.ids[0], "task.completed")]
    assert await told(taskId=task_id, batchId=batch_id) == []


async def test_text_with_line_breaks_stays_one_message(work: Work) -> None:
    text = 'first\nsecond\r\n\r\nevent: forged\n\u2028 "ü" 🚀'
    async with work.stream(agentId=work.agent) as stream:
        await work.echo(params={"text": text})
        frames = await stream.until("task.completed")
    assert frames[-1].data["result"] == {"text": text}
    assert len(frames) == 3


# --- as pages -----------------------------------------------------------------------------------


async def test_pages_have_every_event_once(work: Work) -> None:
    start = await work.newest()
    answer = await work.batch(*[work.echo_item()] * 5)
    await work.api.ended(*answer.ids)
    whole = await work.pages(start, agentId=work.agent)
    assert len(whole) >= 15
    for limit in (1, 4, 1000):
        assert await work.pages(start, agentId=work.agent, limit=limit) == whole
    page = await work.page(after=start, agentId=work.agent, limit=4)
    assert page.headers["Content-Type"].startswith("application/json")
    assert len(page.json["events"]) == 4
    assert page.json["nextAfter"] >= page.json["events"][-1]["id"]


async def test_a_page_after_the_newest_event_is_empty(work: Work) -> None:
    start = await work.newest()
    answer = await work.page(after=start, agentId=work.agent)
    assert (answer.status, answer.json["events"]) == (200, [])


@on_sqlite
@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("after=x", "after"),
        ("after=-1", "after"),
        ("after=1.5", "after"),
        ("after=" + "9" * 40, "after"),
        ("type=task.exploded", "type"),
        ("type=completed", "task.completed"),
        ("taskid=tsk_1", "taskId"),
    ],
)
async def test_a_parameter_that_is_wrong_is_refused_in_both_forms(
    work: Work, query: str, named: str
) -> None:
    for accept in ("text/event-stream", "application/json"):
        asked = work.api.ask("GET", f"/events?{query}", headers={"Accept": accept})
        answer = await asyncio.wait_for(asked, WAIT_SECONDS)
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert named in answer.error


@on_sqlite
@pytest.mark.parametrize("limit", ["0", "-1", "x", "1.5"])
async def test_a_page_has_at_least_one_place(work: Work, limit: str) -> None:
    answer = await work.page(limit=limit)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "limit" in answer.error


@on_sqlite
@pytest.mark.parametrize("last", ["x", "-5", "1.5", "9" * 40])
async def test_a_last_id_that_is_none_is_refused(work: Work, last: str) -> None:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    answer = await asyncio.wait_for(work.api.ask("GET", "/events", headers=headers), WAIT_SECONDS)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "Last-Event-ID" in answer.error


@on_sqlite
async def test_readers_that_went_away_leave_nothing_behind(work: Work) -> None:
    for _ in range(30):
        async with work.stream(agentId=work.agent):
            pass
    async with work.stream(agentId=work.agent) as stream:
        await work.echo()
        assert len(await stream.until("task.completed")) == 3
