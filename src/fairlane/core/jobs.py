"""Cron jobs from documents and back: parse, define, change and show a job.

A `JobDocument` is what a caller sends and reads; a `CronDefinition` is what the store keeps, with
every default filled in. `document_of` is the inverse: a job defined from its document is equal.
Timeouts, retries and the agent are stored on the job wherever the document names them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from fairlane.core import cron, moments, submissions, validation
from fairlane.core.cron import CronDefinition, Schedule
from fairlane.core.errors import InvalidRequest
from fairlane.core.job_documents import SPAN_MS_MAX, JobDocument, ScheduleDocument
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import Submission
from fairlane.core.retries import Backoff
from fairlane.core.secrets import check_secrets, mask_secrets, moved_secret_problem, restore_secrets
from fairlane.core.submissions import DEFAULT_AGENT, KINDS, moment_of
from fairlane.core.types import json_name
from fairlane.core.validation import Problem

T = TypeVar("T")

ID_PREFIX: Final = "job"
LANE: Final = "cron"
JOBS_MAX: Final = 1000
DOCUMENT_BYTES_MAX: Final = 524_288

# Response fields that a change ignores, so that a caller can send back what it read.
READ_ONLY: Final = frozenset(
    {"id", "nextRunAt", "nextRunAtMs", "state", "createdAt", "updatedAt", "disabledReason"}
)
# Task fields that a job does not accept, and what to do instead.
_NOT_IN_A_TASK: Final[Mapping[str, str]] = {
    "session": "a job's tasks always run in the job's own session; use 'overlap'",
    "run_at": "the schedule sets the time",
    "delay_ms": "the schedule sets the time",
    "deadline": "a recurring task cannot have a fixed deadline; use 'timeoutMs'",
    "depends_on": "a job's tasks cannot depend on other tasks",
    "key": "only items in a batch can have one",
}
# Stored on the job, although a caller may name it in the task.
_LIFTED: Final = ("timeoutMs", "retryPolicy")
# Other programs put the work of a job there.
_ELSEWHERE: Final = "; put the text for the agent into task.instruction"
# The fields of each kind of schedule.
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    cron.AT: ("at", "at_ms"),
    cron.EVERY: ("every_ms", "anchor"),
    cron.CRON: ("expr", "tz"),
}


# -------------------------------------------------------------------- create and change


def create(document: object, now: int) -> CronDefinition:
    return define(parse(document, now), now)


def parse(document: object, now: int) -> JobDocument:
    """Check the document of a new job. Raise `InvalidRequest` with every problem."""
    if not isinstance(document, dict):
        raise InvalidRequest("invalid job: it must be a JSON object")
    return _checked(_owned(_lifted(document)), lambda job: _problems(job, now, is_new=True))


def parse_all(documents: Sequence[object], now: int) -> list[JobDocument]:
    """Check many documents. Raise `InvalidRequest` that lists the problems of each by its index."""
    parsed: list[JobDocument] = []
    problems: list[JsonObject] = []
    names: dict[tuple[str, str], int] = {}
    for number, document in enumerate(documents):
        try:
            job = parse(document, now)
            first = names.setdefault((job.agent_id or DEFAULT_AGENT, job.name), number)
            if first != number:
                raise InvalidRequest(f"invalid job: jobs[{first}] has the same name")
            parsed.append(job)
        except InvalidRequest as error:
            problems.append({"index": number, "error": error.message})
    if problems:
        texts = "; ".join(f"jobs[{one['index']}]: {one['error']}" for one in problems[:10])
        raise InvalidRequest(texts, details={"problems": problems})
    return parsed


def define(job: JobDocument, now: int) -> CronDefinition:
    """Return the definition of a new job. Raise `InvalidRequest` with its problems at `now`."""
    _refuse(_problems(job, now, is_new=True))
    return _definition(job, now)


def update(before: CronDefinition, document: JsonMapping, now: int) -> CronDefinition:
    """Merge `document` into the definition; null clears a field.

    `retryPolicy`, `schedule` and `task` are merged too, unless their kind changes.
    """
    current = msgspec.to_builtins(document_of(before, masking=False))
    if before.misfire_grace_ms is None:
        del current["misfireGraceMs"]  # it follows from the schedule, which may change
    given = {name: value for name, value in document.items() if name not in READ_ONLY}
    given = _owned(_lifted(_unmasked(given, current)), before.agent_id)
    for name, over in (("schedule", _schedule_over), ("task", _task_over)):
        if isinstance(given.get(name), dict):
            given[name] = over(current[name], given[name])
    if isinstance(given.get("retryPolicy"), dict):
        given["retryPolicy"] = {**current["retryPolicy"], **given["retryPolicy"]}
    merged = {**_without_implied(current, given), **given}
    after = _definition(_checked(merged, lambda job: _problems(job, now, is_new=False)), now)
    config = before.task.llm_config or {}
    secret = moved_secret_problem(config, after.task.llm_config or {}, "task.llmConfig")
    if secret is not None:
        _refuse([Problem("task.llmConfig", secret)])
    if _span(before) != _span(after) or (after.enabled and not before.enabled):
        _refuse(_future_problems(after.schedule, after.start_at, after.end_at, now))
    return after


def preview(schedule: ScheduleDocument, zone: str, count: int, now: int) -> list[int]:
    """Return the next times of a schedule, which needs no job, shown in `zone`."""
    cron.checked(Schedule(kind=cron.CRON, expr="@daily", tz=zone), now)
    rule = _schedule(schedule, now)
    cron.checked(rule, now)
    found: list[int] = []
    after = now
    while len(found) < count and (slot := cron.next_slot(rule, after)) is not None:
        found.append(slot.at)
        after = slot.at
    return found


# -------------------------------------------------------------------- documents of jobs


def document_of(definition: CronDefinition, *, masking: bool = True) -> JobDocument:
    """Return the document of a job with every default; without `masking` it contains secrets."""
    one = definition
    task = one.task
    if masking and task.llm_config is not None:
        task = msgspec.structs.replace(task, llm_config=mask_secrets(task.llm_config))
    return JobDocument(
        name=one.name,
        agent_id=one.agent_id,
        schedule=_schedule_document(one.schedule),
        task=task,
        enabled=one.enabled,
        delete_after_run=one.delete_after_run if one.schedule.kind == cron.AT else None,
        overlap=one.overlap,
        misfire=one.misfire,
        misfire_grace_ms=one.grace_ms,
        misfire_cap=one.misfire_cap,
        misfire_spread_ms=one.misfire_spread_ms,
        jitter_ms=one.jitter_ms,
        timeout_ms=one.timeout_ms,
        start_at=None if one.start_at is None else moments.text(one.start_at),
        end_at=None if one.end_at is None else moments.text(one.end_at),
        max_runs=one.max_runs,
        retry_policy=one.retry_policy,
        alert_url=one.alert_url,
        alert_after=one.alert_after,
        disable_after=one.disable_after,
        keep_runs=one.keep_runs,
        keep_days=one.keep_days,
    )


def _schedule_document(schedule: Schedule) -> ScheduleDocument:
    if schedule.kind == cron.AT:
        assert schedule.at is not None
        at = moments.clamped(schedule.at)
        return ScheduleDocument(kind="at", at=moments.text(at), at_ms=at)
    if schedule.kind == cron.EVERY:
        assert schedule.anchor_at is not None
        anchor = moments.text(schedule.anchor_at)
        return ScheduleDocument(kind="every", every_ms=schedule.every_ms, anchor=anchor)
    return ScheduleDocument(kind="cron", expr=schedule.expr, tz=schedule.tz)


def submission(
    definition: CronDefinition,
    *,
    task_id: str,
    session: str | None = None,
    run_at: int | None = None,
) -> Submission:
    """Return the task of one run."""
    task = definition.task
    request = msgspec.structs.replace(
        task,
        agent=definition.agent_id,
        lane=task.lane or LANE,
        session=session,
        timeout_ms=definition.timeout_ms,
        retry_policy=definition.retry_policy,
    )
    made = submissions.submission(request, task_id=task_id)
    return msgspec.structs.replace(made, run_at=run_at)


# -------------------------------------------------------------------- rules that join fields


def _checked(document: JsonMapping, rules: Callable[[JobDocument], list[Problem]]) -> JobDocument:
    try:
        return validation.check(document, JobDocument, rules)
    except InvalidRequest as error:
        hint = _ELSEWHERE if "message" in document or "payload" in document else ""
        message = f"invalid job: {error.message}{hint}"
        raise InvalidRequest(message, details=error.details) from None


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        error = validation.refusal(problems)
        raise InvalidRequest(f"invalid job: {error.message}", details=error.details)


def _problems(job: JobDocument, now: int, *, is_new: bool) -> list[Problem]:
    """List the problems of a job whose fields are each valid."""
    problems = [*_name_problems(job), *_task_problems(job)]
    schedule = _attempt(problems, "schedule", lambda: _schedule(job.schedule, now))
    start_at = _attempt(problems, "startAt", lambda: _moment(job.start_at, "startAt"))
    end_at = _attempt(problems, "endAt", lambda: _moment(job.end_at, "endAt"))
    if start_at is not None and end_at is not None and end_at <= start_at:
        problems.append(Problem("endAt", "field 'endAt' must be after 'startAt'"))
    if problems or schedule is None:
        return problems
    definition = _definition(job, now)
    if len(msgspec.json.encode(definition)) > DOCUMENT_BYTES_MAX:
        text = f"it must not be larger than {DOCUMENT_BYTES_MAX} bytes"
        return [Problem("", text)]
    _attempt(problems, "task", lambda: _try_submission(definition))
    if is_new and not problems:
        problems += _future_problems(schedule, start_at, end_at, now)
    return problems


def _name_problems(job: JobDocument) -> list[Problem]:
    problems = []
    if job.name.startswith(f"{ID_PREFIX}_"):
        text = f"field 'name' must not begin with '{ID_PREFIX}_', which is reserved for ids"
        problems.append(Problem("name", text))
    if job.alert_after is not None and not job.alert_url:
        problems.append(Problem("alertAfter", "'alertAfter' needs 'alertUrl'"))
    if job.delete_after_run and job.schedule.kind != cron.AT:
        text = "'deleteAfterRun' is only for a schedule of kind at"
        problems.append(Problem("deleteAfterRun", text))
    return problems


def _task_problems(job: JobDocument) -> list[Problem]:
    problems = [
        Problem(path, f"'{path}' is not allowed in a job: {instead}")
        for name, instead in _NOT_IN_A_TASK.items()
        if getattr(job.task, name) is not None
        for path in [f"task.{json_name(name)}"]
    ]
    texts: list[str] = []
    check_secrets("task.llmConfig", job.task.llm_config, texts)
    return [*problems, *(Problem("task.llmConfig", text) for text in texts)]


def _try_submission(definition: CronDefinition) -> None:
    """Raise `InvalidRequest` if the job's task could not be submitted."""
    try:
        submission(definition, task_id="task")
    except InvalidRequest as error:
        is_of_job = error.message.startswith(tuple(f"field '{name}" for name in _LIFTED))
        where = "" if is_of_job else "field 'task': "
        raise InvalidRequest(f"{where}{error.message}") from None


def _future_problems(
    schedule: Schedule, start_at: int | None, end_at: int | None, now: int
) -> list[Problem]:
    """List the reasons why a schedule would never run."""
    problems: list[Problem] = []
    _attempt(problems, "schedule", lambda: cron.checked(schedule, now))
    if problems:
        return problems
    if end_at is not None and end_at <= now:
        text = f"field 'endAt' must be in the future, not {moments.text(end_at)}"
        return [Problem("endAt", text)]
    after = now if start_at is None else max(now, start_at - 1)
    slot = cron.next_slot(schedule, after)
    if slot is None or (end_at is not None and slot.at > end_at):
        name = "startAt" if end_at is None else "endAt"
        text = f"field '{name}' leaves no run: the schedule has none in that period"
        return [Problem(name, text)]
    return []


def _definition(job: JobDocument, now: int) -> CronDefinition:
    """Return the definition of a job that has no problems."""
    schedule = _schedule(job.schedule, now)
    said = {
        name: value
        for name in JobDocument.__struct_fields__
        if (value := getattr(job, name)) is not None
    }
    said |= {
        "agent_id": job.agent_id or DEFAULT_AGENT,
        "schedule": schedule,
        "start_at": _moment(job.start_at, "startAt"),
        "end_at": _moment(job.end_at, "endAt"),
        "delete_after_run": schedule.kind == cron.AT and job.delete_after_run is not False,
        "retry_policy": _retries(job.retry_policy),
        "alert_url": job.alert_url or None,
        "alert_after": (job.alert_after or 1) if job.alert_url else None,
        "misfire_grace_ms": _own_grace(job.misfire_grace_ms, schedule),
    }
    return CronDefinition(**said)


def _schedule(given: ScheduleDocument, now: int) -> Schedule:
    """Return the schedule. Raise `InvalidRequest` for missing fields and those of other kinds."""
    for kind, names in _OF_KIND.items():
        misplaced = [name for name in names if getattr(given, name) is not None]
        if misplaced and kind != given.kind:
            name = json_name(misplaced[0])
            raise InvalidRequest(f"'schedule.{name}' is for the kind {kind}, not {given.kind}")
    if given.kind == cron.AT:
        return _at(given)
    if given.kind == cron.EVERY:
        if given.every_ms is None:
            raise InvalidRequest("missing required field 'schedule.everyMs'")
        anchor = _moment(given.anchor, "schedule.anchor")
        anchor_at = now if anchor is None else anchor
        if anchor_at > now + SPAN_MS_MAX:
            raise InvalidRequest("field 'schedule.anchor' must not be more than 366 days ahead")
        return Schedule(kind=cron.EVERY, every_ms=given.every_ms, anchor_at=anchor_at)
    expr = " ".join((given.expr or "").split())
    if not expr:
        raise InvalidRequest("missing required field 'schedule.expr'")
    return Schedule(kind=cron.CRON, expr=expr, tz=given.tz or "UTC")


def _at(given: ScheduleDocument) -> Schedule:
    at = _moment(given.at, "schedule.at")
    if at is not None and given.at_ms not in (None, at):
        raise InvalidRequest("'schedule.at' and 'schedule.atMs' differ: give only one of them")
    at = given.at_ms if at is None else at
    if at is None:
        raise InvalidRequest("missing required field 'schedule.at' (or 'schedule.atMs')")
    return Schedule(kind=cron.AT, at=at)


def _retries(given: Backoff | None) -> Backoff:
    said = {} if given is None else msgspec.structs.asdict(given)
    named = {name: value for name, value in said.items() if value is not None}
    policy = msgspec.structs.replace(cron.RETRIES, **named)
    # The store returns it as a fraction, so the response to its creation has one too.
    return msgspec.structs.replace(policy, backoff_multiplier=float(policy.backoff_multiplier or 2))


def _own_grace(given: int | None, schedule: Schedule) -> int | None:
    """Return the job's own grace; None for the usual one, which follows the schedule."""
    return None if given == cron.usual_grace_ms(schedule) else given


def _moment(text: str | None, field: str) -> int | None:
    return None if text is None else moment_of(text, field)


def _attempt(problems: list[Problem], path: str, check: Callable[[], T]) -> T | None:
    """Return what `check` returns; if it raises, add the error to the problems."""
    try:
        return check()
    except InvalidRequest as error:
        problems.append(Problem(path, error.message))
        return None


# -------------------------------------------------------------------- parts of documents


def _span(definition: CronDefinition) -> tuple[object, ...]:
    """Return the fields that decide when a job runs."""
    return definition.schedule, definition.start_at, definition.end_at


def _lifted(document: JsonMapping) -> JsonObject:
    """Return a copy in which the job carries the timeout and the retries of its task."""
    lifted = dict(document)
    if not isinstance(lifted.get("task"), dict):
        return lifted
    task = dict(lifted["task"])
    if "timeout" in task:
        task.setdefault("timeoutMs", task["timeout"])
        if task["timeoutMs"] == task["timeout"]:
            del task["timeout"]  # two names with different values are refused as in any task
    for name in _LIFTED:
        said = task.pop(name, None)
        if said is not None and lifted.get(name, said) != said:
            raise InvalidRequest(
                f"invalid job: '{name}' and 'task.{name}' differ: give only one of them"
            )
        if said is not None:
            lifted[name] = said
    return {**lifted, "task": task}


def _owned(document: JsonMapping, owner: str | None = None) -> JsonObject:
    """Return a copy in which the job names the agent.

    The task may name it too: it sets the agent of a job that names none and never changes it.
    `owner` is the agent of an existing job.
    """
    owned = dict(document)
    if not isinstance(owned.get("task"), dict) or "agentId" not in owned["task"]:
        return owned
    task = dict(owned["task"])
    agent = task.pop("agentId") or None
    named = owned.get("agentId") or owner
    if agent is not None:
        if named not in (None, agent):
            raise InvalidRequest(
                "invalid job: 'agentId' and 'task.agentId' differ: give only one of them"
            )
        owned["agentId"] = agent
    return {**owned, "task": task}


def _unmasked(given: JsonObject, current: JsonMapping) -> JsonObject:
    """Return the document with each masked secret replaced by the stored one."""
    task, kept = given.get("task"), current["task"].get("llmConfig")
    if not isinstance(task, dict) or "llmConfig" not in task or not kept:
        return given
    return {**given, "task": {**task, "llmConfig": restore_secrets(task["llmConfig"], kept)}}


def _without_implied(current: JsonMapping, given: JsonMapping) -> JsonObject:
    """Return the document without fields that were implied by a field that changes."""
    implied = {"schedule": "deleteAfterRun", "alertUrl": "alertAfter"}
    gone = {implied[name] for name in given if name in implied}
    return {name: value for name, value in current.items() if name not in gone}


def _schedule_over(current: JsonMapping, given: JsonMapping) -> JsonObject:
    if given.get("kind") not in (None, current["kind"]):
        return dict(given)
    is_new_moment = given.get("at") is not None or given.get("atMs") is not None
    old = {} if is_new_moment else current  # a time has two names: do not keep one of each
    return {**old, **given, "kind": current["kind"]}


def _task_over(current: JsonMapping, given: JsonMapping) -> JsonObject:
    if any(given.get(kind) is not None and kind not in current for kind in KINDS):
        return dict(given)
    return {**current, **given}
