"""Random requests to every route: no 5xx, no hang, and a refused request changes nothing.

They go through the door and the routes of a scheduler in this process, whose store is compared
before and after each refusal.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import HealthCheck, assume, event, example, given, settings
from hypothesis import strategies as st

from fairlane.embedded.app import Fairlane
from fairlane.testing import MemoryFairlane
from tests.hostile.inside import Inside
from tests.hostile.trying import STILL, Tried

pytestmark = pytest.mark.slow

MANY = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
IDENTIFIER = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}\Z")
SESSION_KEY = re.compile(r"^[A-Za-z0-9_+!/]([A-Za-z0-9_.:@+!/ -]{0,126}[A-Za-z0-9_.:@+!/-])?\Z")

ONE_BY_ONE = ("/tasks/batch", "/tasks/stream", "/leases/report")  # each item has its own outcome
BODIES: dict[str, dict[str, Any]] = {
    "POST /tasks": {
        "agentId": "a",
        "handler": "nobody",
        "params": {"n": [1, {"deep": "text"}]},
        "metadata": {"a": None},
        "priority": "high",
        "retryPolicy": {"maxRetries": 2, "backoffMs": 5},
    },
    "POST /tasks/batch": {
        "agentId": "a",
        "tasks": [{"handler": "nobody", "key": "x"}, {"handler": "n", "dependsOn": ["#x"]}],
    },
    "POST /tasks/stream": {"tasks": [{"handler": "nobody", "agentId": "a", "params": {"n": 1}}]},
    "POST /leases/report": {
        "worker": "w",
        "reports": [{"leaseId": "lse_1_1", "verb": "complete", "result": [1]}],
    },
    "POST /tasks/cancel": {"agentId": "zz", "state": ["queued"], "dryRun": True},
    "POST /sessions/s/messages": {"message": "hello", "handler": "nobody", "media": [1]},
    "PATCH /sessions/s": {"mode": "queue", "cap": 3},
    "PUT /sessions/s/usage": {"tokens": 1, "contextWindow": 5},
    "POST /queue": {"runId": "r", "inputs": {"a": [1]}, "note": "n"},
    "POST /queue/import": {"schemaVersion": 1, "entries": [{"id": "e1", "status": "pending"}]},
    "POST /templates": {
        "name": "t",
        "instruction": "go to {{city}}",
        "parameters": [{"name": "city", "type": "string", "required": True}],
    },
    "POST /templates/x/instantiate": {"params": {"city": "x"}, "overrides": {}},
    "POST /cron/jobs": {
        "name": "j",
        "schedule": {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"},
        "task": {"handler": "nobody", "params": {"a": 1}},
    },
    "PATCH /policy": {"lanes": {"main": {"maxInflight": 30}}},
    "POST /policy/check": {"lanes": {"main": {"maxInflight": 30}}, "agents": {"a": {"weight": 2}}},
    "PATCH /scheduler/policy": {"maxConcurrent": 1},
    "POST /leases/lse_1_1/complete": {"token": 1, "result": {"a": 1}},
    "POST /leases/lse_1_1/fail": {"error": "it broke", "retryable": False},
    "POST /tokens": {"name": "t", "scopes": ["read"], "agentId": "a"},
    "POST /login": {"token": "fl_a_b_c"},
    "POST /webhooks": {"url": "https://hooks.example.com/a", "agentId": "a"},
    "POST /webhooks/x/rotate": {"overlapSeconds": 60},
}


@pytest.fixture
async def tried() -> AsyncIterator[Tried]:
    async with MemoryFairlane(policy=STILL) as app:
        yield Tried(Inside(app))


# --- JSON -------------------------------------------------------------------------------------


ODD_TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "\0", "a\0", "\u202e", "\x1b[31m", "../..", "'; --", "${x}", "{{x}}", "x" * 5000, "null"]
)
ODD_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD_TEXT, inner, max_size=4),
    max_leaves=8,
)
ODD_PIECES = st.sampled_from(
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"0x1", b"01", b"+1", b"1.", b".5"),
        *(b"9223372036854775808", b"1" * 400, b"1" * 5000, b'"\\u0000"', b'"\\ud800"'),
        *(b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b"\xef\xbb\xbf"),
        *(b"\x00", b"//x", b"/**/", b",", b":", b"{", b"[", b'"', b"'x'", b"[" * 70 + b"]" * 70),
        *(b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b'{"a" :1,"a" :2,"b":":"}', b"[" * 2000),
        *(b'{"":{"":{"":1}}}', b'{"__proto__":1}', b"\\", b"\n", b" ", b"true", b"null", b"{}"),
    ]
)


@st.composite
def mangled(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    """A body with something odd at some place of it."""
    raw = json.dumps(body, separators=draw(st.sampled_from([(",", ":"), (", ", " : ")]))).encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.integers(0, 12)))
        raw = raw[:start] + draw(ODD_PIECES | st.binary(max_size=6)) + raw[end:]
    return raw


@st.composite
def refilled(draw: st.DrawFn, body: dict[str, Any]) -> bytes:
    """A body of which a field, at any depth, has an odd value, or which has one field more."""
    changed = json.loads(json.dumps(body))
    where: Any = changed
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if isinstance(where[key], dict | list) and draw(st.booleans()):
            where = where[key]
            continue
        where[key] = draw(ODD_VALUES)
        break
    if draw(st.integers(0, 9)) == 0:
        changed[draw(ODD_TEXT)] = draw(ODD_VALUES)
    return json.dumps(changed).encode()


def must_be_refused(raw: bytes) -> bool:
    """What a strict reader would not take, by another reader than the one under test."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError("endless")
        return value

    def whole(text: str) -> int:
        value = int(text) if len(text) < 30 else 2**64
        if abs(value) > 2**63 - 1:
            raise ValueError("large")
        return value

    def never(text: str) -> Any:
        raise ValueError(text)

    try:
        value = json.loads(
            raw.decode(),
            object_pairs_hook=once,
            parse_float=finite,
            parse_int=whole,
            parse_constant=never,
        )
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        return True
    return "\\u0000" in text.replace("\\\\", "")


@pytest.mark.parametrize("route", BODIES)
async def test_odd_json_is_refused_or_taken_whole(tried: Tried, route: str) -> None:
    method, path = route.split(" ")

    @MANY
    @given(raw=mangled(BODIES[route]) | refilled(BODIES[route]) | st.binary(max_size=50))
    def collect(raw: bytes) -> None:
        found.append(raw)

    found: list[bytes] = []
    collect()
    for raw in found:
        answer = await tried.ask(method, path, raw=raw)
        if must_be_refused(raw) and path not in ONE_BY_ONE:
            assert answer.status >= 400, (raw, answer)


@pytest.mark.parametrize("route", BODIES)
async def test_the_body_itself_is_in_order(tried: Tried, route: str) -> None:
    """Or the test above would only try what is refused anyway."""
    method, path = route.split(" ")
    answer = await tried.ask(method, path, body=BODIES[route])
    assert answer.status < 300 or answer.json["code"] in (
        *("not_found", "lease_lost", "unauthenticated"),
    ), answer


# --- texts ------------------------------------------------------------------------------------


@MANY
@given(text=ODD_TEXT | st.text("abcXYZ019_.:@-/ ", max_size=140))
@example("a" * 128)
@example("a" * 129)
@example(".a")
@example("a\n")
async def test_an_identifier_is_one_or_is_refused(tried: Tried, text: str) -> None:
    good = IDENTIFIER.match(text) is not None
    for field, accepted in (
        ("agentId", good or not text),
        ("sessionKey", SESSION_KEY.match(text) is not None),
    ):
        answer = await tried.ask("POST", "/tasks", body={"handler": "nobody", field: text})
        assert (answer.status == 202) == accepted, (field, text, answer)
    answer = await tried.ask("POST", "/leases", body={"worker": text, "limit": 1})
    assert (answer.status == 200) == (good and not text.startswith("node_"))
    answer = await tried.ask("POST", "/queue", body={"id": text})
    assert answer.status in ((201, 409) if good else (400,))


CRON_LETTERS = st.text("0123456789*/,-?LW#@ abcdejmnorstuwy", max_size=30)
CRON_PARTS = st.sampled_from(
    [
        *("*", "*/0", "*/61", "0", "59", "60", "-1", "1-", "5-1", "1/1/1", "?", "L", "LW", "#", ""),
        *(
            "0-59/7",
            "MON",
            "mon-fri",
            "7",
            "8",
            "31",
            "32",
            "13",
            "1,2,3",
            "9" * 40,
            "²",
            "*,*",
            "x",
        ),
        *("5L", "1#5", "1#6", "FEB", "2", "30"),
    ]
)
CRON = CRON_LETTERS | st.lists(CRON_PARTS, min_size=1, max_size=8).map(" ".join) | st.text()
ZONES = st.sampled_from(
    [
        *(
            "UTC",
            "Europe/Berlin",
            "Asia/Kathmandu",
            "Pacific/Apia",
            "Nowhere/Land",
            "../etc/passwd",
        ),
        *("/etc/localtime", "europe/berlin", "UTC\0", "Europe", ".", "posixrules", "a" * 300, ""),
    ]
)


@settings(MANY, max_examples=250)
@given(expr=CRON, zone=ZONES | st.text(max_size=10))
@example("0 0 30 2 *", "UTC")
@example("0 0 31 2,4,6,9,11 *", "UTC")
@example("@never", "UTC")
@example("0 0 29 2 1#5", "UTC")
async def test_a_cron_expression_has_moments_or_is_refused(
    tried: Tried, expr: str, zone: str
) -> None:
    query = f"expr={quote(expr)}&tz={quote(zone)}&n=3"
    preview = await tried.ask("GET", f"/cron/preview?{query}")
    schedule = {"kind": "cron", "expr": expr, "tz": zone}
    job = {"name": "fuzz", "schedule": schedule, "task": {"handler": "nobody"}, "enabled": False}
    made = await tried.ask("POST", "/cron/jobs", body=job)
    assert (preview.status, made.status) in ((200, 201), (400, 400)), (preview, made)
    if made.status == 201:
        assert preview.json["next"]
        assert (await tried.ask("DELETE", f"/cron/jobs/{made.json['id']}")).status == 200


MOMENTS = st.sampled_from(
    [
        *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "now"),
        *("2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", "1", "-1"),
        *("2026-01-01T00:00:00+99:99", "2026-01-01T00:00:00", "0001-01-01T00:00:00+14:00", ""),
        *("²026-01-01T00:00:00Z", "2026-01-01T00:00:00.9999999999Z", "2026-W01-1T00:00:00Z"),
    ]
)


WRITTEN = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)


def is_moment(text: str) -> bool:
    """As RFC 3339 writes it, by another reader than the one under test."""
    if WRITTEN.fullmatch(text) is None:
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


@MANY
@given(
    text=MOMENTS
    | st.text("0123456789-:TZ.+ ", max_size=30)
    | st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)
)
@example("")
async def test_a_moment_is_one_or_is_refused(tried: Tried, text: str) -> None:
    """One that there is may be too far away, or over; one that there is not is never taken."""
    good = is_moment(text)
    schedule = {"kind": "every", "everyMs": 60_000, "anchor": text}
    job = {"name": "m", "schedule": schedule, "task": {"handler": "n"}, "startAt": text}
    answers = [
        await tried.ask("POST", "/tasks", body={"handler": "nobody", "deadline": text}),
        await tried.ask("POST", "/tasks", body={"handler": "nobody", "runAt": text}),
        await tried.ask("POST", "/sessions/s/messages", body={"message": "x", "sentAt": text}),
        await tried.ask("GET", f"/scheduler/plan?now={quote(text)}"),
        await tried.ask("GET", f"/cron/preview?at={quote(text)}"),
        await tried.ask("POST", "/cron/jobs", body=job),
    ]
    taken = [answer.status < 300 for answer in answers]
    event(f"{'a' if good else 'no'} moment, taken by {sum(taken)}")
    if not text:  # is as if nothing had been said
        assert taken == [True, True, True, False, False, False], answers
    else:
        assert good or not any(taken), answers
    assert {answer.status for answer in answers} <= {200, 201, 202, 400, 409}, answers


@pytest.mark.parametrize("text", ["2023-11-15T22:13:20Z", "2023-11-15T22:13:20.5+02:00"])
async def test_a_moment_that_is_near_is_taken_everywhere(tried: Tried, text: str) -> None:
    """Or the test above would prove nothing."""
    assert is_moment(text)
    for field in ("deadline", "runAt"):
        answer = await tried.ask("POST", "/tasks", body={"handler": "nobody", field: text})
        assert answer.status == 202, answer
    for path in ("/scheduler/plan?now", "/cron/preview?at"):
        answer = await tried.ask("GET", f"{path}={quote(text)}")
        assert answer.status == 200, answer


# --- addresses --------------------------------------------------------------------------------


ODD_PARAMETERS = (
    st.sampled_from(
        [
            *(
                "",
                "0",
                "-1",
                "1",
                "1.5",
                "1e3",
                "9" * 19,
                "9" * 30,
                "0" * 5000,
                "٣",
                "²",
                "+1",
                "1 ",
            ),
            *("1.1", "-1.-1", "1.1.1", ".", "9" * 18 + "." + "9" * 18, "%", "_", "a,b", ",", "\0"),
            *("' OR 1=1--", "x" * 3000, "null", "true", "TRUE", "queued;", "queued,done", "[]"),
        ]
    )
    | st.text(max_size=15)
    | st.integers(-5, 2**63).map(str)
)
READS = {
    "/tasks": ["agentId", "lane", "sessionKey", "batchId", "kind", "state", "limit", "cursor"],
    "/batches": ["agentId", "limit", "cursor"],
    "/sessions": ["limit", "cursor"],
    "/queue": ["status", "limit", "cursor"],
    "/templates": ["name", "limit", "cursor"],
    "/cron/jobs": ["agentId", "name", "enabled", "limit", "cursor"],
    "/cron/runs": ["jobId", "status", "limit", "cursor"],
    "/events": ["taskId", "batchId", "agentId", "lane", "type", "after", "limit"],
    "/policy": ["version"],
    "/policy/versions": ["limit", "cursor"],
    "/policy/diff": ["from", "to"],
    "/scheduler/plan": ["lane", "now", "limit"],
    "/cron/preview": ["expr", "everyMs", "at", "tz", "n"],
    "/tasks/x/wait": ["timeoutMs"],
    "/deliveries": ["state", "taskId", "agentId", "limit", "cursor"],
    "/webhooks": ["agentId", "limit", "cursor"],
    "/audit": ["who", "action", "outcome", "limit", "cursor", "after"],
    "/stats/history": ["window"],
}


@settings(MANY, max_examples=250)
@given(data=st.data())
async def test_odd_filters_and_cursors_are_refused_or_find_nothing(
    tried: Tried, data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(READS)))
    names = data.draw(st.lists(st.sampled_from([*READS[path], "evil"]), max_size=3))
    pairs = [f"{name}={_quoted(data.draw(ODD_PARAMETERS))}" for name in names]
    answer = await tried.ask("GET", f"{path}?{'&'.join(pairs)}")
    if "evil" in names or len(set(names)) < len(names):
        assert answer.status == 400, "what nobody knows or what is said twice is refused"
    assert answer.status in (200, 400, *([404] if path in MAY_BE_MISSING else [])), answer
    if answer.status == 200 and path in EMPTY:
        assert answer.json[EMPTY[path]] == [], "where nothing is, nothing is found"


EMPTY = {
    "/tasks": "tasks",
    "/batches": "batches",
    "/sessions": "sessions",
    "/queue": "entries",
    "/templates": "templates",
    "/cron/jobs": "jobs",
    "/cron/runs": "runs",
    "/events": "events",
    "/scheduler/plan": "leases",
    "/deliveries": "deliveries",
    "/webhooks": "endpoints",
}
MAY_BE_MISSING = ("/policy", "/policy/diff", "/scheduler/plan", "/tasks/x/wait")


def _quoted(text: str) -> str:
    return quote(text, safe="")


@MANY
@given(raw=st.text(string.printable + "%ÿ\x00", max_size=40))
@example("")
async def test_a_query_of_any_bytes_is_refused_or_read(tried: Tried, raw: str) -> None:
    expected = 400 if parse_qsl(raw, keep_blank_values=True) else 200
    for path in ("/tasks", "/events", "/lanes"):
        answer = await tried.ask("GET", f"{path}?{raw}")
        assert answer.status == expected, (raw, answer)
    assert (await tried.ask("GET", f"/cron/preview?{raw}")).status == 400


NAMED = [
    *("GET /tasks/{}", "DELETE /tasks/{}", "POST /tasks/{}/cancel", "POST /tasks/{}/retry"),
    *("POST /tasks/{}/reset", "GET /tasks/{}/wait?timeoutMs=0", "GET /tasks/{}/why"),
    *("GET /tasks/{}/events", "GET /tasks/{}/output", "GET /batches/{}", "POST /batches/{}/cancel"),
    *("GET /sessions/{}", "POST /sessions/{}/stop", "POST /sessions/{}/reset"),
    *("POST /lanes/{}/pause", "POST /lanes/{}/clear", "POST /leases/{}/start"),
    *("POST /leases/{}/release", "GET /queue/{}", "GET /templates/{}", "DELETE /templates/{}"),
    *("POST /templates/{}/instantiate", "GET /cron/jobs/{}", "DELETE /cron/jobs/{}"),
    *("GET /deliveries/{}", "POST /deliveries/{}/redeliver", "GET /webhooks/{}"),
    *("DELETE /webhooks/{}", "POST /webhooks/{}/rotate", "POST /webhooks/{}/enable"),
    *("POST /cron/jobs/{}/run", "GET /cron/jobs/{}/runs", "DELETE /tokens/{}", "GET /ui/{}"),
]
SEGMENTS = ODD_PARAMETERS.map(lambda text: text.replace("/", "")) | st.sampled_from(
    ["..", "lse_1", "lse_1_1", "lse_9_" + "9" * 18, "lse_-1_1", "tab:a:b", "(x)", "\ufffd", "a\nb"]
)


@settings(MANY, max_examples=250)
@given(route=st.sampled_from(NAMED), text=SEGMENTS)
@example("GET /sessions/{}", "lse_1")
@example("POST /sessions/{}/stop", "a b")
@example("POST /leases/{}/start", "lse_1_1")
async def test_odd_names_in_a_path_are_refused(tried: Tried, route: str, text: str) -> None:
    """Nothing has such a name, but any session can be spoken to that could have it."""
    assume(text and "?" not in text)
    method, _, path = route.partition(" ")
    answer = await tried.ask(method, path.replace("{}", text))
    if "/sessions/" in route and SESSION_KEY.match(text) and text != "..":
        assert answer.status in ((200, 404) if route.startswith("GET") else (200,)), answer
    elif "/leases/" in route and re.fullmatch(r"lse_\d+_\d+", text, re.ASCII):
        assert (answer.status, answer.json["code"]) == (409, "lease_lost")
    else:
        assert answer.status in (400, 404), answer


HEADER_NAMES = st.sampled_from(
    [
        *("idempotency-key", "last-event-id", "x-fairlane-actor", "accept", "authorization"),
        *("cookie", "content-length", "x-forwarded-for", "x-http-method-override", "range"),
        *("if-none-match", "origin", "host", "content-type", "content-encoding", "x-fairlane"),
    ]
)
HEADER_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60)


@MANY
@given(headers=st.dictionaries(HEADER_NAMES, HEADER_TEXT | st.just("9" * 30), max_size=3))
async def test_odd_headers_do_no_harm(tried: Tried, headers: dict[str, str]) -> None:
    if "content-length" in headers:
        headers["content-length"] = "20"
    submitted = await tried.ask("POST", "/tasks", body={"handler": "nobody"}, headers=headers)
    safe = {**headers, "accept": "application/json"}
    followed = await tried.ask("GET", "/events?limit=2", headers=safe)
    changed = await tried.ask("PATCH", "/policy", body={}, headers=headers)
    asked = await tried.ask("GET", "/whoami", headers=headers)
    answers = (submitted, followed, changed, asked)
    if "host" in headers:
        assert {answer.json["code"] for answer in answers} == {"misdirected"}
    elif "origin" in headers:
        assert {answer.json["code"] for answer in answers} == {"forbidden"}
    else:
        assert (asked.status, asked.json["name"]) == (200, "local"), "nobody became somebody else"
        assert followed.status == 200 or "last-event-id" in headers, followed
        of_body = {"content-type", "content-encoding"} & set(headers)
        odd = {"idempotency-key": submitted, "x-fairlane-actor": changed}
        for name, answer in odd.items():
            assert (answer.status == 415) is bool(of_body), (headers, answer)
            assert answer.status < 300 or of_body or name in headers, (headers, answer)


# --- the other database -----------------------------------------------------------------------


@pytest.fixture
async def tried_there(fresh_postgres: str) -> AsyncIterator[Tried]:
    async with Fairlane(fresh_postgres, policy=STILL, drain_seconds=0) as app:
        inside = Inside(app)
        yield Tried(inside)
        inside.close()


@settings(MANY, max_examples=120)
@given(data=st.data())
async def test_postgresql_answers_as_sqlite_does(
    tried: Tried, tried_there: Tried, data: st.DataObject
) -> None:
    """What one database takes, the other may choke on: numbers, odd characters, odd zones."""
    what = data.draw(st.sampled_from(["body", "query", "path"]))
    given: dict[str, Any] = {}
    if what == "body":
        route = data.draw(st.sampled_from([one for one in BODIES if one != "POST /tokens"]))
        method, target = route.split(" ")
        given = {"raw": data.draw(mangled(BODIES[route]) | refilled(BODIES[route]))}
    elif what == "query":
        path = data.draw(st.sampled_from(sorted(READS)))
        name = data.draw(st.sampled_from(READS[path]))
        method, target = "GET", f"{path}?{name}={_quoted(data.draw(ODD_PARAMETERS))}"
    else:
        method, _, path = data.draw(st.sampled_from(NAMED)).partition(" ")
        text = data.draw(SEGMENTS)
        assume(text and "?" not in text)
        target = path.replace("{}", text)
    answers = [await one.ask(method, target, **given) for one in (tried, tried_there)]
    told = [(answer.status, answer.json.get("code")) for answer in answers]
    assert told[0] == told[1], (method, target, given, answers)
