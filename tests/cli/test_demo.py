"""`fairlane demo`: a real process that shows fairness, and of which nothing is left."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from fairlane.cli.demo import Fleet
from fairlane.client.sync import Client
from tests.cli.processes import Terminal, run_on_terminal, run_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

ADDRESS = re.compile(r"the dashboard is at (http://127\.0\.0\.1:(\d+))/")


def test_how_long_each_waits_fits_on_a_usual_terminal() -> None:
    fleet = Fleet(None)
    fleet.tallies["favoured"].waits_ms.append(1234)
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(fleet.table())
    lines = {line.split()[0]: line for line in captured.get().splitlines()}
    assert "WAITS " in lines["AGENT"]
    assert "1.2 s" in lines["favoured"]
    assert "has 10 waiting" in lines["favoured"]


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_in_a_pipe_it_tells_the_address_and_how_it_went_and_leaves_nothing(tmp_path: Path) -> None:
    here = str(tmp_path)
    ran = run_process(
        "demo", "--seconds", "4", folder=tmp_path, HOME=here, XDG_DATA_HOME=here, TMPDIR=here
    )
    out = ran.stdout.decode()
    assert (ran.returncode, ran.stderr) == (0, b""), ran
    found = ADDRESS.search(out)
    assert found is not None, out
    assert not answers(int(found[2]))
    assert list(tmp_path.iterdir()) == []
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert {"AGENT", "greedy", "favoured", "modest", "quiet"} <= set(rows)


def fleet_is_at_work(client: Client) -> bool:
    """Whether there is something of everything that the demo is to show."""

    def count(**which: Any) -> int:
        return len(client.tasks(limit=1000, **which)["tasks"])

    return (
        count(agent="quiet", states=["done"]) > 0
        and count(agent="greedy", states=["queued"]) > 200
        and count(agent="ada", session="chat:ada", states=["done"]) > 0
        and any("dependsOn" in task for task in client.tasks(agent="researcher")["tasks"])
        and client.batches(agent="researcher")["batches"][0]["parallelism"] == 2
        and len(client.cron_runs("look-around")["runs"]) > 0
    )


@pytest.mark.slow
def test_on_a_terminal_it_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    seen: dict[str, Any] = {"at_work": False}

    def look(terminal: Terminal) -> None:
        found = ADDRESS.search(terminal.text)
        if found is None or seen["at_work"]:
            return
        seen["port"] = int(found[2])
        with Client(found[1]) as client:
            seen["at_work"] = fleet_is_at_work(client)
        if seen["at_work"]:
            terminal.interrupt()

    # Where a program could leave something behind, if it did.
    places = dict.fromkeys(("HOME", "XDG_DATA_HOME", "TMPDIR"), str(tmp_path))
    shown = run_on_terminal("demo", folder=tmp_path, variables=places, on_text=look)
    assert seen["at_work"], shown.text[-2000:]
    assert shown.code == 0, shown.text[-2000:]
    assert "SHARE OF SLOTS" in shown.text  # the overview of `fairlane top`
    after = shown.text.rpartition("\x1b[?1049l")[2]  # what stands there when its screen is gone
    assert "greedy" in after
    assert "the tasks of quiet start after" in after
    assert "Traceback" not in shown.text
    assert not answers(seen["port"])
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        ran = run_process("demo", "--port", number, "--seconds", "1", folder=tmp_path)
    assert ran.returncode == 6
    assert f"cannot listen on 127.0.0.1:{number}".encode() in ran.stderr
    assert ran.stderr.count(b"\n") == 1


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_there_cannot_be_is_refused(run: Callable[..., Ran], port: str) -> None:
    ran = run("demo", f"--port={port}")
    assert ran.code == 2
    assert "--port: must be a number from 0 to 65535" in ran.err
