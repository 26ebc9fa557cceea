"""The tools, one row each: the verb, the scope, and the command with the same output.

The text of a tool's response is what its command prints with `--json`. A new tool needs only a row
here: its arguments come from the signature of the verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlane.core.job_documents import JobDocument
from fairlane.core.lifecycle import STATES
from fairlane.core.retries import Backoff
from fairlane.core.submissions import TaskRequest
from fairlane.core.templates import TemplateDocument
from fairlane.mcp.calls import WAIT_MS, WAIT_MS_MAX, Calls
from fairlane.mcp.schemas import changes, document, schema_of
from fairlane.mcp.sessions import SESSIONS
from fairlane.mcp.tool import Tool, read, write
from fairlane.mcp.watching import WATCHING
from fairlane.schema.tasks import WAIT_ONCE

_LANE: Final = {"name": "lane"}
_STATES: Final = {"states": "state"}
_STATE_NAMES: Final = {"state": {"items": {"type": "string", "enum": list(STATES)}}}
_DECISION: Final = {
    "approval_id": "id of the approval",
    "hash_": "hash of the approval that the person saw, as the tool approval returns it",
    "answer": "values of the form",
    "comment": "reason that the caller will see",
}
_QUEUE: Final = {"run": "runId", "app": "appId", "workflow": "workflowId"}

_TASKS: Final = (
    write(
        "submit",
        Calls.submit,
        "submit",
        "submit",
        "Submit a task: exactly one of handler, action (in a browser) or instruction.",
        open_world=True,
        shapes={"retryPolicy": document(Backoff)},
    ),
    write(
        "submit_batch",
        Calls.submit_batch,
        "batch submit",
        "submit",
        "Submit many tasks, which may depend on each other by key.",
        open_world=True,
        shapes={"tasks": {"items": schema_of(TaskRequest)}},
    ),
    read(
        "tasks",
        Calls.tasks,
        "tasks",
        "List tasks, newest first, one page.",
        names=_STATES,
        shapes=_STATE_NAMES,
        strangers=True,
    ),
    read("show", Calls.show, "show", "Show a task with its attempts.", strangers=True),
    read(
        "why",
        Calls.why,
        "why",
        "Explain why a task is not running: what it waits for, and its position in line.",
        strangers=True,
    ),
    read(
        "wait",
        Calls.wait,
        "wait",
        "Wait until a task ends or is parked, or the time is up, and show it.",
        meanings={
            **WAIT_ONCE.descriptions,
            "wait_ms": f"Maximum wait in milliseconds (default {WAIT_MS}, at most {WAIT_MS_MAX})",
        },
        strangers=True,
    ),
    read(
        "events",
        Calls.list_events,
        "events",
        "List events of one task (taskId) or of all, oldest first unless order is newest.",
        names={"types": "type"},
        without=frozenset({"last_event_id"}),
        lines="events",
        strangers=True,
    ),
    read(
        "output",
        Calls.task_output,
        "output",
        "Show the text that the latest attempt of a task has produced so far.",
        strangers=True,
    ),
    write(
        "cancel",
        Calls.cancel,
        "cancel",
        "cancel",
        "Cancel a task, even if it is running.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "retry",
        Calls.retry,
        "retry",
        "operate",
        "Queue a failed or cancelled task again, with a full set of attempts.",
        open_world=True,
    ),
    write(
        "reset",
        Calls.reset,
        "reset",
        "operate",
        "Queue a parked task again, with a full set of attempts.",
        open_world=True,
    ),
    write(
        "cancel_many",
        Calls.cancel_many,
        "cancel",
        "cancel",
        "Cancel all matching tasks; needs at least one filter. dryRun only counts them.",
        names=_STATES,
        shapes=_STATE_NAMES,
        destructive=True,
        idempotent=True,
    ),
    write(
        "retry_many",
        Calls.retry_many,
        "retry",
        "operate",
        "Retry all matching failed or cancelled tasks; needs at least one filter.",
        names=_STATES,
        shapes=_STATE_NAMES,
        open_world=True,
    ),
    write(
        "reset_many",
        Calls.reset_many,
        "reset",
        "operate",
        "Reset all matching parked tasks; needs at least one filter.",
        names=_STATES,
        shapes=_STATE_NAMES,
        open_world=True,
    ),
    read("stats", Calls.stats, "stats", "Show how many tasks are queued, in flight and finished."),
    read("batch", Calls.batch, "batch show", "Show a batch and count its tasks by state."),
    read("batches", Calls.batches, "batch list", "List batches, newest first, one page."),
    write(
        "cancel_batch",
        Calls.cancel_batch,
        "batch cancel",
        "cancel",
        "Cancel all open tasks of a batch.",
        destructive=True,
        idempotent=True,
    ),
)

_LEASES: Final = (
    read(
        "plan",
        Calls.plan,
        "sched plan",
        "Show which tasks a lease would get, now or at another time, and why the others wait.",
    ),
    write(
        "lease",
        Calls.lease,
        "sched lease",
        "lease",
        "Lease tasks to run them. Renew the lease in time, and report with complete, fail or "
        "release before it expires.",
        without=frozenset({"wait_ms"}),  # a caller that disconnects would keep its leases
        strangers=True,
    ),
    write(
        "start",
        Calls.start_lease,
        "",
        "lease",
        "Mark a leased task as running, unless lease has already done so.",
        alone="the command leases and starts at once",
        idempotent=True,
    ),
    write(
        "renew",
        Calls.renew_lease,
        "sched renew",
        "lease",
        "Extend a lease and report progress; stop if the response has cancelRequested.",
    ),
    write(
        "complete",
        Calls.complete_lease,
        "sched complete",
        "lease",
        "Report that a leased task is done.",
        idempotent=True,
    ),
    write(
        "fail",
        Calls.fail_lease,
        "sched release",
        "lease",
        "Report a failed attempt; the task is retried if attempts are left.",
        idempotent=True,
    ),
    write(
        "release",
        Calls.release_lease,
        "sched release",
        "lease",
        "Return a lease: the task is queued again and no attempt is spent.",
        idempotent=True,
    ),
    write(
        "reclaim",
        Calls.reclaim_leases,
        "sched reclaim",
        "lease",
        "Reclaim all expired leases now.",
        idempotent=True,
    ),
    write(
        "queue_add",
        Calls.queue_add,
        "queue add",
        "submit",
        "Add an entry to the queue; the lowest priority number goes first, default 100.",
        names=_QUEUE,
    ),
    read(
        "queue_list",
        Calls.queue_list,
        "queue list",
        "List queue entries in the order they will run, one page.",
        strangers=True,
    ),
    read(
        "queue_show",
        Calls.queue_show,
        "queue show",
        "Show a queue entry.",
        names={"entry_id": "id"},
        strangers=True,
    ),
    write(
        "queue_drain",
        Calls.queue_drain,
        "queue drain",
        "lease",
        "Take the next entries off the queue without a lease; you run them and report nothing.",
        destructive=True,
        strangers=True,
    ),
    read("queue_policy", Calls.queue_policy, "sched policy show", "Show the rules of the queue."),
    write(
        "queue_policy_set",
        Calls.set_queue_policy,
        "sched policy set",
        "admin",
        "Change rules of the queue: maxConcurrent, maxAttempts, leaseTtlMs, backoffBaseMs, "
        "backoffFactor, backoffCapMs.",
        without=frozenset({"actor"}),
        destructive=True,
        idempotent=True,
    ),
)

_RULES: Final = (
    read(
        "lanes",
        Calls.lanes,
        "lanes list",
        "List lanes with their ceilings, running and waiting tasks.",
    ),
    write(
        "lanes_pause",
        Calls.pause_lane,
        "lanes pause",
        "operate",
        "Stop starting tasks in a lane; running tasks continue.",
        names=_LANE,
        without=frozenset({"actor"}),
        idempotent=True,
    ),
    write(
        "lanes_resume",
        Calls.resume_lane,
        "lanes resume",
        "operate",
        "Resume starting tasks in a paused lane.",
        names=_LANE,
        without=frozenset({"actor"}),
        idempotent=True,
    ),
    write(
        "lanes_clear",
        Calls.clear_lane,
        "lanes clear",
        "operate",
        "Cancel all queued tasks of a lane; running tasks continue.",
        names=_LANE,
        destructive=True,
        idempotent=True,
    ),
    read(
        "policy_show",
        Calls.policy,
        "policy show",
        "Show the policy in force, or one of its versions.",
    ),
    read(
        "policy_check",
        Calls.check_policy,
        "policy check",
        "Check a policy document: show its problems, or what it would change. Changes nothing.",
    ),
    read(
        "policy_versions",
        Calls.policy_versions,
        "policy versions",
        "List the versions of the policy, newest first, each with its author, time, note and "
        "changes.",
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
        "Replace the policy; keys that the document leaves out get their default.",
        without=frozenset({"actor"}),
        destructive=True,
        idempotent=True,
    ),
    write(
        "policy_patch",
        Calls.patch_policy,
        "policy set",
        "admin",
        "Change the keys of the policy that the document has; null restores a default.",
        without=frozenset({"actor"}),
        destructive=True,
        idempotent=True,
    ),
    write(
        "policy_rollback",
        Calls.rollback_policy,
        "policy rollback",
        "admin",
        "Restore an old version of the policy, as a new version.",
        without=frozenset({"actor"}),
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
        "Create a template: an instruction with parameters ({{name}} in the text).",
        shapes={"document": document(TemplateDocument)},
    ),
    write(
        "templates_update",
        Calls.update_template,
        "templates update",
        "operate",
        "Change fields of a template; null clears one.",
        destructive=True,
        idempotent=True,
        shapes={"document": changes(TemplateDocument)},
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
        "Fill in a template: show the resulting task, or submit it.",
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
        "cron create",
        "operate",
        "Create a cron job: a schedule, and a task with the fields of submit.",
        open_world=True,
        shapes={"document": document(JobDocument)},
    ),
    write(
        "cron_update",
        Calls.update_cron_job,
        "cron update",
        "operate",
        "Change fields of a cron job; null clears one.",
        destructive=True,
        idempotent=True,
        open_world=True,
        shapes={"document": changes(JobDocument)},
    ),
    write(
        "cron_delete",
        Calls.delete_cron_job,
        "cron delete",
        "operate",
        "Delete a cron job; its run log stays.",
        destructive=True,
        idempotent=True,
    ),
    write(
        "cron_toggle",
        Calls.toggle_cron_job,
        "cron toggle",
        "operate",
        "Enable or disable a cron job.",
        idempotent=True,
        open_world=True,
    ),
    write(
        "cron_run",
        Calls.run_cron_job,
        "cron run",
        "operate",
        "Run a cron job now; its schedule does not change.",
        open_world=True,
    ),
    read(
        "cron_runs",
        Calls.cron_runs,
        "cron runs",
        "List the runs of a cron job, or of all, newest first, one page.",
        without=frozenset({"job_id"}),
        strangers=True,
    ),
    read(
        "cron_preview", Calls.cron_preview, "cron preview", "Show when a schedule would fire next."
    ),
)

_APPROVALS: Final = (
    read(
        "approvals",
        Calls.approvals,
        "approvals list",
        "List approvals that wait for a person's decision, newest first, one page.",
        strangers=True,
    ),
    read(
        "approval",
        Calls.approval,
        "approvals show",
        "Show an approval: the question, the request, and the hash that a decision must include.",
        strangers=True,
    ),
    write(
        "approve",
        Calls.approve,
        "approve",
        "approve",
        "Approve on behalf of a person who has told you to.",
        names={"hash_": "hash"},
        meanings=_DECISION,
        decides=True,
        destructive=True,
        idempotent=True,
        open_world=True,
    ),
    write(
        "reject",
        Calls.reject,
        "reject",
        "approve",
        "Reject on behalf of a person who has told you to.",
        names={"hash_": "hash"},
        meanings=_DECISION,
        decides=True,
        destructive=True,
        idempotent=True,
    ),
)

_ALL: Final = (_TASKS, _LEASES, SESSIONS, _RULES, WATCHING, _TEMPLATES, _CRON, _APPROVALS)

TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tools in _ALL for tool in tools}
