"""Workers: which can run a task, which are online, and the message if none is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core.policy import Policy, patch, to_document
from fairlane.core.workers import (
    DRAINING,
    ONLINE,
    SILENT,
    KnownWorker,
    Unserved,
    handler_names,
    judged,
    unknown_lane,
    unserved,
)

ECHO = "handler/echo"


def worker(name: str = "w1", *handlers: str, **fields: Any) -> KnownWorker:
    capabilities = frozenset(f"handler/{one}" for one in handlers)
    return KnownWorker(name, "node_1", capabilities, **fields)


def test_a_worker_offers_what_it_names_or_any_open_handler() -> None:
    named = worker("w1", "echo")
    assert named.offers(ECHO, "main", "a")
    assert not named.offers("handler/other", "main", "a")
    assert worker(any_handler=True).offers("handler/other", "main", "a")
    assert not worker(any_handler=True).offers("handler/(private)", "main", "a")
    assert not worker(any_handler=True).offers("action", "main", "a")


def test_lanes_and_agent_limit_what_a_worker_takes() -> None:
    limited = worker("w1", "echo", lanes=("gpu",), agent="a")
    assert limited.offers(ECHO, "gpu", "a")
    assert not limited.offers(ECHO, "main", "a")
    assert not limited.offers(ECHO, "gpu", "b")
    assert not limited.takes_all
    assert worker("w1", "echo").takes_all


def test_handlers_and_kinds_are_told_apart() -> None:
    node = KnownWorker(
        "node_1", "node_1", frozenset({ECHO, "action", "handler/(private)", "handler/a"})
    )
    assert node.is_node
    assert (node.handlers, node.kinds) == (["a", "echo"], ["action"])
    assert not worker().is_node


def test_what_an_online_worker_offers_is_served() -> None:
    assert unserved([worker("w1", "echo")], ECHO, "main", "a") is None


def test_nothing_is_missing_where_no_worker_is_known_or_one_process_owns_the_handler() -> None:
    assert unserved([], ECHO, "main", "a") is None
    assert unserved([worker("w1", "echo")], "handler/(private)", "main", "a") is None


def test_an_unknown_handler_comes_with_the_nearest_name() -> None:
    found = unserved([worker("w1", "echo")], "handler/ehco", "main", "a")
    text = "no known worker offers handler 'ehco'; did you mean echo?"
    assert found == Unserved(text, unknown=True)


def test_a_name_of_another_agents_worker_is_not_suggested() -> None:
    others = [worker("w1", "echo", agent="b"), worker("w2", "sum")]
    found = unserved(others, "handler/ehco", "main", "a")
    assert found == Unserved("no known worker offers handler 'ehco'", unknown=True)
    assert handler_names(others, None) == ["echo", "sum"]


def test_a_kind_that_nobody_runs_is_named_without_a_guess() -> None:
    found = unserved([worker("w1", "instructions")], "instruction", "main", "a")
    assert found == Unserved("no known worker offers tasks of kind 'instruction'", unknown=True)


@pytest.mark.parametrize("state", [SILENT, DRAINING])
def test_a_handler_whose_worker_is_away_is_known(state: str) -> None:
    workers = [
        worker("w1", "echo", state=state, seen_at=1000),
        worker("w2", "echo", state=state, seen_at=2000),
    ]
    found = unserved(workers, ECHO, "main", "a")
    text = "no worker for handler 'echo' is online; w2 was last seen at 1970-01-01T00:00:02.000Z"
    assert found == Unserved(text, unknown=False)


def test_a_worker_for_other_lanes_or_agents_is_named_as_that() -> None:
    found = unserved([worker("w1", "echo", lanes=("gpu", "big"))], ECHO, "main", "a")
    text = "no known worker offers handler 'echo' in lane main; its workers take tasks of big, gpu"
    assert found == Unserved(text, unknown=True)
    found = unserved([worker("w1", "echo", agent="b")], ECHO, "main", "a")
    text = "no known worker offers handler 'echo' in lane main for a"
    assert found == Unserved(text, unknown=True)


def test_a_worker_is_online_while_it_waits_runs_or_was_seen_lately() -> None:
    one = worker("w1", "echo", seen_at=1000, patience_ms=500)
    assert judged(one, 1500, running=0).state == ONLINE
    assert judged(one, 1501, running=0).state == SILENT
    assert judged(one, 1500, running=0, served=False).state == SILENT
    assert judged(one, 9000, running=1) == msgspec.structs.replace(one, running=1)
    waiting = judged(one, 9000, running=0, waits=True)
    assert (waiting.state, waiting.seen_at) == (ONLINE, 9000)


def test_an_unknown_lane_comes_with_the_nearest_name_and_the_lane_in_use() -> None:
    lanes = {"main": 1, "gpu": 2}
    assert unknown_lane("mian", lanes) == "the policy has no lane 'mian'; did you mean main?"
    text = "the policy has no lane 'x', so the task runs in lane main"
    assert unknown_lane("x", lanes, "main") == text


def test_the_policy_says_whether_unknown_names_are_refused() -> None:
    strict = patch(Policy(), {"strictHandlers": True, "strictLanes": True})
    assert (strict.strict_handlers, strict.strict_lanes) == (True, True)
    assert to_document(Policy())["strictHandlers"] is False
