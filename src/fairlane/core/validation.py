"""The one validator: a decoded value in, a typed value out, or every problem at once.

`msgspec` checks types, bounds and patterns in one pass, but it stops at the first problem and words
it for programmers. So a refused value is walked again here, by the same type, and every problem is
reported with its path, the bound and the nearest known name. The fast path serves valid input, the
slow path explains invalid input; `explain` must find a problem wherever `msgspec` refuses, which a
property test checks.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonMapping
from fairlane.core.policy import nearest

T = TypeVar("T")

DEPTH_MAX: Final = 64
PROBLEMS_MAX: Final = 20
SHOWN_CHARACTERS_MAX: Final = 40

_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_NESTED: Final = (dict, list)
_WORDS: Final[Mapping[type, str]] = {
    inspect.NoneType: "null",
    inspect.BoolType: "true or false",
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "text",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}


class Problem(msgspec.Struct, frozen=True):
    """A problem with the value at `path` ("" is the body itself).

    `mismatch` says that the value does not have the declared type.
    """

    path: str
    text: str
    mismatch: bool = False


def too_deep(value: object) -> bool:
    """Return whether a value is nested too deeply for some callers to parse."""
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(DEPTH_MAX + 1):  # level by level, because recursion would overflow first
        if not level:
            return False
        inner: list[Any] = []
        for one in level:
            for item in one.values() if isinstance(one, dict) else one:
                if isinstance(item, _NESTED):
                    inner.append(item)  # noqa: PERF401 - most is flat, and a generator costs more
        level = inner
    return True


def convert(value: object, kind: type[T]) -> T:
    """Check a value that is already decoded. Raise `InvalidRequest` that lists every problem."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise refusal(explain(value, kind)) from None


def check(value: JsonMapping, kind: type[T], rules: Callable[[T], list[Problem]]) -> T:
    """Check a decoded object and the rules that join its fields.

    Raise `InvalidRequest` that lists every problem. The rules get a value without the fields that
    have problems of their own, unless those are required.
    """
    problems: list[Problem] = []
    checked: T | None = None
    try:
        checked = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        problems = explain(value, kind)
        wrong = {re.split(r"[.\[]", problem.path)[0] for problem in problems}
        rest = {name: one for name, one in value.items() if name not in wrong}
        with contextlib.suppress(msgspec.ValidationError):
            checked = msgspec.convert(rest, kind)
    if checked is not None:
        problems += rules(checked)
    if problems or checked is None:
        raise refusal(problems)
    return checked


def convert_query(values: JsonMapping, kind: type[T]) -> T:
    """Check query parameters, in which numbers and flags are text."""
    return _convert_text(values, kind, "query parameter '{}'")


def convert_path(values: JsonMapping, kind: type[T]) -> T:
    """Check the parameters of a path."""
    return _convert_text(values, kind, "path parameter '{}'")


def convert_headers(values: JsonMapping, kind: type[T], names: Mapping[str, str]) -> T:
    """Check header values; `names` maps each field's JSON name to its header."""
    return _convert_text(values, kind, "the header {}", names)


def _convert_text(
    values: JsonMapping, kind: type[T], word: str, names: Mapping[str, str] | None = None
) -> T:
    key: object = kind
    if all(_WHOLE.fullmatch(values[name]) for name in _whole_numbers(key) if name in values):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(values, kind, strict=False)
    problems = explain(values, kind, strings=True)
    raise refusal(
        [
            Problem(one.path, one.text.replace(f"field '{one.path}'", word.format(name), 1))
            for one in problems
            for name in [(names or {}).get(one.path, one.path)]
        ]
    )


@functools.cache
def _whole_numbers(kind: object) -> list[str]:
    """Return the fields that are whole numbers, which msgspec would also read from `1e3`."""
    info = _type_info(kind)
    assert isinstance(info, inspect.StructType)
    return [
        field.encode_name
        for field in info.fields
        for plain in [_plain(field.type)]
        for members in [plain.types if isinstance(plain, inspect.UnionType) else (plain,)]
        if {type(_plain(one)) for one in members} <= {inspect.IntType, inspect.NoneType}
    ]


def refusal(problems: Sequence[Problem]) -> InvalidRequest:
    """Return one error for all problems: the first in its message, all of them in its details."""
    texts = "; ".join(problem.text for problem in problems[:5])
    more = f"; and {len(problems) - 5} more problems" if len(problems) > 5 else ""
    details = None
    if len(problems) > 1:
        details = {"problems": [{"path": one.path, "error": one.text} for one in problems]}
    return InvalidRequest(f"{texts}{more}", details=details)


def explain(value: object, kind: object, *, strings: bool = False) -> list[Problem]:
    """List the problems of a decoded value in the order of its fields."""
    found: list[Problem] = []
    for problem in _problems(_type_info(kind), value, "", strings=strings):
        found.append(problem)
        if len(found) == PROBLEMS_MAX:
            break
    if not found:  # a msgspec rule that is not walked here: never accept what it refused
        found.append(Problem("", "the body does not have the expected form"))
    return found


@functools.cache
def _type_info(kind: object) -> inspect.Type:
    return inspect.type_info(kind)


def is_list(kind: object) -> bool:
    """Return whether a field's type is a list, or a list or None."""
    return any(isinstance(_plain(one), inspect.ListType) for one in _members(kind))


def is_moment(kind: object) -> bool:
    """Return whether a field's type is a time, or a time or None."""
    extras = [one.extra_json_schema for one in _members(kind) if isinstance(one, inspect.Metadata)]
    return any(extra is not None and extra.get("format") == "date-time" for extra in extras)


def _members(kind: object) -> tuple[inspect.Type, ...]:
    """Return the types of a union, or the type itself."""
    info = _type_info(kind)
    plain = _plain(info)
    return plain.types if isinstance(plain, inspect.UnionType) else (info,)


def _problems(info: inspect.Type, value: object, path: str, *, strings: bool) -> Iterator[Problem]:
    """Walk a value by its declared type. With `strings`, numbers and flags may be text."""
    info = _plain(info)
    check = _CHECKS.get(type(info))
    return iter(()) if check is None else check(info, value, path, strings=strings)


def _plain(info: inspect.Type) -> inspect.Type:
    """Return the type without its description."""
    return info.type if isinstance(info, inspect.Metadata) else info


def _of_union(
    info: inspect.UnionType, value: Any, path: str, *, strings: bool
) -> Iterator[Problem]:
    """Report against the member with the value's own type, or name all of them."""
    found: list[list[Problem]] = []
    for member in info.types:
        problems = list(_problems(member, value, path, strings=strings))
        if not problems:
            return
        found.append(problems)
    same_type = [one for one in found if not (one[0].mismatch and one[0].path == path)]
    if len(same_type) != 1 or not _is_choice_of_many(info, value):
        yield from same_type[0] if same_type else [_wrong_type(info, path)]
    else:
        words = [str(word) for one in info.types for word in getattr(_plain(one), "values", ())]
        yield Problem(path, f"{_wrong_type(info, path).text}{nearest(value, words)}")


def _is_choice_of_many(info: inspect.UnionType, value: object) -> bool:
    """Return whether a text is not one of the words that a field accepts beside another type."""
    others = [_plain(one) for one in info.types]
    kinds = {type(one) for one in others if not isinstance(one, inspect.NoneType)}
    return isinstance(value, str) and inspect.LiteralType in kinds and len(kinds) > 1


def _of_struct(
    info: inspect.StructType, value: object, path: str, *, strings: bool
) -> Iterator[Problem]:
    if type(value) is not dict:
        yield _wrong_type(info, path)
        return
    fields = {field.encode_name: field for field in info.fields}
    for name in value:
        if name not in fields and info.forbid_unknown_fields:
            shown = _inside(path, str(name)[:SHOWN_CHARACTERS_MAX])
            yield Problem(shown, f"unknown field '{shown}'{nearest(str(name), fields)}")
    for name, field in fields.items():
        inside = _inside(path, name)
        if name in value:
            yield from _problems(field.type, value[name], inside, strings=strings)
        elif field.required:
            yield Problem(inside, f"missing required field '{inside}'")


def _of_list(
    info: inspect.ListType | inspect.VarTupleType, value: object, path: str, *, strings: bool
) -> Iterator[Problem]:
    if type(value) is not list:
        yield _wrong_type(info, path)
        return
    if info.max_length is not None and len(value) > info.max_length:
        yield Problem(path, f"{_named(path)} must not have more than {info.max_length} items")
        return
    if info.min_length is not None and len(value) < info.min_length:
        yield Problem(path, f"{_named(path)} must not be empty")
    for number, item in enumerate(value):
        yield from _problems(info.item_type, item, f"{path}[{number}]", strings=strings)


def _of_dict(
    info: inspect.DictType, value: object, path: str, *, strings: bool
) -> Iterator[Problem]:
    if type(value) is not dict:
        yield _wrong_type(info, path)
        return
    for key, item in value.items():
        inside = _inside(path, str(key)[:SHOWN_CHARACTERS_MAX])
        yield from _problems(info.key_type, key, inside, strings=strings)
        yield from _problems(info.value_type, item, inside, strings=strings)


def _of_text(
    info: inspect.StrType,
    value: object,
    path: str,
    *,
    strings: bool,  # noqa: ARG001 - each check is called alike
) -> Iterator[Problem]:
    if type(value) is not str:
        yield _wrong_type(info, path)
    elif info.max_length is not None and len(value) > info.max_length:
        yield Problem(path, f"{_named(path)} must not be longer than {info.max_length} characters")
    elif info.min_length is not None and len(value) < info.min_length:
        yield Problem(path, f"{_named(path)} must not be empty")
    elif info.pattern is not None and not re.search(info.pattern, value):
        shown = info.pattern.replace("$(?!\\n)", "$")
        yield Problem(
            path,
            f"{_named(path)} has invalid characters or is too long; it must match {shown}",
        )


def _of_number(
    info: inspect.IntType | inspect.FloatType, value: Any, path: str, *, strings: bool
) -> Iterator[Problem]:
    number = _number(value, whole=isinstance(info, inspect.IntType)) if strings else value
    kinds = (int,) if isinstance(info, inspect.IntType) else (int, float)
    if type(number) not in kinds:
        yield _wrong_type(info, path)
        return
    low, high = info.ge, info.le
    if (low is not None and number < low) or (high is not None and number > high):
        yield Problem(path, f"{_named(path)} must be {_range(low, high)}")


def _range(low: float | None, high: float | None) -> str:
    return f"at least {low}" if high is None else f"from {low} to {high}"


def _number(text: Any, *, whole: bool) -> Any:
    if whole:
        return int(text) if isinstance(text, str) and _WHOLE.fullmatch(text) else text
    try:
        return float(text)
    except ValueError:
        return text


def _of_choice(
    info: inspect.LiteralType,
    value: object,
    path: str,
    *,
    strings: bool,  # noqa: ARG001 - each check is called alike
) -> Iterator[Problem]:
    if value not in info.values:
        words = [str(word) for word in info.values]
        hint = nearest(value, words) if isinstance(value, str) else ""
        yield Problem(path, f"{_named(path)} must be one of {', '.join(words)}{hint}")


def _of_flag(
    info: inspect.BoolType, value: object, path: str, *, strings: bool
) -> Iterator[Problem]:
    if type(value) is not bool and not (strings and value in ("true", "false", "1", "0")):
        yield _wrong_type(info, path)


def _of_null(
    info: inspect.NoneType,
    value: object,
    path: str,
    *,
    strings: bool,  # noqa: ARG001 - each check is called alike
) -> Iterator[Problem]:
    if value is not None:
        yield _wrong_type(info, path)


_CHECKS: Final[Mapping[type, Callable[..., Iterator[Problem]]]] = {
    inspect.UnionType: _of_union,
    inspect.StructType: _of_struct,
    inspect.ListType: _of_list,
    inspect.VarTupleType: _of_list,
    inspect.DictType: _of_dict,
    inspect.LiteralType: _of_choice,
    inspect.StrType: _of_text,
    inspect.IntType: _of_number,
    inspect.FloatType: _of_number,
    inspect.BoolType: _of_flag,
    inspect.NoneType: _of_null,
}


def _wrong_type(info: inspect.Type, path: str) -> Problem:
    expected = "a JSON object" if not path and _expected(info) == "an object" else _expected(info)
    return Problem(path, f"{_named(path)} must be {expected}", mismatch=True)


def _expected(info: inspect.Type) -> str:
    if isinstance(info, inspect.UnionType):
        words = [
            _expected(_plain(one)) for one in info.types if not isinstance(one, inspect.NoneType)
        ]
        return " or ".join(dict.fromkeys(words))
    if isinstance(info, inspect.LiteralType):
        return f"one of {', '.join(str(word) for word in info.values)}"
    return _WORDS.get(type(info), "a value")


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(path: str) -> str:
    return f"field '{path}'" if path else "the body"
