"""Commands about sessions and lanes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.processes import Terminal, run_on_terminal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


@pytest.fixture
def key(agent: str) -> str:
    """A session of the test's own."""
    return f"chat:{agent}"


def _said(run: Run, side: list[str], key: str, text: str, *flags: str) -> str:
    """A message that nobody here can run, unless it says otherwise."""
    handler = () if "--handler" in flags else ("--handler", "nobody")
    ran = run("message", key, text, *handler, *flags, "--json", *side)
    assert ran.code == 0, ran
    task_id: str = ran.json["taskId"]
    return task_id


def _running(run: Run, side: list[str], key: str, agent: str) -> str:
    """A task of the session that has the turn and keeps it."""
    flags = ("--handler", "sleep", "--param", "ms=60000", "--session", key, "--agent", agent)
    task_id: str = run("submit", *flags, "--json", *side).json["taskId"]
    for _ in range(1000):
        if run("wait", task_id, "--timeout", "0", "--json", *side).json["state"] == "running":
            return task_id
    raise AssertionError(f"{task_id} does not start")


def _task(run: Run, side: list[str], task_id: str) -> Any:
    return run("show", task_id, "--json", *side).json


# -------------------------------------------------------------------- messages


def test_every_option_about_a_message_reaches_its_task(
    run: Run, side: list[str], key: str, agent: str
) -> None:
    options = {
        "--sender": "ada",
        "--agent": agent,
        "--lane": "team",
        "--priority": "high",
        "--timeout": "30s",
        "--metadata": '{"ticket": 7}',
        "--max-concurrent": "3",
    }
    flags = [word for pair in options.items() for word in pair]
    task = _task(run, side, _said(run, side, key, "Hi", *flags, "--no-merge"))
    expected = {
        "agentId": agent,
        "lane": "team",
        "priority": -10,
        "timeoutMs": 30_000,
        "metadata": {"ticket": 7},
        "sessionKey": key,
        "sender": "ada",
        "noMerge": True,
    }
    assert {name: task[name] for name in expected} == expected
    assert task["params"]["message"] == "Hi"
    assert run("sessions", key, "--json", *side).json["settings"]["maxConcurrent"] == 3


def test_quick_messages_are_joined_and_that_is_reported(
    run: Run, side: list[str], key: str
) -> None:
    flags = ("--handler", "nobody", "--debounce", "5s", *side)
    first = run("message", key, "one", *flags)
    task_id = re.fullmatch(r"submitted (tsk_\w+) \(queued, position \d+\)\n", first.out)
    assert (first.code, bool(task_id)) == (0, True), first
    assert task_id is not None
    assert run("message", key, "two", *flags).out == f"merged into {task_id[1]} (queued)\n"
    assert _task(run, side, task_id[1])["params"]["message"] == "one\ntwo"
    assert "1 waiting for more messages" in run("sessions", key, *side).out


@pytest.mark.slow
def test_a_message_can_be_waited_for(run: Run, side: list[str], key: str) -> None:
    flags = ("--handler", "echo", "--debounce", "0", "--wait", "15", "--json", *side)
    ran = run("message", key, "Hi", *flags)
    assert (ran.code, ran.json["result"]["message"]) == (0, "Hi")


def test_a_full_session_refuses_or_drops(run: Run, side: list[str], key: str, agent: str) -> None:
    _running(run, side, key, agent)
    flags = ("--cap", "1", "--debounce", "0", "--no-merge")
    waiting = _said(run, side, key, "1", *flags)
    ran = run("message", key, "2", "--handler", "nobody", *flags, "--drop", "new", "--json", *side)
    assert (ran.code, ran.json["code"]) == (4, "session_queue_full")
    _said(run, side, key, "2", *flags, "--drop", "old")
    assert _task(run, side, waiting)["error"].startswith("queue_dropped: ")
    run("stopall", key, *side)


def test_a_message_from_before_a_stop_is_refused(run: Run, side: list[str], key: str) -> None:
    run("stopall", key, *side)
    ran = run("message", key, "Hi", "--sent-at", "2020-01-01T00:00:00Z", *side)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err == "error: the message was sent before its session was stopped\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("message k", "the following arguments are required: TEXT"),
        (
            "message k hi --debounce soon",
            "--debounce: must be a duration like 30s or 5m",
        ),
        ("message k hi --cap few", "--cap: must be a whole number, not 'few'"),
        ("message k hi --mode quick", "field 'mode' must be one of collect, followup"),
        ("sessions set k", "nothing to set; see fairlane sessions set --help"),
        (
            "sessions set k --unset caps",
            "--unset: unknown setting caps; known settings: mode, cap, drop, debounce",
        ),
        ("sessions set k --max-concurrent 0", "--max-concurrent: must be a whole number above 0"),
        ("sessions usage k 5", "the following arguments are required: WINDOW"),
        ("sessions a b", "unrecognized arguments: b"),
        ("sessions --agent x", "unknown option --agent; see fairlane sessions list --help"),
        ("lanes paus main", "unknown command 'lanes paus'; did you mean pause?"),
        ("lanes pause", "the following arguments are required: NAME"),
        ("stop", "the following arguments are required: KEY"),
    ],
)
def test_invalid_options_are_reported(run: Run, server: Server, line: str, complaint: str) -> None:
    ran = run(*line.split(), "--url", server.url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {complaint}"), ran.err


# -------------------------------------------------------------------- stop, stopall, reset


def test_stop_ends_the_run_and_leaves_what_waits(
    run: Run, side: list[str], key: str, agent: str
) -> None:
    running = _running(run, side, key, agent)
    waiting = _said(run, side, key, "later", "--debounce", "0")
    ran = run("stop", key, *side)
    told = [f"stopped {running}", f"session {key}: 1 task stopped"]
    assert ran.out.splitlines() == told, ran
    assert _task(run, side, running)["error"].startswith("stopped: ")
    assert _task(run, side, waiting)["state"] == "queued"
    assert run("stop", f"{key}:idle", *side).out == f"session {key}:idle: nothing was running\n"


def test_stopall_tells_what_was_stopped_and_what_was_drained(
    run: Run, side: list[str], key: str, agent: str
) -> None:
    running = _running(run, side, key, agent)
    flags = ("--debounce", "0", "--no-merge")
    waiting = [_said(run, side, key, text, *flags) for text in ("a", "b")]
    ran = run("stopall", key, *side)
    assert ran.out.splitlines() == [
        f"stopped {running}",
        *(f"cancelled {task_id}" for task_id in waiting),
        f"session {key}: 1 task stopped, 2 waiting tasks cancelled",
    ]
    assert run("stopall", key, "--json", *side).json == {"stopped": [], "drained": []}


def test_a_stopall_that_only_drains_says_so(run: Run, side: list[str], key: str) -> None:
    task_id = _said(run, side, key, "a", "--debounce", "5s")
    told = f"session {key}: nothing was running, 1 waiting task cancelled"
    assert run("stopall", key, *side).out.splitlines() == [f"cancelled {task_id}", told]


def test_a_text_may_be_a_command(run: Run, side: list[str], key: str) -> None:
    task_id = _said(run, side, key, "a", "--debounce", "5s")
    answer = run("message", key, "/stopall", "--wait", "--json", *side).json
    assert answer == {"stopped": [], "drained": [task_id]}
    assert run("message", key, "/stop", *side).out == f"session {key}: nothing was running\n"


def test_a_reset_begins_a_new_generation(run: Run, side: list[str], key: str) -> None:
    task_id = _said(run, side, key, "a")
    lines = run("sessions", "reset", key, *side).out.splitlines()
    assert lines[0] == f"cancelled {task_id}"
    assert lines[1].endswith("1 waiting task cancelled; generation 1 starts")
    assert _task(run, side, task_id)["error"].startswith("session_reset: ")
    assert run("sessions", "reset", key, "--json", *side).json["generation"] == 2


# -------------------------------------------------------------------- sessions


def test_a_session_shows_who_runs_who_waits_and_why(
    run: Run, side: list[str], key: str, agent: str
) -> None:
    running = _running(run, side, key, agent)
    waiting = [_said(run, side, key, text, "--debounce", "0", "--no-merge") for text in ("a", "b")]
    run("sessions", "usage", key, "120", "200", *side)
    out = run("sessions", key, *side).out
    for line in (
        rf"session +{key}",
        "tasks +1 running, 2 waiting",
        r"at once +1 \(one at a time: 60% of the context window is used\)",
        r"usage +120 of 200 tokens \(60%\)",
        "mode +queue",
        "debounce +800 ms",
        "max concurrent +1",
        rf"{running} +running +main +- +started \S.*",
        rf"{waiting[0]} +queued +main +1 +waiting for: session",
        rf"{waiting[1]} +queued +main +2 +waiting for: session",
    ):
        assert re.search(f"^{line}$", out, re.MULTILINE), (line, out)
    run("stopall", key, *side)
    assert re.search(r"^cutoff +\S+ \(.*\): older", run("sessions", key, *side).out, re.MULTILINE)


def test_json_of_a_session_is_that_of_the_route(
    run: Run, server: Server, side: list[str], key: str
) -> None:
    run("sessions", "usage", key, "1", "2", *side)
    shown = run("sessions", key, "--json", *side)
    assert shown.out == server.get(f"/sessions/{key}") + "\n"
    assert shown.out == run("sessions", "list", key, "--json", *side).out
    assert shown.out == run("sessions", "--json", key, *side).out


def test_settings_stay_as_they_were_set(run: Run, side: list[str], key: str) -> None:
    flags = "--mode interrupt --cap 4 --drop new --debounce 2s --debounce-max 9"
    run("sessions", "set", key, *flags.split(), *side)
    answer = run("sessions", "set", key, "--max-concurrent", "3", "--json", *side).json
    assert answer["settings"] == {
        "mode": "interrupt",
        "cap": 4,
        "drop": "new",
        "debounceMs": 2000,
        "debounceMaxMs": 9000,
        "maxConcurrent": 3,
    }
    assert answer["effectiveConcurrency"] == 3
    unset = ("--unset", "cap", "--unset", "max-concurrent", "--unset", "debounce-max")
    answer = run("sessions", "set", key, "--drop", "old", *unset, "--json", *side).json
    assert answer["settings"] == {
        "mode": "interrupt",
        "cap": 10,
        "drop": "old",
        "debounceMs": 2000,
        "debounceMaxMs": 5000,
        "maxConcurrent": 1,
    }


def test_sessions_are_listed_in_pages(run: Run, side: list[str], key: str) -> None:
    keys = [f"{key}:{n}" for n in range(3)]
    for one in keys:
        run("sessions", "usage", one, "9", "10", *side)
    found: list[str] = []
    for line in run("sessions", "--limit", "2", "--all", "--json", *side).out.splitlines():
        found += [one["sessionKey"] for one in json.loads(line)["sessions"]]
    assert [one for one in found if one.startswith(key)] == keys
    lines = run("sessions", "--all", *side).out.splitlines()
    assert lines[0].split() == ["SESSION", "RUNNING", "WAITING", "AT", "ONCE", "NOTE"]
    mine = [line.split() for line in lines if line.startswith(keys[0])]
    assert mine == [[keys[0], "0", "0", "1", "throttled"]]
    assert "more items follow; add --cursor" in run("sessions", "--limit", "1", *side).err


def test_a_session_that_is_not_there_ends_with_3(run: Run, side: list[str], key: str) -> None:
    ran = run("sessions", key, "--json", *side)
    assert (ran.code, ran.json["code"]) == (3, "not_found")


# -------------------------------------------------------------------- lanes


def test_lanes_tell_how_full_they_are(run: Run, server: Server, side: list[str]) -> None:
    answer = run("lanes", "--json", *side).json
    names = [lane["name"] for lane in answer["lanes"]]
    assert names == sorted(names)
    assert set(names) == {lane["name"] for lane in json.loads(server.get("/lanes"))["lanes"]}
    lines = run("lanes", *side).out.splitlines()
    assert lines[0].split() == [
        "LANE", "CEILING", "ACTIVE", "WAITING", "OLDEST", "PAUSED", "STRATEGY",
    ]  # fmt: skip
    browser = next(line.split() for line in lines if line.startswith("browser"))
    assert (browser[1], browser[-1]) == ("20", "fair-fifo")
    assert run("lanes", "list", *side).out.splitlines()[0] == lines[0]


def test_a_lane_is_paused_emptied_and_resumed(run: Run, side: list[str], agent: str) -> None:
    assert run("lanes", "pause", "cron", *side).out == "paused cron\n"
    flags = ("--handler", "echo", "--lane", "cron", "--agent", agent, "--json")
    task_id = run("submit", *flags, *side).json["taskId"]
    cron = next(line for line in run("lanes", *side).out.splitlines() if line.startswith("cron"))
    assert cron.split()[2:4] == ["0", "1"]
    assert "paused" in cron
    assert run("lanes", "clear", "cron", *side).out == "cancelled 1 task in lane cron\n"
    assert _task(run, side, task_id)["error"].startswith("lane_cleared: ")
    answer = run("lanes", "resume", "cron", "--json", *side).json
    assert answer == {"lane": "cron", "paused": False}
    assert run("lanes", "clear", "cron", "--json", *side).json == {"lane": "cron", "cancelled": 0}


def test_a_lane_that_is_not_there_ends_with_3(run: Run, side: list[str]) -> None:
    ran = run("lanes", "pause", "mian", *side)
    assert (ran.code, ran.out) == (3, "")
    assert "did you mean main?" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("case", [("y\n", "cancelled", "cancelled 1"), ("\n", "queued", "nothing")])
def test_on_a_terminal_clearing_a_lane_asks_with_the_number(
    run: Run, server: Server, agent: str, tmp_path: Path, case: tuple[str, str, str]
) -> None:
    answer, state, told = case
    side = ["--url", server.url]
    flags = ("--handler", "nobody", "--lane", "subagent", "--agent", agent, "--json")
    task_id = run("submit", *flags, *side).json["taskId"]
    typed: list[bool] = []

    def reply(terminal: Terminal) -> None:
        if "[y/N]" in terminal.text and not typed:
            typed.append(True)
            terminal.type(answer)

    seen = run_on_terminal("lanes", "clear", "subagent", *side, folder=tmp_path, on_text=reply)
    assert seen.code == 0
    assert "cancel 1 task in lane subagent? [y/N]" in seen.text
    assert told in seen.text
    assert _task(run, side, task_id)["state"] == state
    run("lanes", "clear", "subagent", "--yes", *side)
