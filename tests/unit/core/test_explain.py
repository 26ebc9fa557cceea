"""Why a task waits, from facts alone; with a store around them: tests/store/test_why.py."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import approvals, explain
from fairlane.core.batches import Batch
from fairlane.core.explain import AHEAD_MAX, Ceiling, Facts, Pace
from fairlane.core.model import Task
from fairlane.core.policy import AgentPolicy, LanePolicy, Policy, ReservedPolicy
from fairlane.core.resources import Blocked
from fairlane.core.sessions import Session
from tests.unit.core import rows

MOMENT = 1_700_000_000_000
SHOWN = "2023-11-14T22:13:20.000Z"


def why(task: Task, policy: Policy | None = None, **known: Any) -> explain.Why:
    return explain.why(Facts(task, policy or Policy(), **known))


def ready(**fields: Any) -> Task:
    return rows.queued(lane="main", agent="ada", capability="handler/count", **fields)


def narrow(**settings: Any) -> Policy:
    lanes = {**Policy().lanes, "main": LanePolicy(**{"max_inflight": 2, **settings})}
    return Policy(lanes=lanes)


@pytest.mark.parametrize(
    ("task", "error", "reason"),
    [
        (
            rows.running(worker="w", attempts=1, max_attempts=3),
            None,
            "it runs on w, in attempt 1 of 3",
        ),
        (rows.assigned(worker="w"), None, "w has leased it but has not started it yet"),
        (
            rows.running(state="parked", lease_expires_at=None, attempts=3),
            "boom",
            "it is parked after 3 attempts: boom; reset it to try again",
        ),
        (
            rows.running(state="parked", lease_expires_at=None, attempts=1),
            None,
            "it is parked after 1 attempt; reset it to try again",
        ),
        (
            rows.running(state="cancelled", worker="w"),
            None,
            "it is cancelled, but its run on w has not stopped yet",
        ),
        (
            rows.running(state="failed", lease_expires_at=None),
            "boom",
            "it has ended: failed: boom",
        ),
    ],
)
def test_what_does_not_wait_says_what_it_does(task: Task, error: str | None, reason: str) -> None:
    found = why(task, error=error)
    assert found.reason == reason
    assert (found.ready, found.gate, found.ceiling, found.position) == (False, None, None, None)


def test_few_parents_are_all_named_and_many_are_not() -> None:
    task = rows.queued(state="waiting_dependency", unmet=5)
    parents = [("a", "queued"), ("b", None), ("c", "parked"), ("d", "queued"), ("e", "queued")]
    found = why(task, parents=parents)
    assert found.waiting_for == ["a", "b", "c", "d", "e"]
    assert found.reason == (
        "it depends on 5 tasks that are not done: a (queued), b (not known yet), c (parked), …"
    )


@pytest.mark.parametrize(
    ("attempts", "error", "reason"),
    [
        (0, None, f"it is scheduled to start no earlier than {SHOWN}"),
        (
            1,
            "boom",
            f"attempt 1 of 3 failed: boom; the next attempt starts no earlier than {SHOWN}",
        ),
        (2, None, f"attempt 2 of 3 failed; the next attempt starts no earlier than {SHOWN}"),
    ],
)
def test_a_delay_tells_its_end(attempts: int, error: str | None, reason: str) -> None:
    task = rows.queued(gate="delay", eligible_at=MOMENT, attempts=attempts, max_attempts=3)
    found = why(task, error=error)
    assert (found.gate, found.waiting_for, found.reason) == ("delay", [SHOWN], reason)


def test_a_message_that_may_grow_tells_until_when() -> None:
    found = why(rows.queued(gate="debounce", eligible_at=MOMENT))
    assert (found.gate, found.waiting_for) == ("debounce", [SHOWN])


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (None, "session chat runs one task at a time, and another one is running"),
        (
            Session("chat", limit=1),
            "session chat runs one task at a time, and another one is running",
        ),
        (
            Session("chat", limit=3),
            "session chat runs at most 3 tasks, and all of them are running",
        ),
        (
            Session("chat", limit=3, interrupted=1),
            "interrupted tasks of session chat have not stopped yet",
        ),
    ],
)
def test_a_session_says_why_there_is_no_turn(session: Session | None, words: str) -> None:
    task = rows.queued(gate="session", session="chat")
    found = why(task, session=session, ahead=2)
    assert found.reason == f"{words}; 2 tasks are ahead of it in the session"
    assert (found.gate, found.waiting_for, found.position) == ("session", ["chat"], 3)
    assert why(task, session=session, holders=["t"]).waiting_for == ["t"]


def test_a_batch_says_how_many_it_runs() -> None:
    task = rows.queued(gate="batch", batch="b")
    batch = Batch("b", 1, "ada", 2, 0, 0, None)
    assert (
        why(task, batch=batch).reason == "batch b runs at most 2 tasks at once, and 2 are in flight"
    )
    assert why(task, holders=["t"]).waiting_for == ["t"]


def test_a_lane_that_is_paused_or_gone_is_a_gate() -> None:
    assert why(ready(), narrow(paused=True)).gate == "paused"
    found = why(rows.queued(lane="gone"))
    assert (found.gate, found.reason) == ("paused", "lane gone is no longer in the policy")


OVERALL = Ceiling("global", 2, 2, "maxInflight")
LANE = Ceiling("lane", 2, 2, "lanes.main.maxInflight")
AGENT = Ceiling("agent", 1, 1, "lanes.main.maxPerAgentInflight")
WORKER = Ceiling("worker", 3, 3, "workerCount")


def test_ceilings_are_all_told_from_the_widest_to_the_narrowest() -> None:
    policy = narrow(max_per_agent_inflight=1)
    overall = Policy(max_inflight=2, worker_count=3, lanes=policy.lanes)
    everything = {"all_slots": 2, "lane_slots": 2, "agent_slots": 1, "servers": [3]}
    found = why(ready(), overall, **everything)
    assert (found.ceilings, found.ceiling) == ([OVERALL, LANE, AGENT, WORKER], OVERALL)
    assert found.reason == (
        "all 2 slots of all lanes together are in use, and all 2 slots of lane "
        "main are in use, and agent ada uses the only slot that it may use in lane main, and the "
        "server runs 3 tasks at once, which is the limit (workerCount); no task is ahead of it"
    )
    assert why(ready(), policy, **everything).ceilings == [LANE, AGENT]
    assert why(ready(), policy, agent_slots=1).ceilings == [AGENT]
    free = why(ready(), policy)
    assert (free.ready, free.ceiling, free.position) == (True, None, 1)
    assert free.reason == (
        "a slot is free: the task goes to the next worker that leases handler/count; "
        "no task is ahead of it"
    )


def test_a_task_that_no_worker_can_run_says_so_whatever_is_full() -> None:
    found = why(ready(), Policy(), unserved="no known worker offers handler 'count'", all_slots=999)
    assert found.reason == "no known worker offers handler 'count'"
    assert (found.ready, found.ceilings, found.position) == (True, (), 1)


def test_slots_kept_for_critical_work_are_full_for_others_only() -> None:
    policy = narrow(reserved=ReservedPolicy(critical=1))
    found = why(ready(), policy, lane_slots=1)
    assert found.ceilings == [Ceiling("lane", 1, 1, "lanes.main.maxInflight")]
    text = "the only slot of lane main is in use (1 more is reserved for critical tasks)"
    assert found.reason.startswith(f"{text}; ")
    assert why(ready(priority=-20), policy, lane_slots=1).ceiling is None
    wider = narrow(max_inflight=4, reserved=ReservedPolicy(critical=2))
    text = "all 2 slots of lane main are in use (2 more are reserved for critical tasks)"
    assert why(ready(), wider, lane_slots=2).reason.startswith(f"{text}; ")


def test_slots_kept_for_critical_work_count_in_the_ceiling_of_all_lanes() -> None:
    """Leasing keeps them free below both ceilings."""
    wide = narrow(max_inflight=10, reserved=ReservedPolicy(critical=1))
    policy = msgspec.structs.replace(wide, max_inflight=4)
    found = why(ready(), policy, all_slots=3)
    assert found.ceilings == [Ceiling("global", 3, 3, "maxInflight")]
    text = "all 3 slots of all lanes together are in use (1 more is reserved for critical tasks)"
    assert found.reason.startswith(f"{text}; ")
    assert why(ready(priority=-20), policy, all_slots=3).ceiling is None
    none_left = msgspec.structs.replace(wide, max_inflight=1)
    text = "every slot of all lanes together is reserved for critical tasks"
    assert why(ready(), none_left).reason.startswith(f"{text}; ")


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ([], None),
        ([1], None),
        ([2, 1], None),  # another one has room
        ([2], "the server runs 2 tasks at once, which is the limit (workerCount)"),
        ([2, 3], "each of 2 servers runs 2 tasks at once, which is the limit (workerCount)"),
    ],
)
def test_servers_are_full_when_each_of_them_is(servers: list[int], reason: str | None) -> None:
    policy = Policy(worker_count=2, lanes=narrow().lanes)
    found = why(ready(), policy, servers=servers, ahead=1)
    if reason is None:
        assert (found.ceilings, found.reason[:15]) == ((), "a slot is free:")
    else:
        total = Ceiling("worker", 2 * len(servers), sum(servers), "workerCount")
        assert (found.ceilings, found.ready, found.position) == ([total], True, 2)
        assert found.reason == f"{reason}; 1 task is ahead of it"
    without = why(ready(), narrow(), servers=servers)
    assert without.ceilings == ()


def test_an_agents_own_ceiling_counts_in_fair_lanes_only() -> None:
    agents = {"ada": AgentPolicy(max_inflight=2), "bob": AgentPolicy()}
    policy = Policy(lanes=narrow(max_per_agent_inflight=1).lanes, agents=agents)
    found = why(ready(), policy, agent_slots=2)
    assert found.ceilings == [Ceiling("agent", 2, 2, "agents.ada.maxInflight")]
    assert found.reason.startswith("agent ada uses all 2 slots that it may use in lane main; ")
    bobs = rows.queued(lane="main", agent="bob", capability="handler/count")
    assert why(bobs, policy, agent_slots=1).ceilings == [AGENT]
    by_priority = Policy(lanes=narrow(strategy="priority").lanes, agents=agents)
    assert why(ready(), by_priority, agent_slots=2).ceilings == ()


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (0, "no task is ahead of it"),
        (1, "1 task is ahead of it"),
        (7, "7 tasks are ahead of it"),
        (AHEAD_MAX, "10000 or more tasks are ahead of it"),
    ],
)
def test_the_number_of_tasks_ahead_is_reported(ahead: int, words: str) -> None:
    assert why(ready(), narrow(), lane_slots=2, ahead=ahead).reason.endswith(f"; {words}")


@pytest.mark.parametrize(
    ("ahead", "beside", "words"),
    [
        (0, 1, "1 task is ahead of it, 1 of them from other agents or for other handlers"),
        (2, 3, "5 tasks are ahead of it, 3 of them from other agents or for other handlers"),
        (
            1,
            AHEAD_MAX,
            (
                "10000 or more tasks are ahead of it, 10000 of them from other "
                "agents or for other handlers"
            ),
        ),
    ],
)
def test_the_tasks_of_others_ahead_are_reported(ahead: int, beside: int, words: str) -> None:
    found = why(ready(), narrow(), ahead=ahead, beside=beside)
    assert found.reason.endswith(f"; {words}")
    assert found.position == ahead + 1


@pytest.mark.parametrize(
    ("ahead", "pace", "estimate_ms", "said"),
    [
        (3, Pace(30, 300_000), 40_000, "about 40 s at the rate of the last 5 min"),
        (0, Pace(600, 20_000), 33, "about 1 s at the rate of the last 20 s"),
        (119, Pace(10, 60_000), 720_000, "about 12 min at the rate of the last 60 s"),
        (2999, Pace(25, 300_000), 36_000_000, "about 10 h at the rate of the last 5 min"),
    ],
)
def test_a_full_ceiling_tells_how_long_it_may_take(
    ahead: int, pace: Pace, estimate_ms: int, said: str
) -> None:
    found = why(ready(), narrow(), lane_slots=2, ahead=ahead, pace=pace)
    assert found.estimate_ms == estimate_ms
    assert found.reason.endswith(f"ahead of it, {said}")
    assert found.position == ahead + 1


@pytest.mark.parametrize(
    ("ahead", "pace"),
    [
        (3, None),
        (3, Pace(2, 300_000)),  # too few to tell
        (3, Pace(100, 4_000)),  # too short a time
        (AHEAD_MAX, Pace(1000, 300_000)),  # there may be any number more
    ],
)
def test_without_data_there_is_no_number(ahead: int, pace: Pace | None) -> None:
    found = why(ready(), narrow(), lane_slots=2, ahead=ahead, pace=pace)
    assert found.estimate_ms is None
    assert "about" not in found.reason


@pytest.mark.parametrize(
    ("pace", "lane_pace", "said"),
    [
        (Pace(0, 120_000), Pace(40, 300_000), True),
        (Pace(0, 30_000), Pace(40, 300_000), False),  # too short a time
        (Pace(1, 120_000), Pace(40, 300_000), False),  # a worker takes it
        (Pace(0, 120_000), Pace(2, 300_000), False),  # nothing at all moves
        (Pace(0, 120_000), None, False),
        (None, Pace(40, 300_000), False),
    ],
)
def test_a_line_that_nobody_takes_is_not_blamed_on_the_ceiling_alone(
    *, pace: Pace | None, lane_pace: Pace | None, said: bool
) -> None:
    found = why(ready(), narrow(), lane_slots=2, pace=pace, lane_pace=lane_pace)
    assert found.estimate_ms is None
    assert found.reason.startswith("all 2 slots of lane main are in use; no task is ahead of it")
    assert ("is a worker for handler/count running?" in found.reason) == said
    assert ("in the last 2 min no task of its agent and handler started" in found.reason) == said


@pytest.mark.parametrize("task", [ready(gate="session", session="s"), ready(gate="batch")])
def test_what_a_gate_holds_back_is_not_estimated(task: Task) -> None:
    assert why(task, narrow(), pace=Pace(100, 300_000)).estimate_ms is None


def test_neither_is_what_could_start_or_what_an_operator_has_stopped() -> None:
    pace = Pace(100, 300_000)
    assert why(ready(), narrow(), pace=pace).estimate_ms is None
    assert why(ready(), narrow(paused=True), lane_slots=2, pace=pace).estimate_ms is None


# ---------------------------------------------------------------- resources


def test_a_task_says_who_holds_what_it_lacks_and_who_is_asked() -> None:
    task = rows.queued(gate="resource")
    lock = Blocked("lock/a", "busy", None, "lock", 1_000_000, 0)
    found = why(task, blocked=lock, holders=["t1", "t2", "t3", "t4"])
    assert found.reason == "it needs 1 lock of lock/a, but none is available; held by t1, t2, t3"
    spent = Blocked("usd", "spent", rows.NOW, "usd", 1_000_000, 0, spent=True)
    request = approvals.ApprovalRequest("Raise usd?")
    asked = approvals.opened(request, seq=7, approval_id="apr_7", agent="", now=0)
    found = why(task, blocked=spent, approval=asked)
    assert found.reason.endswith("none is available; apr_7 asks a person to raise it")


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        (None, "other tasks that wait for the same resources go first"),
        (Blocked("gpt", "closed", rows.NOW), "gpt is closed until "),
        (Blocked("gpt", "closed", None), "gpt is closed until an operator opens it"),
        (Blocked("gpt", "missing", None), "the policy no longer has gpt"),
        (Blocked("gpt", "missing", None, "t"), "the policy no longer has gpt with the unit t"),
        (Blocked("gpt", "kept", rows.NOW), "the rest of gpt is reserved for running tasks"),
        (
            Blocked("gpt", "busy", None, "t", 5_000_000, 3_000_000),
            "it needs 5 t of gpt, but only 3 is",
        ),
        (Blocked("gpt", "spent", rows.NOW, "t", 5_000_000, 0), "the budget is spent until "),
    ],
)
def test_a_task_behind_a_resource_says_what_it_lacks(blocked: Blocked | None, reason: str) -> None:
    found = why(rows.queued(gate="resource"), blocked=blocked, holders=["t1"])
    assert found.gate == "resource"
    assert found.reason.startswith(reason)
    assert found.holders == ["t1"]
