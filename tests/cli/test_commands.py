from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.processes import run_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

WAIT = ("--wait", "15")


def _queued(run: Run, side: list[str], agent: str, *more: str) -> str:
    """A task that nobody here can run."""
    ran = run("submit", "--handler", "nobody", "--agent", agent, "--json", *more, *side)
    assert ran.code == 0, ran
    task_id: str = ran.json["taskId"]
    return task_id


# -------------------------------------------------------------------- submit


def test_submit_says_which_task_it_has_become(run: Run, side: list[str], agent: str) -> None:
    ran = run("submit", "--handler", "echo", "--agent", agent, *side)
    assert ran.code == 0
    assert re.fullmatch(r"submitted tsk_[0-9a-f]+ \(queued, position \d+\)\n", ran.out)
    assert ran.err == ""


def test_submit_as_json_is_the_answer_of_the_route(run: Run, side: list[str], agent: str) -> None:
    answer = run("submit", "--handler", "echo", "--agent", agent, "--json", *side).json
    assert list(answer) == ["taskId", "state", "position", "createdAt"]
    answer = run("submit", "--handler", "nobody", "--agent", agent, "--json", *side).json
    assert list(answer) == ["taskId", "state", "position", "createdAt", "warnings"]


def test_every_option_of_submit_reaches_the_task(run: Run, server: Server, agent: str) -> None:
    url = ("--url", server.url)
    options = {
        "--handler": "nobody",
        "--priority": "-5",
        "--deadline": "2099-01-01T00:00:00Z",
        "--callback-url": "http://127.0.0.1:9/hook",
        "--lane": "team",
        "--session": "chat:7",
        "--params": '{"a": 1, "b": 2}',
        "--param": "b=three",
    }
    flags = [word for pair in options.items() for word in pair]
    ran = run("submit", "--agent", agent, *flags, "--json", *url)
    task = run("show", ran.json["taskId"], "--json", *url).json
    expected = {
        "agentId": agent,
        "handler": "nobody",
        "priority": -5,
        "deadline": "2099-01-01T00:00:00.000Z",
        "callbackUrl": "http://127.0.0.1:9/hook",
        "lane": "team",
        "sessionKey": "chat:7",
        "params": {"a": 1, "b": "three"},
    }
    assert {name: task[name] for name in expected} == expected


def test_an_action_is_submitted_with_its_tab_and_target(
    run: Run, server: Server, agent: str
) -> None:
    flags = ("--action", "click", "--tab", "t1", "--ref", "e5", "--selector", "#go")
    ran = run("submit", "--agent", agent, *flags, "--json", "--url", server.url)
    task = run("show", ran.json["taskId"], "--json", "--url", server.url).json
    found = [task[name] for name in ("action", "tabId", "ref", "selector")]
    assert found == ["click", "t1", "e5", "#go"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("n=3", 3), ("n=x", "x"), ("n=true", True), ('n="3"', "3"), ("n=a=b", "a=b"), ("n=", "")],
)
def test_a_param_is_json_where_it_looks_like_it(
    run: Run, server: Server, agent: str, text: str, value: Any
) -> None:
    flags = ("--handler", "echo", "--agent", agent, "--param", text, *WAIT)
    assert run("submit", *flags, "--json", "--url", server.url).json["result"] == {"n": value}


def test_a_deadline_may_be_a_span_from_now(run: Run, server: Server, agent: str) -> None:
    task_id = _queued(run, ["--url", server.url], agent, "--deadline", "3h")
    assert re.search(r"deadline +\S+Z \(in 3 h\)", run("show", task_id, "--url", server.url).out)


def test_submitting_again_with_the_same_key_changes_nothing(run: Run, side: list[str]) -> None:
    first = _queued(run, side, "keyed", "--idempotency-key", f"key-{side[0]}")
    again = _queued(run, side, "keyed", "--idempotency-key", f"key-{side[0]}")
    assert first == again


def test_the_same_key_with_another_task_is_refused(run: Run, side: list[str], agent: str) -> None:
    _queued(run, side, agent, "--idempotency-key", "k")
    flags = ("--handler", "other", "--agent", agent, "--idempotency-key", "k")
    ran = run("submit", *flags, *side)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error: this Idempotency-Key was already used with a different body")


@pytest.mark.slow
def test_submit_can_wait_for_the_result(run: Run, side: list[str], agent: str) -> None:
    flags = ("--handler", "echo", "--agent", agent, "--param", "text=hello", *WAIT)
    ran = run("submit", *flags, *side)
    assert ran.code == 0, ran
    assert re.search(r"^state +done, took \d+ ms$", ran.out, re.MULTILINE)
    assert '"text": "hello"' in ran.out


@pytest.mark.slow
def test_times_are_relative_to_the_end_of_the_wait(run: Run, server: Server, agent: str) -> None:
    flags = ("--handler", "sleep", "--agent", agent, "--param", "ms=1100", *WAIT)
    out = run("submit", *flags, "--url", server.url).out
    assert re.search(r"^created +\S+ \([12] s ago\)$", out, re.MULTILINE)
    assert re.search(r"^completed +\S+ \(just now\)$", out, re.MULTILINE)


@pytest.mark.slow
def test_waiting_for_a_task_that_fails_ends_with_1(run: Run, side: list[str], agent: str) -> None:
    flags = ("--handler", "sleep", "--agent", agent, "--param", "ms=-1", *WAIT)
    ran = run("submit", *flags, *side)
    assert ran.code == 1
    assert re.search(r"^state +failed", ran.out, re.MULTILINE)
    assert re.search(r"^error +sleep: params.ms must be", ran.out, re.MULTILINE)


def test_when_the_time_is_up_the_task_is_shown_as_it_is(
    run: Run, side: list[str], agent: str
) -> None:
    flags = ("--handler", "nobody", "--agent", agent, "--wait", "0")
    ran = run("submit", *flags, "--json", *side)
    assert (ran.code, ran.json["state"]) == (124, "queued")
    assert "\nerror: timed out: 1 task not finished yet, first tsk_" in ran.err


# -------------------------------------------------------------------- submit --file


def _file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_file_may_hold_a_list_of_tasks(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    name = _file(tmp_path, [{"handler": "nobody"}, {"handler": "nobody", "priority": 3}])
    answer = run("submit", "--file", name, "--agent", agent, "--json", *side).json
    assert (answer["accepted"], answer["rejected"]) == (2, 0)
    listed = run("tasks", "--batch", answer["batchId"], "--json", *side).json["tasks"]
    assert [task["agentId"] for task in listed] == [agent, agent]


def test_the_tasks_of_a_list_may_name_their_agent(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    name = _file(tmp_path, [{"handler": "nobody", "agentId": agent}])
    assert run("submit", "--file", name, "--url", server.url).code == 0
    assert run("tasks", "--agent", agent, "--json", "--url", server.url).json["count"] == 1


def test_a_list_with_several_agents_is_refused(run: Run, server: Server, tmp_path: Path) -> None:
    name = _file(tmp_path, [{"handler": "x", "agentId": "a"}, {"handler": "x", "agentId": "b"}])
    ran = run("submit", "--file", name, "--url", server.url)
    assert ran.code == 2
    assert "belong to one agent" in ran.err


@pytest.mark.parametrize("content", [{"handler": "nobody"}, {"tasks": [{"handler": "nobody"}]}])
def test_a_file_may_hold_a_task_or_a_batch(
    run: Run, server: Server, agent: str, tmp_path: Path, content: Any
) -> None:
    name = _file(tmp_path, content)
    assert run("submit", "--file", name, "--agent", agent, "--url", server.url).code == 0
    assert run("tasks", "--agent", agent, "--json", "--url", server.url).json["count"] == 1


def test_what_is_wrong_in_a_batch_is_reported_for_each_task(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    name = _file(tmp_path, [{"handler": "nobody"}, {"handler": "bad name"}])
    ran = run("submit", "--file", name, "--agent", agent, *side)
    assert ran.code == 4
    assert re.search(r"^- +rejected +field 'handler'", ran.out, re.MULTILINE)
    assert re.search(r"^batch bat_\w+: 1 accepted, 1 rejected$", ran.out, re.MULTILINE)


@pytest.mark.slow
def test_all_tasks_of_a_file_can_be_waited_for(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    name = _file(tmp_path, [{"handler": "echo", "params": {"n": n}} for n in range(3)])
    ran = run("submit", "--file", name, "--agent", agent, "--json", *WAIT, *side)
    ended = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0
    assert [task["result"]["n"] for task in ended] == [0, 1, 2]


@pytest.mark.slow
def test_a_file_may_come_through_a_pipe(server: Server, agent: str, tmp_path: Path) -> None:
    body = json.dumps({"handler": "echo", "agentId": agent, "params": {"n": 1}}).encode()
    flags = ("--file", "-", "--json", *WAIT, "--url", server.url)
    ran = run_process("submit", *flags, folder=tmp_path, stdin=body)
    assert ran.returncode == 0, ran
    assert json.loads(ran.stdout)["result"] == {"n": 1}


# -------------------------------------------------------------------- look


def test_show_as_json_is_exactly_what_the_route_answers(
    run: Run, side: list[str], server: Server, agent: str
) -> None:
    params = '{"big": 9007199254740993, "small": 1e-7, "text": "é\\u001b\\u007f"}'
    task_id = _queued(run, side, agent, "--params", params)
    assert run("show", task_id, "--json", *side).out == server.get(f"/tasks/{task_id}") + "\n"


def test_tasks_as_json_is_exactly_what_the_route_answers(
    run: Run, side: list[str], server: Server, agent: str
) -> None:
    for _ in range(3):
        _queued(run, side, agent, "--lane", "team", "--session", agent)
    filters = ("--agent", agent, "--state", "pending", "--lane", "team", "--session", agent)
    ran = run("tasks", *filters, "--limit", "2", "--json", *side)
    query = f"agentId={agent}&state=queued&lane=team&sessionKey={agent}&limit=2"
    assert ran.out == server.get(f"/tasks?{query}") + "\n"
    assert ran.json["count"] == 2


def test_stats_as_json_is_exactly_what_the_route_answers(
    run: Run, side: list[str], server: Server
) -> None:
    assert run("stats", "--json", *side).out == server.get("/scheduler/stats") + "\n"


def test_the_list_tells_the_essentials_of_each_task(run: Run, side: list[str], agent: str) -> None:
    first = _queued(run, side, agent, "--session", f"s-{agent}")
    second = _queued(run, side, agent, "--session", f"s-{agent}")
    ran = run("tasks", "--agent", agent, *side)
    header, newest, oldest = ran.out.splitlines()
    assert header.split() == ["TASK", "STATE", "AGENT", "LANE", "WHAT", "CREATED", "TOOK", "NOTE"]
    expected = rf"{second}  queued  {agent}  main  handler nobody  (just now|\d s ago)"
    assert re.fullmatch(rf"{expected} +waiting for: session", newest)
    assert oldest.startswith(first)


def test_an_empty_list_says_so(run: Run, side: list[str]) -> None:
    ran = run("tasks", "--agent", "nobody-at-all", *side)
    assert (ran.code, ran.out, ran.err) == (0, "no tasks\n", "")


def test_a_list_that_goes_on_says_how(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(3)]
    first = run("tasks", "--agent", agent, "--limit", "2", *side)
    cursor = re.search(r"more items follow; add --cursor (\d+), or --all", first.err)
    assert cursor
    assert [line.split()[0] for line in first.out.splitlines()] == ["TASK", ids[2], ids[1]]
    rest = run("tasks", "--agent", agent, "--cursor", cursor[1], *side)
    assert [line.split()[0] for line in rest.out.splitlines()] == ["TASK", ids[0]]
    assert rest.err == ""


def test_all_pages_come_one_after_the_other(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(3)]
    flags = ("--agent", agent, "--all", "--limit", "2")
    table = run("tasks", *flags, *side).out.splitlines()
    assert [line.split()[0] for line in table] == ["TASK", *reversed(ids)]
    pages = [json.loads(line) for line in run("tasks", *flags, "--json", *side).out.splitlines()]
    assert [page["count"] for page in pages] == [2, 1]


def test_several_states_may_be_asked_for(run: Run, server: Server, agent: str) -> None:
    url = ("--url", server.url)
    kept = _queued(run, [*url], agent)
    gone = _queued(run, [*url], agent)
    run("cancel", gone, *url)
    flags = ("--agent", agent, "--state", "queued,running", "--state", "cancelled", "--json")
    assert [task["taskId"] for task in run("tasks", *flags, *url).json["tasks"]] == [gone, kept]


def test_show_tells_everything_about_a_task(run: Run, side: list[str], agent: str) -> None:
    task_id = _queued(run, side, agent, "--param", "x=1", "--session", f"s-{agent}")
    lines = dict(
        line.split(maxsplit=1) for line in run("show", task_id, *side).out.splitlines()[:7]
    )
    assert lines["task"] == task_id
    assert lines["state"].startswith("queued")
    assert (lines["what"], lines["agent"], lines["lane"]) == ("handler nobody", agent, "main")
    assert re.search(rf"^session +s-{agent}$", run("show", task_id, *side).out, re.MULTILINE)


def test_stats_add_up_for_people(run: Run, side: list[str], agent: str) -> None:
    _queued(run, side, agent)
    out = run("stats", *side).out
    assert re.match(r"\d+ queued, \d+ in flight\n", out)
    assert re.search(rf"^{agent} +1 +0 +1 +0 +0 +0 +0$", out, re.MULTILINE)


# -------------------------------------------------------------------- cancel, wait


def test_cancel_says_what_it_has_cancelled(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(2)]
    ran = run("cancel", *ids, *side)
    assert (ran.code, ran.out) == (0, f"cancelled {ids[0]}\ncancelled {ids[1]}\n")
    assert run("tasks", "--agent", agent, "--state", "queued", *side).out == "no tasks\n"


def test_cancel_as_json_is_one_answer_for_each_task(run: Run, side: list[str], agent: str) -> None:
    task_id = _queued(run, side, agent)
    ran = run("cancel", task_id, "--json", *side)
    assert ran.json == {"status": "cancelled", "taskId": task_id}


def test_what_cannot_be_cancelled_does_not_keep_the_others(
    run: Run, side: list[str], agent: str
) -> None:
    ended, task_id = _queued(run, side, agent), _queued(run, side, agent)
    run("cancel", ended, *side)
    ran = run("cancel", ended, "tsk_none", task_id, *side)
    assert (ran.code, ran.out) == (4, f"cancelled {task_id}\n")
    assert ran.err.splitlines() == [
        f'error: task "{ended}" has already ended: it is "cancelled"',
        'error: task "tsk_none" not found',
    ]


@pytest.mark.slow
def test_waiting_ends_when_all_have_ended(run: Run, side: list[str], agent: str) -> None:
    flags = ("--handler", "sleep", "--agent", agent, "--json", *side)
    ids = [run("submit", *flags, "--param", f"ms={ms}").json["taskId"] for ms in (300, 1)]
    ran = run("wait", *ids, "--timeout", "15", *side)
    assert ran.code == 0
    assert [line.split()[:2] for line in ran.out.splitlines()[1:]] == [[i, "done"] for i in ids]


def test_waiting_for_one_shows_it_as_json(run: Run, side: list[str], agent: str) -> None:
    task_id = _queued(run, side, agent)
    run("cancel", task_id, *side)
    ran = run("wait", task_id, "--json", *side)
    assert (ran.code, ran.json["state"]) == (1, "cancelled")


def test_a_wait_is_over_when_its_time_is_up(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(2)]
    ran = run("wait", *ids, "--timeout", "0.1", *side)
    assert ran.code == 124
    assert ran.err == f"error: timed out: 2 tasks not finished yet, first {ids[0]}\n"


# -------------------------------------------------------------------- version, help


def test_help_and_version_are_commands_too(run: Run) -> None:
    assert run("version").out == run("--version").out
    assert run("help").out == run("--help").out
    assert run("help", "cron", "add").out == run("cron", "add", "--help").out
    ran = run("help", "crn")
    assert (ran.code, ran.err) == (2, "error: unknown command 'crn'; see fairlane --help\n")


def test_the_version_is_printed(run: Run) -> None:
    ran = run("--version")
    assert ran.code == 0
    assert re.fullmatch(r"fairlane \d+\.\d+\.\d+\n", ran.out)


def test_help_names_every_command_and_exit_code(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    for command in ("serve", "submit", "tasks", "show", "cancel", "wait", "stats", "doctor"):
        assert re.search(rf"^ +{command} +[A-Z]", ran.out, re.MULTILINE)
    for code in (0, 1, 2, 3, 4, 5, 6, 70, 124, 130, 141):
        assert re.search(rf"^ +{code}  \w", ran.out, re.MULTILINE)


def test_without_a_command_there_is_help(run: Run) -> None:
    ran = run()
    assert (ran.code, ran.err) == (2, "")
    assert ran.out.startswith("usage: fairlane")
