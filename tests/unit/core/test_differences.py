"""Differences between documents, and the spelling of paths."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import json_diff
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_diff import Difference, applied, assignment, between, format_path, nested


def test_a_changed_value_is_named_by_its_path() -> None:
    before = {"a": {"b": 1, "c": 2}, "d": 3}
    after = {"a": {"b": 1, "c": 5}, "d": 3}
    assert between(before, after) == [Difference(("a", "c"), 2, 5)]
    assert between(before, before) == []


def test_what_came_and_what_went_is_one_difference_each() -> None:
    found = between({"old": {"x": 1, "y": 2}}, {"new": {"x": 1}})
    assert found == [
        Difference(("new",), after={"x": 1}),
        Difference(("old",), before={"x": 1, "y": 2}),
    ]


@pytest.mark.parametrize(
    ("one", "other"), [(True, 1), (0, False), (None, 0), ([1], [2]), ({}, None), ({}, [])]
)
def test_values_that_python_might_mix_up_differ(one: Any, other: Any) -> None:
    before, after = {"a": one}, {"a": other}
    found = between(before, after)
    assert len(found) == 1
    assert applied(before, found) == after


def test_nothing_is_changed_in_place() -> None:
    before: dict[str, Any] = {"a": {"b": 1}}
    applied(before, [Difference(("a", "b"), 1, 2), Difference(("c", "d"), after=3)])
    assert before == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("lanes", "main", "maxInflight"), "lanes.main.maxInflight"),
        (("agents", "bot@example.com", "weight"), 'agents."bot@example.com".weight'),
        (("a b",), '"a b"'),
        (("",), '""'),
        (('say "hi"', "x=y"), '"say \\"hi\\""."x=y"'),
    ],
)
def test_a_path_is_spelled_so_that_it_can_be_read_back(path: tuple[str, ...], text: str) -> None:
    assert format_path(path) == text
    assert assignment(f"{text}=5") == (path, "5")


def test_a_value_may_hold_anything() -> None:
    assert assignment("a.b=c=d.e") == (("a", "b"), "c=d.e")
    assert assignment("a=") == (("a",), "")


@pytest.mark.parametrize(
    "text", ["", "=", "a", "a.b", ".a=1", "a..b=1", "a.=1", "a b=1", '"a=1', 'a"b=1', "a\\b=1"]
)
def test_what_is_not_a_assignment_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match="must be PATH=VALUE, as in lanes"):
        assignment(text)


def test_a_part_in_quotes_is_json() -> None:
    assert assignment('"\\u00e9"=1') == (("é",), "1")
    with pytest.raises(InvalidRequest, match="quoted JSON string"):
        assignment('"\\x"=1')


def test_assignments_make_one_document() -> None:
    said = [(("a", "b"), 1), (("a", "c"), None), (("d",), "x")]
    assert nested(said) == {"a": {"b": 1, "c": None}, "d": "x"}


@pytest.mark.parametrize(
    "paths",
    [[("a",), ("a",)], [("a", "b"), ("a",)], [("a",), ("a", "b")]],
)
def test_assignments_that_contradict_are_refused(paths: list[tuple[str, ...]]) -> None:
    with pytest.raises(InvalidRequest, match="a"):
        nested((path, 1) for path in paths)


def test_differences_are_reported_in_the_order_of_the_paths() -> None:
    found = json_diff.between({}, {"b": 1, "a": {"z": 1}, "c": 2})
    assert [one.path for one in found] == [("a",), ("b",), ("c",)]
