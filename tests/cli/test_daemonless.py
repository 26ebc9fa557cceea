"""The queue without a server, and before there is a store: what looks finds it empty and makes
nothing, what puts something in makes the store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.store.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

NOW = ("--now", "2026-01-01T00:00:00Z")
READING = [
    ("queue", "list"),
    ("queue", "list", "--all", "--status", "parked"),
    ("queue", "show", "x"),
    ("sched", "plan", *NOW),
    ("sched", "policy"),
    ("sched", "policy", "show"),
    ("policy", "check", "policy.json"),
]
# What names a lease or an entry, which cannot be in a new store.
NAMING = [
    ("sched", "renew", "x"),
    ("sched", "complete", "x"),
    ("sched", "release", "x"),
    ("sched", "reset", "x"),
]
WRITING = [
    ("queue", "add", "--app", "review"),
    ("queue", "import", "queue.json"),
    ("queue", "drain"),
    ("sched", "lease"),
    ("sched", "reclaim"),
    ("sched", "policy", "set", "--maxConcurrent", "2"),
]


@pytest.fixture(autouse=True)
def files(run: Run) -> None:
    """In the empty folder where `run` works."""
    del run
    Path("policy.json").write_text('{"lanes": {"main": {"maxInflight": 3}}}')
    Path("queue.json").write_text('{"schemaVersion": 1, "entries": []}')


@pytest.fixture(params=["no file", "an empty file", "postgresql"])
def absent(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there could be a store, and is none yet."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("fresh_postgres")
        return url
    if request.param == "an empty file":
        (tmp_path / "new.db").touch()
        return f"sqlite:///{tmp_path / 'new.db'}"
    return f"sqlite:///{tmp_path / 'new' / 'new.db'}"


def _is_absent(url: str) -> bool:
    """Nothing was made: no file, or nothing in it."""
    if not url.startswith("sqlite"):
        return open_store(url).version() == 0
    file = Path(url.removeprefix("sqlite:///"))
    left = {one.name for one in file.parent.iterdir()} if file.parent.exists() else set()
    expected = {"policy.json", "queue.json", "made.db", "made.db.key"}
    return left - expected == ({"new.db"} if file.exists() else set()) and (
        not file.exists() or file.stat().st_size == 0
    )


# -------------------------------------------------------------------- a store that is not there


@pytest.mark.parametrize("command", READING + NAMING, ids=" ".join)
def test_what_looks_answers_as_an_empty_store_would_and_makes_nothing(
    run: Run, absent: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    made = tmp_path / "made.db"
    open_store(f"sqlite:///{made}").migrate()
    expected = run(*command, "--json", "--store", f"sqlite:///{made}")
    ran = run(*command, "--json", "--store", absent)
    assert (ran.code, ran.out) == (expected.code, expected.out)
    assert ran.code == (3 if "x" in command else 0)
    assert ran.err.startswith("note: no store exists at ")
    assert ran.err.endswith(f"yet; treating it as empty\n{expected.err}")
    assert _is_absent(absent)


@pytest.mark.parametrize("command", WRITING, ids=" ".join)
def test_what_puts_something_in_makes_the_store_and_says_so(
    run: Run, absent: str, command: tuple[str, ...]
) -> None:
    ran = run(*command, "--json", "--store", absent)
    assert (ran.code, ran.err.count("\n")) == (0, 1), ran
    assert ran.err.startswith("note: created a new store at ")
    again = run("queue", "list", "--json", "--store", absent)
    assert (again.code, again.err) == (0, "")
    assert again.json["count"] == ("add" in command)


def test_an_error_does_not_show_a_password(run: Run) -> None:
    ran = run("queue", "list", "--store", "postgresql://ada:secret@127.0.0.1:1/none")
    assert ran.code == 5
    assert "secret" not in ran.err


# -------------------------------------------------------------------- FAIRLANE_STORE


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'named.db'}"
    monkeypatch.setenv("FAIRLANE_STORE", url)
    return url


def test_the_queue_is_in_the_store_that_the_environment_names(run: Run, named: str) -> None:
    assert run("queue", "list").code == 0
    added = run("queue", "add", "--id", "one", "--json")
    assert added.code == 0
    leased = run("sched", "lease", "--json").json["leases"]
    assert [one["task"]["taskId"] for one in leased] == ["one"]
    assert run("sched", "complete", leased[0]["leaseId"]).code == 0
    shown = run("queue", "show", "one", "--json")
    assert shown.json["status"] == "drained"
    assert shown.out == run("queue", "show", "one", "--json", "--store", named).out


@pytest.mark.parametrize("way", ["--url", "FAIRLANE_URL", "--store"])
def test_what_is_reported_more_plainly_wins(
    *, run: Run, named: str, server: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    del named
    flags = {"--url": ["--url", server.url], "--store": ["--store", server.store]}.get(way, [])
    if not flags:
        monkeypatch.setenv("FAIRLANE_URL", server.url)
    added = run("queue", "add", "--app", "x", "--json", *flags).json
    found = json.loads(server.get(f"/queue/{added['id']}"))
    assert found["id"] == added["id"]
    assert not Path("named.db").exists()


def test_other_commands_ask_a_server_and_say_how_to_ask_the_store(run: Run, named: str) -> None:
    del named
    ran = run("tasks", "--url", "http://127.0.0.1:1")
    assert ran.code == 5
    assert ran.err.endswith('; add --store "$FAIRLANE_STORE" to use the store without a server\n')


# -------------------------------------------------------------------- policy check


def test_a_policy_is_checked_without_a_server_and_without_a_store(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("fairlane.cli.backends.DEFAULT_URL", "http://127.0.0.1:1")
    ran = run("policy", "check", "policy.json")
    assert ran.code == 0
    assert ran.out.endswith("valid: 1 change to version 0\n")
    assert ran.err.startswith("note: cannot reach http://127.0.0.1:1: ")
    assert ran.err.endswith("; checked against the default policy\n")
    Path("policy.json").write_text('{"lane": {}}')
    wrong = run("policy", "check", "policy.json", "--json")
    assert (wrong.code, wrong.json["valid"]) == (6, False)
    assert "policy.json: unknown key lane; did you mean lanes?" in wrong.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["policy.json", "queue.json"]


@pytest.mark.parametrize("way", ["--url", "FAIRLANE_URL"])
def test_a_server_that_is_named_has_to_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    flags = ["--url", "http://127.0.0.1:1"] if way == "--url" else []
    monkeypatch.setenv("FAIRLANE_URL", "http://127.0.0.1:1")
    ran = run("policy", "check", "policy.json", *flags)
    assert (ran.code, ran.out) == (5, "")
