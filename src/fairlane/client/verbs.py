"""Fairlane's verbs as calls of its routes, written once for every caller that can make a call.

`Verbs[A]` turns a verb into a method, a path and a body, and `call` does the rest: the client's
asks over HTTP and returns a dict, the embedded API's asks in its own process and returns something
to await.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fairlane.client.calling import A, Calling, given, path_of, refuse_unknown


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
