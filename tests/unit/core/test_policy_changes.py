"""How a document becomes a policy: replaced, patched, or brought from another program."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.compat.policies import merge, patch, replace
from fairlane.core import admission, leases
from fairlane.core.errors import InvalidPolicy
from fairlane.core.model import Submission, capability_of
from fairlane.core.policy import (
    KindPolicy,
    Policy,
    from_document,
    to_document,
)

SCHEDULING_POLICY = {
    "schemaVersion": 1,
    "maxConcurrent": 4,
    "maxAttempts": 2,
    "leaseTtlMs": 60_000,
    "backoffBaseMs": 500,
    "backoffFactor": 1.5,
    "backoffCapMs": 9000,
}
TUNED = {
    "maxInflight": 9,
    "lanes": {"browser": {"maxInflight": 3, "maxQueueSize": 7}, "gpu": {"maxInflight": 2}},
    "kinds": {"handler": {"maxAttempts": 8}},
    "agents": {"a": {"weight": 2, "maxInflight": 4}, "bot@example.com": {"weight": 3}},
    "sessions": {"cap": 3},
}


@pytest.fixture
def tuned() -> Policy:
    return from_document(TUNED)


def _problems(act: Any, document: Any, policy: Policy | None = None) -> list[str]:
    with pytest.raises(InvalidPolicy) as refusal:
        act(policy or Policy(), document)
    return refusal.value.problems


# ---------------------------------------------------------------- replaced


def test_what_a_replacement_does_not_say_has_its_default(tuned: Policy) -> None:
    document = {"lanes": {"gpu": {"maxInflight": 5}}}
    assert replace(tuned, document) == from_document(document)
    assert replace(tuned, {}) == Policy()


def test_a_policy_that_is_shown_replaces_itself(tuned: Policy) -> None:
    assert replace(tuned, to_document(tuned)) == tuned
    shown = {"version": 3, "policy": to_document(tuned), "source": "put", "author": "ada"}
    assert replace(Policy(), shown) == tuned
    assert merge(Policy(), {"policy": TUNED}) == tuned


def test_a_frame_around_a_policy_is_not_mistaken_for_one() -> None:
    assert _problems(replace, {"policy": {}, "lanes": {}}) == ["unknown key policy"]
    assert _problems(replace, {"policy": 3, "version": 1})[0].startswith("unknown key policy")


# ---------------------------------------------------------------- patched


def test_a_patch_leaves_the_rest_as_it_was(tuned: Policy) -> None:
    patched = patch(tuned, {"lanes": {"gpu": {"maxInflight": 5}}})
    assert patched == merge(tuned, {"lanes": {"gpu": {"maxInflight": 5}}})
    assert patch(tuned, {}) == tuned


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"maxInflight": None}, {"maxInflight": None}),
        ({"sessions": {"cap": None}}, {"sessions": {}}),
        ({"sessions": None}, {"sessions": {}}),
        ({"lanes": {"browser": {"maxInflight": None}}}, {"lanes.browser": {"maxQueueSize": 7}}),
        ({"lanes": {"browser": None}}, {"lanes.browser": {}}),
        ({"lanes": {"gpu": {"maxInflight": None}}}, {"lanes.gpu": {}}),
        ({"lanes": {"gpu": None}}, {"lanes.gpu": None}),
        ({"lanes": None}, {"lanes": {}}),
        ({"agents": {"a": {"weight": None}}}, {"agents.a": {"maxInflight": 4}}),
        ({"agents": {"a": None}}, {"agents.a": None}),
        ({"agents": None}, {"agents": {}}),
        ({"kinds": {"handler": None}}, {"kinds": {}}),
        ({"agents": {"unknown": None}}, {}),
    ],
)
def test_a_null_brings_a_default_back_or_takes_a_name_out(
    tuned: Policy, document: dict[str, Any], expected: dict[str, Any]
) -> None:
    wanted: dict[str, Any] = {**TUNED}
    for path, value in expected.items():
        section, _, name = path.partition(".")
        if not name:
            wanted[section] = value
        else:
            wanted[section] = {k: v for k, v in wanted[section].items() if k != name}
            if value is not None:
                wanted[section][name] = value
    assert patch(tuned, document) == from_document(wanted)


def test_a_patch_says_none_where_null_would_be_the_default() -> None:
    patched = patch(Policy(), {"lanes": {"browser": {"maxQueueSize": "none"}}})
    assert patched.lanes["browser"].max_queue_size is None
    (problem,) = _problems(patch, {"lanes": {"browser": {"maxInflight": "none"}}})
    assert problem.startswith("lanes.browser.maxInflight must be a whole number")


def test_a_lane_and_who_names_it_can_change_in_one_patch() -> None:
    policy = from_document({"lanes": {"gpu": {}}, "kinds": {"handler": {"lane": "gpu"}}})
    (problem,) = _problems(patch, {"lanes": {"gpu": None}}, policy)
    assert problem == "kinds.handler.lane is not a lane in the policy"
    both = {"lanes": {"gpu": None}, "kinds": {"handler": {"lane": None}}}
    assert patch(policy, both) == Policy()


def test_a_patch_is_checked_as_a_whole() -> None:
    document = {
        "lanse": None,
        "kinds": {"dream": None, "action": {"whenSpent": "explode"}},
        "lanes": {"a b": None, "main": {"maxInflight": True, "colour": None}},
    }
    assert sorted(problem.split(" must")[0] for problem in _problems(patch, document)) == [
        "kinds.action.whenSpent",
        "lanes.'a b'",
        "lanes.main.maxInflight",
        "unknown key kinds.dream",
        "unknown key lanes.main.colour",
        "unknown key lanse; did you mean lanes?",
    ]


# ---------------------------------------------------------------- from other programs


@pytest.mark.parametrize("act", [merge, replace, patch])
def test_a_scheduling_policy_sets_the_lane_queue(act: Any) -> None:
    policy = act(Policy(), SCHEDULING_POLICY)
    assert policy.lanes["queue"].max_inflight == 4
    assert policy.lease_ttl_ms("queue") == 60_000
    assert policy.retries("handler", "queue") == KindPolicy(
        lane="main",
        max_attempts=2,
        backoff_ms=500,
        backoff_multiplier=1.5,
        max_backoff_ms=9000,
        when_spent="park",
    )
    others = {name: lane for name, lane in policy.lanes.items() if name != "queue"}
    assert others == {name: lane for name, lane in Policy().lanes.items() if name != "queue"}
    assert policy.retries("handler", "main") == Policy().kinds["handler"]
    assert policy.lease_ttl_ms("main") == 300_000


@pytest.mark.parametrize("document", [SCHEDULING_POLICY, {"scheduler": {"maxPerAgent": 5}}])
def test_what_another_program_says_leaves_the_rest_as_it_was(
    tuned: Policy, document: dict[str, Any]
) -> None:
    assert replace(tuned, document) == merge(tuned, document) == patch(tuned, document)


def test_an_older_scheduling_policy_says_less() -> None:
    assert merge(Policy(), {"maxConcurrent": 2}).lanes["queue"].max_inflight == 2
    assert replace(Policy(), {"schemaVersion": 1}) == Policy()


def test_our_own_keys_go_before_those_of_a_scheduling_policy() -> None:
    document = {"maxConcurrent": 2, "maxAttempts": 7, "lanes": {"queue": {"maxInflight": 5}}}
    lane = merge(Policy(), document).lanes["queue"]
    assert (lane.max_inflight, lane.max_attempts) == (5, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxConcurrent", 0),
        ("maxConcurrent", -3),
        ("maxConcurrent", 1.5),
        ("maxConcurrent", "8"),
        ("maxConcurrent", True),
        ("maxAttempts", 0),
        ("maxAttempts", 2.5),
        ("leaseTtlMs", 0),
        ("leaseTtlMs", 1e20),
        ("backoffBaseMs", -1),
        ("backoffFactor", 0.5),
        ("backoffFactor", "2"),
        ("backoffCapMs", 10**12),
    ],
)
def test_what_would_quietly_become_a_default_is_refused(key: str, value: Any) -> None:
    for act in (merge, replace, patch):
        (problem,) = _problems(act, {**SCHEDULING_POLICY, key: value})
        assert problem.startswith(f"{key} must be a ")


@pytest.mark.parametrize("version", [0, 2, 7, "1", True, None, 1.5])
def test_a_scheduling_policy_of_another_schema_is_refused(version: Any) -> None:
    problems = _problems(merge, {**SCHEDULING_POLICY, "schemaVersion": version})
    assert problems == ["schemaVersion must be 1; other versions are not supported"]


# ---------------------------------------------------------------- lanes with retries of their own

OWN = {
    "maxAttempts": 5,
    "backoffMs": 7,
    "backoffMultiplier": 3.0,
    "maxBackoffMs": 40,
    "jitter": 0.0,
    "whenSpent": "fail",
    "leaseTtlMs": 1234,
}


def test_a_lane_leaves_retries_to_the_kinds_until_it_says_something() -> None:
    lane = to_document(Policy())["lanes"]["queue"]
    assert not OWN.keys() & lane.keys()
    for kind, settings in Policy().kinds.items():
        assert Policy().retries(kind, "queue") == settings
    assert Policy().lease_ttl_ms("queue") == Policy().leases.ttl_ms == 300_000


def test_the_lane_queue_has_the_defaults_of_the_design() -> None:
    policy = Policy()
    assert policy.lanes["queue"].max_inflight == 1
    assert policy.retries("handler", policy.lane_name("queue", "handler")) == KindPolicy(
        lane="main", max_attempts=3, backoff_ms=1000, backoff_multiplier=2, when_spent="park"
    )


def test_a_null_gives_the_retries_back_to_the_kinds() -> None:
    policy = from_document({"lanes": {"queue": OWN}})
    assert to_document(policy)["lanes"]["queue"].items() >= OWN.items()
    for act in (merge, patch):
        assert act(policy, {"lanes": {"queue": dict.fromkeys(OWN)}}) == Policy()
    assert replace(policy, {"lanes": {"queue": dict.fromkeys(OWN)}}) == Policy()


def test_a_task_is_tried_as_often_as_its_lane_says() -> None:
    policy = from_document({"lanes": {"queue": OWN}})
    assert [_admitted(policy, lane).max_attempts for lane in ("queue", "main")] == [5, 3]
    own = _admitted(policy, "queue", max_attempts=2)
    assert own.max_attempts == 2


def test_a_failure_waits_and_ends_as_the_lane_says() -> None:
    policy = from_document({"lanes": {"queue": OWN}})
    waits = []
    task = _admitted(policy, "queue")
    while True:
        change = leases.grant(task, fencing_token=1, worker="w", ttl_ms=1, started=True, now=0)
        failed = leases.fail(
            change.after,
            1,
            "broken",
            retryable=True,
            retry_after_ms=None,
            policy=policy,
            own=None,
            now=0,
        ).answer
        assert not isinstance(failed, Exception)
        if failed.terminal:
            break
        waits.append(failed.eligible_at)
        failed.gate = None
        task = failed
    assert waits == [7, 21, 40, 40]
    assert failed.state == "failed"


def _admitted(policy: Policy, lane: str, **fields: Any) -> Any:
    submission = Submission(
        id="t",
        agent="a",
        kind="handler",
        capability=capability_of("handler", "work"),
        body="{}",
        **fields,
    )
    change = admission.admit(submission, lane, policy, seq=1, line=1, position=0, now=0)
    return change.after
