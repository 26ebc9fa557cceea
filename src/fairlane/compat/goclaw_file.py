"""Cron jobs of GoClaw, as its file, its `cron.list` or its table `cron_jobs` has them.

The id of a job is kept. Its message becomes the instruction of its task; where a reply goes
(`channel`, `to`) is kept in the metadata, for the receiver of a webhook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from fairlane.core import jobs, moments, validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.job_documents import JobDocument
from fairlane.core.json_types import JsonObject
from fairlane.core.types import Identifier

JOBS_MAX: Final = 10_000
_REPLY: Final = ("deliver", "channel", "to")


class _Entry(msgspec.Struct):
    id: Identifier


class GoclawImport(msgspec.Struct):
    """The jobs with their ids. `problems` are about jobs that cannot be imported."""

    jobs: list[tuple[str, JobDocument]] = []
    problems: list[str] = []
    notes: list[str] = []


def read(document: object, now: int) -> GoclawImport:
    """Translate a list of jobs, or an object with `jobs`. Raise `InvalidRequest` for others."""
    listed = document.get("jobs") if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise InvalidRequest("the file must contain a list of jobs, or an object with 'jobs'")
    if len(listed) > JOBS_MAX:
        raise InvalidRequest(f"the file must not have more than {JOBS_MAX} jobs; split it")
    found = GoclawImport()
    ids: set[str] = set()
    names: set[tuple[str, str]] = set()
    for number, one in enumerate(listed):
        try:
            id_, job = _job(found, one, names, now)
            if id_ in ids:
                raise InvalidRequest(f"the id {id_} appears twice")
        except InvalidRequest as error:
            found.problems.append(f"jobs[{number}]: {error.message}")
        else:
            ids.add(id_)
            found.jobs.append((id_, job))
    return found


def _job(
    found: GoclawImport, one: object, names: set[tuple[str, str]], now: int
) -> tuple[str, JobDocument]:
    if not isinstance(one, dict):
        raise InvalidRequest("a job must be an object")
    id_ = validation.convert({"id": one.get("id")}, _Entry).id
    payload = _payload(one)
    name, agent = str(one.get("name") or ""), _first(one, "agentId", "agent_id") or ""
    if (agent, name) in names:  # they are not unique there
        name = f"{name}-{id_[:8]}"
        found.notes.append(f"job {id_} is now called {name}, because its name was taken")
    schedule = _schedule(one)
    if schedule["kind"] == "cron" and "tz" not in schedule:
        found.notes.append(f"job {name} has no time zone: it runs in UTC")
    reply = {key: payload[key] for key in _REPLY if payload.get(key)}
    if reply.get("deliver"):
        found.notes.append(f"job {name}: set task.callbackUrl to deliver its result")
    task: JsonObject = {"instruction": payload.get("message")}
    if reply:
        task["metadata"] = {"goclaw": reply}
    document: JsonObject = {
        "name": name,
        "agentId": agent or None,
        "enabled": one.get("enabled", True),
        "schedule": schedule,
        "task": task,
    }
    if schedule["kind"] == "at":
        document["deleteAfterRun"] = _first(one, "deleteAfterRun", "delete_after_run")
    given = {key: value for key, value in document.items() if value is not None}
    parsed = jobs.parse(given, now)
    names.add((agent, name))
    return id_, parsed


def _payload(one: JsonObject) -> JsonObject:
    """Return what a job does; the request that creates one has it at the top."""
    payload = one.get("payload", one)
    if isinstance(payload, str):
        with contextlib.suppress(msgspec.DecodeError):
            payload = msgspec.json.decode(payload)
    if not isinstance(payload, dict):
        raise InvalidRequest("field 'payload' must be an object")
    return payload


def _schedule(one: JsonObject) -> JsonObject:
    schedule = one.get("schedule")
    if isinstance(schedule, dict):
        found = {key: schedule.get(key) for key in ("kind", "atMs", "everyMs", "expr", "tz")}
    else:
        at = one.get("run_at")
        found = {
            "kind": one.get("schedule_kind"),
            "atMs": None if at is None else _parsed(at),
            "everyMs": one.get("interval_ms"),
            "expr": one.get("cron_expression"),
            "tz": one.get("timezone"),
        }
    mine = {"at": ("atMs",), "every": ("everyMs",), "cron": ("expr", "tz")}.get(
        str(found["kind"]), ("atMs", "everyMs", "expr", "tz")
    )
    return dict(_given(found, ("kind", *mine)))


def _given(fields: JsonObject, names: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    for name in names:
        if name == "kind" or fields[name] not in (None, ""):
            yield name, fields[name]


def _parsed(at: object) -> int:
    try:
        return moments.parse(str(at).replace(" ", "T", 1))
    except ValueError as error:
        raise InvalidRequest(f"invalid run_at: {error}") from None


def _first(one: JsonObject, *names: str) -> Any:
    return next((one[name] for name in names if one.get(name) is not None), None)
