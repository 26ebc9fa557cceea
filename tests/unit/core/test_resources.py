"""Resources: the policy's section, needs, and whether an account can give them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import amounts, resources
from fairlane.core import policy as policies
from fairlane.core.errors import InvalidPolicy, InvalidRequest, NeedsUnsatisfiable
from fairlane.core.limits import LimitState
from fairlane.core.policy import Policy
from fairlane.core.resources import Account, ResourcePolicy, Subject

M = 1_000_000
DECLARED = {
    "gpt": {
        "limits": [
            {"unit": "requests", "amount": 10, "perMs": 1000},
            {"unit": "tokens", "amount": 100, "perMs": 1000, "window": "bucket"},
            {"unit": "tokens", "amount": 500, "resetEveryMs": 60_000},
        ]
    },
    "spend": {
        "limits": [{"unit": "usd", "amount": "1.5", "resetEvery": "day", "tz": "Europe/Berlin"}],
        "by": ["agent", "session"],
        "warnAt": 0.8,
        "whenSpent": "ask",
    },
    "profile": {"limits": [{"amount": 1}], "by": "key"},
    "gpu": {"limits": [{"unit": "mb", "amount": 8}], "allowLarger": True},
}


def read(document: dict[str, Any]) -> Policy:
    return policies.merge(Policy(), document)


POLICY = read({"resources": DECLARED})
ALL = POLICY.resources


def test_the_needs_of_a_task_are_shown_as_written_with_the_defaults() -> None:
    stored = '{"gpt":{"tokens":1500000},"gpu":{"mb":2000000}}'
    assert resources.shown_needs(stored, None) == {"gpt": {"tokens": "1.5"}, "gpu": {"mb": 2}}
    written: dict[str, Any] = {"gpu": {"mb": "2.0"}}
    assert resources.shown_needs(stored, written) == {"gpt": {"tokens": "1.5"}, **written}


def test_of_several_levels_one_says_how_much_was_used() -> None:
    prefixes = {name: resource.usage_prefix for name, resource in ALL.items()}
    assert prefixes == {"gpt": "", "spend": "agent:", "profile": "", "gpu": ""}
    nested = {**DECLARED["spend"], "by": ["session", "batch"]}
    assert read({"resources": {"spend": nested}}).resources["spend"].usage_prefix == ""


def test_a_policy_shows_its_resources_as_they_were_written() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(policies.to_document(POLICY)))
    assert shown["resources"] == DECLARED
    assert policies.from_document(shown) == POLICY
    assert policies.patch(POLICY, {"resources": {"gpu": None}}).resources.keys() == ALL.keys() - {
        "gpu"
    }


def test_limits_of_one_unit_and_kind_are_numbered() -> None:
    two = read(
        {"resources": {"r": {"limits": [{"amount": 1, "perMs": 1}, {"amount": 2, "perMs": 9}]}}}
    )
    assert [one.slot for one in resources.limits_of(two.resources["r"].limits)] == [
        "lock:rate",
        "lock:rate:1",
    ]
    assert [one.slot for one in resources.limits_of(ALL["gpt"].limits)] == [
        "requests:rate",
        "tokens:bucket",
        "tokens:budget",
    ]


LIMIT = {"unit": "u", "amount": 1}


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({}, "resources.r.limits must be set"),
        ({"limits": []}, "resources.r.limits must be a list of 1 to 16 limits"),
        ({"limits": [1]}, "resources.r.limits [1]: must be an object"),
        ({"limits": [{"amont": 1}]}, "unknown key amont; did you mean amount?"),
        ({"limits": [{**LIMIT, "unit": "a b"}]}, "unit must be a name"),
        ({"limits": [{**LIMIT, "unit": 7}]}, "unit must be a name"),
        ({"limits": [{**LIMIT, "amount": 0}]}, "amount must be above 0"),
        ({"limits": [{"unit": "u"}]}, "amount must be a decimal"),
        ({"limits": [LIMIT, {**LIMIT, "perMs": 0}]}, "[2]: perMs must be a whole number"),
        ({"limits": [{**LIMIT, "resetEveryMs": True}]}, "resetEveryMs must be a whole number"),
        ({"limits": [{**LIMIT, "perMs": 1, "resetEvery": "day"}]}, "either perMs or resetEvery"),
        ({"limits": [{**LIMIT, "resetEvery": "year"}]}, "resetEvery must be one of hour, day"),
        ({"limits": [{**LIMIT, "perMs": 1, "window": "x"}]}, "window must be one of"),
        ({"limits": [{**LIMIT, "window": "bucket"}]}, "window is only for limits with perMs"),
        (
            {"limits": [{**LIMIT, "anchor": "2026-01-01T00:00:00Z"}]},
            "anchor is only for limits with",
        ),
        ({"limits": [{**LIMIT, "resetEveryMs": 9, "anchor": "noon"}]}, "anchor 'noon' is not"),
        ({"limits": [{**LIMIT, "resetEvery": "day", "tz": "Europe/Berlim"}]}, "Europe/Berlin?"),
        ({"limits": [LIMIT], "by": "agents"}, "by must be one of agent, session"),
        ({"limits": [LIMIT], "by": []}, "by must be one of"),
        ({"limits": [LIMIT], "by": ["lane", "lane"]}, "by must be one of"),
        ({"limits": [LIMIT], "warnAt": 2}, "warnAt must be a number"),
        ({"limits": [LIMIT], "whenSpent": "cry"}, "whenSpent must be one of wait, fail"),
        ({"limits": [LIMIT], "allowLarger": 1}, "allowLarger must be true or false"),
    ],
)
def test_a_wrong_resource_is_refused_by_its_path(entry: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        read({"resources": {"r": entry}})
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        (7, "lanes.main.needs must be an object"),
        ({"gpt": 7}, "lanes.main.needs gpt must be an object"),
        ({"gpt": {"tokens": -1}}, "lanes.main.needs gpt.tokens must be a decimal"),
        (
            {"gptt": {}},
            "'lanes.main.needs.gptt' is not a resource of the policy; did you mean gpt?",
        ),
        ({"gpt": {"tokens": 999}}, "999 exceeds the limit of the resource"),
    ],
)
def test_default_needs_must_go_with_the_resources(needs: object, problem: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        read({"resources": DECLARED, "lanes": {"main": {"needs": needs}}})
    assert problem in str(caught.value)


def test_needs_come_from_the_task_then_its_lane_then_its_kind() -> None:
    policy = read(
        {
            "resources": DECLARED,
            "kinds": {"handler": {"needs": {"gpt": {"tokens": 1}, "gpu": {"mb": 1}}}},
            "lanes": {"main": {"needs": {"gpt": {"tokens": 2}}}},
        }
    )
    assert policy.needs(None, "handler", "main") == {"gpt": {"tokens": 2}, "gpu": {"mb": 1}}
    assert policy.needs({"gpu": {"mb": 3}}, "handler", "cron") == {
        "gpt": {"tokens": 1},
        "gpu": {"mb": 3},
    }
    assert policy.needs(None, "action", "browser") is None
    assert policies.from_document(policies.to_document(policy)) == policy
    cleared = policies.patch(policy, {"kinds": {"handler": {"needs": None}}})
    assert cleared.kinds["handler"].needs is None


def test_an_empty_need_is_one_of_each_unit() -> None:
    assert resources.read_needs({"profile/bank": {}, "gpt": {"tokens": "2.5"}}, ALL) == {
        "profile/bank": {"lock": M},
        "gpt": {"tokens": 2_500_000},
    }
    assert resources.read_needs({"gpu": {"mb": 9}}, ALL) == {"gpu": {"mb": 9 * M}}


@pytest.mark.parametrize(
    ("needs", "problem"),
    [
        ({"gptt": {}}, "field 'needs.gptt' is not a resource of the policy; did you mean gpt?"),
        ({"gpt/a": {}}, "resource gpt has no keys; write 'gpt'"),
        ({"profile": {}}, "resource profile needs a key: write 'profile/KEY'"),
        ({"profile/a b": {}}, "the key must match"),
        ({"gpt": {"token": 1}}, "field 'needs.gpt.token' is not a unit of the resource; did you"),
        ({"gpt": {"tokens": "x"}}, "field 'needs.gpt.tokens' must be a decimal"),
    ],
)
def test_needs_that_name_nothing_are_refused(needs: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resources.read_needs(needs, ALL)
    assert problem in caught.value.message


def test_more_than_a_resource_can_ever_give_is_refused() -> None:
    with pytest.raises(NeedsUnsatisfiable) as caught:
        resources.read_needs({"spend": {"usd": 2}}, ALL)
    assert caught.value.details == {
        "resource": "spend",
        "unit": "usd",
        "needed": 2,
        "amount": "1.5",
    }


def test_usage_is_read_against_what_was_reserved() -> None:
    reserved = {"gpt": {"tokens": 3 * M}}
    assert resources.read_usage({"gpt": {"tokens": 2}}, reserved) == {"gpt": {"tokens": 2 * M}}
    for usage in ({"gtp": {}}, {"gpt": {"token": 1}}, {"gpt": {"tokens": -1}}):
        with pytest.raises(InvalidRequest, match="usage"):
            resources.read_usage(usage, reserved)


def test_a_need_is_charged_to_each_level() -> None:
    ada = Subject("ada", "main", session="s1")
    assert resources.keys_of(ALL["gpt"], "", ada) == [""]
    assert resources.keys_of(ALL["spend"], "", ada) == ["agent:ada", "session:s1"]
    assert resources.keys_of(ALL["spend"], "", Subject("ada", "main")) == ["agent:ada"]
    assert resources.keys_of(ALL["profile"], "bank", ada) == ["bank"]
    assert resources.keys_of(None, "bank", ada) == ["bank"]
    by_batch = ResourcePolicy(ALL["gpu"].limits, by="batch")
    assert resources.keys_of(by_batch, "", ada) == [""]
    assert Account(1, "profile", "bank").label == "profile/bank"


def blocked(account: Account, needed: dict[str, int], now: int, **more: bool) -> tuple[str, object]:
    policy = ALL.get(account.resource)
    if policy:
        resources.advance(account, policy, now)
    found = resources.check(account, policy, needed, now, **more)
    return ("", None) if found is None else (found.why, found.at)


def test_an_account_says_why_it_cannot_give_and_when_it_can() -> None:
    gpt = Account(1, "gpt", "")
    tokens = {"tokens": 60 * M}
    assert blocked(gpt, tokens, 0) == ("", None)
    assert [change for _, change in resources.reserve(gpt, ALL["gpt"], tokens)] == [60 * M] * 2
    assert blocked(gpt, tokens, 0) == ("busy", 200)  # the bucket leaks; the budget has enough
    assert blocked(gpt, {"requests": M}, 0) == ("", None)
    gpt.state(resources.limits_of(ALL["gpt"].limits)[2]).used = 450 * M
    assert blocked(gpt, tokens, 0) == ("spent", 60_000)
    gpt.closed_until, gpt.reason = 70_000, "429"
    assert blocked(gpt, {"requests": M}, 60_000) == ("closed", 70_000)
    assert blocked(gpt, {"requests": M}, 70_000) == ("", None)
    assert gpt.reason is None
    gpt.urgent_until = 80_000
    assert blocked(gpt, {"requests": M}, 70_001) == ("kept", 80_000)
    assert blocked(gpt, {"requests": M}, 70_001, running=True) == ("", None)
    assert blocked(gpt, {"images": M}, 90_000) == ("missing", None)
    assert blocked(Account(2, "gone", ""), {"u": M}, 0) == ("missing", None)


def test_what_a_provider_counts_too_is_noted() -> None:
    gpt, gpu = Account(1, "gpt", ""), Account(2, "gpu", "")
    resources.reserve(gpt, ALL["gpt"], {"tokens": 60 * M})
    slots = [limit.slot for limit in ALL["gpt"].declared if limit.unit == "tokens"]
    noted = resources.notes(gpt, ALL["gpt"], slots)
    assert noted == {"tokens:bucket": 60 * M}  # the provider knows nothing of the budget
    resources.reserve(gpu, ALL["gpu"], {"mb": M})
    assert resources.notes(gpu, ALL["gpu"], ["mb:pool"]) == {}
    assert resources.notes(gpu, None, ["mb:pool"]) == {}


def test_a_pool_that_is_taken_waits_for_a_release_not_for_a_moment() -> None:
    gpu = Account(1, "gpu", "")
    resources.reserve(gpu, ALL["gpu"], {"mb": 6 * M})
    assert blocked(gpu, {"mb": 3 * M}, 0) == ("busy", None)
    assert resources.idle_at(gpu, ALL["gpu"], 5) is None
    resources.settle(gpu, ALL["gpu"], {"mb:pool": 6 * M}, {}, 7)
    assert resources.idle_at(gpu, ALL["gpu"], 7) == 7
    assert resources.idle_at(gpu, None, 7) == 7


def test_the_slowest_limit_decides() -> None:
    both = read(
        {"resources": {"r": {"limits": [{"unit": "a", "amount": 1}, {"unit": "b", "amount": 1}]}}}
    ).resources["r"]
    account = Account(1, "r", "")
    resources.reserve(account, both, {"a": M, "b": M})
    found = resources.check(account, both, {"a": M, "b": M}, 0)
    assert found is not None
    assert (found.unit, found.at) == ("a", None)


def test_settling_uses_what_was_reserved_by_default() -> None:
    gpt, policy = Account(1, "gpt", ""), ALL["gpt"]
    resources.advance(gpt, policy, 0)
    held = {
        limit.slot: by
        for limit, by in resources.reserve(gpt, policy, {"requests": M, "tokens": 9 * M})
    }
    settled = resources.settle(gpt, policy, held, {"tokens": 11 * M}, 0)
    assert [(limit.slot, change, used) for limit, change, used in settled] == [
        ("requests:rate", 0, M),
        ("tokens:bucket", 2 * M, 11 * M),
        ("tokens:budget", 2 * M, 11 * M),
    ]
    assert resources.advance(gpt, policy, 1000)[0][1] == -M
    assert resources.cost(policy, {"tokens": 50 * M}) == 0.5


def test_a_reservation_of_a_removed_limit_is_released() -> None:
    gpu = Account(1, "gpu", "")
    resources.reserve(gpu, ALL["gpu"], {"mb": M})
    ((limit, change, used),) = resources.settle(gpu, None, {"mb:pool": M}, {}, 0)
    assert (limit.slot, change, used) == ("mb:pool", -M, 0)
    assert gpu.states["mb:pool"].reserved == 0


def test_a_bucket_that_was_removed_keeps_what_it_holds() -> None:
    account = Account(1, "b", "", {"t:bucket": LimitState(reserved=M, level=60 * M)})
    assert resources.settle(account, None, {"t:bucket": M}, {}, 0) == []
    assert account.states["t:bucket"] == LimitState(level=60 * M)


def test_use_beyond_what_an_account_can_count_is_found() -> None:
    full = Account(1, "gpu", "", {"mb:pool": LimitState(reserved=amounts.BALANCE_MAX)})
    found = resources.beyond_count(full, ALL["gpu"], {"mb": 1})
    assert found is not None
    assert found.unit == "mb"
    assert resources.beyond_count(full, ALL["gpu"], {}) is None
    assert resources.beyond_count(full, None, {"mb": 1}) is None
