"""Policy: the defaults, documents merged over them, and error messages."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from fairlane.compat.coolworkflow import flat_policy
from fairlane.compat.policies import merge, patch, replace
from fairlane.core.errors import InvalidPolicy
from fairlane.core.policy import (
    KindPolicy,
    LanePolicy,
    Policy,
    from_document,
    nearest,
    read,
    to_document,
)

DAY_MS = 86_400_000
PINCHTAB = {
    "scheduler": {
        "enabled": True,
        "strategy": "fair-fifo",
        "maxQueueSize": 1000,
        "maxPerAgent": 100,
        "maxInflight": 20,
        "maxPerAgentInflight": 10,
        "resultTTLSec": 300,
        "workerCount": 4,
    }
}


def _problems(document: Any, policy: Policy | None = None) -> list[str]:
    with pytest.raises(InvalidPolicy) as refusal:
        merge(policy or Policy(), document)
    return refusal.value.problems


# ---------------------------------------------------------------- defaults


@pytest.mark.parametrize(
    ("name", "ceiling", "per_agent", "queue", "per_agent_queue", "strategy"),
    [
        ("browser", 20, 10, 1000, 100, "fair-fifo"),
        ("main", 30, None, 10_000, None, "fair-fifo"),
        ("subagent", 50, None, 10_000, None, "fair-fifo"),
        ("team", 100, None, 10_000, None, "fair-fifo"),
        ("cron", 30, None, 10_000, None, "fair-fifo"),
        ("instruction", 1, None, 10_000, None, "priority"),
        ("queue", 1, None, None, None, "priority"),
    ],
)
def test_a_lane_has_the_limits_of_the_design(
    *,
    name: str,
    ceiling: int,
    per_agent: int | None,
    queue: int | None,
    per_agent_queue: int | None,
    strategy: str,
) -> None:
    assert Policy().lanes[name] == LanePolicy(
        max_inflight=ceiling,
        max_per_agent_inflight=per_agent,
        max_queue_size=queue,
        max_per_agent=per_agent_queue,
        strategy=strategy,
        paused=False,
    )


def test_the_kinds_have_the_defaults_of_the_design() -> None:
    growth = {"backoff_ms": 1000, "backoff_multiplier": 2, "max_backoff_ms": 60_000, "jitter": 0}
    kinds = Policy().kinds
    assert kinds["action"] == KindPolicy(
        lane="browser",
        deadline_sec=60,
        timeout_ms=None,
        max_attempts=1,
        when_spent="fail",
        **growth,
    )
    assert kinds["handler"] == KindPolicy(
        lane="main", deadline_sec=None, timeout_ms=None, max_attempts=3, when_spent="park", **growth
    )


def test_the_rest_of_the_defaults_limits_nothing() -> None:
    policy = Policy()
    assert (policy.enabled, policy.max_inflight, policy.worker_count) == (True, None, 0)
    assert policy.agents == {}
    assert (policy.retention.days, policy.retention.result_ttl_sec) == (30, None)


def test_the_default_policy_is_a_document_that_it_accepts() -> None:
    assert from_document(to_document(Policy())) == Policy()
    assert from_document({}) == Policy()


def test_what_an_older_version_kept_has_the_lanes_and_kinds_that_came_since() -> None:
    kept = merge(Policy(), {"lanes": {"main": {"maxInflight": 7}, "own": {"maxInflight": 2}}})
    old = to_document(kept)
    del old["lanes"]["instruction"], old["kinds"]["instruction"], old["sessions"]
    del old["lanes"]["browser"]["maxPerAgent"], old["kinds"]["action"]["deadlineSec"]
    assert read(old) == (kept, [])
    assert read(to_document(kept)) == (kept, [])


def test_what_a_newer_version_kept_is_read_without_what_is_not_known() -> None:
    kept = merge(Policy(), {"lanes": {"own": {"maxInflight": 2}}, "agents": {"a": {"weight": 2}}})
    newer = to_document(kept)
    newer["colours"] = {"main": "red"}
    newer["lanes"]["own"]["colour"] = "blue"
    newer["kinds"]["dream"] = {"lane": "main"}
    newer["agents"]["a"]["reserved"] = None
    newer["sessions"]["mood"] = "good"
    policy, unknown = read(newer)
    assert policy == kept
    assert sorted(unknown) == [
        "agents.a.reserved",
        "colours",
        "kinds.dream",
        "lanes.own.colour",
        "sessions.mood",
    ]


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [],
        "policy",
        {"lanes": []},
        {"lanes": {"main": None}},
        {"lanes": {"main": {"maxInflight": -5}}},
        {"lanes": {"queue": {"maxPerAgentInflight": 3}}},
        {"kinds": {"action": {"lane": "nowhere"}}},
        {"retention": 5},
    ],
)
def test_what_was_kept_and_does_not_fit_is_not_taken_for_something_else(kept: Any) -> None:
    with pytest.raises(InvalidPolicy):
        read(kept)


def test_a_document_is_spelled_as_in_the_design() -> None:
    document = to_document(merge(Policy(), {"agents": {"a": {"weight": 2, "maxInflight": 5}}}))
    assert sorted(document) == [
        "agents",
        "enabled",
        "kinds",
        "lanes",
        "leases",
        "maxInflight",
        "resources",
        "retention",
        "sessions",
        "strictHandlers",
        "strictLanes",
        "workerCount",
    ]
    assert document["lanes"]["browser"] == {
        "strategy": "fair-fifo",
        "maxInflight": 20,
        "maxPerAgentInflight": 10,
        "maxQueueSize": 1000,
        "maxPerAgent": 100,
        "paused": False,
        "agingMs": None,
        "reserved": {"critical": 0},
        "maxReleases": 100,
        "autoReclaim": True,
    }
    assert document["sessions"] == {
        "mode": "queue",
        "cap": 10,
        "drop": "old",
        "debounceMs": 800,
        "debounceMaxMs": 5000,
        "maxConcurrent": 1,
        "throttleAt": 0.6,
    }
    assert document["kinds"]["action"] == {
        "lane": "browser",
        "deadlineSec": 60,
        "timeoutMs": None,
        "maxAttempts": 1,
        "backoffMs": 1000,
        "backoffMultiplier": 2,
        "maxBackoffMs": 60_000,
        "jitter": 0,
        "whenSpent": "fail",
    }
    assert document["agents"] == {"a": {"weight": 2, "maxInflight": 5}}
    assert document["retention"] == {"days": 30, "resultTTLSec": None}


# ---------------------------------------------------------------- questions to a policy


@pytest.mark.parametrize(
    ("wanted", "kind", "lane"),
    [
        (None, "action", "browser"),
        (None, "handler", "main"),
        ("team", "action", "team"),
        ("no-such-lane", "action", "main"),
        ("", "action", "browser"),
    ],
)
def test_a_task_goes_to_the_lane_it_names_or_its_kinds_or_main(
    wanted: str | None, kind: str, lane: str
) -> None:
    assert Policy().lane_name(wanted, kind) == lane


def test_a_lane_is_made_by_putting_it_into_the_policy() -> None:
    policy = merge(Policy(), {"lanes": {"gpu": {"maxInflight": 2}}})
    assert policy.lane_name("gpu", "handler") == "gpu"
    assert policy.lanes["gpu"] == LanePolicy(max_inflight=2)
    assert merge(Policy(), {"lanes": {"gpu": {}}}).lanes["gpu"].max_inflight == 30


def test_an_agent_weighs_one_unless_the_policy_says_otherwise() -> None:
    policy = merge(Policy(), {"agents": {"big": {"weight": 2.5}}})
    assert (policy.weight("big"), policy.weight("other")) == (2.5, 1.0)
    assert merge(Policy(), {"agents": {"bound": {"maxInflight": 1}}}).weight("bound") == 1.0


def test_an_agents_own_ceiling_replaces_that_of_the_lane() -> None:
    policy = merge(Policy(), {"agents": {"vip": {"maxInflight": 15}, "plain": {"weight": 2}}})
    assert policy.agent_ceiling("browser", "vip") == 15
    assert policy.agent_ceiling("main", "vip") == 15
    assert policy.agent_ceiling("browser", "plain") == 10
    assert policy.agent_ceiling("browser", "stranger") == 10
    assert policy.agent_ceiling("main", "stranger") is None


def test_records_are_kept_for_days_or_for_the_seconds_that_pinchtab_says() -> None:
    assert Policy().retention.ttl_ms == 30 * 86_400_000
    assert from_document({"retention": {"days": 2}}).retention.ttl_ms == 2 * 86_400_000
    assert from_document({"retention": {"resultTTLSec": 300}}).retention.ttl_ms == 300_000


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (Policy(), "enabled"),
        (Policy().lanes["main"], "paused"),
        (Policy().kinds["action"], "lane"),
        (Policy().retention, "days"),
        (from_document({"agents": {"a": {}}}).agents["a"], "weight"),
    ],
)
def test_a_policy_in_force_cannot_be_changed_in_place(part: Any, name: str) -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(part, name, getattr(part, name))


# ---------------------------------------------------------------- documents


def test_a_partial_document_leaves_the_rest_as_it_was() -> None:
    policy = merge(Policy(), {"lanes": {"browser": {"maxInflight": 3}}})
    browser = policy.lanes["browser"]
    assert (browser.max_inflight, browser.max_per_agent_inflight, browser.max_queue_size) == (
        3,
        10,
        1000,
    )
    assert {name: lane for name, lane in policy.lanes.items() if name != "browser"} == {
        name: lane for name, lane in Policy().lanes.items() if name != "browser"
    }


def test_a_zero_for_a_limit_keeps_what_was() -> None:
    zeros = dict.fromkeys(["maxInflight", "maxPerAgentInflight", "maxQueueSize", "maxPerAgent"], 0)
    document = {"lanes": {"browser": zeros}, "maxInflight": 0, "retention": {"resultTTLSec": 0}}
    before = merge(Policy(), {"maxInflight": 7, "retention": {"resultTTLSec": 60}})
    assert merge(before, document) == before


def test_a_null_takes_a_limit_away() -> None:
    policy = merge(Policy(), {"lanes": {"browser": {"maxPerAgent": None, "maxQueueSize": None}}})
    browser = policy.lanes["browser"]
    assert (browser.max_per_agent, browser.max_queue_size) == (None, None)


def test_pinchtabs_own_document_is_accepted_as_it_stands() -> None:
    policy = merge(Policy(), PINCHTAB)
    assert policy.lanes == Policy().lanes
    assert (policy.enabled, policy.worker_count, policy.retention.ttl_ms) == (True, 4, 300_000)


def test_pinchtabs_document_sets_the_lane_browser_and_no_other() -> None:
    section = {
        "maxQueueSize": 5,
        "maxPerAgent": 3,
        "maxInflight": 2,
        "maxPerAgentInflight": 1,
        "workerCount": 2,
        "resultTTLSec": 120,
        "enabled": False,
    }
    policy = merge(Policy(), {"scheduler": section})
    assert policy.lanes["browser"] == LanePolicy(
        max_inflight=2, max_per_agent_inflight=1, max_queue_size=5, max_per_agent=3
    )
    assert policy.lanes["main"] == Policy().lanes["main"]
    assert (policy.enabled, policy.worker_count, policy.retention.ttl_ms) == (False, 2, 120_000)


def test_pinchtabs_zeros_and_nulls_keep_what_was() -> None:
    section = {key: 0 for key in PINCHTAB["scheduler"] if key not in ("enabled", "strategy")}
    before = merge(Policy(), PINCHTAB)
    assert merge(before, {"scheduler": section}) == before
    assert merge(before, {"scheduler": dict.fromkeys(section)}) == before
    assert merge(before, {"scheduler": {}}) == before


def test_a_limit_per_agent_alone_is_not_ignored() -> None:
    policy = merge(Policy(), {"scheduler": {"maxQueueSize": 0, "maxPerAgent": 10}})
    assert policy.lanes["browser"].max_per_agent == 10


def test_the_other_spelling_of_pinchtabs_statistics_is_understood() -> None:
    policy = merge(Policy(), {"scheduler": {"maxPerAgentFlight": 15, "maxInflight": 30}})
    browser = policy.lanes["browser"]
    assert (browser.max_per_agent_inflight, browser.max_inflight) == (15, 30)


def test_what_is_reported_in_our_own_keys_goes_before_pinchtabs() -> None:
    document = {
        "scheduler": {"maxInflight": 5, "maxPerAgent": 6},
        "lanes": {"browser": {"maxInflight": 7}},
    }
    browser = merge(Policy(), document).lanes["browser"]
    assert (browser.max_inflight, browser.max_per_agent) == (7, 6)
    assert document["lanes"] == {"browser": {"maxInflight": 7}}


# ---------------------------------------------------------------- complaints


@pytest.mark.parametrize("document", [None, [], "fair", 3, True])
def test_a_policy_is_an_object(document: Any) -> None:
    assert _problems(document) == ["a policy must be a JSON object"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"lane": {}}, "unknown key lane; did you mean lanes?"),
        ({"maxInFlight": 3}, "unknown key maxInFlight; did you mean maxInflight?"),
        ({"zzz": 1}, "unknown key zzz"),
        (
            {"lanes": {"browser": {"maxQueSize": 1}}},
            "unknown key lanes.browser.maxQueSize; did you mean maxQueueSize?",
        ),
        (
            {"kinds": {"handlers": {}}},
            "unknown key kinds.handlers; did you mean handler?",
        ),
        (
            {"kinds": {"action": {"lanes": "main"}}},
            "unknown key kinds.action.lanes; did you mean lane?",
        ),
        ({"agents": {"a": {"wieght": 1}}}, "unknown key agents.a.wieght; did you mean weight?"),
        ({"retention": {"day": 1}}, "unknown key retention.day; did you mean days?"),
        (
            {"scheduler": {"workerCuont": 4}},
            "unknown key scheduler.workerCuont; did you mean workerCount?",
        ),
        ({"scheduler": {"maxBatchSize": 4}}, "unknown key scheduler.maxBatchSize"),
        ({"maxConcurent": 1}, "unknown key maxConcurent; did you mean maxConcurrent?"),
        (
            {"schemaVersion": 1, "maxAttempts": 2, "backoffBaseMS": 5},
            "unknown key backoffBaseMS; did you mean backoffBaseMs?",
        ),
        ({"shceduler": {}}, "unknown key shceduler; did you mean scheduler?"),
        ({"lanes": {"main": {"backoffBaseMs": 5}}}, "unknown key lanes.main.backoffBaseMs"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    document: dict[str, Any], problem: str
) -> None:
    (found,) = _problems(document)
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"enabled": 1}, "enabled"),
        ({"maxInflight": -1}, "maxInflight"),
        ({"maxInflight": False}, "maxInflight"),
        ({"workerCount": None}, "workerCount"),
        ({"workerCount": 1.0}, "workerCount"),
        ({"lanes": {"main": {"maxInflight": None}}}, "lanes.main.maxInflight"),
        ({"lanes": {"main": {"maxInflight": "3"}}}, "lanes.main.maxInflight"),
        ({"lanes": {"main": {"maxInflight": 100_001}}}, "lanes.main.maxInflight"),
        ({"lanes": {"main": {"strategy": "lifo"}}}, "lanes.main.strategy"),
        ({"lanes": {"main": {"strategy": ["fair-fifo"]}}}, "lanes.main.strategy"),
        ({"lanes": {"main": {"paused": "no"}}}, "lanes.main.paused"),
        ({"kinds": {"action": {"lane": 7}}}, "kinds.action.lane"),
        ({"kinds": {"action": {"lane": ""}}}, "kinds.action.lane"),
        ({"kinds": {"action": {"deadlineSec": 0}}}, "kinds.action.deadlineSec"),
        ({"kinds": {"action": {"maxAttempts": 0}}}, "kinds.action.maxAttempts"),
        ({"kinds": {"action": {"backoffMultiplier": 0.5}}}, "kinds.action.backoffMultiplier"),
        ({"kinds": {"action": {"jitter": True}}}, "kinds.action.jitter"),
        ({"kinds": {"action": {"jitter": float("nan")}}}, "kinds.action.jitter"),
        ({"kinds": {"action": {"jitter": "0.5"}}}, "kinds.action.jitter"),
        ({"kinds": {"action": {"whenSpent": "retry"}}}, "kinds.action.whenSpent"),
        ({"agents": {"a": {"weight": 0}}}, "agents.a.weight"),
        ({"agents": {"a": {"weight": float("inf")}}}, "agents.a.weight"),
        ({"retention": {"days": 0}}, "retention.days"),
        ({"scheduler": {"maxInflight": -4}}, "lanes.browser.maxInflight"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_path(
    document: dict[str, Any], path: str
) -> None:
    (problem,) = _problems(document)
    assert problem.startswith(f"{path} must be ")


@pytest.mark.parametrize(
    ("path", "low", "high", "step"),
    [
        ("maxInflight", 1, 10_000_000, 1),
        ("workerCount", 0, 100_000, 1),
        ("lanes.main.maxInflight", 1, 100_000, 1),
        ("lanes.main.maxPerAgentInflight", 1, 10_000_000, 1),
        ("lanes.main.maxQueueSize", 1, 10_000_000, 1),
        ("lanes.main.maxPerAgent", 1, 10_000_000, 1),
        ("kinds.handler.deadlineSec", 1, 30 * 86_400, 1),
        ("kinds.handler.timeoutMs", 1, DAY_MS, 1),
        ("kinds.instruction.timeoutMs", 1, 600_000, 1),
        ("kinds.handler.maxAttempts", 1, 1000, 1),
        ("kinds.handler.backoffMs", 0, DAY_MS, 1),
        ("kinds.handler.backoffMultiplier", 1, 100, 0.001),
        ("kinds.handler.maxBackoffMs", 0, DAY_MS, 1),
        ("kinds.handler.jitter", 0, 1, 0.001),
        ("agents.a.weight", 0.01, 1000, 0.001),
        ("agents.a.maxInflight", 1, 10_000_000, 1),
        ("retention.days", 1, 3650, 1),
        ("retention.resultTTLSec", 1, 3650 * 86_400, 1),
    ],
)
def test_a_number_fits_up_to_its_bounds_and_not_beyond(
    path: str, low: float, high: float, step: float
) -> None:
    for number in (low, high):
        assert _at(to_document(merge(Policy(), _saying(path, number))), path) == number
    # A zero below the bound of a limit would keep what was.
    for number in (low - step or -1, high + step):
        (problem,) = _problems(_saying(path, number))
        assert problem.startswith(f"{path} must be a ")
        assert f" from {low} to {high}" in problem


def _saying(path: str, value: Any) -> dict[str, Any]:
    """The document that says only this."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def _at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document[key]
    return document


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"lanes": 5}, "lanes"),
        ({"lanes": {"main": None}}, "lanes.main"),
        ({"retention": []}, "retention"),
        ({"kinds": "action"}, "kinds"),
        ({"scheduler": None}, "scheduler"),
        ({"scheduler": [1]}, "scheduler"),
        ({"lanes": 5, "scheduler": {"maxInflight": 3}}, "lanes"),
        ({"lanes": {"browser": 5}, "scheduler": {"maxInflight": 3}}, "lanes.browser"),
        ({"retention": None, "scheduler": {"resultTTLSec": 3}}, "retention"),
    ],
)
def test_what_has_to_be_an_object_is_named(document: dict[str, Any], path: str) -> None:
    assert _problems(document) == [f"{path} must be an object"]


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\nb", "x" * 65, "ärmel"])
def test_a_lane_that_no_task_could_name_is_refused(name: str) -> None:
    (problem,) = _problems({"lanes": {name: {}}})
    assert problem.startswith("lanes.")
    assert " must be a name like " in problem
    assert "\n" not in problem
    assert len(problem) < 150


def test_an_agent_may_be_called_what_a_task_may_call_it() -> None:
    longest = "bot@example.com:" + "x" * 112
    assert merge(Policy(), {"agents": {longest: {"weight": 3}}}).weight(longest) == 3
    assert len(_problems({"agents": {longest + "x": {}}})) == 1


def test_a_strange_key_is_shown_in_one_short_line() -> None:
    (problem,) = _problems({"a\nb" + "c" * 1000: 1})
    assert problem.startswith("unknown key 'a\\nbccc")
    assert len(problem) < 60


def test_a_kind_may_only_name_a_lane_that_exists() -> None:
    (problem,) = _problems({"kinds": {"action": {"lane": "browsers"}}})
    assert problem == "kinds.action.lane is not a lane in the policy; did you mean browser?"


def test_a_kind_may_name_a_lane_of_the_same_document() -> None:
    document = {"kinds": {"action": {"lane": "tabs"}}, "lanes": {"tabs": {}}}
    assert merge(Policy(), document).lane_name(None, "action") == "tabs"


def test_a_lane_by_priority_cannot_limit_agents() -> None:
    (problem,) = _problems({"lanes": {"browser": {"strategy": "priority"}}})
    assert problem.startswith("lanes.browser.maxPerAgentInflight needs the strategy fair-fifo")
    document = {"lanes": {"browser": {"strategy": "priority", "maxPerAgentInflight": None}}}
    assert merge(Policy(), document).lanes["browser"].strategy == "priority"


def test_all_problems_are_reported_at_once() -> None:
    document = {
        "colour": "red",
        "enabled": "yes",
        "lanes": {"queue": {"maxPerAgentInflight": 3}, "main": {"paused": 3}},
        "kinds": {"action": {"lane": "nowhere"}},
        "scheduler": {"speed": 3},
    }
    problems = _problems(document)
    assert sorted(problem.split(" ")[0] for problem in problems) == [
        "enabled",
        "kinds.action.lane",
        "lanes.main.paused",
        "lanes.queue.maxPerAgentInflight",
        "unknown",
        "unknown",
    ]


def test_a_word_near_to_nothing_gets_no_hint() -> None:
    assert nearest("zebra", ["lanes", "kinds"]) == ""
    assert nearest("lane", ["lanes", "kinds"]) == "; did you mean lanes?"


@pytest.mark.parametrize(("factor", "shown"), [(2.0, 2), (1.5, 1.5)])
def test_the_queue_is_reported_in_the_words_of_its_file(factor: float, shown: float) -> None:
    policy = from_document({"lanes": {"queue": {"maxInflight": 4, "backoffMultiplier": factor}}})
    assert flat_policy(policy) == {
        "maxConcurrent": 4,
        "maxAttempts": 3,
        "leaseTtlMs": 300_000,
        "backoffBaseMs": 1000,
        "backoffFactor": shown,
        "backoffCapMs": 60_000,
    }
    assert isinstance(flat_policy(policy)["backoffFactor"], type(shown))


def test_lanes_can_leave_leases_that_ran_out_to_people() -> None:
    policy = from_document({"lanes": {"queue": {"autoReclaim": False}}})
    assert (Policy().reclaimed_by_hand(), policy.reclaimed_by_hand()) == ([], ["queue"])


# -------------------------------------------------------------------- how long instructions take


@pytest.mark.parametrize("unlimited", [None, "none"])
@pytest.mark.parametrize("lay", [merge, replace])
def test_an_instruction_without_a_limit_has_the_longest_one(lay: Any, unlimited: Any) -> None:
    document = {"kinds": {"instruction": {"timeoutMs": unlimited}}}
    assert lay(Policy(), document).kinds["instruction"].timeout_ms == 600_000
    others = {"kinds": {"handler": {"timeoutMs": unlimited}}}
    assert lay(Policy(), others).kinds["handler"].timeout_ms is None


def test_null_in_a_patch_brings_the_usual_limit_of_instructions_back() -> None:
    before = merge(Policy(), {"kinds": {"instruction": {"timeoutMs": 5}}})
    after = patch(before, {"kinds": {"instruction": {"timeoutMs": None}}})
    assert after.kinds["instruction"].timeout_ms == 120_000


@pytest.mark.parametrize("kept", [600_001, DAY_MS, None])
def test_a_kept_policy_of_an_older_version_is_read_with_the_longest_limit(kept: int | None) -> None:
    document = to_document(Policy())
    document["kinds"]["instruction"]["timeoutMs"] = kept
    policy, unknown = read(document)
    assert (policy.kinds["instruction"].timeout_ms, unknown) == (600_000, [])
    assert merge(policy, {"workerCount": 1}).worker_count == 1


@pytest.mark.parametrize("kinds", [7, {"instruction": 7}, {"instruction": {}}, {}])
def test_a_kept_policy_may_say_nothing_of_instructions(kinds: Any) -> None:
    with contextlib.suppress(InvalidPolicy):
        policy, _ = read({"kinds": kinds})
        assert policy == Policy()
