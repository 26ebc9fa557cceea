"""The one validator: whatever msgspec refuses is explained, and all of it at once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from fairlane.core import validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.types import Identifier, Moment
from fairlane.schema import decoding
from fairlane.schema.operation import Request


class Inner(Request):
    count: Annotated[int, Meta(ge=1, le=3)]
    name: str | None = None


class Sample(Request):
    agent: Identifier | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=10)] | None = None
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    mode: Literal["queue", "collect"] = "queue"
    priority: int | str | None = None
    inner: Inner | None = None
    items: Annotated[list[Annotated[str, Meta(min_length=1, max_length=3)]], Meta(max_length=2)] = (
        msgspec.field(default_factory=list)
    )
    params: dict[str, Any] | None = None
    counts: dict[str, int] | None = None
    flag: bool = False
    least: Annotated[int, Meta(ge=1)] = 1
    named: Annotated[str, Meta(min_length=1)] | Annotated[int, Meta(ge=5)] | None = None
    some: Annotated[list[int], Meta(min_length=1)] | None = None
    anything: Any = None
    bounded: Annotated[
        Annotated[int, Meta(ge=1, description="one")] | str | None, Meta(title="x")
    ] = None


def problems(value: Any) -> list[str]:
    return [problem.text for problem in validation.explain(value, Sample)]


def test_every_problem_is_reported_with_its_path() -> None:
    body = {
        "agentid": "a",
        "delayMs": 11,
        "share": "much",
        "mode": "collct",
        "priority": 1.5,
        "inner": {"name": 3},
        "items": ["", "abcd"],
        "counts": {"a": "b"},
        "flag": 1,
    }
    assert problems(body) == [
        "unknown field 'agentid'; did you mean agentId?",
        "field 'delayMs' must be from 0 to 10",
        "field 'share' must be a number",
        "field 'mode' must be one of collect, queue; did you mean collect?",
        "field 'priority' must be a whole number or text",
        "missing required field 'inner.count'",
        "field 'inner.name' must be text",
        "field 'items[0]' must not be empty",
        "field 'items[1]' must not be longer than 3 characters",
        "field 'counts.a' must be a whole number",
        "field 'flag' must be true or false",
    ]


def test_the_error_says_the_first_problems_and_lists_all_of_them() -> None:
    raw = msgspec.json.encode({f"x{number}": 1 for number in range(7)})
    with pytest.raises(InvalidRequest) as refused:
        decoding.decode(raw, Sample)
    assert refused.value.message.count("unknown field") == 5
    assert refused.value.message.endswith("and 2 more problems")
    assert refused.value.details is not None
    assert [one["path"] for one in refused.value.details["problems"]] == [
        f"x{number}" for number in range(7)
    ]


def test_a_line_break_at_the_end_of_an_identifier_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="field 'agentId' has invalid characters"):
        decoding.decode(b'{"agentId": "a\\n"}', Sample)


def test_a_body_that_is_not_an_object_is_refused_as_such() -> None:
    with pytest.raises(InvalidRequest, match="the body must be a JSON object"):
        decoding.decode(b"[]", Sample)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"least": 0}, "field 'least' must be at least 1"),
        ({"named": ""}, "field 'named' must not be empty"),
        ({"named": 4}, "field 'named' must be at least 5"),
        ({"bounded": []}, "field 'bounded' must be a whole number or text"),
        ({"named": []}, "field 'named' must be text or a whole number"),
        ({"some": []}, "field 'some' must not be empty"),
        ({"some": {}}, "field 'some' must be a list"),
        ({"items": ["a", "b", "c"]}, "field 'items' must not have more than 2 items"),
        ({"counts": []}, "field 'counts' must be an object"),
        ({"inner": "x"}, "field 'inner' must be an object"),
        ({"mode": 1}, "field 'mode' must be one of collect, queue"),
        ({"delayMs": True}, "field 'delayMs' must be a whole number"),
        ({"delayMs": 1.5}, "field 'delayMs' must be a whole number"),
    ],
)
def test_a_problem_says_what_is_expected(body: dict[str, Any], text: str) -> None:
    assert problems(body) == [text]
    with pytest.raises(InvalidRequest) as refused:
        validation.convert(body, Sample)
    assert refused.value.message == text


def test_problems_are_listed_up_to_a_limit() -> None:
    assert len(problems({f"x{number}": 1 for number in range(100)})) == validation.PROBLEMS_MAX


def test_a_list_is_known_by_its_type() -> None:
    assert validation.is_list(list[str] | None)
    assert validation.is_list(Annotated[list[str], Meta(description="names")])
    assert not validation.is_list(str)


def test_a_moment_is_known_by_its_format() -> None:
    assert validation.is_moment(Moment)
    assert validation.is_moment(Annotated[Moment | None, Meta(description="when")])
    assert not validation.is_moment(str)
    assert not validation.is_moment(Annotated[str, Meta(description="a name")])


def test_a_query_may_say_numbers_and_flags_as_text() -> None:
    assert validation.convert_query({"delayMs": "7", "flag": "true"}, Sample).delay_ms == 7
    with pytest.raises(InvalidRequest, match="query parameter 'delayMs' must be from 0 to 10"):
        validation.convert_query({"delayMs": "70"}, Sample)
    with pytest.raises(InvalidRequest, match="query parameter 'delayMs' must be a whole number"):
        validation.convert_query({"delayMs": "soon", "flag": "1", "items": ["a"]}, Sample)
    with pytest.raises(InvalidRequest, match="query parameter 'flag' must be true or false"):
        validation.convert_query({"flag": "maybe", "share": "0.5", "mode": "queue"}, Sample)


def test_the_parameters_of_a_path_are_called_so() -> None:
    assert validation.convert_path({"delayMs": "7"}, Sample).delay_ms == 7
    with pytest.raises(InvalidRequest, match="path parameter 'delayMs' must be from 0 to 10"):
        validation.convert_path({"delayMs": "70"}, Sample)


@pytest.mark.parametrize("text", ["1e1", "5.0", " 5", "+5", "0" * 20, "५"])
def test_a_whole_number_in_a_query_is_written_in_digits(text: str) -> None:
    with pytest.raises(InvalidRequest, match="'delayMs' must be a whole number"):
        validation.convert_query({"delayMs": text}, Sample)
    with pytest.raises(InvalidRequest, match="'share' must be a number"):
        validation.convert_query({"share": "half"}, Sample)
    assert validation.convert_query({"priority": "high"}, Sample).priority == "high"


def test_a_header_is_named_as_it_is_spelled() -> None:
    names = {"agentId": "X-Agent-Id"}
    assert validation.convert_headers({"agentId": "a"}, Sample, names).agent == "a"
    with pytest.raises(InvalidRequest, match="the header X-Agent-Id has invalid characters"):
        validation.convert_headers({"agentId": "a b"}, Sample, names)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 15) | st.floats(-2, 2) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
names = st.sampled_from([*Sample.__struct_encode_fields__, "count", "name", "unknown"])


@given(st.dictionaries(names, values | st.dictionaries(names, values)))
def test_what_msgspec_refuses_is_explained_and_what_it_takes_is_not(body: dict[str, Any]) -> None:
    try:
        msgspec.convert(body, Sample)
    except msgspec.ValidationError:
        assert problems(body) != ["the body does not have the expected form"]
    else:
        assert problems(body) == ["the body does not have the expected form"]
