"""Every route as every kind of caller: a refused caller learns nothing and changes nothing.

The routes come from the server's own table. One that is new has to be in it with a scope, and here
with what it takes to ask it, or these tests fail.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from fairlane.core.access import Scope
from fairlane.http.messages import Route
from tests.http.access import (
    ALICE,
    ALL,
    BOB,
    OF_AGENTS,
    ROOMY,
    SECRET,
    Callers,
    World,
    everything,
    guarded,
    routes,
    world,
)
from tests.http.api import Answer, eventually
from tests.postgres import new_database

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUTES = routes()
OPEN = {"/", "/approve/{link}", "/login", "/logout", "/health/live", "/health/ready", "/ui/{file}"}

# What stands for the part of a path that varies, by how the path begins.
NAMES = {
    "/tasks/": "task",
    "/batches/": "batch",
    "/sessions/": "key",
    "/leases/": "lease",
    "/approvals/": "approval",
    "/approve/": "file",
    "/queue/": "entry",
    "/cron/jobs/": "job",
    "/deliveries/": "delivery",
    "/webhooks/": "endpoint",
    "/templates/": "template",
    "/lanes/": "lane",
    "/resources/": "resource",
    "/tokens/": "task",
    "/failures/": "task",
    "/workers/": "worker",
    "/ui/": "file",
}
# Nobody owns these: what is shared, and what only operators get at.
NOBODYS = ("/approve/", "/templates/", "/lanes/", "/resources/", "/tokens/", "/ui/", "/workers/")
# What is not there yet is made by asking, so that only another agent's is not found.
MADE = {
    ("POST", "/sessions/{key}/messages"),
    ("PATCH", "/sessions/{key}"),
    ("PUT", "/sessions/{key}/usage"),
    ("POST", "/sessions/{key}/stop"),
    ("POST", "/sessions/{key}/stopall"),
    ("POST", "/sessions/{key}/reset"),
}

JOB = {
    "name": "of-{key}",
    "schedule": {"kind": "cron", "expr": "0 0 1 1 *"},
    "task": {"handler": "nobody"},
}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/tasks"): {"handler": "nobody"},
    ("POST", "/tasks/batch"): {"tasks": [{"handler": "nobody"}]},
    ("POST", "/tasks/stream"): {"tasks": [{"handler": "nobody"}]},
    ("POST", "/tasks/cancel"): {"lane": "team"},
    ("POST", "/tasks/retry"): {"lane": "team"},
    ("POST", "/tasks/reset"): {"lane": "team"},
    ("POST", "/tasks/prune"): {"dryRun": True},
    ("POST", "/sessions/{key}/messages"): {"message": "hello", "handler": "nobody"},
    ("PATCH", "/sessions/{key}"): {"cap": 5},
    ("PUT", "/sessions/{key}/usage"): {"tokens": 1, "contextWindow": 100},
    ("POST", "/leases"): {"worker": "w1", "handlers": ["{handler}"]},
    ("POST", "/leases/withdraw"): {"worker": "w1"},
    ("POST", "/leases/report"): {"worker": "w1"},
    ("POST", "/leases/{id}/output"): {"output": "so far"},
    ("POST", "/leases/{id}/permits"): {"needs": {"calls": {"slots": 1}}},
    ("POST", "/resources/{name}/raise"): {"unit": "usd", "amount": 1},
    ("POST", "/leases/{id}/ask"): {"name": "q", "title": "Really?"},
    ("POST", "/leases/{id}/checkpoint"): {"name": "fetch", "value": 1},
    ("POST", "/leases/{id}/suspend"): {"until": {"signal": "go"}},
    ("POST", "/leases/{id}/effect"): {"name": "charge"},
    ("POST", "/tasks/{id}/effects/{name}"): {"happened": True},
    ("POST", "/approvals/{id}/decide"): {"decision": "approve", "hash": "x"},
    ("POST", "/leases/{id}/fail"): {"error": "broken"},
    ("PUT", "/policy"): ROOMY,
    ("PATCH", "/policy"): ROOMY,
    ("POST", "/policy/check"): ROOMY,
    ("POST", "/policy/rollback"): {"version": 1},
    ("PATCH", "/scheduler/policy"): {"maxConcurrent": 2},
    ("POST", "/queue"): {"repo": "/r"},
    ("POST", "/queue/import"): {"schemaVersion": 1, "entries": []},
    ("POST", "/templates"): {"name": "of-{key}", "instruction": "Go", "parameters": []},
    ("PUT", "/templates/{id}"): {"description": "far"},
    ("PATCH", "/templates/{id}"): {"description": "far"},
    ("POST", "/cron/jobs"): JOB,
    ("PATCH", "/cron/jobs/{id}"): {"overlap": "queue"},
    ("POST", "/cron/jobs/{id}/toggle"): {"enabled": False},
    ("POST", "/webhooks"): {"url": "https://example.com/of-{key}"},
    ("POST", "/tokens"): {"name": "of {key}"},
    ("POST", "/login"): {"token": "x"},
}
QUERIES = {
    ("GET", "/tasks/{id}/wait"): "?timeoutMs=0",
    ("GET", "/cron/preview"): "?expr=@yearly",
}


def each(fits: Callable[[str, str, Route], bool]) -> pytest.MarkDecorator:
    """All routes that fit, one test each."""
    found = [key for key, route in ROUTES.items() if fits(*key, route)]
    return pytest.mark.parametrize(("method", "path"), found, ids=[" ".join(key) for key in found])


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["sqlite", "postgresql"])
async def callers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callers]:
    folder = tmp_path_factory.mktemp("guarded")
    with contextlib.ExitStack() as stack:
        store = f"sqlite:///{folder / 'fairlane.db'}"
        if request.param == "postgresql":
            url = request.getfixturevalue("postgres_url")
            store = stack.enter_context(new_database(url))
        async with guarded(folder, store) as callers:
            yield callers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alices(callers: Callers) -> World:
    """Things that nothing here may change."""
    await callers.expired()
    await callers.revoked()
    return await world(callers)


def target(method: str, path: str, names: dict[str, str]) -> str:
    name = next((name for start, name in NAMES.items() if path.startswith(start)), "")
    filled = path.replace("{permitId}", names.get("permit", ""))
    filled = filled.replace("{messageId}", names.get("message", ""))
    filled = re.sub(r"{\w+}", lambda _: names[name], filled)
    return filled + QUERIES.get((method, path), "")


def body(method: str, path: str, names: dict[str, str]) -> Any:
    return _filled(BODIES.get((method, path)), names)


def _filled(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"{(\w+)}", lambda found: names[found[1]], value)
    if isinstance(value, dict):
        return {key: _filled(one, names) for key, one in value.items()}
    return [_filled(one, names) for one in value] if isinstance(value, list) else value


def unknown(names: dict[str, str]) -> dict[str, str]:
    """Names of the same form that nobody has given to anything."""
    found = {name: f"{value}-none" for name, value in names.items()}
    found["lease"] = re.sub(r"_\d+_", "_987654321_", names["lease"])
    found["permit"] = f"{names['permit']}987654321"
    return found


async def ask(
    callers: Callers, key: tuple[str, str], names: dict[str, str], token: str | None
) -> Answer:
    return await callers.ask(key[0], target(*key, names), body(*key, names), token=token)


# -------------------------------------------------------------------- who has no valid token


@each(lambda _, path, route: not route.open or path == "/")
async def test_who_may_not_ask_is_turned_away(
    callers: Callers, alices: World, method: str, path: str
) -> None:
    """Without a valid token, without the scope, and for one agent what is about all of them."""
    route = ROUTES[method, path]
    wrong = [await callers.wrong(), await callers.expired(), await callers.revoked()]
    tokens = [None, "", "x", "fl_", "fl_x_y_z", "Ünïcode", callers.root[:-1], *wrong]
    lacking = await callers.without(route.scope) if route.scope else None
    before = await everything(callers)
    answers = [await ask(callers, (method, path), alices.names, token) for token in tokens]
    assert {answer.status for answer in answers} == {401}
    assert {answer.code for answer in answers} == {"unauthenticated"}
    assert len({answer.raw for answer in answers}) == 1
    assert {answer.headers["WWW-Authenticate"] for answer in answers} == {"Bearer"}
    if lacking is not None:
        answers.append(await ask(callers, (method, path), alices.names, lacking))
        assert (answers[-1].status, answers[-1].code) == (403, "forbidden")
        assert answers[-1].json["details"] == {"scope": route.scope}
    if not route.agents:
        answers.append(await ask(callers, (method, path), alices.names, await callers.alice()))
        assert (answers[-1].status, answers[-1].code) == (403, "forbidden")
    assert not any(told(answer, alices, path) for answer in answers)
    assert await everything(callers) == before


def told(answer: Answer, alices: World, path: str) -> list[str]:
    """What an answer tells of Alice's things; to say back what was asked for tells nothing."""
    text = answer.raw.decode()
    names = [SECRET, *alices.own]
    asked = next((name for start, name in NAMES.items() if path.startswith(start)), "")
    return [name for name in names if name in text and name != alices.names.get(asked)]


async def test_other_ways_to_say_who_one_is_do_not_count(callers: Callers) -> None:
    for headers in (
        {"Authorization": f"Basic {callers.root}"},
        {"Authorization": callers.root},
        {"X-Api-Key": callers.root},
        {"Cookie": f"fairlane_login={callers.root}"},
    ):
        assert (await callers.ask("GET", "/tasks", headers=headers)).status == 401
    assert (await callers.ask("GET", f"/tasks?token={callers.root}")).status == 401


async def test_only_these_routes_need_no_token() -> None:
    open_ = {path for (_, path), route in ROUTES.items() if route.open}
    assert {path for path in open_ if not path.startswith("/ui/")} == OPEN - {"/ui/{file}"}


async def test_every_other_route_says_who_may_ask() -> None:
    known = {path for (_, path), route in ROUTES.items() if route.scope is None and not route.open}
    assert known == {"/whoami", "/openapi.json", "/docs"}
    assert all(isinstance(route, Route) for route in ROUTES.values())


async def test_the_list_of_routes_tells_who_asks_what_is_refused_and_why(callers: Callers) -> None:
    alice = await callers.alice()
    refused: dict[str, dict[str, str]] = {}
    for token, scopes, agent in (
        (callers.root, ALL, None),
        (await callers.of(None, "read"), ["read"], None),
        (alice, OF_AGENTS, ALICE),
    ):
        refused = (await callers.ask("GET", "/", token=token)).json["refused"]
        assert {(method, path) for path, why in refused.items() for method in why} == {
            key
            for key, route in ROUTES.items()
            if route.scope not in (None, *scopes) or (agent and not route.agents)
        }
    pause = await callers.ask("POST", "/lanes/main/pause", {}, token=alice)
    assert (pause.status, pause.error) == (403, refused["/lanes/{name}/pause"]["POST"])


async def test_every_route_with_a_name_in_it_is_asked_by_name() -> None:
    named = {path for _, path in ROUTES if "{" in path}
    assert [path for path in named if not path.startswith(tuple(NAMES))] == []


# -------------------------------------------------------------------- another agent


@each(lambda _, path, route: route.agents and "{" in path and not path.startswith(NOBODYS))
async def test_another_agents_things_are_not_there(
    callers: Callers, alices: World, method: str, path: str
) -> None:
    """The answer is the one for something that nobody has, down to the last byte."""
    bob = await callers.bob()
    before = await everything(callers)
    forbidden = await ask(callers, (method, path), alices.names, bob)
    assert not told(forbidden, alices, path), forbidden
    assert await everything(callers) == before
    none = unknown(alices.names)
    if (method, path) in MADE:
        missing = await ask(callers, ("GET", "/sessions/{key}"), none, bob)
    else:
        missing = await ask(callers, (method, path), none, bob)
    assert forbidden.status in (404, 409), forbidden
    assert _nameless(forbidden, alices.names) == _nameless(missing, none)


def _nameless(answer: Answer, names: dict[str, str]) -> tuple[int, str]:
    text = answer.raw.decode()
    for name, value in names.items():
        text = text.replace(value, f"<{name}>")
    return answer.status, text


@each(lambda method, path, route: route.agents and method == "GET" and "{" not in path)
async def test_lists_and_numbers_tell_nothing_of_another_agent(
    callers: Callers, alices: World, method: str, path: str
) -> None:
    answer = await callers.ask(method, target(method, path, {}), token=await callers.bob())
    assert answer.status == 200, answer
    assert not told(answer, alices, path)
    assert ALICE not in re.findall(r'"([^"]*)"', answer.raw.decode())


@pytest.mark.parametrize(
    "query",
    [
        "/tasks?sessionKey={key}",
        "/tasks?batchId={batch}",
        "/tasks?text=only-alice",
        "/tasks?dependsOn={task}",
        "/tasks?where=params.text=only-alice-knows",
        "/tasks/count?text=only-alice",
        "/tasks?tag=only-alice",
        "/events?taskId={task}",
        "/events?batchId={batch}",
        "/cron/runs?jobId={job}",
        "/deliveries?taskId={task}",
        "/queue?status=pending",
        "/approvals?taskId={task}",
    ],
)
async def test_filters_find_only_what_is_ones_own(
    callers: Callers, alices: World, query: str
) -> None:
    answer = await callers.ask("GET", _filled(query, alices.names), token=await callers.bob())
    assert answer.status == 200
    assert not told(answer, alices, "")


@pytest.mark.parametrize(
    "path", ["/tasks", "/events", "/batches", "/cron/jobs", "/deliveries", "/webhooks"]
)
async def test_another_agent_cannot_be_named(callers: Callers, alices: World, path: str) -> None:
    """Whether there is one of that name or not."""
    bob = await callers.bob()
    named = await callers.ask("GET", f"{path}?agentId={ALICE}", token=bob)
    nobody = await callers.ask("GET", f"{path}?agentId=nobody", token=bob)
    assert (named.status, named.code) == (403, "forbidden")
    assert named.raw == nobody.raw
    own = await callers.ask("GET", f"{path}?agentId={BOB}", token=bob)
    assert own.status == 200


SUBMITS = {
    "/tasks": {"handler": "nobody", "agentId": ALICE},
    "/tasks/batch": {"agentId": ALICE, "tasks": [{"handler": "nobody"}]},
    "/tasks/cancel": {"agentId": ALICE},
    "/tasks/retry": {"agentId": ALICE},
    "/tasks/reset": {"agentId": ALICE},
    "/sessions/bobs/messages": {"message": "hello", "agentId": ALICE},
    "/queue": {"repo": "/r", "agentId": ALICE},
    "/cron/jobs": {**JOB, "name": "bobs", "agentId": ALICE},
    "/cron/jobs?": {**JOB, "name": "bobs", "task": {"handler": "nobody", "agentId": ALICE}},
    "/templates/{template}/instantiate": {"overrides": {"agentId": ALICE}, "submit": True},
    "/webhooks": {"url": "https://example.com/bobs", "agentId": ALICE},
}


@pytest.mark.parametrize("path", SUBMITS)
async def test_no_caller_acts_for_another_agent(callers: Callers, alices: World, path: str) -> None:
    bob = await callers.bob()
    before = await everything(callers)
    where = _filled(path, alices.names)
    answer = await callers.ask("POST", where, SUBMITS[path], token=bob)
    assert (answer.status, answer.code) == (403, "forbidden"), answer
    assert await everything(callers) == before


# -------------------------------------------------------------------- who may


@each(lambda _, __, route: not route.open)
async def test_the_scope_is_enough(callers: Callers, alices: World, method: str, path: str) -> None:
    route = ROUTES[method, path]
    scopes = [route.scope] if route.scope else [Scope.LEASE]
    for agent in (None, ALICE) if route.agents else (None,):
        if method != "GET":
            alices = await world(callers)
        if path.startswith("/tokens/"):
            alices.names["task"] = (await callers.new(scopes=["read"])).split("_")[1]
        if path.startswith("/failures/"):
            alices.names["task"] = await failure(callers)
        token = await callers.of(agent, *scopes)
        answer = await ask(callers, (method, path), alices.names, token)
        if agent == ALICE and path == "/approvals/{id}/decide":  # about her own task
            assert (answer.status, answer.code) == (403, "own_task")
            continue
        assert answer.status not in (401, 403, 404, 405), answer
        assert answer.status < 500, answer


async def failure(callers: Callers) -> str:
    """The fingerprint of a failure of Alice's."""
    body = {"handler": "sleep", "agentId": ALICE}  # it does not say how long
    await callers.ask("POST", "/tasks", body, token=callers.root)

    async def found() -> str | None:
        answer = await callers.ask("GET", f"/failures?agentId={ALICE}", token=callers.root)
        return next((one["fingerprint"] for one in answer.json["failures"]), None)

    return await eventually(found)


async def test_the_scopes_of_these_tests_are_all_there_are() -> None:
    assert set(ALL) == {str(scope) for scope in Scope}
    assert set(OF_AGENTS) == set(ALL) - {"admin"}
