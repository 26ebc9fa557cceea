"""Find and act on the command line: filters, counts, short ids, quiet output, failures, events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


@pytest.fixture
def ask(run: Run, server: Server) -> Run:
    """`fairlane` with the address of the server."""
    return lambda *words: run(*words, "--url", server.url)


def submitted(ask: Run, agent: str, *words: str) -> str:
    ran = ask("submit", "--agent", agent, "-q", *words)
    assert ran.code == 0, ran
    return ran.out.strip()


def test_tasks_are_found_counted_and_cancelled_by_what_they_are(ask: Run, agent: str) -> None:
    late = ("--delay", "1h", "--handler")
    one = submitted(ask, agent, *late, "echo", "--metadata", '{"customer": 42}')
    two = submitted(ask, agent, *late, "sleep", "--metadata", '{"customer": 43}')
    mine = ("--agent", agent)
    assert ask("tasks", *mine, "-q", "--sort", "oldest").out.split() == [one, two]
    assert ask("tasks", *mine, "-q", "--where", "metadata.customer=43").out.split() == [two]
    assert ask("tasks", *mine, "-q", "--since", "1h", "--handler", "echo").out.split() == [one]
    assert ask("tasks", *mine, "-q", "--older-than", "1h").out == ""
    assert ask("tasks", *mine, "--count").out == "2 tasks: 2 queued\n"
    wrong = ask("tasks", "--since", "soon")
    assert (wrong.code, "is not a time" in wrong.err) == (2, True)
    dry = ask("cancel", *mine, "--handler", "sleep", "--dry-run")
    assert dry.out == f"would cancel 1 task\n{two}\n"
    assert ask("cancel", *mine, "--handler", "sleep", "-q").out == f"{two}\n"
    assert ask("show", one[:24], "--json").json["taskId"] == one
    ambiguous = ask("show", "tsk_01")
    assert (ambiguous.code, "is the beginning of several tasks" in ambiguous.err) == (2, True)
    assert ask("cancel", one[:24]).out == f"cancelled {one}\n"


def test_failures_are_listed_by_error_and_retried_as_a_group(ask: Run, agent: str) -> None:
    quick = ("--handler", "sleep", "--param", "ms=60000", "--timeout-ms", "10", "--retries", "0")
    ids = {submitted(ask, agent, *quick) for _ in range(2)}
    assert ask("wait", *ids, "--timeout", "60").code == 1
    mine = ("--agent", agent)
    (group,) = ask("failures", *mine, "--json").json["failures"]
    assert (group["count"], set(group["taskIds"])) == (2, ids)
    shown = ask("failures", *mine).out
    assert group["fingerprint"] in shown
    assert "<number>" in shown
    name = group["fingerprint"]
    assert ask("failures", *mine, "-q").out == f"{name}\n"
    assert set(ask("tasks", "--failure", name, *mine, "-q").out.split()) == ids
    assert ask("retry", "--failure", name, *mine).out == "queued 2 tasks again\n"
    wrong = ask("retry", "--failure", name, "--text", "x")
    assert (wrong.code, "--text cannot be combined" in wrong.err) == (2, True)


def test_events_are_the_newest_ones_with_agent_and_handler(ask: Run, agent: str) -> None:
    ids = [submitted(ask, agent, "--delay", "1h", "--handler", "echo") for _ in range(3)]
    mine = ("--agent", agent)
    lines = ask("events", *mine, "--last", "2").out.splitlines()
    assert [ids[1] in lines[0], ids[2] in lines[1]] == [True, True]
    assert all(f"{agent} echo" in line for line in lines)
    found = [json.loads(line) for line in ask("events", *mine, "--json").out.splitlines()]
    assert [one["taskId"] for one in found] == ids
    assert found[0]["handler"] == "echo"
    assert ask("events", *mine, "--since", "1h", "--json").out.count("\n") == 3
    assert ask("events", *mine, "--after", str(found[1]["id"]), "--json").out.count("\n") == 1


def test_no_events_are_no_output(ask: Run, agent: str) -> None:
    found = ask("events", "--agent", f"nobody-{agent}", "--last", "5")
    assert (found.code, found.out) == (0, "")
