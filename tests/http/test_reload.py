"""Hot reload: a changed policy file acts at once, in parts, and a wrong one changes nothing.

Facts of specs/pinchtab.md section 17: 42-49; weakness 5 of section 18; section 21: a partial
document changes only what it names and takes effect at once.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.waiting import steadily, within
from tests.http.api import eventually
from tests.http.stage import HANG, Stage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIMITS = ("maxQueueSize", "maxPerAgent", "maxInflight", "maxPerAgentFlight", "resultTTL")


async def limits(server: Server) -> dict[str, Any]:
    config = (await server.api.stats())["config"]
    return {name: config[name] for name in LIMITS}


async def reload(server: Server, document: dict[str, Any] | str, **expected: Any) -> None:
    """Write the file and wait until exactly the expected limits have changed."""
    want = {**await limits(server), **expected}
    server.write_policy(document)

    async def look() -> bool | None:
        return await limits(server) == want or None

    await eventually(look)


async def test_a_changed_file_changes_what_it_names_and_nothing_else(serve: Serve) -> None:
    server = await serve(policy={"scheduler": {"maxInflight": 4, "resultTTLSec": 300}})
    assert await limits(server) == {
        "maxQueueSize": 1000,
        "maxPerAgent": 100,
        "maxInflight": 4,
        "maxPerAgentFlight": 10,
        "resultTTL": "5m0s",
    }
    # PinchTab's keys, one of which it spells in two ways, and our own.
    await reload(server, {"scheduler": {"maxPerAgent": 7}}, maxPerAgent=7)
    await reload(server, {"scheduler": {"maxInflight": 30}}, maxInflight=30)
    document = {"scheduler": {"maxPerAgentFlight": 16, "resultTTLSec": 7325}}
    await reload(server, document, maxPerAgentFlight=16, resultTTL="2h2m5s")
    ours = {"lanes": {"browser": {"maxQueueSize": 3, "maxPerAgentInflight": 2}}}
    await reload(server, ours, maxQueueSize=3, maxPerAgentFlight=2)


async def test_a_changed_file_acts_within_a_second(reloaded: Server) -> None:
    numbers = itertools.count(31)

    async def change() -> None:
        number = next(numbers)
        with within(1):
            await reload(reloaded, {"scheduler": {"maxInflight": number}}, maxInflight=number)
        assert (await limits(reloaded))["maxInflight"] == number

    await steadily(change)


async def test_zeros_and_nulls_keep_what_was(reloaded: Server) -> None:
    server = reloaded
    names = ("maxPerAgent", "maxInflight", "maxPerAgentInflight", "resultTTLSec", "workerCount")
    document = {"scheduler": {"maxQueueSize": 500, **dict.fromkeys(names, 0)}}
    await reload(server, document, maxQueueSize=500)
    await reload(
        server, {"scheduler": {"maxQueueSize": 501, **dict.fromkeys(names)}}, maxQueueSize=501
    )
    # And dispatch goes on: a zero for one agent's limit does not mean none.
    task_id = await server.api.submit(agentId="a", action="click")
    assert (await server.api.end_of(task_id))["error"] == "tabId is required for task execution"


@pytest.mark.parametrize(
    "wrong",
    [
        '{"scheduler": {"maxInflight": 9',
        "[]",
        '{"scheduler": {"maxInflight": 9, "maxPerAgent": -1}}',
        '{"scheduler": {"maxInflight": 9, "maxInflght": 3}}',
        '{"lanes": {"browser": {"maxInflight": 9, "paused": "yes"}}}',
        '{"lanes": {"browser": {"maxInflight": 9}}, "kinds": {"action": {"lane": "nowhere"}}}',
    ],
    ids=range(6),
)
async def test_a_wrong_file_is_refused_as_a_whole(reloaded: Server, wrong: str) -> None:
    before, said = await limits(reloaded), len(reloaded.log)
    reloaded.write_policy(wrong)

    async def complained() -> bool | None:
        return "the previous policy stays in effect" in reloaded.log[said:] or None

    await eventually(complained)
    assert await limits(reloaded) == before


async def test_after_a_wrong_file_and_none_at_all_a_good_one_is_taken(reloaded: Server) -> None:
    reloaded.policy_file.unlink()
    said = len(reloaded.log)

    async def complained() -> bool | None:
        return "the previous policy stays in effect" in reloaded.log[said:] or None

    await eventually(complained)
    await reload(reloaded, {"scheduler": {"maxQueueSize": 701}}, maxQueueSize=701)
    assert (await limits(reloaded))["maxQueueSize"] == 701


async def test_a_higher_limit_starts_waiting_work_at_once(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy={"scheduler": {"maxInflight": 1, "maxPerAgentInflight": 1}})
    stage = Stage(server.api, instance, hooks)
    for _ in range(6):
        await stage.submit(fake=HANG)
    await stage.arrived(1)
    assert (await server.api.stats())["queue"]["totalInflight"] == 1
    server.write_policy({"scheduler": {"maxInflight": 5, "maxPerAgentInflight": 3}})
    await stage.arrived(3)
    # A lower limit stops nothing that runs, and nothing more begins.
    await reload(server, {"scheduler": {"maxPerAgentInflight": 2}}, maxPerAgentFlight=2)
    assert (await server.api.stats())["queue"]["agents"][stage.agent] == {
        "queued": 3,
        "inflight": 3,
    }
    stage.instance.release()
    await stage.arrived(5)
    assert (await server.api.stats())["queue"]["agents"][stage.agent]["inflight"] == 2
    await stage.clear()


async def test_a_new_lane_can_be_made_paused_and_let_go(
    reloaded: Server, instance: TabInstance, hooks: Hooks
) -> None:
    """Before the file names it, its name means `main`."""
    stage = Stage(reloaded.api, instance, hooks)
    assert (await stage.run(lane="new"))["lane"] == "main"
    reloaded.write_policy({"lanes": {"new": {"maxInflight": 1, "paused": True}}})

    async def held() -> str | None:
        task_id = await stage.submit(lane="new")
        return task_id if (await stage.api.show(task_id))["lane"] == "new" else None

    task_id = await eventually(held)
    assert (await stage.run())["state"] == "done"
    assert (await stage.api.show(task_id))["state"] == "queued"
    reloaded.write_policy({"lanes": {"new": {"paused": False}}})
    assert (await stage.api.end_of(task_id))["state"] == "done"


async def test_new_limits_of_the_queue_hold_for_the_next_submission(serve: Serve) -> None:
    server = await serve(
        policy={
            "scheduler": {"maxQueueSize": 2, "maxPerAgent": 1},
            "lanes": {"browser": {"paused": True}},
        }
    )

    async def post() -> int:
        return (await server.api.post("/tasks", {"agentId": "a", "action": "click"})).status

    assert [await post() for _ in range(2)] == [202, 429]
    # As the documentation of the original has it: 20 and 10, ten get in, the eleventh does not.
    server.write_policy({"scheduler": {"maxQueueSize": 20, "maxPerAgent": 10}})
    await server.api.until_stats(lambda stats: stats["config"]["maxPerAgent"] == 10)
    assert [await post() for _ in range(10)] == [202] * 9 + [429]
    answer = await server.api.post("/tasks", {"agentId": "a", "action": "click"})
    assert answer.json["details"]["maxQueue"] == 20
    assert answer.json["details"]["maxPerAgent"] == 10
    # Lower limits throw nobody out.
    server.write_policy({"scheduler": {"maxQueueSize": 1, "maxPerAgent": 1}})
    await server.api.until_stats(lambda stats: stats["config"]["maxQueueSize"] == 1)
    assert (await server.api.stats())["queue"]["totalQueued"] == 10
    assert await post() == 429


async def test_a_wrong_file_at_the_start_is_refused_with_one_line(tmp_path: Path) -> None:
    from tests.http.server import Server

    server = Server(tmp_path, f"sqlite:///{tmp_path / 'f.db'}", policy={"maxInflght": 1})
    try:
        with pytest.raises(AssertionError, match="maxInflight"):
            await server.start()
        assert "Traceback" not in server.log
    finally:
        server.kill()
