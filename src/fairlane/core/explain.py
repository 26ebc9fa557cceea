"""Explain why a task does not run yet: the gate that holds it or the ceiling that is full.

The explanation uses the same facts that decide. A queued task is held by one gate at a time, the
first in order. A ready task is held by every full ceiling, from the widest to its agent's own, and
by servers that are all at capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from fairlane.core import amounts, approvals, lifecycle, moments, resources
from fairlane.core.approvals import Approval
from fairlane.core.batches import Batch
from fairlane.core.model import (
    APPROVAL_GATE,
    BATCH_GATE,
    CRITICAL,
    DEBOUNCE_GATE,
    DELAY_GATE,
    DEPENDENCY_GATE,
    RESOURCE_GATE,
    SESSION_GATE,
    SUSPEND_GATE,
    Task,
)
from fairlane.core.policy import FAIR, Policy
from fairlane.core.resources import Blocked
from fairlane.core.sessions import Session
from fairlane.core.suspensions import Suspension

PAUSED: Final = "paused"
GATES: Final = (
    DEPENDENCY_GATE,
    DELAY_GATE,
    DEBOUNCE_GATE,
    APPROVAL_GATE,
    BATCH_GATE,
    SESSION_GATE,
    RESOURCE_GATE,
    SUSPEND_GATE,
    PAUSED,
)
LANE: Final = "lane"
AGENT: Final = "agent"
GLOBAL: Final = "global"
WORKER: Final = "worker"
AHEAD_MAX: Final = 10_000
NAMED_MAX: Final = 20
HOLDERS_NAMED: Final = 3  # in a sentence
# Fewer starts than this are too few to estimate a pace.
PACE_STARTS_MIN: Final = 3
PACE_MS_MIN: Final = 5_000
# If a line has not moved for this long while its lane has, it may have no worker.
STILL_MS_MIN: Final = 60_000


class Ceiling(msgspec.Struct, frozen=True):
    """`scope` is `lane`, `agent` (in this lane), `global` (over all lanes) or `worker` (all servers
    together). `setting` names the policy key.
    """

    scope: str
    limit: int
    in_use: int
    setting: str = ""


class Pace(msgspec.Struct, frozen=True):
    """How many tasks of a line started in a span of time in which others always waited there."""

    starts: int
    span_ms: int


class Facts(msgspec.Struct, frozen=True):
    """The facts about a task and its surroundings at one time.

    `parents` are the tasks that it waits for, with their states if they exist; `holders` are the
    tasks that hold what it waits for. `ahead` is how many go before it in its line, `beside` how
    many in other lines. `pace` is how fast its line has moved recently, if known, and `lane_pace`
    how fast the lane has. `servers` is how many tasks each server with the capability runs.
    `approval` is the one that it waits for, or the open question whether to raise a spent budget,
    `blocked` the account of a resource, and `wait` what a suspended run waits for. `unserved` says
    that no worker can run it, empty if one can.
    """

    task: Task
    policy: Policy
    error: str | None = None
    parents: Sequence[tuple[str, str | None]] = ()
    session: Session | None = None
    batch: Batch | None = None
    holders: Sequence[str] = ()
    ahead: int = 0
    beside: int = 0
    lane_slots: int = 0
    agent_slots: int = 0
    all_slots: int = 0
    servers: Sequence[int] = ()
    pace: Pace | None = None
    lane_pace: Pace | None = None
    approval: Approval | None = None
    blocked: Blocked | None = None
    unserved: str = ""
    wait: Suspension | None = None


class Why(msgspec.Struct, frozen=True):
    """`ready` says that only a slot or a worker is missing.

    `ceilings` are all that are full, the widest first. `estimate_ms` is the expected wait if the
    line keeps its pace. `blocked` is the missing amount of a resource, `holders` the tasks that
    hold it.
    """

    reason: str
    ready: bool = False
    gate: str | None = None
    waiting_for: Sequence[str] = ()
    ceilings: Sequence[Ceiling] = ()
    position: int | None = None
    estimate_ms: int | None = None
    blocked: Blocked | None = None
    holders: Sequence[str] = ()

    @property
    def ceiling(self) -> Ceiling | None:
        return self.ceilings[0] if self.ceilings else None


def why(facts: Facts) -> Why:
    task = facts.task
    if task.state == lifecycle.WAITING:
        return _depends(facts)
    if task.state != lifecycle.QUEUED:
        return Why(_not_waiting(facts))
    if task.gate == DELAY_GATE:
        return _delayed(facts)
    if task.gate == DEBOUNCE_GATE:
        until = moments.text(task.eligible_at or 0)
        text = f"it is waiting until {until} for more messages to merge with it"
        return Why(text, gate=DEBOUNCE_GATE, waiting_for=[until])
    if task.gate == APPROVAL_GATE:
        return _unapproved(facts)
    if task.gate == SESSION_GATE:
        return _in_session(facts)
    if task.gate == BATCH_GATE:
        return _in_batch(facts)
    if task.gate == RESOURCE_GATE:
        return _without_resource(facts)
    if task.gate == SUSPEND_GATE:
        return _suspended(facts)
    return _ready(facts)


def _suspended(facts: Facts) -> Why:
    """Explain a suspended run."""
    task, wait = facts.task, facts.wait
    until = None if wait is None else wait.waits_for
    if task.eligible_at is not None:
        moment = moments.text(task.eligible_at)
        return Why(f"its run sleeps until {moment}", gate=SUSPEND_GATE, waiting_for=[moment])
    if until is not None and until.signal is not None:
        text = f'its run waits for the signal "{until.signal}"; '
        text += f"fairlane signal {task.id} {until.signal}"
        return Why(text, gate=SUSPEND_GATE, waiting_for=[until.signal])
    if until is not None and until.message:
        text = "its run waits for a message to its session"
        return Why(text, gate=SUSPEND_GATE, waiting_for=["message"])
    names = ", ".join(f"{id_} ({state or 'not known'})" for id_, state in facts.parents[:3])
    more = ", …" if len(facts.parents) > 3 else ""
    return Why(
        f"its run waits for tasks that have not ended: {names}{more}",
        gate=SUSPEND_GATE,
        waiting_for=[id_ for id_, _ in facts.parents],
    )


def _not_waiting(facts: Facts) -> str:
    task = facts.task
    because = f": {facts.error}" if facts.error else ""
    if task.state == lifecycle.RUNNING:
        return f"it runs on {task.worker}, in attempt {task.attempts} of {task.max_attempts}"
    if task.state == lifecycle.ASSIGNED:
        return f"{task.worker} has leased it but has not started it yet"
    if task.state == lifecycle.PARKED:
        return f"it is parked after {_attempts(task)}{because}; reset it to try again"
    if task.leased:
        return f"it is {task.state}, but its run on {task.worker} has not stopped yet"
    return f"it has ended: {task.state}{because}"


def _attempts(task: Task) -> str:
    return "1 attempt" if task.attempts == 1 else f"{task.attempts} attempts"


def _depends(facts: Facts) -> Why:
    names = [f"{id_} ({state or 'not known yet'})" for id_, state in facts.parents[:3]]
    count = facts.task.unmet or len(facts.parents)
    more = ", …" if count > len(names) else ""
    tasks = "a task that is" if count == 1 else f"{count} tasks that are"
    return Why(
        f"it depends on {tasks} not done: {', '.join(names)}{more}",
        gate=DEPENDENCY_GATE,
        waiting_for=[id_ for id_, _ in facts.parents],
    )


def _delayed(facts: Facts) -> Why:
    task = facts.task
    until = moments.text(task.eligible_at or 0)
    text = f"it is scheduled to start no earlier than {until}"
    if task.attempts:
        because = f": {facts.error}" if facts.error else ""
        tried = f"attempt {task.attempts} of {task.max_attempts} failed{because}"
        text = f"{tried}; the next attempt starts no earlier than {until}"
    return Why(text, gate=DELAY_GATE, waiting_for=[until])


def _unapproved(facts: Facts) -> Why:
    approval = facts.approval
    if approval is None:
        return Why("it waits for a decision by a person", gate=APPROVAL_GATE)
    given = len(approvals.votes(approval))
    count = f" ({given} of {approval.needed} have approved)" if approval.needed > 1 else ""
    names = approvals.approvers(approval)
    who = f"one of {', '.join(names)}" if names else "a person"
    until = ""
    if approval.expires_at is not None:
        until = f"; without one it is decided at {moments.text(approval.expires_at)}: "
        until += approval.on_expiry
    return Why(
        f'it waits for a decision by {who}{count}: "{approval.title}"{until}; '
        f"fairlane approve {approval.id}",
        gate=APPROVAL_GATE,
        waiting_for=[approval.id],
    )


def _without_resource(facts: Facts) -> Why:
    blocked = facts.blocked
    if blocked is None:
        text = "other tasks that wait for the same resources go first"
        return Why(text, gate=RESOURCE_GATE, holders=facts.holders)
    until = "" if blocked.at is None else f" until {moments.text(blocked.at)}"
    unit = blocked.unit or "it"
    lacks = f"it needs {amounts.text(blocked.needed)} {unit} of {blocked.account}, but "
    left = f"only {amounts.text(blocked.available)}" if blocked.available else "none"
    lacks += f"{left} is available"
    held = f"; held by {', '.join(facts.holders[:HOLDERS_NAMED])}" if facts.holders else ""
    asked = f"; {facts.approval.id} asks a person to raise it" if facts.approval else ""
    text = {
        resources.CLOSED: f"{blocked.account} is closed{until or ' until an operator opens it'}",
        resources.MISSING: f"the policy no longer has {blocked.account}"
        + (f" with the unit {blocked.unit}" if blocked.unit else ""),
        resources.KEPT: f"the rest of {blocked.account} is reserved for running tasks",
        resources.SPENT: f"the budget is spent{until}: {lacks}{asked}",
        resources.BUSY: f"{lacks}{until}{held}",
    }[blocked.why]
    return Why(
        text,
        gate=RESOURCE_GATE,
        waiting_for=[blocked.account],
        blocked=blocked,
        holders=facts.holders,
    )


def _in_session(facts: Facts) -> Why:
    session = facts.session
    key = facts.task.session or ""
    if session is None or session.limit == 1:
        text = f"session {key} runs one task at a time, and another one is running"
    else:
        text = f"session {key} runs at most {session.limit} tasks, and all of them are running"
    if session is not None and session.interrupted:
        text = f"interrupted tasks of session {key} have not stopped yet"
    return Why(
        f"{text}; {_before(facts)} in the session",
        gate=SESSION_GATE,
        waiting_for=facts.holders or [key],
        position=facts.ahead + 1,
    )


def _in_batch(facts: Facts) -> Why:
    batch = facts.batch
    limit = batch.parallelism if batch is not None else None
    return Why(
        f"batch {facts.task.batch} runs at most {limit} tasks at once, and {limit} are in flight",
        gate=BATCH_GATE,
        waiting_for=facts.holders,
    )


def _ready(facts: Facts) -> Why:
    task, settings = facts.task, facts.policy.lanes.get(facts.task.lane)
    position = facts.ahead + 1
    if settings is None:
        return Why(f"lane {task.lane} is no longer in the policy", gate=PAUSED)
    if settings.paused:
        text = f"lane {task.lane} is paused; its tasks start when you resume it"
        return Why(text, gate=PAUSED, position=position)
    if facts.unserved:
        return Why(facts.unserved, ready=True, position=position)
    full = _full(facts)
    if not full:
        text = f"a slot is free: the task goes to the next worker that leases {task.capability}"
        return Why(f"{text}; {_before(facts)}", ready=True, position=position)
    estimate_ms, guess = _estimate(facts)
    text = ", and ".join(words for _, words in full)
    return Why(
        f"{text}; {_before(facts)}{guess or _still(facts)}",
        ready=True,
        waiting_for=facts.holders,
        ceilings=[ceiling for ceiling, _ in full],
        position=position,
        estimate_ms=estimate_ms,
    )


def _estimate(facts: Facts) -> tuple[int | None, str]:
    """Return the expected wait and its text, or nothing without data."""
    pace = facts.pace
    if pace is None or facts.ahead >= AHEAD_MAX:
        return None, ""
    if pace.starts < PACE_STARTS_MIN or pace.span_ms < PACE_MS_MIN:
        return None, ""
    wait_ms = round((facts.ahead + 1) * pace.span_ms / pace.starts)
    return wait_ms, f", about {_roughly(wait_ms)} at the rate of the last {_roughly(pace.span_ms)}"


def _still(facts: Facts) -> str:
    """Return the hint that no worker may have the capability of a line that stands still."""
    pace, lane = facts.pace, facts.lane_pace
    if pace is None or lane is None or pace.starts or pace.span_ms < STILL_MS_MIN:
        return ""
    if lane.starts < PACE_STARTS_MIN:
        return ""
    return (
        f", but in the last {_roughly(pace.span_ms)} no task of its agent and handler "
        f"started, while other tasks of the lane did: is a worker for {facts.task.capability} "
        "running?"
    )


def _roughly(span_ms: int) -> str:
    """Return a span in the unit that gives the shortest meaningful number."""
    for unit, size_ms in (("h", 3_600_000), ("min", 60_000)):
        if span_ms >= 2 * size_ms:
            return f"{round(span_ms / size_ms)} {unit}"
    return f"{max(1, round(span_ms / 1000))} s"


def _full(facts: Facts) -> list[tuple[Ceiling, str]]:
    """Return every full ceiling and its text."""
    found = [
        _overall_ceiling(facts),
        _lane_ceiling(facts),
        _agent_ceiling(facts),
        _worker_ceiling(facts),
    ]
    return [(one, text) for one, text in found if one is not None and one.in_use >= one.limit]


_Found = tuple[Ceiling | None, str]


def _overall_ceiling(facts: Facts) -> _Found:
    """Return the ceiling of all lanes, less the slots that the task's lane keeps for others."""
    if facts.policy.max_inflight is None:
        return None, ""
    kept = _reserved(facts)
    limit = max(0, facts.policy.max_inflight - kept)
    text = _full_text(limit, "of all lanes together", kept)
    return Ceiling(GLOBAL, limit, facts.all_slots, "maxInflight"), text


def _lane_ceiling(facts: Facts) -> _Found:
    lane, kept = facts.task.lane, _reserved(facts)
    limit = facts.policy.lanes[lane].max_inflight - kept
    ceiling = Ceiling(LANE, limit, facts.lane_slots, f"lanes.{lane}.maxInflight")
    return ceiling, _full_text(limit, f"of lane {lane}", kept)


def _reserved(facts: Facts) -> int:
    """Return how many slots the lane keeps for critical tasks and from this one."""
    settings = facts.policy.lanes[facts.task.lane]
    return 0 if facts.task.priority <= CRITICAL else settings.reserved.critical


def _agent_ceiling(facts: Facts) -> _Found:
    """Return the agent's full ceiling. A lane ordered by priority has none."""
    task, policy = facts.task, facts.policy
    limit = policy.agent_ceiling(task.lane, task.agent)
    if limit is None or policy.lanes[task.lane].strategy != FAIR:
        return None, ""
    own = policy.agents.get(task.agent)
    setting = f"lanes.{task.lane}.maxPerAgentInflight"
    if own is not None and own.max_inflight is not None:
        setting = f"agents.{task.agent}.maxInflight"
    slots = "the only slot" if limit == 1 else f"all {limit} slots"
    text = f"agent {task.agent} uses {slots} that it may use in lane {task.lane}"
    return Ceiling(AGENT, limit, facts.agent_slots, setting), text


def _worker_ceiling(facts: Facts) -> _Found:
    """Return the workers' ceiling if every server is at capacity."""
    limit, servers = facts.policy.worker_count, facts.servers
    if not limit or not servers or any(running < limit for running in servers):
        return None, ""
    who = "the server runs" if len(servers) == 1 else f"each of {len(servers)} servers runs"
    tasks = "1 task" if limit == 1 else f"{limit} tasks"
    text = f"{who} {tasks} at once, which is the limit (workerCount)"
    return Ceiling(WORKER, limit * len(servers), sum(servers), "workerCount"), text


def _full_text(limit: int, whose: str, kept: int) -> str:
    if limit == 0:
        return f"every slot {whose} is reserved for critical tasks"
    besides = f" ({kept} more {'is' if kept == 1 else 'are'} reserved for critical tasks)" * bool(
        kept
    )
    if limit == 1:
        return f"the only slot {whose} is in use{besides}"
    return f"all {limit} slots {whose} are in use{besides}"


def _before(facts: Facts) -> str:
    """Return how many tasks are ahead of it, in its line and in others."""
    count = facts.ahead + facts.beside
    if not count:
        return "no task is ahead of it"
    number = f"{AHEAD_MAX} or more" if count >= AHEAD_MAX else str(count)
    text = f"{number} {'task is' if count == 1 else 'tasks are'} ahead of it"
    others = f", {facts.beside} of them from other agents or for other handlers"
    return text + others * bool(facts.beside)
