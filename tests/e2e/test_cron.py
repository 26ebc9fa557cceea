"""Jobs of real processes: two nodes of which one is killed, and crashes inside a run."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tests.e2e.asking import Asker
from tests.e2e.processes import show, until
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time, judge, steadily

if TYPE_CHECKING:
    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

JOBS = 60
PAGE = 500
IDLE_SECONDS = 5
MISSED = 5  # moments of a job for which nobody was there
GRACE_MS = 1500
LEASE_SECONDS_MAX = 15 + WAIT_SECONDS
# What a killed node held stays taken until its leases run out, which must not hold up the rest.
POLICY = {"lanes": {"cron": {"maxInflight": 2000, "maxQueueSize": None}}}


@pytest.mark.timeout(600)
async def test_two_nodes_fire_each_second_of_sixty_jobs_once_though_one_is_killed(
    programs: Programs, tmp_path: Path, fresh_postgres: str, request: pytest.FixtureRequest
) -> None:
    seconds: int = request.config.getoption("--cron-seconds")
    policy = tmp_path / "policy.json"
    policy.write_bytes(msgspec.json.encode(POLICY))
    first, second = (
        programs.server(fresh_postgres, "--policy", str(policy), name=f"node-{n}") for n in (1, 2)
    )
    await asyncio.gather(first.start(), second.start())
    anchor = int(time.time()) * 1000 + 10_000
    async with Asker(first) as asker, Asker(second) as other:
        ids, slots = await _every_second(asker, anchor, seconds)
        await _until_fired(asker, ids[-1], len(slots) // 4)
        first.kill()
        await _until_fired(other, ids[-1], len(slots) // 2)
        await first.start()
        await _until_fired(asker, ids[-1], len(slots) * 2 // 3)
        await _until_ended(other, slots[-1])
        runs = await _runs(other)
        jobs = [(await asker.get(f"/cron/jobs/{id_}")).body for id_ in ids]
    _assert_each_once(runs, ids, slots)
    assert {(job["enabled"], job["disabledReason"]) for job in jobs} == {(False, "finished")}
    assert {job["state"]["runs"] for job in jobs} == {len(slots)}


async def _every_second(asker: Asker, anchor: int, seconds: int) -> tuple[list[str], list[int]]:
    """Jobs with the same slots, one each second after the anchor; and those slots."""
    schedule = {"kind": "every", "everyMs": 1000, "anchor": _written(anchor)}
    # Side by side: a run whose node was killed is on until its lease is over.
    shape = {"schedule": schedule, "overlap": "allow", "endAt": _written(anchor + seconds * 1000)}
    jobs = [{"name": f"job-{n}", "task": {"handler": "echo"}, **shape} for n in range(JOBS)]
    answer = await asker.post("/cron/jobs", {"jobs": jobs})
    assert answer.status in {200, 201}, answer
    (made_at,) = {_ms(job["createdAt"]) for job in answer.body["jobs"]}
    slots = [anchor + number * 1000 for number in range(1, seconds + 1)]
    slots = [slot for slot in slots if slot > made_at]
    assert len(slots) == seconds
    return [job["id"] for job in answer.body["jobs"]], slots


async def _until_fired(asker: Asker, job: str, count: int) -> None:
    async def fired() -> bool:
        answer = await asker.get(f"/cron/jobs/{job}")
        assert answer.status == 200, answer
        return bool(answer.body["state"]["runs"] >= count)

    await until(fired, count + WAIT_SECONDS, lambda: f"{job} has not fired {count} times")


async def _until_ended(asker: Asker, last_slot: int) -> None:
    """All have been fired after the last slot; what was running in the crash runs again."""

    async def ended() -> bool:
        enabled = await asker.get("/cron/jobs?enabled=true&limit=1")
        queued = await asker.get("/cron/runs?status=queued&limit=1")
        running = await asker.get("/cron/runs?status=running&limit=1")
        return not (enabled.body["jobs"] or queued.body["runs"] or running.body["runs"])

    seconds = max(0, last_slot / 1000 - time.time())
    await until(ended, seconds + LEASE_SECONDS_MAX, lambda: "runs have not ended")


async def _runs(asker: Asker) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    path = f"/cron/runs?limit={PAGE}"
    while True:
        answer = await asker.get(path)
        assert answer.status == 200, answer
        found += answer.body["runs"]
        if not answer.body.get("nextCursor"):
            return found
        path = f"/cron/runs?limit={PAGE}&cursor={answer.body['nextCursor']}"


def _assert_each_once(runs: list[dict[str, Any]], ids: list[str], slots: list[int]) -> None:
    fired = Counter((run["jobId"], _ms(run["scheduledAt"])) for run in runs)
    expected = Counter((id_, slot) for id_ in ids for slot in slots)
    assert not expected - fired, f"missing: {sorted(expected - fired)[:10]}"
    assert not fired - expected, f"too many: {sorted(fired - expected)[:10]}"
    assert len({run["taskId"] for run in runs}) == len(runs) == JOBS * len(slots)
    assert {(run["trigger"], run["status"]) for run in runs} == {("schedule", "ok")}
    waits = sorted(_ms(run["startedAt"]) - _ms(run["scheduledAt"]) for run in runs)
    again = sum(run["attempts"] > 1 for run in runs)
    show(f"{len(runs)} firings, {again} run again, p50 {waits[len(waits) // 2]} ms, {waits[-1]} ms")
    assert waits[0] >= 0


async def test_ten_thousand_jobs_cost_next_to_nothing_while_none_is_due(
    programs: Programs, store_url: str
) -> None:
    server = programs.server(store_url)
    await server.start()
    without = await _cpu_percent(server)
    schedule = {"kind": "every", "everyMs": 86_400_000}

    async def look() -> None:
        percent = await _cpu_percent(server)
        show(f"{percent:.2f} % of a processor, {without:.2f} % without jobs")
        judge(percent - without, 1)

    async with Asker(server) as asker:
        for thousand in range(10):
            names = [f"job-{thousand}-{number}" for number in range(1000)]
            jobs = [{"name": n, "schedule": schedule, "task": {"handler": "echo"}} for n in names]
            answer = await asker.post("/cron/jobs", {"jobs": jobs})
            assert answer.status in {200, 201}, answer
    await steadily(look)


async def _cpu_percent(server: Program) -> float:
    """What a server takes of a processor while nobody asks it for anything."""
    begin, before = time.monotonic(), _cpu_seconds(server.pid)
    await until(lambda: time.monotonic() > begin + IDLE_SECONDS, 120, lambda: "time stands still")
    return (_cpu_seconds(server.pid) - before) / (time.monotonic() - begin) * 100


# -------------------------------------------------------------------- a crash inside a run


async def test_a_run_that_a_crash_interrupts_is_run_again_and_its_one_shot_goes_only_then(
    programs: Programs, store_url: str
) -> None:
    """Nothing stays `running`: not the run, not the job, not the lease."""
    server = programs.server(store_url)
    await server.start()
    async with Asker(server) as asker:
        once, at, often = await in_time(lambda seconds: _interrupted(server, asker, seconds))
        run = await _until_run(asker, once, LEASE_SECONDS_MAX, status="ok")
        assert (run["attempts"], run["trigger"], _ms(run["scheduledAt"])) == (2, "schedule", at)
        assert (await asker.get(f"/cron/jobs/{once}")).status == 404
        run = await _until_run(asker, often, LEASE_SECONDS_MAX, status="ok")
        assert (run["attempts"], run["trigger"]) == (2, "manual")
        state = (await asker.get(f"/cron/jobs/{often}")).body["state"]
        assert (state["lastStatus"], state["consecutiveErrors"]) == ("ok", 0)


async def _interrupted(server: Program, asker: Asker, seconds: float) -> tuple[str, int, str]:
    """A job for a moment, that moment, and a job that was run by hand; a crash met both runs."""
    at = int((time.time() + seconds) * 1000)
    task = {"handler": "sleep", "params": {"ms": int(seconds * 5000)}}
    shape = {"name": f"once-{seconds}", "schedule": {"kind": "at", "atMs": at}, "task": task}
    answer = await asker.post("/cron/jobs", shape)
    if answer.status == 400 and "is in the past" in answer.body["error"]:
        raise TooLate("its moment was over before it arrived")
    once = str(answer.body["id"])
    yearly = {"kind": "cron", "expr": "@yearly"}
    often = await _create(asker, name=f"yearly-{seconds}", schedule=yearly, task=task)
    manual = await asker.post(f"/cron/jobs/{often}/run", {})
    assert manual.status == 202, manual

    async def running() -> bool:
        found = [await asker.get(f"/cron/jobs/{job}/runs") for job in (once, often)]
        runs = [run for answer in found for run in answer.body["runs"]]
        if any(run["status"] == "ok" for run in runs):
            raise TooLate("a run was over before it was looked at")
        return [run["status"] for run in runs] == ["running", "running"]

    await until(running, WAIT_SECONDS, lambda: "they do not run")
    server.kill()
    await server.start()
    job = await asker.get(f"/cron/jobs/{once}")
    await running()
    assert job.status == 200, "gone before its run ended"
    return once, at, often


async def test_a_retry_outlives_a_crash_and_does_not_move_the_schedule(
    programs: Programs, store_url: str
) -> None:
    server = programs.server(store_url)
    await server.start()
    async with Asker(server) as asker:
        retries = {"maxRetries": 1, "backoffMs": 1500, "jitter": 0}
        schedule = {"kind": "every", "everyMs": 86_400_000}
        job = await _create(
            asker, name="daily", schedule=schedule, task={"handler": "ours"}, retryPolicy=retries
        )
        next_at = (await asker.get(f"/cron/jobs/{job}")).body["nextRunAt"]
        answer = await asker.post(f"/cron/jobs/{job}/run", {})
        task_id = answer.body["taskId"]
        await _fail_next(asker, "no luck")
        await asker.until_tasks([task_id], state="queued", attempts=1)
        server.kill()
        await server.start()
        await _fail_next(asker, "none again")
        run = await _until_run(asker, job, status="error")
        assert (run["attempts"], run["taskId"], run["trigger"]) == (2, task_id, "manual")
        assert "none again" in run["error"]
        found = (await asker.get(f"/cron/jobs/{job}")).body
        assert found["nextRunAt"] == next_at
        assert (found["state"]["lastStatus"], found["state"]["consecutiveErrors"]) == ("error", 1)


async def _fail_next(asker: Asker, error: str) -> None:
    """A worker outside takes the next run of the job, and fails."""
    wish = {"worker": "ours", "lanes": ["cron"], "handlers": ["ours"], "waitMs": 60_000}
    (lease,) = (await asker.post("/leases", wish)).body["leases"]
    body = {"token": lease["token"], "error": error}
    answer = await asker.post(f"/leases/{lease['leaseId']}/fail", body)
    assert answer.status == 200, answer


async def test_what_fell_due_while_nothing_ran_is_one_run_and_one_line_about_the_rest(
    programs: Programs, store_url: str
) -> None:
    server: Program = programs.server(store_url)
    await server.start()
    async with Asker(server) as asker:
        shape = {"task": {"handler": "echo"}, "schedule": {"kind": "every", "everyMs": 1000}}
        steady = await _create(asker, name="steady", **shape)
        await _until_fired(asker, steady, 1)
        jobs, slots = await in_time(lambda seconds: _missed(server, asker, seconds))
        logs = {misfire: await _log(asker, job) for misfire, job in jobs.items()}
        fired = (await asker.get(f"/cron/jobs/{steady}")).body["state"]["runs"]
        await _until_fired(asker, steady, fired + 1)
        regular = [run for run in await _log(asker, steady) if "taskId" in run]
    ran = {misfire: [_ms(run["scheduledAt"]) for run in log if "taskId" in run]
           for misfire, log in logs.items()}  # fmt: skip
    assert ran == {"skip": [], "once": slots[-1:], "all": slots[::-1]}
    assert {run["trigger"] for log in logs.values() for run in log} == {"misfire"}
    told = {misfire: [(run["status"], run["error"]) for run in log if "taskId" not in run]
            for misfire, log in logs.items()}  # fmt: skip
    assert told == {"skip": [_told(slots)], "once": [_told(slots[:-1])], "all": []}
    assert len({run["scheduledAt"] for run in regular}) == len(regular), "a moment fired twice"


async def _missed(
    server: Program, asker: Asker, seconds: float
) -> tuple[dict[str, str], list[int]]:
    """Jobs of which all moments came while the server was gone; and those moments.

    All are late by more than the grace before it comes back, however fast the machine is, and
    none is left for afterwards.
    """
    anchor = int((time.time() + seconds) * 1000)
    slots = [anchor + number * 1000 for number in range(1, MISSED + 1)]
    schedule = {"kind": "every", "everyMs": 1000, "anchor": _written(anchor)}
    shape = {"schedule": schedule, "startAt": _written(slots[0]), "endAt": _written(slots[-1])}
    task = {"handler": "echo"}
    misfires = ("skip", "once", "all")
    rules = [{"misfire": one, "name": f"{one}-{seconds}", **shape} for one in misfires]
    jobs = [{"task": task, "misfireGraceMs": GRACE_MS, **rule} for rule in rules]
    answer = await asker.post("/cron/jobs", {"jobs": jobs})
    server.kill()
    if time.time() * 1000 >= slots[0]:
        await server.start()
        raise TooLate("the first moment came before the server was gone")
    assert answer.status in {200, 201}, answer
    ids = [str(job["id"]) for job in answer.body["jobs"]]
    late_at = (slots[-1] + GRACE_MS + 1) / 1000
    await until(lambda: time.time() > late_at, seconds + WAIT_SECONDS, lambda: "time stands still")
    await server.start()
    for job in ids:
        await _until_finished(asker, job)
    return dict(zip(misfires, ids, strict=True)), slots


async def _until_finished(asker: Asker, job: str) -> None:
    """No moment is to come, and nothing runs any more."""

    async def finished() -> bool:
        found = (await asker.get(f"/cron/jobs/{job}")).body
        runs = await _log(asker, job)
        return found["disabledReason"] == "finished" and all(
            run["status"] in {"ok", "missed"} for run in runs
        )

    await until(finished, WAIT_SECONDS, lambda: f"{job} goes on")


async def _log(asker: Asker, job: str) -> list[dict[str, Any]]:
    """Newest first."""
    answer = await asker.get(f"/cron/jobs/{job}/runs?limit=200")
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.body["runs"]
    return found


async def _create(asker: Asker, **job: Any) -> str:
    answer = await asker.post("/cron/jobs", job)
    assert answer.status in {200, 201}, answer
    return str(answer.body["id"])


async def _until_run(
    asker: Asker, job: str, seconds: float = WAIT_SECONDS, **wanted: Any
) -> dict[str, Any]:
    """A run of the job that has these values."""
    found: list[dict[str, Any]] = []

    async def there() -> bool:
        answer = await asker.get(f"/cron/jobs/{job}/runs")
        assert answer.status == 200, answer
        found[:] = answer.body["runs"]
        return any(_has(run, wanted) for run in found)

    await until(there, seconds, lambda: f"no run is {wanted}: {found}")
    return next(run for run in found if _has(run, wanted))


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _told(slots: list[int]) -> tuple[str, str]:
    """The one line about all these moments."""
    first, last = _written(slots[0]), _written(slots[-1])
    return "missed", f"{len(slots)} missed, from {first} to {last}"


def _has(run: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(run.get(name) == value for name, value in wanted.items())


def _written(at: int) -> str:
    text = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
