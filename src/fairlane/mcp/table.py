"""The tools, one row each: which verb it calls, who may call it, and which command does the same.

The text of a tool's answer is what its command prints with `--json`. A verb that agents get is a
row here and nothing else: its arguments come from the verb's signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlane.core.templates import Definition
from fairlane.mcp.calls import Calls
from fairlane.mcp.schemas import changes, document, schema_of
from fairlane.mcp.tool import Tool, read, write
from fairlane.schema.bodies import TaskBody
from fairlane.schema.jobs import JobBody

_SESSION: Final = {"key": "sessionKey"}
_LANE: Final = {"name": "lane"}
_STATES: Final = {"states": "state"}
_QUEUE: Final = {"run": "runId", "app": "appId", "workflow": "workflowId"}

_TASKS: Final = (
    write(
        "submit",
        Calls.submit,
        "submit",
        "submit",
        "Hand in a task: a handler, a browser action or an instruction, just one of these.",
        open_world=True,
    ),
    write(
        "submit_batch",
        Calls.submit_batch,
        "batch submit",
        "submit",
        "Hand in many tasks together; they may depend on each other by their keys.",
        open_world=True,
        shapes={"tasks": {"items": schema_of(TaskBody)}},
    ),
    read(
        "tasks",
        Calls.tasks,
        "tasks",
        "List tasks, newest first, one page.",
        names=_STATES,
        meanings={"dependsOn": "only tasks that depend on the one with this id"},
        strangers=True,
    ),
    read("show", Calls.show, "show", "Show a task with its attempts.", strangers=True),
    read(
        "why",
        Calls.why,
        "why",
        "Why a task does not run yet: what it waits for, and its place in line.",
        strangers=True,
    ),
    read(
        "wait",
        Calls.wait,
        "wait",
        "Wait until a task has ended or is parked; the task as it is then, or when time is up.",
        strangers=True,
    ),
    read(
        "events",
        Calls.events,
        "events",
        "Tell what has happened, of a task (taskId) or at all, oldest first, one line each.",
        names={"task": "taskId", "types": "type"},
        lines="events",
        strangers=True,
    ),
    read(
        "output",
        Calls.output,
        "output",
        "The text that the newest attempt of a task has produced so far.",
        strangers=True,
    ),
    write(
        "cancel",
        Calls.cancel,
        "cancel",
        "cancel",
        "Cancel a task, also one that runs.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "retry",
        Calls.retry,
        "retry",
        "operate",
        "Queue a failed or cancelled task again, with all its attempts.",
        open_world=True,
    ),
    write(
        "reset",
        Calls.reset,
        "reset",
        "operate",
        "Queue a parked task again, with all its attempts.",
        open_world=True,
    ),
    write(
        "cancel_many",
        Calls.cancel_many,
        "cancel",
        "cancel",
        "Cancel all tasks that fit; say at least one of the filters. dryRun only counts them.",
        names=_STATES,
        destructive=True,
        idempotent=True,
    ),
    write(
        "retry_many",
        Calls.retry_many,
        "retry",
        "operate",
        "Queue all failed or cancelled tasks that fit again; say at least one of the filters.",
        names=_STATES,
        open_world=True,
    ),
    write(
        "reset_many",
        Calls.reset_many,
        "reset",
        "operate",
        "Queue all parked tasks that fit again; say at least one of the filters.",
        names=_STATES,
        open_world=True,
    ),
    read("stats", Calls.stats, "stats", "What the scheduler has done and has to do."),
    read("batch", Calls.batch, "batch show", "Show a batch: how many of its tasks are where."),
    read("batches", Calls.batches, "batch list", "List batches, newest first, one page."),
    write(
        "cancel_batch",
        Calls.cancel_batch,
        "batch cancel",
        "cancel",
        "Cancel what has not ended of a batch.",
        destructive=True,
        idempotent=True,
    ),
)

_LEASES: Final = (
    read(
        "plan",
        Calls.plan,
        "sched plan",
        "What a lease of a lane would give now, or at another moment, and why the rest waits.",
    ),
    write(
        "lease",
        Calls.lease,
        "sched lease",
        "lease",
        "Take tasks to run them. Report with complete, fail or release before the lease ends; "
        "renew it in time.",
        without=frozenset({"wait_ms"}),  # who is gone meanwhile would take leases along
        strangers=True,
    ),
    write(
        "start",
        Calls.start_lease,
        "",
        "lease",
        "Say that the work of a lease has begun, if lease was not told to start it.",
        alone="the command leases and starts at once",
        idempotent=True,
    ),
    write(
        "renew",
        Calls.renew_lease,
        "sched renew",
        "lease",
        "Keep a lease for longer and tell progress; cancelRequested in the answer says to stop.",
    ),
    write(
        "complete",
        Calls.complete_lease,
        "sched complete",
        "lease",
        "The work of a lease is done.",
        idempotent=True,
    ),
    write(
        "fail",
        Calls.fail_lease,
        "sched release",
        "lease",
        "The work of a lease went wrong: one attempt is spent; it is tried again if any is left.",
        idempotent=True,
    ),
    write(
        "release",
        Calls.release_lease,
        "sched release",
        "lease",
        "Give a lease back: the task is queued again and no attempt is spent.",
        idempotent=True,
    ),
    write(
        "reclaim",
        Calls.reclaim_leases,
        "sched reclaim",
        "lease",
        "Take back all leases that have run out, now instead of a moment later.",
        idempotent=True,
    ),
    write(
        "queue_add",
        Calls.queue_add,
        "queue add",
        "submit",
        "Put an entry into the queue; the lowest priority goes first, 100 if none is given.",
        names=_QUEUE,
    ),
    read(
        "queue_list",
        Calls.queue_list,
        "queue list",
        "List entries of the queue in their order, one page.",
        strangers=True,
    ),
    read(
        "queue_show",
        Calls.queue_show,
        "queue show",
        "Show an entry of the queue.",
        names={"entry_id": "id"},
        strangers=True,
    ),
    write(
        "queue_drain",
        Calls.queue_drain,
        "queue drain",
        "lease",
        "Hand over the next entries for good, without leases: who asks runs them.",
        destructive=True,
        strangers=True,
    ),
    read("queue_policy", Calls.queue_policy, "sched policy show", "The rules of the queue."),
    write(
        "queue_policy_set",
        Calls.set_queue_policy,
        "sched policy set",
        "admin",
        "Set rules of the queue: maxConcurrent, maxAttempts, leaseTtlMs, backoffBaseMs, "
        "backoffFactor, backoffCapMs.",
        destructive=True,
        idempotent=True,
    ),
)

_SESSIONS: Final = (
    read("sessions_list", Calls.sessions, "sessions list", "List sessions by key, one page."),
    read(
        "sessions_show",
        Calls.session,
        "sessions list",
        "Show a session: what runs, what waits in which place, its settings.",
        names=_SESSION,
        strangers=True,
    ),
    write(
        "sessions_message",
        Calls.message,
        "message",
        "submit",
        "Say something in a session: an instruction, or with handler a handler's message.",
        names={**_SESSION, "text": "message"},
        open_world=True,
    ),
    write(
        "sessions_stop",
        Calls.stop_session,
        "stop",
        "cancel",
        "Cancel the oldest run of a session; the rest goes on.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_stopall",
        Calls.stop_all,
        "stopall",
        "cancel",
        "Cancel all runs of a session and drop what waits.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_reset",
        Calls.reset_session,
        "sessions reset",
        "cancel",
        "The same as sessions_stopall, and a new generation of the session begins.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_set",
        Calls.set_session,
        "sessions set",
        "operate",
        "Set how a session behaves, for good.",
        names=_SESSION,
        idempotent=True,
    ),
    write(
        "sessions_usage",
        Calls.set_usage,
        "sessions usage",
        "operate",
        "Tell how full the context window of a session is.",
        names=_SESSION,
        idempotent=True,
    ),
)

_RULES: Final = (
    read("lanes", Calls.lanes, "lanes list", "List lanes: ceilings, what runs, what waits."),
    write(
        "lanes_pause",
        Calls.pause_lane,
        "lanes pause",
        "operate",
        "Start nothing more in a lane; what runs goes on.",
        names=_LANE,
        without=frozenset({"actor"}),
        idempotent=True,
    ),
    write(
        "lanes_resume",
        Calls.resume_lane,
        "lanes resume",
        "operate",
        "Start work in a lane again.",
        names=_LANE,
        without=frozenset({"actor"}),
        idempotent=True,
    ),
    write(
        "lanes_clear",
        Calls.clear_lane,
        "lanes clear",
        "operate",
        "Cancel everything that is queued in a lane.",
        names=_LANE,
        destructive=True,
        idempotent=True,
    ),
    read(
        "policy_show", Calls.policy, "policy show", "The policy in force, or one of its versions."
    ),
    read(
        "policy_check",
        Calls.check_policy,
        "policy check",
        "What is wrong with a policy document, or what it would change; changes nothing.",
    ),
    read(
        "policy_versions",
        Calls.policy_versions,
        "policy versions",
        "List the versions of the policy, newest first: who, when, why and what.",
    ),
    read(
        "policy_diff",
        Calls.policy_diff,
        "policy diff",
        "Compare two versions of the policy.",
        names={"before": "from", "after": "to"},
    ),
    write(
        "policy_set",
        Calls.set_policy,
        "policy set",
        "admin",
        "Replace the policy: what the document does not say has its default.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "policy_patch",
        Calls.patch_policy,
        "policy set",
        "admin",
        "Change what the document says of the policy; null brings a default back.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "policy_rollback",
        Calls.rollback_policy,
        "policy rollback",
        "admin",
        "Make an old version of the policy the newest one.",
        destructive=True,
        idempotent=True,
    ),
)

_TEMPLATES: Final = (
    read(
        "templates_list",
        Calls.templates,
        "templates list",
        "List templates, newest first, one page.",
        strangers=True,
    ),
    read(
        "templates_show",
        Calls.template,
        "templates show",
        "Show a template.",
        strangers=True,
    ),
    write(
        "templates_create",
        Calls.create_template,
        "templates create",
        "operate",
        "Keep an instruction with parameters ({{name}} in the text) as a template.",
        shapes={"document": changes(Definition)},
    ),
    write(
        "templates_update",
        Calls.update_template,
        "templates update",
        "operate",
        "Change fields of a template; null clears one.",
        destructive=True,
        idempotent=True,
        shapes={"document": changes(Definition)},
    ),
    write(
        "templates_delete",
        Calls.delete_template,
        "templates delete",
        "operate",
        "Delete a template.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "templates_use",
        Calls.use_template,
        "templates use",
        "submit",
        "Fill in a template: show the task it makes, or submit it.",
        open_world=True,
    ),
)

_CRON: Final = (
    read(
        "cron_list",
        Calls.cron_jobs,
        "cron list",
        "List cron jobs, newest first, one page.",
        strangers=True,
    ),
    read("cron_show", Calls.cron_job, "cron show", "Show a cron job.", strangers=True),
    write(
        "cron_create",
        Calls.create_cron_job,
        "cron add",
        "operate",
        "Submit a task at moments: schedule says when, task is as for submit.",
        open_world=True,
        shapes={"document": document(JobBody)},
    ),
    write(
        "cron_update",
        Calls.update_cron_job,
        "cron edit",
        "operate",
        "Change fields of a cron job; null clears one.",
        destructive=True,
        idempotent=True,
        open_world=True,
        shapes={"document": changes(JobBody)},
    ),
    write(
        "cron_delete",
        Calls.delete_cron_job,
        "cron delete",
        "operate",
        "Delete a cron job; its log stays.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "cron_toggle",
        Calls.toggle_cron_job,
        "cron on",
        "operate",
        "Switch a cron job on or off.",
        idempotent=True,
        open_world=True,
    ),
    write(
        "cron_run",
        Calls.run_cron_job,
        "cron run",
        "operate",
        "Run a cron job now; its schedule does not move.",
        open_world=True,
    ),
    read(
        "cron_runs",
        Calls.cron_runs,
        "cron runs",
        "The log of a cron job, or of all, newest first, one page.",
        strangers=True,
    ),
    read("cron_preview", Calls.cron_preview, "cron preview", "When a schedule would run next."),
)

TOOLS: Final[Mapping[str, Tool]] = {
    tool.name: tool for tool in (*_TASKS, *_LEASES, *_SESSIONS, *_RULES, *_TEMPLATES, *_CRON)
}
