"""Forms: which schemas are accepted, which answers fit, and how every problem is worded."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairlane.core import forms, validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.forms import Form


def _form(**properties: Any) -> Form:
    return validation.convert({"type": "object", "properties": properties}, Form)


def _problems(form: Form) -> list[str]:
    return [problem.text for problem in forms.form_problems(form, "form")]


def _answer(form: Form, **answer: Any) -> list[str]:
    full = forms.filled(form, answer)
    return [problem.text for problem in forms.answer_problems(form, full)]


FULL = _form(
    subject={"type": "string", "minLength": 2, "maxLength": 10, "title": "Subject"},
    amount={"type": "number", "minimum": 1, "maximum": 50.5, "default": 2},
    copies={"type": "integer"},
    urgent={"type": "boolean", "default": False},
    size={"type": "string", "enum": ["s", "m"]},
    level={"type": "integer", "enum": [1, 2]},
    sure={"type": "boolean", "enum": [True]},
    to={"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "maxItems": 2},
)


def test_a_form_of_every_type_has_no_problem() -> None:
    assert _problems(FULL) == []


def test_a_fitting_answer_gets_the_defaults_of_what_it_leaves_out() -> None:
    answer = {"subject": "hey", "copies": 3, "size": "m", "to": ["ada"], "level": 2, "sure": True}
    assert _answer(FULL, **answer) == []
    assert forms.filled(FULL, {"amount": 3}) == {"amount": 3, "urgent": False}
    assert forms.filled(FULL, None) == {"amount": 2, "urgent": False}


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("subject", 1, "field 'answer.subject' must be text"),
        ("subject", "x", "field 'answer.subject' must have at least 2 characters"),
        ("subject", "x" * 11, "field 'answer.subject' must not be longer than 10 characters"),
        ("amount", "1", "field 'answer.amount' must be a number"),
        ("amount", True, "field 'answer.amount' must be a number"),
        ("amount", float("inf"), "field 'answer.amount' must be a number"),
        ("amount", 0, "field 'answer.amount' must be at least 1"),
        ("amount", 51, "field 'answer.amount' must be at most 50.5"),
        ("copies", 1.5, "field 'answer.copies' must be a whole number"),
        ("urgent", 1, "field 'answer.urgent' must be true or false"),
        ("size", "l", "field 'answer.size' must be one of s, m"),
        ("level", 3, "field 'answer.level' must be one of 1, 2"),
        ("level", True, "field 'answer.level' must be a whole number"),
        ("sure", False, "field 'answer.sure' must be one of true"),
        ("to", "ada", "field 'answer.to' must be a list"),
        ("to", ["a", "b", "c"], "field 'answer.to' must have from 0 to 2 items"),
        ("to", ["a", "B"], "field 'answer.to[1]' must match ^[a-z]+$"),
        ("to", ["a" * 257], "field 'answer.to[0]' must not be longer than 256 characters"),
        ("sbject", "x", "unknown field 'answer.sbject'; did you mean subject?"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_bound(
    field: str, value: object, text: str
) -> None:
    assert _answer(FULL, **{field: value}) == [text]


def test_all_problems_of_an_answer_are_reported_at_once() -> None:
    form = _form(a={"type": "string"}, b={"type": "integer"})
    form.required = ["a", "b"]
    texts = ["missing required field 'answer.a'", "field 'answer.b' must be a whole number"]
    assert _answer(form, b="x") == texts


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ({"type": "array"}, "missing required field 'form.properties.x.items'"),
        (
            {"type": "array", "items": {"type": "array"}},
            "field 'form.properties.x.items.type' must not be array: lists are not nested",
        ),
        (
            {"type": "array", "items": {"type": "string"}, "enum": ["a"]},
            "field 'form.properties.x.enum' belongs to 'form.properties.x.items'",
        ),
        (
            {"type": "string", "maxItems": 1},
            "field 'form.properties.x.maxItems' is only for the type array",
        ),
        (
            {"type": "boolean", "pattern": "a"},
            "field 'form.properties.x.pattern' is only for the type string",
        ),
        (
            {"type": "string", "minimum": 1},
            "field 'form.properties.x.minimum' is only for the type number or integer",
        ),
        (
            {"type": "string", "minLength": 3, "maxLength": 2},
            "field 'form.properties.x.minLength' must not be greater than 'maxLength'",
        ),
        (
            {"type": "integer", "enum": [1, "2"]},
            "field 'form.properties.x.enum': '2' is not a whole number",
        ),
        (
            {"type": "integer", "default": "2"},
            "field 'form.properties.x.default' must be a whole number",
        ),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(field: dict[str, Any], text: str) -> None:
    assert _problems(_form(x=field)) == [text]


def test_a_form_needs_fields_and_knows_the_required_ones() -> None:
    form = _form(amount={"type": "number"})
    form.required = ["amont"]
    assert _problems(form) == [
        "field 'form.required' names 'amont', which is not a property; did you mean amount?"
    ]
    assert _problems(_form()) == ["field 'form.properties' must not be empty"]


def test_the_rest_of_json_schema_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown field 'properties\.x\.\$ref'"):
        _form(x={"type": "string", "$ref": "#/x"})


@pytest.mark.parametrize(
    "pattern", ["^[A-Z]{2}-?[0-9]+$", r"\d\d", "", "^a*b{2,3}$", r"[^a-z]+", r"^\$[0-9]+\.[0-9]{2}"]
)
def test_simple_patterns_are_accepted(pattern: str) -> None:
    assert _problems(_form(x={"type": "string", "pattern": pattern})) == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$", "(a|aa)+", "a|b", r"(.)\1", "(?=a)", "a++", "a*?", "[a", "a{2", "^*", "[z-a]",
        "a*b*", "^a*b*c*$", "a?a?a?a?a?", "[a--b]", "a{3,2}",
    ],
)  # fmt: skip
def test_patterns_that_could_take_long_or_are_broken_are_refused(pattern: str) -> None:
    problems = _problems(_form(x={"type": "string", "pattern": pattern}))
    assert len(problems) == 1, problems
    assert problems[0].startswith("field 'form.properties.x.pattern' ")


def test_the_worst_accepted_pattern_is_fast_on_the_longest_text() -> None:
    form = _form(x={"type": "string", "pattern": r"^\w*\w*a?a?a?a?b$"})
    assert _problems(form) == []
    began = time.process_time()
    assert _answer(form, x="a" * forms.PATTERN_TEXT_MAX) != []
    assert time.process_time() - began < 2


def test_the_end_of_a_pattern_is_the_end_of_the_text() -> None:
    form = _form(x={"type": "string", "pattern": "^a$"}, y={"type": "string", "pattern": r"a\$"})
    assert _answer(form, x="a", y="a$") == []
    assert _answer(form, x="a\n", y="a") == [
        "field 'answer.x' must match ^a$",
        r"field 'answer.y' must match a\$",
    ]
