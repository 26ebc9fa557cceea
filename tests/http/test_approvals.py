"""Approvals over HTTP: decisions and their refusals, and the page behind a one-time link."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.http.api import Answer
from tests.http.stage import Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

FORM = {"properties": {"amount": {"type": "integer", "minimum": 1}}, "required": ["amount"]}
FIELDS = {"Content-Type": "application/x-www-form-urlencoded"}


async def asked(stage: Stage, **question: Any) -> dict[str, Any]:
    """Submit a task that asks; its approval."""
    body = {"handler": "echo", "agentId": stage.agent, "approval": {"title": "Go?", **question}}
    task = await stage.api.submit(**body)
    (found,) = (await stage.api.get("/approvals", taskId=task)).json["approvals"]
    one: dict[str, Any] = found
    return one


async def decide(
    stage: Stage, one: dict[str, Any], decision: str = "approve", **more: Any
) -> Answer:
    body = {"decision": decision, "hash": one["hash"], **more}
    return await stage.api.post(f"/approvals/{one['id']}/decide", body)


async def link(stage: Stage, one: dict[str, Any]) -> str:
    made = await stage.api.post(f"/approvals/{one['id']}/link", {"baseUrl": "https://a.example/"})
    assert made.status == 201, made
    url: str = made.json["url"]
    assert url.startswith("https://a.example/approve/")
    return url.removeprefix("https://a.example")


async def send(stage: Stage, path: str, fields: dict[str, str], **headers: str) -> Answer:
    given = {**FIELDS, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await stage.api.ask("POST", path, raw=urlencode(fields).encode(), headers=given)


async def test_a_task_waits_for_a_person_and_then_runs(stage: Stage) -> None:
    one = await asked(stage, form=FORM)
    assert (await stage.api.show(one["taskId"]))["gate"] == "approval"
    why = (await stage.api.get(f"/tasks/{one['taskId']}/why")).json
    assert (why["gate"], why["waitingFor"]) == ("approval", [one["id"]])
    wrong = await decide(stage, one, answer={"amount": 0, "more": 1})
    assert (wrong.status, wrong.code) == (400, "invalid_request")
    assert len(wrong.json["details"]["problems"]) == 2
    changed = await decide(stage, {**one, "hash": "0" * 64}, answer={"amount": 1})
    assert (changed.status, changed.code) == (409, "approval_changed")
    assert (await decide(stage, one, answer={"amount": 1})).status == 200
    assert (await decide(stage, one, answer={"amount": 1})).status == 200, "a second click"
    other = await decide(stage, one, "reject")
    assert (other.status, other.code) == (409, "approval_closed")
    done = await stage.api.end_of(one["taskId"])
    assert (done["state"], done["approval"]["answer"]) == ("done", {"amount": 1})
    events = (await stage.api.get(f"/tasks/{one['taskId']}/events")).json["events"]
    told = [(event["type"], event["approvalId"]) for event in events if "approvalId" in event]
    assert told == [("approval.opened", one["id"]), ("approval.decided", one["id"])]


async def test_lists_are_filtered_and_unknown_things_are_refused(stage: Stage) -> None:
    one = await asked(stage)
    page = (await stage.api.get("/approvals", state="open", limit=1)).json
    assert page["open"] >= 1
    assert (await stage.api.get("/approvals", state="odd")).status == 400
    assert (await stage.api.get("/approvals/apr_none")).status == 404
    assert (await stage.api.post("/approvals/apr_none/link", {})).status == 404
    bad = await stage.api.post(f"/approvals/{one['id']}/link", {"baseUrl": "javascript:x"})
    assert bad.status == 400
    assert (await decide(stage, one, "reject", comment="no")).json["state"] == "rejected"
    task = await stage.api.show(one["taskId"])
    assert (task["state"], task["error"]) == (
        "cancelled",
        "approval_rejected: rejected by local: no",
    )


async def test_a_link_shows_and_decides_once(stage: Stage) -> None:
    one = await asked(stage, form=FORM, detail="<script>alert(1)</script>")
    path = await link(stage, one)
    for _ in range(2):
        page = await stage.api.ask("GET", path)
        assert page.status == 200
        assert b"<script>" not in page.raw
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "form-action 'self'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-store"
    fields = {"decision": "approve", "hash": one["hash"], "f.amount": "x", "comment": ""}
    wrong = await send(stage, path, fields)
    assert wrong.status == 400
    assert b"answer.amount" in wrong.raw
    stale = await send(stage, path, {**fields, "f.amount": "3", "hash": "0" * 64})
    assert stale.status == 409
    assert (await send(stage, path, {**fields, "f.amount": "3"})).status == 200
    shown = (await stage.api.get(f"/approvals/{one['id']}")).json
    assert (shown["state"], shown["answer"]) == ("approved", {"amount": 3})
    assert (await send(stage, path, {**fields, "f.amount": "3"})).status == 404
    assert (await stage.api.ask("GET", path)).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
async def test_a_form_of_another_site_decides_nothing(
    stage: Stage, headers: dict[str, str]
) -> None:
    one = await asked(stage)
    path = await link(stage, one)
    fields = {"decision": "approve", "hash": one["hash"]}
    assert (await send(stage, path, fields, **headers)).status == 403
    assert (await stage.api.get(f"/approvals/{one['id']}")).json["state"] == "open"


async def test_a_person_may_come_to_the_page_from_an_e_mail(stage: Stage) -> None:
    path = await link(stage, await asked(stage))
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    page = await stage.api.ask("GET", path, headers={**visit, "Sec-Fetch-Dest": "document"})
    assert page.status == 200
    framed = await stage.api.ask("GET", path, headers={**visit, "Sec-Fetch-Dest": "iframe"})
    assert framed.status == 403


async def test_odd_forms_and_links_are_refused(stage: Stage) -> None:
    one = await asked(stage)
    path = await link(stage, one)
    for raw in (b"\xff\xfe", b"decision=maybe", b"decision=approve&hash=%00", b"a=" * 500):
        answer = await stage.api.ask("POST", path, raw=raw, headers=FIELDS)
        assert answer.status in (400, 409), answer
    for odd in ("/approve/x", f"{path}x", "/approve/..%2f", "/approve/%00", path.split(".")[0]):
        assert (await stage.api.ask("GET", odd)).status in (400, 404)
    form = await stage.api.ask("POST", "/tasks", raw=b"a=b", headers=FIELDS)
    assert form.status == 415, "only the page behind a link takes forms"
    assert (await stage.api.get(f"/approvals/{one['id']}")).json["state"] == "open"


async def test_an_endpoint_that_subscribes_hears_of_questions_and_decisions(stage: Stage) -> None:
    hook = stage.hooks.new(200, 200, 200)
    events = ["approval.opened", "approval.decided"]
    body = {"url": hook.url, "agentId": stage.agent, "events": events}
    made = await stage.api.post("/webhooks", body)
    assert (made.status, made.json["events"]) == (201, events)
    odd = await stage.api.post("/webhooks", {"url": f"{hook.url}/x", "events": ["task.done"]})
    assert (odd.status, odd.code) == (400, "invalid_request")
    one = await asked(stage)
    await decide(stage, one, "reject")
    told = [delivery.task for delivery in await hook.until(2)]
    assert sorted(body["event"] for body in told) == sorted(events)
    assert {body["id"] for body in told} == {one["id"]}
