"""Commands about waiting, retries and batches."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.commands.tasks import TASKS
from fairlane.cli.output.terminal import Terminal as TaskOutput
from tests.cli.processes import Terminal, run_on_terminal, run_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


def _submitted(run: Run, side: list[str], agent: str, *flags: str) -> str:
    ran = run("submit", *flags, "--agent", agent, "--json", *side)
    assert ran.code == 0, ran
    task_id: str = ran.json["taskId"]
    return task_id


def _queued(run: Run, side: list[str], agent: str, *more: str) -> str:
    """A task that nobody here can run."""
    return _submitted(run, side, agent, "--handler", "nobody", *more)


def _failed(run: Run, side: list[str], agent: str) -> str:
    flags = ("--handler", "sleep", "--param", "ms=-1", "--wait", "15")
    ran = run("submit", *flags, "--agent", agent, "--json", *side)
    assert (ran.code, ran.json["state"]) == (1, "failed")
    task_id: str = ran.json["taskId"]
    return task_id


def _parked(run: Run, side: list[str], agent: str) -> str:
    flags = ("--handler", "sleep", "--param", "ms=60000", "--timeout-ms", "20", "--retries", "0")
    ran = run("submit", *flags, "--wait", "15", "--agent", agent, "--json", *side)
    assert (ran.code, ran.json["state"]) == (1, "parked")
    task_id: str = ran.json["taskId"]
    return task_id


def _state(run: Run, side: list[str], task_id: str) -> Any:
    return run("show", task_id, "--json", *side).json["state"]


def test_a_task_says_why_it_waits(run: Run, side: list[str], agent: str) -> None:
    task_id = _queued(run, side, agent, "--delay", "60000")
    ran = run("why", task_id, "--json", *side)
    assert (ran.code, ran.json["gate"], ran.json["ready"]) == (0, "delay", False)
    shown = run("why", task_id, *side)
    assert ran.json["reason"] in " ".join(shown.out.split())
    assert run("why", "tsk_nobody", *side).code == 3


def _file(tmp_path: Path, content: Any) -> str:
    path = tmp_path / "batch.json"
    path.write_text(json.dumps(content))
    return str(path)


# -------------------------------------------------------------------- submit, show, tasks


def test_every_option_about_when_and_how_often_reaches_the_task(
    run: Run, side: list[str], agent: str
) -> None:
    parent = _queued(run, side, agent)
    options = {
        "--instruction": "Sum it up",
        "--depends-on": parent,
        "--retries": "5",
        "--backoff": "0.25",
        "--multiplier": "1.5",
        "--timeout": "30s",
        "--metadata": '{"ticket": 7}',
        "--delay": "2h",
    }
    flags = [word for pair in options.items() for word in pair]
    task_id = _submitted(run, side, agent, *flags, "--depends-on", "tsk_other", "--preemptible")
    task = run("show", task_id, "--json", *side).json
    expected = {
        "kind": "instruction",
        "instruction": "Sum it up",
        "dependsOn": [parent, "tsk_other"],
        "retryPolicy": {"maxRetries": 5, "backoffMs": 250, "backoffMultiplier": 1.5},
        "timeoutMs": 30_000,
        "metadata": {"ticket": 7},
        "preemptible": True,
        "state": "waiting_dependency",
    }
    assert {name: task[name] for name in expected} == expected
    assert "nextEligibleAt" in task


def test_a_task_may_be_for_a_moment(run: Run, server: Server, agent: str) -> None:
    side = ["--url", server.url]
    task_id = _queued(run, side, agent, "--run-at", "2099-01-01T00:00:00Z")
    task = run("show", task_id, "--json", *side).json
    assert (task["gate"], task["nextEligibleAt"]) == ("delay", "2099-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--delay 5s --run-at x", "--run-at: not allowed with argument --delay"),
        ("--delay soon", "--delay: must be a duration like 30s or 5m, or a number of seconds"),
        ("--timeout 1.5x", "--timeout: must be a duration like 30s or 5m, or a number of seconds"),
        ("--timeout-ms 1s", "--timeout-ms: must be a whole number, not '1s'"),
        ("--retries many", "--retries: must be a whole number, not 'many'"),
        ("--multiplier x", "--multiplier: must be a number, not 'x'"),
        ("--metadata []", "--metadata: must be a JSON object, not '[]'"),
        ("--instruction x", "--instruction: not allowed with argument --handler"),
    ],
)
def test_a_malformed_value_is_reported(run: Run, line: str, complaint: str) -> None:
    ran = run("submit", "--handler", "echo", *line.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {complaint}")


@pytest.mark.parametrize("flag", ["--depends-on", "--delay", "--retries", "--metadata"])
def test_what_describes_a_task_belongs_into_its_file(run: Run, flag: str) -> None:
    value = {"--metadata": "{}", "--depends-on": "x"}.get(flag, "1")
    ran = run("submit", "--file", "-", flag, value)
    assert (ran.code, ran.err) == (
        2,
        f"error: {flag} cannot be combined with --file; set it in the file\n",
    )


@pytest.mark.slow
def test_show_tells_each_attempt_and_what_is_waited_for(
    run: Run, side: list[str], agent: str
) -> None:
    parked = _parked(run, side, agent)
    out = run("show", parked, *side).out
    header, row = out.splitlines()[-2:]
    assert header.split() == ["ATTEMPT", "STARTED", "TOOK", "OUTCOME", "WORKER", "ERROR"]
    assert re.search(r"^ +1  .* parked +node_\w+ +\S+", row)
    child = _queued(run, side, agent, "--depends-on", parked, "--depends-on", "tsk_x")
    out = run("show", child, *side).out
    assert re.search(rf"^depends on +{parked}\n +tsk_x$", out, re.MULTILINE)
    assert "ATTEMPT" not in out


def test_tasks_can_be_listed_by_kind(run: Run, side: list[str], agent: str) -> None:
    _queued(run, side, agent)
    task_id = _submitted(run, side, agent, "--instruction", "Do\nthis")
    page = run("tasks", "--agent", agent, "--kind", "instruction", "--json", *side).json
    assert [task["taskId"] for task in page["tasks"]] == [task_id]
    assert "instruction Do this" in run("tasks", "--agent", agent, *side).out
    ran = run("tasks", "--kind", "actoin", *side)
    assert ran.code == 2
    assert "did you mean action?" in ran.err


def test_tasks_can_be_listed_by_what_they_depend_on(run: Run, side: list[str], agent: str) -> None:
    parent = _queued(run, side, agent)
    child = _queued(run, side, agent, "--depends-on", parent)
    page = run("tasks", "--depends-on", parent, "--json", *side).json
    assert [task["taskId"] for task in page["tasks"]] == [child]


def test_tasks_can_be_looked_for_by_a_text(run: Run, side: list[str], agent: str) -> None:
    task_id = _submitted(run, side, agent, "--instruction", "Count the Penguins")
    _submitted(run, side, agent, "--instruction", "Count the seals")
    page = run("tasks", "--agent", agent, "--text", "penguin", "--json", *side).json
    assert [task["taskId"] for task in page["tasks"]] == [task_id]
    assert run("tasks", "--agent", agent, "--text", "walrus", *side).out == "no tasks\n"


def test_a_brief_list_leaves_out_what_is_long(run: Run, side: list[str], agent: str) -> None:
    _submitted(run, side, agent, "--instruction", "x" * 300)
    flags = ("--agent", agent, "--json")
    for more, length in ((), 300), (("--brief",), 200):
        (task,) = run("tasks", *flags, *more, *side).json["tasks"]
        assert len(task["instruction"]) == length


def test_pages_before_the_first_find_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    task = {"taskId": "tsk_1", "state": "queued", "agentId": "a", "lane": "main"}
    task |= {"handler": "echo", "createdAt": "2026-01-01T00:00:00.000Z"}
    empty: dict[str, Any] = {"tasks": []}
    goes_on = {**empty, "nextCursor": "9"}

    def pages(*found: dict[str, Any], more: bool) -> None:
        output = TaskOutput()
        for page in found:
            output.page(page, page["tasks"], TASKS, none="no tasks", more=more)

    pages(goes_on, {"tasks": [task]}, empty, more=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["TASK", "tsk_1"]
    pages(goes_on, empty, more=True)
    assert capsys.readouterr().out == "no tasks\n"
    pages(goes_on, more=False)
    ran = capsys.readouterr()
    assert (ran.out, ran.err) == (
        "none on this page\n",
        "more items follow; add --cursor 9, or --all\n",
    )


# -------------------------------------------------------------------- cancel, retry, reset


@pytest.mark.slow
def test_failed_and_cancelled_tasks_can_be_tried_again(
    run: Run, side: list[str], agent: str
) -> None:
    failed, cancelled = _failed(run, side, agent), _queued(run, side, agent)
    run("cancel", cancelled, *side)
    ran = run("retry", cancelled, "tsk_none", *side)
    assert (ran.code, ran.out) == (3, f"queued {cancelled} again (queued)\n")
    assert _state(run, side, cancelled) == "queued"
    answer = run("retry", failed, "--json", *side).json
    assert (answer["taskId"], answer["state"], answer["retryCount"]) == (failed, "queued", 0)


def test_a_task_that_has_not_ended_cannot_be_tried_again(
    run: Run, side: list[str], agent: str
) -> None:
    task_id = _queued(run, side, agent)
    ran = run("retry", task_id, *side)
    assert (ran.code, ran.out) == (4, "")
    assert task_id in ran.err
    assert run("reset", task_id, *side).code == 4


@pytest.mark.slow
def test_a_parked_task_can_be_reset(run: Run, side: list[str], agent: str) -> None:
    task_id = _parked(run, side, agent)
    assert run("reset", task_id, *side).out == f"queued {task_id} again (queued)\n"


def test_a_filter_cancels_all_that_fit(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(3)]
    other = _queued(run, side, agent, "--lane", "team")
    which = ("--agent", agent, "--lane", "main", "--state", "queued")
    looked = run("cancel", *which, "--dry-run", *side)
    assert looked.out.splitlines() == ["would cancel 3 tasks", *ids]
    ran = run("cancel", *which, *side)
    assert (ran.code, ran.out, ran.err) == (0, "cancelled 3 tasks\n", "")
    assert [_state(run, side, one) for one in (*ids, other)] == ["cancelled"] * 3 + ["queued"]
    answer = run("cancel", "--agent", agent, "--json", *side).json
    assert answer == {"matched": 1, "changed": 1, "dryRun": False, "taskIds": [other]}
    assert run("cancel", "--agent", agent, *side).out == "cancelled 0 tasks\n"


def test_a_filter_tries_all_again_that_fit(run: Run, side: list[str], agent: str) -> None:
    ids = [_queued(run, side, agent) for _ in range(2)]
    run("cancel", *ids, *side)
    assert run("retry", "--agent", agent, "--state", "failed", *side).out == (
        "queued 0 tasks again\n"
    )
    which = ("--agent", agent, "--state", "failed,cancelled")
    assert run("retry", *which, *side).out == "queued 2 tasks again\n"
    assert [_state(run, side, one) for one in ids] == ["queued"] * 2
    assert run("reset", "--agent", agent, "--dry-run", *side).out == "would queue 0 tasks again\n"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("cancel", "no tasks given: add IDs, or a filter such as --state"),
        ("retry --yes", "no tasks given: add IDs, or a filter such as --state"),
        ("cancel tsk_1 --lane x", "give either IDs or a filter, not both"),
        ("reset tsk_1 --dry-run", "give either IDs or a filter, not both"),
        ("retry --state runing", "'runing' is not a state; did you mean running?"),
    ],
)
def test_it_has_to_be_said_which_tasks_are_meant(
    run: Run, server: Server, line: str, complaint: str
) -> None:
    ran = run(*line.split(), "--url", server.url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {complaint}")


@pytest.mark.parametrize("option", ["agent", "state", "lane", "session", "batch", "kind"])
def test_a_filter_that_is_empty_does_not_fit_everything(
    run: Run, server: Server, agent: str, option: str
) -> None:
    side = ["--url", server.url]
    task_id = _queued(run, side, agent)
    others = ["--state", "queued"] if option == "agent" else ["--agent", agent]
    ran = run("cancel", *others, f"--{option}", "", *side)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: --{option} is empty; give it a value or remove it\n"
    assert _state(run, side, task_id) == "queued"


@pytest.mark.slow
@pytest.mark.parametrize("case", [("y\n", "cancelled", "cancelled 2"), ("\n", "queued", "nothing")])
def test_on_a_terminal_a_filter_asks_with_the_number(
    run: Run, server: Server, agent: str, tmp_path: Path, case: tuple[str, str, str]
) -> None:
    answer, state, told = case
    side = ["--url", server.url]
    ids = [_queued(run, side, agent) for _ in range(2)]
    typed: list[bool] = []

    def reply(terminal: Terminal) -> None:
        if "[y/N]" in terminal.text and not typed:
            typed.append(True)
            terminal.type(answer)

    seen = run_on_terminal("cancel", "--agent", agent, *side, folder=tmp_path, on_text=reply)
    assert seen.code == 0
    assert "cancel 2 tasks? [y/N]" in seen.text
    assert told in seen.text
    assert [_state(run, side, one) for one in ids] == [state] * 2


@pytest.mark.slow
def test_on_a_terminal_yes_is_not_asked_for(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    _queued(run, ["--url", server.url], agent)
    flags = ("--agent", agent, "--yes", "--url", server.url)
    seen = run_on_terminal("cancel", *flags, folder=tmp_path)
    assert (seen.code, seen.text) == (0, "cancelled 1 task\r\n")


def test_prune_tells_how_many_it_forgets(run: Run, side: list[str]) -> None:
    assert run("prune", "--dry-run", *side).out == "would delete 0 tasks\n"
    assert run("prune", "--json", *side).json == {"tasks": 0, "dryRun": False}


# -------------------------------------------------------------------- batches


def test_a_file_of_tasks_becomes_a_batch(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    items = [
        {"key": "a", "handler": "nobody"},
        {"handler": "nobody", "dependsOn": ["#a"]},
    ]
    name = _file(tmp_path, items)
    ran = run("batch", "submit", name, "--agent", agent, "--parallelism", "2", "--json", *side)
    assert (ran.code, ran.json["accepted"]) == (0, 2)
    batch_id = ran.json["batchId"]
    batch = run("batch", "show", batch_id, "--json", *side).json
    assert (batch["state"], batch["parallelism"]) == ("running", 2)
    assert batch["byState"] == {"queued": 1, "waiting_dependency": 1}
    out = run("batch", "show", batch_id, *side).out
    assert re.search(r"^tasks +2: 1 queued, 1 waiting_dependency$", out, re.MULTILINE)
    listed = run("batch", "list", "--agent", agent, *side).out.splitlines()
    assert listed[0].split() == ["BATCH", "STATE", "AGENT", "TASKS", "OPEN", "CREATED"]
    assert listed[1].split()[:5] == [batch_id, "running", agent, "2", "2"]
    assert run("batch", "cancel", batch_id, *side).out == f"cancelled {batch_id} (2 tasks)\n"
    again = run("batch", "cancel", batch_id, "bat_none", *side)
    assert (again.code, again.out) == (4, "")
    assert len(again.err.splitlines()) == 2


def test_options_win_over_what_the_batch_says(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    side = ["--url", server.url]
    document = {"agentId": "other", "parallelism": 9, "tasks": [{"handler": "nobody"}]}
    name = _file(tmp_path, document)
    flags = ("--agent", agent, "--parallelism", "1", "--callback-url", "http://127.0.0.1:9/")
    batch_id = run("batch", "submit", name, *flags, "--json", *side).json["batchId"]
    batch = run("batch", "show", batch_id, "--json", *side).json
    assert (batch["agentId"], batch["parallelism"]) == (agent, 1)
    assert batch["callbackUrl"] == "http://127.0.0.1:9/"


@pytest.mark.slow
def test_a_batch_can_be_waited_for(run: Run, side: list[str], agent: str, tmp_path: Path) -> None:
    name = _file(tmp_path, [{"handler": "echo"}, {"handler": "echo"}])
    ran = run("batch", "submit", name, "--agent", agent, "--wait", "15", *side)
    assert ran.code == 0, ran
    assert [line.split()[1] for line in ran.out.splitlines()[1:3]] == ["done", "done"]
    assert re.search(r"^batch bat_\w+: completed; 2 done$", ran.out, re.MULTILINE)
    assert ran.err.endswith("2 of 2 finished\n")
    quiet = run("batch", "submit", name, "--agent", agent, "--wait", "15", "--json", *side)
    assert (quiet.json["state"], quiet.json["byState"], quiet.err) == ("completed", {"done": 2}, "")


@pytest.mark.slow
def test_the_exit_code_reports_the_outcome_of_a_batch(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    flags = ("--agent", agent, "--wait", "15", "--url", server.url)
    good, bad, worse = {"handler": "echo"}, {"handler": "sleep"}, {"handler": "bad name"}
    for items, code in (([good, bad], 1), ([good, worse], 4), ([worse], 4), ([good], 0)):
        assert run("batch", "submit", _file(tmp_path, items), *flags).code == code


@pytest.mark.slow
def test_a_parked_task_ends_the_wait_for_its_batch(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    parks = {"handler": "sleep", "params": {"ms": 60_000}, "timeoutMs": 20}
    name = _file(tmp_path, [{**parks, "retryPolicy": {"maxRetries": 0}}])
    flags = ("--agent", agent, "--wait", "15", "--json", "--url", server.url)
    ran = run("batch", "submit", name, *flags)
    assert (ran.code, ran.json["state"], ran.json["byState"]) == (1, "running", {"parked": 1})


def test_the_wait_for_a_batch_is_over_when_its_time_is_up(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    name = _file(tmp_path, [{"handler": "nobody"}])
    ran = run("batch", "submit", name, "--agent", agent, "--wait", "0", "--json", *side)
    assert (ran.code, ran.json["state"]) == (124, "running")
    # Another test may have known a worker for a handler of a similar name.
    warned = r"warning: no known worker offers handler 'nobody'(; did you mean [\w-]+\?)?\n"
    timed_out = "error: timed out: 1 task not finished yet, first tsk_"
    assert re.match(f"{warned}{timed_out}", ran.err)


@pytest.mark.slow
def test_a_batch_shows_a_bar_on_a_terminal(server: Server, agent: str, tmp_path: Path) -> None:
    slow = {"handler": "sleep", "params": {"ms": 700}}
    name = _file(tmp_path, [{"handler": "echo"}, slow])
    flags = ("--agent", agent, "--wait", "15", "--url", server.url)
    seen = run_on_terminal("batch", "submit", name, *flags, folder=tmp_path)
    assert seen.code == 0
    assert re.search("1 running, 1 done|1 done, 1 running", seen.text)
    assert re.search(r"━.*1/2", seen.text)


@pytest.mark.slow
def test_a_batch_may_come_through_a_pipe(server: Server, agent: str, tmp_path: Path) -> None:
    body = json.dumps([{"handler": "echo"}]).encode()
    flags = ("--agent", agent, "--json", "--url", server.url)
    ran = run_process("batch", "submit", "-", *flags, folder=tmp_path, stdin=body)
    assert ran.returncode == 0, ran
    assert json.loads(ran.stdout)["accepted"] == 1


@pytest.mark.parametrize("content", [3, {"handler": "echo"}])
def test_a_file_without_a_batch_is_reported(run: Run, tmp_path: Path, content: Any) -> None:
    name = _file(tmp_path, content)
    ran = run("batch", "submit", name)
    assert ran.code == 2
    assert ran.err == f"error: {name} must contain a list of tasks, or a batch with 'tasks'\n"


def test_a_long_list_of_batches_goes_on(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    side = ["--url", server.url]
    name = _file(tmp_path, [{"handler": "nobody"}])
    flags = ("--agent", agent, "--json", *side)
    ids = [run("batch", "submit", name, *flags).json["batchId"] for _ in range(3)][::-1]
    first = run("batch", "list", "--agent", agent, "--limit", "2", *side)
    assert "more items follow; add --cursor" in first.err
    ran = run("batch", "list", "--agent", agent, "--limit", "2", "--all", *side)
    assert [line.split()[0] for line in ran.out.splitlines()] == ["BATCH", *ids]
    assert run("batch", "list", "--agent", "nobody-at-all", *side).out == "no batches\n"


def test_a_batch_that_is_not_there_ends_with_3(run: Run, side: list[str]) -> None:
    assert run("batch", "show", "bat_none", *side).code == 3
