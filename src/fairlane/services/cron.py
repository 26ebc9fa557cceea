"""Cron: jobs that submit tasks on a schedule, the log of their runs, and a preview.

Callers name a job by its id or its name. The log outlives its job: the runs of a deleted job can
still be listed by its id. No response shows a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from fairlane.core import jobs, moments
from fairlane.core.access import Caller
from fairlane.core.cron import Job, RunRecord
from fairlane.core.errors import Conflict, Draining, FairlaneError, InvalidRequest, NotFound
from fairlane.core.job_documents import ScheduleDocument
from fairlane.core.json_types import JsonObject
from fairlane.engine.commands import CreateJobs, DeleteJob, RunJob, ToggleJob, UpdateJob
from fairlane.engine.node import Node
from fairlane.engine.verbs.cron import not_found
from fairlane.schema import cron as schema
from fairlane.schema.cron import (
    CronJob,
    CronJobDeleted,
    CronJobPage,
    CronJobState,
    CronRunPage,
    CronRunStarted,
    PreviewedMoment,
    SchedulePreview,
    cron_run,
)
from fairlane.schema.wire import moment
from fairlane.services.pages import number
from fairlane.services.registry import implements

# -------------------------------------------------------------------- jobs


@implements(schema.CREATE_CRON_JOB)
async def create_cron_job(
    node: Node, caller: Caller, request: schema.CreateCronJob
) -> CronJob | CronJobPage:
    """Create one job, or all jobs of `{"jobs": […]}`, or none if one is invalid."""
    listed = _listed(request.document)
    if listed is None:
        return _shown((await _created(node, caller, [request.document], many=False))[0])
    shown = [_shown(job) for job in await _created(node, caller, listed, many=True)]
    return CronJobPage(jobs=shown, count=len(shown))


async def _created(node: Node, caller: Caller, documents: list[Any], *, many: bool) -> list[Job]:
    documents = [_claimed(caller, document) for document in documents]
    for place, document in enumerate(documents):
        _check_urls(node, document, f"jobs[{place}]: " if many else "")
    now = node.clock.now()
    # In a thread: rare dates take long to find.
    if many:
        parsed = await asyncio.to_thread(jobs.parse_all, documents, now)
    else:
        parsed = [await asyncio.to_thread(jobs.parse, documents[0], now)]
    ids = [node.new_id(jobs.ID_PREFIX) for _ in parsed]
    try:
        made: list[Job] = await node.writer.ask(CreateJobs(ids, parsed, caller.token))
    except Conflict as error:
        raise error if many else _of_one(error) from None
    return made


@implements(schema.CRON_JOBS)
async def list_cron_jobs(node: Node, caller: Caller, request: schema.ListCronJobs) -> CronJobPage:
    views = node.views
    agent = caller.agent_for(request.agent)
    before = number(request.cursor)
    page = await views.read(views.jobs, agent, request.name, request.enabled, before, request.limit)
    return CronJobPage(
        jobs=[_shown(job) for job in page],
        count=len(page),
        next_cursor=str(page[-1].seq) if page.more else None,
    )


@implements(schema.CRON_JOB)
async def show_cron_job(node: Node, caller: Caller, request: schema.CronJobRequest) -> CronJob:
    return _shown(await _found(node, caller, request.job))


@implements(schema.UPDATE_CRON_JOB)
async def update_cron_job(node: Node, caller: Caller, request: schema.ChangeCronJob) -> CronJob:
    document = request.document
    _check_urls(node, document)
    job = await _found(node, caller, request.job)
    if "agentId" in document:
        document = _claimed(caller, document)
    return _shown(await node.writer.ask(UpdateJob(job.id, document, caller.token)))


@implements(schema.DELETE_CRON_JOB)
async def delete_cron_job(
    node: Node, caller: Caller, request: schema.DeleteCronJob
) -> CronJobDeleted:
    job = await _found(node, caller, request.job)
    await node.writer.ask(DeleteJob(job.id, request.cancel))
    return CronJobDeleted(job.id, job.definition.name, deleted=True)


@implements(schema.TOGGLE_CRON_JOB)
async def toggle_cron_job(node: Node, caller: Caller, request: schema.ToggleCronJob) -> CronJob:
    job = await _found(node, caller, request.job)
    return _shown(await node.writer.ask(ToggleJob(job.id, request.enabled)))


@implements(schema.RUN_CRON_JOB)
async def run_cron_job(
    node: Node, caller: Caller, request: schema.CronJobRequest
) -> CronRunStarted:
    if node.draining:
        raise Draining("the server is stopping; use another one or try again later")
    job = await _found(node, caller, request.job)
    run: RunRecord = await node.writer.ask(RunJob(job.id))
    assert run.task_id is not None
    return CronRunStarted(run_id=run.id, task=run.task_id, state=run.status)


# -------------------------------------------------------------------- runs


@implements(schema.CRON_JOB_RUNS)
async def list_cron_job_runs(
    node: Node, caller: Caller, request: schema.ListCronJobRuns
) -> CronRunPage:
    return await _runs_of(node, caller, request.job, request)


@implements(schema.CRON_RUNS)
async def list_cron_runs(node: Node, caller: Caller, request: schema.ListCronRuns) -> CronRunPage:
    if request.job is not None:
        return await _runs_of(node, caller, request.job, request)
    return await _runs(node, caller, request.job_id, request)


async def _runs_of(
    node: Node, caller: Caller, word: str, request: schema.ListCronJobRuns | schema.ListCronRuns
) -> CronRunPage:
    """List the runs of a job by its id or name, or of a deleted job by its id."""
    job = await _job(node, caller, word)
    page = await _runs(node, caller, word if job is None else job.id, request)
    if job is None and not page.count and request.cursor is None:
        hint = "; GET /cron/runs also lists runs of deleted jobs"
        raise NotFound(not_found(word).message + hint)
    return page


async def _runs(
    node: Node,
    caller: Caller,
    job_id: str | None,
    request: schema.ListCronJobRuns | schema.ListCronRuns,
) -> CronRunPage:
    views = node.views
    before = number(request.cursor)
    page = await views.read(views.runs, job_id, request.status, caller.agent, before, request.limit)
    return CronRunPage(
        runs=[cron_run(run) for run in page],
        count=len(page),
        next_cursor=str(page[-1].seq) if page.more else None,
    )


@implements(schema.CRON_PREVIEW)
async def preview_schedule(
    node: Node, _: Caller, request: schema.PreviewSchedule
) -> SchedulePreview:
    zone = request.tz or "UTC"
    schedule = _schedule(request)
    try:
        found = await asyncio.to_thread(jobs.preview, schedule, zone, request.n, node.clock.now())
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("'schedule.", "'")) from None
    return SchedulePreview(
        [
            PreviewedMoment(
                utc=moment(at),
                local=moments.local(at, ZoneInfo(zone)).isoformat(timespec="seconds"),
            )
            for at in found
        ]
    )


def _schedule(request: schema.PreviewSchedule) -> ScheduleDocument:
    given = [name for name in ("expr", "every_ms", "at") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest("set exactly one of the query parameters 'expr', 'everyMs' and 'at'")
    if request.expr is not None:
        return ScheduleDocument(kind="cron", expr=request.expr, tz=request.tz)
    if request.at is not None:
        return ScheduleDocument(kind="at", at=request.at)
    return ScheduleDocument(kind="every", every_ms=request.every_ms)


# -------------------------------------------------------------------- parts


async def _found(node: Node, caller: Caller, word: str) -> Job:
    job = await _job(node, caller, word)
    if job is None:
        raise not_found(word)
    return job


async def _job(node: Node, caller: Caller, word: str) -> Job | None:
    """Return the caller's job with this id, or with this name if only one agent uses it."""
    views = node.views
    job: Job | None = await views.read(views.job, word)
    if job is not None and caller.owns(job.definition.agent_id):
        return job
    named: list[Job] = await views.read(views.jobs, caller.agent, word, None, None, 2)
    if len(named) > 1:
        raise Conflict(f"several agents have a job named '{word[:128]}'; use its id")
    return named[0] if named else None


def _listed(document: JsonObject) -> list[object] | None:
    """Return the documents of `{"jobs": […]}`; None for one job."""
    if "jobs" not in document:
        return None
    listed = document["jobs"]
    if len(document) > 1:
        unknown = next(name for name in document if name != "jobs")
        raise InvalidRequest(f"unknown field '{unknown[:40]}' next to 'jobs'")
    if not isinstance(listed, list) or not 1 <= len(listed) <= jobs.JOBS_MAX:
        raise InvalidRequest(f"field 'jobs' must be a list of 1 to {jobs.JOBS_MAX} jobs")
    return listed


def _claimed(caller: Caller, document: object) -> Any:
    """Return a document in which a job without an agent belongs to the agent of the caller."""
    if caller.agent is None or not isinstance(document, dict):
        return document  # checked later
    task = document["task"] if isinstance(document.get("task"), dict) else {}
    if isinstance(task.get("agentId"), str):
        caller.agent_for(task["agentId"])
    agent = document.get("agentId")
    if agent is None or isinstance(agent, str):
        return {**document, "agentId": caller.agent_for(agent)}
    return document


def _check_urls(node: Node, document: object, where: str = "") -> None:
    """Raise `InvalidRequest` for a URL that the outbound guard does not allow."""
    for field, url in _urls(document):
        if isinstance(url, str) and url.strip():
            try:
                node.check_url(url.strip())
            except FairlaneError as error:
                message = f"{where}invalid job: field '{field}': {error.message}"
                raise InvalidRequest(message) from None


def _urls(document: object) -> Iterator[tuple[str, Any]]:
    whole = document if isinstance(document, dict) else {}
    task = whole["task"] if isinstance(whole.get("task"), dict) else {}
    yield "alertUrl", whole.get("alertUrl")
    yield "task.callbackUrl", task.get("callbackUrl")
    yield "task.webhookUrl", task.get("webhookUrl")


def _of_one(error: Conflict) -> Conflict:
    """Return the conflict of a request's only job, without its index in a list."""
    details = dict(error.details or {})
    details.pop("problems", None)
    return Conflict(error.message, details=details)


def _shown(job: Job) -> CronJob:
    document = msgspec.structs.asdict(jobs.document_of(job.definition))
    next_run_at = job.next_run_at
    return CronJob(
        id=job.id,
        **document,
        unreadable=["definition"] if job.damaged else None,
        next_run_at=None if next_run_at is None else moment(next_run_at),
        next_run_at_ms=_clamped(next_run_at),
        state=CronJobState(
            next_run_at_ms=_clamped(next_run_at),
            last_run_at_ms=_clamped(job.last_run_at),
            last_status=job.last_status,
            last_error=job.last_error,
            consecutive_errors=job.consecutive_errors,
            runs=job.runs,
        ),
        created_at=moment(job.created_at),
        updated_at=moment(job.updated_at),
        disabled_reason=job.disabled_reason,
    )


def _clamped(at: int | None) -> int | None:
    return None if at is None else moments.clamped(at)
