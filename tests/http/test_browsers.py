"""The whole server behind its door: every kind of answer is kept from pages of other sites.

What the door itself decides is tried in `tests/hostile`, on a server of its own.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.http.api import Answer
from tests.http.conftest import Serve
from tests.http.stage import HELD, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
KINDS = [
    ("GET", "/tasks"),
    ("GET", "/tasks/nobody"),
    ("GET", "/nothing"),
    ("PUT", "/tasks"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/metrics"),
    ("GET", "/health/live"),
    ("POST", "/tasks"),
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("GET", "/ui/nothing.js"),
    ("GET", "/"),
]


async def ask(stage: Stage, method: str, path: str, **headers: str) -> Answer:
    body = PING if (method, path) == ("POST", "/mcp") else None
    if (method, path) == ("POST", "/tasks"):
        body = stage.task(lane=HELD)
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    accepted = {"Accept": "application/json, text/event-stream"} if path == "/mcp" else {}
    return await stage.api.ask(method, path, body, headers={**accepted, **named})


@on_sqlite
@pytest.mark.parametrize(("method", "path"), KINDS)
async def test_every_kind_of_answer_has_the_headers(stage: Stage, method: str, path: str) -> None:
    answer = await ask(stage, method, path)
    assert answer.status != 500
    for name, text in ALWAYS.items():
        assert answer.headers[name] == text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Cache-Control"] in ("no-store", "no-cache")
    assert answer.headers["X-Request-Id"]
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@on_sqlite
@pytest.mark.parametrize(("method", "path"), KINDS)
async def test_other_names_and_other_origins_get_nothing(
    stage: Stage, method: str, path: str
) -> None:
    assert (await ask(stage, method, path, Host="rebound.example")).status == 421
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
    ):
        assert (await ask(stage, method, path, **headers)).status == 403
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0
    ours = {"Origin": stage.api.url, "Sec_Fetch_Site": "same-origin"}
    assert (await ask(stage, method, path, **ours)).status not in (403, 421)


@on_sqlite
async def test_a_stream_is_not_for_other_origins(stage: Stage) -> None:
    events = {"Accept": "text/event-stream"}
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await stage.api.ask("GET", "/events", headers={**events, **headers})
        assert answer.status == 403
    async with stage.api._session.get(f"{stage.api.url}/events", headers=events) as streaming:
        assert streaming.status == 200
        assert streaming.headers["Cache-Control"] == "no-store"
        assert streaming.headers["X-Content-Type-Options"] == "nosniff"
        async with asyncio.timeout(10):
            assert await streaming.content.readline()


@on_sqlite
async def test_the_page_has_the_strict_policy(stage: Stage) -> None:
    page = await stage.api.ask("GET", "/", headers={"Accept": "text/html"})
    assert page.headers["Content-Type"].startswith("text/html")
    assert page.headers["Content-Security-Policy"] == PAGE_POLICY


@on_sqlite
async def test_a_form_of_another_site_changes_nothing(stage: Stage) -> None:
    task_id = await stage.submit(lane=HELD)
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")
    for kind in kinds:
        form = {"Content-Type": kind}
        answer = await stage.api.ask("POST", f"/tasks/{task_id}/cancel", raw=b"", headers=form)
        assert answer.status == 415
        answer = await stage.api.ask(
            "POST", "/tasks", raw=b'{"agentId":"a","action":"b","x":"="}', headers=form
        )
        assert answer.status == 415
    assert (await stage.api.show(task_id))["state"] == "queued"


async def test_an_operator_adds_a_name(serve: Serve) -> None:
    environment = {"FAIRLANE_ALLOWED_HOSTS": "fairlane.example"}
    server = await serve(environment=environment)
    for host, status in (("fairlane.example", 200), ("other.example", 421)):
        answer = await server.api.ask("GET", "/tasks", headers={"Host": host})
        assert answer.status == status
    answer = await server.api.ask("POST", "/mcp", PING, headers={"Host": "fairlane.example"})
    assert answer.status != 421


@on_sqlite
async def test_mcp_has_the_same_limits(stage: Stage) -> None:
    accepted = {"Accept": "application/json, text/event-stream"}
    for raw in (
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
        b"[" * 100_000,
        b"{",
        b"",
    ):
        answer = await stage.api.ask("POST", "/mcp", raw=raw, headers=accepted)
        assert (answer.status, answer.code) == (400, "invalid_request"), answer
    large = b'{"jsonrpc":"2.0","id":1,"method":"ping","x":"' + b"x" * 1_100_000 + b'"}'
    assert (await stage.api.ask("POST", "/mcp", raw=large, headers=accepted)).status == 413
    form = {**accepted, "Content-Type": "text/plain"}
    assert (await stage.api.ask("POST", "/mcp", PING, headers=form)).status == 415


@on_sqlite
async def test_openapi_is_served(stage: Stage) -> None:
    answer = await stage.api.get("/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["openapi"].startswith("3.1")
    assert answer.json["paths"]["/tasks"]["post"]["requestBody"]["required"] is True


@on_sqlite
async def test_the_operations_are_a_page_to_read(stage: Stage) -> None:
    answer = await stage.api.get("/docs")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    page = answer.raw.decode()
    described = (await stage.api.get("/openapi.json")).json["paths"]
    for path, methods in described.items():
        if path.startswith(("/ui/", "/approve/", "/docs")):
            continue
        assert all(f"<code>{method.upper()} {path}</code>" in page for method in methods)
    assert "<code>dependsOn</code> (body)" in page
    assert "<script" not in page
