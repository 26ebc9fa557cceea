"""Conditions on params and metadata, and patterns for texts."""

from __future__ import annotations

import msgspec
import pytest

from fairlane.core import task_conditions
from fairlane.core.errors import InvalidRequest


def test_a_condition_names_a_place_and_a_value() -> None:
    found = task_conditions.parse("metadata.order.customer = 42=x ")
    assert found.keys == ("metadata", "order", "customer")
    assert (found.path, found.value) == ('$."metadata"."order"."customer"', "42=x")


@pytest.mark.parametrize(
    "text",
    [
        *("metadata=1", "metadata.a", "llmConfig.apiKey=x", "metadata.=1", 'params."x=1'),
        *("params.a[0]=1", "params.a\\b=1", "", f"params.a={'x' * 200}"),
    ],
)
def test_other_texts_are_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"use metadata\.NAME=VALUE"):
        task_conditions.parse(text)


def test_conditions_are_stored_as_json() -> None:
    stored = task_conditions.stored(["params.a=1", "metadata.b=x"])
    assert stored is not None
    assert [one["value"] for one in msgspec.json.decode(stored)] == ["1", "x"]
    assert task_conditions.stored([]) is None
    with pytest.raises(InvalidRequest, match="more than 8"):
        task_conditions.stored(["params.a=1"] * 9)


def test_a_pattern_takes_its_text_literally() -> None:
    assert task_conditions.like(" 50%_! ") == "%50!%!_!!%"
    assert task_conditions.like("  ") is None
    assert task_conditions.like(None) is None


def test_a_tag_is_a_condition_on_a_list_in_metadata_whatever_it_contains() -> None:
    assert task_conditions.stored([]) is None
    stored = task_conditions.stored([], "a=b.c ")
    assert stored is not None
    (found,) = msgspec.json.decode(stored)
    assert found == {"keys": ["metadata", "tags"], "path": '$."metadata"."tags"', "value": "a=b.c"}
