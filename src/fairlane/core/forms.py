"""Forms: the part of JSON Schema in which an approval asks for values, and the check of an answer.

A form is an object schema whose properties are texts, numbers, whole numbers, booleans, or lists of
those; each may be restricted to an `enum`. A form is checked as a whole when the approval opens, so
an answer can only fail because of its values. Caution: a pattern comes from a caller and runs on
the text of another one, so only patterns whose time is bounded are accepted (`_pattern_problem`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import nearest
from fairlane.core.types import json_name
from fairlane.core.validation import Problem

FIELDS_MAX: Final = 50
CHOICES_MAX: Final = 100
ITEMS_MAX: Final = 100
LABEL_CHARACTERS_MAX: Final = 200
HELP_CHARACTERS_MAX: Final = 2000
TEXT_CHARACTERS_MAX: Final = 10_000
PATTERN_CHARACTERS_MAX: Final = 200
# The longest text that a pattern is tried on, and how much of a pattern may vary in length.
PATTERN_TEXT_MAX: Final = 256
_OPTIONAL_MAX: Final = 4
_REPEATS_MAX: Final = 2

STRING: Final = "string"
NUMBER: Final = "number"
INTEGER: Final = "integer"
BOOLEAN: Final = "boolean"
ARRAY: Final = "array"

FieldName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$(?!\n)")]
Label = Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX)]
Help = Annotated[str, Meta(max_length=HELP_CHARACTERS_MAX)]
Choice = Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX)] | bool | int | float
Length = Annotated[int, Meta(ge=0, le=TEXT_CHARACTERS_MAX)]
Count = Annotated[int, Meta(ge=0, le=ITEMS_MAX)]
Bound = Annotated[float, Meta(ge=-1e15, le=1e15)]
Pattern = Annotated[str, Meta(max_length=PATTERN_CHARACTERS_MAX)]


class FormValue(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True, kw_only=True
):
    """The rules for one value."""

    type: Annotated[
        Literal["string", "number", "integer", "boolean", "array"],
        Meta(description="Type of the value"),
    ]
    enum: Annotated[
        Annotated[list[Choice], Meta(min_length=1, max_length=CHOICES_MAX)] | None,
        Meta(description="The values to choose from"),
    ] = None
    min_length: Annotated[
        Length | None, Meta(description="Minimum number of characters in a text")
    ] = None
    max_length: Annotated[
        Length | None, Meta(description="Maximum number of characters in a text")
    ] = None
    pattern: Annotated[
        Pattern | None,
        Meta(description="Characters and classes with repeats that a text must match; no groups"),
    ] = None
    minimum: Annotated[Bound | None, Meta(description="Smallest number")] = None
    maximum: Annotated[Bound | None, Meta(description="Largest number")] = None


class FormField(FormValue, kw_only=True):
    """One field of a form. A list has `items` and no restrictions of its own but its size."""

    title: Annotated[Label | None, Meta(description="Label of the field")] = None
    description: Annotated[Help | None, Meta(description="Help text of the field")] = None
    default: Annotated[Any, Meta(description="Value of a field that is left out")] = None
    items: Annotated[FormValue | None, Meta(description="The values of a list")] = None
    min_items: Annotated[Count | None, Meta(description="Minimum number of items in a list")] = None
    max_items: Annotated[Count | None, Meta(description="Maximum number of items in a list")] = None


class Form(msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True):
    """A JSON Schema of an object, as far as forms support it."""

    properties: Annotated[
        Annotated[dict[FieldName, FormField], Meta(max_length=FIELDS_MAX)],
        Meta(description="The fields, in the order in which they are shown"),
    ]
    type: Annotated[Literal["object"] | None, Meta(description='"object"')] = None
    title: Annotated[Label | None, Meta(description="Title of the form")] = None
    description: Annotated[Help | None, Meta(description="Help text of the form")] = None
    required: Annotated[
        Annotated[list[str], Meta(max_length=FIELDS_MAX)] | None,
        Meta(description="Names of the fields that an answer must have"),
    ] = None
    additional_properties: Annotated[
        Literal[False] | None, Meta(description="Only false; an answer never has other fields")
    ] = None


# -------------------------------------------------------------------- the form itself


def form_problems(form: Form, path: str) -> list[Problem]:
    """Return every problem of a form whose fields are each valid."""
    found: list[Problem] = []
    if not form.properties:
        found.append(Problem(f"{path}.properties", f"field '{path}.properties' must not be empty"))
    for name in form.required or ():
        if name not in form.properties:
            inside = f"{path}.required"
            hint = nearest(name, form.properties)
            text = f"field '{inside}' names '{name[:64]}', which is not a property{hint}"
            found.append(Problem(inside, text))
    for name, field in form.properties.items():
        found += _field_problems(field, f"{path}.properties.{name}")
    return found


def _field_problems(field: FormField, path: str) -> Iterator[Problem]:
    if field.type == ARRAY:
        if field.items is None:
            yield Problem(f"{path}.items", f"missing required field '{path}.items'")
        elif field.items.type == ARRAY:
            inside = f"{path}.items.type"
            yield Problem(inside, f"field '{inside}' must not be array: lists are not nested")
        else:
            yield from _value_problems(field.items, f"{path}.items")
        if field.enum is not None:
            yield Problem(f"{path}.enum", f"field '{path}.enum' belongs to '{path}.items'")
    else:
        for name in ("items", "minItems", "maxItems"):
            if _given(field, name):
                yield _misplaced(path, name, ARRAY)
    yield from _value_problems(field, path)
    yield from _reversed(field, path, "minItems", "maxItems")
    if field.default is not None:
        yield from value_problems(field, field.default, f"{path}.default")


def _value_problems(value: FormValue, path: str) -> Iterator[Problem]:
    for names, kinds in _PLACES.items():
        if value.type not in kinds:
            for name in names:
                if _given(value, name):
                    yield _misplaced(path, name, " or ".join(kinds))
    yield from _reversed(value, path, "minLength", "maxLength")
    yield from _reversed(value, path, "minimum", "maximum")
    if value.pattern is not None:
        problem = _pattern_problem(value.pattern)
        if problem is not None:
            yield Problem(f"{path}.pattern", f"field '{path}.pattern' {problem}")
    for choice in value.enum or ():
        if value.type != ARRAY and not _has_type(value.type, choice):
            shown = f"{path}.enum"
            yield Problem(shown, f"field '{shown}': {choice!r:.40} is not {_A[value.type]}")


_PLACES: Final[Mapping[tuple[str, ...], tuple[str, ...]]] = {
    ("minLength", "maxLength", "pattern"): (STRING,),
    ("minimum", "maximum"): (NUMBER, INTEGER),
}
_FIELDS: Final = {
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_items",
    "maxItems": "max_items",
}


def _given(value: FormValue, name: str) -> bool:
    return getattr(value, _FIELDS.get(name, name)) is not None


def _misplaced(path: str, name: str, kind: str) -> Problem:
    return Problem(f"{path}.{name}", f"field '{path}.{name}' is only for the type {kind}")


def _reversed(value: FormValue, path: str, low: str, high: str) -> Iterator[Problem]:
    first, last = (getattr(value, _FIELDS.get(name, name), None) for name in (low, high))
    if first is not None and last is not None and first > last:
        yield Problem(f"{path}.{low}", f"field '{path}.{low}' must not be greater than '{high}'")


# -------------------------------------------------------------------- patterns

_ESCAPE: Final = r"\\[dDwWsS^$\\.*+?()\[\]{}|/ -]"
_ATOM: Final = rf"(?:{_ESCAPE}|\[\^?(?:{_ESCAPE}|[^\]\[\\])+\]|[^\\\[\](){{}}|*+?^$])"
_REPEAT: Final = r"(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})"
_SIMPLE: Final = re.compile(rf"\^?(?:{_ATOM}{_REPEAT}?)*\$?", re.DOTALL)
_STEP: Final = re.compile(rf"{_ATOM}({_REPEAT})?", re.DOTALL)
_SETS: Final = re.compile(r"--|&&|~~|\|\|")  # reserved by Python for operations on sets


def _pattern_problem(pattern: str) -> str | None:
    """Return the problem of a pattern, or None.

    The time to match grows with the number of ways in which repeats can share a text. Without
    groups and alternatives, and with few parts of variable length, it stays below a few
    milliseconds for a text of `PATTERN_TEXT_MAX` characters.
    """
    if not _SIMPLE.fullmatch(pattern) or _SETS.search(pattern):
        return (
            "must be a sequence of characters and classes such as [a-z], \\d, \\w, \\s or ., each "
            "with an optional ?, *, + or {m,n}; groups, alternatives and references are not "
            "supported: use enum to choose between words"
        )
    body = pattern.removeprefix("^")
    repeats = [found[1] for found in _STEP.finditer(body) if found[1]]
    optional = sum(one == "?" for one in repeats)
    wide = sum(one != "?" and not one[1:-1].isdigit() for one in repeats)
    most = _REPEATS_MAX if pattern.startswith("^") else _REPEATS_MAX - 1
    if wide > most or optional > _OPTIONAL_MAX:
        return (
            f"may repeat at most {_REPEATS_MAX} parts a variable number of times, and only one "
            f"unless it begins with ^; at most {_OPTIONAL_MAX} parts may be optional"
        )
    try:
        _compiled(pattern)
    except re.error as error:
        return f"is not a valid pattern: {error}"
    return None


def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a checked pattern. `$` is the end of the text, also before a line break."""
    escaped = re.search(r"(\\*)\$$", pattern)
    if escaped is not None and len(escaped[1]) % 2 == 0:
        pattern = pattern[:-1] + r"\Z"
    return re.compile(pattern, re.ASCII)


# -------------------------------------------------------------------- answers

_A: Final = {
    STRING: "text",
    NUMBER: "a number",
    INTEGER: "a whole number",
    BOOLEAN: "true or false",
    ARRAY: "a list",
}


def filled(form: Form, answer: JsonMapping | None) -> JsonObject:
    """Return the answer with the defaults of the fields that it leaves out."""
    found = dict(answer or {})
    for name, field in form.properties.items():
        if name not in found and field.default is not None:
            found[name] = field.default
    return found


def answer_problems(form: Form, answer: JsonMapping) -> list[Problem]:
    """Return every problem of an answer whose defaults are filled in."""
    found = [
        Problem(f"answer.{name}", f"missing required field 'answer.{name}'")
        for name in form.required or ()
        if name not in answer
    ]
    for name, value in answer.items():
        path = f"answer.{name[:64]}"
        field = form.properties.get(name)
        if field is None:
            hint = nearest(name, form.properties)
            found.append(Problem(path, f"unknown field '{path}'{hint}"))
        else:
            found += value_problems(field, value, path)
    return found


def value_problems(field: FormField, value: object, path: str) -> Iterator[Problem]:
    """Yield the problems of the value of one field."""
    if field.type != ARRAY:
        yield from _problems_of(field, value, path)
        return
    if not isinstance(value, list):
        yield _wrong(field.type, path)
        return
    low, high = field.min_items or 0, ITEMS_MAX if field.max_items is None else field.max_items
    if not low <= len(value) <= high:
        yield Problem(path, f"field '{path}' must have from {low} to {high} items")
        return
    rule = field.items or FormValue(type=STRING)  # a list without items is refused elsewhere
    for number, item in enumerate(value):
        yield from _problems_of(rule, item, f"{path}[{number}]")


def _problems_of(rule: FormValue, value: object, path: str) -> Iterator[Problem]:
    if not _has_type(rule.type, value):
        yield _wrong(rule.type, path)
    elif rule.enum is not None and not any(_same(value, one) for one in rule.enum):
        words = ", ".join(_word(one) for one in rule.enum)
        yield Problem(path, f"field '{path}' must be one of {words:.200}")
    elif isinstance(value, str):
        yield from _text_problems(rule, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = rule.minimum, rule.maximum
        if low is not None and value < low:
            yield Problem(path, f"field '{path}' must be at least {low:.15g}")
        if high is not None and value > high:
            yield Problem(path, f"field '{path}' must be at most {high:.15g}")


def _text_problems(rule: FormValue, value: str, path: str) -> Iterator[Problem]:
    most = TEXT_CHARACTERS_MAX if rule.max_length is None else rule.max_length
    if rule.pattern is not None:
        most = min(most, PATTERN_TEXT_MAX)
    if len(value) > most:
        yield Problem(path, f"field '{path}' must not be longer than {most} characters")
    elif len(value) < (rule.min_length or 0):
        yield Problem(path, f"field '{path}' must have at least {rule.min_length} characters")
    elif rule.pattern is not None and not _compiled(rule.pattern).search(value):
        yield Problem(path, f"field '{path}' must match {rule.pattern}")


def _has_type(kind: str, value: object) -> bool:
    if kind == BOOLEAN:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind == STRING:
        return isinstance(value, str)
    if kind == INTEGER:
        return isinstance(value, int)
    return isinstance(value, int | float) and math.isfinite(value)


def _same(value: object, choice: object) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(value, bool) == isinstance(choice, bool) and value == choice


def _word(choice: object) -> str:
    return str(choice).lower() if isinstance(choice, bool) else str(choice)


def _wrong(kind: str, path: str) -> Problem:
    return Problem(path, f"field '{path}' must be {_A[kind]}", mismatch=True)
