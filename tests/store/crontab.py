"""Cron jobs on a store, spoken to in short sentences. Tests say only what matters to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.core import validation
from fairlane.core.cron import Job, RunRecord
from fairlane.core.job_documents import JobDocument
from fairlane.engine.commands import CreateJobs, ToggleJob, UpdateJob
from fairlane.engine.reads.views import Views

if TYPE_CHECKING:
    from fairlane.core.model import Task
    from tests.store.scheduler import Scheduler

MINUTE = 60_000
HOUR = 3_600_000
DAY = 86_400_000
LANES = ("cron", "main")
EVERY_MINUTE = {"kind": "every", "everyMs": MINUTE}


class Crontab:
    """Jobs on a store, spoken to in short sentences."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.views = Views(scheduler.store)
        scheduler.apply()  # whatever has to be looked at first

    def add(self, name: str = "report", /, **fields: Any) -> Job:
        (job,) = self.scheduler.ask(CreateJobs([f"job_{name}"], [job_document(name, **fields)]))
        assert isinstance(job, Job)
        return job

    def change(self, name: str = "report", /, **fields: Any) -> Job:
        job: Job = self.scheduler.ask(UpdateJob(f"job_{name}", fields))
        return job

    def toggle(self, name: str = "report", *, enabled: bool) -> Job:
        job: Job = self.scheduler.ask(ToggleJob(f"job_{name}", enabled))
        return job

    def job(self, name: str = "report") -> Job:
        found = self.views.job(f"job_{name}")
        assert found is not None
        return found

    def runs(self, name: str | None = "report", status: str | None = None) -> list[RunRecord]:
        """Oldest first."""
        wanted = None if name is None else f"job_{name}"
        return self.views.runs(wanted, status, None, None, 10_000)[::-1]

    def statuses(self, name: str | None = "report") -> list[str]:
        return [run.status for run in self.runs(name)]

    def pass_time(self, milliseconds: int) -> None:
        self.scheduler.pass_time(milliseconds)
        self.settle()

    def settle(self) -> None:
        """Apply until nothing more is due at this moment."""
        for _ in range(1000):
            due_at = self.scheduler.engine.due_at
            if due_at is None or due_at > self.scheduler.clock.now():
                return
            self.scheduler.apply()
        raise AssertionError("it is always due")

    def lease(self) -> Task:
        return self.scheduler.lease_one(lanes=LANES)

    def complete(self, result: Any = None) -> Task:
        text = None if result is None else msgspec.json.encode(result).decode()
        return self.scheduler.complete(self.lease(), text)

    def fail(self, error: str = "broken") -> Task:
        return self.scheduler.fail(self.lease(), error, retryable=False)

    def idle(self) -> bool:
        return not self.scheduler.lease(lanes=LANES)


def document(name: str = "report", /, **fields: Any) -> dict[str, Any]:
    """A job every minute whose task is the handler `work`, unless told otherwise."""
    return {"name": name, "schedule": EVERY_MINUTE, "task": {"handler": "work"}, **fields}


def job_document(name: str = "report", /, **fields: Any) -> JobDocument:
    """The same, typed as the engine takes it."""
    return validation.convert(document(name, **fields), JobDocument)
