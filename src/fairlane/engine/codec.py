"""Commands and answers as bytes, for the processes of one server.

A value travels as MessagePack beside its type: `fairlane.core.model:Task`, a list of such values,
an error, or a plain value. The receiver decodes with the types that the class declares, so a new
command or answer needs no registration. Only classes of this package are accepted, and nothing is
executed: the class is a `msgspec.Struct` or a `FairlaneError`.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

import msgspec

from fairlane.core.errors import FairlaneError
from fairlane.core.json_types import JsonObject

_PLAIN: Final = ""
_LIST: Final = "[]"
_BROKEN: Final = "!"
_PACKAGE: Final = "fairlane."

Tagged = tuple[str, Any]
Packed = tuple[str, msgspec.Raw]

_encoder: Final = msgspec.msgpack.Encoder()
_plain: Final = msgspec.msgpack.Decoder()
_list: Final = msgspec.msgpack.Decoder(list[Packed])
_packed: Final = msgspec.msgpack.Decoder(Packed)
_tags: Final[dict[type, str]] = {}


class RemoteFailure(Exception):
    """The other process failed; its log has the error."""


def tagged(value: Any) -> Tagged:
    """Return the value with its type, ready to be encoded."""
    kind = type(value)
    if kind is list:
        return _LIST, [tagged(one) for one in value]
    tag = _tags.get(kind)
    if tag is None:
        tag = _tags[kind] = _tag(kind)
    if issubclass(kind, FairlaneError):
        return tag, vars(value)
    if issubclass(kind, BaseException):
        return _BROKEN, f"{kind.__name__}: {value}"
    return tag, value


def untagged(tag: str, raw: msgspec.Raw) -> Any:
    """Return the value that `tagged` was given; errors are returned, not raised."""
    if tag == _PLAIN:
        return _plain.decode(raw)
    if tag == _LIST:
        return [untagged(*one) for one in _list.decode(raw)]
    if tag == _BROKEN:
        return RemoteFailure(_plain.decode(raw))
    return _decode(tag, raw)


def dumps(value: object) -> bytes:
    return _encoder.encode(tagged(value))


def loads(data: bytes) -> Any:
    return untagged(*_packed.decode(data))


def _tag(kind: type) -> str:
    if issubclass(kind, msgspec.Struct | FairlaneError):
        return f"{kind.__module__}:{kind.__qualname__}"
    return _PLAIN


def _decode(tag: str, raw: msgspec.Raw) -> Any:
    kind, decoder = _decoder(tag)
    value = decoder.decode(raw)
    if kind is None:
        return value
    error = kind.__new__(kind, value["message"])
    error.__dict__.update(value)
    return error


@functools.cache
def _decoder(tag: str) -> tuple[type[FairlaneError] | None, msgspec.msgpack.Decoder[Any]]:
    """Return how to decode a tag: an error from its attributes, a struct by its own types."""
    module, _, name = tag.partition(":")
    if not module.startswith(_PACKAGE):
        raise ValueError(f"{tag!r} is not a type of this package")
    kind = getattr(importlib.import_module(module), name)
    if issubclass(kind, FairlaneError):
        return kind, msgspec.msgpack.Decoder(JsonObject)
    if not issubclass(kind, msgspec.Struct):
        raise TypeError(f"{tag!r} is neither a struct nor an error")
    return None, msgspec.msgpack.Decoder(kind)
