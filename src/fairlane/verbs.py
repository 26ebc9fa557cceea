"""Fairlane's verbs as calls of its routes, written once for every caller that can make a call.

`Verbs[A]` turns a verb into a method, a path and a body, and `call` does the rest: the client's
asks over HTTP and returns a dict, the embedded API's asks in its own process and returns something
to await. `TaskFields` is the one list of what may be said about a task that is
submitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack
from urllib.parse import quote

from fairlane.access_verbs import AccessVerbs
from fairlane.core.policy import nearest
from fairlane.queue_verbs import QueueVerbs
from fairlane.watch_verbs import WatchVerbs
from fairlane.webhook_verbs import WebhookVerbs

A = TypeVar("A")


class Which(TypedDict, total=False):
    """Which tasks a verb for many is about; at least one of these."""

    agent: str | None
    states: Sequence[str]
    lane: str | None
    session: str | None
    batch: str | None
    kind: str | None


class TaskFields(TypedDict, total=False):
    """The fields of `POST /tasks` in Python's spelling; None is the same as leaving it out.

    Objects (`params`, `retry_policy`, …) are the JSON of the route, with its keys.
    """

    handler: str | None
    action: str | None
    instruction: str | None
    agent: str | None
    params: Mapping[str, Any] | None
    priority: int | str | None
    depends_on: Sequence[str] | None
    session: str | None
    lane: str | None
    deadline: str | datetime | None
    run_at: str | datetime | None
    delay_ms: int | None
    timeout_ms: int | None
    retry_policy: Mapping[str, Any] | None
    preemptible: bool | None
    metadata: Mapping[str, Any] | None
    llm_config: Mapping[str, Any] | None
    callback_url: str | None
    key: str | None
    tab: str | None
    ref: str | None
    selector: str | None


class MessageFields(TypedDict, total=False):
    """The fields of `POST /sessions/{key}/messages` in Python's spelling, without the text."""

    agent: str | None
    sender: str | None
    sent_at: str | datetime | None
    handler: str | None
    media: Sequence[Any] | None
    no_merge: bool | None
    lane: str | None
    mode: str | None
    cap: int | None
    drop: str | None
    debounce_ms: int | None
    max_concurrent: int | None
    priority: int | str | None
    callback_url: str | None
    metadata: Mapping[str, Any] | None
    llm_config: Mapping[str, Any] | None
    timeout_ms: int | None


class Why(TypedDict, total=False):
    """Why the policy is changed, who wants it, and which version has to be in force until then."""

    note: str | None
    author: str | None
    expected_version: int | None


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


_SHORT: Final = {"agent": "agentId", "session": "sessionKey", "tab": "tabId", "batch": "batchId"}


def spelled(name: str) -> str:
    """An argument as the routes spell it."""
    return _SHORT.get(name) or _camel(name)


_FIELDS: Final = {name: spelled(name) for name in TaskFields.__annotations__}


def task_body(fields: TaskFields) -> dict[str, Any]:
    """The body of `POST /tasks`. Raises `TypeError` for a name that is no field, as a call does."""
    if not fields.keys() <= _FIELDS.keys():
        unknown = next(name for name in fields if name not in _FIELDS)
        hint = nearest(unknown, _FIELDS)
        raise TypeError(f"submit() got an unexpected keyword argument '{unknown}'{hint}")
    return {_FIELDS[name]: value for name, value in fields.items() if value is not None}


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, as the routes spell them."""
    return {
        spelled(name): value for name, value in fields.items() if value is not None and value != ()
    }


def event_query(
    *,
    task: str | None,
    batch: str | None,
    agent: str | None,
    lane: str | None,
    types: Sequence[str],
) -> dict[str, Any]:
    return given(task_id=task, batch=batch, agent=agent, lane=lane, type=",".join(types) or None)


def task_path(task_id: str, verb: str = "") -> str:
    return f"/tasks/{quote(task_id, safe='')}{verb}"


def lease_path(lease_id: str, verb: str) -> str:
    return f"/leases/{quote(lease_id, safe='')}/{verb}"


def session_path(key: str, verb: str = "") -> str:
    return f"/sessions/{quote(key, safe='')}{verb}"


def job_path(job: str, verb: str = "") -> str:
    return f"/cron/jobs/{quote(job, safe='')}{verb}"


class Verbs(QueueVerbs[A], WatchVerbs[A], AccessVerbs[A], WebhookVerbs[A], ABC, Generic[A]):
    @abstractmethod
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_ms: int = 0,
    ) -> A:
        """Any route: the document that it answers with. Raises the error that it answers with.

        `wait_ms` is how long the route was asked to wait before it answers.
        """

    # ---------------------------------------------------------------- tasks

    def submit_body(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> A:
        """Submit a task given as the body of `POST /tasks`, or a batch when it has `tasks`."""
        path = "/tasks/batch" if "tasks" in body else "/tasks"
        return self.call("POST", path, body=body, idempotency_key=idempotency_key)

    def tasks(
        self,
        *,
        agent: str | None = None,
        states: Sequence[str] = (),
        lane: str | None = None,
        session: str | None = None,
        batch: str | None = None,
        kind: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page, newest first; `nextCursor` is there when there are more."""
        query = given(
            agent=agent,
            state=",".join(states) or None,
            lane=lane,
            session=session,
            batch=batch,
            kind=kind,
            limit=limit,
            cursor=cursor,
        )
        return self.call("GET", "/tasks", query=query)

    def show(self, task_id: str) -> A:
        return self.call("GET", task_path(task_id))

    def why(self, task_id: str) -> A:
        """Why it does not run yet: the gate or the full ceiling, in one sentence and in fields."""
        return self.call("GET", task_path(task_id, "/why"))

    def task_events(self, task_id: str) -> A:
        """What has happened to a task, oldest first."""
        return self.call("GET", task_path(task_id, "/events"))

    def cancel(self, task_id: str) -> A:
        return self.call("POST", task_path(task_id, "/cancel"))

    def delete(self, task_id: str) -> A:
        """The same as `cancel`, by the other route; the record stays."""
        return self.call("DELETE", task_path(task_id))

    def retry(self, task_id: str) -> A:
        """Queue a failed or cancelled task again, with all its attempts."""
        return self.call("POST", task_path(task_id, "/retry"))

    def reset(self, task_id: str) -> A:
        """Queue a parked task again, with all its attempts."""
        return self.call("POST", task_path(task_id, "/reset"))

    def cancel_many(self, *, dry_run: bool = False, **which: Unpack[Which]) -> A:
        """How many fit, and how many of them were changed; only looks with `dry_run`."""
        return self._many("cancel", which, dry_run=dry_run)

    def retry_many(self, *, dry_run: bool = False, **which: Unpack[Which]) -> A:
        return self._many("retry", which, dry_run=dry_run)

    def reset_many(self, *, dry_run: bool = False, **which: Unpack[Which]) -> A:
        return self._many("reset", which, dry_run=dry_run)

    def prune(self, *, dry_run: bool = False) -> A:
        """Forget ended tasks that are beyond their retention, now."""
        return self.call("POST", "/tasks/prune", body={"dryRun": dry_run})

    def stats(self) -> A:
        return self.call("GET", "/scheduler/stats")

    # ---------------------------------------------------------------- batches

    def submit_batch(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        parallelism: int | None = None,
        agent: str | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> A:
        """`tasks` are bodies as of `POST /tasks`; each has an outcome of its own in the answer."""
        body = given(parallelism=parallelism, agent=agent, callback_url=callback_url)
        body["tasks"] = list(tasks)
        return self.submit_body(body, idempotency_key=idempotency_key)

    def batch(self, batch_id: str) -> A:
        return self.call("GET", f"/batches/{quote(batch_id, safe='')}")

    def batches(
        self, *, agent: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> A:
        """One page, newest first; `nextCursor` is there when there are more."""
        return self.call("GET", "/batches", query=given(agent=agent, limit=limit, cursor=cursor))

    def cancel_batch(self, batch_id: str) -> A:
        return self.call("POST", f"/batches/{quote(batch_id, safe='')}/cancel")

    # ---------------------------------------------------------------- leases

    def lease(
        self,
        worker: str,
        *,
        lanes: Sequence[str] = (),
        handlers: Sequence[str] | None = None,
        kinds: Sequence[str] = (),
        limit: int | None = None,
        wait_ms: int | None = None,
        ttl_ms: int | None = None,
        start: bool | None = None,
    ) -> A:
        """Take up to `limit` tasks to run, at once or within `wait_ms`; `leases` may be empty.

        No lanes means all of them, no `handlers` any handler, no `kinds` handler tasks only.
        `start` says that the work begins at once.
        """
        body = given(
            worker=worker,
            lanes=list(lanes) or None,
            handlers=None if handlers is None else list(handlers),
            kinds=list(kinds) or None,
            limit=limit,
            wait_ms=wait_ms,
            ttl_ms=ttl_ms,
            start=start,
        )
        return self.call("POST", "/leases", body=body, wait_ms=wait_ms or 0)

    def withdraw_leases(self, worker: str) -> A:
        """Have the waiting `lease` calls of a worker answered at once, with nothing."""
        return self.call("POST", "/leases/withdraw", body={"worker": worker})

    def start_lease(self, lease_id: str, *, token: int | None = None) -> A:
        """Say that the work has begun. The token is part of the id; it may be given besides."""
        return self.call("POST", lease_path(lease_id, "start"), body=given(token=token))

    def renew_lease(
        self,
        lease_id: str,
        *,
        ttl_ms: int | None = None,
        progress: Any = None,
        output: str | None = None,
        part: int | None = None,
        token: int | None = None,
    ) -> A:
        """Keep the lease, and say how far the work is; `cancelRequested` tells to stop it."""
        body = given(ttl_ms=ttl_ms, progress=progress, output=output, part=part, token=token)
        return self.call("POST", lease_path(lease_id, "renew"), body=body)

    def output_lease(
        self, lease_id: str, text: str, *, part: int | None = None, token: int | None = None
    ) -> A:
        """Keep text that the work has produced; a `part` that was sent before is ignored."""
        body = given(output=text, part=part, token=token)
        return self.call("POST", lease_path(lease_id, "output"), body=body)

    def complete_lease(self, lease_id: str, *, result: Any = None, token: int | None = None) -> A:
        """The work is done. May be repeated when the answer was lost."""
        body = given(result=result, token=token)
        return self.call("POST", lease_path(lease_id, "complete"), body=body)

    def fail_lease(
        self,
        lease_id: str,
        error: str,
        *,
        retryable: bool | None = None,
        retry_after_ms: int | None = None,
        token: int | None = None,
    ) -> A:
        """The work went wrong: one attempt is spent. What becomes of the task is in the answer."""
        body = given(error=error, retryable=retryable, retry_after_ms=retry_after_ms, token=token)
        return self.call("POST", lease_path(lease_id, "fail"), body=body)

    def release_lease(self, lease_id: str, *, token: int | None = None) -> A:
        """Give a lease back: the task is queued again and no attempt is spent."""
        return self.call("POST", lease_path(lease_id, "release"), body=given(token=token))

    # ---------------------------------------------------------------- sessions

    def message(
        self,
        key: str,
        text: str | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> A:
        """Say something in a session. What became of it, as for a task that is submitted.

        The texts `/stop` and `/stopall` are answered like those verbs.
        """
        unknown = next((name for name in fields if name not in MessageFields.__annotations__), None)
        if unknown is not None:
            hint = nearest(unknown, MessageFields.__annotations__)
            raise TypeError(f"message() got an unexpected keyword argument '{unknown}'{hint}")
        body = given(message=text, **fields)
        return self.call(
            "POST", session_path(key, "/messages"), body=body, idempotency_key=idempotency_key
        )

    def sessions(self, *, limit: int | None = None, cursor: str | None = None) -> A:
        """One page, by key; `nextCursor` is there when there are more."""
        return self.call("GET", "/sessions", query=given(limit=limit, cursor=cursor))

    def session(self, key: str) -> A:
        """What runs, what waits in which place, its settings, and how many may run and why."""
        return self.call("GET", session_path(key))

    def set_session(
        self,
        key: str,
        *,
        mode: str | None = None,
        cap: int | None = None,
        drop: str | None = None,
        debounce_ms: int | None = None,
        debounce_max_ms: int | None = None,
        max_concurrent: int | None = None,
        unset: Sequence[str] = (),
    ) -> A:
        """Change what is given, for good; the session as it is then.

        For what `unset` names, by the names of these arguments, the policy counts again.
        """
        body = given(
            mode=mode,
            cap=cap,
            drop=drop,
            debounce_ms=debounce_ms,
            debounce_max_ms=debounce_max_ms,
            max_concurrent=max_concurrent,
        )
        body.update({_camel(name): None for name in unset})
        return self.call("PATCH", session_path(key), body=body)

    def set_usage(self, key: str, tokens: int, context_window: int) -> A:
        """Tell how full its context window is; the session as it is then."""
        body = given(tokens=tokens, context_window=context_window)
        return self.call("PUT", session_path(key, "/usage"), body=body)

    def stop_session(self, key: str) -> A:
        """Cancel the oldest run of a session; the rest goes on. The ids are in the answer."""
        return self.call("POST", session_path(key, "/stop"))

    def stop_all(self, key: str) -> A:
        """Cancel all runs of a session, and drop what waits. The ids of both are in the answer."""
        return self.call("POST", session_path(key, "/stopall"))

    def reset_session(self, key: str) -> A:
        """The same as `stop_all`, and a new generation begins."""
        return self.call("POST", session_path(key, "/reset"))

    # ---------------------------------------------------------------- lanes

    def lanes(self) -> A:
        return self.call("GET", "/lanes")

    def pause_lane(self, name: str) -> A:
        """Start nothing more there until it is resumed; what runs goes on."""
        return self.call("POST", f"/lanes/{quote(name, safe='')}/pause")

    def resume_lane(self, name: str) -> A:
        return self.call("POST", f"/lanes/{quote(name, safe='')}/resume")

    def clear_lane(self, name: str) -> A:
        """Cancel everything that is queued there; how many that were."""
        return self.call("POST", f"/lanes/{quote(name, safe='')}/clear")

    # ---------------------------------------------------------------- policy

    def policy(self, version: int | None = None) -> A:
        """The policy in force, or one of its versions."""
        return self.call("GET", "/policy", query=given(version=version))

    def set_policy(self, document: Mapping[str, Any], **why: Unpack[Why]) -> A:
        """Replace the policy: what `document` does not say has its default."""
        return self.call("PUT", "/policy", query=given(**why), body=document)

    def patch_policy(self, document: Mapping[str, Any], **why: Unpack[Why]) -> A:
        """Change what `document` says; None brings a default back."""
        return self.call("PATCH", "/policy", query=given(**why), body=document)

    def check_policy(self, document: Mapping[str, Any], *, patch: bool = False) -> A:
        """What would be wrong, or what would change, if it were set; nothing is changed."""
        query = {"patch": "true"} if patch else None
        return self.call("POST", "/policy/check", query=query, body=document)

    def policy_versions(self, *, limit: int | None = None, cursor: str | None = None) -> A:
        """One page, newest first: who, when, why and what; `nextCursor` when there are more."""
        return self.call("GET", "/policy/versions", query=given(limit=limit, cursor=cursor))

    def policy_diff(self, before: int | None = None, after: int | None = None) -> A:
        """What has changed since version `before`, by default in the newest one."""
        return self.call("GET", "/policy/diff", query={"from": before, "to": after})

    def rollback_policy(self, version: int, **why: Unpack[Why]) -> A:
        """Make an old version the newest one; 0 for the defaults."""
        body = {"version": version}
        return self.call("POST", "/policy/rollback", query=given(**why), body=body)

    # ---------------------------------------------------------------- templates

    def create_template(self, document: Mapping[str, Any]) -> A:
        """`document` is the body of `POST /templates`."""
        return self.call("POST", "/templates", body=document)

    def templates(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> A:
        """One page, newest first; `nextCursor` is there when there are more."""
        return self.call("GET", "/templates", query=given(name=name, limit=limit, cursor=cursor))

    def template(self, template_id: str) -> A:
        return self.call("GET", f"/templates/{quote(template_id, safe='')}")

    def update_template(self, template_id: str, document: Mapping[str, Any]) -> A:
        """Change the fields that `document` names; None clears one."""
        return self.call("PATCH", f"/templates/{quote(template_id, safe='')}", body=document)

    def delete_template(self, template_id: str) -> A:
        return self.call("DELETE", f"/templates/{quote(template_id, safe='')}")

    def use_template(
        self,
        template_id: str,
        params: Mapping[str, Any] | None = None,
        *,
        submit: bool = False,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> A:
        """The body of the task it makes, or with `submit` what became of the task."""
        body = given(params=params, overrides=overrides, submit=submit or None)
        path = f"/templates/{quote(template_id, safe='')}/instantiate"
        return self.call("POST", path, body=body, idempotency_key=idempotency_key)

    # ---------------------------------------------------------------- cron

    def create_cron_job(self, document: Mapping[str, Any]) -> A:
        """`document` is the body of `POST /cron/jobs`: name, schedule, task, and how it behaves."""
        return self.call("POST", "/cron/jobs", body=document)

    def create_cron_jobs(self, documents: Sequence[Mapping[str, Any]]) -> A:
        """All of them or, when something is wrong with one, none."""
        return self.call("POST", "/cron/jobs", body={"jobs": list(documents)})

    def cron_jobs(
        self,
        *,
        agent: str | None = None,
        name: str | None = None,
        enabled: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page, newest first; `nextCursor` is there when there are more."""
        query = given(agent=agent, name=name, limit=limit, cursor=cursor)
        if enabled is not None:
            query["enabled"] = "true" if enabled else "false"
        return self.call("GET", "/cron/jobs", query=query)

    def cron_job(self, job: str) -> A:
        """`job` is, here and below, an id, or a name that only one agent has given."""
        return self.call("GET", job_path(job))

    def update_cron_job(self, job: str, document: Mapping[str, Any]) -> A:
        """Change the fields that `document` names; None clears one."""
        return self.call("PATCH", job_path(job), body=document)

    def delete_cron_job(self, job: str, *, cancel: bool = False) -> A:
        """What it has started goes on unless `cancel` says otherwise; its log stays."""
        return self.call("DELETE", job_path(job), query={"cancel": "true"} if cancel else None)

    def toggle_cron_job(self, job: str, *, enabled: bool) -> A:
        """The next run of a job that is switched on is the first one from now."""
        return self.call("POST", job_path(job, "/toggle"), body={"enabled": enabled})

    def run_cron_job(self, job: str) -> A:
        """Run it now; its schedule does not move."""
        return self.call("POST", job_path(job, "/run"))

    def cron_runs(
        self,
        job: str | None = None,
        *,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page of the log of a job, or of all, newest first."""
        path = "/cron/runs" if job is None else job_path(job, "/runs")
        return self.call("GET", path, query=given(status=status, limit=limit, cursor=cursor))

    def cron_preview(
        self,
        expr: str | None = None,
        *,
        tz: str | None = None,
        every_ms: int | None = None,
        at: str | datetime | None = None,
        n: int | None = None,
    ) -> A:
        """When a schedule would run next, in UTC and in local time."""
        when = at.isoformat() if isinstance(at, datetime) else at
        query = given(expr=expr, tz=tz, every_ms=every_ms, at=when, n=n)
        return self.call("GET", "/cron/preview", query=query)

    # ---------------------------------------------------------------- parts

    def _many(self, verb: str, which: Which, *, dry_run: bool) -> A:
        unknown = next((name for name in which if name not in Which.__annotations__), None)
        if unknown is not None:
            raise TypeError(f"{verb}_many() got an unexpected keyword argument '{unknown}'")
        body = given(**{name: value for name, value in which.items() if name != "states"})
        body |= given(state=list(which.get("states", ())) or None, dry_run=dry_run)
        return self.call("POST", f"/tasks/{verb}", body=body)
