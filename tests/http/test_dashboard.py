"""What the dashboard reads: its own files, searches, brief lists, and the pulse."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.http.stage import HELD, Stage, on_sqlite
from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def found(stage: Stage, **query: Any) -> list[str]:
    answer = await stage.api.get("/tasks", agentId=stage.agent, **query)
    assert answer.status == 200, answer
    return answer.ids


# --- files --------------------------------------------------------------------------------------


@on_sqlite
async def test_browsers_get_the_page_and_programs_the_routes(stage: Stage) -> None:
    page = await stage.api.ask("GET", "/", headers=BROWSER)
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Vary"] == "Accept"
    rules = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert b"/ui/main.js" in page.raw
    routes = await stage.api.get("/")
    assert routes.headers["Content-Type"] == "application/json"
    assert "/tasks" in routes.json["routes"]


@on_sqlite
@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("main.js", "text/javascript; charset=utf-8"),
        ("pages/tasks.js", "text/javascript; charset=utf-8"),
        ("app.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml"),
    ],
)
async def test_a_file_is_sent_once_and_then_known(stage: Stage, file: str, kind: str) -> None:
    first = await stage.api.ask("GET", f"/ui/{file}")
    assert (first.status, first.headers["Content-Type"]) == (200, kind)
    assert first.headers["X-Content-Type-Options"] == "nosniff"
    tag = first.headers["ETag"]
    assert tag.startswith('"')
    again = await stage.api.ask("GET", f"/ui/{file}", headers={"If-None-Match": f'"x", {tag}'})
    assert (again.status, again.raw, again.headers["ETag"]) == (304, b"", tag)
    changed = await stage.api.ask("GET", f"/ui/{file}", headers={"If-None-Match": '"x"'})
    assert (changed.status, changed.raw) == (200, first.raw)


@on_sqlite
@pytest.mark.parametrize("file", ["none.js", "..%2Fapp.py", "pages/..", "pages"])
async def test_only_the_dashboards_own_files_are_there(stage: Stage, file: str) -> None:
    assert (await stage.api.get(f"/ui/{file}")).status == 404


# --- searches -----------------------------------------------------------------------------------


async def test_a_text_is_found_wherever_people_look_for_it(work: Work) -> None:
    session = f"Chat:{work.agent}"
    by_session = await work.echo(lane=HELD, sessionKey=session)
    by_words = await work.echo(handler=None, instruction="Find the Blue Door", lane=HELD)
    broken = {"params": {"ms": "x"}, "retryPolicy": {"maxRetries": 0}}
    by_error = await work.echo(handler="sleep", **broken)
    await work.api.until(by_error, "failed", "parked")
    assert await found(work, text=session.lower()) == [by_session]
    assert await found(work, text="blue%20door") == [by_words]
    assert await found(work, text="must%20be%20a%20whole%20number") == [by_error]
    assert await found(work, text="handler/ECHO") == [by_session]
    assert await found(work, text=by_words[-10:]) == [by_words]
    assert await found(work, text="blue%20door", state="done") == []


@pytest.mark.parametrize("text", ["%25", "_", "!", "%27"])
async def test_signs_of_patterns_are_only_signs(work: Work, text: str) -> None:
    plain = await work.echo(handler=None, instruction="nothing special", lane=HELD)
    sign = {"%25": "%", "%27": "'"}.get(text, text)
    special = await work.echo(handler=None, instruction=f"about {sign} it", lane=HELD)
    ids = await found(work, text=f"about%20{text}%20it")
    assert ids == [special]
    assert plain not in ids


async def test_params_and_metadata_are_searched_and_secrets_are_not(work: Work) -> None:
    secret = f"key-of-{work.agent}"
    config = {"model": secret, "apiKey": secret}
    await work.echo(handler=None, instruction="hello", llmConfig=config, lane=HELD)
    plain = [
        await work.echo(params={"text": secret}, lane=HELD),
        await work.echo(metadata={"text": secret}, lane=HELD),
    ]
    assert sorted(await found(work, text=secret)) == sorted(plain)


@on_sqlite
async def test_a_text_must_not_be_long(stage: Stage) -> None:
    answer = await stage.api.get("/tasks", text="x" * 201)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "'text'" in answer.error


async def test_tasks_are_found_by_what_they_depend_on(work: Work) -> None:
    parent = await work.echo(lane=HELD)
    children = [await work.echo(dependsOn=[parent]) for _ in range(2)]
    await work.echo(dependsOn=[children[0]])
    assert await found(work, dependsOn=parent) == children[::-1]
    assert await found(work, dependsOn="nobody") == []


# --- brief lists --------------------------------------------------------------------------------


async def test_a_brief_list_holds_nothing_long_and_nothing_secret(work: Work) -> None:
    long = {"text": "x" * 5000}
    config = {"model": "m", "apiKey": "k"}
    await work.echo(
        handler=None, instruction="y" * 5000, metadata=long, llmConfig=config, lane=HELD
    )
    await work.echo(params={"n": 1}, lane=HELD)
    answer = await work.api.get("/tasks", agentId=work.agent, brief="true")
    short, cut = answer.json["tasks"]
    assert short["params"] == {"n": 1}
    assert cut["instruction"] == "y" * 200
    assert not {"metadata", "llmConfig", "result", "attemptLog"} & cut.keys()
    whole = await work.api.show(cut["taskId"])
    assert whole["metadata"] == long


# --- the pulse ----------------------------------------------------------------------------------


async def test_the_pulse_tells_that_something_has_happened(work: Work) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{work.api.url}/events/pulse") as stream,
    ):
        assert stream.headers["Content-Type"] == "text/event-stream"
        first = await next_pulse(stream)
        made = await work.batch(*[work.echo_item(lane=HELD) for _ in range(20)])
        seen = [await next_pulse(stream)]
        newest = await newest_event(work, made.ids[-1])
        while seen[-1] < newest:
            seen.append(await next_pulse(stream))
    assert first < seen[0]
    assert len(seen) <= 2, "twenty tasks at once are not twenty pulses"


async def next_pulse(stream: aiohttp.ClientResponse) -> int:
    while True:
        line = await stream.content.readline()
        assert line, "the stream has ended"
        if line.startswith(b'data: {"id":'):
            return int(line.removeprefix(b'data: {"id":').rstrip(b"}\n"))


async def newest_event(work: Work, task_id: str) -> int:
    events = (await work.api.get(f"/tasks/{task_id}/events")).json["events"]
    number: int = events[-1]["id"]
    return number
