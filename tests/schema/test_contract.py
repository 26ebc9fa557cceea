"""The OpenAPI document is valid, and every response of a busy scheduler is as it declares."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from fairlane.core.json_types import JsonObject
from fairlane.schema.catalog import OPERATIONS
from fairlane.schema.examples import EXAMPLES
from fairlane.schema.operation import GET, Response
from fairlane.testing import MemoryFairlane
from tests.hostile.inside import Inside
from tests.http.fronted import fronted
from tests.http.hooks import Hook, Hooks
from tests.http.server import WEBHOOK_SECRET
from tests.schema.contract import Contract

LANES = {
    "lanes": {"main": {"maxInflight": 50}, "queue": {"maxInflight": 5}},
    "resources": {
        "gpt": {"limits": [{"unit": "tokens", "amount": 1000, "perMs": 60_000}]},
        "spend": {"limits": [{"unit": "usd", "amount": 5, "resetEvery": "month"}], "by": "agent"},
    },
}
JOB = {
    "name": "report",
    "schedule": {"kind": "every", "everyMs": 60_000},
    "task": {"handler": "shout", "params": {"text": "x"}},
}
FAILING = {
    "startAt": "2020-01-01T00:00:00Z",
    "endAt": "2100-01-01T00:00:00Z",
    "retryPolicy": {"maxRetries": 0},
    "disableAfter": 1,
    "alertUrl": "https://alerts.example/",
    "alertAfter": 2,
}
TEMPLATE = {
    "name": "trip",
    "instruction": "Go to {{city}}",
    "parameters": [{"name": "city", "type": "string", "required": True}],
    "llmConfig": {"model": "m", "apiKey": "k"},
    "metadata": {"a": 1},
    "needs": {"gpt": {"tokens": 1}},
    "timeoutMs": 1000,
    "retryPolicy": {"maxRetries": 1, "backoffMs": 10},
}
FILE = {
    "schemaVersion": 1,
    "entries": [
        {"id": "old", "status": "parked", "attempts": 2, "parkedReason": "it broke", "odd": [1]}
    ],
}

# Fields that this scenario does not lead to: damaged rows, tracing, documents of other programs,
# types that inherit a field, and tasks that a template makes with everything overridden.
RARE = (
    *("CronJob.unreadable", "TaskStatus.unreadable", "TemplateDetail.unreadable"),
    *("TaskStatus.traceparent", "PolicyChanged.notes", "PolicyChecked.notes", "PlanShown.atLeast"),
    *("LeaseCompleted.", "LeaseGrant.nextEligibleAt", "LeaseReleased.leaseExpiresAt"),
    *("LeaseRenewed.nextEligibleAt", "LeaseStatus.nextEligibleAt", "TemplateFilled."),
    *(
        "ApprovalStatus.resource",
        "TokenCreated.",
        "WebhookEndpoint.disabledAt",
        "WebhookSecret.disabledAt",
    ),
)


@pytest.fixture
async def hooks() -> AsyncIterator[Hooks]:
    async with Hooks() as hooks:
        yield hooks


@pytest.fixture
async def app(hooks: Hooks) -> AsyncIterator[MemoryFairlane]:
    app = MemoryFairlane(
        policy=LANES, allow_outbound=[hooks.address], webhook_secret=WEBHOOK_SECRET
    )
    app.handler("shout")(lambda work: {"text": work.request["params"]["text"].upper()})
    async with app:
        yield app


@pytest.fixture(params=["writing", "front"])
async def contract(app: MemoryFairlane, request: pytest.FixtureRequest) -> AsyncIterator[Contract]:
    """The routes of the process that writes, and of a front beside it."""
    async with contextlib.AsyncExitStack() as stack:
        node = None
        if request.param == "front":
            node = (await stack.enter_async_context(fronted(app))).node
        inside = Inside(app, node)
        yield Contract(inside, (await inside.ask("GET", "/openapi.json")).json)


async def test_the_document_is_valid_openapi(contract: Contract) -> None:
    problems = [str(one) for one in OpenAPIV31SpecValidator(contract.document).iter_errors()]
    assert problems == []
    broken = {**contract.document, "info": {"title": "Fairlane"}}
    assert [*OpenAPIV31SpecValidator(broken).iter_errors()]


async def test_every_response_is_as_declared(
    app: MemoryFairlane, contract: Contract, hooks: Hooks
) -> None:
    await work(contract, app, hooks.new(200, 500))
    await report(contract, app)
    await decide(contract, app)
    await record(contract)
    await steer(contract)
    await use(contract)
    await talk(contract)
    await queue(contract)
    await plan(contract, app)
    await app.node.look()
    await operate(contract)
    await app.node.look()
    await read(contract)
    await change(contract)
    await protect(contract)
    app.node.refuse_new()
    await contract.get("/health/ready", status=503)
    good = {name for name, status in contract.asked if status < 300}
    assert set(OPERATIONS) - good == set()
    assert {one for one in unseen(contract) if not one.startswith(RARE)} == set()


def unseen(contract: Contract) -> set[str]:
    """Return the fields of response types that were in no response."""
    shapes = contract.document["components"]["schemas"]
    sent = {kind.__name__ for kind in subclasses(Response)} & set(shapes)
    declared = {(name, field) for name in sent for field in shapes[name]["properties"]}
    return {f"{name}.{field}" for name, field in declared - contract.seen}


def subclasses(kind: type) -> Iterator[type]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


async def test_what_is_not_declared_is_found(contract: Contract) -> None:
    accepted = {"$ref": "#/components/schemas/TaskAccepted"}
    good = {"taskId": "t", "state": "queued", "position": 1, "createdAt": "2026-01-01T00:00:00Z"}
    contract.check(good, accepted, "good")
    for wrong in ({"odd": 1}, {"state": "new"}, {"createdAt": "today"}, {"position": None}):
        with pytest.raises(AssertionError, match=next(iter(wrong))):
            contract.check({**good, **wrong}, accepted, "wrong")


async def test_examples_fit_their_schemas(contract: Contract) -> None:
    assert set(EXAMPLES) <= set(OPERATIONS)
    for name, example in EXAMPLES.items():
        operation = OPERATIONS[name]
        described = contract.document["paths"][operation.path][operation.method.lower()]
        response = described["responses"][str(operation.status)]["content"]["application/json"]
        assert response["example"] == example.response
        contract.check(example.response, response["schema"], name)
        if example.request is not None:
            request = described["requestBody"]["content"]["application/json"]
            assert request["example"] == example.request
            contract.check(example.request, request["schema"], name)


async def test_a_scheduler_accepts_the_requests_of_the_examples(contract: Contract) -> None:
    for name, example in EXAMPLES.items():
        if example.request is None:
            continue
        operation, lease = OPERATIONS[name], {}
        if "/leases/{id}" in operation.path:
            await contract.post("/tasks", EXAMPLES["submit"].request, status=202)
            lease = (await contract.post("/leases", EXAMPLES["lease"].request))["leases"][0]
        target = operation.path.format(id=lease.get("leaseId"), key="chat:7")
        await contract.ask(operation.method, target, example.request, status=operation.status)
    assert {name for name, one in EXAMPLES.items() if one.request} <= {
        name for name, _ in contract.asked
    }


async def work(ask: Contract, app: MemoryFairlane, hook: Hook) -> None:
    """Submit tasks of every kind, and a batch whose webhooks a receiver gets."""
    url = hook.url
    for agent in ("ada", "bob"):
        body = {"url": url, "agentId": agent, "events": ["approval.opened"]}
        await ask.post("/webhooks", body, status=201)
    for task in (
        {"handler": "shout", "params": {"text": "a"}, "callbackUrl": url, "agentId": "ada"},
        {"handler": "shout", "params": {"text": 1}, "retryPolicy": {"maxRetries": 0}},
        {"action": "click", "tabId": "t", "agentId": "ada", "ref": "e1", "selector": "#a"},
        {"instruction": "go", "llmConfig": {"model": "m", "apiKey": "k"}, "metadata": {"a": 1}},
        {"handler": "outside", "delayMs": 60_000, "preemptible": True, "timeoutMs": 5000},
        {"handler": "elsewhere", "needs": {"gpt": {"tokens": "1.5"}}, "quota": "gpt"},
        {"handler": "outside", "deadline": "2100-01-01T00:00:00Z", "sessionKey": "s"},
    ):
        await ask.post("/tasks", task, status=202)
    items = [{"handler": "shout", "params": {"text": "a"}, "key": "k"}, {"handler": "outside"}, {}]
    body = {"tasks": items, "agentId": "ada", "parallelism": 1, "callbackUrl": url}
    await ask.post("/tasks/batch", body, status=202)
    small = {"tasks": items[:1], "agentId": "ada", "callbackUrl": url}
    await ask.post("/tasks/batch", small, status=202)
    lines = [{"handler": "shout", "params": {"text": "a"}}, {}, {"handler": 1, "lane": 2}]
    lines.append({"handler": "shout", "params": {"text": "a"}, "lane": "nowhere"})
    await ask.post("/tasks/stream", {"tasks": lines}, status=202)
    await app.settle()
    await app.node.look()
    await app.advance(1)
    await hook.until(2)


async def report(ask: Contract, app: MemoryFairlane) -> None:
    """Lease tasks as an external worker and report everything that one can."""
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    task = {"handler": "outside", "timeoutMs": 1000, "priority": "critical"}
    parent = (await ask.post("/tasks", task, status=202, headers=trace))["taskId"]
    await ask.post("/tasks", {**task, "dependsOn": [parent]}, status=202)
    wanted = {"worker": "w", "limit": 3, "kinds": ["handler", "instruction"]}
    leases = {one["taskId"]: one for one in (await ask.post("/leases", wanted))["leases"]}
    for lease in leases.values():
        target = f"/leases/{lease['leaseId']}"
        await ask.post(f"{target}/start", {})
        await ask.post(f"{target}/renew", {"progress": {"percent": 50}, "output": "half"})
        await ask.post(f"{target}/output", {"output": "more", "part": 7})
    await read_tasks(ask)
    first = leases.pop(parent)["leaseId"]
    await ask.post(f"/leases/{first}/complete", {"result": {"n": 1}})
    two, three = (one["leaseId"] for one in leases.values())
    await ask.post(f"/leases/{two}/fail", {"error": "no", "retryable": False})
    await ask.post(f"/leases/{three}/complete", {"result": None})
    left = (await ask.post("/leases", {"worker": "w", "limit": 3, "start": True}))["leases"]
    await ask.post(f"/leases/{left[0]['leaseId']}/fail", {"error": "no", "retryAfterMs": 1})
    await ask.post(f"/leases/{left[1]['leaseId']}/release", {})
    await report_together(ask)
    await app.advance(3600)
    await ask.post("/leases", {"worker": "w", "limit": 10})
    await ask.post("/leases/withdraw", {"worker": "w"})
    await ask.post("/leases/reclaim", {})


async def report_together(ask: Contract) -> None:
    """Report good and bad in one request."""
    for _ in range(3):
        await ask.post("/tasks", {"handler": "elsewhere"}, status=202)
    wanted = {"worker": "w", "handlers": ["elsewhere"], "limit": 3}
    leases = (await ask.post("/leases/report", wanted))["leases"]
    one, two, three = ({"leaseId": lease["leaseId"]} for lease in leases)
    again = {**two, "verb": "fail", "error": "no", "retryAfterMs": 1000}
    reports = [{**one, "verb": "renew"}, {**one, "verb": "complete"}, again, again, {}]
    await ask.post("/leases/report", {"worker": "w", "reports": reports})
    await ask.post(f"/tasks/{leases[2]['taskId']}/cancel", {})
    closing = [{**three, "verb": "renew"}, {**three, "verb": "release"}]
    await ask.post("/leases/report", {"worker": "w", "reports": closing})


async def use(ask: Contract) -> None:
    """Reserve, settle and overdraw resources; read, close, open and raise them."""
    needs = {"gpt": {"tokens": 10}, "spend": {"usd": "4.5"}}
    for _ in range(2):
        task = {"handler": "metered", "agentId": "eve", "needs": needs}
        last = await ask.post("/tasks", task, status=202)
    wanted = {"worker": "w", "handlers": ["metered"], "limit": 2, "start": True}
    (lease,) = (await ask.post("/leases", wanted))["leases"]
    await ask.get(f"/tasks/{last['taskId']}/why")
    child = {"handler": "metered", "agentId": "eve", "childOf": lease["taskId"]}
    await ask.get(f"/tasks/{(await ask.post('/tasks', child, status=202))['taskId']}")
    target = f"/leases/{lease['leaseId']}"
    permit = await ask.post(f"{target}/permits", {"needs": {"gpt": {"tokens": 1}}})
    observed = {"gpt": {"tokens": {"remaining": 900}}}
    usage = {"usage": {"gpt": {"tokens": 1}}, "observed": observed}
    await ask.post(f"{target}/permits/{permit['permitId']}/settle", usage)
    await ask.post(f"{target}/permits", {"needs": {"spend": {"usd": 1}}})
    for query in ("", "?name=spend&limit=1", "?limit=1"):
        await ask.get(f"/resources{query}")
    await ask.get("/resources/spend?key=eve")
    raised = {"key": "eve", "unit": "usd", "amount": "0.25", "reason": "more"}
    await ask.post("/resources/spend/raise", raised)
    await ask.post("/resources/gpt/close", {"forMs": 1000, "reason": "maintenance"})
    await ask.post(f"{target}/permits", {"needs": {"gpt": {"tokens": 1}}})
    report = {"usage": {"spend": {"usd": 9}}, "closed": {"gpt": {"retryAfterMs": 1000}}}
    await ask.post(f"{target}/complete", report)
    await ask.get(f"/tasks/{last['taskId']}/why")
    await ask.get("/resources/spend?key=eve")
    await ask.get("/resources/spend/ledger?key=eve&limit=2")
    await ask.get("/resources/spend/usage")
    await ask.post("/resources/gpt/open", {})


async def decide(ask: Contract, app: MemoryFairlane) -> None:
    """Ask people before a task and in the middle of a run, and let them decide."""
    form = {"properties": {"amount": {"type": "integer"}}}
    question = {"title": "Go?", "detail": "d", "form": form, "expiresMs": 10**9, "count": 2}
    gated = {"handler": "outside", "approval": {**question, "approvers": ["local", "ann"]}}
    await ask.post("/tasks", {**gated, "agentId": "ada"}, status=202)
    await read_tasks(ask)
    (one,) = (await ask.get("/approvals?state=open"))["approvals"]
    target = f"/approvals/{one['id']}"
    await ask.post(f"{target}/link", {"approver": "ann"}, status=201)
    body = {"decision": "approve", "hash": one["hash"], "answer": {"amount": 5}, "comment": "ok"}
    await ask.post(f"{target}/decide", body)
    await ask.get(target)
    await ask.post("/tasks", {"handler": "asks", "priority": "critical"}, status=202)
    for _ in range(2):
        wanted = {"worker": "w", "handlers": ["asks"]}
        (lease,) = (await ask.post("/leases", wanted))["leases"]
        asking = {"name": "q", "title": "Really?", "form": form}
        asked = await ask.post(f"/leases/{lease['leaseId']}/ask", asking)
        shown = await ask.get(f"/approvals/{asked['approval']['id']}")
        if asked["suspended"]:
            body = {"decision": "approve", "hash": shown["hash"], "answer": {"amount": 1}}
            await ask.post(f"/approvals/{shown['id']}/decide", {**body, "comment": "c"})
    await ask.post("/tasks", {"handler": "asks", "approval": {"title": "Go?"}}, status=202)
    (last,) = (await ask.get("/approvals?state=open&limit=1"))["approvals"]
    body = {"decision": "approve", "hash": last["hash"], "comment": "c"}
    await ask.post(f"/approvals/{last['id']}/decide", body)
    await ask.post("/leases", {"worker": "w", "handlers": ["asks"], "limit": 2})
    await ask.get("/approvals?limit=1")
    await app.settle()


async def record(ask: Contract) -> None:
    """Record steps, and lease the task again with them."""
    await ask.post("/tasks", {"handler": "steps", "priority": "critical"}, status=202)
    wanted = {"worker": "w", "handlers": ["steps"]}
    for number in (1, 2):
        (lease,) = (await ask.post("/leases", wanted))["leases"]
        target = f"/leases/{lease['leaseId']}"
        for _ in range(2):
            await ask.post(f"{target}/checkpoint", {"name": f"s{number}", "value": {"n": number}})
        await ask.get(f"/tasks/{lease['taskId']}")
        until = {"delayMs": 0} if number == 1 else {"signal": "go"}
        await ask.post(f"{target}/suspend", {"until": until})
        if number == 1:
            await ask.post(f"{target}/release", {})
    await ask.get(f"/tasks/{lease['taskId']}/why")
    await ask.post(f"/tasks/{lease['taskId']}/signals/go", {"value": 1})
    (lease,) = (await ask.post("/leases", wanted))["leases"]
    await ask.post(f"/leases/{lease['leaseId']}/suspend", {"until": {"signal": "go"}})
    await read_tasks(ask)
    await have_effect(ask, lease, wanted)


async def have_effect(ask: Contract, lease: JsonObject, wanted: JsonObject) -> None:
    """Begin an effect, lose the lease, and decide on the unknown outcome."""
    target, body = f"/leases/{lease['leaseId']}", {"name": "charge"}
    await ask.post(f"{target}/effect", body)
    await ask.post(f"{target}/effect", {**body, "happened": False})
    await ask.post(f"{target}/effect", {**body, "check": True})
    await ask.post(f"{target}/release", {})
    (lease,) = (await ask.post("/leases", wanted))["leases"]
    await ask.post(f"/leases/{lease['leaseId']}/effect", body, status=409)
    await ask.get(f"/tasks/{lease['taskId']}")
    await ask.post(f"/tasks/{lease['taskId']}/effects/charge", {"happened": True, "value": 1})
    await ask.get(f"/tasks/{lease['taskId']}")


async def steer(ask: Contract) -> None:
    """Send messages to a running task, which reads, takes and gets them with a renewal."""
    said = {"handler": "steered", "sender": "ada", "noMerge": True, "metadata": {"n": 1}}
    await ask.ask("PATCH", "/sessions/steered", {"cap": 1000})
    await ask.post("/sessions/steered/messages", {**said, "message": "go"}, status=202)
    wanted = {"worker": "w", "handlers": ["steered"]}
    (lease,) = (await ask.post("/leases", wanted))["leases"]
    target = f"/leases/{lease['leaseId']}"
    said |= {"mode": "steer", "sentAt": "2030-01-01T00:00:00Z", "media": [{"url": "x"}]}
    sent = [
        await ask.post("/sessions/steered/messages", {**said, "message": str(n)}, status=202)
        for n in range(3)
    ]
    message = f"/sessions/steered/messages/{sent[0]['messageId']}"
    for _ in range(2):
        await ask.ask("DELETE", message)
    page = await ask.get(f"{target}/inbox")
    renewed = await ask.post(f"{target}/renew", {})
    assert renewed["inbox"]["messages"] == page["messages"]
    await ask.post(f"{target}/renew", {"inboxAfter": page["cursor"]})
    await ask.get(f"{target}/inbox?after=2&waitMs=1")
    await ask.post(f"{target}/inbox", {"after": "0"})
    await ask.get(f"/tasks/{lease['taskId']}")
    for number in range(101):
        said["metadata"] = {"n": number}
        await ask.post("/sessions/steered/messages", {**said, "message": "x"}, status=202)
    assert (await ask.get(f"{target}/inbox"))["more"]
    assert (await ask.post(f"{target}/renew", {}))["inbox"]["more"]
    said["mode"] = "rollback"
    last = await ask.post("/sessions/steered/messages", {**said, "message": "x"}, status=202)
    await ask.get(f"/tasks/{last['taskId']}")
    await ask.post(f"{target}/complete", {})


async def read_tasks(ask: Contract) -> None:
    for query in ("", "?brief=true", "?limit=1", "?state=done,failed&text=a"):
        page = await ask.get(f"/tasks{query}")
    await ask.get("/tasks/count?since=1h")
    await ask.get("/tasks/stats")
    assert "nextBefore" in await ask.get("/events?order=newest&limit=1")
    for task in (await ask.get("/tasks"))["tasks"]:
        await ask.get(f"/tasks/{task['taskId']}")
        await ask.get(f"/tasks/{task['taskId']}/why")
        await ask.get(f"/tasks/{task['taskId']}/wait?timeoutMs=0")
        await ask.get(f"/tasks/{task['taskId']}/events")
        await ask.get(f"/tasks/{task['taskId']}/timeline")
        await ask.get(f"/tasks/{task['taskId']}/output")
    assert page["count"]


async def talk(ask: Contract) -> None:
    await ask.ask("PATCH", "/sessions/chat", {"mode": "queue", "debounceMs": 60_000})
    message: dict[str, object] = {"message": "hello", "handler": "outside", "sender": "ada"}
    message |= {"sentAt": "2100-01-01T00:00:00Z", "metadata": {"chat": 7}}
    await ask.post("/sessions/chat/messages", message, status=202)
    await ask.post("/sessions/chat/messages", message, status=202)
    await ask.post(
        "/sessions/other/messages",
        {**message, "noMerge": True, "media": [{}], "lane": "nowhere"},
        status=202,
    )
    await ask.post("/leases", {"worker": "w", "limit": 10, "start": True})
    await ask.ask("PUT", "/sessions/chat/usage", {"tokens": 90, "contextWindow": 100})
    for target in ("/sessions", "/sessions?limit=1", "/sessions/chat", "/sessions/other"):
        await ask.get(target)
    await ask.post("/sessions/other/stop")
    await ask.post("/sessions/chat/messages", {"message": "/stop"})
    await ask.post("/sessions/chat/stopall")
    await ask.post("/sessions/chat/reset")
    await ask.get("/sessions/chat")
    await ask.post("/tasks", {"handler": "outside", "sessionKey": "chat"}, status=202)
    await read_tasks(ask)


async def queue(ask: Contract) -> None:
    for number in range(5):
        entry = {"id": f"q{number}", "runId": "r", "appId": "a", "workflowId": "w", "repo": "/r"}
        entry |= {"inputs": {"pr": 7}, "note": "n", "priority": 20}
        await ask.post("/queue", entry, status=201)
    await ask.post("/queue/import", FILE)
    await ask.post("/queue/drain", {"limit": 1})
    await ask.post("/leases", {"worker": "w", "lanes": ["queue"]})
    await ask.post("/lanes/queue/pause")
    await ask.get("/lanes/queue")
    await ask.post("/queue/drain", {"limit": 100})
    await ask.post("/lanes/queue/resume")
    for target in ("/queue", "/queue?limit=1", "/queue?status=drained", "/scheduler/policy"):
        await ask.get(target)
    for entry in (await ask.get("/queue"))["entries"]:
        await ask.get(f"/queue/{entry['id']}")
    await ask.ask("PATCH", "/scheduler/policy", {"maxAttempts": 2, "backoffFactor": 1.5})
    await ask.post("/queue", {"id": "late", "runId": "r"}, status=201)
    await ask.get("/scheduler/plan")
    await ask.get("/scheduler/plan?lane=main&now=2100-01-01T00:00:00Z&limit=1")


async def plan(ask: Contract, app: MemoryFairlane) -> None:
    """Cron jobs with runs, and templates with tasks."""
    job = (await ask.post("/cron/jobs", JOB, status=201))["id"]
    others = [
        {**JOB, "name": "once", "schedule": {"kind": "at", "at": "2100-01-01T00:00:00Z"}},
        {**JOB, "name": "daily", "schedule": {"kind": "cron", "expr": "@daily", "tz": "UTC"}},
        {**JOB, "name": "failing", "task": {"handler": "shout"}, **FAILING},
    ]
    await ask.post("/cron/jobs", {"jobs": others}, status=201)
    await ask.post(f"/cron/jobs/{job}/run", status=202)
    for _ in range(2):
        await app.advance(61)
        await app.settle()
    await ask.ask("PATCH", f"/cron/jobs/{job}", {"jitterMs": 5, "maxRuns": 9, "timeoutMs": 1000})
    await ask.post("/cron/jobs/daily/toggle", {"enabled": False})
    for target in ("/cron/jobs", "/cron/jobs?limit=1", "/cron/jobs/daily", "/cron/jobs/failing"):
        await ask.get(target)
    for target in (f"/cron/jobs/{job}/runs", "/cron/runs", "/cron/runs?limit=1"):
        await ask.get(target)
    await ask.get("/cron/preview?expr=@daily&tz=Asia/Tokyo&n=2")
    template = (await ask.post("/templates", TEMPLATE, status=201))["id"]
    await ask.post("/templates", {"name": "plain", "instruction": "go"}, status=201)
    target = f"/templates/{template}/instantiate"
    await ask.post(target, {"params": {"city": "Rome"}})
    await ask.post(target, {"params": {"city": "Rome"}, "submit": True}, status=202)
    for method in ("PATCH", "PUT"):
        await ask.ask(method, f"/templates/{template}", {"description": "d", "priority": "high"})
    for target in ("/templates", "/templates?limit=1", f"/templates/{template}"):
        await ask.get(target)


async def operate(ask: Contract) -> None:
    who = {"X-Fairlane-Actor": "ada"}
    await ask.get("/resources/gpt/history")
    await ask.ask("PATCH", "/policy?note=n", {"agents": {"ada": {"weight": 2}}}, headers=who)
    await ask.ask("PUT", "/policy?author=ada", {**LANES, "workerCount": 7})
    await ask.post("/policy/rollback", {"version": 0})
    await ask.post("/policy/check", {**LANES, "scheduler": {"enabled": True}})
    await ask.post("/policy/check?patch=true", {"lanes": {"main": {"maxInflight": -1}, "no": 1}})
    for verb in ("pause", "resume", "clear"):
        await ask.post(f"/lanes/main/{verb}")


async def read(ask: Contract) -> None:
    """Every read that takes no id, and each item of the lists that are left."""
    await read_tasks(ask)
    for path in (one.path for one in OPERATIONS.values() if one.method == GET):
        if "{" not in path and path != "/cron/preview":
            await ask.get(path)
    for one in (await ask.get("/policy/versions"))["versions"]:
        await ask.get(f"/policy?version={one['version']}")
    for target in ("/policy/diff?from=0&to=1", "/policy/versions?limit=1"):
        await ask.get(target)
    for target in ("/stats/history?window=1h&shares=true", "/events?after=0&limit=500", "/audit"):
        await ask.get(target)
    for page in ("/batches", "/deliveries", "/webhooks", "/audit"):
        await ask.get(f"{page}?limit=1")
    for batch in (await ask.get("/batches"))["batches"]:
        await ask.get(f"/batches/{batch['batchId']}")
        await ask.get(f"/batches/{batch['batchId']}/timeline")
    for delivery in (await ask.get("/deliveries"))["deliveries"]:
        await ask.get(f"/deliveries/{delivery['id']}")
    for endpoint in (await ask.get("/webhooks"))["endpoints"]:
        await ask.get(f"/webhooks/{endpoint['id']}")


async def change(ask: Contract) -> None:
    """What ends or repeats the things that the scenario has made."""
    tasks = (await ask.get("/tasks?limit=1000"))["tasks"]
    state: dict[str, list[str]] = {}
    for task in tasks:
        state.setdefault(task["state"], []).append(task["taskId"])
    for group in (await ask.get("/failures?limit=3"))["failures"]:
        path = f"/failures/{group['fingerprint']}/retry"
        await ask.post(path, {"dryRun": True, "limit": 1})
    await ask.post(f"/tasks/{state['failed'][0]}/retry")
    await ask.post(f"/tasks/{state['parked'][0]}/reset")
    new = [await ask.post("/tasks", {"handler": "outside"}, status=202) for _ in range(2)]
    await ask.post(f"/tasks/{new[0]['taskId']}/cancel")
    await ask.ask("DELETE", f"/tasks/{new[1]['taskId']}")
    for verb in ("cancel", "retry", "reset"):
        await ask.post(f"/tasks/{verb}", {"agentId": "ada", "dryRun": True, "limit": 1})
        await ask.post(f"/tasks/{verb}", {"lane": "main"})
    await ask.post("/tasks/prune", {})
    batch = (await ask.get("/batches"))["batches"][-1]
    await ask.post(f"/batches/{batch['batchId']}/cancel")
    delivery = (await ask.get("/deliveries"))["deliveries"][0]
    await ask.post(f"/deliveries/{delivery['id']}/redeliver", status=202)
    endpoint = (await ask.get("/webhooks"))["endpoints"][0]["id"]
    for verb in ("rotate", "enable"):
        await ask.post(f"/webhooks/{endpoint}/{verb}", {} if verb == "rotate" else None)
    await ask.get(f"/webhooks/{endpoint}")
    await ask.ask("DELETE", f"/webhooks/{endpoint}")
    for path, name in (("/cron/jobs", "jobs"), ("/templates", "templates")):
        await ask.ask("DELETE", f"{path}/{(await ask.get(path))[name][0]['id']}")


async def protect(ask: Contract) -> None:
    """Tokens come last: from the first one on, requests need one. Then what is refused."""
    wanted = {"name": "admin", "scopes": ["admin", "all"], "rate": "600/m", "maxOpen": 100}
    token = (await ask.post("/tokens", wanted, status=201))["token"]
    headers = {"authorization": f"Bearer {token}"}
    bound = {"name": "ada", "agentId": "ada", "expiresAt": "2100-01-01T00:00:00Z"}
    other = await ask.post("/tokens", bound, status=201, headers=headers)
    await ask.get("/whoami", headers=headers)
    await ask.get("/whoami", headers={"authorization": f"Bearer {other['token']}"})
    await ask.get("/tokens", headers={"authorization": f"Bearer {other['token']}"}, status=403)
    await ask.get("/tasks", status=401)
    await ask.get("/tasks/unknown", headers=headers, status=404)
    await ask.post("/tasks", {"handler": 1}, headers=headers, status=400)
    await ask.ask("DELETE", f"/tokens/{other['id']}", headers=headers)
    await ask.get("/tokens", headers=headers)
    await ask.get("/audit", headers=headers)
