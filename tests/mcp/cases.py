"""For each tool: what is there, what the command is told, and what the tool is told.

`{name}` in a command or an argument is what `prepare` has found under that name; `{file}` is a file
with `file` in it. The two ways of asking have to mean the same: that is what a case claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fairlane.client.base import BaseClient

Names = dict[str, str]
Prepare = Callable[[BaseClient], Names]

TEMPLATE = {
    "name": "trip",
    "instruction": "Go to {{city}}",
    "parameters": [{"name": "city", "type": "string", "required": True}],
}
JOB = {
    "name": "standup",
    "schedule": {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"},
    "task": {"handler": "nobody", "params": {"text": "Grüße"}},
}
SPEND = {"resources": {"spend": {"limits": [{"unit": "usd", "amount": 50, "resetEvery": "day"}]}}}
LANES = {"lanes": {"main": {"maxInflight": 50}}}


def nothing(_: BaseClient) -> Names:
    return {}


def queued(client: BaseClient) -> Names:
    task = client.submit(handler="nobody", agent="a1", params={"text": "Grüße 🦊"})
    return {"task": task["taskId"]}


def depending(client: BaseClient) -> Names:
    names = queued(client)
    client.submit(handler="nobody", agent="a1", depends_on=[names["task"]])
    return names


def cancelled(client: BaseClient) -> Names:
    names = queued(client)
    client.cancel(names["task"])
    return names


def batched(client: BaseClient) -> Names:
    answer = client.submit_batch([{"handler": "nobody"}, {"handler": "nobody"}], agent="a1")
    return {"batch": answer["batchId"]}


def added(client: BaseClient) -> Names:
    client.queue_add(id="q-7", app="review", repo="/r", inputs={"pr": 7}, priority=20)
    return {}


def leased(client: BaseClient) -> Names:
    added(client)
    (lease,) = client.lease("sched", lanes=["queue"], start=True)["leases"]
    return {"lease": lease["leaseId"], "task": lease["taskId"]}


def parked(client: BaseClient) -> Names:
    client.set_queue_policy({"maxAttempts": 1})
    names = leased(client)
    client.fail_lease(names["lease"], "it broke")
    return names


def broken(client: BaseClient) -> Names:
    names = parked(client)
    return {**names, "failure": client.failures().failures[0].fingerprint}


def said(client: BaseClient) -> Names:
    client.set_session("chat:7", debounce_ms=60_000, debounce_max_ms=600_000)  # it stays open
    sent = client.message("chat:7", "What is new?", agent="a1", sender="ada")
    return {"message": sent["messageId"]}


def changed(client: BaseClient) -> Names:
    client.patch_policy(LANES, author="ada", note="more room")
    return {}


def template(client: BaseClient) -> Names:
    return {"template": client.create_template(TEMPLATE)["id"]}


def job(client: BaseClient) -> Names:
    return {"job": client.create_cron_job(JOB)["id"]}


def job_off(client: BaseClient) -> Names:
    return {"job": client.create_cron_job({**JOB, "enabled": False})["id"]}


def job_ran(client: BaseClient) -> Names:
    names = job(client)
    client.run_cron_job(names["job"])
    return names


@dataclass(frozen=True)
class Case:
    command: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    prepare: Prepare = nothing
    file: Any = None


def asked(client: BaseClient) -> Names:
    names = queued(client)
    client.submit(handler="nobody", agent="a1", approval={"title": "Send it?"})
    (one,) = client.approvals(state="open").approvals
    return {**names, "approval": one.id, "hash": one.hash}


def spent(client: BaseClient) -> Names:
    """A budget of which one task has used 2 and another holds 3."""
    client.patch_policy(SPEND)
    for amount in (2, 3):
        client.submit(handler="nobody", agent="a1", needs={"spend": {"usd": amount}})
    first, _ = client.lease("w1", limit=2, start=True).leases
    client.complete_lease(first.lease_id, usage={"spend": {"usd": 2}})
    return {}


def closed(client: BaseClient) -> Names:
    spent(client)
    client.close_resource("spend", reason="incident")
    return {}


_RESOURCES = {
    "resources": Case("resources list --limit 5", {"limit": 5}, spent),
    "resource": Case("resources list spend", {"name": "spend"}, spent),
    "resource_ledger": Case(
        "resources ledger spend --unit usd --limit 2",
        {"name": "spend", "unit": "usd", "limit": 2},
        spent,
    ),
    "resource_usage": Case("resources usage spend", {"name": "spend"}, spent),
    "resource_close": Case(
        "resources close spend --for 5m --reason incident",
        {"name": "spend", "forMs": 300_000, "reason": "incident"},
        spent,
    ),
    "resource_open": Case("resources open spend", {"name": "spend"}, closed),
    "resource_raise": Case(
        "resources raise spend --unit usd --amount 10.50",
        {"name": "spend", "unit": "usd", "amount": "10.50"},
        spent,
    ),
}
_APPROVALS = {
    "approvals": Case("approvals list --state all --limit 5", {"limit": 5}, asked),
    "approval": Case("approvals show {approval}", {"approvalId": "{approval}"}, asked),
    "approve": Case(
        "approve {approval} --hash {hash} --comment fine",
        {"approvalId": "{approval}", "hash": "{hash}", "comment": "fine"},
        asked,
    ),
    "reject": Case(
        "reject {approval} --hash {hash}", {"approvalId": "{approval}", "hash": "{hash}"}, asked
    ),
}
_TASKS = {
    "submit": Case(
        "submit --agent a1 --handler nobody --param text=Grüße --priority 5 --session chat:7",
        {
            "agentId": "a1",
            "handler": "nobody",
            "params": {"text": "Grüße"},
            "priority": 5,
            "sessionKey": "chat:7",
        },
    ),
    "submit_batch": Case(
        "batch submit {file} --agent a1 --parallelism 2",
        {"tasks": [{"handler": "nobody"}, {"handler": ""}], "agentId": "a1", "parallelism": 2},
        file=[{"handler": "nobody"}, {"handler": ""}],
    ),
    "tasks": Case(
        "tasks --agent a1 --state waiting_dependency --depends-on {task} --text BODY --brief "
        "--lane main --kind handler --limit 5",
        {
            "agentId": "a1",
            "state": ["waiting_dependency"],
            "dependsOn": "{task}",
            "text": "BODY",
            "brief": True,
            "lane": "main",
            "kind": "handler",
            "limit": 5,
        },
        depending,
    ),
    "count_tasks": Case(
        "tasks --agent a1 --count --handler nobody", {"agentId": "a1", "handler": "nobody"}, queued
    ),
    "failures": Case("failures --lane queue", {"lane": "queue"}, parked),
    "retry_failures": Case(
        "retry --failure {failure} --dry-run", {"fingerprint": "{failure}", "dryRun": True}, broken
    ),
    "show": Case("show {task}", {"taskId": "{task}"}, queued),
    "why": Case("why {task}", {"taskId": "{task}"}, queued),
    "wait": Case("wait {task}", {"taskId": "{task}"}, cancelled),
    "events": Case("events --task {task}", {"taskId": "{task}"}, cancelled),
    "output": Case("output {task}", {"taskId": "{task}"}, queued),
    "cancel": Case("cancel {task}", {"taskId": "{task}"}, queued),
    "retry": Case("retry {task}", {"taskId": "{task}"}, cancelled),
    "reset": Case("reset {task}", {"taskId": "{task}"}, parked),
    "cancel_many": Case("cancel --agent a1", {"agentId": "a1"}, queued),
    "retry_many": Case(
        "retry --state cancelled --dry-run", {"state": ["cancelled"], "dryRun": True}, cancelled
    ),
    "reset_many": Case("reset --lane queue", {"lane": "queue"}, parked),
    "stats": Case("stats", {}, queued),
    "attention": Case("attention", {}, queued),
    "workers": Case("workers", {}, queued),
    "handlers": Case("handlers --window 1h", {"window": "1h"}, queued),
    "batch": Case("batch show {batch}", {"batchId": "{batch}"}, batched),
    "batches": Case("batch list --agent a1", {"agentId": "a1"}, batched),
    "cancel_batch": Case("batch cancel {batch}", {"batchId": "{batch}"}, batched),
}
_LEASES = {
    "plan": Case("sched plan --now 2126-01-01T00:00:00Z", {"now": "2126-01-01T00:00:00Z"}, added),
    "lease": Case(
        "sched lease --worker w1 --limit 3",
        {"worker": "w1", "lanes": ["queue"], "limit": 3, "start": True},
        added,
    ),
    "renew": Case("sched renew {lease} --ttl 5m", {"leaseId": "{lease}", "ttlMs": 300_000}, leased),
    "complete": Case(
        """sched complete {lease} --result {"ok":true}""",
        {"leaseId": "{lease}", "result": {"ok": True}},
        leased,
    ),
    "fail": Case(
        "sched release {lease} --failed --reason broken",
        {"leaseId": "{lease}", "error": "broken"},
        leased,
    ),
    "release": Case("sched release {lease}", {"leaseId": "{lease}"}, leased),
    "reclaim": Case("sched reclaim", {}, leased),
    "queue_add": Case(
        "queue add --id q-7 --app review --repo /r --input pr=7",
        {"id": "q-7", "appId": "review", "repo": "/r", "inputs": {"pr": 7}},
    ),
    "queue_list": Case("queue list --status pending", {"status": "pending"}, added),
    "queue_show": Case("queue show q-7", {"id": "q-7"}, added),
    "queue_drain": Case("queue drain --limit 2", {"limit": 2}, added),
    "queue_policy": Case("sched policy show"),
    "queue_policy_set": Case(
        "sched policy set --maxConcurrent 3", {"settings": {"maxConcurrent": 3}}
    ),
}
_SESSIONS = {
    "sessions_list": Case("sessions list", {}, said),
    "sessions_show": Case("sessions list chat:7", {"sessionKey": "chat:7"}, said),
    "sessions_message": Case(
        "message chat:7 hello --sender ada --agent a1",
        {"sessionKey": "chat:7", "message": "hello", "sender": "ada", "agentId": "a1"},
    ),
    "sessions_withdraw": Case(
        "sessions withdraw chat:7 {message}",
        {"sessionKey": "chat:7", "messageId": "{message}"},
        said,
    ),
    "sessions_stop": Case("stop chat:7", {"sessionKey": "chat:7"}, said),
    "sessions_stopall": Case("stopall chat:7", {"sessionKey": "chat:7"}, said),
    "sessions_reset": Case("sessions reset chat:7", {"sessionKey": "chat:7"}, said),
    "sessions_set": Case(
        "sessions set chat:7 --mode interrupt --cap 3",
        {"sessionKey": "chat:7", "mode": "interrupt", "cap": 3},
        said,
    ),
    "sessions_usage": Case(
        "sessions usage chat:7 700 1000",
        {"sessionKey": "chat:7", "tokens": 700, "contextWindow": 1000},
        said,
    ),
}
_RULES = {
    "lanes": Case("lanes list", {}, queued),
    "lanes_pause": Case("lanes pause main", {"lane": "main"}, queued),
    "lanes_resume": Case("lanes resume main", {"lane": "main"}, queued),
    "lanes_clear": Case("lanes clear main", {"lane": "main"}, queued),
    "policy_show": Case("policy show --version 1", {"version": 1}, changed),
    "policy_check": Case("policy check {file}", {"document": LANES}, file=LANES),
    "policy_versions": Case("policy versions --limit 5", {"limit": 5}, changed),
    "policy_diff": Case("policy diff 0 1", {"from": 0, "to": 1}, changed),
    "policy_set": Case(
        "policy set --file {file} --author ada", {"document": LANES, "author": "ada"}, file=LANES
    ),
    "policy_patch": Case(
        "policy set lanes.main.maxInflight=50 --author ada", {"document": LANES, "author": "ada"}
    ),
    "policy_rollback": Case(
        "policy rollback 0 --author ada", {"version": 0, "author": "ada"}, changed
    ),
}
_TEMPLATES = {
    "templates_list": Case("templates list", {}, template),
    "templates_show": Case("templates show {template}", {"templateId": "{template}"}, template),
    "templates_create": Case(
        "templates create --file {file}", {"document": TEMPLATE}, file=TEMPLATE
    ),
    "templates_update": Case(
        "templates update {template} --description far",
        {"templateId": "{template}", "document": {"description": "far"}},
        template,
    ),
    "templates_delete": Case("templates delete {template}", {"templateId": "{template}"}, template),
    "templates_use": Case(
        "templates use {template} --set city=Rome --agent a1 --submit",
        {
            "templateId": "{template}",
            "params": {"city": "Rome"},
            "overrides": {"agentId": "a1"},
            "submit": True,
        },
        template,
    ),
}
_CRON = {
    "cron_list": Case("cron list", {}, job),
    "cron_show": Case("cron show {job}", {"job": "{job}"}, job),
    "cron_create": Case("cron create --file {file}", {"document": JOB}, file=JOB),
    "cron_update": Case(
        "cron update {job} --overlap queue", {"job": "{job}", "document": {"overlap": "queue"}}, job
    ),
    "cron_delete": Case("cron delete {job}", {"job": "{job}"}, job),
    "cron_toggle": Case("cron toggle {job} on", {"job": "{job}", "enabled": True}, job_off),
    "cron_run": Case("cron run {job}", {"job": "{job}"}, job),
    "cron_runs": Case("cron runs {job}", {"job": "{job}"}, job_ran),
    "cron_preview": Case("cron preview @yearly -n 3", {"expr": "@yearly", "n": 3}),
}
CASES: Mapping[str, Case] = {
    **_RESOURCES,
    **_APPROVALS,
    **_TASKS,
    **_LEASES,
    **_SESSIONS,
    **_RULES,
    **_TEMPLATES,
    **_CRON,
}

# What is refused has to be told in the same words too.
REFUSED: Mapping[str, tuple[str, Case]] = {
    "unknown": ("show", Case("show tsk_none", {"taskId": "tsk_none"})),
    "over": ("cancel", Case("cancel {task}", {"taskId": "{task}"}, cancelled)),
    "lost": ("complete", Case("sched complete lse_7_7", {"leaseId": "lse_7_7"})),
    "invalid": (
        "submit",
        Case("submit --handler x --agent a/b", {"handler": "x", "agentId": "a/b"}),
    ),
    "taken": (
        "queue_add",
        Case("queue add --id q-7 --repo /r", {"id": "q-7", "repo": "/r"}, added),
    ),
    "policy": (
        "policy_patch",
        Case(
            "policy set lanes.main.maxInflight=-1 --author ada",
            {"document": {"lanes": {"main": {"maxInflight": -1}}}, "author": "ada"},
        ),
    ),
}
