"""Access tokens: create, list, revoke. The text of a token is shown once, when it is created."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fairlane.core.access import OPEN_MAX, Scope, Token
from fairlane.core.types import Identifier, Moment
from fairlane.schema.operation import DELETE, GET, POST, Operation, Request, Response, one_of
from fairlane.schema.wire import moment, moment_or_none


class CreateAccessToken(Request):
    name: Annotated[str, Meta(description="Name of the token, for operators")]
    agent: Annotated[
        Identifier | None,
        Meta(
            description="Bind the token to this agent: it can see and change only that agent's data"
        ),
    ] = None
    scopes: Annotated[
        list[str] | None, Meta(description="Scopes of the token; default: submit, read, cancel")
    ] = None
    expires_at: Annotated[Moment | None, Meta(description="When the token expires")] = None
    rate: Annotated[
        str | None, Meta(description="Maximum rate of requests, such as 50/s, 600/m or 1000/h")
    ] = None
    max_open: Annotated[
        Annotated[int, Meta(ge=1, le=OPEN_MAX)] | None,
        Meta(description="Maximum number of open tasks"),
    ] = None


class ListTokens(Request):
    """No parameters."""


class RevokeAccessToken(Request):
    token: Annotated[str, Meta(description="Id or name of the token")] = field(name="id")


class TokenShown(Response):
    """A token without its text."""

    id: str
    name: str
    scopes: list[Annotated[str, one_of(Scope)]]
    created_at: Moment
    agent: str | None = None
    expires_at: Moment | None = None
    revoked_at: Moment | None = None
    last_used_at: Moment | None = None
    rate: str | None = None
    max_open: int | None = None


class TokenCreated(TokenShown, kw_only=True):
    token: Annotated[str, Meta(description="The text of the token; it is never shown again")]


class TokenList(Response):
    tokens: list[TokenShown]
    count: int


class TokenRevoked(Response):
    id: str
    name: str
    revoked: bool


def token_shown(token: Token) -> TokenShown:
    return TokenShown(
        id=token.id,
        name=token.name,
        scopes=token.scopes.split(),
        created_at=moment(token.created_at),
        agent=token.agent,
        expires_at=moment_or_none(token.expires_at),
        revoked_at=moment_or_none(token.revoked_at),
        last_used_at=moment_or_none(token.last_used_at),
        rate=token.rate,
        max_open=token.max_open,
    )


CREATE_TOKEN: Final = Operation(
    "create_token",
    POST,
    "/tokens",
    CreateAccessToken,
    TokenCreated,
    Scope.ADMIN,
    "Create an access token; only this response shows its text",
    status=201,
    agents=False,
)
TOKENS: Final = Operation(
    "tokens",
    GET,
    "/tokens",
    ListTokens,
    TokenList,
    Scope.ADMIN,
    "List all access tokens, including revoked ones, without their texts",
    agents=False,
)
REVOKE_TOKEN: Final = Operation(
    "revoke_token",
    DELETE,
    "/tokens/{id}",
    RevokeAccessToken,
    TokenRevoked,
    Scope.ADMIN,
    "Revoke an access token, starting with the next request",
    agents=False,
)
