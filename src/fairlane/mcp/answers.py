"""Run a tool and return its response: the bytes that its command prints, and whether it failed.

A tool that writes is refused before it runs if writes are not allowed. A refusal is a response too,
with the error's JSON as its text, so that a model can read it and correct the call.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from fairlane.client.base import Shape
from fairlane.core.errors import FairlaneError, Forbidden, PayloadTooLarge
from fairlane.core.json_types import JsonMapping
from fairlane.mcp import schemas
from fairlane.mcp.calls import Calls
from fairlane.mcp.tool import Tool
from fairlane.schema import wire
from fairlane.schema.operation import Response

log = logging.getLogger("fairlane.mcp")

# A longer response helps no model. The response to a write is never withheld, because the write has
# happened.
ANSWER_BYTES_MAX: Final = 1_048_576


class ToolAnswer(msgspec.Struct, frozen=True):
    text: str
    shape: Shape
    failed: bool = False


async def answer(calls: Calls, tool: Tool, given: JsonMapping, *, allowed: bool) -> ToolAnswer:
    try:
        if not allowed:
            raise _not_a_person(tool) if tool.decides else _not_allowed(tool)
        shape = await tool.verb(calls, **schemas.arguments(given, tool.arguments))
        if isinstance(shape, Response):
            shape = shape.to_dict()
        return _tool_answer(tool, shape)
    except FairlaneError as error:
        return _failed(wire.error(error))
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return _failed(
            {"code": "internal_error", "error": "internal error; see the server's log for details"}
        )


def _not_allowed(tool: Tool) -> Forbidden:
    return Forbidden(
        f"the tool {tool.name} changes data and this server is read-only; start it with fairlane "
        "mcp --allow-writes or fairlane serve --mcp-writes to allow it",
        details={"tool": tool.name, "scope": tool.scope},
    )


def _not_a_person(tool: Tool) -> Forbidden:
    return Forbidden(
        f"the tool {tool.name} decides on behalf of a person; start fairlane mcp with "
        "--allow-approve to allow it",
        details={"tool": tool.name, "scope": tool.scope},
    )


def _tool_answer(tool: Tool, shape: Shape) -> ToolAnswer:
    shapes = shape[tool.lines] if tool.lines else [shape]
    raw = b"\n".join(wire.encode(one) for one in shapes)
    if len(raw) > ANSWER_BYTES_MAX and not tool.writes:
        raise PayloadTooLarge(
            f"the response has {len(raw)} bytes, more than {ANSWER_BYTES_MAX}; request fewer "
            "items (limit), or use the command line or HTTP"
        )
    return ToolAnswer(raw.decode(), shape)


def _failed(shape: Shape) -> ToolAnswer:
    return ToolAnswer(wire.encode(shape).decode(), shape, failed=True)
