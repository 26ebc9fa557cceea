"""What needs attention: one sentence and one command for each kind, and nothing for a calm day."""

from __future__ import annotations

from typing import Any

from fairlane.core import attention, effects
from fairlane.core.attention import (
    GATED_MS,
    READY_MS,
    AttentionItem,
    ClosedAccount,
    FailingJob,
    GivenUp,
    LateApproval,
    OpenEdge,
    Troubles,
    Unoffered,
    may_be_stuck,
)
from fairlane.core.counts import Tally
from fairlane.core.explain import Ceiling, Why
from fairlane.core.model import Task
from fairlane.core.policy import Policy, patch
from fairlane.core.workers import SILENT, KnownWorker
from tests.unit.core.rows import queued

NOW = 10_000_000


def row(name: str, **fields: Any) -> Task:
    return queued(id=name, agent="a", capability="handler/work", **fields)


def troubles(policy: dict[str, Any] | None = None, **facts: Any) -> Troubles:
    return Troubles(NOW, patch(Policy(), policy or {}), facts.pop("tallies", {}), **facts)


def items(found: Troubles, **reasons: Why) -> list[AttentionItem]:
    return attention.items(found, (), reasons)


def only(found: Troubles, **reasons: Why) -> tuple[str, str]:
    (one,) = items(found, **reasons)
    return one.text, one.command


def test_on_a_calm_day_nothing_needs_attention() -> None:
    assert items(troubles(tallies={"main": Tally(queued=7)})) == []


def test_a_policy_that_refuses_everything() -> None:
    text = "the policy refuses all submissions (enabled is false)"
    assert only(troubles({"enabled": False})) == (text, "fairlane policy set enabled=true")


def test_a_node_that_is_gone() -> None:
    gone = KnownWorker("node_1", "node_1", state=SILENT, address="host:7", seen_at=5)
    left = KnownWorker("node_2", "node_2", state=SILENT)  # stopped in order
    external = KnownWorker("w1", "node_1", state=SILENT, address="10.0.0.1")
    (one,) = attention.items(troubles(), [gone, left, external, KnownWorker("node_3", "n")], {})
    text = "node node_1 on host:7 sends no heartbeats; other nodes run its tasks"
    assert (one.kind, one.text, one.command) == ("node", text, "fairlane serve")
    assert one.since_at == 5


def test_handlers_and_kinds_without_workers() -> None:
    found = [
        Unoffered("main", "handler/x", "no worker for x", 1),
        Unoffered("instruction", "instruction", "none", 2),
        Unoffered("browser", "action", "none", 2),
    ]
    first, second, third = items(troubles(unoffered=found))
    assert first.text == "1 task in lane main cannot start: no worker for x"
    assert first.command == "fairlane worker MODULE:NAME"
    assert second.text == "2 tasks in lane instruction cannot start: none"
    assert second.command == "fairlane serve --agent URL"
    assert third.command == "fairlane serve --instance URL"


def test_a_paused_lane_counts_only_with_waiters() -> None:
    policy = {"lanes": {"team": {"paused": True}, "cron": {"paused": True}}}
    found = troubles(policy, tallies={"team": Tally(queued=2), "main": Tally(queued=2)})
    assert only(found) == ("lane team is paused and 2 tasks wait", "fairlane lanes resume team")


def test_a_closed_resource_with_and_without_a_key() -> None:
    found = [ClosedAccount("gpt", "", 1000, "429"), ClosedAccount("spend", "ada", 1000, None)]
    first, second = items(troubles(closed=found))
    assert first.text == "resource gpt is closed until 1970-01-01T00:00:01.000Z: 429"
    assert first.command == "fairlane resources open gpt"
    assert second.text == "resource spend/ada is closed until 1970-01-01T00:00:01.000Z"
    assert second.command == "fairlane resources open spend --key ada"


def test_a_stuck_task_says_why_and_how_to_make_room() -> None:
    found = troubles(stuck=[row("t1", queued_at=1000), row("gone", queued_at=1)])
    ceiling = Ceiling("lane", 2, 2, "lanes.main.maxInflight")
    text, command = only(found, t1=Why("it is full", ceilings=[ceiling]))
    assert text == "task t1 of a has been waiting since 1970-01-01T00:00:01.000Z: it is full"
    assert command == "fairlane policy set lanes.main.maxInflight=4"
    assert only(found, t1=Why("it waits"))[1] == "fairlane why t1"
    ended = troubles(stuck=[row("t1", state="done")])
    assert items(ended, t1=Why("it has ended")) == []


def test_a_task_is_stuck_after_a_while() -> None:
    now = NOW + GATED_MS
    assert may_be_stuck(row("t", queued_at=now - READY_MS), now)
    assert not may_be_stuck(row("t", queued_at=now - READY_MS + 1), now)
    assert not may_be_stuck(row("t", queued_at=now - READY_MS, gate="session"), now)
    assert may_be_stuck(row("t", queued_at=now - GATED_MS, gate="session"), now)
    assert not may_be_stuck(row("t", queued_at=0, state="running"), now)


def test_dependencies_that_never_come() -> None:
    edges = [OpenEdge("c1", "p1", None, 7), OpenEdge("c2", "p1", None, 5)]
    (one,) = items(troubles(edges=edges))
    assert one.text == "2 tasks wait for p1, which does not exist"
    assert (one.command, one.since_at, one.tasks) == ("fairlane cancel c1 c2", 5, ("c1", "c2"))
    parked = troubles(edges=[OpenEdge("c1", "p1", "parked", 7)])
    assert only(parked) == ("1 task waits for p1, which is parked", "fairlane reset p1")


def test_parked_tasks_are_grouped_by_reason() -> None:
    many = [(row(f"t{number}", state="parked"), "HTTP\n403") for number in range(6)]
    one = (row("x", state="parked", completed_at=9), None)
    first, second = items(troubles(parked=[one, *many]))
    assert first.text == "6 tasks are parked (work in lane main): HTTP 403"
    assert first.command == "fairlane reset --state parked --lane main --handler work"
    assert (first.count, len(first.tasks)) == (6, 5)
    assert second.text == "1 task is parked (work in lane main): without an error message"
    assert (second.command, second.since_at) == ("fairlane reset x", 9)


def test_a_task_with_an_unknown_effect_is_shown_and_not_reset() -> None:
    reason = effects.reason("t1", "charge")
    (one,) = items(troubles(parked=[(row("t1", state="parked"), reason)]))
    assert '"charge"' in one.text
    assert one.command == "fairlane show t1"


def test_failing_jobs() -> None:
    jobs = [
        FailingJob("j1", "report", 1, None, None, stopped=False),
        FailingJob("j2", "sync", 3, "x" * 200, 5, stopped=True),
    ]
    first, second = items(troubles(jobs=jobs))
    assert (first.text, first.command) == ("cron job report failed 1 time", "fairlane cron run j1")
    text = (
        f"cron job sync failed 3 times in a row: {'x' * 160}…; the job was disabled because of that"
    )
    assert (second.text, second.command) == (text, "fairlane cron on j2")


def test_webhooks_that_were_given_up_are_grouped_by_receiver() -> None:
    found = [
        GivenUp("d1", "https://h.example/secret-path", None, 5),
        GivenUp("d2", "https://h.example/other", "HTTP 500", 7),
        GivenUp("d3", "https://i.example/", None, 7),
    ]
    first, second = items(troubles(given_up=found))
    assert first.text == "2 webhooks to https://h.example given up in the last day: HTTP 500"
    assert (first.command, first.since_at) == ("fairlane deliveries redeliver d1 d2", 5)
    assert second.text == "1 webhook to https://i.example given up in the last day"


def test_an_approval_that_waits_for_long() -> None:
    found = troubles(approvals=[LateApproval("apr_1", "Send it?", 1000)])
    text = '"Send it?" has been waiting for a decision since 1970-01-01T00:00:01.000Z'
    assert only(found) == (text, "fairlane approve apr_1")


def test_only_so_many_of_a_kind_are_shown() -> None:
    found = troubles(approvals=[LateApproval(f"apr_{n}", "?", 1) for n in range(20)])
    assert len(items(found)) == attention.SHOWN_MAX
