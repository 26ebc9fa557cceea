from __future__ import annotations

import contextlib
import json
import re
import shutil
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import apsw
import pytest

from fairlane.store import migrate
from fairlane.store.opening import open_store
from tests.cli.processes import running_server
from tests.store.proxy import CommitCutter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


NEWEST = migrate.files()[-1][0]
FOREIGN = "is not a Fairlane database; use another file with --store sqlite:///PATH\n"


@pytest.fixture
def store(run: Run, tmp_path: Path) -> str:
    """A store of this test's own that nobody serves, with three tasks in it."""
    url = f"sqlite:///{tmp_path / 'own.db'}"
    for agent in ("a", "a", "b"):
        assert run("submit", "--handler", "nobody", "--agent", agent, "--store", url).code == 0
    return url


def _sql(store: str, *statements: str) -> None:
    with apsw.Connection(store.removeprefix("sqlite:///")) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


# -------------------------------------------------------------------- without a server


@pytest.mark.slow
def test_tasks_wait_in_the_store_until_it_is_served(run: Run, store: str, tmp_path: Path) -> None:
    ran = run("submit", "--handler", "echo", "--param", "n=1", "--json", "--store", store)
    with running_server(store, tmp_path) as url:
        done = run("wait", ran.json["taskId"], "--timeout", "15", "--json", "--url", url)
    assert (done.code, done.json["result"]) == (0, {"n": 1})


@pytest.mark.parametrize("command", [["tasks"], ["show", "x"], ["stats"], ["cancel", "x"]])
def test_a_store_that_is_not_there_is_not_made_by_looking(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "none" / "fairlane.db"
    ran = run(*command, "--store", f"sqlite:///{file}")
    assert ran.code == 6
    assert ran.err == f"error: no store exists at {file}; fairlane serve creates one\n"
    assert not file.parent.exists()


def test_a_database_that_fails_during_the_setup_is_reported(
    run: Run, fresh_postgres: str, tmp_path: Path
) -> None:
    with CommitCutter(fresh_postgres, tmp_path) as cutter:
        cutter.arm()
        ran = run("submit", "--handler", "nobody", "--store", cutter.url)
        assert cutter.cuts == 1
        assert ran.code == 5
        assert ran.err.startswith("error: the store does not respond: ")
        assert ran.err.count("\n") == 1
        assert run("submit", "--handler", "nobody", "--store", cutter.url).code == 0


def test_a_file_that_is_not_a_store_is_reported(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, " * 1000)
    ran = run("tasks", "--store", f"sqlite:///{file}")
    assert (ran.code, ran.err) == (6, f"error: {file} {FOREIGN}")
    assert file.read_text() == "Dear Ada, " * 1000


@pytest.mark.parametrize("command", ["doctor", "tasks", "submit --handler x"])
def test_another_programs_database_is_reported_and_left_alone(
    run: Run, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "invoices.db"
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
    before = file.read_bytes()
    ran = run(*command.split(), "--store", f"sqlite:///{file}")
    assert (ran.code, ran.err) == (6, f"error: {file} {FOREIGN}")
    assert file.read_bytes() == before


def test_an_empty_database_is_reported(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "empty.db"
    file.touch()
    ran = run("tasks", "--store", f"sqlite:///{file}")
    assert ran.code == 6
    assert "is not a fairlane store" in ran.err


def test_a_store_of_a_newer_fairlane_is_left_alone(run: Run, store: str) -> None:
    _sql(store, "PRAGMA user_version = 999")
    ran = run("submit", "--handler", "x", "--store", store)
    assert ran.code == 6
    assert ran.err == (
        "error: the store has schema 999 of a newer fairlane; upgrade this program\n"
    )


def test_an_invalid_store_address_is_reported(run: Run) -> None:
    ran = run("tasks", "--store", "redis://x")
    assert ran.code == 6
    assert "use sqlite:///PATH or postgresql://HOST/NAME" in ran.err


@pytest.mark.slow
def test_the_policy_of_the_store_is_in_force(run: Run, store: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"lanes": {"browser": {"maxQueueSize": 1}}}))
    with running_server(store, tmp_path, "--policy", str(policy)):
        pass
    assert run("stats", "--json", "--store", store).json["config"]["maxQueueSize"] == 1
    flags = ("--action", "click", "--agent", "a", "--json", "--store", store)
    assert run("submit", *flags).code == 0
    refused = run("submit", *flags)
    assert (refused.code, refused.json["code"]) == (4, "queue_full")
    assert refused.json["retryable"] is True


# -------------------------------------------------------------------- PostgreSQL


@pytest.mark.slow
def test_commands_work_on_postgresql_as_well(run: Run, fresh_postgres: str, agent: str) -> None:
    side = ("--store", fresh_postgres)
    ran = run("submit", "--handler", "nobody", "--agent", agent, "--json", *side)
    assert ran.code == 0, ran
    task_id = ran.json["taskId"]
    assert run("show", task_id, "--json", *side).json["state"] == "queued"
    assert run("tasks", "--agent", agent, "--json", *side).json["count"] == 1
    assert run("cancel", task_id, *side).out == f"cancelled {task_id}\n"
    report = run("doctor", "--json", *side)
    assert (report.code, report.json["problems"]) == (0, [])
    assert report.json["sizeBytes"] > 0


@pytest.mark.slow
def test_an_empty_postgresql_is_reported(run: Run, fresh_postgres: str) -> None:
    ran = run("tasks", "--store", fresh_postgres)
    assert ran.code == 6
    assert "is not a fairlane store; fairlane serve sets it up" in ran.err


def test_a_postgresql_that_does_not_answer_ends_with_5(run: Run) -> None:
    ran = run("tasks", "--store", "postgresql://ada:secret@127.0.0.1:1/x")
    assert ran.code == 5
    assert ran.err.startswith("error: the store does not respond: ")
    assert "secret" not in ran.err


# -------------------------------------------------------------------- doctor


def test_doctor_finds_nothing_wrong_with_a_good_store(run: Run, store: str) -> None:
    ran = run("doctor", "--store", store)
    assert ran.code == 0
    path = re.escape(store.removeprefix("sqlite:///"))
    schema = f"schema  {NEWEST}; the newest is {NEWEST}"
    assert re.match(rf"store   {path} \(\d+ KiB\)\n{schema}\n", ran.out)
    assert ran.out.endswith("ok      pages, schema, counters: no problems found\n")


def test_doctor_looks_while_the_server_runs(run: Run, server: Server) -> None:
    report = run("doctor", "--json", "--store", server.store)
    assert (report.code, report.json["problems"]) == (0, [])
    assert report.json["checked"] == ["pages", "schema", "counters"]


def test_doctor_names_the_counter_that_is_wrong(run: Run, store: str) -> None:
    _sql(store, "UPDATE line SET queued = queued + 5 WHERE agent = 'b'")
    ran = run("doctor", "--store", store)
    assert ran.code == 1
    assert "error   line main/b/handler/nobody: queued is 6, but a recount gives 1\n" in ran.out


@pytest.mark.slow
def test_doctor_sees_damaged_pages(run: Run, store: str) -> None:
    path = Path(store.removeprefix("sqlite:///"))
    for _ in range(60):
        run("submit", "--handler", "x", "--params", json.dumps({"x": "y" * 900}), "--store", store)
    _sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(-20_000, 2)
        file.write(b"\xff" * 20_000)
    ran = run("doctor", "--json", "--store", store)
    assert ran.code == 1
    assert ran.json["problems"]


def test_doctor_tells_of_another_schema(run: Run, store: str) -> None:
    _sql(store, "PRAGMA user_version = 999")
    ran = run("doctor", "--json", "--store", store)
    assert ran.code == 1
    assert ran.json["schemaVersion"] == 999
    assert ran.json["problems"] == [
        "the store has schema 999 of a newer fairlane; upgrade this program"
    ]


def test_doctor_looks_at_the_store_that_serve_would_use(
    run: Run, store: str, tmp_path: Path
) -> None:
    place = tmp_path / "data" / "fairlane" / "fairlane.db"
    assert str(place) in run("doctor").err
    place.parent.mkdir(parents=True)
    shutil.copy(store.removeprefix("sqlite:///"), place)
    assert run("doctor", "--json").json["store"] == str(place)


def test_a_password_of_a_store_is_not_shown(run: Run) -> None:
    from fairlane.cli.direct import location

    shown = location("postgresql://ada:secret@db.example:5432/tasks?sslmode=require&password=x")
    assert shown == "postgresql://db.example:5432/tasks"


# -------------------------------------------------------------------- webhooks


def test_the_webhook_secret_stays_the_same(run: Run, store: str) -> None:
    first = run("webhooks", "secret", "--store", store)
    assert first.code == 0
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]+=*\n", first.out)
    again = run("webhooks", "secret", "--json", "--store", store)
    assert again.json == {"secret": first.out.strip()}


def test_the_operators_own_webhook_secret_counts(
    run: Run, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLANE_WEBHOOK_SECRET", "whsec_b3du")
    assert run("webhooks", "secret", "--store", store).out == "whsec_b3du\n"


@pytest.fixture
def receiver() -> Iterator[tuple[str, Event]]:
    """The address of somebody who takes webhooks, and whether one has come."""
    came = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(204)
            self.end_headers()
            came.set()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as receiver:
        thread = Thread(target=receiver.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{receiver.server_port}/hook", came
        receiver.shutdown()
        thread.join()


def test_show_tells_of_the_webhooks(
    run: Run, server: Server, side: list[str], agent: str, receiver: tuple[str, Event]
) -> None:
    url, came = receiver
    flags = ("--handler", "echo", "--agent", agent, "--callback-url", url, "--wait", "15")
    task_id = run("submit", *flags, "--json", "--url", server.url).json["taskId"]
    assert came.wait(15)
    out = run("show", task_id, *side).out
    host = url.removesuffix("/hook")  # the rest of a URL may be a secret
    assert re.search(rf"^webhook +task.completed to {host}: ", out, re.MULTILINE)


def test_a_store_knows_its_version_and_size(store: str) -> None:
    opened = open_store(store)
    assert (opened.version(), opened.damage()) == (NEWEST, [])
    assert opened.size_bytes() > 1000
    opened.close()
