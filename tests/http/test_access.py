"""Tokens over HTTP: the first one, revoking, logins, limits, and the data of one agent."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlane import Worker
from tests.fakes.waiting import WAIT_SECONDS, steadily, within
from tests.http.access import ALICE, ALL, BOB, Callers, calling, guarded, id_of
from tests.http.api import eventually
from tests.http.conftest import Serve
from tests.http.server import COMMAND, serving
from tests.postgres import new_database

pytestmark = pytest.mark.asyncio(loop_scope="session")

MAKE = [str(COMMAND), "token", "create"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def callers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Callers]:
    folder = tmp_path_factory.mktemp("guarded")
    async with guarded(folder, f"sqlite:///{folder / 'fairlane.db'}") as callers:
        yield callers


# -------------------------------------------------------------------- the first token


async def test_with_no_token_made_who_is_on_this_machine_is_trusted(serve: Serve) -> None:
    server = await serve()
    who = (await server.api.get("/whoami")).json
    assert who == {"name": "local", "agent": None, "scopes": sorted(ALL), "tokensRequired": False}
    answer = await server.api.ask("GET", "/tasks", headers={"Authorization": "Bearer anything"})
    assert answer.status == 200


async def test_the_first_token_counts_at_once_also_when_it_is_made_on_the_store(
    serve: Serve, tmp_path: Path
) -> None:
    server = await serve()
    assert (await server.api.get("/tasks")).status == 200
    made = await asyncio.to_thread(
        subprocess.run,
        [*MAKE, "--name", "root", "--scope", "all", "--store", f"sqlite:///{tmp_path / 'own.db'}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (await server.api.get("/tasks")).status == 401
    headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
    assert (await server.api.ask("GET", "/tasks", headers=headers)).status == 200
    assert (await server.api.get("/health/live")).status == 200


async def test_where_others_can_reach_it_a_server_does_not_start_without_a_token(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'f.db'}"
    command = [str(COMMAND), "serve", "--store", store, "--port", "0", "--host", "0.0.0.0"]
    refused = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "fairlane token create" in refused.stderr
    assert refused.stdout == ""


async def test_every_caller_needs_a_token_if_other_machines_can_reach_the_server(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'f.db'}"
    make = [*MAKE, "--name", "n", "--store", store]
    made = await asyncio.to_thread(subprocess.run, make, capture_output=True, text=True, check=True)
    token = made.stdout.strip()
    environment = {"FAIRLANE_HOST": "0.0.0.0"}
    async with serving(tmp_path / "server", store, environment=environment) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        server.api.url = url
        assert (await server.api.get("/tasks")).status == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert (await server.api.ask("GET", "/tasks", headers=headers)).status == 200


# -------------------------------------------------------------------- revoking


async def test_a_revoked_token_is_worth_nothing_from_the_next_request_on(
    callers: Callers,
) -> None:
    for _ in range(20):
        token = await callers.new(scopes=["read"])
        assert (await callers.ask("GET", "/tasks", token=token)).status == 200
        gone = await callers.ask("DELETE", f"/tokens/{id_of(token)}", token=callers.root)
        assert gone.json["revoked"] is True
        assert (await callers.ask("GET", "/tasks", token=token)).status == 401


async def test_a_stream_ends_with_its_token(callers: Callers) -> None:
    token = await callers.new(scopes=["read", "submit"])
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    async with callers._session.get(f"{callers.url}/events", headers=headers) as stream:
        assert stream.status == 200
        await stream.content.readany()
        await callers.ask("DELETE", f"/tokens/{id_of(token)}", token=callers.root)
        await callers.ask("POST", "/tasks", {"handler": "nobody"}, token=callers.root)
        assert await asyncio.wait_for(stream.content.read(), WAIT_SECONDS) == b""


@pytest.mark.parametrize("way", ["wait", "lease", "tool"])
async def test_a_waiter_gets_no_data_once_its_token_is_revoked(callers: Callers, way: str) -> None:
    name = f"later-{way}"
    token = await callers.new(scopes=["read", "lease"])
    made = await callers.ask("POST", "/tasks", {"handler": f"nobody-{way}"}, token=callers.root)
    task = made.json["taskId"]
    lease = {"worker": name, "handlers": [name], "waitMs": 60_000}
    arguments = {"taskId": task, "waitMs": 20_000}
    tool = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    tool["params"] = {"name": "wait", "arguments": arguments}
    asked: dict[str, tuple[str, str, Any]] = {
        "wait": ("GET", f"/tasks/{task}/wait?timeoutMs=60000", None),
        "lease": ("POST", "/leases", lease),
        "tool": ("POST", "/mcp", tool),
    }
    both = {"Accept": "application/json, text/event-stream"}
    waiting = asyncio.create_task(callers.ask(*asked[way], token=token, headers=both))

    async def used() -> bool | None:
        listed = await callers.ask("GET", "/tokens", token=callers.root)
        found = [one for one in listed.json["tokens"] if one["id"] == id_of(token)]
        return "lastUsedAt" in found[0] or None

    await eventually(used)
    await callers.ask("DELETE", f"/tokens/{id_of(token)}", token=callers.root)
    later = {"handler": name, "params": {"text": "for others"}}
    new = await callers.ask("POST", "/tasks", later, token=callers.root)
    await callers.ask("POST", f"/tasks/{task}/cancel", token=callers.root)
    answer = await asyncio.wait_for(waiting, WAIT_SECONDS)
    told = answer.json if way != "tool" else answer.json["result"]["structuredContent"]
    assert told["code"] == "unauthenticated", answer
    assert (answer.status == 401) is (way != "tool")
    given = await callers.ask("POST", "/leases", lease, token=callers.root)
    assert [one["taskId"] for one in given.json["leases"]] == [new.json["taskId"]]


async def test_another_node_knows_of_a_revoked_token_within_a_moment(
    postgres_url: str, tmp_path: Path
) -> None:
    with new_database(postgres_url) as store:
        async with (
            serving(tmp_path / "one", store) as one,
            serving(tmp_path / "two", store) as two,
            calling(one) as callers,
        ):
            there = Callers(two.url)

            async def answered(status: int, token: str) -> None:
                async def look() -> bool | None:
                    answer = await there.ask("GET", "/tasks", token=token)
                    assert answer.status in (200, 401), answer
                    return answer.status == status or None

                with within(2):
                    await eventually(look)

            async def revoke() -> str:
                token = await callers.new(scopes=["read"])
                await answered(200, token)
                gone = await callers.ask("DELETE", f"/tokens/{id_of(token)}", token=callers.root)
                assert gone.json["revoked"] is True
                await answered(401, token)
                return token

            revoked = await steadily(revoke)
            for token, status in ((revoked, 401), (callers.root, 200)):
                assert (await there.ask("GET", "/whoami", token=token)).status == status
            await there.close()


# -------------------------------------------------------------------- what is told of tokens


async def test_a_token_is_shown_once_and_its_secret_is_never_kept(
    callers: Callers, tmp_path: Path
) -> None:
    token = await callers.new(name="kept", scopes=["read"])
    listed = await callers.ask("GET", "/tokens", token=callers.root)
    secret = token.split("_")[2]
    assert secret not in listed.raw.decode()
    (kept,) = [one for one in listed.json["tokens"] if one["name"] == "kept"]
    assert kept["id"] == id_of(token)
    assert kept["scopes"] == ["read"]
    assert "lastUsedAt" not in kept
    await callers.ask("GET", "/tasks", token=token)

    async def used() -> Any:
        listed = await callers.ask("GET", "/tokens", token=callers.root)
        (kept,) = [one for one in listed.json["tokens"] if one["name"] == "kept"]
        return kept.get("lastUsedAt")

    assert await eventually(used)
    files = [*(tmp_path.parent.parent.glob("**/guarded*/fairlane.db*"))]
    assert files
    assert not any(secret.encode() in file.read_bytes() for file in files)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "n", "scopes": ["everything"]}, "scopes"),
        ({"name": "n", "scopes": ["admin"], "agentId": "a"}, "scopes"),
        ({"name": "n", "agentId": "a/b"}, "agentId"),
        ({"name": "n", "expiresAt": "2020-01-01T00:00:00Z"}, "expiresAt"),
        ({"name": "n", "expiresAt": "tomorrow"}, "expiresAt"),
        ({"name": "n", "rate": "fast"}, "rate"),
        ({"name": "n", "rate": "0/s"}, "rate"),
        ({"name": "n", "rate": "999999/s"}, "rate"),
        ({"name": "n", "maxOpen": 0}, "maxOpen"),
        ({"name": "n", "digest": "x"}, "digest"),
    ],
)
async def test_what_is_wrong_with_a_token_is_named(
    callers: Callers, fields: dict[str, Any], named: str
) -> None:
    answer = await callers.ask("POST", "/tokens", fields, token=callers.root)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error


async def test_two_valid_tokens_have_two_names(callers: Callers) -> None:
    await callers.new(name="twin")
    again = {"name": "twin"}
    assert (await callers.ask("POST", "/tokens", again, token=callers.root)).status == 409
    assert (await callers.ask("DELETE", "/tokens/twin", token=callers.root)).status == 200
    assert (await callers.ask("POST", "/tokens", again, token=callers.root)).status == 201
    assert (await callers.ask("DELETE", "/tokens/nobody", token=callers.root)).status == 404


# -------------------------------------------------------------------- logins


async def test_a_login_is_a_cookie_that_is_not_the_token(callers: Callers) -> None:
    token = await callers.new(name="page", scopes=["read", "submit"])
    answer = await callers.ask("POST", "/login", {"token": token})
    assert answer.status == 200
    assert answer.json["name"] == "page"
    cookie, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    login = {"Cookie": cookie}
    assert token not in cookie
    assert (await callers.ask("GET", "/tasks", headers=login)).status == 200
    task = {"handler": "nobody"}
    refused = await callers.ask("POST", "/tasks", task, headers=login)
    assert (refused.status, refused.code) == (403, "forbidden")
    allowed = await callers.ask("POST", "/tasks", task, headers={**login, "X-Fairlane": "1"})
    assert allowed.status == 202
    bearer = cookie.partition("=")[2]
    assert (await callers.ask("GET", "/tasks", token=bearer)).status == 401
    out = await callers.ask("POST", "/logout", headers={**login, "X-Fairlane": "1"})
    assert out.json == {"loggedOut": True}
    assert "Max-Age=0" in out.headers["Set-Cookie"]
    assert (await callers.ask("GET", "/tasks", headers=login)).status == 401


@pytest.mark.parametrize(
    "other", ['seen={"a": [1, 2]}', "a=b c", "list[1]=x", "odd", 'a="', "=", ""]
)
async def test_cookies_of_others_on_this_machine_do_not_spoil_a_login(
    callers: Callers, other: str
) -> None:
    token = await callers.of(None, "read")
    answer = await callers.ask("POST", "/login", {"token": token})
    login = answer.headers["Set-Cookie"].partition(";")[0]
    for cookies in (f"{other}; {login}", f"{login}; {other}", f"{other};{login};{other}"):
        assert (await callers.ask("GET", "/whoami", headers={"Cookie": cookies})).status == 200


async def test_a_login_ends_with_its_token(callers: Callers) -> None:
    token = await callers.new(scopes=["read"])
    answer = await callers.ask("POST", "/login", {"token": token})
    login = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
    assert (await callers.ask("GET", "/whoami", headers=login)).status == 200
    await callers.ask("DELETE", f"/tokens/{id_of(token)}", token=callers.root)
    assert (await callers.ask("GET", "/whoami", headers=login)).status == 401


async def test_a_stream_ends_with_its_login(callers: Callers) -> None:
    token = await callers.new(scopes=["read"])
    answer = await callers.ask("POST", "/login", {"token": token})
    login = {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}
    headers = {**login, "Accept": "text/event-stream"}
    async with callers._session.get(f"{callers.url}/events", headers=headers) as stream:
        assert stream.status == 200
        await stream.content.readany()
        await callers.ask("POST", "/logout", headers={**login, "X-Fairlane": "1"})
        await callers.ask("POST", "/tasks", {"handler": "nobody"}, token=callers.root)
        assert await asyncio.wait_for(stream.content.read(), WAIT_SECONDS) == b""
    assert (await callers.ask("GET", "/whoami", token=token)).status == 200


async def test_a_wrong_login_is_refused_and_logins_are_no_tokens_that_are_listed(
    callers: Callers,
) -> None:
    for token in ("", "x", await callers.wrong(), await callers.revoked()):
        assert (await callers.ask("POST", "/login", {"token": token})).status == 401
    before = (await callers.ask("GET", "/tokens", token=callers.root)).json["count"]
    assert (await callers.ask("POST", "/login", {"token": callers.root})).status == 200
    assert (await callers.ask("GET", "/tokens", token=callers.root)).json["count"] == before


# -------------------------------------------------------------------- limits


async def test_a_token_makes_no_more_requests_than_its_rate(callers: Callers) -> None:
    token = await callers.new(scopes=["read"], rate="3/h")
    first = await callers.ask("GET", "/whoami", token=token)
    assert first.status == 200
    limited = await callers.ask("GET", "/whoami", token=token)
    assert (limited.status, limited.code) == (429, "rate_limited")
    assert 1 <= int(limited.headers["Retry-After"]) <= 1200
    assert (await callers.ask("GET", "/whoami", token=callers.root)).status == 200


async def test_a_batch_counts_as_what_is_in_it(callers: Callers) -> None:
    token = await callers.new(scopes=["submit", "read"], rate="2/m")
    tasks = {"tasks": [{"handler": "nobody"}] * 50, "agentId": "many"}
    assert (await callers.ask("POST", "/tasks/batch", tasks, token=token)).status == 202
    limited = await callers.ask("GET", "/whoami", token=token)
    assert limited.status == 429
    assert 600 < int(limited.headers["Retry-After"]) <= 25 * 60


async def test_a_token_has_no_more_open_tasks_than_its_quota(callers: Callers) -> None:
    agent = "quota"
    token = await callers.new(agentId=agent, scopes=["submit", "read", "cancel"], maxOpen=3)
    task = {"handler": "nobody"}
    once = {"Idempotency-Key": "once"}
    kept = await callers.ask("POST", "/tasks", task, token=token, headers=once)
    more = [await callers.ask("POST", "/tasks", task, token=token) for _ in range(2)]
    ids = [answer.json["taskId"] for answer in (kept, *more)]
    entry = {"repo": "/r"}
    message = {"message": "hello"}
    for path, body in (
        ("/tasks", task),
        ("/tasks/batch", {"tasks": [task]}),
        ("/sessions/quota/messages", message),
        ("/queue", entry),
    ):
        full = await callers.ask("POST", path, body, token=token)
        assert (full.status, full.code) == (429, "quota_exceeded"), path
        assert full.json["details"] == {"open": 3, "max": 3}
        assert int(full.headers["Retry-After"]) >= 1
    listed = await callers.ask("GET", "/tasks?limit=1000", token=token)
    assert listed.ids == ids[::-1]
    again = await callers.ask("POST", "/tasks", task, token=token, headers=once)
    assert again.json["taskId"] == ids[0]
    await callers.ask("POST", f"/tasks/{ids[0]}/cancel", token=token)
    assert (await callers.ask("POST", "/tasks", task, token=token)).status == 202


# -------------------------------------------------------------------- what is one's own


async def test_what_says_nothing_of_an_agent_is_the_tokens_own(callers: Callers) -> None:
    alice = await callers.alice()
    made = [
        ("/tasks", {"handler": "nobody"}),
        ("/tasks", {"action": "click", "tabId": "t1"}),
        ("/sessions/mine/messages", {"message": "hello"}),
    ]
    for path, body in made:
        task = (await callers.ask("POST", path, body, token=alice)).json["taskId"]
        shown = await callers.ask("GET", f"/tasks/{task}", token=alice)
        assert shown.json["agentId"] == ALICE
    batch = {"tasks": [{"handler": "nobody"}]}
    id_ = (await callers.ask("POST", "/tasks/batch", batch, token=alice)).json["batchId"]
    assert (await callers.ask("GET", f"/batches/{id_}", token=alice)).json["agentId"] == ALICE


async def test_a_worker_leases_only_its_agents_tasks(callers: Callers) -> None:
    for lane in ("main", "instruction"):  # by agents in turn, and by priority
        wanted = {"worker": "w", "lanes": [lane], "handlers": ["shared"], "limit": 10}
        for agent in (ALICE, BOB, ALICE):
            body = {"handler": "shared", "lane": lane, "agentId": agent}
            await callers.ask("POST", "/tasks", body, token=callers.root)
        bobs = await callers.ask("POST", "/leases", wanted, token=await callers.bob())
        assert [one["task"]["agentId"] for one in bobs.json["leases"]] == [BOB]
        none = await callers.ask("POST", "/leases", wanted, token=await callers.bob())
        assert none.json["leases"] == []
        (lease,) = bobs.json["leases"]
        stolen = f"/leases/{lease['leaseId']}/complete"
        lost = await callers.ask("POST", stolen, {}, token=await callers.alice())
        assert (lost.status, lost.code) == (409, "lease_lost")
        assert "details" not in lost.json
        assert (await callers.ask("POST", stolen, {}, token=await callers.bob())).status == 200
        rest = await callers.ask("POST", "/leases", wanted, token=await callers.alice())
        assert {one["task"]["agentId"] for one in rest.json["leases"]} == {ALICE}


async def test_a_worker_proves_who_it_is(callers: Callers) -> None:
    worker = Worker(callers.url, token=await callers.alice(), renew_seconds=0.1)
    worker.handler("proved")(lambda work: {"agent": work.agent})
    running = asyncio.create_task(worker.run())
    body = {"handler": "proved"}
    task = (await callers.ask("POST", "/tasks", body, token=await callers.alice())).json["taskId"]

    async def done() -> Any:
        shown = await callers.ask("GET", f"/tasks/{task}", token=callers.root)
        return shown.json["result"] if shown.json["state"] == "done" else None

    assert await eventually(done) == {"agent": ALICE}
    worker.stop()
    await running


async def test_a_task_cannot_wait_for_another_agents_task_to_read_its_result(
    callers: Callers,
) -> None:
    parent = await callers.ask("POST", "/tasks", {"handler": "n"}, token=await callers.alice())
    answers = []
    for id_ in (parent.json["taskId"], "tsk_none"):
        child = {"handler": "n", "dependsOn": [id_]}
        answer = await callers.ask("POST", "/tasks", child, token=await callers.bob())
        answers.append((answer.status, answer.error.replace(id_, "ID")))
    assert answers[0] == answers[1]
    assert answers[0][0] == 400
    own = {"handler": "n", "dependsOn": [parent.json["taskId"]]}
    assert (await callers.ask("POST", "/tasks", own, token=await callers.alice())).status == 202


async def test_no_agent_gets_into_another_agents_session(callers: Callers) -> None:
    alice, bob = await callers.alice(), await callers.bob()
    task = {"handler": "n", "sessionKey": "of-alice"}
    assert (await callers.ask("POST", "/tasks", task, token=alice)).status == 202
    assert (await callers.ask("POST", "/tasks", task, token=bob)).status == 404
    for key in ("tab:a1:t9", "cron:job_1", "tab:b1:x:t9"):
        early = {"handler": "n", "sessionKey": key}
        assert (await callers.ask("POST", "/tasks", early, token=bob)).status == 404, key
    tab = {"action": "click", "tabId": "t9"}
    assert (await callers.ask("POST", "/tasks", tab, token=bob)).status == 202
    assert (await callers.ask("POST", "/tasks", tab, token=alice)).status == 202


async def test_why_names_no_task_of_another_agent(callers: Callers) -> None:
    alice, bob = await callers.alice(), await callers.bob()
    await callers.ask(
        "PATCH", "/policy", {"lanes": {"tight": {"maxInflight": 1}}}, token=callers.root
    )
    task = {"handler": "tight", "lane": "tight"}
    held = (await callers.ask("POST", "/tasks", task, token=alice)).json["taskId"]
    wanted = {"worker": "w", "lanes": ["tight"], "handlers": ["tight"]}
    assert (await callers.ask("POST", "/leases", wanted, token=alice)).json["count"] == 1
    assert (await callers.ask("POST", "/leases", wanted, token=bob)).json["count"] == 0
    waits = (await callers.ask("POST", "/tasks", task, token=bob)).json["taskId"]
    why = await callers.ask("GET", f"/tasks/{waits}/why", token=bob)
    assert why.status == 200
    assert held not in why.raw.decode()
    assert (
        held in (await callers.ask("GET", f"/tasks/{waits}/why", token=callers.root)).raw.decode()
    )


async def test_who_stops_a_session_by_a_message_needs_leave_to_cancel(callers: Callers) -> None:
    token = await callers.of(ALICE, "submit")
    answer = await callers.ask(
        "POST", "/sessions/stopping/messages", {"message": "/stop"}, token=token
    )
    assert (answer.status, answer.code) == (403, "forbidden")


async def test_who_changes_the_policy_is_who_the_token_says(callers: Callers) -> None:
    token = await callers.new(name="ada", scopes=["admin", "read"])
    change = {"lanes": {"team": {"maxInflight": 77}}}
    said = {"X-Fairlane-Actor": "mallory"}
    where = "/policy?author=mallory"
    assert (await callers.ask("PATCH", where, change, token=token, headers=said)).status == 200
    newest = (await callers.ask("GET", "/policy/versions", token=token)).json["versions"][0]
    assert newest["author"] == "ada"
