"""Documents laid over a policy: they change what they name, or nothing and say everything."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from fairlane.compat.policies import merge
from fairlane.core.errors import InvalidPolicy
from fairlane.core.policy import Policy, from_document, to_document
from tests.property.histories import BOUNDED

DAY_MS = 86_400_000
LANE_LIMITS = ("maxInflight", "maxPerAgentInflight", "maxQueueSize", "maxPerAgent")
NEW_LANES = ("gpu", "tabs.eu-1")

limit = st.integers(1, 10_000_000)


def _some(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with any part of these keys."""
    return st.fixed_dictionaries({}, optional=values)


def _named(names: st.SearchStrategy[str], entry: st.SearchStrategy[Any]) -> Any:
    return st.dictionaries(names, entry, max_size=2)


lane_settings = _some(
    maxInflight=st.integers(1, 100_000),
    maxPerAgentInflight=limit | st.none(),
    maxQueueSize=limit | st.none(),
    maxPerAgent=limit | st.none(),
    strategy=st.sampled_from(["fair-fifo", "priority"]),
    paused=st.booleans(),
    maxAttempts=st.integers(1, 1000),
    backoffMultiplier=st.floats(1, 100),
    whenSpent=st.sampled_from(["fail", "park"]),
    leaseTtlMs=st.integers(1, DAY_MS),
)
kind_settings = _some(
    lane=st.sampled_from(["browser", "main", "team"]),
    deadlineSec=st.integers(1, 30 * 86_400) | st.none(),
    timeoutMs=st.integers(1, DAY_MS) | st.none(),
    maxAttempts=st.integers(1, 1000),
    backoffMs=st.integers(0, DAY_MS),
    backoffMultiplier=st.floats(1, 100),
    maxBackoffMs=st.integers(0, DAY_MS),
    jitter=st.floats(0, 1),
    whenSpent=st.sampled_from(["fail", "park"]),
)
agent_settings = _some(weight=st.floats(0.01, 1000), maxInflight=limit | st.none())
documents = _some(
    enabled=st.booleans(),
    maxInflight=limit | st.none(),
    workerCount=st.integers(0, 100_000),
    lanes=_named(st.sampled_from(["browser", "main", "queue", *NEW_LANES]), lane_settings),
    kinds=_named(st.sampled_from(["action", "handler"]), kind_settings),
    agents=_named(st.sampled_from(["a", "crawler-01", "bot@example.com"]), agent_settings),
    retention=_some(
        days=st.integers(1, 3650), resultTTLSec=st.integers(1, 3650 * 86_400) | st.none()
    ),
)


def _problems(policy: Policy, document: Any) -> list[str]:
    try:
        merge(policy, document)
    except InvalidPolicy as refusal:
        return refusal.problems
    return []


def _laid_over(policy: Policy, document: dict[str, Any]) -> Policy:
    """The merged policy; documents whose keys are fine but contradict each other do not count."""
    problems = _problems(policy, document)
    assert all(" needs the strategy fair-fifo" in problem for problem in problems)
    assume(not problems)
    return merge(policy, document)


policies = documents.map(lambda document: _laid_over(Policy(), document))


def _leaves(value: Any, path: str = "") -> dict[str, Any]:
    """A document as one flat table of paths and values."""
    if not isinstance(value, dict):
        return {path: value}
    return {
        name: leaf
        for key, inner in value.items()
        for name, leaf in _leaves(inner, f"{path}/{key}").items()
    }


@BOUNDED
@given(policies)
def test_a_policy_is_its_own_document(policy: Policy) -> None:
    assert merge(policy, to_document(policy)) == policy
    assert from_document(to_document(policy)) == policy
    assert merge(policy, {}) == policy


@BOUNDED
@given(policies, documents)
def test_a_document_changes_what_it_names_and_only_that(
    policy: Policy, document: dict[str, Any]
) -> None:
    before = _leaves(to_document(policy))
    after = _leaves(to_document(_laid_over(policy, document)))
    named = _leaves(document)
    for path, value in named.items():
        assert after[path] == value
    new = {"/".join(path.split("/")[:3]) for path in after.keys() - before.keys()}
    assert all(path.startswith(("/lanes/", "/agents/")) for path in new)
    for path in before.keys() - named.keys():
        assert after[path] == before[path]


@BOUNDED
@given(policies, documents)
def test_laying_a_document_over_twice_is_laying_it_over_once(
    policy: Policy, document: dict[str, Any]
) -> None:
    once = _laid_over(policy, document)
    assert merge(once, document) == once


@BOUNDED
@given(
    policies,
    st.sampled_from(["browser", "main", *NEW_LANES]),
    st.sets(st.sampled_from(LANE_LIMITS)),
)
def test_zeros_keep_the_limits_of_a_lane(policy: Policy, lane: str, limits: set[str]) -> None:
    made = merge(policy, {"lanes": {lane: {}}})
    assert merge(policy, {"lanes": {lane: dict.fromkeys(limits, 0)}}) == made
    if lane in policy.lanes:
        assert made == policy


@BOUNDED
@given(
    policies,
    _some(
        enabled=st.booleans(),
        maxQueueSize=st.integers(0, 10_000_000) | st.none(),
        maxPerAgent=st.integers(0, 10_000_000) | st.none(),
        maxInflight=st.integers(0, 100_000) | st.none(),
        resultTTLSec=st.integers(0, 86_400) | st.none(),
        workerCount=st.integers(0, 1000) | st.none(),
    ),
)
def test_pinchtabs_section_is_the_same_as_saying_it_in_our_keys(
    policy: Policy, section: dict[str, Any]
) -> None:
    said = {key: value for key, value in section.items() if value or value is False}
    ours: dict[str, Any] = {
        "lanes": {"browser": {key: said[key] for key in LANE_LIMITS if key in said}},
        "retention": {key: said[key] for key in ("resultTTLSec",) if key in said},
        **{key: said[key] for key in ("enabled", "workerCount") if key in said},
    }
    assert merge(policy, {"scheduler": section}) == merge(policy, ours)


@BOUNDED
@given(policies, documents)
def test_the_document_and_the_policy_are_left_as_they_were(
    policy: Policy, document: dict[str, Any]
) -> None:
    as_it_was, mixed = copy.deepcopy(policy), {"scheduler": {"maxPerAgent": 5}, **document}
    as_it_was_said = copy.deepcopy(mixed)
    _laid_over(policy, mixed)
    assert (policy, mixed) == (as_it_was, as_it_was_said)


words = st.sampled_from(
    ["lanes", "browser", "main", "maxInflight", "kinds", "action", "lane", "agents", "scheduler"]
)
garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | words,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(words | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


@BOUNDED
@given(garbage)
def test_whatever_is_sent_gives_a_policy_or_problems_of_one_line_each(document: Any) -> None:
    problems = _problems(Policy(), document)
    assert all(len(problem.splitlines()) == 1 for problem in problems)
    if not problems:
        merged = merge(Policy(), document)
        assert from_document(to_document(merged)) == merged


WRONG: dict[str, Any] = {
    "enabled": 1,
    "maxInflight": "many",
    "workerCount": -1,
    "lanes/browser/maxQueueSize": -5,
    "lanes/main/paused": None,
    "lanes/team/colour": "red",
    "kinds/action/whenSpent": "explode",
    "kinds/instructions": {},
    "kinds/handler/lane": "nowhere",
    "agents/a/weight": 0,
    "agents/a b": {},
    "retention/day": 3,
    "scheduler/workers": 4,
}


@BOUNDED
@given(st.sets(st.sampled_from(sorted(WRONG)), min_size=1))
def test_every_problem_is_reported(paths: set[str]) -> None:
    document: dict[str, Any] = {}
    for path in paths:
        *parents, key = path.split("/")
        place = document
        for parent in parents:
            place = place.setdefault(parent, {})
        place[key] = WRONG[path]
    problems = _problems(Policy(), document)
    assert len(problems) == len(paths)
    for path in paths:
        assert any(_names(problem, path) for problem in problems)


def _names(problem: str, path: str) -> bool:
    return path.replace("/", ".") in problem.replace("'", "")
