from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from fairlane.cli import exit_code
from fairlane.cli.commands import MEANINGS, Exit
from fairlane.core import errors
from tests.cli.processes import run_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens, and nothing else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


# -------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("tsks", "unknown command 'tsks'; did you mean tasks?"),
        ("webhooks secrt", "unknown command 'webhooks secrt'; did you mean secret?"),
        ("run", "unknown command 'run'; did you mean submit?"),
        ("nodes", "unknown command 'nodes'; did you mean workers?"),
        ("agents", "unknown command 'agents'; did you mean handlers?"),
        ("prun", "unknown command 'prun'; see fairlane --help"),
        ("cancle x", "unknown command 'cancle'; see fairlane --help"),
        ("lanes cler", "unknown command 'lanes cler'; see fairlane lanes --help"),
        ("token revok x", "unknown command 'token revok'; see fairlane token --help"),
        ("lanes x", "unknown command 'lanes x'; see fairlane lanes --help"),
        ("tasks --agnt x", "unknown option --agnt; did you mean --agent?"),
        ("show --jsn", "unknown option --jsn; did you mean --json?"),
        ("tasks --age=x", "unknown option --age; did you mean --agent?"),
        ("tasks -x", "unknown option -x; see fairlane tasks --help"),
        ("--url tasks", "unknown option --url before the command; put options after the command"),
        ("show", "the following arguments are required: ID; see fairlane show --help"),
        ("show a b", "unrecognized arguments: b"),
        ("tasks --agent", "--agent: expected one argument"),
        ("tasks --limit 0", "--limit: must be a whole number from 1 to 1000, not '0'"),
        ("tasks --limit x", "--limit: must be a whole number from 1 to 1000, not 'x'"),
        (
            "wait a --timeout soon",
            "--timeout: must be a duration like 30s or 5m, or a number of seconds, not 'soon'",
        ),
        ("tasks --all --cursor 3", "--cursor: not allowed with argument --all"),
        ("tasks --url x --store y", "--store: not allowed with argument --url"),
        ("submit", "one of the arguments --handler --action --instruction --file is required"),
        ("submit --handler a --action b", "--action: not allowed with argument --handler"),
        ("submit --handler a --param b", "--param: must be NAME=VALUE, not 'b'"),
        ("submit --handler a --params [1]", "--params: must be a JSON object, not '[1]'"),
        ("submit --handler a --params {", "--params: must be a JSON object, not '{'"),
        ("submit --file none.json", "cannot read none.json: No such file or directory"),
        ("submit --file - --lane x", "--lane cannot be combined with --file; set it in the file"),
        ("tasks --url 127.0.0.1:9867", "url must look like http://127.0.0.1:9867, not"),
        ("tasks --url ftp://x", "url must look like"),
        ("tasks --url http://x/?q", "url must look like"),
        ("serve --port x", "port must be a"),
        ("serve --log-level loud", "log_level must be one of debug, info, warning, error"),
        ("webhooks add", "the following arguments are required: URL"),
    ],
)
def test_a_wrong_command_line_is_reported_in_one_line(run: Run, line: str, complaint: str) -> None:
    ran = run(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {complaint}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("tsks --json", "unknown command 'tsks'; did you mean tasks?"),
        ("--json tasks", "unknown option --json before the command; put options after the command"),
        ("tasks --limit x --json", "--limit: must be a whole number from 1 to 1000, not 'x'"),
        ("show --json", "the following arguments are required: ID; see fairlane show --help"),
    ],
)
def test_with_json_a_wrong_command_line_is_reported_as_json_too(
    run: Run, line: str, complaint: str
) -> None:
    ran = run(*line.split())
    assert (ran.code, ran.json["code"]) == (2, "invalid_request")
    assert ran.json["error"].startswith(complaint)
    assert ran.err == f"error: {ran.json['error']}\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["tasks", "--state", "runing"], "'runing' is not a state; did you mean running?"),
        (["tasks", "--limit", "1001"], "--limit: must be a whole number from 1"),
        (["tasks", "--cursor", "x"], "query parameter 'cursor' has invalid characters"),
        (["submit", "--handler", "bad name"], "field 'handler' has invalid characters"),
        (["submit", "--handler", "a", "--priority", "urgent"], "field 'priority' must be"),
        (["submit", "--handler", "a", "--deadline", "soon"], "invalid task: invalid deadline"),
        (["submit", "--action", "click"], "invalid task: missing required field 'agentId'"),
        (["submit", "--handler", "a", "--tab", "t"], "invalid task: 'tabId' is for 'action'"),
        (
            ["submit", "--handler", "a", "--callback-url", "http://10.1.2.3/"],
            "invalid task: invalid callbackUrl: target address is not allowed",
        ),
        (
            ["submit", "--handler", "a", "--idempotency-key", "a b"],
            "the header Idempotency-Key has invalid characters",
        ),
        (
            ["submit", "--handler", "a", "--idempotency-key", "ä"],
            "the header Idempotency-Key has invalid characters or is too long; it must match",
        ),
    ],
)
def test_a_refused_value_is_named_the_same_on_both_sides(
    run: Run, side: list[str], arguments: list[str], complaint: str
) -> None:
    ran = run(*arguments, *side)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {complaint}")
    assert ran.err.count("\n") == 1


def test_a_file_that_is_not_json_is_reported(run: Run, server: Server, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text("[{]")
    ran = run("submit", "--file", "tasks.json", "--url", server.url)
    assert ran.code == 2
    assert ran.err.startswith("error: tasks.json is not valid JSON: ")


def test_an_input_that_is_not_json_is_reported(server: Server, tmp_path: Path) -> None:
    ran = run_process("batch", "submit", "-", "--url", server.url, folder=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"error: standard input is not valid JSON: ")


def test_a_file_without_tasks_is_reported(run: Run, server: Server, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text("3")
    ran = run("submit", "--file", "tasks.json", "--url", server.url)
    assert ran.code == 2
    assert ran.err == "error: tasks.json must contain a task, a list of tasks, or a batch\n"


def test_an_argument_that_is_not_text_is_reported(run: Run) -> None:
    ran = run("show", "tsk_\udcff")
    assert ran.code == 2
    assert ran.err.startswith("error: 'tsk_\\udcff' is not valid UTF-8")


# -------------------------------------------------------------------- answers


@pytest.mark.parametrize("command", ["show", "cancel", "wait"])
def test_a_task_that_is_not_there_ends_with_3(run: Run, side: list[str], command: str) -> None:
    ran = run(command, "tsk_none", *side)
    assert (ran.code, ran.out) == (3, "")
    assert "not found" in ran.err


def test_of_several_tasks_the_one_that_is_not_there_is_named(run: Run, side: list[str]) -> None:
    task_id = run("submit", "--handler", "nobody", "--json", *side).json["taskId"]
    ran = run("wait", task_id, "tsk_none", *side)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == 'error: task "tsk_none" not found\n'


@pytest.mark.parametrize("task_id", ["../x", "a/b", "ü", "%2e", "?x=1", ""])
def test_a_strange_id_is_just_a_task_that_is_not_there(
    run: Run, side: list[str], task_id: str
) -> None:
    ran = run("show", *side, "--", task_id)
    assert ran.code == 3
    assert ran.err.count("\n") == 1


def test_an_error_as_json_is_what_the_route_answers(run: Run, side: list[str]) -> None:
    ran = run("show", "tsk_none", "--json", *side)
    assert (ran.code, ran.json["code"]) == (3, "not_found")
    assert ran.err == f"error: {ran.json['error']}\n"


def test_escapes_in_a_complaint_do_not_reach_the_terminal(run: Run, side: list[str]) -> None:
    ran = run("cancel", "tsk_\x1b[2J\x07\u202e", *side)
    assert ran.code == 3
    assert ran.err.startswith('error: task "tsk_')
    assert not {"\x1b", "\x07", "\u202e"}.intersection(ran.err)


def test_escapes_in_tasks_do_not_reach_the_terminal(run: Run, server: Server, agent: str) -> None:
    params = json.dumps({"a": "\x1b]0;title\x07", "b": "\x9b31m", "c": "\u202eevil", "d": "\x7f"})
    flags = ("--handler", "nobody", "--agent", agent, "--params", params, "--json")
    task_id = run("submit", *flags, "--url", server.url).json["taskId"]
    out = run("show", task_id, "--url", server.url).out
    assert '"a": "\\u001b]0;title\\u0007"' in out  # spelled out by JSON, not sent
    assert all(character.isprintable() or character == "\n" for character in out)


# -------------------------------------------------------------------- nobody there


@pytest.mark.parametrize("command", [["tasks"], ["submit", "--handler", "x"], ["show", "x"]])
def test_a_server_that_is_not_there_ends_with_5(run: Run, nobody: str, command: list[str]) -> None:
    ran = run(*command, "--url", nobody)
    assert (ran.code, ran.out) == (5, "")
    assert ran.err == (
        f"error: cannot reach {nobody}: no server is listening there; "
        "start one with fairlane serve\n"
    )


def test_the_address_may_come_from_the_environment(
    run: Run, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLANE_URL", nobody)
    assert f"cannot reach {nobody}:" in run("tasks").err


def test_a_password_in_an_address_is_not_shown(run: Run, nobody: str) -> None:
    ran = run("tasks", "--url", nobody.replace("http://", "http://ada:secret@"))
    assert ran.code == 5
    assert "secret" not in ran.err


@pytest.mark.slow
def test_a_port_that_is_taken_ends_with_6(server: Server, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    ran = run_process("serve", "--port", port, "--store", "sqlite:///own.db", folder=tmp_path)
    assert ran.returncode == 6
    assert b"choose another port with --port" in ran.stderr
    assert ran.stderr.count(b"\n") == 1


@pytest.mark.slow
def test_an_address_of_another_machine_ends_with_6(tmp_path: Path) -> None:
    flags = ("--host", "192.0.2.1", "--port", "0", "--store", "sqlite:///own.db")
    ran = run_process("serve", *flags, folder=tmp_path)
    assert ran.returncode == 6
    assert b"cannot listen on 192.0.2.1:0: " in ran.stderr
    assert b"; use an address of this machine with --host\n" in ran.stderr
    assert ran.stderr.count(b"\n") == 1


def test_a_store_that_cannot_even_be_looked_for_ends_with_6(run: Run) -> None:
    ran = run("tasks", "--store", f"sqlite:///{'x' * 300}.db")
    assert (ran.code, ran.out) == (6, "")
    assert ran.err.startswith("error: cannot use xxx")
    assert ran.err.endswith("File name too long; use another file with --store sqlite:///PATH\n")


@pytest.mark.slow
def test_a_store_that_is_served_already_ends_with_6(server: Server, tmp_path: Path) -> None:
    ran = run_process("serve", "--port", "0", "--store", server.store, folder=tmp_path)
    assert ran.returncode == 6
    assert b"is in use by another fairlane" in ran.stderr
    assert ran.stderr.count(b"\n") == 1


# -------------------------------------------------------------------- the table


def _leaves(parent: type[errors.FairlaneError]) -> list[type[errors.FairlaneError]]:
    """Of the tree itself: other modules may have grown branches of their own."""
    children = [one for one in parent.__subclasses__() if one.__module__ == errors.__name__]
    return [leaf for child in children for leaf in _leaves(child)] if children else [parent]


def _made(kind: type[errors.FairlaneError]) -> errors.FairlaneError:
    if issubclass(kind, errors.InvalidPolicy | errors.InvalidSettings):
        return kind(["wrong"])
    if issubclass(kind, errors.TaskFailed):
        return kind("tsk_1", "failed", "wrong")
    return kind("wrong")


@pytest.mark.parametrize("kind", _leaves(errors.FairlaneError))
def test_every_error_has_an_exit_code_with_a_meaning(kind: type[errors.FairlaneError]) -> None:
    code = exit_code(_made(kind))
    assert code in MEANINGS
    assert code != Exit.OK
    assert (code == Exit.NOT_WELL) == issubclass(kind, errors.TaskFailed)


def test_errors_are_grouped_by_the_party_that_has_to_act() -> None:
    codes = {
        kind.code: exit_code(_made(kind))
        for kind in (
            errors.InvalidRequest,
            errors.NotFound,
            errors.QueueFull,
            errors.Unreachable,
            errors.StoreInUse,
            errors.InvalidSettings,
        )
    }
    assert codes == {
        "invalid_request": 2,
        "not_found": 3,
        "queue_full": 4,
        "unreachable": 5,
        "store_in_use": 6,
        "invalid_settings": 2,
    }
