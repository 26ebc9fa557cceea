"""Policy: what an operator tunes, as plain data, checked as a whole.

A document may name only what it changes: `merge` lays it over the policy in force and returns a new
one, or raises `InvalidPolicy` with every problem at once and changes nothing. Unknown keys are
refused with the nearest known one. A zero for a lane's limit keeps what was, as PinchTab's
reload documents it; PinchTab's own `{"scheduler": {...}}` document sets the lane `browser`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fairlane.core.errors import InvalidPolicy

FAIR: Final = "fair-fifo"
BY_PRIORITY: Final = "priority"
FALLBACK_LANE: Final = "main"


class ReservedPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """Slots that only critical work may take, so that the rest never takes the last one."""

    critical: int = 0


class LanePolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A pool with a hard ceiling. None means no limit.

    `aging_ms` is how long a waiting task takes to gain one point of priority; None for never.
    """

    max_inflight: int = 30
    max_per_agent_inflight: int | None = None
    max_queue_size: int | None = 10_000
    max_per_agent: int | None = None
    strategy: str = FAIR
    paused: bool = False
    aging_ms: int | None = None
    reserved: ReservedPolicy = ReservedPolicy()


class KindPolicy(msgspec.Struct, frozen=True, rename="camel"):
    lane: str
    deadline_sec: int | None = None
    timeout_ms: int | None = None
    max_attempts: int = 1
    backoff_ms: int = 1000
    backoff_multiplier: float = 2.0
    max_backoff_ms: int = 60_000
    jitter: float = 0.0
    when_spent: str = "fail"


class AgentPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """`max_inflight` replaces the per-agent ceiling of every fair lane for this agent."""

    weight: float = 1.0
    max_inflight: int | None = None


class SessionPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """How sessions behave that say nothing themselves. Cap, drop, mode and debounce are about
    messages; a task that only names a session waits for its turn, however many there are.
    """

    mode: str = "queue"
    cap: int = 10
    drop: str = "old"
    debounce_ms: int = 800
    debounce_max_ms: int = 5000
    max_concurrent: int = 1
    throttle_at: float = 0.6


class RetentionPolicy(msgspec.Struct, frozen=True, rename={"result_ttl_sec": "resultTTLSec"}):
    days: int = 30
    result_ttl_sec: int | None = None

    @property
    def ttl_ms(self) -> int:
        return self.result_ttl_sec * 1000 if self.result_ttl_sec else self.days * 86_400_000


def _default_lanes() -> dict[str, LanePolicy]:
    return {
        "browser": LanePolicy(
            max_inflight=20, max_per_agent_inflight=10, max_queue_size=1000, max_per_agent=100
        ),
        "main": LanePolicy(max_inflight=30),
        "subagent": LanePolicy(max_inflight=50),
        "team": LanePolicy(max_inflight=100),
        "cron": LanePolicy(max_inflight=30),
        "instruction": LanePolicy(max_inflight=1, strategy=BY_PRIORITY),
        "queue": LanePolicy(max_inflight=1, max_queue_size=None, strategy=BY_PRIORITY),
    }


def _default_kinds() -> dict[str, KindPolicy]:
    return {
        "action": KindPolicy(lane="browser", deadline_sec=60),
        "handler": KindPolicy(lane="main", max_attempts=3, when_spent="park"),
        "instruction": KindPolicy(lane="instruction", timeout_ms=120_000, max_attempts=4),
    }


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    enabled: bool = True
    max_inflight: int | None = None
    worker_count: int = 0
    lanes: dict[str, LanePolicy] = msgspec.field(default_factory=_default_lanes)
    kinds: dict[str, KindPolicy] = msgspec.field(default_factory=_default_kinds)
    agents: dict[str, AgentPolicy] = msgspec.field(default_factory=dict)
    sessions: SessionPolicy = SessionPolicy()
    retention: RetentionPolicy = RetentionPolicy()

    def lane_name(self, wanted: str | None, kind: str) -> str:
        """The lane a task goes to: the one it names, its kind's, or `main` for unknown names."""
        name = wanted or self.kinds[kind].lane
        return name if name in self.lanes else FALLBACK_LANE

    def weight(self, agent: str) -> float:
        settings = self.agents.get(agent)
        return settings.weight if settings else 1.0

    def agent_ceiling(self, lane: str, agent: str) -> int | None:
        settings = self.agents.get(agent)
        if settings and settings.max_inflight is not None:
            return settings.max_inflight
        return self.lanes[lane].max_per_agent_inflight


def to_document(policy: Policy) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(policy)
    return document


def from_document(document: Mapping[str, Any]) -> Policy:
    return merge(Policy(), document)


def restored(kept: Policy) -> Policy:
    """A policy that an older version has kept, with the lanes and kinds that there are since."""
    lanes = {**_default_lanes(), **kept.lanes}
    kinds = {**_default_kinds(), **kept.kinds}
    return msgspec.structs.replace(kept, lanes=lanes, kinds=kinds)


def merge(policy: Policy, document: Any) -> Policy:
    """Lay `document` over `policy`. Raises `InvalidPolicy` with all problems."""
    if not isinstance(document, dict):
        raise InvalidPolicy(["a policy is a JSON object"])
    problems: list[str] = []
    document = _translate(document, problems)
    merged = _merge_object(to_document(policy), document, _POLICY, "", problems)
    problems += _contradictions(merged)
    if problems:
        raise InvalidPolicy(problems)
    return msgspec.convert(merged, Policy)


# Where the keys of PinchTab's section live here. It spells one of them in two ways.
_SCHEDULER: Final[Mapping[str, tuple[str, ...]]] = {
    "enabled": ("enabled",),
    "strategy": ("lanes", "browser", "strategy"),
    "maxQueueSize": ("lanes", "browser", "maxQueueSize"),
    "maxPerAgent": ("lanes", "browser", "maxPerAgent"),
    "maxInflight": ("lanes", "browser", "maxInflight"),
    "maxPerAgentInflight": ("lanes", "browser", "maxPerAgentInflight"),
    "maxPerAgentFlight": ("lanes", "browser", "maxPerAgentInflight"),
    "resultTTLSec": ("retention", "resultTTLSec"),
    "workerCount": ("workerCount",),
}


def _translate(document: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Say PinchTab's section in our keys. What it leaves empty or at zero is not said at all."""
    if "scheduler" not in document:
        return document
    result = {key: value for key, value in document.items() if key != "scheduler"}
    section = document["scheduler"]
    if not isinstance(section, dict):
        problems.append("scheduler must be an object")
        return result
    for key, value in section.items():
        path = _SCHEDULER.get(key)
        if path is None:
            problems.append(f"unknown key scheduler.{_shown(key)}{nearest(key, _SCHEDULER)}")
        elif value is False or (value is not None and value != 0):
            _put(result, path, value)
    return result


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set `value`, unless the document says something else there in our own keys."""
    for part in path[:-1]:
        inner = document.get(part, {})
        if not isinstance(inner, dict):
            return  # the merge complains about it
        document[part] = dict(inner)
        document = document[part]
    document.setdefault(path[-1], value)


Check = Callable[[Any], str | None]


class _Field(msgspec.Struct, frozen=True):
    check: Check
    zero_keeps: bool = False


class _Map(msgspec.Struct, frozen=True):
    """An object whose keys are names: one of `known`, or new ones that `names` matches."""

    fields: Mapping[str, _Field | Mapping[str, _Field]]
    names: re.Pattern[str]
    known: frozenset[str] | None = None


def _whole(low: int, high: int, *, optional: bool = False) -> Check:
    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            return f"must be a whole number from {low} to {high}" + " or null" * optional
        return None

    return check


def _number(low: float, high: float) -> Check:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number from {low} to {high}"
        return None if low <= value <= high else f"must be a number from {low} to {high}"

    return check


def _one_of(*words: str) -> Check:
    def check(value: Any) -> str | None:
        return None if value in words else f"must be one of {', '.join(words)}"

    return check


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


_LIMIT: Final = _Field(_whole(1, 10_000_000, optional=True), zero_keeps=True)
_DAY_MS: Final = 86_400_000

_LANE: Final[Mapping[str, _Field | Mapping[str, _Field]]] = {
    "maxInflight": _Field(_whole(1, 100_000), zero_keeps=True),
    "maxPerAgentInflight": _LIMIT,
    "maxQueueSize": _LIMIT,
    "maxPerAgent": _LIMIT,
    "strategy": _Field(_one_of(FAIR, BY_PRIORITY)),
    "paused": _Field(_flag),
    "agingMs": _Field(_whole(1, _DAY_MS, optional=True)),
    "reserved": {"critical": _Field(_whole(0, 100_000))},
}
_KIND: Final = {
    "lane": _Field(lambda v: None if isinstance(v, str) and v else "must be the name of a lane"),
    "deadlineSec": _Field(_whole(1, 30 * 86_400, optional=True)),
    "timeoutMs": _Field(_whole(1, _DAY_MS, optional=True)),
    "maxAttempts": _Field(_whole(1, 1000)),
    "backoffMs": _Field(_whole(0, _DAY_MS)),
    "backoffMultiplier": _Field(_number(1, 100)),
    "maxBackoffMs": _Field(_whole(0, _DAY_MS)),
    "jitter": _Field(_number(0, 1)),
    "whenSpent": _Field(_one_of("fail", "park")),
}
_AGENT: Final = {
    "weight": _Field(_number(0.01, 1000)),
    "maxInflight": _LIMIT,
}
# What a task may call its lane and its agent, so that nothing is set for a name nobody can have.
_LANE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
_POLICY: Final[Mapping[str, _Field | _Map | Mapping[str, _Field]]] = {
    "enabled": _Field(_flag),
    "maxInflight": _LIMIT,
    "workerCount": _Field(_whole(0, 100_000)),
    "lanes": _Map(_LANE, _LANE_NAME),
    "kinds": _Map(_KIND, _LANE_NAME, known=frozenset(_default_kinds())),
    "agents": _Map(_AGENT, _AGENT_NAME),
    "sessions": {
        "mode": _Field(_one_of("queue", "followup", "interrupt", "collect")),
        "cap": _Field(_whole(0, 10_000)),
        "drop": _Field(_one_of("old", "new")),
        "debounceMs": _Field(_whole(0, 60_000)),
        "debounceMaxMs": _Field(_whole(0, 600_000)),
        "maxConcurrent": _Field(_whole(1, 1000)),
        "throttleAt": _Field(_number(0.01, 1)),
    },
    "retention": {
        "days": _Field(_whole(1, 3650)),
        "resultTTLSec": _Field(_whole(1, 3650 * 86_400, optional=True), zero_keeps=True),
    },
}


def _merge_object(
    current: dict[str, Any],
    document: Any,
    schema: Mapping[str, Any],
    path: str,
    problems: list[str],
) -> dict[str, Any]:
    merged = dict(current)
    if not isinstance(document, dict):
        problems.append(f"{path.rstrip('.')} must be an object")
        return merged
    for key, value in document.items():
        rule = schema.get(key)
        if rule is None:
            problems.append(f"unknown key {path}{_shown(key)}{nearest(key, schema)}")
        elif isinstance(rule, _Field):
            problem = _merge_field(merged, key, value, rule)
            if problem:
                problems.append(f"{path}{key} {problem}")
        elif isinstance(rule, _Map):
            merged[key] = _merge_map(merged[key], value, rule, f"{path}{key}.", problems)
        else:
            inner = merged.get(key, {})
            merged[key] = _merge_object(inner, value, rule, f"{path}{key}.", problems)
    return merged


def _merge_field(merged: dict[str, Any], key: str, value: Any, rule: _Field) -> str | None:
    """Take `value` over, or say what is wrong with it."""
    if rule.zero_keeps and value == 0 and not isinstance(value, bool):
        return None
    problem = rule.check(value)
    if problem is None:
        merged[key] = value
    return problem


def _merge_map(
    current: dict[str, Any], document: Any, rule: _Map, path: str, problems: list[str]
) -> dict[str, Any]:
    merged = dict(current)
    if not isinstance(document, dict):
        problems.append(f"{path.rstrip('.')} must be an object")
        return merged
    for name, settings in document.items():
        if rule.known is not None and name not in rule.known:
            problems.append(f"unknown key {path}{_shown(name)}{nearest(name, rule.known)}")
        elif not rule.names.fullmatch(name):
            problems.append(f"{path}{_shown(name)} must be a name like {rule.names.pattern}")
        else:
            entry = merged.get(name, {})
            merged[name] = _merge_object(entry, settings, rule.fields, f"{path}{name}.", problems)
    return merged


def _contradictions(document: dict[str, Any]) -> list[str]:
    problems = []
    for name, lane in document["lanes"].items():
        if lane.get("strategy") == BY_PRIORITY and lane.get("maxPerAgentInflight") is not None:
            problems.append(
                f"lanes.{name}.maxPerAgentInflight needs the strategy {FAIR}: "
                "a lane ordered by priority does not look at agents; set it to null"
            )
        reserved = lane.get("reserved", {}).get("critical", 0)
        if reserved and reserved >= lane.get("maxInflight", LanePolicy().max_inflight):
            problems.append(
                f"lanes.{name}.reserved.critical must be smaller than maxInflight: "
                "nothing else could ever run"
            )
    for name, kind in document["kinds"].items():
        if kind["lane"] not in document["lanes"]:
            hint = nearest(kind["lane"], document["lanes"])
            problems.append(f"kinds.{name}.lane names no lane of the policy{hint}")
    return problems


def _shown(key: str) -> str:
    """A key as a message shows it: as it stands, or quoted and cut when it could be anything."""
    return key if _AGENT_NAME.fullmatch(key) else repr(key[:20])


def nearest(word: str, known: Any) -> str:
    """`; did you mean x?` for the nearest known word, or nothing."""
    # Compared only so far: a caller may send a million characters, and none of ours is that long.
    found = difflib.get_close_matches(word[:100], list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
