"""The policy over HTTP: shown, replaced, patched, checked, compared, rolled back; on each database.

A server of its own, because a policy is everybody's. Each test begins with the defaults.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import apsw
import pytest
import pytest_asyncio

from tests.http.api import eventually
from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.fakes.tab_instance import TabInstance
    from tests.http.api import Answer, Api
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
SCHEDULING_POLICY = {
    "schemaVersion": 1,
    "maxConcurrent": 2,
    "maxAttempts": 2,
    "leaseTtlMs": 300000,
    "backoffBaseMs": 1000,
    "backoffFactor": 2,
    "backoffCapMs": 60000,
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["sqlite", "postgresql"])
async def ruled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    from tests.postgres import new_database

    folder = tmp_path_factory.mktemp("ruled")
    if request.param == "sqlite":
        async with serving(folder, f"sqlite:///{folder / 'f.db'}") as server:
            yield server
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        async with serving(folder, url) as server:
            yield server


@pytest_asyncio.fixture(loop_scope="session")
async def api(ruled: Server) -> Api:
    await put(ruled.api, {})
    return ruled.api


async def put(api: Api, document: Any, query: str = "", **headers: str) -> dict[str, Any]:
    return _done(await api.ask("PUT", f"/policy{query}", document, headers=headers))


async def patch(api: Api, document: Any, query: str = "") -> dict[str, Any]:
    return _done(await api.ask("PATCH", f"/policy{query}", document))


async def check(api: Api, document: Any) -> dict[str, Any]:
    return _done(await api.ask("POST", "/policy/check", document))


def _done(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    shape: dict[str, Any] = answer.json
    return shape


async def show(api: Api, **query: Any) -> dict[str, Any]:
    return _done(await api.get("/policy", **query))


async def version(api: Api) -> int:
    number: int = (await show(api))["version"]
    return number


# --- show -----------------------------------------------------------------------------------------


async def test_before_the_first_change_the_defaults_are_in_force(serve: Serve) -> None:
    server = await serve()
    shown = await show(server.api)
    assert (shown["version"], shown["source"]) == (0, "default")
    assert shown["policy"]["lanes"]["queue"]["maxInflight"] == 1
    assert _done(await server.api.get("/policy/versions")) == {"versions": [], "count": 0}
    nothing = {"from": 0, "to": 0, "changes": []}
    assert _done(await server.api.get("/policy/diff")) == nothing


async def test_a_policy_is_shown_with_who_when_and_why(api: Api) -> None:
    query = "?note=a%20busy%20day%20%C3%A9&author=ada"
    answer = await put(api, {"maxInflight": 7}, query)
    shown = await show(api)
    assert shown["policy"] == answer["policy"]
    assert shown["policy"]["maxInflight"] == 7
    assert MOMENT.fullmatch(shown.pop("createdAt"))
    assert {key: value for key, value in shown.items() if key != "policy"} == {
        "version": answer["version"],
        "source": "put",
        "author": "ada",
        "note": "a busy day é",
    }


async def test_an_older_version_can_be_shown_and_none_that_never_was(api: Api) -> None:
    first = (await put(api, {"maxInflight": 7}))["version"]
    await put(api, {"maxInflight": 8})
    assert (await show(api, version=first))["policy"]["maxInflight"] == 7
    assert (await show(api, version=0))["policy"]["maxInflight"] is None
    answer = await api.get("/policy", version=first + 2)
    assert (answer.status, answer.code) == (404, "not_found")
    assert f"no version {first + 2}" in answer.error
    for wrong in ("-1", "x", "1.5", "3abc"):
        assert (await api.get("/policy", version=wrong)).code == "invalid_request"


async def test_what_is_shown_can_be_set_and_changes_nothing(api: Api) -> None:
    await put(api, {"maxInflight": 7, "agents": {"bot@example.com": {"weight": 2.5}}})
    shown = await show(api)
    for document in (shown["policy"], shown):
        for method in ("PUT", "PATCH"):
            answer = _done(await api.ask(method, "/policy", _without_nulls(method, document)))
            assert (answer["changed"], answer["changes"]) == (False, [])
            assert answer["version"] == shown["version"]
    assert await show(api) == shown


def _without_nulls(method: str, value: Any) -> Any:
    """In a patch a null is the default, which is not what the policy says in every place."""
    if method == "PUT" or not isinstance(value, dict):
        return value
    return {k: _without_nulls(method, v) for k, v in value.items() if v is not None}


# --- replace and patch ----------------------------------------------------------------------------


async def test_a_replacement_says_all_that_is_not_default(api: Api) -> None:
    before = (await put(api, {"maxInflight": 7, "lanes": {"gpu": {"maxInflight": 3}}}))["version"]
    answer = await put(api, {"workerCount": 2})
    assert (answer["version"], answer["changed"]) == (before + 1, True)
    changes = {one["path"]: one for one in answer["changes"]}
    assert changes["maxInflight"] == {"path": "maxInflight", "from": 7, "to": None}
    assert changes["workerCount"] == {"path": "workerCount", "from": 0, "to": 2}
    assert changes["lanes.gpu"]["from"]["maxInflight"] == 3
    assert "to" not in changes["lanes.gpu"]
    assert len(changes) == 3


async def test_a_patch_changes_what_it_names_and_null_is_the_default(api: Api) -> None:
    await put(api, {"maxInflight": 7, "lanes": {"gpu": {}, "main": {"maxInflight": 3}}})
    document = {"lanes": {"gpu": None, "main": {"maxInflight": None, "maxQueueSize": "none"}}}
    answer = await patch(api, document)
    assert answer["changes"][1:] == [
        {"path": "lanes.main.maxInflight", "from": 3, "to": 30},
        {"path": "lanes.main.maxQueueSize", "from": 10_000, "to": None},
    ]
    assert answer["policy"]["maxInflight"] == 7
    assert "gpu" not in answer["policy"]["lanes"]


async def test_a_change_acts_at_once(api: Api) -> None:
    await patch(api, {"lanes": {"main": {"paused": True}}})
    task_id = await api.submit(agentId="a", handler="echo", params={})
    assert (await api.show(task_id))["state"] == "queued"
    await patch(api, {"lanes": {"main": {"paused": None}}})
    assert (await api.end_of(task_id))["state"] == "done"
    await patch(api, {"enabled": False})
    assert (await api.post("/tasks", {"handler": "echo"})).code == "disabled"
    await patch(api, {"enabled": None})


async def test_a_node_runs_as_much_at_once_as_the_policy_says(api: Api) -> None:
    """Also when it already waits for work."""
    await patch(api, {"workerCount": 1})
    slow = {"agentId": "a", "handler": "sleep", "params": {"ms": 60_000}}
    first, second = [await api.submit(**slow) for _ in range(2)]
    await api.until(first, "running")
    assert (await api.show(second))["state"] == "queued"
    await patch(api, {"workerCount": 2})
    await api.until(second, "running")
    for task_id in (first, second):
        await api.cancel(task_id)


async def test_an_unchanged_document_makes_no_version(api: Api) -> None:
    number = (await put(api, {"maxInflight": 7}))["version"]
    assert (await put(api, {"maxInflight": 7}, "?note=again"))["version"] == number
    assert (await patch(api, {}))["changed"] is False
    assert await version(api) == number


async def test_the_header_names_the_author_unless_the_query_does(api: Api) -> None:
    await put(api, {"maxInflight": 7}, **{"X-Fairlane-Actor": "robot"})
    assert (await show(api))["author"] == "robot"
    await put(api, {"maxInflight": 8}, "?author=ada", **{"X-Fairlane-Actor": "robot"})
    assert (await show(api))["author"] == "ada"
    await api.post("/lanes/main/pause", X_Fairlane_Actor="robot")
    shown = await show(api)
    assert (shown["source"], shown["author"]) == ("pause", "robot")


async def test_a_change_may_expect_a_version(api: Api) -> None:
    number = await version(api)
    await patch(api, {"maxInflight": 7}, f"?expectedVersion={number}")
    for method in ("PUT", "PATCH"):
        path = f"/policy?expectedVersion={number}"
        answer = await api.ask(method, path, {"maxInflight": 9})
        assert (answer.status, answer.code) == (409, "conflict")
        assert answer.json["details"] == {"version": number + 1}
    assert (await show(api))["policy"]["maxInflight"] == 7


# --- refusals -------------------------------------------------------------------------------------

WRONG = {
    "colour": "red",
    "maxInflight": 1.5,
    "lanes": {"main": {"maxInflght": 1, "strategy": "lifo"}, "a b": {}},
    "kinds": {"action": {"lane": "nowhere"}},
    "schemaVersion": 2,
    "maxConcurrent": 0,
}
PATHS = (
    "colour",
    "maxInflight ",
    "lanes.main.maxInflght",
    "lanes.main.strategy",
    "lanes.'a b'",
    "kinds.action.lane",
    "schemaVersion",
    "maxConcurrent",
)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
async def test_all_problems_are_reported_at_once_and_nothing_changes(api: Api, method: str) -> None:
    before = await show(api)
    answer = await api.ask(method, "/policy", {"workerCount": 3, **WRONG})
    assert (answer.status, answer.code) == (400, "invalid_policy")
    problems = answer.json["details"]["problems"]
    assert len(problems) == len(PATHS)
    for path in PATHS:
        assert any(path in problem for problem in problems), path
    assert answer.error == "; ".join(problems)
    assert await show(api) == before


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"x"', b"7", b"\xff", b"[" * 100_000, b'{"a": "\\u0000"}']
)
async def test_what_is_not_a_document_is_refused(api: Api, method: str, raw: bytes) -> None:
    before = await show(api)
    answer = await api.ask(method, "/policy", raw=raw)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert await show(api) == before


@pytest.mark.parametrize(
    "query",
    [
        "?expectedVersion=x",
        "?expectedVersion=3abc",
        "?note=" + "x" * 501,
        "?note=a%0Ab",
        "?author=%1B%5B31m",
        "?why=because",
        "?dryRun=true",
    ],
)
async def test_a_wrong_query_is_refused(api: Api, query: str) -> None:
    before = await version(api)
    for method in ("PUT", "PATCH"):
        answer = await api.ask(method, f"/policy{query}", {"maxInflight": 9})
        assert (answer.status, answer.code) == (400, "invalid_request")
    assert await version(api) == before


async def test_a_lane_with_tasks_in_it_cannot_go(api: Api) -> None:
    await patch(api, {"lanes": {"gpu": {"paused": True}}})
    task_id = await api.submit(agentId="a", handler="echo", lane="gpu")
    answer = await api.ask("PUT", "/policy", {})
    assert answer.code == "invalid_policy"
    assert answer.json["details"]["problems"] == [
        "lanes.gpu cannot be removed while 1 task is in the lane; clear it first"
    ]
    check = _done(await api.post("/policy/check", {}))
    assert check["problems"] == answer.json["details"]["problems"]
    await api.cancel(task_id)
    await put(api, {})


# --- check ----------------------------------------------------------------------------------------


async def test_a_check_tells_the_difference_and_changes_nothing(api: Api) -> None:
    number = (await put(api, {"maxInflight": 7}))["version"]
    path = "/policy/check"
    assert _done(await api.post(path, {"workerCount": 3})) == {
        "valid": True,
        "version": number,
        "problems": [],
        "changes": [
            {"path": "maxInflight", "from": 7, "to": None},
            {"path": "workerCount", "from": 0, "to": 3},
        ],
    }
    patched = _done(await api.post(f"{path}?patch=true", {"maxInflight": None}))
    assert patched["changes"] == [{"path": "maxInflight", "from": 7, "to": None}]
    assert (await api.post(f"{path}?patch=yes", {})).code == "invalid_request"
    assert await version(api) == number


async def test_a_check_tells_all_problems(api: Api) -> None:
    for query in ("", "?patch=true"):
        answer = _done(await api.post(f"/policy/check{query}", WRONG))
        assert (answer["valid"], answer["changes"]) == (False, [])
        assert len(answer["problems"]) == len(PATHS)


# --- versions -------------------------------------------------------------------------------------


async def test_versions_are_listed_newest_first_page_by_page(api: Api) -> None:
    for number in range(1, 6):
        await put(api, {"maxInflight": number}, f"?note=n{number}")
    path = "/policy/versions"
    first = _done(await api.get(path, limit=2))
    assert [one["note"] for one in first["versions"]] == ["n5", "n4"]
    assert first["versions"][0]["changes"] == [{"path": "maxInflight", "from": 4, "to": 5}]
    second = _done(await api.get(path, limit=2, cursor=first["nextCursor"]))
    assert [one["note"] for one in second["versions"]] == ["n3", "n2"]
    assert second["versions"][1]["changes"] == [{"path": "maxInflight", "from": 1, "to": 2}]
    everything = _done(await api.get(path))
    numbers = [one["version"] for one in everything["versions"]]
    assert numbers == list(range(numbers[0], 0, -1))
    assert everything["count"] == len(numbers)
    assert "nextCursor" not in everything
    for wrong in ("limit=0", "limit=x", "cursor=0", "cursor=abc", "page=2"):
        assert (await api.ask("GET", f"{path}?{wrong}")).code == "invalid_request"


async def test_two_versions_are_compared(api: Api) -> None:
    first = (await put(api, {"maxInflight": 1}))["version"]
    for number in (2, 3):
        await put(api, {"maxInflight": number, "workerCount": number})
    path = "/policy/diff"
    both = [
        {"path": "maxInflight", "from": 1, "to": 3},
        {"path": "workerCount", "from": 0, "to": 3},
    ]
    wanted = {"from": first, "to": first + 2, "changes": both}
    assert _done(await api.ask("GET", f"{path}?from={first}&to={first + 2}")) == wanted
    assert _done(await api.ask("GET", f"{path}?from={first}")) == wanted
    newest = _done(await api.ask("GET", path))
    assert (newest["from"], newest["to"]) == (first + 1, first + 2)
    backwards = _done(await api.ask("GET", f"{path}?from={first + 2}&to={first}"))
    assert backwards["changes"][0] == {"path": "maxInflight", "from": 3, "to": 1}
    since = _done(await api.ask("GET", f"{path}?from=0&to={first}"))
    assert since["changes"] == [{"path": "maxInflight", "from": None, "to": 1}]
    assert (await api.ask("GET", f"{path}?from={first + 9}")).code == "not_found"
    assert (await api.ask("GET", f"{path}?to=x")).code == "invalid_request"


async def test_going_back_is_a_new_version(api: Api) -> None:
    first = (await put(api, {"maxInflight": 1}))["version"]
    await put(api, {"workerCount": 2, "lanes": {"gpu": {}}})
    answer = _done(await api.post("/policy/rollback?author=ada", {"version": first}))
    assert (answer["version"], answer["changed"]) == (first + 2, True)
    assert answer["policy"] == (await show(api, version=first))["policy"]
    shown = await show(api)
    assert (shown["source"], shown["author"]) == ("rollback", "ada")
    assert shown["note"] == f"rollback to version {first}"
    again = _done(await api.post("/policy/rollback", {"version": first}))
    assert (again["version"], again["changed"]) == (first + 2, False)
    await api.post("/policy/rollback?note=back%20to%20nothing", {"version": 0})
    shown = await show(api)
    assert shown["policy"] == (await show(api, version=0))["policy"]
    assert shown["note"] == "back to nothing"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"version": 10**6}, "not_found"),
        ({"version": -1}, "invalid_request"),
        ({"version": "1"}, "invalid_request"),
        ({"version": 1.5}, "invalid_request"),
        ({"version": True}, "invalid_request"),
        ({"version": None}, "invalid_request"),
        ({}, "invalid_request"),
        ({"verison": 1}, "invalid_request"),
        ([], "invalid_request"),
    ],
)
async def test_nobody_goes_back_to_what_never_was(api: Api, body: Any, code: str) -> None:
    before = await version(api)
    assert (await api.post("/policy/rollback", body)).code == code
    assert await version(api) == before
    if before and code == "not_found":
        path = f"/policy/rollback?expectedVersion={before - 1}"
        assert (await api.post(path, {"version": 0})).code == "conflict"


# --- documents of other programs ------------------------------------------------------------------


async def test_a_scheduling_policy_sets_the_lane_queue(api: Api) -> None:
    await put(api, {"maxInflight": 7})
    answer = await put(api, SCHEDULING_POLICY)
    assert {one["path"].removeprefix("lanes.queue."): one["to"] for one in answer["changes"]} == {
        "maxInflight": 2,
        "maxAttempts": 2,
        "leaseTtlMs": 300_000,
        "backoffMs": 1000,
        "backoffMultiplier": 2.0,
        "maxBackoffMs": 60_000,
    }
    assert answer["policy"]["maxInflight"] == 7
    task = await api.show(await api.submit(agentId="a", handler="nobody", lane="queue"))
    assert (task["lane"], task["maxAttempts"]) == ("queue", 2)
    await api.cancel(task["taskId"])


async def test_of_many_changes_at_once_none_is_lost(api: Api) -> None:
    """Fact 52 of specs/coolworkflow.md."""
    before = await version(api)
    fields = {
        "maxConcurrent": 9,
        "maxAttempts": 8,
        "leaseTtlMs": 7000,
        "backoffBaseMs": 60,
        "backoffFactor": 5.0,
        "backoffCapMs": 4000,
    }
    answers = await asyncio.gather(*(patch(api, {key: fields[key]}) for key in fields))
    assert sorted(answer["version"] for answer in answers) == list(range(before + 1, before + 7))
    lane = (await show(api))["policy"]["lanes"]["queue"]
    names = ("maxInflight", "maxAttempts", "leaseTtlMs", "backoffMs", "backoffMultiplier")
    assert [lane[name] for name in (*names, "maxBackoffMs")] == list(fields.values())


async def test_a_pinchtab_configuration_sets_the_lane_browser(api: Api) -> None:
    answer = await put(api, {"scheduler": {"maxPerAgent": 5, "maxInflight": 0}})
    change = {"path": "lanes.browser.maxPerAgent", "from": 100, "to": 5}
    assert answer["changes"] == [change]


@pytest.mark.parametrize("change", [put, patch, check], ids=["put", "patch", "check"])
async def test_the_other_sections_of_a_pinchtab_file_are_ignored_with_a_note(
    api: Api, change: Any
) -> None:
    document = {"server": {"port": "9867"}, "scheduler": {"maxPerAgent": 55}}
    answer = await change(api, document)
    note = "ignored, because the document is a PinchTab configuration: server"
    assert answer["notes"] == [note]
    assert [(one["path"], one["to"]) for one in answer["changes"]] == [
        ("lanes.browser.maxPerAgent", 55)
    ]
    assert "notes" not in await change(api, {"scheduler": {"maxPerAgent": 55}})


async def test_a_served_pinchtab_file_may_have_other_sections(serve: Serve) -> None:
    document = {"server": {"token": "hush"}, "scheduler": {"maxPerAgent": 55}}
    server = await serve(policy=document)
    browser = (await show(server.api))["policy"]["lanes"]["browser"]
    assert browser["maxPerAgent"] == 55
    told = [line for line in server.log.splitlines() if "ignored" in line]
    assert len(told) == 1
    assert str(server.policy_file) in told[0]
    assert told[0].endswith("PinchTab configuration: server")


async def test_a_watched_file_may_be_of_another_program(
    serve: Serve, instance: TabInstance
) -> None:
    del instance
    server = await serve(policy=SCHEDULING_POLICY)
    lane = (await show(server.api))["policy"]["lanes"]["queue"]
    assert (lane["maxInflight"], lane["maxAttempts"]) == (2, 2)
    server.write_policy({**SCHEDULING_POLICY, "maxConcurrent": 5})

    async def changed() -> bool | None:
        shown = await show(server.api)
        return (shown["policy"]["lanes"]["queue"]["maxInflight"] == 5) or None

    await eventually(changed)
    shown = await show(server.api)
    assert (shown["version"], shown["source"]) == (2, "config")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "null",
        "[" * 50_000,
        '{"maxConcurrent": 0, "maxAttempts": 5}',
        '{"schemaVersion": 7, "maxAttempts": 5}',
        '{"version": 1, "policy": {"lanes": {"main": {"maxInflight": "5"}}}}',
    ],
    ids=range(6),
)
async def test_a_watched_file_that_cannot_be_read_changes_nothing(
    reloaded: Server, wrong: str
) -> None:
    before, said = await show(reloaded.api), len(reloaded.log)
    reloaded.write_policy(wrong)

    async def complained() -> bool | None:
        return "the previous policy stays in effect" in reloaded.log[said:] or None

    await eventually(complained)
    assert await show(reloaded.api) == before


# --- events ---------------------------------------------------------------------------------------


async def test_an_event_names_the_version_that_has_decided_it(api: Api) -> None:
    number = (await patch(api, {"maxInflight": 5, "lanes": {"main": {"paused": True}}}))["version"]
    task_id = await api.submit(agentId="a", handler="echo")
    await patch(api, {"lanes": {"main": {"paused": False}}})
    await api.end_of(task_id)
    events = (await api.get(f"/tasks/{task_id}/events")).json["events"]
    assert [(one["type"], one["policyVersion"]) for one in events] == [
        ("task.created", number),
        ("task.started", number + 1),
        ("task.completed", number + 1),
    ]


# --- a policy that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize("document", ["{", '{"lanes": 5}'])
async def test_a_server_does_not_begin_with_a_policy_it_cannot_read(
    serve: Serve, tmp_path: Path, document: str
) -> None:
    server = await serve()
    await put(server.api, {"maxInflight": 3})
    await server.stop()
    _keep(tmp_path / "own.db", document)
    with pytest.raises(AssertionError, match="version 2 of the policy") as refusal:
        await serve()
    assert "Traceback" not in str(refusal.value)


@pytest.mark.parametrize("document", ["{", '{"lanes": 5}'])
async def test_a_server_does_nothing_by_a_policy_it_cannot_read(
    serve: Serve, tmp_path: Path, document: str
) -> None:
    server = await serve()
    api = server.api
    await put(api, {"maxInflight": 3})
    _keep(tmp_path / "own.db", document)
    for asked in (
        await api.post("/tasks", {"handler": "echo"}),
        await api.ask("PUT", "/policy", {}),
        await api.post("/policy/rollback", {"version": 1}),
        await api.get("/policy"),
    ):
        assert (asked.status, asked.code) == (500, "store_mismatch")
        assert "version 2 of the policy" in asked.error
    versions = _done(await api.get("/policy/versions"))["versions"]
    assert [(one["version"], one["source"]) for one in versions] == [(2, "test"), (1, "put")]
    assert versions[0]["changes"][0]["to"] == document
    assert (await show(api, version=1))["policy"]["maxInflight"] == 3
    _keep(tmp_path / "own.db", '{"maxInflight": 4}')
    assert (await show(api))["policy"]["maxInflight"] == 4
    task_id = await api.submit(agentId="a", handler="echo")
    assert (await api.end_of(task_id))["state"] == "done"
    refused = await api.post("/policy/rollback", {"version": 2})
    assert refused.code in ("invalid_policy", "store_mismatch")
    assert await version(api) == 3


def _keep(file: Path, document: str) -> None:
    """Put the next version into the store as another program would, whatever it holds."""
    connection = apsw.Connection(str(file))
    connection.set_busy_timeout(5000)
    with connection:
        connection.execute("UPDATE scheduler SET policy_version = policy_version + 1")
        connection.execute(
            "INSERT INTO policy (version, document, source, created_at)"
            " SELECT policy_version, ?, 'test', 0 FROM scheduler",
            (document,),
        )
    connection.close()


async def test_a_removed_resource_that_tasks_need_is_named_and_they_wait(api: Api) -> None:
    limits = [{"unit": "mb", "amount": 8}]
    pool = {"limits": limits, "by": "key"}
    await put(api, {"resources": {"gpu": {"limits": limits}, "disk": pool, "unused": pool}})
    needs = {"gpu": {"mb": 1}, "disk/a": {"mb": 1}}
    assert (await api.post("/resources/disk/close", {"key": "a"})).status == 200
    made = [
        (await api.post("/tasks", {"handler": "nobody", "needs": needs})).json for _ in range(2)
    ]
    await api.post("/tasks", {"handler": "nobody", "needs": {"gpu": {"mb": 1}}})
    patch = {"resources": {"disk": None, "unused": None}}
    note = (
        "resources.disk is removed, but 2 queued tasks need it: they wait until the policy "
        "declares it again"
    )
    checked = await api.post("/policy/check?patch=true", patch)
    assert checked.json["notes"] == [note]
    changed = await api.ask("PATCH", "/policy", patch)
    assert changed.json["notes"] == [note]
    assert "notes" not in (await api.ask("PATCH", "/policy", patch)).json
    why = (await api.get(f"/tasks/{made[0]['taskId']}/why")).json
    assert (why["gate"], why["reason"]) == ("resource", "the policy no longer has disk/a")
    for task in made:
        await api.post(f"/tasks/{task['taskId']}/cancel")
