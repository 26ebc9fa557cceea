"""Nodes and history over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fairlane.version import __version__
from tests.http.api import Api, eventually
from tests.http.stage import HANG, ONE, POLICY, Stage
from tests.http.work import Work, moment

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def nodes(api: Api) -> list[dict[str, Any]]:
    answer = await api.get("/nodes")
    assert answer.status == 200
    found: list[dict[str, Any]] = answer.json["nodes"]
    assert answer.json["count"] == len(found)
    return found


async def test_a_server_is_a_node(stage: Stage) -> None:
    await stage.block(ONE)
    (one,) = await nodes(stage.api)
    assert one["name"].startswith("node_")
    assert (one["state"], one["version"], one["answered"]) == ("ready", __version__, True)
    assert one["running"] == 1
    assert one["pid"] > 0
    assert moment(one["startedAt"]) < moment(one["seenAt"])


async def test_a_restart_leaves_no_node_behind(serve: Serve) -> None:
    first = await serve()
    (before,) = await nodes(first.api)
    first.kill()
    second = await serve()
    (after,) = await nodes(second.api)
    assert after["name"] != before["name"]


async def test_a_node_that_is_not_heard_of_is_silent_and_one_that_drains_says_so(
    fresh_postgres: str, serve: Serve
) -> None:
    server = await serve(fresh_postgres)
    with psycopg.connect(fresh_postgres, autocommit=True) as database:
        database.execute(
            "INSERT INTO node SELECT 'node_' || n, 'host', n, '1', seen_at - 1, seen_at - n, n % 2"
            " FROM node, unnest(ARRAY[2, 3, 60000, 60001]) AS n"
        )
    states = {one["name"]: one["state"] for one in await nodes(server.api)}
    assert [states.pop(f"node_{n}") for n in (2, 3, 60_000, 60_001)] == [
        *("ready", "draining", "silent", "silent")
    ]
    assert list(states.values()) == ["ready"]


@pytest.mark.slow
async def test_nodes_know_of_each_other_and_leave(fresh_postgres: str, serve: Serve) -> None:
    left, right = await serve(fresh_postgres), await serve(fresh_postgres)
    seen, also = await nodes(left.api), await nodes(right.api)
    assert [one["name"] for one in seen] == [one["name"] for one in also]
    assert [one["state"] for one in seen] == ["ready", "ready"]
    assert [one["answered"] for one in seen] == [True, False]
    assert [one["answered"] for one in also] == [False, True]
    await right.stop()
    assert [one["answered"] for one in await nodes(left.api)] == [True]


async def test_history_tells_what_was_done(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy=POLICY)
    work = Work(server.api, instance, hooks)

    async def history(window: str) -> Any:
        return (await server.api.get("/stats/history", window=window)).json

    async def begun() -> Any:
        return (await history("5m"))["since"]

    await eventually(begun)
    await server.api.ended(*[await work.echo() for _ in range(5)])
    await server.api.end_of(await work.submit(fake={"status": 500}))
    await work.submit(lane=ONE, fake=HANG)

    async def counted() -> Any:
        found = await history("5m")
        finished = sum(point["finished"] for point in found["points"])
        return found if finished == 6 and found["agents"] else None

    found = await eventually(counted)
    assert (found["window"], found["stepMs"]) == ("5m", 5000)
    assert sum(point["submitted"] for point in found["points"]) == 7
    assert sum(point["failed"] for point in found["points"]) == 1
    measured = [point for point in found["points"] if point["waitP95Ms"] is not None]
    assert measured
    assert all(point["waitP50Ms"] <= point["waitP95Ms"] for point in measured)
    assert any(point["runP50Ms"] is not None for point in measured)
    assert found["agents"] == [{"agentId": work.agent, "share": 1.0, "fairShare": 1.0}]
    query = {"window": "5m", "shares": "true"}
    steps = (await server.api.get("/stats/history", **query)).json
    assert sum(point["spanMs"] for point in steps["points"]) > 0
    (mine,) = steps["agents"]
    assert len(mine["shares"]) == len(mine["fairShares"]) == len(steps["points"])
    assert {*mine["shares"]} - {None} == {1.0}
    assert (await history("1h"))["stepMs"] == 30_000
    assert (await history("24h"))["stepMs"] == 300_000
    await work.clear()


async def test_an_unknown_window_is_refused(work: Work) -> None:
    answer = await work.api.get("/stats/history", window="5min")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "'window' must be one of 1h, 24h, 5m" in answer.error


async def test_to_one_agent_all_others_are_one(serve: Serve) -> None:
    server = await serve()
    for agent in ("mine", "theirs", "also"):
        await server.api.submit(handler="sleep", agentId=agent, params={"ms": 600_000})

    async def seen() -> Any:
        found = (await server.api.get("/stats/history")).json["agents"]
        return len(found) == 3 or None

    await eventually(seen)
    body = {"name": "m", "agentId": "mine", "scopes": ["read"]}
    token = (await server.api.post("/tokens", body)).json["token"]
    answer = await server.api.ask(
        "GET", "/stats/history?shares=1", headers={"Authorization": f"Bearer {token}"}
    )
    mine, others = answer.json["agents"]
    assert (mine["agentId"], others["agentId"]) == ("mine", None)
    assert mine["share"] + others["share"] == pytest.approx(1, abs=0.001)
    for kind in ("shares", "fairShares"):
        sums = [
            sum(both) for both in zip(mine[kind], others[kind], strict=True) if None not in both
        ]
        assert sums == [pytest.approx(1, abs=0.01)] * len(sums)
        assert sums
