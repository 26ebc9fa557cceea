"""Derive a tool's arguments from the signature of its verb: as JSON Schema and as a check.

Arguments have the names that the routes use. Null means absent. Documents are only described here;
the operation checks their content.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from fairlane.client.arguments import TaskReference
from fairlane.core import validation
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.types import json_name

Schema = JsonObject

_UNIONS: Final = (Union, types.UnionType)
_NOT_IN_JSON: Final = (types.NoneType, datetime, TaskReference)


def arguments_type(
    verb: Callable[..., object],
    names: Mapping[str, str],
    without: frozenset[str],
    about: Mapping[str, str],
) -> type[msgspec.Struct]:
    """Return a struct with a field for each argument of a tool, described by `about`.

    `about` is by the name in the signature.
    """
    found: list[tuple[str, object, object]] = []
    spellings: dict[str, str] = {}
    for name, (kind, required) in _parameters(verb).items():
        if name in without:
            continue
        spellings[name] = names.get(name) or json_name(name)
        note = Meta(description=about[name], extra_json_schema=_format(kind))
        accepted: object = Annotated[_plain(kind), note]
        if required:
            found.append((name, accepted, msgspec.NODEFAULT))
        else:
            found.append((name, accepted | UnsetType, UNSET))
    return msgspec.defstruct(
        "Arguments", found, rename=spellings, forbid_unknown_fields=True, kw_only=True
    )


def schema_of(kind: type[msgspec.Struct]) -> Schema:
    """Return a JSON Schema without references, titles and nulls, which more models understand."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template="{name}")
    simple = _simple(schema, components)
    assert isinstance(simple, dict)
    return simple


def document(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of a request body, as a part of a tool's schema."""
    schema = schema_of(kind)
    del schema["type"]
    schema.pop("description", None)
    return schema


def changes(kind: type[msgspec.Struct]) -> Schema:
    """Return the same schema with all fields optional."""
    schema = document(kind)
    schema.pop("required", None)
    return schema


def arguments(given: JsonMapping, kind: type[msgspec.Struct]) -> JsonObject:
    """Return the arguments to call the verb with. Raise `InvalidRequest` that names a wrong
    argument.
    """
    lists = {one.encode_name for one in msgspec.structs.fields(kind) if _takes_list(one.type)}
    present = {
        name: value.split(",") if name in lists and isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }
    checked = validation.convert(present, kind)
    named = {name: getattr(checked, name) for name in checked.__struct_fields__}
    return {name: value for name, value in named.items() if value is not UNSET}


def _takes_list(kind: object) -> bool:
    """Return whether an argument is a list of texts: a model may give one text instead."""
    if get_origin(kind) is Annotated:
        return _takes_list(get_args(kind)[0])
    if get_origin(kind) in _UNIONS:
        kinds = [one for one in get_args(kind) if one is not UnsetType]
        return len(kinds) == 1 and _takes_list(kinds[0])
    return get_origin(kind) in (list, Sequence) and str in get_args(kind)


def _parameters(verb: Callable[..., object]) -> dict[str, tuple[object, bool]]:
    """Yield each argument with its type and whether it is required."""
    hints = get_type_hints(verb)
    found: dict[str, tuple[object, bool]] = {}
    for name, parameter in list(inspect.signature(verb).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            (many,) = get_args(hints[name])  # Unpack[SomeTypedDict]
            found |= {key: (kind, False) for key, kind in get_type_hints(many).items()}
        else:
            found[name] = (hints[name], parameter.default is parameter.empty)
    return found


def _plain(kind: object) -> object:
    """Return a type without None and without types that JSON lacks: a time or task is text."""
    if get_origin(kind) is Sequence:
        (item,) = get_args(kind)
        return types.GenericAlias(Sequence, (_plain(item),))
    if get_origin(kind) not in _UNIONS:
        return kind
    kept = [_plain(one) for one in get_args(kind) if one not in _NOT_IN_JSON]
    return Union[tuple(kept)]  # noqa: UP007 - made of a list


def _format(kind: object) -> JsonObject | None:
    return {"format": "date-time"} if datetime in get_args(kind) else None


def _simple(schema: object, components: JsonMapping) -> Any:
    if isinstance(schema, list):
        return [_simple(one, components) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _simple(components[schema["$ref"]], components)
    kept = {
        name: {key: _simple(one, components) for key, one in value.items()}
        if name == "properties"
        else _simple(value, components)
        for name, value in schema.items()
        if name != "title" and not (name == "required" and not value)
    }
    if kept.get("default", "") is None:
        del kept["default"]
    choices = kept.get("anyOf")
    if choices is not None and len(choices) == 1:
        del kept["anyOf"]
        kept = {**choices[0], **kept}
    return kept
