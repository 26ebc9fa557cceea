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

from fairlane.core.policy import nearest

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


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


_SHORT: Final = {"agent": "agentId", "session": "sessionKey", "tab": "tabId", "batch": "batchId"}
_FIELDS: Final = {name: _SHORT.get(name) or _camel(name) for name in TaskFields.__annotations__}


def task_body(fields: TaskFields) -> dict[str, Any]:
    """The body of `POST /tasks`. Raises `TypeError` for a name that is no field, as a call does."""
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        hint = nearest(unknown, _FIELDS)
        raise TypeError(f"submit() got an unexpected keyword argument '{unknown}'{hint}")
    return {_FIELDS[name]: value for name, value in fields.items() if value is not None}


def given(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, as the routes spell them."""
    return {
        _SHORT.get(name) or _camel(name): value
        for name, value in fields.items()
        if value is not None and value != ()
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


def session_path(key: str, verb: str = "") -> str:
    return f"/sessions/{quote(key, safe='')}{verb}"


class Verbs(ABC, Generic[A]):
    @abstractmethod
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
    ) -> A:
        """Any route: the document that it answers with. Raises the error that it answers with."""

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
    ) -> A:
        """Change what is given, for good; the session as it is then."""
        body = given(
            mode=mode,
            cap=cap,
            drop=drop,
            debounce_ms=debounce_ms,
            debounce_max_ms=debounce_max_ms,
            max_concurrent=max_concurrent,
        )
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

    # ---------------------------------------------------------------- parts

    def _many(self, verb: str, which: Which, *, dry_run: bool) -> A:
        unknown = next((name for name in which if name not in Which.__annotations__), None)
        if unknown is not None:
            raise TypeError(f"{verb}_many() got an unexpected keyword argument '{unknown}'")
        body = given(**{name: value for name, value in which.items() if name != "states"})
        body |= given(state=list(which.get("states", ())) or None, dry_run=dry_run)
        return self.call("POST", f"/tasks/{verb}", body=body)
