"""Every accepted value can be read again: write the extremes of every field, then read all."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.core.validation import DEPTH_MAX
from fairlane.embedded.app import Fairlane
from tests.hostile import extremes
from tests.hostile.extremes import MOMENTS, OBJECTS, TEXTS, Attempt, Reader, Schema, attempts
from tests.hostile.inside import Answer, Inside

pytestmark = pytest.mark.slow

AT_ONCE: Final = 50  # requests, which share commits
YEAR_MS: Final = 366 * 86_400_000
WIDE: Final = {"maxInflight": 100_000, "maxQueueSize": None}
POLICY: Final[dict[str, Any]] = {
    "lanes": {
        **dict.fromkeys(("main", "instruction", "cron", "queue"), WIDE),
        "browser": {**WIDE, "maxPerAgentInflight": None, "maxPerAgent": None},
    }
}
JOB: Final = {
    "name": "j",
    "schedule": {"kind": "every", "everyMs": 60_000},
    "task": {"handler": "nobody"},
}
CITY: Final = {"name": "city", "type": "string", "required": False}
TEMPLATE: Final = {"name": "t", "instruction": "go to {{city}}", "parameters": [CITY]}
# Bodies that are in order; the fields that they lack come from the schema.
BASES: Final[dict[str, list[Any]]] = {
    "POST /tasks": [
        {"agentId": "a", "handler": "nobody"},
        {"agentId": "a", "action": "click", "tabId": "t"},
        {"instruction": "go", "sessionKey": "s"},
    ],
    "POST /tasks/batch": [{"agentId": "a", "tasks": [{"handler": "nobody"}]}],
    "POST /tasks/stream": [{"tasks": [{"agentId": "a", "handler": "nobody"}]}],
    "POST /tasks/cancel": [{"agentId": "nobody"}],
    "POST /sessions/s1/messages": [{"message": "hello"}, {"message": "m", "handler": "nobody"}],
    "PATCH /sessions/s2": [{"mode": "queue"}],
    "PUT /sessions/s3/usage": [{"tokens": 1, "contextWindow": 2}],
    "POST /queue": [{"runId": "r"}],
    "POST /templates": [TEMPLATE],
    "POST /cron/jobs": [JOB],
    "POST /webhooks": [{"url": "https://hooks.example.com/a"}],
}
SCHEDULES: Final = [
    {"kind": "at", "at": "2030-01-01T00:00:00Z"},
    {"kind": "cron", "expr": "@daily", "tz": "Asia/Tokyo"},
]
REPORTS: Final = {
    "complete": {},
    "fail": {"error": "it broke"},
    "renew": {},
    "output": {"output": "text"},
}
# What an entry of a `queue.json` may say: no type of ours reads it.
ENTRY_MOMENTS: Final = ("enqueuedAt", "nextEligibleAt", "drainedAt", "leaseExpiresAt")
ENTRY_FIELDS: Final = {
    **{key: {"type": "string"} for key in ("id", "runId", "note", "parkedReason")},
    **{key: {"type": "integer"} for key in ("priority", "attempts")},
    **{key: {"type": "object"} for key in ("inputs", "unknown")},
}
READ_AFTER: Final = ("POST /tasks", "POST /sessions/s1/messages", "POST /cron/jobs")


@pytest.fixture
async def inside(store_url: str) -> AsyncIterator[Inside]:
    clock = ManualClock()
    async with Fairlane(store_url, policy=POLICY, drain_seconds=0, clock=clock) as app:
        found = Inside(app)
        yield found
        found.close()


@pytest.fixture
async def spec(inside: Inside) -> dict[str, Any]:
    found: dict[str, Any] = (await inside.ask("GET", "/openapi.json")).json
    return found


def body_of(spec: Mapping[str, Any], name: str) -> tuple[Schema, Mapping[str, Schema]]:
    """The schema of an operation's body, whose path may hold ids, and all others."""
    method, target = name.split(" ")
    components = spec["components"]["schemas"]
    for path, methods in spec["paths"].items():
        pattern = re.sub(r"{\w+}", r"[^/]+", path)
        if method.lower() in methods and re.fullmatch(pattern, target):
            schema = methods[method.lower()]["requestBody"]["content"]["application/json"]["schema"]
            return extremes.resolved(schema, components), components
    raise AssertionError(f"{name} is not described")


async def tried(inside: Inside, one: Attempt) -> Answer:
    async with asyncio.timeout(extremes.HANG_SECONDS):
        answer = await inside.ask(one.method, one.target, raw=one.body, headers=one.headers)
    assert answer.status < 500, (one.about, one.body[:300], answer)
    extremes.check_json(answer.raw)
    return answer


async def all_tried(inside: Inside, wanted: Iterable[Attempt]) -> list[tuple[Attempt, Answer]]:
    """Each with its answer; many at once, as callers come."""
    answers = []
    left = iter(wanted)
    while part := list(itertools.islice(left, AT_ONCE)):
        found = await asyncio.gather(*(tried(inside, one) for one in part))
        answers += zip(part, found, strict=True)
    return answers


async def accepted(inside: Inside, wanted: Iterable[Attempt]) -> list[tuple[Attempt, Answer]]:
    answers = await all_tried(inside, wanted)
    good = [pair for pair in answers if pair[1].status < 300]
    assert good, answers[0]
    return good


async def ids_of(inside: Inside, path: str, name: str) -> list[str]:
    answer = await inside.ask("GET", f"{path}?limit=1000")
    return [one["id"] for one in answer.json[name]]


def several(names: Sequence[str], base: Any, schema: Schema, spec: Mapping[str, Any]) -> Any:
    """The attempts at an operation, each at the next of several targets."""
    components = spec["components"]["schemas"]
    made = attempts(names[0], [base], schema, components)
    for one, name in zip(made, itertools.cycle(names), strict=False):
        yield one._replace(target=name.split(" ")[1])


# --- what is submitted ------------------------------------------------------------------------


async def test_accepted_values_can_be_read_by_every_caller(
    inside: Inside, spec: dict[str, Any]
) -> None:
    reader = Reader(inside)
    tasks: list[bytes] = []
    for name, bases in BASES.items():
        good = await accepted(inside, attempts(name, bases, *body_of(spec, name)))
        assert len(good) >= len(bases), name
        if name == "POST /tasks":
            tasks = [one.body for one, _ in good]
        if name in READ_AFTER:
            await reader.everything()
    await all_tried(inside, _batches(tasks))
    await all_tried(inside, _other_schedules(spec))
    await all_tried(inside, _imports(spec))
    await reader.everything()


def _batches(bodies: Sequence[bytes]) -> Iterator[Attempt]:
    """What is accepted alone, fifty at a time."""
    for start in range(0, len(bodies), 50):
        items = b",".join(bodies[start : start + 50])
        yield Attempt("POST", "/tasks/batch", b'{"agentId":"a","tasks":[%s]}' % items, "batch")


def _other_schedules(spec: Mapping[str, Any]) -> Iterator[Attempt]:
    for schedule in SCHEDULES:
        schema, components = body_of(spec, "POST /cron/jobs")
        when = ("schedule", "startAt", "endAt")
        narrow = {"properties": {name: schema["properties"][name] for name in when}}
        yield from attempts("POST /cron/jobs", [{**JOB, "schedule": schedule}], narrow, components)


def _imports(spec: Mapping[str, Any]) -> Iterator[Attempt]:
    """Every field of an entry that waits, and the moments of those in any status."""
    components = spec["components"]["schemas"]
    name, schema = "POST /queue/import", {"properties": ENTRY_FIELDS}
    entries = [
        one.body for one in attempts(name, [{"id": "e", "status": "parked"}], schema, components)
    ]
    for status, moment in itertools.product(("pending", "leased", "drained", "parked"), MOMENTS):
        entry = {"id": "e", "status": status, **dict.fromkeys(ENTRY_MOMENTS, moment)}
        entries.append(msgspec.json.encode(entry))
    for number, entry in enumerate(entries):
        named = entry.replace(b'"id":"e"', b'"id":"e%d"' % number, 1)
        body = b'{"schemaVersion":1,"entries":[%s]}' % named
        yield Attempt("POST", "/queue/import", body, f"import {entry[:80]!r}")


# --- what happens to it -----------------------------------------------------------------------


async def test_what_workers_and_time_make_of_extremes_can_be_read(
    inside: Inside, spec: dict[str, Any]
) -> None:
    """Leases, reports, retries that move deadlines on, jobs that fire, a year that passes."""
    reader, clock = Reader(inside), inside.app.node.clock
    assert isinstance(clock, ManualClock)
    made = [*_with_moments(), *attempts("POST /tasks", [{"handler": "n"}], {}, {})] * 3
    await accepted(inside, made)
    await accepted(inside, _jobs_with_moments())
    leases = await _leased(inside, 400)
    for (verb, base), mine in zip(REPORTS.items(), _dealt(leases, len(REPORTS)), strict=True):
        names = [f"POST /leases/{lease}/{verb}" for lease in mine]
        schema, _ = body_of(spec, names[0])
        await all_tried(inside, several(names, base, schema, spec))
    await reader.everything()
    clock.advance(YEAR_MS)
    for verb in ("retry", "reset"):
        body = {"agentId": "default", "state": ["failed", "cancelled", "parked"]}
        one = Attempt("POST", f"/tasks/{verb}", msgspec.json.encode(body), verb)
        assert (await tried(inside, one)).status == 200
    await inside.ask("POST", "/leases/reclaim", {})
    await _leased(inside, 100)
    await reader.everything()


def _with_moments() -> Iterator[Attempt]:
    kinds = ({"handler": "n"}, {"action": "click", "agentId": "default"}, {"instruction": "go"})
    for kind, name in itertools.product(kinds, ("deadline", "runAt")):
        for moment in MOMENTS:
            body = msgspec.json.encode({**kind, name: moment})
            yield Attempt("POST", "/tasks", body, f"{name} {moment}")


def _jobs_with_moments() -> Iterator[Attempt]:
    zones = ("UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati")
    whens = [{"kind": "cron", "expr": "* * * * *", "tz": zone} for zone in zones]
    whens += [{"kind": "every", "everyMs": 1000}]
    for schedule, name, moment in itertools.product(whens, ("startAt", "endAt"), MOMENTS):
        job = {**JOB, "name": f"n{next(extremes.NAMES)}", "schedule": schedule, name: moment}
        yield Attempt("POST", "/cron/jobs", msgspec.json.encode(job), f"{name} {moment}")


async def _leased(inside: Inside, limit: int) -> list[str]:
    kinds = ["handler", "action", "instruction"]
    body = {"worker": "w", "limit": limit, "kinds": kinds, "ttlMs": 86_400_000}
    answer = await inside.ask("POST", "/leases", body)
    assert answer.status == 200, answer
    extremes.check_json(answer.raw)
    return [one["leaseId"] for one in answer.json["leases"]]


def _dealt(items: Sequence[str], hands: int) -> list[Sequence[str]]:
    assert len(items) >= hands
    return [items[number::hands] for number in range(hands)]


async def test_what_handlers_return_can_be_read_or_fails_alone(inside: Inside) -> None:
    """Handlers in this process are not held to the bounds of a request, but to what is readable."""
    deep: list[Any] = []
    for _ in range(DEPTH_MAX + 1):
        deep = [deep]
    usual = [one for one in (*OBJECTS, *TEXTS) if not isinstance(one, msgspec.Raw)]
    results = [
        *usual,
        deep,
        extremes.raw("nul"),
        2**64,
        10**4400,
        float("nan"),
        float("-inf"),
        "\ud800",
    ]
    left = iter(results)
    inside.app.handler("odd")(lambda _: next(left))
    schedule = {"kind": "every", "everyMs": 1000}
    job = {"name": "odd", "schedule": schedule, "task": {"handler": "odd"}, "overlap": "allow"}
    made = await inside.ask("POST", "/cron/jobs", job)
    ended = []
    for _ in results:
        run = (await inside.ask("POST", f"/cron/jobs/{made.json['id']}/run", {})).json
        ended.append((await inside.ask("GET", f"/tasks/{run['taskId']}/wait?timeoutMs=20000")).json)
    assert {task["state"] for task in ended} <= {"done", "failed"}
    assert "nested deeper than 64 levels" in ended[len(usual)]["error"]
    assert ended[-1]["error"].startswith("the handler's result cannot be encoded as JSON")
    await Reader(inside).everything()


# --- what is changed --------------------------------------------------------------------------


async def test_what_is_changed_to_an_extreme_can_be_read(
    inside: Inside, spec: dict[str, Any]
) -> None:
    reader = Reader(inside)
    for name in ("POST /templates", "POST /cron/jobs"):
        await accepted(inside, [_named(name, BASES[name][0]) for _ in range(20)])
    await accepted(inside, [Attempt("POST", "/webhooks", b'{"url":"https://h.example/"}', "w")])
    changes = {
        "PATCH /templates": ("/templates", "templates", TEMPLATE, "POST /templates"),
        "PUT /templates": ("/templates", "templates", TEMPLATE, "POST /templates"),
        "PATCH /cron/jobs": ("/cron/jobs", "jobs", JOB, "POST /cron/jobs"),
    }
    for name, (path, key, base, like) in changes.items():
        names = [f"{name}/{one}" for one in await ids_of(inside, path, key)]
        await all_tried(inside, several(names, base, body_of(spec, like)[0], spec))
        await reader.everything()
    uses = [
        f"POST /templates/{one}/instantiate"
        for one in await ids_of(inside, "/templates", "templates")
    ]
    await all_tried(
        inside, several(uses, {"params": {"city": "x"}}, body_of(spec, uses[0])[0], spec)
    )
    rotated = [
        f"POST /webhooks/{one}/rotate" for one in await ids_of(inside, "/webhooks", "endpoints")
    ]
    await all_tried(inside, several(rotated, {}, body_of(spec, rotated[0])[0], spec))
    await reader.everything()
    assert len(await ids_of(inside, "/templates", "templates")) == len(uses)


def _named(name: str, base: Mapping[str, Any]) -> Attempt:
    method, target = name.split(" ")
    body = msgspec.json.encode({**base, "name": f"n{next(extremes.NAMES)}"})
    return Attempt(method, target, body, name)


async def test_a_policy_of_extremes_can_be_read_and_left_again(
    inside: Inside, spec: dict[str, Any]
) -> None:
    reader = Reader(inside)
    schema, components = body_of(spec, "PATCH /policy")
    lanes = [{"lanes": {"main": {}}, "kinds": {"handler": {}}, "agents": {"a": {}}}]
    left = itertools.chain(
        attempts("PATCH /policy", lanes, schema, components), _settings(components)
    )
    while part := list(itertools.islice(left, AT_ONCE)):
        await all_tried(inside, part)
        for path in ("/policy", "/scheduler/policy", "/lanes", "/scheduler/stats"):
            assert (await reader.ask(path)).status == 200
    await reader.everything()
    body = msgspec.json.encode(POLICY)
    assert (await tried(inside, Attempt("PUT", "/policy", body, "back"))).status == 200


def _settings(components: Mapping[str, Schema]) -> Iterator[Attempt]:
    """Each setting of a lane, a kind and an agent."""
    for path, kind in (
        (("lanes", "main"), "LanePolicy"),
        (("kinds", "handler"), "KindPolicy"),
        (("agents", "a"), "AgentPolicy"),
    ):
        for one in attempts("PATCH /policy", [{}], components[kind], components):
            inner = b"{" + b'"%s":{"%s":' % (path[0].encode(), path[1].encode())
            yield one._replace(body=inner + one.body + b"}}")


# --- who asks, and what is asked --------------------------------------------------------------


async def test_tokens_of_extremes_lock_nobody_out(inside: Inside, spec: dict[str, Any]) -> None:
    first = await inside.ask("POST", "/tokens", {"name": "admin", "scopes": ["admin", "all"]})
    assert first.status == 201, first
    headers = {"authorization": f"Bearer {first.json['token']}"}
    made = attempts(
        "POST /tokens", [{"name": "t", "scopes": ["read"]}], *body_of(spec, "POST /tokens")
    )
    good = await accepted(inside, (one._replace(headers=headers) for one in made))
    listed = (await inside.ask("GET", "/tokens", headers=headers)).json["tokens"]
    assert {answer.json["id"] for _, answer in good} <= {one["id"] for one in listed}
    await Reader(inside, headers).everything()


async def test_extremes_in_a_query_are_refused_or_answered(
    inside: Inside, spec: dict[str, Any]
) -> None:
    await accepted(inside, _with_moments())
    await accepted(inside, _jobs_with_moments())
    for path, methods in spec["paths"].items():
        for one in methods.get("get", {}).get("parameters", ()):
            if one["in"] == "query" and "{" not in path and one["name"] != "follow":
                await _all_asked(inside, path, one["name"], one["schema"])
    assert (await inside.ask("GET", "/tasks?limit=1000")).json["count"] > len(MOMENTS)


async def _all_asked(inside: Inside, path: str, name: str, schema: Schema) -> None:
    reader = Reader(inside)
    for value in extremes.values(schema, {}, name):
        text = bytes(value).decode() if isinstance(value, msgspec.Raw) else value
        text = text if isinstance(text, str) else json.dumps(text)
        besides = {"expr": "&tz=Asia/Tokyo", "tz": "&expr=@daily", "at": "&tz=Asia/Tokyo"}
        await reader.ask(f"{path}?{name}={extremes.quoted(text[:4000])}{besides.get(name, '')}")
