"""`fairlane import`: files as the other programs write them, into either database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

FUTURE_MS = 4_102_444_800_000
# As documented in docs/DATABASE.md of BrowserOS Server Edition.
BROWSEROS = """
CREATE TABLE tasks (id TEXT PRIMARY KEY, instruction TEXT NOT NULL,
  priority TEXT NOT NULL DEFAULT 'normal', state TEXT NOT NULL DEFAULT 'pending',
  depends_on TEXT NOT NULL DEFAULT '[]', retry_policy TEXT, timeout INTEGER, webhook_url TEXT,
  metadata TEXT, llm_config TEXT, batch_id TEXT, retry_count INTEGER NOT NULL DEFAULT 0,
  created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE TABLE task_results (task_id TEXT PRIMARY KEY REFERENCES tasks(id), result TEXT, error TEXT,
  started_at TEXT, completed_at TEXT, execution_time_ms INTEGER);
CREATE TABLE task_templates (id TEXT PRIMARY KEY, name TEXT NOT NULL,
  description TEXT NOT NULL DEFAULT '', instruction TEXT NOT NULL,
  priority TEXT NOT NULL DEFAULT 'normal', parameters TEXT NOT NULL DEFAULT '[]', timeout INTEGER,
  retry_policy TEXT, llm_config TEXT, metadata TEXT, usage_count INTEGER NOT NULL DEFAULT 0,
  created_at TEXT, updated_at TEXT);
"""
DONE, FAILED, GONE, NEXT, CHILD = (
    f"{number}f3c2b1a-0d4e-4c5f-8a6b-{number * 12}" for number in "12345"
)


def new_file(tmp_path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(tmp_path / "browseros.db"))
    connection.execute(BROWSEROS)
    return connection


def add(connection: apsw.Connection, table: str, **cells: Any) -> None:
    values = [json.dumps(one) if isinstance(one, dict | list) else one for one in cells.values()]
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(cells)}) VALUES ({marks})", values)


def add_task(connection: apsw.Connection, id_: str, state: str, **cells: Any) -> None:
    at = "2026-11-01T10:00:00.000Z"
    cells = {"instruction": f"do {state}", "created_at": at, "updated_at": at, **cells}
    add(connection, "tasks", id=id_, state=state, **cells)


@pytest.fixture
def browseros(tmp_path: Path) -> str:
    """A file with a task in each interesting state, two templates with one name, and a batch."""
    connection = new_file(tmp_path)
    add_task(
        connection,
        DONE,
        "completed",
        priority="high",
        timeout=900_000,
        batch_id="b1",
        metadata={"for": "ada"},
        llm_config={"provider": "openai", "apiKey": "sk-secret"},
        webhook_url="https://hooks.example/done",
        retry_count=1,
    )
    times = {"started_at": "2026-11-01T10:00:01.000Z", "completed_at": "2026-11-01T10:00:05.000Z"}
    add(connection, "task_results", task_id=DONE, result={"text": "found it"}, **times)
    add_task(connection, FAILED, "failed")
    add(connection, "task_results", task_id=FAILED, error="Chat API returned 500: x", **times)
    add_task(connection, GONE, "cancelled", retry_policy="{damaged")
    add_task(connection, NEXT, "running", depends_on=[DONE])
    add_task(connection, CHILD, "waiting_dependency", depends_on=[NEXT, NEXT])
    for number in "12":
        add(
            connection,
            "task_templates",
            id=f"tpl{number}-0000-0000",
            name="Find",
            instruction="Find {{what}}",
            parameters=[{"name": "what", "type": "string", "required": True}],
            created_at=f"2026-11-0{number}T10:00:00.000Z",
        )
    connection.close()
    return "browseros.db"


def shown(run: Run, id_: str, store: str) -> dict[str, Any]:
    ran = run("show", id_, "--json", "--store", store)
    assert ran.code == 0, ran.err
    task: dict[str, Any] = ran.json
    return task


# -------------------------------------------------------------------- BrowserOS


def test_tasks_results_and_templates_of_browseros_keep_their_ids(
    run: Run, browseros: str, store_url: str
) -> None:
    ran = run("import", "--from", "browseros", browseros, "--store", store_url)
    assert ran.code == 0, ran.err
    assert ran.out == (
        f"imported 2 waiting tasks, 3 finished tasks, 2 templates from {browseros}\n"
    )
    assert "tasks that were running are queued again" in ran.err
    assert "the timeout is now 600000 ms" in ran.err
    done = shown(run, DONE, store_url)
    assert (done["state"], done["result"], done["attempts"]) == ("done", {"text": "found it"}, 2)
    assert (done["createdAt"], done["completedAt"]) == (
        "2026-11-01T10:00:00.000Z",
        "2026-11-01T10:00:05.000Z",
    )
    assert done["metadata"]["for"] == "ada"
    assert done["metadata"]["browseros"]["batchId"] == "b1"
    assert done["llmConfig"]["apiKey"] == "***"
    failed = shown(run, FAILED, store_url)
    assert (failed["state"], failed["error"]) == ("failed", "Chat API returned 500: x")
    assert shown(run, GONE, store_url)["state"] == "cancelled"
    assert shown(run, NEXT, store_url)["state"] == "queued"
    assert shown(run, CHILD, store_url)["state"] == "waiting_dependency"
    used = run("templates", "show", "tpl1-0000-0000", "--json", "--store", store_url)
    assert used.json["name"] == "Find"
    second = run("templates", "show", "tpl2-0000-0000", "--json", "--store", store_url)
    assert second.json["name"] == "Find tpl2-000"
    assert run("deliveries", "--json", "--store", store_url).json["deliveries"] == []
    assert run("doctor", "--store", store_url).code == 0


def test_an_import_can_be_repeated(run: Run, browseros: str) -> None:
    store = "sqlite:///new.db"
    assert run("import", "--from", "browseros", browseros, "--store", store).code == 0
    again = run("import", "--from", "browseros", browseros, "--json", "--store", store)
    assert again.code == 0
    assert (sum(again.json["imported"].values()), again.json["existing"]) == (0, 7)


def test_a_dry_run_reports_everything_and_writes_nothing(
    run: Run, browseros: str, tmp_path: Path
) -> None:
    store = "sqlite:///new.db"
    before = (tmp_path / browseros).read_bytes()
    ran = run("import", "--from", "browseros", browseros, "--dry-run", "--json", "--store", store)
    assert ran.code == 0, ran.err
    assert ran.json["imported"] == {"waitingTasks": 2, "finishedTasks": 3, "templates": 2}
    assert not (tmp_path / "new.db").exists()
    assert (tmp_path / browseros).read_bytes() == before


def test_rows_that_cannot_be_imported_refuse_the_file_unless_left_out(
    run: Run, tmp_path: Path
) -> None:
    connection = new_file(tmp_path)
    add_task(connection, DONE, "completed")
    add_task(connection, "not an id", "pending")
    add_task(connection, FAILED, "exploded")
    add_task(connection, NEXT, "pending", webhook_url="http://127.0.0.1:9/x")
    add_task(connection, GONE, "completed", instruction="")
    connection.close()
    command = ["import", "--from", "browseros", "browseros.db", "--store", "sqlite:///new.db"]
    refused = run(*command)
    assert refused.code == 2
    assert "nothing was imported from browseros.db" in refused.err
    for part in ("task not an id: ", "the state 'exploded' is unknown", "webhook_url: ", GONE):
        assert part in refused.err
    assert not (tmp_path / "new.db").exists()
    assert run(*command, "--dry-run").code == 2
    rest = run(*command, "--skip-invalid", "--json")
    assert (rest.code, rest.json["imported"]["finishedTasks"]) == (0, 1)
    assert len(rest.json["problems"]) == 4


def test_a_full_lane_says_what_to_do_and_loses_nothing(run: Run, tmp_path: Path) -> None:
    connection = new_file(tmp_path)
    for number in range(6):
        add_task(connection, f"{number}{DONE[1:]}", "pending")
    connection.close()
    store = ["--store", "sqlite:///new.db"]
    small = run("policy", "set", "lanes.instruction.maxQueueSize=4", *store)
    assert small.code == 0, small.err
    full = run("import", "--from", "browseros", "browseros.db", *store)
    assert (full.code, "imported 4 of 6 waiting tasks" in full.err) == (4, True)
    assert run("policy", "set", "lanes.instruction.maxQueueSize=10", *store).code == 0
    rest = run("import", "--from", "browseros", "browseros.db", "--json", *store)
    assert (rest.json["imported"]["waitingTasks"], rest.json["existing"]) == (2, 4)
    assert len(run("tasks", "--json", *store).json["tasks"]) == 6


def test_what_is_no_file_of_browseros_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database " * 100)
    apsw.Connection(str(tmp_path / "empty.db")).close()
    for name, complaint in (
        ("missing.db", "there is no such file"),
        ("text", "as a SQLite file"),
        ("empty.db", "it has no table tasks"),
    ):
        ran = run("import", "--from", "browseros", name, "--store", "sqlite:///new.db")
        assert (ran.code, complaint in ran.err) == (2, True), ran.err


# -------------------------------------------------------------------- GoClaw


def write(tmp_path: Path, name: str, document: object) -> str:
    (tmp_path / name).write_text(json.dumps(document))
    return name


def job(id_: str, name: str, schedule: dict[str, Any], **fields: Any) -> dict[str, Any]:
    payload = {"kind": "agent_turn", "message": f"say {name}"}
    times = {"createdAtMs": 1, "updatedAtMs": 2, "state": {"nextRunAtMs": 3}}
    return {"id": id_, "name": name, "schedule": schedule, "payload": payload, **times, **fields}


def test_cron_jobs_of_goclaw_keep_their_ids(run: Run, tmp_path: Path, store_url: str) -> None:
    every = {"kind": "every", "everyMs": 1_800_000}
    cron = {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"}
    reply = {"message": "x", "deliver": True, "channel": "telegram", "to": "42"}
    row = {
        "id": "row-1",
        "agent_id": "agent-7",
        "name": "from-the-table",
        "enabled": False,
        "schedule_kind": "cron",
        "cron_expression": "*/5 * * * *",
        "interval_ms": None,
        "run_at": None,
        "timezone": None,
        "payload": json.dumps({"message": "y"}),
        "delete_after_run": False,
    }
    jobs = [
        job("7f3c2b1a-1", "report", every),
        job("7f3c2b1a-2", "report", cron, payload=reply),
        job("7f3c2b1a-3", "later", {"kind": "at", "atMs": FUTURE_MS}, deleteAfterRun=True),
        row,
    ]
    file = write(tmp_path, "jobs.json", {"version": 1, "jobs": jobs})
    ran = run("import", "--from", "goclaw", file, "--store", store_url)
    assert ran.code == 0, ran.err
    assert ran.out == f"imported 4 cron jobs from {file}\n"
    assert "has no time zone: it runs in UTC" in ran.err
    assert "set task.callbackUrl to deliver its result" in ran.err
    found = {id_: cron_job(run, id_, store_url) for id_ in ("7f3c2b1a-1", "7f3c2b1a-2", "row-1")}
    assert found["7f3c2b1a-1"]["task"]["instruction"] == "say report"
    assert found["7f3c2b1a-2"]["name"] == "report-7f3c2b1a"
    assert found["7f3c2b1a-2"]["task"]["metadata"]["goclaw"]["channel"] == "telegram"
    assert (found["row-1"]["agentId"], found["row-1"]["enabled"]) == ("agent-7", False)
    again = run("import", "--from", "goclaw", file, "--json", "--store", store_url)
    assert (again.json["imported"]["jobs"], again.json["existing"]) == (0, 4)


def cron_job(run: Run, id_: str, store: str) -> dict[str, Any]:
    ran = run("cron", "show", id_, "--json", "--store", store)
    assert ran.code == 0, ran.err
    found: dict[str, Any] = ran.json
    return found


def test_a_job_of_goclaw_that_cannot_run_is_named(run: Run, tmp_path: Path) -> None:
    jobs = [
        job("a", "past", {"kind": "at", "atMs": 1}),
        job("b", "odd", {"kind": "cron", "expr": "every day"}),
        job("c", "good", {"kind": "every", "everyMs": 60_000}),
        job("c", "twice", {"kind": "every", "everyMs": 60_000}),
        "text",
    ]
    file = write(tmp_path, "jobs.json", jobs)
    command = ["import", "--from", "goclaw", file, "--store", "sqlite:///new.db"]
    ran = run(*command)
    assert ran.code == 2
    for part in (
        "jobs[0]: ",
        "jobs[1]: ",
        "jobs[3]: the id c appears twice",
        "jobs[4]: a job must",
    ):
        assert part in ran.err
    assert run(*command, "--skip-invalid", "--json").json["imported"] == {"jobs": 1}
    none = run("import", "--from", "goclaw", write(tmp_path, "x.json", {"a": 1}))
    assert (none.code, "an object with 'jobs'" in none.err) == (2, True)


# -------------------------------------------------------------------- PinchTab, cool-workflow


def test_the_configuration_of_pinchtab_becomes_the_policy(run: Run, tmp_path: Path) -> None:
    document = {"server": {"port": "9867"}, "scheduler": {"maxInflight": 7, "resultTTL": "5m0s"}}
    file = write(tmp_path, "config.json", document)
    command = ["import", "--from", "pinchtab", file, "--store", "sqlite:///new.db"]
    tried = run(*command, "--dry-run")
    assert tried.code == 0, tried.err
    assert tried.out == f"would import 2 policy changes from {file}\n"
    assert not (tmp_path / "new.db").exists()
    ran = run(*command)
    assert ran.code == 0, ran.err
    assert "ignored, because the document is a PinchTab configuration: server" in ran.err
    policy = run("policy", "show", "--json", "--store", "sqlite:///new.db").json["policy"]
    assert policy["lanes"]["browser"]["maxInflight"] == 7
    for document, complaint in (
        ({"lanes": {}}, "it has no section 'scheduler'"),
        ({"scheduler": {"maxInflight": "x"}}, "config.json: "),
    ):
        refused = run(*command[:3], write(tmp_path, "config.json", document), *command[4:])
        assert (refused.code, complaint in refused.err) == (2, True), refused.err


def test_the_files_of_coolworkflow_are_imported(run: Run, tmp_path: Path) -> None:
    store = ["--store", "sqlite:///new.db"]
    rules = write(tmp_path, "scheduling-policy.json", {"schemaVersion": 1, "maxConcurrent": 3})
    assert run("import", "--from", "coolworkflow", rules, *store).code == 0
    entries = [{"id": "e1", "status": "pending", "enqueuedAt": "2026-01-01T00:00:00Z"}]
    queue = write(tmp_path, "queue.json", {"schemaVersion": 1, "entries": entries})
    tried = run("import", "--from", "coolworkflow", queue, "--dry-run", *store)
    assert tried.out == f"would import 1 queue entry from {queue}\n"
    assert run("import", "--from", "coolworkflow", queue, *store).code == 0
    assert run("queue", "show", "e1", "--json", *store).json["status"] == "pending"
    again = run("import", "--from", "coolworkflow", queue, "--json", *store)
    assert (again.code, again.json["existing"]) == (0, 1)
    other = run("import", "--from", "coolworkflow", write(tmp_path, "x.json", {"a": 1}), *store)
    assert (other.code, "nor a scheduling policy" in other.err) == (2, True)


def test_an_unknown_program_is_refused(run: Run) -> None:
    ran = run("import", "--from", "cron", "file")
    assert (ran.code, "invalid choice" in ran.err) == (2, True)
