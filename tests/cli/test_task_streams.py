"""`fairlane submit --file FILE --stream`, on a server and on a store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.cli.processes import run_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


def _file(folder: Path, agent: str, *more: str) -> str:
    good = [json.dumps({"handler": "nobody", "agentId": agent, "params": {"n": n}}) for n in (1, 2)]
    file = folder / "tasks.ndjson"
    file.write_text("\n".join([good[0], *more, good[1], ""]))
    return str(file)


def _count(run: Run, side: list[str], agent: str) -> int:
    return len(run("tasks", "--agent", agent, "--json", *side).json["tasks"])


def test_each_line_is_submitted_and_the_same_command_changes_nothing(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    file = _file(tmp_path, agent)
    ran = run("submit", "--file", file, "--stream", *side)
    assert (ran.code, ran.out) == (0, "submitted 2 tasks, 0 were rejected\n")
    again = run("submit", "--file", file, "--stream", "--json", *side)
    assert again.code == 0
    assert (again.json["accepted"], again.json["rejected"]) == (2, 0)
    assert again.json["idempotencyKey"].startswith("file-")
    assert _count(run, side, agent) == 2


def test_bad_lines_are_named_and_the_others_are_submitted(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    file = _file(tmp_path, agent, "{oh", "", '{"handler": "no name"}')
    ran = run("submit", "--file", file, "--stream", *side)
    assert ran.code == 4
    assert ran.out.startswith("submitted 2 tasks, 2 were rejected\nline 2: the body is not valid")
    assert "line 4: " in ran.out
    assert _count(run, side, agent) == 2


def test_standard_input_is_a_stream_too(server: Server, agent: str, tmp_path: Path) -> None:
    task = json.dumps({"handler": "nobody", "agentId": agent})
    words = ("submit", "--file", "-", "--stream", "--json", "--url", server.url)
    done = run_process(*words, folder=tmp_path, stdin=f"{task}\n{task}\n".encode())
    assert json.loads(done.stdout)["accepted"] == 2


def test_options_that_belong_into_the_file_are_refused(
    run: Run, side: list[str], agent: str, tmp_path: Path
) -> None:
    file = _file(tmp_path, agent)
    for words, problem in (
        (("--file", file, "--stream", "--agent", agent), "--agent cannot be combined"),
        (("--file", file, "--stream", "--wait", "1"), "--wait cannot be combined"),
        (("--handler", "x", "--stream"), "--stream needs --file"),
        (("--file", f"{file}x", "--stream"), "cannot read"),
    ):
        ran = run("submit", *words, *side)
        assert ran.code != 0
        assert problem in ran.err


def test_a_server_that_is_away_is_an_error_that_says_how_to_continue(
    run: Run, agent: str, tmp_path: Path
) -> None:
    file = _file(tmp_path, agent)
    ran = run("submit", "--file", file, "--stream", "--url", "http://127.0.0.1:9")
    assert ran.code != 0
    assert "0 lines were answered; run the same command again to continue" in ran.err
