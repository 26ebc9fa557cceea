"""How the parts of a request become the fields of its type.

HTTP reads the parts from the network, a caller in the same process has them as values; both are
checked here, so a problem has the same words. Each part is read by a type that has only its own
fields, so no caller can set a field of the path or of a header in the body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from fairlane.core import validation
from fairlane.core.json_types import JsonObject
from fairlane.schema import decoding

if TYPE_CHECKING:
    from fairlane.schema.operation import AnyOperation

Values = JsonObject


class RequestReading:
    """The functions that check the parts of an operation's request.

    `headers` names the header of each field by the field's JSON name; `body` is None if the
    operation reads no body.
    """

    def __init__(self, operation: AnyOperation) -> None:
        self._path = operation.part("path")
        self._header = operation.part("header")
        self._query = operation.part("query")
        self.headers = {
            one.encode_name: operation.headers[one.name]
            for one in msgspec.structs.fields(self._header)
        }
        self._needs_headers = _is_required(self._header)
        fields = msgspec.structs.fields(self._query)
        self.parameters = tuple(one.encode_name for one in fields)
        self.needs_query = _is_required(self._query)
        self._moments = {one.encode_name for one in fields if validation.is_moment(one.type)}
        self._lists = [one.encode_name for one in fields if validation.is_list(one.type)]
        self.body = _body(operation)

    def path(self, given: Mapping[str, str]) -> Values:
        return _values(validation.convert_path(given, self._path))

    def header(self, given: Mapping[str, str]) -> Values:
        """Return the fields of headers, which are given by JSON name."""
        if not given and not self._needs_headers:
            return {}
        return _values(validation.convert_headers(given, self._header, self.headers))

    def query(self, found: Mapping[str, str]) -> Values:
        """Return the fields of a query, which is text; a list is written with commas.

        An empty parameter counts as absent, unless it is a time: an absent time would mean now.
        """
        given: Values = {
            name: text for name, text in found.items() if text or name in self._moments
        }
        for name in self._lists:
            if name in given:
                given[name] = [word.strip() for word in given[name].split(",") if word.strip()]
        return _values(validation.convert_query(given, self._query))


def _body(operation: AnyOperation) -> Callable[[bytes], Values] | None:
    document, kind = operation.document, operation.document_type
    limits = {"items_max": operation.items_max, "bytes_max": operation.body_bytes_max}
    if document is not None and kind is not None:
        return lambda raw: {document: decoding.decode(raw, kind, **limits)}
    if document is not None:
        return lambda raw: {document: decoding.parse_object(raw, **limits)}
    part = operation.part("body")
    if not part.__struct_fields__ and not operation.empty_body:
        return None
    needed = operation.needs_body
    nulls = operation.nulls

    def read(raw: bytes) -> Values:
        text = raw if needed or raw.strip() else b"{}"
        values = _values(decoding.decode(text, part, **limits))
        return values if nulls is None else {**values, nulls: _null_fields(text, part)}

    return read


def _null_fields(raw: bytes, part: type[msgspec.Struct]) -> list[str]:
    given = msgspec.json.decode(raw)
    fields = msgspec.structs.fields(part)
    return [one.name for one in fields if given.get(one.encode_name, ...) is None]


def _is_required(part: type[msgspec.Struct]) -> bool:
    return any(one.required for one in msgspec.structs.fields(part))


def _values(value: msgspec.Struct) -> Values:
    return {name: getattr(value, name) for name in value.__struct_fields__}
