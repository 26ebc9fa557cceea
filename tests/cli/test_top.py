"""`fairlane top`: its screen, its updates, and how it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from fairlane.cli.commands.system import draw
from tests.cli.processes import Terminal, run_on_terminal, running_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


def seen(**changes: Any) -> dict[str, Any]:
    lane = {"name": "main", "ceiling": 4, "active": 0, "waiting": 0, "oldestWaitMs": 0}
    lane |= {"parked": 0, "completed": 0, "failed": 0, "paused": False}
    done = dict.fromkeys(("tasksCompleted", "tasksFailed", "tasksParked"), 0)
    found: dict[str, Any] = {
        "lanes": {"lanes": [lane | changes.get("lane", {})]},
        "stats": {"queue": {"totalInflight": 0, "totalQueued": 0}, "metrics": done},
        "history": {"stepMs": 5000, "points": [], "agents": []} | changes.get("history", {}),
        "nodes": {"nodes": []},
        "attention": {"items": [], "count": 0} | changes.get("attention", {}),
    }
    return found


POINT = {"at": "x", "spanMs": 5000, "submitted": 5, "finished": 10, "failed": 0, "waitP95Ms": None}


def drawn(shape: dict[str, Any], width: int = 120, note: str = "") -> str:
    console = Console(width=width, color_system=None, markup=False)
    with console.capture() as captured:
        console.print(draw(shape, note, width=width))
    return captured.get()


def test_nothing_yet_teaches_how_to_begin() -> None:
    text = drawn(seen())
    assert "no tasks have been submitted yet; try: fairlane submit" in text
    assert "LANE" not in text


def test_a_lane_is_a_bar() -> None:
    lane = {"active": 2, "waiting": 17, "oldestWaitMs": 1500, "failed": 3, "paused": True}
    text = drawn(seen(lane=lane))
    assert "████████████░░░░░░░░░░░░" in text
    for part in ("2/4", "17", "1.5 s", "paused"):
        assert part in text


def test_what_needs_attention_is_told_in_a_few_lines() -> None:
    items = [{"text": f"lane {n} is paused"} for n in range(5)]
    attention = {"items": items, "count": 5, "summary": "5 things need attention"}
    text = drawn(seen(attention=attention))
    assert "5 things need attention; see fairlane attention" in text
    assert "lane 2 is paused" in text
    assert "lane 3 is paused" not in text


def test_curves_and_shares_are_drawn() -> None:
    points = [{**POINT, "finished": n, "waitP95Ms": n * 100} for n in range(1, 9)]
    agents = [
        {"agentId": "greedy", "share": 0.75, "fairShare": 0.5},
        {"agentId": None, "share": 0.25, "fairShare": 0.5},
    ]
    text = drawn(seen(lane={"active": 1}, history={"points": points, "agents": agents}))
    (finished,) = (line for line in text.splitlines() if line.startswith("finished/s"))
    assert "▂▃▄▅▅▆▇█" in finished
    for part in ("finished/s", "1.4", "1.6", "wait p95", "700 ms", "greedy", "75%", "all others"):
        assert part in text, part


def test_a_name_is_never_read_as_anything_else() -> None:
    agents = [{"agentId": "[red]\x1b[2J", "share": 1.0, "fairShare": 1.0}]
    text = drawn(seen(history={"agents": agents}))
    assert "[red]" in text
    assert "\x1b" not in text


def test_a_narrow_screen_cuts_and_does_not_break() -> None:
    text = drawn(seen(lane={"active": 2, "waiting": 17}), width=40)
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "2/4" in text
    assert "17" in text


@pytest.mark.parametrize("width", [40, 80])
def test_five_minutes_fit_on_the_screen_with_their_numbers(width: int) -> None:
    points = [{**POINT, "finished": n * 5} for n in range(61)]
    text = drawn(seen(lane={"active": 1}, history={"points": points}), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    (finished,) = (line for line in text.splitlines() if line.startswith("finished/s"))
    assert finished.split()[2:] == ["59.0", "60.0"]
    curve = finished.split()[1]
    assert curve[0] < curve[-1] == "█"
    assert list(curve) == sorted(curve)


def test_a_step_that_has_only_begun_is_no_fall() -> None:
    points = [POINT, POINT, {**POINT, "spanMs": 1000, "finished": 2}]
    text = drawn(seen(lane={"active": 1}, history={"points": points}))
    (finished,) = (line for line in text.splitlines() if line.startswith("finished/s"))
    assert finished.split()[1:] == ["███", "2.0", "2.0"]


def test_what_went_wrong_is_reported_above_what_was_seen_last() -> None:
    text = drawn(seen(lane={"active": 2}), note="not up to date: nothing answers")
    assert text.index("not up to date") < text.index("LANE")


def test_once_prints_one_time(run: Run, side: list[str], agent: str) -> None:
    assert run("submit", "--handler", "echo", "--agent", agent, *side).code == 0
    found = run("top", "--once", *side)
    assert found.code == 0
    assert found.out.startswith("fairlane top")
    assert "main" in found.out


def test_a_pipe_gets_it_once(run: Run, server: Server) -> None:
    found = run("top", "--url", server.url)
    assert (found.code, found.out.count("fairlane top")) == (0, 1)


def test_json_is_what_the_routes_answer(run: Run, server: Server) -> None:
    found = run("top", "--once", "--json", "--url", server.url)
    assert found.code == 0
    assert set(found.json) == {"lanes", "stats", "history", "nodes", "attention"}
    assert [one["name"] for one in found.json["nodes"]["nodes"]] == [
        one["name"] for one in json.loads(server.get("/nodes"))["nodes"]
    ]


def test_a_missing_server_is_reported_by_top(run: Run) -> None:
    found = run("top", "--url", "http://127.0.0.1:1")
    assert found.code == 5
    assert found.out == ""


@pytest.mark.slow
def test_it_goes_on_until_ctrl_c_and_leaves_the_screen_as_it_was(
    run: Run, server: Server, tmp_path: Path
) -> None:
    assert run("submit", "--handler", "echo", "--wait", "--url", server.url).code == 0

    left: list[bool] = []

    def leave(terminal: Terminal) -> None:
        if terminal.text.count("fairlane top") >= 3 and not left:
            left.append(True)
            terminal.interrupt()

    shown = run_on_terminal(
        "top", "--interval", "0.1", "--url", server.url, folder=tmp_path, on_text=leave
    )
    assert shown.code == 0
    assert "\x1b[?1049h" in shown.text  # a screen of its own
    assert "\x1b[?1049l" in shown.text  # and back,
    assert "\x1b[?25h" in shown.text  # with the cursor
    assert "Traceback" not in shown.text


@pytest.mark.slow
def test_a_server_that_goes_away_leaves_what_was_seen(tmp_path: Path) -> None:
    stop: list[Any] = []
    server = running_server(f"sqlite:///{tmp_path / 'f.db'}", tmp_path)
    url = server.__enter__()

    def watch(terminal: Terminal) -> None:
        if not stop:
            stop.append(True)
            server.__exit__(None, None, None)
        elif "not up to date" in terminal.text and len(stop) == 1:
            stop.append(True)
            terminal.interrupt()

    shown = run_on_terminal(
        "top", "--interval", "0.1", "--url", url, folder=tmp_path, on_text=watch
    )
    assert shown.code == 0
