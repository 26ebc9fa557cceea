"""`fairlane policy`: on a server and on the store beside it.

A policy is everybody's, so these tests have a server of their own; each begins with the defaults.
"""

from __future__ import annotations

import getpass
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.client.sync import Client
from fairlane.core.errors import Conflict, InvalidPolicy
from tests.cli.conftest import Server
from tests.cli.processes import run_on_terminal, run_process, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

SCHEDULING_POLICY = {
    "schemaVersion": 1,
    "maxConcurrent": 2,
    "maxAttempts": 2,
    "leaseTtlMs": 60000,
    "backoffBaseMs": 1,
    "backoffFactor": 2,
    "backoffCapMs": 60000,
}


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("ruled")
    store = f"sqlite:///{folder / 'fairlane.db'}"
    with running_server(store, folder) as url:
        yield Server(url, store)


@pytest.fixture
def client(ruled: Server) -> Iterator[Client]:
    with Client(ruled.url) as client:
        client.rollback_policy(0)
        yield client


@pytest.fixture(params=["url", "store"])
def side(request: pytest.FixtureRequest, ruled: Server, client: Client) -> list[str]:
    del client  # it has set the policy back
    return [f"--{request.param}", getattr(ruled, request.param)]


def _set(run: Run, side: list[str], *assignments: str) -> int:
    ran = run("policy", "set", *assignments, "--json", *side)
    assert ran.code == 0, ran
    version: int = ran.json["version"]
    return version


# -------------------------------------------------------------------- show


def test_show_prints_the_document_and_tells_the_version_beside_it(
    run: Run, side: list[str], client: Client
) -> None:
    version = _set(run, side, "maxInflight=7")
    ran = run("policy", "show", *side)
    assert ran.code == 0
    assert json.loads(ran.out) == client.policy()["policy"]
    assert ran.out.startswith('{\n  "enabled": true,\n  "maxInflight": 7,\n')
    assert ran.err.startswith(f"version {version}, ")
    assert f"by patch ({getpass.getuser()})" in ran.err


def test_show_as_json_is_the_bytes_of_the_route(run: Run, side: list[str], ruled: Server) -> None:
    version = _set(run, side, "maxInflight=7")
    assert run("policy", "show", "--json", *side).out == ruled.get("/policy") + "\n"
    old = run("policy", "show", "--version", str(version - 1), "--json", *side)
    assert old.out == ruled.get(f"/policy?version={version - 1}") + "\n"
    for verb in ("versions", "diff"):
        assert run("policy", verb, "--json", *side).out == ruled.get(f"/policy/{verb}") + "\n"


def test_what_show_prints_can_be_set_and_changes_nothing(
    run: Run, side: list[str], tmp_path: Path
) -> None:
    version = _set(run, side, "maxInflight=7", "lanes.browser.maxQueueSize=none")
    for number, flags in enumerate(([], ["--json"])):
        file = tmp_path / f"policy-{number}.json"
        file.write_text(run("policy", "show", *flags, *side).out)
        ran = run("policy", "set", "--file", str(file), *side)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == f"no changes; the policy stays at version {version}\n"


# -------------------------------------------------------------------- set


def test_set_says_what_has_changed(run: Run, side: list[str]) -> None:
    before = _set(run, side, "workerCount=1")
    ran = run("policy", "set", "lanes.main.maxInflight=50", "workerCount=null", *side)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "- lanes.main.maxInflight: 30",
        "+ lanes.main.maxInflight: 50",
        "- workerCount: 1",
        "+ workerCount: 0",
        f"the policy is now at version {before + 1}",
    ]


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("maxInflight=5", "maxInflight", 5),
        ("enabled=false", "enabled", False),
        ("lanes.main.strategy=priority", "lanes.main.strategy", "priority"),
        ('lanes.main.strategy="priority"', "lanes.main.strategy", "priority"),
        ("lanes.browser.maxQueueSize=none", "lanes.browser.maxQueueSize", None),
        ('agents.a={"weight": 2}', "agents.a", {"weight": 2.0, "maxInflight": None}),
        (
            'agents."bot@example.com".weight=2.5',
            'agents."bot@example.com"',
            {"weight": 2.5, "maxInflight": None},
        ),
        ("maxConcurrent=4", "lanes.queue.maxInflight", 4),
    ],
)
def test_a_value_is_json_or_a_word(
    run: Run, side: list[str], assignment: str, path: str, value: Any
) -> None:
    ran = run("policy", "set", assignment, "--json", *side)
    assert ran.code == 0, ran
    (change,) = ran.json["changes"]
    assert (change["path"], change["to"]) == (path, value)


def test_a_reported_path_can_be_set(run: Run, side: list[str]) -> None:
    ran = run("policy", "set", 'agents."bot@example.com".weight=2', "--json", *side)
    (change,) = ran.json["changes"]
    ran = run("policy", "set", f"{change['path']}=null", "--json", *side)
    assert ran.json["changes"] == [{"path": change["path"], "from": change["to"]}]


@pytest.mark.parametrize("value", ["3abc", "1.5", "-4", "''", "true", "[3]", '"3"', "1e3", "0x10"])
def test_a_number_is_a_number_or_nothing(
    run: Run, side: list[str], client: Client, value: str
) -> None:
    before = client.policy()
    ran = run("policy", "set", f"lanes.main.maxInflight={value}", *side)
    assert ran.code == 6
    expected = "error: lanes.main.maxInflight must be a whole number from 1 to 100000\n"
    assert (ran.out, ran.err) == ("", expected)
    assert client.policy() == before


def test_all_problems_are_reported_one_line_each(run: Run, side: list[str], client: Client) -> None:
    before = client.policy()
    wrong = ("lanes.main.maxInflght=3", "enabled=maybe", "agents.a.weight=0", "maxConcurrent=0")
    ran = run("policy", "set", "workerCount=3", *wrong, *side)
    assert (ran.code, ran.out) == (6, "")
    assert sorted(ran.err.splitlines()) == [
        "error: agents.a.weight must be a number from 0.01 to 1000",
        "error: enabled must be true or false",
        "error: maxConcurrent must be a whole number from 1 to 100000",
        "error: unknown key lanes.main.maxInflght; did you mean maxInflight?",
    ]
    as_json = run("policy", "set", *wrong, "--json", *side)
    assert as_json.json["code"] == "invalid_policy"
    assert len(as_json.json["details"]["problems"]) == 4
    assert client.policy() == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "give either PATH=VALUE or --file"),
        (["maxInflight"], "'maxInflight' must be PATH=VALUE, as in lanes.main.maxInflight=5"),
        (["=5"], "must be PATH=VALUE"),
        (["maxInflight=1", "maxInflight=2"], "maxInflight is set twice"),
        (["maxInflight=1", "--file", "x.json"], "give either PATH=VALUE or --file"),
        (["--file", "no-such.json"], "cannot read no-such.json"),
        (["maxInflight=1", "--expect", "3abc"], "must be a whole number, not '3abc'"),
        (["maxInflight=1", "--expect", "-1"], "--expect"),
        (["maxInflight=1", "--dryrun"], "did you mean --dry-run?"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_is_asked(
    run: Run, arguments: list[str], complaint: str
) -> None:
    ran = run("policy", "set", *arguments, "--url", "http://127.0.0.1:9")
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err


def test_a_version_has_an_author_and_a_note(run: Run, side: list[str], client: Client) -> None:
    flags = ("--note", "a busy day é", "--author", "ada")
    assert run("policy", "set", "maxInflight=7", *flags, *side).code == 0
    shown = client.policy()
    assert (shown["author"], shown["note"]) == ("ada", "a busy day é")
    _set(run, side, "maxInflight=8")
    assert client.policy()["author"] == getpass.getuser()


def test_a_change_may_expect_a_version(run: Run, side: list[str]) -> None:
    version = _set(run, side, "maxInflight=7")
    ran = run("policy", "set", "maxInflight=8", "--expect", str(version - 1), *side)
    assert ran.code == 4
    assert (
        ran.err == f"error: the policy is at version {version}, not {version - 1}; read it again\n"
    )
    assert _set(run, side, "maxInflight=8", "--expect", str(version)) == version + 1


def test_a_dry_run_only_says_what_would_change(run: Run, side: list[str], client: Client) -> None:
    before = client.policy()
    ran = run("policy", "set", "maxInflight=7", "--dry-run", *side)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "- maxInflight: null",
        "+ maxInflight: 7",
        f"valid: 1 change to version {before['version']}",
    ]
    wrong = run("policy", "set", "maxInflight=-7", "--dry-run", *side)
    assert (wrong.code, wrong.out) == (6, "")
    assert wrong.err.startswith("error: maxInflight must be")
    assert client.policy() == before


@pytest.mark.slow
def test_processes_that_set_at_once_lose_nothing(tmp_path: Path) -> None:
    """Fact 52 of specs/coolworkflow.md, on a store that none of them has seen before."""
    store = f"sqlite:///{tmp_path / 'new.db'}"
    said = ("maxInflight=7", "workerCount=3", "sessions.cap=4", "retention.days=9")

    def set_one(assignment: str) -> int:
        arguments = ("policy", "set", assignment, "--store", store)
        return run_process(*arguments, folder=tmp_path).returncode

    with ThreadPoolExecutor(len(said)) as threads:
        assert list(threads.map(set_one, said)) == [0] * len(said)
    shown = run_process("policy", "show", "--json", "--store", store, folder=tmp_path)
    found = json.loads(shown.stdout)
    policy = found["policy"]
    assert (found["version"], policy["maxInflight"], policy["workerCount"]) == (4, 7, 3)
    assert (policy["sessions"]["cap"], policy["retention"]["days"]) == (4, 9)


# -------------------------------------------------------------------- files


def test_a_file_replaces_the_policy(
    run: Run, side: list[str], client: Client, tmp_path: Path
) -> None:
    _set(run, side, "maxInflight=7")
    file = tmp_path / "policy.json"
    file.write_text('{"workerCount": 3}')
    dry = run("policy", "set", "--file", str(file), "--dry-run", "--json", *side)
    check = run("policy", "check", str(file), "--json", *side)
    assert dry.out == check.out
    changes = [
        {"path": "maxInflight", "from": 7, "to": None},
        {"path": "workerCount", "from": 0, "to": 3},
    ]
    assert check.json["changes"] == changes
    ran = run("policy", "set", "--file", str(file), "--json", *side)
    assert ran.json["changes"] == changes
    assert client.policy()["source"] == "put"


def test_a_file_may_come_from_a_pipe(ruled: Server, client: Client, tmp_path: Path) -> None:
    text = json.dumps(SCHEDULING_POLICY, indent=2).encode() + b"\n"
    arguments = ("policy", "set", "--file", "-", "--store", ruled.store)
    ran = run_process(*arguments, folder=tmp_path, stdin=text)
    assert (ran.returncode, ran.stderr) == (0, b"")
    lane = client.policy()["policy"]["lanes"]["queue"]
    assert (lane["maxInflight"], lane["maxAttempts"], lane["leaseTtlMs"]) == (2, 2, 60000)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"maxConcurrent": 1.5}'])
@pytest.mark.parametrize("verb", ["set", "check"])
def test_a_file_that_is_not_a_policy_changes_nothing(
    *, run: Run, side: list[str], client: Client, tmp_path: Path, text: str, verb: str
) -> None:
    before = client.policy()
    file = tmp_path / "policy.json"
    file.write_text(text)
    named = ["--file", str(file)] if verb == "set" else [str(file)]
    ran = run("policy", verb, *named, *side)
    assert ran.code in (2, 6)
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert client.policy() == before


PINCHTAB = '{"server": {"port": "9867"}, "scheduler": {"maxPerAgent": 55}, "browser": {}}'


@pytest.mark.parametrize("verb", [["check"], ["set", "--file"], ["set", "--dry-run", "--file"]])
def test_the_other_sections_of_a_pinchtab_file_are_ignored_with_a_note(
    run: Run, side: list[str], tmp_path: Path, verb: list[str]
) -> None:
    _set(run, side, "lanes.browser.maxPerAgent=null")
    file = tmp_path / "config.json"
    file.write_text(PINCHTAB)
    ran = run("policy", *verb, str(file), *side)
    assert ran.code == 0, ran
    assert "+ lanes.browser.maxPerAgent: 55" in ran.out
    note = "ignored, because the document is a PinchTab configuration: server, browser"
    assert ran.err == f"note: {file}: {note}\n"
    as_json = run("policy", *verb, str(file), "--json", *side)
    assert as_json.json["notes"] == [note]


def test_the_section_of_a_pinchtab_file_by_itself_sets_the_lane_browser(
    run: Run, side: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"maxQueueSize": 77, "maxInflight": 3, "resultTTL": "5m0s"}')
    answer = run("policy", "check", str(file), "--json", *side).json
    changed = {change["path"]: change["to"] for change in answer["changes"]}
    assert changed == {
        "lanes.browser.maxQueueSize": 77,
        "lanes.browser.maxInflight": 3,
        "retention.resultTTLSec": 300,
    }
    assert "notes" not in answer


def test_check_tells_all_problems_and_exits_so(run: Run, side: list[str], tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"colour": 1, "enabled": 2}')
    ran = run("policy", "check", str(file), *side)
    assert (ran.code, ran.out) == (6, "")
    assert ran.err == (
        f"error: {file}: unknown key colour\nerror: {file}: enabled must be true or false\n"
    )
    as_json = run("policy", "check", str(file), "--json", *side)
    assert (as_json.code, as_json.json["valid"]) == (6, False)
    assert len(as_json.json["problems"]) == 2


# -------------------------------------------------------------------- versions


def test_versions_tell_who_when_why_and_what(run: Run, side: list[str]) -> None:
    _set(run, side, "maxInflight=7", "--note", "first", "--author", "ada")
    version = _set(run, side, "maxInflight=8", "--author", "bob")
    ran = run("policy", "versions", "--limit", "2", *side)
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"version {version}, 20")
    assert lines[0].endswith(", by patch (bob)")
    assert lines[1:3] == ["- maxInflight: 7", "+ maxInflight: 8"]
    assert lines[3].endswith(", by patch (ada): first")
    assert f"--cursor {version - 1}" in ran.err
    everything = run("policy", "versions", "--all", "--json", *side).json
    numbers = [one["version"] for one in everything["versions"]]
    assert numbers == list(range(version, 0, -1))


def test_a_new_store_has_no_versions_and_a_policy_can_be_its_first(
    run: Run, tmp_path: Path
) -> None:
    side = ["--store", f"sqlite:///{tmp_path / 'new.db'}"]
    assert run("policy", "show", *side).code == 6
    assert _set(run, side, "maxInflight=7") == 1
    assert run("policy", "rollback", "0", *side).code == 0
    new = run("policy", "show", "--version", "0", *side)
    assert new.err == "version 0: the defaults\n"


def test_diff_compares_two_versions(run: Run, side: list[str]) -> None:
    version = _set(run, side, "maxInflight=7")
    _set(run, side, "maxInflight=8")
    assert run("policy", "diff", *side).out.splitlines() == [
        "- maxInflight: 7",
        "+ maxInflight: 8",
        f"1 change between version {version} and version {version + 1}",
    ]
    same = run("policy", "diff", str(version), str(version), *side)
    assert same.out == f"no changes between version {version} and version {version}\n"
    since = run("policy", "diff", "0", str(version), "--json", *side)
    assert since.json["changes"] == [{"path": "maxInflight", "from": None, "to": 7}]
    assert run("policy", "diff", "1", "99999", *side).code == 3
    assert run("policy", "diff", "1x", *side).code == 2


def test_rollback_makes_an_old_version_the_newest(
    run: Run, side: list[str], client: Client
) -> None:
    version = _set(run, side, "maxInflight=7")
    _set(run, side, "maxInflight=8")
    ran = run("policy", "rollback", str(version), "--note", "too much", *side)
    assert ran.out.splitlines() == [
        "- maxInflight: 8",
        "+ maxInflight: 7",
        f"the policy is now at version {version + 2}",
    ]
    shown = client.policy()
    assert (shown["source"], shown["note"]) == ("rollback", "too much")
    assert run("policy", "rollback", "99999", *side).code == 3
    assert run("policy", "rollback", "x", *side).code == 2


def test_changes_have_colours_on_a_terminal_only(
    ruled: Server, client: Client, tmp_path: Path
) -> None:
    client.patch_policy({"maxInflight": 7})
    seen = run_on_terminal("policy", "diff", "--url", ruled.url, folder=tmp_path)
    assert seen.code == 0
    assert "\x1b[31m- maxInflight: null\x1b[0m" in seen.text
    assert "\x1b[32m+ maxInflight: 7\x1b[0m" in seen.text


# -------------------------------------------------------------------- the client


def test_the_client_raises_what_is_wrong(client: Client) -> None:
    with pytest.raises(InvalidPolicy) as refusal:
        client.set_policy({"colour": 1, "enabled": 2})
    assert refusal.value.problems == ["unknown key colour", "enabled must be true or false"]
    version = client.patch_policy({"maxInflight": 7}, note="why", author="me")["version"]
    with pytest.raises(Conflict):
        client.rollback_policy(0, expected_version=version - 1)
    assert client.policy_diff(0, version)["changes"] != []
    assert client.policy_versions(limit=1)["versions"][0]["note"] == "why"
    assert client.check_policy({"maxInflight": None}, patch=True)["valid"]
