"""What callers send about cron jobs: the document of a job, checked for form and sense.

A document is JSON as in `POST /cron/jobs`; a `Definition` is what came of it, with everything said
that may be left unsaid. `document` is the way back: the job that is made of what was read is equal.
What a job says about timeouts and retries is kept in one place, on the job, wherever it was said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.core import cron, moments
from fairlane.core.cron import Definition, Schedule
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import Submission
from fairlane.core.policy import nearest
from fairlane.core.retries import Backoff
from fairlane.core.secrets import check_given, masked, moved, unmasked
from fairlane.core.submissions import DEFAULT_AGENT, KINDS, TaskRequest
from fairlane.core.types import URL_CHARACTERS_MAX
from fairlane.schema import bodies
from fairlane.schema.fields import (
    DAY_MS,
    IDENTIFIER,
    decoded,
    matches,
    parse_deadline,
    short,
    within,
)
from fairlane.schema.wire import encode, moment

ID_PREFIX: Final = "job"
LANE: Final = "cron"
JOBS_MAX: Final = 1000
DOCUMENT_BYTES_MAX: Final = 524_288

# What is said about a job: passed over in a change, so that what was read may be sent back.
READ_ONLY: Final = frozenset(
    {"id", "nextRunAt", "nextRunAtMs", "state", "createdAt", "updatedAt", "disabledReason"}
)
# Fields of `POST /tasks` that a job has no use for, and what to do instead.
_NOT_IN_A_TASK: Final[Mapping[str, str]] = {
    "sessionKey": "a job's tasks have the session of the job; see 'overlap'",
    "runAt": "the schedule says when",
    "delayMs": "the schedule says when",
    "deadline": "a moment is no good for a task that comes again; see 'timeoutMs'",
    "dependsOn": "a job's tasks depend on no others",
    "key": "only the items of a batch have one",
}
# Said on the job, although a caller may say it in the task.
_LIFTED: Final = ("timeoutMs", "retryPolicy")
_SPAN_MS_MAX: Final = 366 * DAY_MS
BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "misfireGraceMs": (0, _SPAN_MS_MAX),
    "misfireCap": (1, 1000),
    "misfireSpreadMs": (0, DAY_MS),
    "jitterMs": (0, DAY_MS),
    "maxRuns": (1, 2**53),
    "alertAfter": (1, 1000),
    "disableAfter": (1, 1000),
    "keepRuns": (1, 100_000),
    "keepDays": (1, 3650),
}
# Which field belongs to which kind of schedule.
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    cron.AT: ("at", "atMs"),
    cron.EVERY: ("everyMs", "anchor"),
    cron.CRON: ("expr", "tz"),
}


class ScheduleBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    kind: str
    at: str | None = None
    at_ms: int | None = None
    every_ms: int | None = None
    anchor: str | None = None
    expr: str | None = None
    tz: str | None = None


class JobBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /cron/jobs`. What is None is as good as absent."""

    name: str
    schedule: ScheduleBody
    task: dict[str, Any]
    agent_id: str | None = None
    enabled: bool | None = None
    delete_after_run: bool | None = None
    overlap: str | None = None
    misfire: str | None = None
    misfire_grace_ms: int | None = None
    misfire_cap: int | None = None
    misfire_spread_ms: int | None = None
    jitter_ms: int | None = None
    timeout_ms: int | None = None
    start_at: str | None = None
    end_at: str | None = None
    max_runs: int | None = None
    retry_policy: Backoff | None = None
    alert_url: str | None = None
    alert_after: int | None = None
    disable_after: int | None = None
    keep_runs: int | None = None
    keep_days: int | None = None


class ToggleBody(msgspec.Struct, forbid_unknown_fields=True):
    enabled: bool


_decoder = msgspec.json.Decoder(JobBody)
_schedule_decoder = msgspec.json.Decoder(ScheduleBody)
_toggle_decoder = msgspec.json.Decoder(ToggleBody)
_FIELDS: Final = frozenset(JobBody.__struct_encode_fields__)
_TASK_FIELDS: Final = frozenset(TaskRequest.__struct_encode_fields__)
_SCHEDULE: Final = {"schedule": frozenset(ScheduleBody.__struct_encode_fields__)}


# -------------------------------------------------------------------- make and change


def create(document: Mapping[str, Any], now: int) -> Definition:
    """Raises `InvalidRequest` with all that is wrong with the values."""
    definition = _definition(_owned(_lifted(document)), now)
    _check_future(definition, now)
    return definition


def create_all(documents: Sequence[Any], now: int) -> list[Definition]:
    """All of them, or `InvalidRequest` with what is wrong with each, by its place in the list."""
    made: list[Definition] = []
    problems: list[dict[str, Any]] = []
    names: dict[tuple[str, str], int] = {}
    for number, document in enumerate(documents):
        try:
            definition = create(_object(document), now)
            first = names.setdefault((definition.agent_id, definition.name), number)
            if first != number:
                raise InvalidRequest(f"invalid job: jobs[{first}] has the same name")
            made.append(definition)
        except InvalidRequest as error:
            problems.append({"index": number, "error": error.message})
    if problems:
        told = "; ".join(f"jobs[{one['index']}]: {one['error']}" for one in problems[:10])
        raise InvalidRequest(told, details={"problems": problems})
    return made


def update(before: Definition, document: Mapping[str, Any], now: int) -> Definition:
    """Lay `document` over the definition; null clears a field.

    So are `retryPolicy`, `schedule` and `task` inside it, unless they are of another kind now.
    """
    current = document_of(before, masking=False)
    if before.misfire_grace_ms is None:
        del current["misfireGraceMs"]  # it follows from the schedule, which may change
    given = {name: value for name, value in document.items() if name not in READ_ONLY}
    given = _owned(_lifted(_unmasked(given, current)), before.agent_id)
    for name, over in (
        ("retryPolicy", _laid_over),
        ("schedule", _schedule_over),
        ("task", _task_over),
    ):
        if isinstance(given.get(name), dict):
            given[name] = over(current[name], given[name])
    after = _definition(_laid_over(_without_implied(current, given), given), now)
    problem = _moved_secret(before, after)
    if problem is not None:
        raise InvalidRequest(f"invalid job: {problem}")
    if _moves(before) != _moves(after) or (after.enabled and not before.enabled):
        _check_future(after, now)
    return after


def preview(fields: Mapping[str, Any], zone: str, count: int, now: int) -> list[int]:
    """The next moments of a schedule that nobody has made a job of yet, to be told in `zone`."""
    cron.checked(Schedule(kind=cron.CRON, expr="@daily", tz=zone), now)
    body: ScheduleBody = decoded(_schedule_decoder, encode(fields), _SCHEDULE["schedule"])
    schedule = _schedule(body, now)
    cron.checked(schedule, now)
    found: list[int] = []
    after = now
    while len(found) < count and (slot := cron.next_slot(schedule, after)) is not None:
        found.append(slot.at)
        after = slot.at
    return found


def parse_toggle(raw: bytes) -> bool:
    body: ToggleBody = decoded(_toggle_decoder, raw, frozenset({"enabled"}))
    return body.enabled


def documents_of(body: dict[str, Any]) -> list[Any] | None:
    """The documents of `{"jobs": […]}`; None when it is one job."""
    if "jobs" not in body:
        return None
    unknown = next((name for name in body if name != "jobs"), None)
    if unknown is not None:
        raise InvalidRequest(f"unknown field '{unknown[:40]}' beside 'jobs'")
    found = body["jobs"]
    if not isinstance(found, list) or not 1 <= len(found) <= JOBS_MAX:
        raise InvalidRequest(f"field 'jobs' must be a list of 1 to {JOBS_MAX} jobs")
    return found


# -------------------------------------------------------------------- the way back


def document_of(definition: Definition, *, masking: bool = True) -> dict[str, Any]:
    """The document of a job, with everything that holds for it; secrets only without `masking`."""
    one = definition
    task = dict(one.task)
    if masking and "llmConfig" in task:
        task["llmConfig"] = masked(task["llmConfig"])
    document = {
        "name": one.name,
        "agentId": one.agent_id,
        "schedule": _schedule_document(one.schedule),
        "task": task,
        "enabled": one.enabled,
        "deleteAfterRun": one.delete_after_run if one.schedule.kind == cron.AT else None,
        "overlap": one.overlap,
        "misfire": one.misfire,
        "misfireGraceMs": one.grace_ms,
        "misfireCap": one.misfire_cap,
        "misfireSpreadMs": one.misfire_spread_ms,
        "jitterMs": one.jitter_ms,
        "timeoutMs": one.timeout_ms,
        "startAt": None if one.start_at is None else moment(one.start_at),
        "endAt": None if one.end_at is None else moment(one.end_at),
        "maxRuns": one.max_runs,
        "retryPolicy": msgspec.to_builtins(one.retry_policy),
        "alertUrl": one.alert_url,
        "alertAfter": one.alert_after,
        "disableAfter": one.disable_after,
        "keepRuns": one.keep_runs,
        "keepDays": one.keep_days,
    }
    return {name: value for name, value in document.items() if value is not None}


def _schedule_document(schedule: Schedule) -> dict[str, Any]:
    if schedule.kind == cron.AT:
        assert schedule.at is not None
        at = moments.clamped(schedule.at)
        return {"kind": cron.AT, "at": moment(at), "atMs": at}
    if schedule.kind == cron.EVERY:
        assert schedule.anchor_at is not None
        anchor = moment(schedule.anchor_at)
        return {"kind": cron.EVERY, "everyMs": schedule.every_ms, "anchor": anchor}
    return {"kind": cron.CRON, "expr": schedule.expr, "tz": schedule.tz}


def submission(
    definition: Definition, *, task_id: str, session: str | None = None, run_at: int | None = None
) -> Submission:
    """The task of one run."""
    said = {
        "agentId": definition.agent_id,
        "timeoutMs": definition.timeout_ms,
        "retryPolicy": definition.retry_policy,
        "sessionKey": session,
    }
    given = {name: value for name, value in said.items() if value is not None}
    made = bodies.parse_task(encode({"lane": LANE, **definition.task, **given}), task_id=task_id)
    return msgspec.structs.replace(made, run_at=run_at)


# -------------------------------------------------------------------- parts


def _definition(document: Mapping[str, Any], now: int) -> Definition:
    raw = encode(document)
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise InvalidRequest(f"invalid job: it must not be larger than {DOCUMENT_BYTES_MAX} bytes")
    try:
        body: JobBody = decoded(_decoder, raw, _FIELDS, inner=_SCHEDULE)
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid job: {error.message}") from None
    problems: list[str] = []
    for check in (_check_names, _check_words, _check_numbers, _check_task):
        check(body, problems)
    schedule = _attempt(problems, lambda: _schedule(body.schedule, now))
    start_at = _attempt(problems, lambda: _moment(body.start_at, "startAt"))
    end_at = _attempt(problems, lambda: _moment(body.end_at, "endAt"))
    if start_at is not None and end_at is not None and end_at <= start_at:
        problems.append("field 'endAt' must be after 'startAt'")
    if problems or schedule is None:
        raise InvalidRequest(f"invalid job: {'; '.join(problems)}")
    return _made(body, schedule, start_at, end_at)


def _made(
    body: JobBody, schedule: Schedule, start_at: int | None, end_at: int | None
) -> Definition:
    told = {
        name: getattr(body, name)
        for name in JobBody.__struct_fields__
        if getattr(body, name) is not None
    }
    told |= {
        "agent_id": body.agent_id or DEFAULT_AGENT,
        "schedule": schedule,
        "start_at": start_at,
        "end_at": end_at,
        "delete_after_run": schedule.kind == cron.AT and body.delete_after_run is not False,
        "retry_policy": _retries(body.retry_policy),
        "alert_url": body.alert_url or None,
        "alert_after": (body.alert_after or 1) if body.alert_url else None,
        "misfire_grace_ms": _own_grace(body.misfire_grace_ms, schedule),
        "task": {
            name: value
            for name, value in body.task.items()
            if value is not None or name not in _TASK_FIELDS
        },
    }
    definition = Definition(**told)
    try:
        submission(definition, task_id="task")  # what it will ask for has to be in order now
    except InvalidRequest as error:
        message = error.message.removeprefix("invalid task: ")
        said_by_the_job = message.startswith(tuple(f"field '{name}" for name in _LIFTED))
        where = "" if said_by_the_job else "field 'task': "
        raise InvalidRequest(f"invalid job: {where}{message}") from None
    return definition


def _schedule(given: ScheduleBody, now: int) -> Schedule:
    _check_kind(given)
    if given.kind == cron.AT:
        return _at(given)
    if given.kind == cron.EVERY:
        if given.every_ms is None:
            raise InvalidRequest("missing required field 'schedule.everyMs'")
        anchor = _moment(given.anchor, "schedule.anchor")
        anchored_at = now if anchor is None else anchor
        if anchored_at > now + _SPAN_MS_MAX:
            raise InvalidRequest("field 'schedule.anchor' must not be more than 366 days ahead")
        return Schedule(kind=cron.EVERY, every_ms=given.every_ms, anchor_at=anchored_at)
    if not (given.expr or "").strip():
        raise InvalidRequest("missing required field 'schedule.expr'")
    short("schedule.expr", given.expr, cron.EXPR_CHARACTERS_MAX)
    expr = " ".join((given.expr or "").split())
    return Schedule(kind=cron.CRON, expr=expr, tz=given.tz or "UTC")


def _at(given: ScheduleBody) -> Schedule:
    at = _moment(given.at, "schedule.at")
    if at is not None and given.at_ms not in (None, at):
        raise InvalidRequest("'schedule.at' and 'schedule.atMs' disagree: give one of them")
    at = given.at_ms if at is None else at
    if at is None:
        raise InvalidRequest("missing required field 'schedule.at' (or 'schedule.atMs')")
    within("schedule.atMs", at, 0, moments.MAX)
    return Schedule(kind=cron.AT, at=at)


def _check_kind(given: ScheduleBody) -> None:
    if given.kind not in _OF_KIND:
        hint = nearest(given.kind, _OF_KIND)
        raise InvalidRequest(f"field 'schedule.kind' must be one of {', '.join(_OF_KIND)}{hint}")
    values = msgspec.to_builtins(given)
    for kind, names in _OF_KIND.items():
        misplaced = [name for name in names if kind != given.kind and values[name] is not None]
        if misplaced:
            raise InvalidRequest(
                f"'schedule.{misplaced[0]}' goes with the kind {kind}, not with {given.kind}"
            )


def _check_names(body: JobBody, problems: list[str]) -> None:
    _attempt(problems, lambda: matches("name", body.name, IDENTIFIER))
    if body.name.startswith(f"{ID_PREFIX}_"):
        problems.append(f"field 'name' must not begin with '{ID_PREFIX}_': ids do")
    if body.agent_id:
        agent = body.agent_id
        _attempt(problems, lambda: matches("agentId", agent, IDENTIFIER))
    _attempt(problems, lambda: short("alertUrl", body.alert_url, URL_CHARACTERS_MAX))


def _check_words(body: JobBody, problems: list[str]) -> None:
    for field, value, known in (
        ("overlap", body.overlap, cron.OVERLAPS),
        ("misfire", body.misfire, cron.MISFIRES),
    ):
        if value is not None and value not in known:
            hint = nearest(value, known)
            problems.append(f"field '{field}' must be one of {', '.join(known)}{hint}")
    if body.alert_after is not None and not body.alert_url:
        problems.append("'alertAfter' goes with 'alertUrl'")
    if body.delete_after_run and body.schedule.kind != cron.AT:
        problems.append("'deleteAfterRun' goes with a schedule of kind at: the others go on")


def _check_numbers(body: JobBody, problems: list[str]) -> None:
    values = msgspec.to_builtins(body)
    for field, (low, high) in BOUNDS.items():
        if values[field] is not None and not low <= values[field] <= high:
            problems.append(f"field '{field}' must be from {low} to {high}")


def _check_task(body: JobBody, problems: list[str]) -> None:
    for name, instead in _NOT_IN_A_TASK.items():
        if body.task.get(name) is not None:
            problems.append(f"'task.{name}' is not for jobs: {instead}")
    check_given("task.llmConfig", body.task.get("llmConfig"), problems)


def _check_future(definition: Definition, now: int) -> None:
    """Whether it is ever going to run: raises `InvalidRequest` when not."""
    try:
        cron.checked(definition.schedule, now)
        _check_span(definition, now)
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid job: {error.message}") from None


def _check_span(definition: Definition, now: int) -> None:
    end_at = definition.end_at
    if end_at is not None and end_at <= now:
        raise InvalidRequest(f"field 'endAt' must be in the future, {moment(end_at)} is not")
    after = now if definition.start_at is None else max(now, definition.start_at - 1)
    slot = cron.next_slot(definition.schedule, after)
    if slot is None or (end_at is not None and slot.at > end_at):
        ends = "startAt" if end_at is None else "endAt"
        raise InvalidRequest(f"field '{ends}' leaves no run: the schedule has none in that time")


def _moves(definition: Definition) -> tuple[Any, ...]:
    """What decides when it runs."""
    return definition.schedule, definition.start_at, definition.end_at


def _lifted(document: Mapping[str, Any]) -> dict[str, Any]:
    """A copy in which what the task says about timeouts and retries is said by the job."""
    lifted = dict(document)
    if not isinstance(lifted.get("task"), dict):
        return lifted
    task = dict(lifted["task"])
    if "timeout" in task:
        task.setdefault("timeoutMs", task["timeout"])
        if task["timeoutMs"] == task["timeout"]:
            del task["timeout"]  # or what is said about tasks with both is said about this one
    for name in _LIFTED:
        said = task.pop(name, None)
        if said is not None and lifted.get(name, said) != said:
            raise InvalidRequest(f"invalid job: '{name}' and 'task.{name}' disagree: give one")
        if said is not None:
            lifted[name] = said
    return {**lifted, "task": task}


def _owned(document: Mapping[str, Any], owner: str | None = None) -> dict[str, Any]:
    """Return a copy in which the job says whose its tasks are.

    The task may say so too. It names the agent of a job that names none; it never changes it.
    `owner` is the agent of a job that exists.
    """
    owned = dict(document)
    if not isinstance(owned.get("task"), dict) or "agentId" not in owned["task"]:
        return owned
    task = dict(owned["task"])
    agent = task.pop("agentId") or None
    named = owned.get("agentId") or owner
    if agent is not None:
        if named not in (None, agent):
            raise InvalidRequest("invalid job: 'agentId' and 'task.agentId' disagree: give one")
        owned["agentId"] = agent
    return {**owned, "task": task}


def _unmasked(given: dict[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """A masked secret stands for the one that is kept."""
    task, kept = given.get("task"), current["task"].get("llmConfig")
    if not isinstance(task, dict) or "llmConfig" not in task or not kept:
        return given
    return {**given, "task": {**task, "llmConfig": unmasked(task["llmConfig"], kept)}}


def _moved_secret(before: Definition, after: Definition) -> str | None:
    kept, config = (one.task.get("llmConfig") or {} for one in (before, after))
    return moved(kept, config, "task.llmConfig")


def _without_implied(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What only followed from something that is changed follows no longer."""
    implied = {"schedule": "deleteAfterRun", "alertUrl": "alertAfter"}
    gone = {implied[name] for name in given if name in implied}
    return {name: value for name, value in current.items() if name not in gone}


def _schedule_over(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("kind") not in (None, current["kind"]):
        return dict(given)
    moment_is_new = given.get("at") is not None or given.get("atMs") is not None
    old = {} if moment_is_new else current  # a moment is said in two ways: not one of each
    return _laid_over({**old, "kind": current["kind"]}, given)


def _task_over(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    if any(given.get(kind) is not None and kind not in current for kind in KINDS):
        return dict(given)
    return _laid_over(current, given)


def _laid_over(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A null stays: it clears a field, and is refused like any value where there is no field."""
    return {**current, **given}


def _retries(given: Backoff | None) -> Backoff:
    said = {} if given is None else msgspec.structs.asdict(given)
    told = {name: value for name, value in said.items() if value is not None}
    return msgspec.structs.replace(cron.RETRIES, **told)


def _own_grace(given: int | None, schedule: Schedule) -> int | None:
    """Return None for the usual grace, which goes on following the schedule."""
    return None if given == cron.usual_grace_ms(schedule) else given


def _object(document: Any) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise InvalidRequest("invalid job: it must be a JSON object")
    return document


def _moment(text: str | None, field: str) -> int | None:
    return None if text is None else parse_deadline(text, field)


def _attempt(problems: list[str], check: Callable[[], Any]) -> Any:
    """What it returns; what it raises is one of the problems."""
    try:
        return check()
    except InvalidRequest as error:
        problems.append(error.message)
        return None
