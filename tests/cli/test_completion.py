"""`fairlane completion`: tried in a real bash, and against the parser for the other shells."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from fairlane.cli.commands import build
from tests.cli.conftest import Ran

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Server

    Run = Callable[..., Ran]


def _completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    bash = shutil.which("bash")
    assert bash, "bash is not installed"
    spelled = " ".join(f"'{word}'" for word in ("fairlane", *words))
    ask = f"COMP_WORDS=({spelled}); COMP_CWORD={len(words)}; _fairlane"
    text = f'{script}\n{ask}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        [bash, "-c", text], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def bash(run: Run) -> str:
    ran = run("completion", "bash")
    assert ran.code == 0
    return ran.out


def test_commands_are_completed(bash: str) -> None:
    assert _completed(bash, "su") == ["submit"]
    assert set(_completed(bash, "st")) == {"stats", "stop", "stopall"}


def test_the_verbs_of_a_noun_are_completed(bash: str) -> None:
    assert {"add", "list", "runs", "preview"} <= set(_completed(bash, "cron", ""))
    assert _completed(bash, "sched", "pl") == ["plan"]


def test_the_options_of_a_command_are_completed(bash: str) -> None:
    assert "--every" in _completed(bash, "cron", "add", "--e")
    assert _completed(bash, "submit", "--handler", "echo", "--idem") == ["--idempotency-key"]


def test_what_is_typed_is_not_taken_for_a_command(bash: str) -> None:
    assert _completed(bash, "show", "tsk_1", "--js") == ["--json"]


def test_the_value_of_an_option_is_completed(bash: str) -> None:
    assert _completed(bash, "tasks", "--state", "par") == ["parked"]
    assert set(_completed(bash, "tasks", "--sort", "")) == {"newest", "oldest"}
    assert "task.failed" in _completed(bash, "events", "--type", "task.f")
    assert _completed(bash, "tasks", "--cursor", "--") == []


def test_names_of_the_server_are_completed(
    bash: str, run: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRLANE_URL", server.url)
    assert "main" in run("completion", "--values", "lanes").out.split()
    run("cron", "create", "--every", "1d", "--name", "nightly", "--handler", "echo", "--disabled")
    assert "nightly" in run("completion", "--values", "jobs").out.split()
    assert run("completion", "--values", "handlers").code == 0
    monkeypatch.setenv("FAIRLANE_URL", "http://127.0.0.1:1")
    assert run("completion", "--values", "lanes") == Ran(0, "", "")
    fake = "fairlane() { echo nightly; }\n"
    assert _completed(fake + bash, "cron", "run", "n") == ["nightly"]
    assert _completed(fake + bash, "tasks", "--lane", "") == ["nightly"]


def test_a_shell_is_completed_too(bash: str) -> None:
    assert _completed(bash, "completion", "f") == ["fish"]


def test_fish_knows_every_command_and_option(run: Run) -> None:
    script = run("completion", "fish").out
    for path, leaf in build()[1].items():
        assert re.search(rf"-a '[^']*\b{path.split()[-1]}\b", script), path
        for option in leaf.option_names():
            if option.startswith("--"):
                assert f" -l {option.removeprefix('--')}\n" in script, (path, option)


def test_zsh_uses_what_bash_uses(run: Run, bash: str) -> None:
    script = run("completion", "zsh").out
    assert script.endswith(bash)
    assert "bashcompinit" in script


def test_an_unknown_shell_is_refused(run: Run) -> None:
    ran = run("completion", "tcsh")
    assert (ran.code, ran.out) == (2, "")
    assert "invalid choice: 'tcsh'" in ran.err
