"""Fairlane's verbs as calls of its routes, written once for every caller that can make a call.

`Verbs[A]` turns a verb into a method, a path and a body, and `call` does the rest: the client's
asks over HTTP and returns a dict, the embedded API's asks in its own process and returns something
to await.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from fairlane.client.calling import A, Calling, given, moment, path_of, refuse_unknown


class WhichEvents(TypedDict, total=False):
    """Which events are told; all that is given has to fit."""

    task: str | None
    batch: str | None
    agent: str | None
    lane: str | None
    types: Sequence[str]


def event_query(which: WhichEvents) -> dict[str, Any]:
    refuse_unknown("events", which, WhichEvents.__annotations__)
    others = {name: value for name, value in which.items() if name not in ("task", "types")}
    types = ",".join(which.get("types", ()))
    return given(task_id=which.get("task"), **others, type=types or None)


def task_path(task_id: str, verb: str = "") -> str:
    return path_of("tasks", task_id, verb)


class Verbs(Calling[A]):
    # ---------------------------------------------------------------- tasks

    def submit_body(self, body: Mapping[str, Any], *, idempotency_key: str | None = None) -> A:
        """Submit a task given as the body of `POST /tasks`, or a batch when it has `tasks`."""
        path = "/tasks/batch" if "tasks" in body else "/tasks"
        return self.call("POST", path, body=body, idempotency_key=idempotency_key)


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
        """Return one template."""
        return self.call("GET", path_of("templates", template_id))

    def update_template(self, template_id: str, document: Mapping[str, Any]) -> A:
        """Change the fields that `document` names; None clears one."""
        return self.call("PATCH", path_of("templates", template_id), body=document)

    def delete_template(self, template_id: str) -> A:
        """Delete a template."""
        return self.call("DELETE", path_of("templates", template_id))

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
        path = path_of("templates", template_id, "/instantiate")
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
        return self.call("GET", path_of("cron/jobs", job))

    def update_cron_job(self, job: str, document: Mapping[str, Any]) -> A:
        """Change the fields that `document` names; None clears one."""
        return self.call("PATCH", path_of("cron/jobs", job), body=document)

    def delete_cron_job(self, job: str, *, cancel: bool = False) -> A:
        """What it has started goes on unless `cancel` says otherwise; its log stays."""
        query = {"cancel": "true"} if cancel else None
        return self.call("DELETE", path_of("cron/jobs", job), query=query)

    def toggle_cron_job(self, job: str, *, enabled: bool) -> A:
        """The next run of a job that is switched on is the first one from now."""
        return self.call("POST", path_of("cron/jobs", job, "/toggle"), body={"enabled": enabled})

    def run_cron_job(self, job: str) -> A:
        """Run it now; its schedule does not move."""
        return self.call("POST", path_of("cron/jobs", job, "/run"))

    def cron_runs(
        self,
        job: str | None = None,
        *,
        status: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page of the log of a job, or of all, newest first."""
        path = "/cron/runs" if job is None else path_of("cron/jobs", job, "/runs")
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
        query = given(expr=expr, tz=tz, every_ms=every_ms, at=moment(at), n=n)
        return self.call("GET", "/cron/preview", query=query)
