"""Lanes: documented defaults, numbers, pause and clear, and ceilings that change while work runs.

Facts of specs/goclaw.md section 8: 1-4; weaknesses of section 10: 2, 8, 12.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.api import eventually
from tests.http.stage import HANG, HELD, ONE, POLICY, TINY, TWO, UNUSED, on_sqlite
from tests.http.talk import LONG, Talk
from tests.http.work import Work

if TYPE_CHECKING:
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEFAULTS = {"main": 30, "subagent": 50, "team": 100, "cron": 30, "browser": 20}


async def lane(work: Work, name: str) -> dict[str, Any]:
    answer = await work.api.get("/lanes")
    assert answer.status == 200, answer
    assert answer.json["count"] == len(answer.json["lanes"])
    (found,) = [one for one in answer.json["lanes"] if one["name"] == name]
    line: dict[str, Any] = found
    return line


async def until_lane(work: Work, name: str, **expected: Any) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        found = await lane(work, name)
        return found if {key: found[key] for key in expected} == expected else None

    return await eventually(look)


async def set_lane(server: Server, name: str, **settings: Any) -> None:
    """As an operator does it, in the file that the server watches."""
    server.write_policy({"lanes": {name: settings}})


# --- how a lane stands --------------------------------------------------------------------------


@on_sqlite
async def test_the_lanes_have_their_documented_ceilings(work: Work) -> None:
    for name, ceiling in DEFAULTS.items():
        assert (await lane(work, name))["ceiling"] == ceiling
    names = [one["name"] for one in (await work.api.get("/lanes")).json["lanes"]]
    assert names == sorted(names)
    assert {*DEFAULTS, "instruction", "queue", ONE, HELD} <= {*names}


async def test_one_lane_is_shown_as_in_the_list(work: Work) -> None:
    answer = await work.api.get("/lanes/team")
    assert answer.status == 200
    assert answer.json == await lane(work, "team")
    unknown = await work.api.get("/lanes/teem")
    assert (unknown.status, unknown.json["code"]) == (404, "not_found")
    assert "did you mean team?" in unknown.json["error"]


async def test_a_lane_that_policy_adds_begins_empty(work: Work) -> None:
    assert await lane(work, UNUSED) == {
        "name": UNUSED,
        "ceiling": 2,
        "active": 0,
        "waiting": 0,
        "ready": 0,
        "parked": 0,
        "completed": 0,
        "failed": 0,
        "oldestWaitMs": 0,
        "paused": False,
        "strategy": "fair-fifo",
        "reserved": {"critical": 0},
    }


async def test_a_lane_of_two_never_runs_more_and_does_run_two(work: Work) -> None:
    ids = [await work.submit(lane=TWO, fake={"delayMs": 50}) for _ in range(6)]
    assert {task["state"] for task in await work.api.ended(*ids)} == {"done"}
    assert work.most_at_once() == 2


async def test_a_lane_tells_what_runs_what_waits_and_how_long(work: Work) -> None:
    await work.block(ONE)
    talk = Talk(work)
    first = await talk.say("a", lane=ONE)
    await talk.say("b", lane=ONE)
    await work.passed((await work.api.show(first))["createdAt"])
    found = await lane(work, ONE)
    assert (found["active"], found["waiting"], found["ready"]) == (1, 2, 1)
    longer = found["oldestWaitMs"]

    async def grows() -> bool | None:
        return (await lane(work, ONE))["oldestWaitMs"] > longer or None

    await eventually(grows)
    await talk.ask("stopall")
    assert (await lane(work, ONE))["oldestWaitMs"] == 0


async def test_a_cancelled_run_keeps_its_slot_until_it_has_ended(work: Work) -> None:
    task_id = await work.block(ONE)
    assert (await lane(work, ONE))["active"] == 1
    await work.api.cancel(task_id)
    await until_lane(work, ONE, active=0)


async def test_unknown_lanes_mean_main(work: Work) -> None:
    task = await work.api.show(await work.echo(lane="no-such-lane"))
    assert task["lane"] == "main"
    names = [one["name"] for one in (await work.api.get("/lanes")).json["lanes"]]
    assert "no-such-lane" not in names


# --- pause and resume ---------------------------------------------------------------------------


async def test_a_paused_lane_starts_nothing_until_it_is_resumed(work: Work) -> None:
    running = await work.block(TWO)
    answer = await work.api.post(f"/lanes/{TWO}/pause")
    assert (answer.status, answer.json) == (200, {"lane": TWO, "paused": True})
    assert (await lane(work, TWO))["paused"] is True
    task_id = await work.echo(lane=TWO)
    elsewhere = await work.echo()
    assert (await work.api.end_of(elsewhere))["state"] == "done"
    assert await work.states(running, task_id) == ["running", "queued"]
    again = await work.api.post(f"/lanes/{TWO}/pause")
    assert again.json == answer.json
    answer = await work.api.post(f"/lanes/{TWO}/resume")
    assert (answer.status, answer.json) == (200, {"lane": TWO, "paused": False})
    assert (await work.api.end_of(task_id))["state"] == "done"


@on_sqlite
@pytest.mark.parametrize("verb", ["pause", "resume", "clear"])
async def test_a_lane_that_is_not_in_the_policy_is_not_found(work: Work, verb: str) -> None:
    answer = await work.api.post(f"/lanes/brower/{verb}")
    assert (answer.status, answer.code) == (404, "not_found")
    assert "did you mean browser?" in answer.error


@on_sqlite
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/lanes/main/pause"), ("POST", "/lanes"), ("PUT", "/lanes")]
)
async def test_other_methods_are_not_allowed(work: Work, method: str, path: str) -> None:
    answer = await work.api.ask(method, path)
    assert (answer.status, answer.code) == (405, "method_not_allowed")


@on_sqlite
async def test_the_list_takes_no_query(work: Work) -> None:
    answer = await work.api.get("/lanes", limit=1)
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- clear --------------------------------------------------------------------------------------


async def test_an_emptied_lane_tells_those_that_waited_and_keeps_what_runs(work: Work) -> None:
    running = await work.block(ONE)
    talk, hook = Talk(work), work.hooks.new()
    waiting = await talk.say("a", lane=ONE, callbackUrl=hook.url)
    growing = await talk.say("b", lane=ONE, sender="bob", debounceMs=60_000)
    later = await work.echo(lane=ONE, delayMs=60_000)
    elsewhere = await work.echo(lane=HELD)
    answer = await work.api.post(f"/lanes/{ONE}/clear")
    assert (answer.status, answer.json) == (200, {"lane": ONE, "cancelled": 3})
    for task in await work.api.ended(waiting, growing, later):
        assert (task["state"], task["error"].split(":")[0]) == ("cancelled", "lane_cleared")
    assert await work.states(running, elsewhere) == ["running", "queued"]
    (delivery,) = await hook.until(1)
    assert delivery.task["taskId"] == waiting
    again = await work.api.post(f"/lanes/{ONE}/clear")
    assert again.json["cancelled"] == 0


async def test_a_lane_with_many_is_emptied_to_the_last(work: Work) -> None:
    batches = [[work.echo_item(lane=HELD) for _ in range(100)] for _ in range(6)]
    await asyncio.gather(*(work.batch(*items) for items in batches))
    assert (await work.api.post(f"/lanes/{HELD}/clear")).json["cancelled"] == 600
    assert (await lane(work, HELD))["waiting"] == 0


async def test_a_full_lane_that_was_emptied_takes_work_again(work: Work) -> None:
    for _ in range(3):
        await work.echo(lane=TINY)
    body = {"agentId": work.agent, "handler": "echo", "lane": TINY}
    assert (await work.api.post("/tasks", body)).code == "queue_full"
    await work.api.post(f"/lanes/{TINY}/clear")
    assert (await work.api.post("/tasks", body)).status == 202


# --- ceilings that change -----------------------------------------------------------------------


@on_sqlite
async def test_raising_a_ceiling_starts_work_at_once_and_lowering_kills_nothing(
    serve: Serve, work: Work
) -> None:
    server = await serve(policy=POLICY)
    own = Work(server.api, work.instance, work.hooks)
    ids = [await own.submit(lane=TWO, fake=HANG, params={"n": n}) for n in range(5)]
    await own.arrived(2)
    await set_lane(server, TWO, maxInflight=4)
    await own.arrived(4)
    await set_lane(server, TWO, maxInflight=1)
    found = await until_lane(own, TWO, ceiling=1)
    assert (found["active"], found["waiting"]) == (4, 1)
    assert await own.states(*ids) == ["running"] * 4 + ["queued"]
    for task_id in ids[:3]:
        await own.api.cancel(task_id)
    await until_lane(own, TWO, active=1)
    assert (await own.api.show(ids[4]))["state"] == "queued"
    await own.api.cancel(ids[3])
    await own.arrived(5)
    work.instance.release()
    await own.api.end_of(ids[4])


@on_sqlite
async def test_the_environment_sets_a_ceiling(serve: Serve, work: Work) -> None:
    environment = {"FAIRLANE_LANE_MAIN": "7", "FAIRLANE_LANE_TEAM": "9"}
    server = await serve(environment=environment)
    own = Work(server.api, work.instance, work.hooks)
    found = [(await lane(own, name))["ceiling"] for name in ("main", "team", "subagent", "cron")]
    assert found == [7, 9, 50, 30]


@on_sqlite
async def test_a_lane_is_made_by_policy_and_keeps_its_ceiling_until_it_is_changed(
    serve: Serve, work: Work
) -> None:
    server = await serve(policy={"lanes": {"custom": {"maxInflight": 8}}})
    own = Work(server.api, work.instance, work.hooks)
    task = await own.api.end_of(await own.echo(lane="custom"))
    assert (task["lane"], (await lane(own, "custom"))["ceiling"]) == ("custom", 8)
    await set_lane(server, "custom", strategy="priority")
    assert (await until_lane(own, "custom", strategy="priority"))["ceiling"] == 8


@on_sqlite
async def test_background_work_never_takes_the_last_slot(serve: Serve, work: Work) -> None:
    policy = {"lanes": {"main": {"maxInflight": 3, "reserved": {"critical": 1}}}}
    server = await serve(policy=policy)
    own = Work(server.api, work.instance, work.hooks)
    ids = [await own.api.submit(agentId=own.agent, **LONG) for _ in range(5)]
    found = await until_lane(own, "main", active=2)
    assert (found["ready"], found["reserved"]) == (3, {"critical": 1})
    user = await Talk(own).say("a person asks", priority="critical")
    assert (await own.api.end_of(user))["state"] == "done"
    assert (await lane(own, "main"))["active"] == 2
    await asyncio.gather(*map(own.api.cancel, ids))


@on_sqlite
async def test_a_wrong_reservation_keeps_the_policy_as_it_was(serve: Serve, work: Work) -> None:
    server = await serve(policy=POLICY)
    own = Work(server.api, work.instance, work.hooks)
    await set_lane(server, TWO, reserved={"critical": 2})

    async def complained() -> bool | None:
        return "must be smaller than maxInflight" in server.log or None

    await eventually(complained)
    assert (await lane(own, TWO))["reserved"] == {"critical": 0}
