"""`POST /leases` and what a worker says under a lease, over the wire and on both databases."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from fairlane.core.submissions import TaskRequest, submission
from fairlane.engine.commands import Submit
from fairlane.http import messages
from fairlane.http.app import HttpApp
from fairlane.testing import MemoryFairlane
from tests.fakes.waiting import judge, steadily, within
from tests.http.api import Answer, Api, eventually
from tests.http.conftest import Serve
from tests.http.stage import on_sqlite
from tests.http.test_leases_given_back import Leaving
from tests.http.work import QUEUE, Work, ms_between

pytestmark = pytest.mark.asyncio(loop_scope="session")

LANE = "team"
STALE = ("start", "renew", "output", "complete", "fail", "release")
REPORTS: dict[str, dict[str, Any]] = {"fail": {"error": "broken"}, "output": {"output": "x"}}
_names = itertools.count(1)


class Ext:
    """An external worker: it knows a name, a handler and the routes, nothing else."""

    def __init__(self, work: Work, lane: str = LANE) -> None:
        self.work = work
        self.api: Api = work.api
        self.lane = lane
        self.name = f"ext-{next(_names)}"
        self.handler = f"job-{next(_names)}"

    async def submit(self, **fields: Any) -> str:
        return await self.work.echo(handler=self.handler, lane=self.lane, **fields)

    async def ask(self, **fields: Any) -> Answer:
        body = {"worker": self.name, "lanes": [self.lane], "handlers": [self.handler], **fields}
        given = {name: value for name, value in body.items() if value is not None}
        return await self.api.post("/leases", given)

    async def leases(self, **fields: Any) -> list[dict[str, Any]]:
        answer = await self.ask(**fields)
        assert answer.status == 200, answer
        found: list[dict[str, Any]] = answer.json["leases"]
        assert answer.json["count"] == len(found)
        return found

    async def lease(self, **fields: Any) -> dict[str, Any]:
        (lease,) = await self.leases(waitMs=60_000, **fields)
        return lease

    async def waiting(self) -> asyncio.Task[list[dict[str, Any]]]:
        """A lease that is asked for and waits, when nobody else does."""
        await waits(self.api, 0)
        asked = asyncio.create_task(self.leases(waitMs=60_000))
        await waits(self.api, 1)
        return asked

    async def say(self, lease: dict[str, Any], verb: str, **body: Any) -> Answer:
        return await self.api.post(f"/leases/{lease['leaseId']}/{verb}", body)

    async def well(self, lease: dict[str, Any], verb: str, **body: Any) -> dict[str, Any]:
        answer = await self.say(lease, verb, **body)
        assert answer.status == 200, answer
        shape: dict[str, Any] = answer.json
        return shape


async def waits(api: Api, count: int) -> None:
    """Until so many wait for work at this server."""

    async def look() -> bool | None:
        lines = (await api.get("/metrics")).raw.decode().splitlines()
        return f"fairlane_lease_waits {count}" in lines or None

    await eventually(look)


@pytest.fixture
def ext(work: Work) -> Ext:
    return Ext(work)


# --- a lease and its end --------------------------------------------------------------------------


async def test_a_lease_brings_the_task_and_all_that_its_worker_needs(ext: Ext) -> None:
    task_id = await ext.submit(params={"n": 1}, metadata={"m": 2}, timeoutMs=1234)
    lease = await ext.lease()
    task = lease["task"]
    assert lease["taskId"] == task["taskId"] == task_id
    assert (lease["state"], lease["attempt"], lease["timeoutMs"]) == ("assigned", 1, 1234)
    assert lease["leaseId"].endswith(f"_{lease['token']}")
    assert (task["handler"], task["params"], task["metadata"]) == (ext.handler, {"n": 1}, {"m": 2})
    shown = await ext.api.show(task_id)
    assert (shown["state"], shown["worker"]) == ("assigned", ext.name)
    assert (shown["leaseId"], shown["leaseExpiresAt"]) == (
        lease["leaseId"],
        lease["leaseExpiresAt"],
    )
    assert "inputs" not in lease
    await ext.well(lease, "release")


async def test_start_complete_and_the_log_that_is_left(ext: Ext) -> None:
    task_id = await ext.submit()
    lease = await ext.lease()
    started = await ext.well(lease, "start", token=lease["token"])
    assert (started["state"], started["taskId"]) == ("running", task_id)
    ended = await ext.well(lease, "complete", token=lease["token"], result={"sum": 3})
    assert ended["state"] == "done"
    assert "leaseExpiresAt" not in ended
    task = await ext.api.show(task_id)
    assert (task["state"], task["result"]) == ("done", {"sum": 3})
    (attempt,) = task["attemptLog"]
    assert (attempt["worker"], attempt["outcome"]) == (ext.name, "completed")


async def test_who_only_completes_has_begun_too(ext: Ext) -> None:
    task_id = await ext.submit()
    await ext.well(await ext.lease(), "complete")
    assert await ext.work.types(task_id) == ["created", "started", "completed"]
    assert "result" not in await ext.api.show(task_id)


async def test_completing_again_is_answered_alike(ext: Ext) -> None:
    task_id = await ext.submit()
    lease = await ext.lease()
    first = await ext.well(lease, "complete", result={"a": 1, "b": None})
    assert await ext.well(lease, "complete", result={"b": None, "a": 1}) == first
    assert (await ext.api.show(task_id))["result"] == {"a": 1, "b": None}


@pytest.mark.parametrize("other", [2, True, "1"])
async def test_completing_again_with_another_result_is_refused(ext: Ext, other: Any) -> None:
    task_id = await ext.submit()
    lease = await ext.lease()
    await ext.well(lease, "complete", result=1)
    answer = await ext.say(lease, "complete", result=other)
    assert (answer.status, answer.code) == (409, "lease_lost")
    assert "a different result" in answer.error
    assert answer.json["details"] == {"taskId": task_id, "state": "done"}
    assert (await ext.api.show(task_id))["result"] == 1


async def test_the_moment_of_an_answer_is_the_one_that_has_judged(ext: Ext) -> None:
    await ext.submit()
    await ext.submit()
    answer = await ext.ask(limit=2, ttlMs=12_345, waitMs=60_000)
    for lease in answer.json["leases"]:
        assert ms_between(answer.json["now"], lease["leaseExpiresAt"]) == 12_345
        await ext.well(lease, "complete")


async def test_an_answer_without_leases_tells_the_time_too(ext: Ext) -> None:
    before = await ext.ask(waitMs=0)
    after = await ext.ask(waitMs=100)
    assert after.json["leases"] == []
    assert ms_between(before.json["now"], after.json["now"]) >= 100


async def test_an_instructions_execution_time_is_that_of_its_last_attempt(ext: Ext) -> None:
    """What lies between attempts is part of `latencyMs` only."""
    fields = {"instruction": "Try", "lane": ext.lane, "agentId": ext.work.agent}
    retry = {"maxRetries": 2, "backoffMs": 300, "jitter": 0}
    answer = await ext.api.post("/tasks", {**fields, "retryPolicy": retry})
    asked = {"kinds": ["instruction"], "handlers": None, "start": True}
    await ext.well(await ext.lease(**asked), "fail", error="no luck")
    await ext.well(await ext.lease(**asked), "release")
    await ext.well(await ext.lease(**asked), "complete", result=1)
    task = await ext.api.show(answer.json["taskId"])
    last = task["attemptLog"][-1]
    assert task["executionTimeMs"] == ms_between(last["startedAt"], last["endedAt"])
    assert task["latencyMs"] == ms_between(task["startedAt"], task["completedAt"])
    assert task["latencyMs"] - task["executionTimeMs"] >= 300
    for brief in ("false", "true"):
        page = await ext.api.get("/tasks", agentId=ext.work.agent, brief=brief, kind="instruction")
        assert page.json["tasks"][0]["executionTimeMs"] == task["executionTimeMs"]


async def test_work_that_begins_at_once_needs_no_start(ext: Ext) -> None:
    await ext.submit()
    lease = await ext.lease(start=True)
    assert (lease["state"], lease["task"]["state"]) == ("running", "running")
    await ext.well(lease, "complete")


async def test_a_failure_is_retried_and_then_parks(ext: Ext) -> None:
    task_id = await ext.submit(retryPolicy={"maxRetries": 1, "backoffMs": 0})
    failed = await ext.well(await ext.lease(), "fail", error="no\nluck")
    assert failed["state"] == "queued"
    last = await ext.well(await ext.lease(), "fail", error="again")
    assert last["state"] == "parked"
    task = await ext.api.show(task_id)
    assert (task["attempts"], task["parkedReason"]) == (2, "again")
    assert [one["error"] for one in task["attemptLog"]] == ["no luck", "again"]


async def test_a_failure_may_be_final_or_ask_for_a_wait(ext: Ext) -> None:
    final = await ext.submit()
    answer = await ext.well(await ext.lease(), "fail", error="never", retryable=False)
    assert answer["state"] == "failed"
    assert (await ext.api.show(final))["attempts"] == 1
    later = await ext.submit()
    answer = await ext.well(await ext.lease(), "fail", error="later", retryAfterMs=3_600_000)
    task = await ext.work.waits_again(later)
    assert answer["nextEligibleAt"] == task["nextEligibleAt"]
    assert ms_between(task["startedAt"], task["nextEligibleAt"]) >= 3_600_000


async def test_a_released_task_is_queued_again_and_no_attempt_is_spent(ext: Ext) -> None:
    task_id = await ext.submit()
    old = await ext.lease()
    assert (await ext.well(old, "release"))["state"] == "queued"
    assert (await ext.api.show(task_id))["attempts"] == 0
    new = await ext.lease()
    assert (new["taskId"], new["attempt"]) == (task_id, 1)
    assert new["leaseId"] != old["leaseId"]
    await ext.well(new, "complete")


async def test_a_child_is_leased_with_what_its_parents_have_left(ext: Ext) -> None:
    parent = await ext.work.echo(params={"x": 1})
    child = await ext.submit(dependsOn=[parent])
    lease = await ext.lease()
    assert lease["taskId"] == child
    assert lease["inputs"] == [{"taskId": parent, "state": "done", "result": {"x": 1}}]
    await ext.well(lease, "complete")


async def test_only_the_worker_of_an_instruction_gets_its_secrets(ext: Ext) -> None:
    body = {"instruction": "say hello", "lane": LANE, "llmConfig": {"apiKey": "sk-1234567890"}}
    task_id = await ext.api.submit(agentId=ext.work.agent, **body)
    lease = await ext.lease(kinds=["instruction"], handlers=None)
    assert (lease["taskId"], lease["timeoutMs"]) == (task_id, 120_000)
    assert lease["task"]["llmConfig"] == {"apiKey": "sk-1234567890"}
    assert (await ext.api.show(task_id))["llmConfig"] != {"apiKey": "sk-1234567890"}
    await ext.well(lease, "complete", result="hello")


# --- fencing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", STALE)
async def test_every_report_under_a_stale_lease_is_lost(ext: Ext, verb: str) -> None:
    task_id = await ext.submit()
    old = await ext.lease()
    await ext.well(old, "release")
    new = await ext.lease()
    answer = await ext.say(old, verb, **REPORTS.get(verb, {}))
    assert (answer.status, answer.code) == (409, "lease_lost")
    assert answer.json["details"] == {"taskId": task_id, "state": "assigned"}
    assert (await ext.api.show(task_id))["leaseId"] == new["leaseId"]
    await ext.well(new, "complete")
    answer = await ext.say(old, verb, **REPORTS.get(verb, {}))
    assert (answer.status, answer.code) == (409, "lease_lost")


async def test_a_token_that_is_not_the_leases_own_is_lost(ext: Ext) -> None:
    await ext.submit()
    lease = await ext.lease()
    answer = await ext.say(lease, "complete", token=lease["token"] + 1)
    assert (answer.status, answer.code) == (409, "lease_lost")
    assert "token" in answer.error
    await ext.well(lease, "complete", token=lease["token"])


async def test_an_expired_lease_counts_an_attempt_and_is_fenced(ext: Ext) -> None:
    async def expire() -> None:
        task_id = await ext.submit(retryPolicy={"maxRetries": 1, "backoffMs": 0})
        zombie = await ext.lease(ttlMs=50)
        heir = await ext.lease()
        assert (heir["taskId"], heir["attempt"]) == (task_id, 2)
        late = await ext.say(zombie, "complete", result="late")
        assert (late.status, late.code) == (409, "lease_lost")
        await ext.well(heir, "complete", result="real")
        task = await ext.api.show(task_id)
        assert (task["result"], task["attempts"]) == ("real", 2)
        lost = task["attemptLog"][0]
        assert "lease expired" in lost["error"]
        assert lost["endedAt"] >= zombie["leaseExpiresAt"]
        judge(ms_between(zombie["leaseExpiresAt"], lost["endedAt"]) / 1000, 2)

    await steadily(expire)


@on_sqlite
@pytest.mark.parametrize("name", ["nonsense", "lse_1", "lse_x_y", "lse_1_2_3", "tsk_1_1"])
async def test_what_is_not_a_lease_id_is_not_found(work: Work, name: str) -> None:
    answer = await work.api.post(f"/leases/{name}/complete", {})
    assert (answer.status, answer.code) == (404, "not_found")
    assert "leaseId" in answer.error


@on_sqlite
async def test_a_lease_that_never_was_is_lost(work: Work) -> None:
    answer = await work.api.post("/leases/lse_999999_999999/complete", {})
    assert (answer.status, answer.code) == (409, "lease_lost")


# --- renewing -------------------------------------------------------------------------------------


async def test_renewing_keeps_a_lease_and_tells_of_a_cancel(ext: Ext) -> None:
    task_id = await ext.submit()
    lease = await ext.lease(ttlMs=60_000)
    renewed = await ext.well(lease, "renew", ttlMs=120_000)
    assert renewed["cancelRequested"] is False
    assert ms_between(lease["leaseExpiresAt"], renewed["leaseExpiresAt"]) >= 60_000
    assert (await ext.api.cancel(task_id)).status == 200
    told = await ext.well(lease, "renew")
    assert (told["cancelRequested"], told["state"]) == (True, "cancelled")
    assert (await ext.well(lease, "complete", result=1))["state"] == "cancelled"
    assert "result" not in await ext.api.show(task_id)


async def test_the_slot_of_a_cancelled_task_is_free_when_its_worker_says_so(work: Work) -> None:
    ext = Ext(work, lane=QUEUE)
    first, second = await ext.submit(), await ext.submit()
    lease = await ext.lease()
    assert lease["taskId"] == first
    await ext.api.cancel(first)
    assert await ext.leases() == []
    assert (await ext.well(lease, "release"))["state"] == "cancelled"
    after = await ext.lease()
    assert after["taskId"] == second
    await ext.well(after, "complete")


async def test_a_lease_lasts_as_long_as_the_policy_says(ext: Ext) -> None:
    await ext.submit()
    lease = await ext.lease(start=True)
    task = await ext.api.show(lease["taskId"])
    assert ms_between(task["startedAt"], lease["leaseExpiresAt"]) == 300_000
    await ext.well(lease, "complete")


async def test_progress_is_reported_as_an_event(ext: Ext) -> None:
    task_id = await ext.submit()
    lease = await ext.lease()
    await ext.well(lease, "renew", progress={"done": 3, "of": 4})
    await ext.well(lease, "complete")
    told = [one for one in await ext.work.events(task_id) if one["type"] == "task.progress"]
    assert [(one["progress"], one["attempt"]) for one in told] == [({"done": 3, "of": 4}, 1)]


async def test_output_is_kept_piece_by_piece(ext: Ext) -> None:
    task_id = await ext.submit()
    lease = await ext.lease()
    await ext.well(lease, "renew", output="one ")
    await ext.well(lease, "output", output="two ", part=1)
    await ext.well(lease, "output", output="two ", part=1)
    await ext.well(lease, "output", output="three")
    answer = await ext.api.get(f"/tasks/{task_id}/output")
    assert answer.json["text"] == "one two three"
    await ext.well(lease, "complete")


# --- who gets what --------------------------------------------------------------------------------


async def test_a_worker_without_handlers_takes_any_and_lanes_keep_apart(work: Work) -> None:
    ext, other = Ext(work, lane="subagent"), Ext(work, lane="subagent")
    mine, theirs = await ext.submit(), await other.submit()
    elsewhere = await Ext(work).submit()
    found = await ext.leases(handlers=None, limit=10)
    assert sorted(one["taskId"] for one in found) == sorted([mine, theirs])
    assert (await work.api.show(elsewhere))["state"] == "queued"
    for lease in found:
        await ext.well(lease, "complete")


async def test_a_worker_gets_only_the_handlers_that_it_names(ext: Ext) -> None:
    other = Ext(ext.work)
    await other.submit()
    mine = await ext.submit()
    found = await ext.leases(limit=10)
    assert [one["taskId"] for one in found] == [mine]
    await ext.well(found[0], "complete")


async def test_the_ceiling_of_a_lane_holds_for_workers_too(work: Work) -> None:
    ext = Ext(work, lane="two")
    for _ in range(5):
        await ext.submit()
    found = await ext.leases(limit=10)
    assert len(found) == 2
    assert await ext.leases(limit=10) == []
    await ext.well(found[0], "complete")
    third = await ext.leases(limit=10)
    assert len(third) == 1
    for lease in (*found[1:], *third):
        await ext.well(lease, "release")


# --- waiting --------------------------------------------------------------------------------------


async def test_without_a_wait_the_answer_comes_at_once(ext: Ext) -> None:
    assert await ext.leases() == []


async def test_a_wait_ends_with_nothing_when_its_time_is_up(ext: Ext) -> None:
    async def wait() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        with within(5):
            assert await ext.leases(waitMs=100) == []
        assert loop.time() - before >= 0.1

    await steadily(wait)


async def test_a_waiting_worker_is_woken_by_a_new_task_at_once(ext: Ext) -> None:
    async def wake() -> None:
        waiting = await ext.waiting()
        with within(2):
            task_id = await ext.submit()
            (lease,) = await waiting
        assert lease["taskId"] == task_id
        await ext.well(lease, "complete")

    await steadily(wake)


async def test_a_withdrawn_wait_is_answered_at_once(ext: Ext) -> None:
    async def withdraw() -> None:
        waiting = await ext.waiting()
        with within(2):
            answer = await ext.api.post("/leases/withdraw", {"worker": ext.name})
            assert (answer.status, answer.json["withdrawn"]) == (200, 1)
            assert await waiting == []
        again = await ext.api.post("/leases/withdraw", {"worker": ext.name})
        assert (again.status, again.json["withdrawn"]) == (200, 0)

    await steadily(withdraw)


async def test_a_worker_that_disconnects_while_waiting_gets_no_lease(work: Work) -> None:
    """Its lane has one slot: had the gone worker been given the task, nobody else could have it."""
    ext = Ext(work, lane=QUEUE)
    gone = await ext.waiting()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    task_id = await ext.submit()
    lease = await ext.lease()
    assert (lease["taskId"], lease["attempt"]) == (task_id, 1)
    await ext.well(lease, "complete")


@pytest.mark.parametrize("at_the_same_moment", [False, True])
async def test_what_was_granted_to_somebody_who_is_gone_comes_back_at_once(
    *, at_the_same_moment: bool
) -> None:
    """The caller goes before there is a task, or in the moment in which it is given one."""
    async with MemoryFairlane() as app:
        routes = HttpApp(app.node, app.guard.check)
        gone = asyncio.get_running_loop().create_future()
        request = Leaving(gone, b'{"worker":"w","waitMs":60000}')
        asking = asyncio.ensure_future(routes(request))
        await app.settle()
        if not at_the_same_moment:
            gone.set_result(None)
            await asking
        body = submission(TaskRequest(handler="nobody-here"), task_id="tsk_1")
        app.node.writer.ask_and_wait(Submit([body]))  # nothing else happens in this loop meanwhile
        if at_the_same_moment:
            view = app.node.views.task("tsk_1")
            assert view is not None
            assert view.task.state == "assigned"
            gone.set_result(None)
            await asking
        await app.settle()
        task = await app.show("tsk_1")
        assert (task["state"], task["attempts"]) == ("queued", 0)
        answer = await asking
        assert isinstance(answer, messages.Answer)
        # The response is for a caller who is gone.
        assert msgspec.json.decode(answer.shape.body)["code"] == "invalid_request"


async def test_a_server_that_stops_lets_waiting_workers_go(serve: Serve) -> None:
    async def stop() -> None:
        server = await serve()
        body = {"worker": "w", "waitMs": 60_000}
        waiting = asyncio.create_task(server.api.post("/leases", body))
        await waits(server.api, 1)
        with within(5):
            server.signal()
            answer = await waiting
            assert await server.exit_code() == 0
        assert (answer.status, answer.json["leases"]) == (200, [])

    await steadily(stop)


async def test_a_lease_outlives_the_server_that_gave_it(serve: Serve) -> None:
    server = await serve()
    task_id = await server.api.submit(handler="far-away")
    lease = (await server.api.post("/leases", {"worker": "w"})).json["leases"][0]
    server.kill()
    again = await serve()
    answer = await again.api.post(f"/leases/{lease['leaseId']}/complete", {"result": 1})
    assert (answer.status, answer.json["state"]) == (200, "done")
    assert (await again.api.show(task_id))["attempts"] == 1


# --- what is refused ------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "missing required field 'worker'"),
        ({"worker": ""}, "field 'worker'"),
        ({"worker": "node_1"}, "must not start with node_"),
        ({"worker": "w", "lanes": ["mian"]}, "did you mean main?"),
        ({"worker": "w", "handlers": ["(function)"]}, "field 'handlers[0]'"),
        ({"worker": "w", "handlers": []}, "match no task"),
        ({"worker": "w", "kinds": []}, "match no task"),
        ({"worker": "w", "kinds": ["job"]}, "field 'kinds[0]'"),
        ({"worker": "w", "kinds": ["action"], "handlers": ["x"]}, "add it to 'kinds'"),
        ({"worker": "w", "limit": 0}, "field 'limit'"),
        ({"worker": "w", "limit": 1001}, "field 'limit'"),
        ({"worker": "w", "waitMs": 60_001}, "field 'waitMs'"),
        ({"worker": "w", "waitMs": -1}, "field 'waitMs'"),
        ({"worker": "w", "ttlMs": 0}, "field 'ttlMs'"),
        ({"worker": "w", "lane": "main"}, "did you mean lanes?"),
    ],
)
async def test_a_wrong_request_is_refused_by_the_name_of_its_field(
    work: Work, body: dict[str, Any], said: str
) -> None:
    answer = await work.api.post("/leases", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert said in answer.error


@on_sqlite
@pytest.mark.parametrize(
    ("verb", "body", "said"),
    [
        ("complete", {"resutl": 1}, "did you mean result?"),
        ("complete", {"token": "7"}, "field 'token'"),
        ("fail", {}, "missing required field 'error'"),
        ("fail", {"error": " \n "}, "field 'error' must not be empty"),
        ("fail", {"error": "x", "retryAfterMs": -1}, "field 'retryAfterMs'"),
        ("renew", {"ttlMs": 0}, "field 'ttlMs'"),
        ("renew", {"part": 1}, "needs 'output'"),
        ("renew", {"progress": "x" * 5000}, "field 'progress'"),
        ("output", {}, "missing required field 'output'"),
        ("output", {"output": "x", "part": -1}, "field 'part'"),
        ("start", {"result": 1}, "unknown field 'result'"),
    ],
)
async def test_a_wrong_report_is_refused_and_the_lease_goes_on(
    work: Work, verb: str, body: dict[str, Any], said: str
) -> None:
    ext = Ext(work)
    await ext.submit()
    lease = await ext.lease()
    answer = await ext.say(lease, verb, **body)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert said in answer.error
    await ext.well(lease, "complete")
