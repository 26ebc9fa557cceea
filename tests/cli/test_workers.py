"""`fairlane workers` and `attention`, and warnings on stderr about what nobody can run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from fairlane.client.sync import Client
from fairlane.store.opening import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


def test_workers_are_listed_with_what_they_offer(run: Run, server: Server, agent: str) -> None:
    with Client(server.url) as client:
        client.lease(f"w-{agent}", handlers=[f"h-{agent}"], lanes=["team"], slots=2, version="7")
    out = run("workers", "--url", server.url).out
    line = next(one for one in out.splitlines() if f"w-{agent}" in one)
    assert line.split()[1:3] == ["online", "0/2"]
    assert line.endswith(f"h-{agent}; only lane team")
    assert "echo sleep (action)" in out
    found = run("workers", "--json", "--url", server.url).json["workers"]
    assert f"w-{agent}" in [one["name"] for one in found]


def test_warnings_are_printed_on_stderr(run: Run, side: list[str], agent: str) -> None:
    text = "warning: no known worker offers handler 'ehco'; did you mean echo?\n"
    ran = run("submit", "--handler", "ehco", "--agent", agent, *side)
    assert (ran.code, ran.err) == (0, text)
    assert run("submit", "--handler", "ehco", "--agent", agent, "--json", *side).err == text
    ran = run("submit", "--handler", "echo", "--agent", agent, "--lane", "mian", *side)
    assert ran.err.endswith("so the task runs in lane main; did you mean main?\n")
    ran = run("message", f"s-{agent}", "hi", "--handler", "ehco", "--agent", agent, *side)
    assert ran.err == text


def test_a_list_says_that_no_worker_can_run_a_task(run: Run, side: list[str], agent: str) -> None:
    task = run("submit", "--handler", "ehco", "--agent", agent, "--json", *side).json["taskId"]
    assert "no known worker offers handler 'ehco'" in run("tasks", "--agent", agent, *side).out
    assert "no known worker offers handler 'ehco'" in run("why", task, *side).out
    assert "no known worker offers handler 'ehco'" in run("show", task, *side).out


def test_attention_lists_what_is_wrong_with_a_command_for_each(
    run: Run, side: list[str], agent: str
) -> None:
    task = run("submit", "--handler", "echo", "--depends-on", f"tsk_{agent}", *side, "--json").json
    ran = run("attention", *side)
    assert f"1 task waits for tsk_{agent}, which does not exist" in ran.out
    assert f"fairlane cancel {task['taskId']}\n" in ran.out
    assert run("attention", "--check", *side).code == 1
    run("cancel", task["taskId"], *side)
    assert f"tsk_{agent}" not in run("attention", *side).out


def test_a_store_without_troubles_is_well(run: Run, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/new.db"
    with contextlib.closing(open_store(store)) as found:
        found.migrate()
    ran = run("attention", "--check", "--store", store)
    assert ran.code == 0
    assert (
        ran.out
        == "nothing needs attention: nothing is stuck, parked, failing or waiting for a decision\n"
    )
    assert run("workers", "--store", store).out.startswith("no worker is known; ")


def test_handlers_show_failures_and_the_time_that_agents_used(
    run: Run, server: Server, agent: str
) -> None:
    with Client(server.url) as client:
        client.submit(handler=f"h-{agent}", agent=agent, retry_policy={"maxRetries": 0})
        (lease,) = client.lease(f"w-{agent}", handlers=[f"h-{agent}"], start=True).leases
        client.fail_lease(lease.lease_id, token=lease.token, error="no")
    out = run("handlers", "--agent", agent, "--url", server.url).out
    assert out.splitlines()[0].split()[:2] == ["HANDLER", "STARTED"]
    assert out.splitlines()[1].split()[:5] == [f"h-{agent}", "1", "0", "1", "(100"]
    out = run("handlers", "--by-agent", "--handler", f"h-{agent}", "--url", server.url).out
    assert out.splitlines()[1].startswith(agent)
    none = run("handlers", "--handler", f"no-{agent}", "--window", "7d", "--url", server.url)
    assert none.out.startswith("no task has run since ")
