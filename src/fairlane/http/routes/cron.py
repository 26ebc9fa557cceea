"""Routes of cron: jobs that submit tasks at moments, the log of their runs, and a preview.

Wherever a route names a job, its id or its name will do. Whatever is answered has its secrets
masked. A log outlives its job: by the job's id its runs can still be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final
from zoneinfo import ZoneInfo

from fairlane.core import cron, moments
from fairlane.core.access import Scope
from fairlane.core.cron import Job, Run
from fairlane.core.errors import Conflict, Draining, FairlaneError, InvalidRequest, NotFound
from fairlane.engine.commands import CreateJobs, DeleteJob, RunJob, ToggleJob, UpdateJob
from fairlane.engine.node import Node
from fairlane.engine.verbs.cron import not_found
from fairlane.http.messages import (
    Answer,
    Request,
    Route,
    Routes,
    flag,
    page_cursor,
    page_limit,
    whole_number,
)
from fairlane.schema import fields, jobs, wire

PREVIEW_DEFAULT: Final = 5
PREVIEW_MAX: Final = 100
_PREVIEW: Final = ("expr", "tz", "everyMs", "at")


class Cron:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        """`check_url` raises when nothing may be sent to an address."""
        self._node = node
        self._check_url = check_url

    def routes(self) -> Routes:
        return {
            "/cron/jobs": {
                "POST": Route(self.create, Scope.OPERATE),
                "GET": Route(self.list, Scope.READ),
            },
            "/cron/jobs/{id}": {
                "GET": Route(self.show, Scope.READ),
                "PATCH": Route(self.update, Scope.OPERATE),
                "DELETE": Route(self.delete, Scope.OPERATE),
            },
            "/cron/jobs/{id}/toggle": {"POST": Route(self.toggle, Scope.OPERATE)},
            "/cron/jobs/{id}/run": {"POST": Route(self.run, Scope.OPERATE)},
            "/cron/jobs/{id}/runs": {"GET": Route(self.runs_of, Scope.READ)},
            "/cron/runs": {"GET": Route(self.runs, Scope.READ)},
            "/cron/preview": {"GET": Route(self.preview, Scope.READ)},
        }

    # ---------------------------------------------------------------- jobs

    async def create(self, request: Request) -> Answer:
        """One job, or all of `{"jobs": […]}` or none."""
        body = fields.parse_object(await request.body())
        documents = jobs.documents_of(body)
        for document in [body] if documents is None else documents:
            _claim(request, document)
        for number, document in enumerate([body] if documents is None else documents):
            self._check_urls(document, "" if documents is None else f"jobs[{number}]: ")
        if documents is None:
            made = await self._create([body])
            return Answer(201, _job(made[0]))
        shapes = [_job(one) for one in await self._create(documents, many=True)]
        return Answer(201, {"jobs": shapes, "count": len(shapes)})

    async def _create(self, documents: list[Any], *, many: bool = False) -> list[Job]:
        ids = [self._node.new_id(jobs.ID_PREFIX) for _ in documents]
        try:
            made: list[Job] = await self._node.writer.ask(CreateJobs(ids, documents))
        except FairlaneError as error:
            if many:
                raise
            raise _of_one(error) from None
        return made

    async def list(self, request: Request) -> Answer:
        query = request.query("agentId", "name", "enabled", "limit", "cursor")
        enabled = flag(query, "enabled")
        limit, before = _page(query)
        views = self._node.views
        agent = request.caller.agent_for(query.get("agentId"))
        page = await views.read(views.jobs, agent, query.get("name"), enabled, before, limit)
        shape: dict[str, Any] = {"jobs": [_job(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        return Answer(200, _job(await self._found(request)))

    async def update(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        self._check_urls(document)
        job = await self._found(request)
        if request.caller.agent is not None and "agentId" in document:
            _claim(request, document)
        return Answer(200, _job(await self._node.writer.ask(UpdateJob(job.id, document))))

    async def delete(self, request: Request) -> Answer:
        cancel = flag(request.query("cancel"), "cancel") or False
        job = await self._found(request)
        await self._node.writer.ask(DeleteJob(job.id, cancel))
        return Answer(200, {"id": job.id, "name": job.definition.name, "deleted": True})

    async def toggle(self, request: Request) -> Answer:
        enabled = jobs.parse_toggle(await request.body())
        job = await self._found(request)
        return Answer(200, _job(await self._node.writer.ask(ToggleJob(job.id, enabled))))

    async def run(self, request: Request) -> Answer:
        if self._node.draining:
            raise Draining("the server is stopping; ask another one or try again later")
        job = await self._found(request)
        run: Run = await self._node.writer.ask(RunJob(job.id))
        return Answer(202, {"runId": run.id, "taskId": run.task_id, "state": run.status})

    # ---------------------------------------------------------------- runs

    async def runs_of(self, request: Request) -> Answer:
        query = request.query("status", "limit", "cursor")
        word = request.path["id"]
        job = await self._job(request, word)
        answer = await self._runs(request, query, word if job is None else job.id)
        if job is None and not answer.shape["count"] and not query.get("cursor"):
            hint = "; /cron/runs lists also the runs of jobs that are gone"
            raise NotFound(not_found(word).message + hint)
        return answer

    async def runs(self, request: Request) -> Answer:
        query = request.query("jobId", "status", "limit", "cursor")
        return await self._runs(request, query, query.get("jobId") or None)

    async def _runs(self, request: Request, query: Mapping[str, str], job_id: str | None) -> Answer:
        status = query.get("status") or None
        if status is not None and status not in cron.STATUSES:
            known = ", ".join(cron.STATUSES)
            raise InvalidRequest(f"query parameter 'status' must be one of {known}")
        limit, before = _page(query)
        views = self._node.views
        agent = request.caller.agent
        page = await views.read(views.runs, job_id, status, agent, before, limit)
        shape: dict[str, Any] = {"runs": [wire.run(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def preview(self, request: Request) -> Answer:
        query = request.query(*_PREVIEW, "n")
        count = whole_number(query, "n", PREVIEW_DEFAULT, low=1, high=PREVIEW_MAX)
        assert count is not None
        zone = query.get("tz") or "UTC"
        try:
            # In a thread: dates that seldom come take long to find.
            moments = await asyncio.to_thread(
                jobs.preview, _schedule(query), zone, count, self._node.clock.now()
            )
        except InvalidRequest as error:
            raise InvalidRequest(error.message.replace("'schedule.", "'")) from None
        shapes = [{"utc": wire.moment(at), "local": _local(at, zone)} for at in moments]
        return Answer(200, {"next": shapes})

    # ---------------------------------------------------------------- parts

    async def _found(self, request: Request) -> Job:
        word = request.path["id"]
        job = await self._job(request, word)
        if job is None:
            raise not_found(word)
        return job

    async def _job(self, request: Request, word: str) -> Job | None:
        """By its id, or by a name that only one agent has given to a job; of those that the caller
        may see.
        """
        views, caller = self._node.views, request.caller
        job: Job | None = await views.read(views.job, word)
        if job is not None and caller.owns(job.definition.agent_id):
            return job
        named: list[Job] = await views.read(views.jobs, caller.agent, word, None, None, 2)
        if len(named) > 1:
            raise Conflict(f"several agents have a job named '{word[:128]}': name it by its id")
        return named[0] if named else None

    def _check_urls(self, document: Any, where: str = "") -> None:
        """Addresses that something may be sent to; whatever else is wrong is found later."""
        whole = document if isinstance(document, dict) else {}
        task = whole["task"] if isinstance(whole.get("task"), dict) else {}
        for field, url in (
            ("alertUrl", whole.get("alertUrl")),
            ("task.callbackUrl", task.get("callbackUrl")),
            ("task.webhookUrl", task.get("webhookUrl")),
        ):
            if isinstance(url, str) and url.strip():
                try:
                    self._check_url(url.strip())
                except FairlaneError as error:
                    message = f"{where}invalid job: field '{field}': {error.message}"
                    raise InvalidRequest(message) from None


def _claim(request: Request, document: Any) -> None:
    """A job that says nothing of an agent is the caller's, if that is one."""
    caller = request.caller
    if caller.agent is None or not isinstance(document, dict):
        return  # what is no object is refused later
    task = document["task"] if isinstance(document.get("task"), dict) else {}
    if isinstance(task.get("agentId"), str):
        caller.agent_for(task["agentId"])
    given = document.get("agentId")
    if given is None or isinstance(given, str):
        document["agentId"] = caller.agent_for(given)


def _of_one(error: FairlaneError) -> FairlaneError:
    """What is wrong with the only job of a request is not told by its place in a list."""
    details = dict(error.details or {})
    problems = details.pop("problems", None)
    return type(error)(problems[0]["error"], details=details) if problems else error


def _page(query: Mapping[str, str]) -> tuple[int, int | None]:
    limit = page_limit(query)
    return limit, page_cursor(query)


def _schedule(query: Mapping[str, str]) -> dict[str, Any]:
    """The schedule that a query describes: what it has says which kind it is."""
    given = [name for name in ("expr", "everyMs", "at") if query.get(name)]
    if len(given) != 1:
        raise InvalidRequest("give one of the query parameters 'expr', 'everyMs' and 'at'")
    if given == ["expr"]:
        return {"kind": "cron", "expr": query["expr"], "tz": query.get("tz") or None}
    if given == ["at"]:
        return {"kind": "at", "at": query["at"]}
    every_ms = whole_number(query, "everyMs", None, low=1, high=2**53)
    return {"kind": "every", "everyMs": every_ms}


def _local(at: int, zone: str) -> str:
    return moments.local(at, ZoneInfo(zone)).isoformat(timespec="seconds")


def _job(job: Job) -> dict[str, Any]:
    shape = {"id": job.id, **jobs.document_of(job.definition)}
    if job.damaged:
        shape["unreadable"] = ["definition"]
    if job.next_run_at is not None:
        shape["nextRunAt"] = wire.moment(job.next_run_at)
        shape["nextRunAtMs"] = moments.clamped(job.next_run_at)
    shape["state"] = _state(job)
    shape["createdAt"] = wire.moment(job.created_at)
    shape["updatedAt"] = wire.moment(job.updated_at)
    if job.disabled_reason is not None:
        shape["disabledReason"] = job.disabled_reason
    return shape


def _clamped(at: int | None) -> int | None:
    return None if at is None else moments.clamped(at)


def _state(job: Job) -> dict[str, Any]:
    state = {
        "nextRunAtMs": _clamped(job.next_run_at),
        "lastRunAtMs": _clamped(job.last_run_at),
        "lastStatus": job.last_status,
        "lastError": job.last_error,
        "consecutiveErrors": job.consecutive_errors,
        "runs": job.runs,
    }
    return {name: value for name, value in state.items() if value is not None}
