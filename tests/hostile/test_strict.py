"""JSON within bounds: each bound at its edge, keys that stand twice wherever they stand."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.core.errors import InvalidRequest
from fairlane.core.submissions import TaskRequest
from fairlane.schema import decoding, json_limits
from fairlane.schema.tasks import SUBMIT_BATCH

TASK = (
    b'{"agentId":"agent-crawl-01","action":"click","tabId":"tab-8f3a","ref":"e14","params":'
    b'{"button":"left","x":120,"y":340,"modifiers":["Shift"],"url":"https://example.com/a/b"},'
    b'"priority":5,"deadline":"2026-11-16T08:00:00Z","callbackUrl":"https://hooks.example.com/1",'
    b'"lane":"browser","metadata":{"trace":"abc"}}'
)


def refused(raw: bytes) -> str:
    message = complaint(raw)
    assert message is not None, "it was taken"
    return message


def complaint(raw: bytes) -> str | None:
    try:
        json_limits.check_any(raw)
    except InvalidRequest as error:
        return error.message
    return None


def nested(depth: int, inner: str = "1") -> bytes:
    return b'{"a":' + b"[" * depth + inner.encode() + b"]" * depth + b"}"


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"null",
        b"[]",
        b"5",
        b'"text"',
        TASK,
        nested(64),
        json.dumps({"n": [2**63 - 1, -(2**63) + 1, 1e308, -0.0]}).encode(),
        json.dumps({f"k{number}": 0 for number in range(1000)}).encode(),
        json.dumps({"l": [0] * 10_000}).encode(),
        json.dumps({"t": "x" * 262_144}).encode(),
        json.dumps({"t": "€" * 262_144}, ensure_ascii=False).encode(),
        json.dumps({"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}).encode(),
        rb'{"a":"\\u0000","b":"\":","c":":\"a\":1","d" : "x : y"}',
        b'{"\\u0061":1,"b":"a"}',
        b' { "a" :\t1 ,\r\n"b"\n: ":" } ',
    ],
)
def test_what_is_within_bounds_is_taken(raw: bytes) -> None:
    assert complaint(raw) is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"a":1,"a":2}', "the body has the key 'a' twice"),
        (b'{"a":1,"\\u0061":1}', "the body has the key 'a' twice"),
        (b'{"a" :1,"a" :2,"b":":"}', "the body has the key 'a' twice"),
        (b'{"":1,"":1}', "the body has the key '' twice"),
        (b'{"p":[0,{"q":{"b":1,"b":1}}]}', "field 'p[1].q' has the key 'b' twice"),
        (nested(65), "must not be nested deeper than 64 levels"),
        (nested(64, '{"b":1}'), "must not be nested deeper than 64 levels"),
        (b'{"n":9223372036854775808}', "field 'n' must be from -9223372036854775807 to"),
        (b'{"n":[-9223372036854775808]}', "field 'n[0]' must be from"),
        (b'{"n":' + b"1" * 5000 + b"}", "not valid JSON"),
        (json.dumps({"o": {str(n): 0 for n in range(1001)}}).encode(), "'o' must not have more"),
        (json.dumps({"l": [0] * 10_001}).encode(), "field 'l' must not have more than 10000 items"),
        (json.dumps({"t": ["x" * 262_145]}).encode(), "field 't[0]' must not be longer"),
        (json.dumps({"x" * 262_145: 1}).encode(), "a key in the body must not be longer"),
        (b'{"t":{"u":"a\\u0000"}}', "field 't.u': the character U+0000"),
        (b'{"t":{"a\\u0000":1}}', "a key in field 't': the character U+0000"),
        (b'{"t":"\\ud800"}', "half of a surrogate pair"),
        (b'{"t":"\\udc00"}', "half of a surrogate pair"),
        (b'{"t":"\\ud800\\u0041"}', "half of a surrogate pair"),
        (b'{"t":NaN}', "not valid JSON"),
        (b'{"t":1e999}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"t":"\xff"}', "not valid JSON"),
    ],
    ids=lambda value: ascii(value)[:50],
)
def test_what_is_out_of_bounds_is_named(raw: bytes, message: str) -> None:
    told = refused(raw)
    assert message in told
    assert len(told) < 300


VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(':"\\ {}[],ab\u00e9', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(':" a\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(
    value=VALUES,
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
    escaped=st.booleans(),
)
def test_no_text_is_taken_for_a_key(
    value: Any, separators: tuple[str, str], *, escaped: bool
) -> None:
    raw = json.dumps(value, separators=separators, ensure_ascii=escaped).encode()
    assert complaint(raw) is None


@settings(max_examples=150, deadline=None)
@given(before=VALUES, first=VALUES, second=VALUES, key=st.text(':" ab\\', max_size=3), wrap=VALUES)
def test_a_key_twice_is_found_wherever_it_is(
    before: Any, first: Any, second: Any, key: str, wrap: Any
) -> None:
    name = json.dumps(key)
    pairs = ",".join(f"{name}: {json.dumps(one)}" for one in (first, second))
    raw = f'{{"w":{json.dumps(wrap)},"x":[{json.dumps(before)},{{{pairs}}}]}}'
    assert "twice" in refused(raw.encode())


def test_of_a_batch_only_the_items_are_left_for_later() -> None:
    good = b'{"agentId":"a","tasks":[{"action":"x","action":"y"},{"action":"z"}]}'
    batch: Any = SUBMIT_BATCH.part("body")
    first, second = decoding.decode(good, batch).tasks
    with pytest.raises(InvalidRequest, match="twice"):
        decoding.decode(bytes(first), TaskRequest)
    assert decoding.decode(bytes(second), TaskRequest).action == "z"
    for raw in (
        b'{"agentId":"a","agentId":"b","tasks":[{"action":"x"}]}',
        b'{"agentId":"a","tasks":[{"action":"x"}],"tasks":[{"action":"x"}]}',
        b'{"tasks":[{"action":"x"}],"agentId":"a","tasks":[{"action":"y"}]}',
    ):
        with pytest.raises(InvalidRequest, match="twice"):
            decoding.decode(raw, batch)


def test_an_ordinary_body_costs_a_few_microseconds() -> None:
    best = min(_microseconds(TASK) for _ in range(20))
    assert best < 30, f"{best:.1f} microseconds"  # it is about 4 where nobody else computes


def test_the_worst_body_costs_no_more_than_a_moment() -> None:
    rows = b",".join([b"[" + b",".join([b"[]"] * 6000) + b"]"] * 50)
    odd = b",".join(b'{"a" :1,"b":":x"}' for _ in range(10_000))
    for raw in (b'{"p":[' + rows + b"]}", b'{"p":[' + odd + b"]}"):
        began = time.thread_time()
        json_limits.check_any(raw)
        assert time.thread_time() - began < 3


def _microseconds(raw: bytes, rounds: int = 500) -> float:
    began = time.thread_time()
    for _ in range(rounds):
        json_limits.check(raw)
    return (time.thread_time() - began) / rounds * 1e6
