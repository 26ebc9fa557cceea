"""Who makes jobs, changes them, and runs what they fire: people of the simulated world of cron."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core import jobs
from fairlane.core.model import capability_of
from fairlane.engine.commands import (
    Cancel,
    Complete,
    CreateJobs,
    DeleteJob,
    Fail,
    Grant,
    Lease,
    RunJob,
    Start,
    ToggleJob,
    UpdateJob,
)
from fairlane.schema.wire import moment

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.cron_model import Model, ModelJob

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Beirut")
EXPRESSIONS: Final = (
    "30 2 * * *",
    "0 0 * * *",
    "15 1 * * 0",
    "0 9 * * 1-5",
    "45 1,2 * * *",
    "0,30 0 * * sun",
    "30 */12 * * *",
    "0 12 1,15 * *",
    "15 3 13 * fri",
    "@daily",
    "@weekly",
)
TASKS: Final[tuple[dict[str, Any], ...]] = (
    {"handler": "mail"},
    {"instruction": "say hello"},
    {"action": "click", "tabId": "t1"},
)
ROUTES: Final = frozenset(
    {capability_of("handler", "mail"), capability_of("instruction"), "action"}
)
JOBS_MIN: Final = 3
JOBS_MAX: Final = 5


class Held(msgspec.Struct):
    """A lease as its worker knows it, and when it will be reported on; None is never."""

    seq: int
    fencing_token: int
    id: str
    report_at: int | None


class Owner:
    """Makes jobs and changes them, one thing at a time; only what is allowed."""

    def __init__(self, rng: Random, model: Model) -> None:
        self._rng = rng
        self._model = model
        self._number = 0

    @property
    def idle(self) -> bool:
        return sum(job.enabled for job in self._model.jobs.values()) < JOBS_MIN

    def ask(self, now: int) -> list[Any]:
        rng, jobs = self._rng, list(self._model.jobs.values())
        if self.idle or (len(jobs) < JOBS_MAX and rng.random() < 0.3):
            return [self._create(now)]
        job = rng.choice(jobs)
        chance = rng.random()
        if chance < 0.25:
            return [RunJob(job.id)]
        if chance < 0.55 and self._may_toggle(job, now):
            return [ToggleJob(job.id, enabled=not job.enabled)]
        if chance < 0.75 and job.enabled and job.document["schedule"]["kind"] != "at":
            return [UpdateJob(job.id, self._change(now))]
        if chance < 0.85 and job.active:
            return [Cancel(rng.choice(sorted(job.active)))]
        if chance < 0.93 or job.reason == "finished":
            return [DeleteJob(job.id, cancel=rng.random() < 0.5)]
        return []

    def off_and_on(self) -> list[Any]:
        """What somebody does who sees a clock jump: with the job that fired last."""
        jobs = [job for job in self._model.jobs.values() if job.next_at is not None]
        if not jobs:
            return []
        job = max(jobs, key=lambda one: one.slot_at)
        return [ToggleJob(job.id, enabled=False), ToggleJob(job.id, enabled=True)]

    def _may_toggle(self, job: ModelJob, now: int) -> bool:
        return job.enabled or self._model.could_go_on(job, now + 10 * MINUTE)

    def _create(self, now: int) -> CreateJobs:
        self._number += 1
        rng = self._rng
        document: dict[str, Any] = {
            "name": f"job-{self._number}",
            "schedule": self._schedule(now),
            "task": rng.choice(TASKS),
            "overlap": rng.choice(("skip", "skip", "queue", "allow")),
            "misfire": rng.choice(("skip", "once", "all")),
            "misfireGraceMs": rng.choice((0, MINUTE, MINUTE, HOUR)),
            "misfireCap": rng.choice((1, 2, 10)),
            "misfireSpreadMs": rng.choice((0, 0, 5 * MINUTE)),
            "jitterMs": rng.choice((0, 0, 10 * MINUTE)),
        }
        if rng.random() < 0.2:
            document["disableAfter"] = rng.choice((1, 2))
        if document["schedule"]["kind"] != "at":
            document |= self._bounds(now)
        elif rng.random() < 0.3:
            document["deleteAfterRun"] = False
        return CreateJobs([f"job_{self._number:05}"], [jobs.parse(document, now)])

    def _change(self, now: int) -> dict[str, Any]:
        rng = self._rng
        return rng.choice(
            (
                {"misfire": rng.choice(("skip", "once", "all"))},
                {"overlap": rng.choice(("skip", "queue", "allow"))},
                {"misfireGraceMs": rng.choice((0, MINUTE, HOUR))},
                {"schedule": self._repeating(now)},
                {"schedule": self._repeating(now)},
            )
        )

    def _schedule(self, now: int) -> dict[str, Any]:
        if self._rng.random() < 0.25:
            return {"kind": "at", "atMs": now + self._rng.randrange(MINUTE, 20 * DAY)}
        return self._repeating(now)

    def _repeating(self, now: int) -> dict[str, Any]:
        rng = self._rng
        if rng.random() < 0.35:
            every = {"kind": "every", "everyMs": rng.randrange(5 * HOUR, 60 * HOUR)}
            if rng.random() < 0.5:
                every["anchor"] = moment(now - rng.randrange(30 * DAY))
            return every
        return {"kind": "cron", "expr": rng.choice(EXPRESSIONS), "tz": rng.choice(ZONES)}

    def _bounds(self, now: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {}
        if rng.random() < 0.15:
            found["startAt"] = moment(now + rng.randrange(20 * DAY))
        if rng.random() < 0.15:
            found["endAt"] = moment(now + rng.randrange(40 * DAY, 150 * DAY))
        if rng.random() < 0.15:
            found["maxRuns"] = rng.randrange(1, 40)
        return found


class Runner:
    """A worker that takes whatever there is, and is sometimes long, wrong, or gone."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.held: list[Held] = []

    def lease(self, worker: str) -> Lease:
        ttl_ms = self._rng.choice((15_000, 2 * DAY, 2 * DAY))
        return Lease(worker, None, ROUTES, 20, ttl_ms, ROUTES)

    def take(self, grants: list[Grant], now: int) -> None:
        for grant in grants:
            chance = self._rng.random()
            wait: int | None = 0
            if chance < 0.04:
                wait = None  # nobody will ever hear of it: the lease runs out
            elif chance < 0.12:
                wait = self._rng.randrange(HOUR, 30 * HOUR)
            report_at = None if wait is None else now + wait
            held = Held(grant.task.seq, grant.task.fencing_token, grant.task.id, report_at)
            self.held.append(held)

    def report(self, now: int) -> list[Any]:
        """What has come to its end by now; what is reported once is not held any more."""
        ready = [h for h in self.held if h.report_at is not None and h.report_at <= now]
        self.held = [held for held in self.held if held not in ready]
        return [self._report(held) for held in ready]

    def _report(self, held: Held) -> Complete | Fail | Start:
        chance = self._rng.random()
        if chance < 0.8:
            return Complete(held.seq, held.fencing_token, '"done"')
        return Fail(held.seq, held.fencing_token, "broken", retryable=chance < 0.92)
