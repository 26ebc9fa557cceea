from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.output.task import progress_text
from fairlane.cli.output.terminal import short_ids
from tests.cli.processes import (
    FAIRLANE,
    Terminal,
    environment,
    run_on_terminal,
    run_process,
)
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

pytestmark = pytest.mark.slow  # each starts a process

RED = "\x1b[31m"


@pytest.fixture
def failed(run: Run, server: Server, agent: str) -> str:
    """The agent of a task that has failed."""
    flags = ("--handler", "sleep", "--agent", agent, "--wait", "15")
    assert run("submit", *flags, "--url", server.url).code == 1
    return agent


def _list(agent: str, server: Server) -> list[str]:
    return ["tasks", "--agent", agent, "--url", server.url]


def test_states_are_coloured_on_a_terminal(failed: str, server: Server, tmp_path: Path) -> None:
    seen = run_on_terminal(*_list(failed, server), folder=tmp_path)
    assert seen.code == 0
    assert f"{RED}failed" in seen.text


def test_no_color_is_respected(failed: str, server: Server, tmp_path: Path) -> None:
    seen = run_on_terminal(*_list(failed, server), folder=tmp_path, variables={"NO_COLOR": "1"})
    assert "failed" in seen.text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", seen.text)


def test_a_dumb_terminal_gets_plain_text(failed: str, server: Server, tmp_path: Path) -> None:
    seen = run_on_terminal(*_list(failed, server), folder=tmp_path, variables={"TERM": "dumb"})
    assert "failed" in seen.text
    assert "\x1b" not in seen.text


def test_a_pipe_gets_plain_text(failed: str, server: Server, tmp_path: Path) -> None:
    ran = run_process(*_list(failed, server), folder=tmp_path)
    assert ran.returncode == 0
    assert b"failed" in ran.stdout
    assert b"\x1b" not in ran.stdout + ran.stderr
    assert not re.search(rb" $", ran.stdout, re.MULTILINE)


def test_a_narrow_terminal_shows_the_error_and_a_short_id(
    run: Run, failed: str, server: Server, tmp_path: Path
) -> None:
    seen = run_on_terminal(*_list(failed, server), folder=tmp_path, columns=80)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.text).splitlines()
    assert lines[0].split() == ["TASK", "STATE", "WHAT", "NOTE"]
    found = re.match(r"(tsk_[0-9a-f]{16}) +failed +handler sleep +sleep: params.ms", lines[1])
    assert found, lines
    assert max(len(line) for line in lines) <= 80
    task = run("show", found[1], "--json", "--url", server.url).json
    assert task["agentId"] == failed


def test_short_ids_are_as_long_as_needed() -> None:
    assert short_ids(["tsk_aab", "tsk_aac", "tsk_b"], 4) == ["tsk_aab", "tsk_aac", "tsk_b"]
    assert short_ids(["tsk_a1", "tsk_b1", "tsk_b1"], 5) == ["tsk_a", "tsk_b", "tsk_b"]
    assert short_ids([], 5) == []


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"done": 0.5}, "██████████░░░░░░░░░░ 50%"),
        ({"done": 3, "total": 4}, "███████████████░░░░░ 75% (3 of 4)"),
        ({"percent": 100}, "████████████████████ 100%"),
        (0.25, "█████░░░░░░░░░░░░░░░ 25%"),
        ({"step": "fetch"}, '{"step":"fetch"}'),
        ({"done": True}, '{"done":true}'),
    ],
)
def test_progress_with_a_share_is_a_bar(progress: object, text: str) -> None:
    assert progress_text(progress) == text


def test_waiting_shows_how_far_it_is(server: Server, agent: str, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(
        '[{"handler": "echo"}, {"handler": "sleep", "params": {"ms": 600}}]'
    )
    flags = ("--file", "two.json", "--agent", agent, "--wait", "15", "--url", server.url)
    seen = run_on_terminal("submit", *flags, folder=tmp_path)
    assert seen.code == 0
    assert re.search(r"1 of 2 finished; waiting for tsk_\w+", seen.text)


@pytest.mark.parametrize("place", ["url", "store"])
def test_ctrl_c_ends_a_wait_quietly(
    run: Run, server: Server, agent: str, tmp_path: Path, place: str
) -> None:
    flags = ("--handler", "nobody", "--agent", agent, "--json", "--url", server.url)
    task_id = run("submit", *flags).json["taskId"]
    pressed: list[bool] = []

    def press(terminal: Terminal) -> None:
        reason = r"queued, \d+ s · (position \d+ · )?no known worker offers handler"
        if re.search(reason, terminal.text) and not pressed:
            pressed.append(True)
            terminal.interrupt()

    side = (f"--{place}", getattr(server, place))
    seen = run_on_terminal("wait", task_id, *side, folder=tmp_path, on_text=press)
    assert seen.code == 130
    assert "Traceback" not in seen.text
    assert "error" not in seen.text


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_it_quietly(
    failed: str, server: Server, tmp_path: Path, form: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [*FAIRLANE, *_list(failed, server), *form],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(),
    )
    os.close(writing)
    _, complaint = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, complaint) == (141, b"")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_is_reported_in_one_line(
    failed: str, server: Server, tmp_path: Path, form: list[str]
) -> None:
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [*FAIRLANE, *_list(failed, server), *form],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment(),
            timeout=WAIT_SECONDS,
            check=False,
        )
    assert process.returncode == 6
    assert process.stderr == b"error: the output: No space left on device\n"


def test_letters_that_the_terminal_lacks_are_no_reason_to_fail(
    run: Run, server: Server, agent: str, tmp_path: Path
) -> None:
    flags = ("--handler", "nobody", "--agent", agent, "--param", "text=grün", "--json")
    task_id = run("submit", *flags, "--url", server.url).json["taskId"]
    show = ("show", task_id, "--url", server.url)
    plain = run_process(*show, folder=tmp_path, PYTHONIOENCODING="ascii")
    assert (plain.returncode, plain.stderr) == (0, b"")
    assert b'"text": "gr?n"' in plain.stdout
    as_json = run_process(*show, "--json", folder=tmp_path, PYTHONIOENCODING="ascii")
    assert as_json.stdout.decode() == server.get(f"/tasks/{task_id}") + "\n"


def test_the_installed_command_is_the_same_program(tmp_path: Path) -> None:
    script = Path(FAIRLANE[0]).with_name("fairlane")
    ran = subprocess.run([script, "--version"], capture_output=True, check=True, cwd=tmp_path)
    assert ran.stdout == run_process("--version", folder=tmp_path).stdout
