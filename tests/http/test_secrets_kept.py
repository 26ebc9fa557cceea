"""Secrets stay secret: planted ones are looked for on every surface, in the logs and in the store.

The servers that work is sent to repeat all that they were sent: in errors, in streamed text cut at
the worst place, in results and in refusals.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import psycopg
import pytest
import pytest_asyncio

from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.tab_instance import Behaviour, TabInstance
from tests.http.hooks import Hook, Hooks
from tests.http.server import COMMAND, Server, serving
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.asyncio]

LITERAL = "sk-canary-literal-5d41402abc"
OF_ENV = "sk-canary-of-env-7d793037a0"
OF_FILE = "sk-canary-of-file-b2ca678b4c"
AGENT_TOKEN = "agent-canary-token-c936f1aa"
TAB_TOKEN = "tab-canary-token-fcd04e26"
WEBHOOK = "whsec_Y2FuYXJ5LXdlYmhvb2stc2VjcmV0LW9mLTMzLWJ5dGVz"
CANARIES = (LITERAL, OF_ENV, OF_FILE, AGENT_TOKEN, TAB_TOKEN, WEBHOOK)
ALL_SENT = f"{LITERAL} {AGENT_TOKEN}"
LLM = {"apiKey": LITERAL, "inner": {"headers": {"Authorization": LITERAL}}}
REFERRING = {"of env": {"apiKey": "env:LLM_KEY"}, "of file": {"apiKey": "file:llm.key"}}
NEVER = {"maxRetries": 0}
SILENCE_SECONDS = 1.0

SCRIPTS = {
    "error": Script(events=[{"type": "error", "errorText": f"wrong key: {ALL_SENT}"}]),
    "refusal": Script(status=400, body=f"wrong key: {ALL_SENT}" * 40),
    "broken": Script(events=[{"type": "text-delta", "delta": ALL_SENT}], break_off=True),
    "document": Script(status=200, body={ALL_SENT: [ALL_SENT, {"deep": ALL_SENT}]}),
    "raw": Script(status=200, body=f"plain {ALL_SENT}", content_type="text/plain"),
    "of env": Script(status=200, body={"said": f"{OF_ENV} {AGENT_TOKEN}"}),
    "of file": Script(status=401, body=f"not {OF_FILE}"),
    "stream": Script(
        events=[
            *({"type": "text-delta", "delta": ALL_SENT[at : at + 7]} for at in range(0, 77, 7)),
            {"type": "finish", "said": ALL_SENT, "list": [LITERAL]},
        ]
    ),
}


@dataclass
class Scene:
    server: Server
    agent: ChatAgent
    tabs: TabInstance
    hook: Hook
    store: str


@pytest_asyncio.fixture
async def scene(tmp_path: Path, store_url: str) -> AsyncIterator[Scene]:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "llm.key").write_text(f"{OF_FILE}\n")
    (folder / "llm.key").chmod(0o600)
    settings = {
        "FAIRLANE_WEBHOOK_SECRET": "env:W",
        "W": WEBHOOK,
        "A": AGENT_TOKEN,
        "T": TAB_TOKEN,
        "LLM_KEY": OF_ENV,
        "HIDDEN": "not for tasks",
        "FAIRLANE_ALLOW_SECRETS": "env:LLM_KEY file:llm.key",
        "FAIRLANE_SECRETS_FOLDER": str(folder),
        "FAIRLANE_LOG_LEVEL": "debug",
        "FAIRLANE_LOG_FORMAT": "json",
        "FAIRLANE_LANE_INSTRUCTION": "4",
    }
    async with (
        ChatAgent(AGENT_TOKEN) as agent,
        TabInstance(["tab"], TAB_TOKEN) as tabs,
        Hooks() as hooks,
        serving(
            tmp_path / "server",
            store_url,
            instances=[f"{tabs.url}#token=env:T"],
            allow_outbound=["127.0.0.1"],
            environment={**settings, "FAIRLANE_AGENT": f"{agent.url}#token=env:A"},
        ) as server,
    ):
        agent.scripts.update(SCRIPTS)
        yield Scene(server, agent, tabs, hooks.new(), store_url)


async def run_everything(scene: Scene) -> dict[str, str]:
    """Tasks of all sorts, by what they are about; those of the agent end as its scripts say."""
    api, tabs = scene.server.api, scene.tabs
    ids = {}
    for name in SCRIPTS:
        config = REFERRING.get(name, LLM)
        fields = {"instruction": name, "llmConfig": config, "retryPolicy": NEVER}
        ids[name] = await api.submit(**fields, webhookUrl=scene.hook.url)
    tabs.actions = Behaviour(status=500, body=f"you sent Bearer {TAB_TOKEN}")
    ids["action"] = await api.submit(agentId="a", action="click", tabId="tab")
    await api.end_of(ids["action"])
    tabs.actions = Behaviour(body={"token": TAB_TOKEN, "headers": [f"Bearer {TAB_TOKEN}"]})
    ids["done action"] = await api.submit(agentId="a", action="click", tabId="tab")
    batch = {"tasks": [{"instruction": "document", "llmConfig": LLM}]}
    batched = (await api.post("/tasks/batch", batch)).json
    ids["batched"] = batched["tasks"][0]["taskId"]
    said = {"message": "document", "llmConfig": LLM, "debounceMs": 0}
    ids["said"] = (await api.post("/sessions/chat/messages", said)).json["taskId"]
    template = {"name": "t", "instruction": "stream", "llmConfig": LLM}
    made = (await api.post("/templates", template)).json["id"]
    used = await api.post(f"/templates/{made}/instantiate", {"submit": True})
    ids["used"] = used.json["taskId"]
    every = {"kind": "every", "everyMs": 3_600_000}
    job = {"name": "j", "schedule": every, "task": {"instruction": "error", "llmConfig": LLM}}
    job_id = (await api.post("/cron/jobs", {**job, "retryPolicy": NEVER})).json["id"]
    ids["of cron"] = (await api.post(f"/cron/jobs/{job_id}/run", {})).json["taskId"]
    await api.ended(*ids.values())
    await scene.hook.until(len(SCRIPTS))
    ids["template"], ids["job"], ids["batch"] = made, job_id, batched["batchId"]
    return ids


async def looked_at(server: Server, path: str) -> bytes:
    """What a route says; of a stream all that comes before it is silent."""
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.get(server.url + path) as answer,
    ):
        if answer.content_type != "text/event-stream":
            return await answer.read()
        found = await answer.content.readany()
        with contextlib.suppress(TimeoutError):
            while piece := await asyncio.wait_for(answer.content.readany(), SILENCE_SECONDS):
                found += piece
        return found


def _values(path: str, ids: dict[str, str]) -> list[str]:
    """What to put into a path; most of it fits."""
    if "{key}" in path or "{name}" in path:
        return ["chat", "main"]
    if path.startswith("/tasks/{"):
        return [ids["stream"], ids["error"], ids["of env"], ids["done action"]]
    return [ids["template"], ids["job"], ids["batch"]] if "{" in path else [""]


async def everything_shown(server: Server, ids: dict[str, str]) -> list[tuple[str, bytes]]:
    """Whatever the routes say, by the table of routes, with every id that there is."""
    routes = (await server.api.get("/")).json["routes"]
    shown = []
    for path in sorted(path for path, methods in routes.items() if "GET" in methods):
        if path == "/tasks/{id}/wait":
            continue
        for value in _values(path, ids):
            where = path.replace("{id}", value).replace("{key}", value).replace("{name}", value)
            if "{" not in where:
                shown.append((where, await looked_at(server, where)))
    page = {"Accept": "application/json"}
    happened = await server.api.ask("GET", "/events?after=0&limit=1000", headers=page)
    assert happened.json["events"]
    shown.append(("/events", happened.raw))
    changed = {"llmConfig": {"apiKey": "***", "model": "m"}}
    answer = await server.api.ask("PATCH", f"/templates/{ids['template']}", changed)
    assert answer.status == 200
    shown.append(("PATCH", answer.raw))
    for submit in (True, False):
        used = await server.api.post(
            f"/templates/{ids['template']}/instantiate", {"submit": submit}
        )
        shown.append(("instantiate", used.raw))
    return shown


def stored(store_url: str) -> Iterator[tuple[str, bytes]]:
    if store_url.startswith(SQLITE):
        for file in Path(store_url.removeprefix(SQLITE)).parent.glob("fairlane.db*"):
            yield file.name, file.read_bytes()
        return
    with psycopg.connect(store_url) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT * FROM {table}").fetchall()
            yield table, repr(rows).encode()


def said_by_commands(server: Server, ids: dict[str, str]) -> Iterator[bytes]:
    for words in (
        ["tasks", "--json"],
        ["queue", "list", "--json"],
        ["webhooks", "list", "--json"],
        ["sessions", "--json"],
        ["show", ids["stream"], "--json"],
        ["show", ids["error"]],
        ["why", ids["used"], "--json"],
        ["events", "--json"],
        ["output", ids["stream"]],
        ["templates", "list", "--json"],
        ["cron", "list", "--json"],
        ["policy", "show", "--json"],
        ["audit", "--json"],
    ):
        command = [str(COMMAND), *words, "--url", server.url]
        run = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert run.returncode in (0, 1), (words, run.stderr)  # 1: the task that is shown failed
        yield run.stdout + run.stderr


async def test_no_secret_leaves_by_any_surface(scene: Scene) -> None:
    server, agent = scene.server, scene.agent
    ids = await run_everything(scene)
    # They did arrive where they are needed, so they could have been repeated.
    sent = [entry.body for entry in agent.requests if entry.path == "/chat"]
    assert {LITERAL, OF_ENV, OF_FILE} <= {body.get("apiKey") for body in sent}
    output = (await server.api.get(f"/tasks/{ids['stream']}/output")).json
    assert output["text"] == "*** ***", output
    found = [("webhook", one.raw) for one in scene.hook.deliveries]
    found += await everything_shown(server, ids)
    found += [("command", said) for said in said_by_commands(server, ids)]
    found += [(f"store: {name}", raw) for name, raw in stored(scene.store)]
    found += [("log", server.log.encode())]
    assert len(found) > 60
    for where, raw in found:
        for canary in CANARIES:
            assert canary.encode() not in raw, f"{canary} in {where}"


async def test_nothing_may_be_referred_to_that_is_not_allowed(scene: Scene) -> None:
    server, agent = scene.server, scene.agent
    for reference in ("env:HIDDEN", "env:W", "env:PATH", "file:/etc/passwd", "file:../llm.key"):
        config = {"apiKey": reference}
        answer = await server.api.post("/tasks", {"instruction": "x", "llmConfig": config})
        assert (answer.status, answer.code) == (400, "invalid_request"), answer
        assert "which tasks may not" in answer.error
    elsewhere = {"apiKey": "env:LLM_KEY", "baseUrl": "https://evil.example"}
    answer = await server.api.post("/tasks", {"instruction": "x", "llmConfig": elsewhere})
    assert answer.status == 400
    template = {"name": "t2", "instruction": "document", "llmConfig": {"apiKey": "env:LLM_KEY"}}
    made = (await server.api.post("/templates", template)).json["id"]
    overrides = {"llmConfig": {"baseUrl": "https://evil.example"}}
    used = await server.api.post(
        f"/templates/{made}/instantiate", {"submit": True, "overrides": overrides}
    )
    assert used.status == 400, used
    # Two messages that become one run may be harmless only each by itself.
    for config in ({"apiKey": "env:LLM_KEY"}, {"baseUrl": "https://evil.example"}):
        said = {"message": "document", "llmConfig": config, "debounceMs": 200}
        answer = await server.api.post("/sessions/mixed/messages", said)
    (task,) = await server.api.ended(answer.json["taskId"])
    assert task["state"] == "failed"
    assert "is not allowed next to a reference" in task["error"]
    assert not [one for one in agent.requests if "evil" in msgspec.json.encode(one.body).decode()]
