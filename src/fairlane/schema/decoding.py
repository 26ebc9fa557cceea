"""Decode JSON bodies to typed values, within the limits of JSON and checked by the validator."""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from fairlane.core import validation
from fairlane.core.errors import InvalidRequest, PayloadTooLarge
from fairlane.core.json_types import JsonObject
from fairlane.schema import json_limits
from fairlane.schema.wire import BODY_BYTES_MAX

T = TypeVar("T")


def decode(
    raw: bytes,
    kind: type[T],
    *,
    items_max: int = json_limits.ITEMS_MAX,
    bytes_max: int = BODY_BYTES_MAX,
) -> T:
    """Decode a request body. Raise `PayloadTooLarge`, or `InvalidRequest` that lists every problem.

    A server stops reading a body that is too large; here the limit also holds for callers in the
    same process.
    """
    if len(raw) > bytes_max:
        raise too_large(bytes_max)
    key: Any = kind
    decoder: msgspec.json.Decoder[T] = _decoder(key)
    try:
        value = decoder.decode(raw)
    except msgspec.ValidationError:
        raise validation.refusal(validation.explain(_untyped(raw), kind)) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_limits.malformed(raw, error) from None
    later = _later(key)
    if later is None:
        json_limits.check(raw, value if isinstance(value, dict) else None, items_max=items_max)
    else:
        json_limits.check_without(raw, later)
    return value


def too_large(most: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"the body is larger than {most} bytes")


def parse_object(
    raw: bytes, *, items_max: int = json_limits.ITEMS_MAX, bytes_max: int = BODY_BYTES_MAX
) -> JsonObject:
    """Return a JSON object whose fields are checked elsewhere."""
    body: JsonObject = decode(raw, JsonObject, items_max=items_max, bytes_max=bytes_max)
    if validation.too_deep(body):
        raise InvalidRequest(
            f"the body must not be nested deeper than {validation.DEPTH_MAX} levels"
        )
    return body


@functools.cache
def _later(kind: object) -> str | None:
    """Return the field whose items are decoded one by one later: a list of raw JSON."""
    fields = msgspec.structs.fields(kind) if isinstance(kind, type) else ()
    return next((one.encode_name for one in fields if _is_raw_list(one.type)), None)


def _is_raw_list(kind: object) -> bool:
    info = _plain(inspect.type_info(kind))
    return isinstance(info, inspect.ListType) and isinstance(
        _plain(info.item_type), inspect.RawType
    )


def _plain(info: inspect.Type) -> inspect.Type:
    return info.type if isinstance(info, inspect.Metadata) else info


@functools.cache
def _decoder(kind: object) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _untyped(raw: bytes) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise json_limits.malformed(raw, error) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
