"""Policy: the settings that an operator tunes, as plain data, checked as a whole.

There are three ways from a document to a policy: `merge` lays it over the policy in force,
`replace` over the defaults, and `patch` is a merge in which null restores a default. Each returns a
new policy, or raises `InvalidPolicy` with every problem at once and changes nothing. Unknown keys
are refused with the nearest known one. A zero for a lane's limit keeps the current value. A
`Dialect` translates the documents of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from fairlane.core import documents, resource_documents, resources
from fairlane.core.documents import Field, Names, Reading, flag, number, one_of, whole
from fairlane.core.errors import InvalidPolicy
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.resources import ResourcePolicy

nearest: Final = documents.nearest

FAIR: Final = "fair-fifo"
BY_PRIORITY: Final = "priority"
FALLBACK_LANE: Final = "main"
INSTRUCTION_TIMEOUT_MS_MAX: Final = 600_000


class ReservedPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """Slots that only critical tasks may take, so that other tasks never take the last one."""

    critical: int = 0


class LanePolicy(msgspec.Struct, frozen=True, rename="camel"):
    """A pool with a hard ceiling. None means no limit.

    `aging_ms` is how long a waiting task takes to gain one point of priority; None for never. For
    tasks of this lane, the settings from `max_attempts` to `when_spent` override those of their
    kind; None leaves them to the kind. `max_releases` is how often external workers may release a
    task unfinished. Without `auto_reclaim`, an expired lease keeps its slot until an operator
    reclaims it. `needs` are what tasks need unless they say otherwise, resource by resource.
    """

    max_inflight: int = 30
    max_per_agent_inflight: int | None = None
    max_queue_size: int | None = 10_000
    max_per_agent: int | None = None
    strategy: str = FAIR
    paused: bool = False
    aging_ms: int | None = None
    reserved: ReservedPolicy = ReservedPolicy()
    max_attempts: int | None = None
    backoff_ms: int | None = None
    backoff_multiplier: float | None = None
    max_backoff_ms: int | None = None
    jitter: float | None = None
    when_spent: str | None = None
    lease_ttl_ms: int | None = None
    max_releases: int | None = 100
    auto_reclaim: bool = True
    needs: JsonObject | None = None


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
    needs: JsonObject | None = None


class AgentPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """`max_inflight` replaces the per-agent ceiling of every fair lane for this agent."""

    weight: float = 1.0
    max_inflight: int | None = None


class SessionPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The defaults of sessions. Cap, drop, mode and debounce apply to messages; a task that only
    names a session waits for its turn, however many wait.
    """

    mode: str = "queue"
    cap: int = 10
    drop: str = "old"
    debounce_ms: int = 800
    debounce_max_ms: int = 5000
    max_concurrent: int = 1
    throttle_at: float = 0.6


class LeasesPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """How long an external worker may keep a lease that it does not renew."""

    ttl_ms: int = 300_000


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
    """With `strict_handlers` a submission for a handler that no known worker offers is refused, and
    with `strict_lanes` one that names a lane which does not exist.
    """

    enabled: bool = True
    max_inflight: int | None = None
    worker_count: int = 0
    lanes: dict[str, LanePolicy] = msgspec.field(default_factory=_default_lanes)
    kinds: dict[str, KindPolicy] = msgspec.field(default_factory=_default_kinds)
    agents: dict[str, AgentPolicy] = msgspec.field(default_factory=dict)
    sessions: SessionPolicy = SessionPolicy()
    leases: LeasesPolicy = LeasesPolicy()
    retention: RetentionPolicy = RetentionPolicy()
    resources: dict[str, ResourcePolicy] = msgspec.field(default_factory=dict)
    strict_handlers: bool = False
    strict_lanes: bool = False

    def lane_name(self, wanted: str | None, kind: str) -> str:
        """Return a task's lane: the one it names, its kind's, or `main` for unknown names."""
        name = wanted or self.kinds[kind].lane
        return name if name in self.lanes else FALLBACK_LANE

    def max_attempts(self, kind: str, lane: str) -> int:
        return self.lanes[lane].max_attempts or self.kinds[kind].max_attempts

    def retries(self, kind: str, lane: str) -> KindPolicy:
        """Return the retry settings of a kind in a lane."""
        settings = self.kinds[kind]
        found = self.lanes.get(lane)
        said = {name: getattr(found, name) for name in _RETRIES} if found else {}
        said = {name: value for name, value in said.items() if value is not None}
        return msgspec.structs.replace(settings, **said) if said else settings

    def reclaimed_by_hand(self) -> list[str]:
        """Return the lanes whose expired leases keep their slot until an operator reclaims them."""
        return [name for name, lane in self.lanes.items() if not lane.auto_reclaim]

    def lease_ttl_ms(self, lane: str) -> int:
        """Return how long an external worker may keep a lease in the lane without renewing it."""
        # The lane may have been removed while a cancelled run continued.
        found = self.lanes.get(lane)
        return (found.lease_ttl_ms if found else None) or self.leases.ttl_ms

    def weight(self, agent: str) -> float:
        settings = self.agents.get(agent)
        return settings.weight if settings else 1.0

    def needs(self, own: JsonMapping | None, kind: str, lane: str) -> JsonObject | None:
        """Return what a task needs: its own needs, then its lane's, then its kind's."""
        usual, of_lane = self.kinds[kind].needs, self.lanes[lane].needs
        if not (own or usual or of_lane):
            return None
        return resources.merged_needs(usual, of_lane, own)

    def agent_ceiling(self, lane: str, agent: str) -> int | None:
        settings = self.agents.get(agent)
        if settings and settings.max_inflight is not None:
            return settings.max_inflight
        return self.lanes[lane].max_per_agent_inflight


# Retry settings that a lane may override.
_RETRIES: Final = (
    "max_attempts",
    "backoff_ms",
    "backoff_multiplier",
    "max_backoff_ms",
    "jitter",
    "when_spent",
)
_OWN: Final = (*_RETRIES, "lease_ttl_ms", "needs")
_OWN_KEYS: Final = tuple(
    key
    for name, key in zip(
        LanePolicy.__struct_fields__, LanePolicy.__struct_encode_fields__, strict=True
    )
    if name in _OWN
)


def to_document(policy: Policy) -> JsonObject:
    """Return the whole document. It omits only settings that a lane leaves to the kinds, needs
    that are not set, and what a resource leaves out.
    """
    document: JsonObject = msgspec.to_builtins(policy)
    for lane in document["lanes"].values():
        for key in _OWN_KEYS:
            if lane[key] is None:
                del lane[key]
    for kind in document["kinds"].values():
        if kind["needs"] is None:
            del kind["needs"]
    return document


class Dialect(Protocol):
    """Translates policy documents of other programs."""

    keys: frozenset[str]  # keys that it knows at the top of a document

    def is_foreign(self, document: object) -> bool:
        """Return whether a document belongs to another program."""
        ...

    def translate(self, document: JsonObject, problems: list[str]) -> JsonObject:
        """Return the document in Fairlane's keys; add its problems to `problems`."""
        ...


def from_document(document: JsonMapping) -> Policy:
    return merge(Policy(), document)


def merge(policy: Policy, document: object, dialect: Dialect | None = None) -> Policy:
    """Lay `document` over `policy`. Raise `InvalidPolicy` with all problems."""
    return _merged(policy, document, Reading(), dialect)


def replace(policy: Policy, document: object, dialect: Dialect | None = None) -> Policy:
    """Return the policy of `document` alone: missing keys get their defaults.

    A document of another program does not cover all keys; the others stay as they are in `policy`.
    """
    foreign = dialect is not None and dialect.is_foreign(document)
    return _merged(policy if foreign else Policy(), document, Reading(), dialect)


def patch(policy: Policy, document: object, dialect: Dialect | None = None) -> Policy:
    """Lay `document` over `policy`; a null restores the default or removes a name."""
    return _merged(policy, document, Reading(defaults=to_document(Policy())), dialect)


def read(document: object) -> tuple[Policy, list[str]]:
    """Return a stored policy, possibly of another version, and the paths that this version does not
    know. Raise `InvalidPolicy` if the rest does not fit.
    """
    unknown: list[str] = []
    known = documents.known(document, RULES, unknown)
    return from_document(_with_shorter_instructions(known)), unknown


def _with_shorter_instructions(document: Any) -> Any:
    """Return a stored document with the timeout of instructions cut to the maximum, which older
    versions exceeded.
    """
    try:
        kinds = document["kinds"]
        kind = kinds["instruction"]
        if kind["timeoutMs"] <= INSTRUCTION_TIMEOUT_MS_MAX:
            return document
    except (KeyError, TypeError):  # the key is missing, or the document is not a policy
        return document
    shorter = {**kind, "timeoutMs": INSTRUCTION_TIMEOUT_MS_MAX}
    return {**document, "kinds": {**kinds, "instruction": shorter}}


def _merged(policy: Policy, document: object, reading: Reading, dialect: Dialect | None) -> Policy:
    if not isinstance(document, dict):
        raise InvalidPolicy(["a policy must be a JSON object"])
    document = unframed(document)
    if dialect is not None:
        reading.words = dialect.keys
        document = dialect.translate(document, reading.problems)
    merged = documents.merge_document(to_document(policy), document, RULES, reading)
    instruction = merged["kinds"]["instruction"]
    if instruction["timeoutMs"] is None:  # no limit is the longest one
        merged["kinds"]["instruction"] = {**instruction, "timeoutMs": INSTRUCTION_TIMEOUT_MS_MAX}
    reading.problems += _contradictions(merged)
    if reading.problems:
        raise InvalidPolicy(reading.problems)
    return msgspec.convert(merged, Policy)


# What accompanies a policy where it is shown.
_SHOWN: Final = frozenset({"version", "policy", "source", "author", "note", "createdAt"})


def unframed(document: JsonObject) -> JsonObject:
    """Return the document without the version, author and note that accompany a shown policy."""
    inner = document.get("policy")
    return inner if isinstance(inner, dict) and document.keys() <= _SHOWN else document


_LIMIT: Final = Field(whole(1, 10_000_000, optional=True), zero_keeps=True)
_DAY_MS: Final = 86_400_000

_ATTEMPTS: Final = whole(1, 1000)
_WAIT: Final = whole(0, _DAY_MS)
_MULTIPLIER: Final = number(1, 100)
_JITTER: Final = number(0, 1)
_WHEN_SPENT: Final = one_of("fail", "park")
_NEEDS: Final = Field(resource_documents.check_needs, may_lack=True)

LANE_RULES: Final[Mapping[str, Field | Mapping[str, Field]]] = {
    "maxInflight": Field(whole(1, 100_000), zero_keeps=True),
    "maxPerAgentInflight": _LIMIT,
    "maxQueueSize": _LIMIT,
    "maxPerAgent": _LIMIT,
    "strategy": Field(one_of(FAIR, BY_PRIORITY)),
    "paused": Field(flag),
    "agingMs": Field(whole(1, _DAY_MS, optional=True)),
    "reserved": {"critical": Field(whole(0, 100_000))},
    "maxAttempts": Field(_ATTEMPTS, may_lack=True),
    "backoffMs": Field(_WAIT, may_lack=True),
    "backoffMultiplier": Field(_MULTIPLIER, may_lack=True),
    "maxBackoffMs": Field(_WAIT, may_lack=True),
    "jitter": Field(_JITTER, may_lack=True),
    "whenSpent": Field(_WHEN_SPENT, may_lack=True),
    "leaseTtlMs": Field(whole(1, _DAY_MS), may_lack=True),
    "maxReleases": _LIMIT,
    "autoReclaim": Field(flag),
    "needs": _NEEDS,
}
_KIND: Final = {
    "lane": Field(lambda v: None if isinstance(v, str) and v else "must be the name of a lane"),
    "deadlineSec": Field(whole(1, 30 * 86_400, optional=True)),
    "timeoutMs": Field(whole(1, _DAY_MS, optional=True)),
    "maxAttempts": Field(_ATTEMPTS),
    "backoffMs": Field(_WAIT),
    "backoffMultiplier": Field(_MULTIPLIER),
    "maxBackoffMs": Field(_WAIT),
    "jitter": Field(_JITTER),
    "whenSpent": Field(_WHEN_SPENT),
    "needs": _NEEDS,
}
_INSTRUCTION: Final = {
    **_KIND,
    "timeoutMs": Field(whole(1, INSTRUCTION_TIMEOUT_MS_MAX, optional=True)),
}
_AGENT: Final = {
    "weight": Field(number(0.01, 1000)),
    "maxInflight": _LIMIT,
}
_RESOURCE: Final = {
    "limits": Field(resource_documents.check_limits),
    "by": Field(resource_documents.check_by, may_lack=True),
    "warnAt": Field(number(0.01, 1), may_lack=True),
    "whenSpent": Field(
        one_of(resources.WAIT, resources.FAIL, resources.PARK, resources.ASK), may_lack=True
    ),
    "allowLarger": Field(flag, may_lack=True),
}
# The names that tasks may use, so that no setting is for a name that cannot occur.
_LANE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
RULES: Final[documents.Schema] = {
    "enabled": Field(flag),
    "maxInflight": _LIMIT,
    "workerCount": Field(whole(0, 100_000)),
    "lanes": Names(LANE_RULES, _LANE_NAME),
    "kinds": {**dict.fromkeys(_default_kinds(), _KIND), "instruction": _INSTRUCTION},
    "agents": Names(_AGENT, _AGENT_NAME),
    "sessions": {
        "mode": Field(
            one_of("queue", "followup", "interrupt", "collect", "steer", "reject", "rollback")
        ),
        "cap": Field(whole(0, 10_000)),
        "drop": Field(one_of("old", "new")),
        "debounceMs": Field(whole(0, 60_000)),
        "debounceMaxMs": Field(whole(0, 600_000)),
        "maxConcurrent": Field(whole(1, 1000)),
        "throttleAt": Field(number(0.01, 1)),
    },
    "leases": {"ttlMs": Field(whole(1, _DAY_MS))},
    "retention": {
        "days": Field(whole(1, 3650)),
        "resultTTLSec": Field(whole(1, 3650 * 86_400, optional=True), zero_keeps=True),
    },
    "resources": Names(_RESOURCE, resources.NAME),
    "strictHandlers": Field(flag),
    "strictLanes": Field(flag),
}


def _contradictions(document: JsonObject) -> list[str]:
    problems = []
    for name, lane in document["lanes"].items():
        if lane.get("strategy") == BY_PRIORITY and lane.get("maxPerAgentInflight") is not None:
            problems.append(
                f"lanes.{name}.maxPerAgentInflight needs the strategy {FAIR}: "
                "a lane ordered by priority ignores agents; set it to null"
            )
        reserved = lane.get("reserved", {}).get("critical", 0)
        if reserved and reserved >= lane.get("maxInflight", LanePolicy().max_inflight):
            problems.append(
                f"lanes.{name}.reserved.critical must be smaller than maxInflight: otherwise no "
                "other task could run"
            )
    for name, kind in document["kinds"].items():
        if kind["lane"] not in document["lanes"]:
            hint = nearest(kind["lane"], document["lanes"])
            problems.append(f"kinds.{name}.lane is not a lane in the policy{hint}")
    return problems + _resource_contradictions(document)


def _resource_contradictions(document: JsonObject) -> list[str]:
    declared = document["resources"]
    problems = [
        f"resources.{name}.limits must be set"
        for name, one in declared.items()
        if not one or "limits" not in one
    ]
    if problems:
        return problems
    known = msgspec.convert(declared, dict[str, ResourcePolicy])
    for place in ("kinds", "lanes"):
        for name, one in document[place].items():
            if one.get("needs"):
                problems += resource_documents.needs_problems(
                    f"{place}.{name}.needs", one["needs"], known
                )
    return problems
