"""JSON shapes that no operation declares.

Keys are camelCase, times are RFC 3339 UTC with milliseconds, and a field without a value is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from fairlane.core import moments
from fairlane.core.errors import FairlaneError
from fairlane.core.json_types import JsonObject

BODY_BYTES_MAX: Final = 1_048_576
LIST_LIMIT_MAX: Final = 1000
ERROR_CHARACTERS_MAX: Final = 1000
PROGRESS_BYTES_MAX: Final = 4096
OUTPUT_CHARACTERS_MAX: Final = 1_048_576  # stored output of one attempt

Decimal = Annotated[int | str, msgspec.Meta(description="Whole number, or decimal number as text")]

encode = msgspec.json.encode
decode = msgspec.json.decode
DecodeError = msgspec.DecodeError
moment = moments.text


def moment_or_none(at: int | None) -> str | None:
    return None if at is None else moment(at)


_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


def sse(event_type: str, data: object, number: int | None = None) -> bytes:
    """Return one server-sent event. JSON has no line breaks, so its data is one line."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (event_type.encode(), encode(data))


def stored(text: str | None) -> msgspec.Raw | None:
    """Return stored JSON unchanged; None if there is none or it is not JSON."""
    try:
        return None if text is None else _raw_decoder.decode(text)
    except DecodeError:
        return None


class _Request(msgspec.Struct, rename="camel"):
    timeout_ms: int | None = None
    depends_on: Sequence[str] = ()


_request_decoder = msgspec.json.Decoder(_Request)


def task_inputs(body: str, inputs: Sequence[tuple[str, str, str | None]]) -> list[JsonObject]:
    """Return the results of the parents, in the order in which the task names them."""
    place = {id_: number for number, id_ in enumerate(_request_decoder.decode(body).depends_on)}
    return [
        {
            "taskId": id_,
            "state": state,
            "result": None if result is None else decode(result),
        }
        for id_, state, result in sorted(inputs, key=lambda one: place.get(one[0], 0))
    ]


def error(problem: FairlaneError) -> JsonObject:
    shape: JsonObject = {"code": problem.code, "error": one_line(problem.message)}
    if problem.retryable:
        shape["retryable"] = True
    if problem.details:
        shape["details"] = problem.details
    return shape


def one_line(message: str) -> str:
    """Return a message without control characters and cut to a maximum; it may repeat user
    input.
    """
    cut = message if len(message) <= ERROR_CHARACTERS_MAX else message[:ERROR_CHARACTERS_MAX] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def span(seconds: int) -> str:
    """Return a duration as hours, minutes and seconds: `5m0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
