"""The identity of the caller."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fairlane.core.access import Caller, Scope
from fairlane.schema.operation import GET, Operation, Request, Response, one_of


class ShowIdentity(Request):
    """No parameters."""


class Identity(Response):
    name: Annotated[str, Meta(description="Name of the token")]
    agent: Annotated[
        str | None, Meta(description="Agent that the token is bound to; null for all agents")
    ] = field(name="agent")
    scopes: list[Annotated[str, one_of(Scope)]]
    tokens_required: Annotated[bool, Meta(description="Whether requests need a token")]


def identity(caller: Caller, *, tokens_required: bool) -> Identity:
    return Identity(caller.name, caller.agent, sorted(caller.scopes), tokens_required)


WHOAMI: Final = Operation(
    "whoami",
    GET,
    "/whoami",
    ShowIdentity,
    Identity,
    None,
    "Show the token's name and what it may do",
)
