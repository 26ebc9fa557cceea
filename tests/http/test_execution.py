"""How a task becomes `POST /tabs/{tabId}/action`, and what its answer makes of the task.

Facts of specs/pinchtab.md section 17: 10, 11, 12, 26, 27, 52, 66, 67, 68, 77, 113, 114, 115;
weaknesses of section 18: 1 (the executor authenticates), 8 (bodies beyond 8 KiB), 9 (a success
that is none, redirects), 10 (`params.selector`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.tab_instance import TabInstance
from tests.fakes.waiting import steadily, within
from tests.http.api import Api
from tests.http.stage import ONE, Stage, on_sqlite

if TYPE_CHECKING:
    from tests.http.conftest import Serve

pytestmark = pytest.mark.asyncio(loop_scope="session")


# --- the request --------------------------------------------------------------------------------


async def test_the_action_is_posted_to_its_tab_as_the_immediate_route_expects(stage: Stage) -> None:
    tab = stage.tab()
    task = await stage.run(action="type", tabId=tab, ref="e12", params={"text": "Alan Turing"})
    (entry,) = stage.actions()
    assert (entry.method, entry.path) == ("POST", f"/tabs/{tab}/action")
    assert entry.body == {"kind": "type", "ref": "e12", "text": "Alan Turing"}
    assert entry.headers["content-type"] == "application/json"
    assert entry.headers["x-pinchtab-source"] == "scheduler"
    assert entry.headers["x-pinchtab-tab-id"] == tab
    assert entry.headers["x-agent-id"] == stage.agent
    assert "authorization" not in entry.headers
    assert task["state"] == "done"


async def test_what_a_task_does_not_have_is_not_sent(stage: Stage) -> None:
    await stage.run(action="press")
    await stage.run(action="press", ref="", selector="", params={})
    assert [entry.body for entry in stage.actions()] == [{"kind": "press"}] * 2


async def test_every_key_of_params_goes_to_the_top_level(stage: Stage) -> None:
    params = {"x": 1, "deep": {"a": [1, {"b": None}]}, "text": 'ü\n"', "waitNav": False, "f": 0.5}
    await stage.run(ref="e1", selector="#a", params=params)
    (entry,) = stage.actions()
    assert entry.body == {"kind": "click", "ref": "e1", "selector": "#a", **params}


async def test_reserved_keys_of_params_never_override(stage: Stage) -> None:
    params = {"kind": "evil", "ref": "evil", "tabId": "evil", "text": "good"}
    await stage.run(ref="e1", params=params)
    await stage.run(params=params)
    with_ref, without = stage.actions()
    assert with_ref.body == {"kind": "click", "ref": "e1", "text": "good"}
    assert without.body == {"kind": "click", "text": "good"}


async def test_the_selector_of_params_is_used_when_the_task_has_none(stage: Stage) -> None:
    await stage.run(params={"selector": "#from-params"})
    await stage.run(selector="#own", params={"selector": "#from-params"})
    assert [entry.body["selector"] for entry in stage.actions()] == ["#from-params", "#own"]


@pytest.mark.parametrize("size", [9_000, 100_000, 1_000_000], ids=["9 KB", "100 KB", "1 MB"])
async def test_a_large_body_arrives_whole(stage: Stage, size: int) -> None:
    texts = ["0123456789" * (size // 50)] * 5
    task = await stage.run(params={"texts": texts})
    assert task["state"] == "done"
    assert stage.actions()[0].body["texts"] == texts


@on_sqlite
@pytest.mark.parametrize("action", ["click", "mouse-move", "keyboard-inserttext", "snapshot"])
async def test_any_kind_of_action_is_passed_on(stage: Stage, action: str) -> None:
    assert (await stage.run(action=action))["state"] == "done"
    assert stage.actions()[0].body["kind"] == action


async def test_an_action_is_carried_out_once(stage: Stage) -> None:
    tasks = await stage.api.ended(*[await stage.submit(params={"n": n}) for n in range(20)])
    assert {task["state"] for task in tasks} == {"done"}
    assert sorted(stage.numbers()) == list(range(20))
    assert all(task["attempts"] == 1 for task in tasks)


# --- the answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            {"success": True, "result": {"clicked": True}},
            {"success": True, "result": {"clicked": True}},
        ),
        ([1, 2], [1, 2]),
        ("plain text", "plain text"),
        (17, 17),
        (False, False),
        ({"success": None}, {"success": None}),
    ],
    ids=["object", "list", "text", "number", "false", "odd success"],
)
async def test_the_answer_becomes_the_result(stage: Stage, body: Any, result: Any) -> None:
    task = await stage.run(fake={"status": 200, "body": body})
    assert (task["state"], task["result"]) == ("done", result)


@on_sqlite
@pytest.mark.parametrize("status", [200, 204])
async def test_an_empty_answer_is_done_without_a_result(stage: Stage, status: int) -> None:
    task = await stage.run(fake={"status": status})
    assert task["state"] == "done"
    assert not task.get("result")


@on_sqlite
@pytest.mark.parametrize("status", [400, 404, 409, 423, 429, 500, 502, 503])
async def test_an_error_status_fails_the_task_with_the_answer_as_its_error(
    stage: Stage, status: int
) -> None:
    body = {"code": "action_failed", "error": "no such ref"}
    task = await stage.run(fake={"status": status, "body": body})
    assert task["state"] == "failed"
    assert task["error"].startswith(f"executor returned {status}: ")
    assert "no such ref" in task["error"]
    assert "result" not in task
    assert len(stage.actions()) == 1


async def test_success_false_is_a_failure_under_any_status(stage: Stage) -> None:
    task = await stage.run(fake={"status": 200, "body": {"success": False, "error": "no luck"}})
    assert task["state"] == "failed"
    assert "no luck" in task["error"]


async def test_a_redirect_is_a_failure_and_is_not_followed(stage: Stage) -> None:
    task = await stage.run(fake={"status": 302, "headers": {"Location": "/elsewhere"}})
    assert task["state"] == "failed"
    assert task["error"].startswith("executor returned 302")
    assert stage.instance.seen("/elsewhere") == []


@on_sqlite
@pytest.mark.parametrize("how", ["drop", "breakOff"])
async def test_a_broken_connection_fails_the_task_and_is_not_tried_again(
    stage: Stage, how: str
) -> None:
    task = await stage.run(fake={how: True})
    assert task["state"] == "failed"
    assert task["error"].startswith("executor request failed")
    assert len(stage.actions()) == 1


async def test_a_huge_answer_does_not_end_up_in_the_error(stage: Stage) -> None:
    task = await stage.run(fake={"status": 500, "body": "x" * 250_000})
    assert task["state"] == "failed"
    assert len(task["error"]) < 5_000


async def test_control_characters_of_an_answer_do_not_reach_the_error(stage: Stage) -> None:
    answer = stage.instance.actions
    answer.status, answer.body = 500, b"a\x1b[31mred\r\nline\x00end"
    try:
        task = await stage.run()
    finally:
        answer.status = answer.body = None
    assert task["state"] == "failed"
    assert task["error"].isprintable(), repr(task["error"])


async def test_an_answer_that_is_too_large_is_a_failure(stage: Stage) -> None:
    size = 9 * 1024 * 1024
    task = await stage.run(fake={"status": 200, "body": {"data": ""}, "headers": {}})
    assert task["state"] == "done"
    stage.instance.actions.status, stage.instance.actions.body = 200, b"x" * size
    try:
        task = await stage.run()
    finally:
        stage.instance.actions.status = stage.instance.actions.body = None
    assert task["state"] == "failed"
    assert len(task["error"]) < 1000


@pytest.mark.parametrize(
    "body",
    [b'{"a": "\\u0000"}', b'"\\u0000"', b"\x00\x01\x02", b"\xff\xfe", b'{"n": 1e999}'],
    ids=["NUL in text", "NUL alone", "NUL bytes", "no UTF-8", "huge number"],
)
async def test_whatever_an_instance_answers_the_task_comes_to_an_end(
    stage: Stage, body: bytes
) -> None:
    stage.instance.actions.status, stage.instance.actions.body = 200, body
    try:
        task = await stage.run()
    finally:
        stage.instance.actions.status = stage.instance.actions.body = None
    assert task["state"] in {"done", "failed"}


async def test_a_deeply_nested_answer_does_not_spoil_the_list_for_everybody(stage: Stage) -> None:
    stage.instance.actions.status = 200
    try:
        for depth in (50, 500, 950, 990, 5_000, 100_000):
            stage.instance.actions.body = b"[" * depth + b"]" * depth
            assert (await stage.run())["state"] == "done", depth
        listed = await stage.api.get("/tasks", agentId=stage.agent)
        assert listed.json["count"] == 6
    finally:
        stage.instance.actions.status = stage.instance.actions.body = None


async def test_a_large_number_in_an_answer_stays_exact(stage: Stage) -> None:
    stage.instance.actions.status = 200
    stage.instance.actions.body = b'{"id": 12345678901234567890123, "f": 0.1}'
    try:
        task_id = await stage.submit()
        task = await stage.api.end_of(task_id)
    finally:
        stage.instance.actions.status = stage.instance.actions.body = None
    assert task["state"] == "done", task
    assert task["result"] == {"id": 12345678901234567890123, "f": 0.1}


async def test_states_and_moments_follow_a_task_through_its_life(stage: Stage) -> None:
    await stage.block(ONE)
    task_id = await stage.submit(lane=ONE, fake={"hang": True})
    queued = await stage.api.show(task_id)
    assert (queued["state"], "startedAt" in queued) == ("queued", False)
    stage.instance.release()
    running = await stage.api.until(task_id, "running")
    assert running["startedAt"] >= queued["createdAt"]
    assert "completedAt" not in running
    await stage.arrived(2)
    stage.instance.release()
    done = await stage.api.end_of(task_id)
    assert (done["state"], done["startedAt"]) == ("done", running["startedAt"])
    assert done["completedAt"] >= done["startedAt"]
    assert not {"leaseId", "leaseExpiresAt"} & set(done)


# --- several instances --------------------------------------------------------------------------


async def run(api: Api, **fields: Any) -> dict[str, Any]:
    return await api.end_of(await api.submit(**{"agentId": "a", "action": "click", **fields}))


async def test_tasks_go_to_the_instance_that_owns_the_tab_with_its_token(serve: Serve) -> None:
    async with TabInstance(["left"]) as left, TabInstance(["right"], "s3cret") as right:
        server = await serve(
            instances=[left.url, f"{right.url}#token=env:RIGHT_TOKEN"],
            environment={"RIGHT_TOKEN": "s3cret"},
        )
        for tab, instance in (("left", left), ("right", right)):
            assert (await run(server.api, tabId=tab))["state"] == "done"
            (entry,) = instance.seen("action")
            assert entry.tab == tab
        assert left.seen("action")[0].headers.get("authorization") is None
        assert right.seen("action")[0].headers["authorization"] == "Bearer s3cret"
        assert right.seen("tabs")[0].headers["authorization"] == "Bearer s3cret"

        # A tab that has moved is found again.
        left.move("left", right)
        assert (await run(server.api, tabId="left"))["state"] == "done"
        assert right.seen("action")[-1].tab == "left"

        # A tab that nobody has is a failure that names it.
        task = await run(server.api, tabId="nowhere")
        assert task["state"] == "failed"
        assert task["error"].startswith('could not resolve tab "nowhere"')

        # An instance that hangs does not hold up the tabs of the other one.
        left.listing.hang = True
        names = (f"new-{number}" for number in itertools.count())

        async def find_beside() -> None:
            right.tabs.append(next(names))
            with within(2):
                assert (await run(server.api, tabId=right.tabs[-1]))["state"] == "done"

        await steadily(find_beside)
        left.release()
        assert "s3cret" not in server.log


async def test_a_wrong_token_and_no_instance_are_failures_that_say_so(serve: Serve) -> None:
    async with TabInstance(["tab"], "right-token") as instance:
        server = await serve(
            instances=[f"{instance.url}#token=env:TOKEN"], environment={"TOKEN": "wrong-token"}
        )
        task = await run(server.api, tabId="tab")
        assert task["error"].startswith("executor returned 401")
        assert "wrong-token" not in str(task)


async def test_without_any_instance_a_task_fails_with_what_to_do(serve: Serve) -> None:
    server = await serve(instances=[])
    task = await run(server.api, tabId="tab")
    assert task["state"] == "failed"
    assert "--instance" in task["error"]


async def test_an_instance_that_is_down_fails_the_task_and_only_that(serve: Serve) -> None:
    async with TabInstance(["tab"]) as instance:
        server = await serve(instances=[instance.url])
        assert (await run(server.api, tabId="tab"))["state"] == "done"
    task = await run(server.api, tabId="tab")
    assert task["state"] == "failed"
    assert task["error"].startswith("executor request failed")
    assert (await server.api.get("/health/ready")).status == 200
