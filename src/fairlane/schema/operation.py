"""Declare each operation once, and derive its parameters from its types.

An `Operation` has a method, a path, a scope, the request and response types, and a one-line
summary. The HTTP route, OpenAPI, the client methods, the MCP tool and the reference tables come
from it; one function of `services/` implements it.

A field of a request is read from the path if the path names it in braces, from a header if its type
is annotated with `Header`, from the query if the method has no body or if it is annotated with
`Query`, and from the JSON body otherwise. A field annotated with `WholeBody` is the body; if its
type is a struct, that struct checks the body. A field annotated with `RawBody` gets the bytes of
the body. One annotated with `Nulls` lists the fields of the body that are null, for changes in
which null clears a setting. `json_name` converts Python names to JSON names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from fairlane.core.access import Scope
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.core.policy import nearest
from fairlane.core.types import json_name
from fairlane.schema.json_limits import ITEMS_MAX
from fairlane.schema.reading import RequestReading
from fairlane.schema.wire import BODY_BYTES_MAX

GET: Final = "GET"
POST: Final = "POST"
PUT: Final = "PUT"
PATCH: Final = "PATCH"
DELETE: Final = "DELETE"
CREATED: Final = 201

_WITHOUT_BODY: Final = frozenset({GET, DELETE})
_OPERATORS: Final = frozenset({Scope.OPERATE, Scope.ADMIN})
_PARTS: Final = ("path", "query", "header", "body", "document", "raw")
_PARAMETER: Final = re.compile(r"{(\w+)}")


class Request(msgspec.Struct, rename=json_name, forbid_unknown_fields=True):
    """A request; unknown fields are refused."""


class Response(msgspec.Struct, rename=json_name, omit_defaults=True):
    """A response. A field with a default is absent from the JSON while it has that value.

    In Python a field is an attribute: `task.started_at`. Until version 0.3 the JSON names also work
    as keys: `task["startedAt"]`, `task.get("error")`, `"error" in task`.
    """

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.to_dict()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, dict):
            return self.to_dict() == other
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # the values of fields can change

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def get(self, key: str, default: object = None) -> Any:
        """Return a field by its JSON name."""
        return self.to_dict().get(key, default)

    def keys(self) -> KeysView[str]:
        """Return the JSON names of the fields that are present."""
        return self.to_dict().keys()

    def items(self) -> ItemsView[str, Any]:
        """Return the fields that are present, by their JSON names."""
        return self.to_dict().items()

    def to_dict(self) -> JsonObject:
        """Return the response as its JSON object."""
        shape: JsonObject = msgspec.to_builtins(self)
        return shape


def one_of(words: Iterable[str]) -> msgspec.Meta:
    """Describe a text of a response that is one of these words.

    Only OpenAPI restricts the words: a client also reads a word that a newer server adds.
    """
    return msgspec.Meta(extra_json_schema={"enum": [*words]})


@dataclass(frozen=True, slots=True)
class Header:
    """Mark a field that is read from a header: `Annotated[str | None, Header("X-Name")]`."""

    name: str


@dataclass(frozen=True, slots=True)
class Query:
    """Mark a field that is read from the query although the method has a body."""


@dataclass(frozen=True, slots=True)
class IdOf:
    """Mark a field that is the id of something, so that callers may shorten it.

    `thing` is a task, batch, job, approval, template, delivery or endpoint.
    """

    thing: str


@dataclass(frozen=True, slots=True)
class WholeBody:
    """Mark the field that is the whole JSON body, for documents that the core checks.

    `shape` is the type that describes the document in OpenAPI.
    """

    shape: Any = JsonObject


@dataclass(frozen=True, slots=True)
class RawBody:
    """Mark the field that gets the bytes of the JSON body, to tell a repetition from a change.

    Callers do not set it. For a caller in this process the bytes are the ones a client would send.
    """


@dataclass(frozen=True, slots=True)
class Nulls:
    """Mark the list of the body's fields that are null. Absent fields are not in it."""


Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


@dataclass(frozen=True)
class Operation(Generic[Q, R]):
    """An operation that callers can request.

    `scope` is the scope that a token needs; None accepts any valid token. `agents` accepts tokens
    of a single agent, so the service must restrict them to that agent's data. `open` needs no
    token. `waits` names the field that says how long the server may delay the response. `statuses`
    are those of further response types. `audited` overrides the rule that every change that needs
    an operator's scope is written to the audit log. `empty_body` refuses a body with content;
    otherwise the body is ignored if no field is read from it. `also` are further methods of the
    same route. `positional` names optional fields that client methods also accept by position.
    `item` describes the items of a list that stays raw.
    """

    name: str
    method: str
    path: str
    request: type[Q]
    response: type[R]
    scope: Scope | None
    summary: str
    status: int = 200
    agents: bool = True
    open: bool = False
    waits: str | None = None
    statuses: Mapping[type, int] = field(default_factory=dict)
    audited: bool | None = None
    empty_body: bool = False
    also: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    item: type[msgspec.Struct] | None = None
    body_bytes_max: int = BODY_BYTES_MAX
    items_max: int = ITEMS_MAX

    @functools.cached_property
    def is_audited(self) -> bool:
        if self.audited is not None:
            return self.audited
        return self.method != GET and self.scope in _OPERATORS

    @functools.cached_property
    def fields(self) -> tuple[msgspec.structs.FieldInfo, ...]:
        """The fields of the request: msgspec takes 50 µs to list them."""
        return msgspec.structs.fields(self.request)

    @functools.cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names in braces of the path, in order."""
        return tuple(_PARAMETER.findall(self.path))

    @functools.cached_property
    def places(self) -> dict[str, str]:
        """Return where each field is read from: a part of the request, `document`, `raw` or
        `nulls`.
        """
        others = "query" if self.method in _WITHOUT_BODY else "body"
        return {
            one.name: "path" if one.encode_name in self.parameters else _PLACES.get(marker, others)
            for one in self.fields
            for marker in [type(_marker(self.request, one.name))]
        }

    @functools.cached_property
    def headers(self) -> dict[str, str]:
        """Return the header of each field that is read from one."""
        return {
            name: marker.name
            for name in self.places
            if isinstance(marker := _marker(self.request, name), Header)
        }

    @functools.cached_property
    def ids(self) -> dict[str, str]:
        """Return what each field that is an id names: `task`, `batch`, ..."""
        hints = get_type_hints(self.request, include_extras=True)
        found = ((name, _id_of(hint)) for name, hint in hints.items())
        return {name: thing for name, thing in found if thing is not None}

    @functools.cached_property
    def document(self) -> str | None:
        """Return the field that is the whole body, if there is one."""
        return self._only("document")

    @functools.cached_property
    def document_type(self) -> type[msgspec.Struct] | None:
        """Return the struct that checks the whole body; None if the body is checked elsewhere."""
        if self.document is None:
            return None
        kind = get_type_hints(self.request)[self.document]
        return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None

    @functools.cached_property
    def document_shape(self) -> object:
        """Return the type that describes the document, or None if the body is not a document."""
        marker = None if self.document is None else _marker(self.request, self.document)
        described = marker.shape if isinstance(marker, WholeBody) else None
        return self.document_type or described

    @functools.cached_property
    def descriptions(self) -> dict[str, str]:
        """Return the description of each field of the request and of its document."""
        kinds = [one for one in (self.document_type, self.request) if one is not None]
        hints = [get_type_hints(one, include_extras=True).items() for one in kinds]
        texts = {name: _description(hint) for one in hints for name, hint in one}
        return {name: text for name, text in texts.items() if text}

    @functools.cached_property
    def raw_body(self) -> str | None:
        """Return the field that gets the bytes of the body, if there is one."""
        return self._only("raw")

    @functools.cached_property
    def needs_body(self) -> bool:
        """Return whether a request without a body is refused.

        A change must say what to change, and a creation what to create.
        """
        fields = msgspec.structs.fields(self.part("body"))
        says_what = self.method == PATCH or (self.status == CREATED and bool(fields))
        return self.document is not None or says_what or any(f.required for f in fields)

    @functools.cached_property
    def nulls(self) -> str | None:
        """Return the field that lists the body's null fields, if there is one."""
        return self._only("nulls")

    def body_names(self, names: Iterable[str]) -> dict[str, str]:
        """Return the JSON names of body fields by their Python names; callers may use either.

        Raise `InvalidRequest` for an unknown name.
        """
        fields = {one.name: one.encode_name for one in msgspec.structs.fields(self.part("body"))}
        spellings = {json: name for name, json in fields.items()} | {name: name for name in fields}
        for name in names:
            if name not in spellings:
                raise InvalidRequest(f"unknown field '{name[:40]}'{nearest(name, fields)}")
        return {spellings[name]: fields[spellings[name]] for name in names}

    def _only(self, wanted: str) -> str | None:
        return next((name for name, place in self.places.items() if place == wanted), None)

    def part(self, place: str) -> type[msgspec.Struct]:
        """A type with the fields of the request that are read from one place."""
        return self._parts[place]

    @functools.cached_property
    def _parts(self) -> dict[str, type[msgspec.Struct]]:
        places = tuple(self.places.items())
        return {place: _part(self.request, place, places) for place in _PARTS[:4]}

    @functools.cached_property
    def reading(self) -> RequestReading:
        return RequestReading(self)

    def given(self, request: Q) -> dict[str, JsonObject]:
        """Return the values of a request by place and JSON name, without those at their default."""
        found: dict[str, JsonObject] = {place: {} for place in _PARTS}
        for one in self.fields:
            value, place = getattr(request, one.name), self.places[one.name]
            if place == "nulls":
                found["body"] |= dict.fromkeys(self.body_names(value).values())
            elif place == "path" or value != one.default:
                found[place][one.encode_name] = value
        return found

    def status_of(self, response: object) -> int:
        return self.statuses.get(type(response), self.status)

    @functools.cached_property
    def responses(self) -> dict[type, int]:
        """Return the status of each response type."""
        return {self.response: self.status, **self.statuses}

    def convert_response(self, shape: object) -> R:
        """Return a decoded response as the declared type whose required fields it has.

        Raise `msgspec.ValidationError` if no type fits.
        """
        kind = self.response if not self.statuses else _fitting(self.responses, shape)
        return msgspec.convert(shape, kind)


def _description(hint: object) -> str:
    """Return the outermost description in an annotated type; empty if there is none."""
    if get_origin(hint) is Annotated:
        notes = [one.description for one in get_args(hint)[1:] if isinstance(one, msgspec.Meta)]
        if any(notes):
            return next(note for note in notes if note)
    return next(filter(None, map(_description, get_args(hint))), "")


@functools.cache
def _part(
    request: type[Request], place: str, places: tuple[tuple[str, str], ...]
) -> type[msgspec.Struct]:
    """Return the same type for the same request, shared by all operations that use it."""
    where = dict(places)
    fields = msgspec.structs.fields(request)
    suffix = "" if place == "body" else place.title()
    return msgspec.defstruct(
        f"{request.__name__}{suffix}",
        [(one.name, one.type, _default(one)) for one in fields if where[one.name] == place],
        rename={one.name: one.encode_name for one in fields},
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _default(one: msgspec.structs.FieldInfo) -> object:
    if one.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=one.default_factory)
    return one.default


def _fitting(kinds: Iterable[Any], shape: object) -> Any:
    given = shape if isinstance(shape, dict) else {}
    for kind in kinds:
        needed = (one.encode_name for one in msgspec.structs.fields(kind) if one.required)
        if all(name in given for name in needed):
            return kind
    raise msgspec.ValidationError("the response matches none of the declared types")


def query_text(value: object) -> object:
    """Return a value as a query spells it: flags in lower case, lists with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


Marker = Header | Query | WholeBody | RawBody | Nulls
_PLACES: Final[Mapping[object, str]] = {
    Header: "header",
    Query: "query",
    WholeBody: "document",
    RawBody: "raw",
    Nulls: "nulls",
}


def _marker(request: type[Request], name: str) -> Marker | None:
    hint = get_type_hints(request, include_extras=True)[name]
    for marker in get_args(hint)[1:] if get_origin(hint) is not None else ():
        if isinstance(marker, Marker):
            return marker
    return None


def _id_of(hint: object) -> str | None:
    """Return what a type names by its id, at any depth of annotations."""
    for one in get_args(hint):
        found = one.thing if isinstance(one, IdOf) else _id_of(one)
        if found is not None:
            return found
    return None


# An operation of any types, for code that handles all of them alike.
AnyOperation: TypeAlias = Operation[Any, Any]
