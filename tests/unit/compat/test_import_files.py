"""Files of GoClaw and BrowserOS, translated: what is kept, what is noted, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from fairlane.compat import browseros_file, goclaw_file
from fairlane.core.errors import InvalidRequest
from fairlane.core.finished import FinishedTask

NOW = 1_800_000_000_000
HOUR_MS = 3_600_000


def job(**fields: Any) -> dict[str, Any]:
    schedule = {"kind": "every", "everyMs": HOUR_MS}
    return {"id": "a", "name": "n", "schedule": schedule, "payload": {"message": "m"}, **fields}


@pytest.mark.parametrize("shape", [lambda jobs: jobs, lambda jobs: {"version": 1, "jobs": jobs}])
def test_jobs_are_found_in_each_kind_of_file(shape: Any) -> None:
    ((id_, found),) = goclaw_file.read(shape([job()]), NOW).jobs
    assert (id_, found.name, found.task.instruction) == ("a", "n", "m")


def test_the_request_that_creates_a_job_is_understood_too() -> None:
    one = {"id": "a", "name": "n", "schedule": {"kind": "every", "everyMs": HOUR_MS}}
    ((_, found),) = goclaw_file.read([{**one, "message": "hello", "deliver": True}], NOW).jobs
    assert found.task.instruction == "hello"
    assert found.task.metadata == {"goclaw": {"deliver": True}}


def test_fields_of_other_kinds_of_schedules_are_left_out() -> None:
    schedule = {"kind": "cron", "expr": "0 9 * * *", "tz": "", "everyMs": 0, "atMs": None}
    found = goclaw_file.read([job(schedule=schedule)], NOW)
    assert found.jobs[0][1].schedule.every_ms is None
    assert found.notes == ["job n has no time zone: it runs in UTC"]


def test_a_row_of_the_table_may_have_a_time_as_postgresql_writes_it() -> None:
    row = {
        "id": "a",
        "name": "n",
        "schedule_kind": "at",
        "payload": '{"message": "m"}',
        "run_at": "2090-01-01 10:00:00+00:00",
        "delete_after_run": True,
    }
    ((_, found),) = goclaw_file.read([row], NOW).jobs
    assert found.schedule.at_ms == 3_786_948_000_000
    assert found.delete_after_run is True


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (job(id="a b"), "field 'id'"),
        (job(payload="{"), "field 'payload' must be an object"),
        (job(payload={}), "task"),
        (job(schedule={"kind": "monthly"}), "kind"),
        (job(schedule=None), "kind"),
        (job(schedule=None, schedule_kind="at", run_at="soon"), "invalid run_at"),
    ],
)
def test_a_job_that_cannot_be_translated_says_why(one: dict[str, Any], problem: str) -> None:
    found = goclaw_file.read([one], NOW)
    assert found.jobs == []
    assert problem in found.problems[0]


def test_too_many_jobs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="more than 10000 jobs"):
        goclaw_file.read([{}] * 10_001, NOW)


def finished(tmp_path: Path, **result: Any) -> FinishedTask:
    file = tmp_path / "b.db"
    connection = apsw.Connection(str(file))
    connection.execute(
        "CREATE TABLE tasks (id, instruction, state, created_at, updated_at);"
        "CREATE TABLE task_results (task_id, result, error, started_at, completed_at);"
    )
    at = "2026-11-01T10:00:00.000Z"
    row = ("t1", "do it", "completed", at, at)
    connection.execute("INSERT INTO tasks VALUES (?, ?, ?, ?, ?)", row)
    values = [result.get(name) for name in ("result", "error", "started_at", "completed_at")]
    connection.execute("INSERT INTO task_results VALUES (?, ?, ?, ?, ?)", ("t1", *values))
    connection.close()
    found = browseros_file.read(file, lambda _: None)
    assert found.problems == []
    return found.finished[0]


@pytest.mark.parametrize(
    ("stored", "result"),
    [('{"a": 1}', '{"a":1}'), ("plain text", '"plain text"'), (None, None), ("7", "7")],
)
def test_a_result_is_kept_as_json(tmp_path: Path, stored: str | None, result: str | None) -> None:
    assert finished(tmp_path, result=stored).result == result


def test_a_missing_or_damaged_time_falls_back_to_the_creation(tmp_path: Path) -> None:
    one = finished(tmp_path, started_at="yesterday", completed_at=None)
    assert one.started_at == one.completed_at == one.created_at
