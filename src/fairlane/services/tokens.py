"""Access tokens: create, list, revoke."""

from __future__ import annotations

import msgspec

from fairlane.core import access
from fairlane.core.access import Caller, Token
from fairlane.core.errors import InvalidRequest
from fairlane.core.submissions import moment_of
from fairlane.engine.commands import CreateToken, RevokeToken
from fairlane.engine.node import Node
from fairlane.engine.verbs.tokens import new_token
from fairlane.schema import tokens as schema
from fairlane.schema.tokens import TokenCreated, TokenList, TokenRevoked, token_shown
from fairlane.services.registry import implements


@implements(schema.CREATE_TOKEN)
async def create_token(node: Node, _: Caller, request: schema.CreateAccessToken) -> TokenCreated:
    kept, text = new_token(_unsigned(request, node.clock.now()))
    made: Token = await node.writer.ask(CreateToken(kept))
    return TokenCreated(token=text, **msgspec.structs.asdict(token_shown(made)))


@implements(schema.TOKENS)
async def list_tokens(node: Node, _: Caller, __: schema.ListTokens) -> TokenList:
    found = await node.views.read(node.views.all_tokens)
    shown = [token_shown(token) for token in found if token.parent is None]
    return TokenList(tokens=shown, count=len(shown))


@implements(schema.REVOKE_TOKEN)
async def revoke_token(node: Node, _: Caller, request: schema.RevokeAccessToken) -> TokenRevoked:
    gone: Token = await node.writer.ask(RevokeToken(request.token))
    return TokenRevoked(id=gone.id, name=gone.name, revoked=True)


def _unsigned(request: schema.CreateAccessToken, now: int) -> Token:
    """Return the token that a request describes, without id and secret."""
    expires_at = None
    if request.expires_at:
        expires_at = moment_of(request.expires_at, "expiresAt")
        if expires_at <= now:
            raise InvalidRequest("field 'expiresAt' is in the past")
    return Token(
        seq=0,
        id="",
        name=access.parse_name(request.name),
        digest="",
        scopes=access.parse_scopes(request.scopes or (), request.agent),
        created_at=now,
        agent=request.agent,
        expires_at=expires_at,
        rate=access.parse_rate(request.rate),
        max_open=request.max_open,
    )
