"""Routes of tokens: make one, list them, revoke one. The token itself is shown once, and only to
who made it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlane.core import access
from fairlane.core.access import Scope, Token
from fairlane.core.errors import InvalidRequest
from fairlane.engine.commands import CreateToken, RevokeToken
from fairlane.engine.node import Node
from fairlane.engine.verbs.tokens import new_token
from fairlane.http.messages import Answer, Request, Route, Routes
from fairlane.schema import fields, wire


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /tokens`."""

    name: str
    agent_id: str | None = None
    scopes: list[str] | None = None
    expires_at: str | None = None
    rate: str | None = None
    max_open: int | None = None


_decoder = msgspec.json.Decoder(TokenBody)
_FIELDS = frozenset(TokenBody.__struct_encode_fields__)


class TokenRoutes:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/tokens": {
                "POST": Route(self.create, Scope.ADMIN, agents=False),
                "GET": Route(self.list, Scope.ADMIN, agents=False),
            },
            "/tokens/{id}": {"DELETE": Route(self.revoke, Scope.ADMIN, agents=False)},
        }

    async def create(self, request: Request) -> Answer:
        body: TokenBody = fields.decoded(_decoder, await request.body(), _FIELDS)
        kept, text = new_token(_seed(body, self._node.clock.now()))
        made: Token = await self._node.writer.ask(CreateToken(kept))
        return Answer(201, {"token": text, **_shape(made)})

    async def list(self, request: Request) -> Answer:
        request.query()
        found = await self._node.views.read(self._node.views.all_tokens)
        shapes = [_shape(token) for token in found if token.parent is None]
        return Answer(200, {"tokens": shapes, "count": len(shapes)})

    async def revoke(self, request: Request) -> Answer:
        gone: Token = await self._node.writer.ask(RevokeToken(request.path["id"]))
        return Answer(200, {"id": gone.id, "name": gone.name, "revoked": True})


def _seed(body: TokenBody, now: int) -> Token:
    if body.agent_id is not None:
        fields.matches("agentId", body.agent_id, fields.IDENTIFIER)
    expires_at = fields.parse_deadline(body.expires_at, "expiresAt") if body.expires_at else None
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("field 'expiresAt' must not be in the past")
    fields.within("maxOpen", body.max_open, 1, access.OPEN_MAX)
    return Token(
        seq=0,
        id="",
        name=access.parse_name(body.name),
        digest="",
        scopes=access.parse_scopes(body.scopes or (), body.agent_id),
        created_at=now,
        agent=body.agent_id,
        expires_at=expires_at,
        rate=access.parse_rate(body.rate),
        max_open=body.max_open,
    )


def _shape(token: Token) -> dict[str, Any]:
    shape = {
        "id": token.id,
        "name": token.name,
        "agentId": token.agent,
        "scopes": token.scopes.split(),
        "createdAt": wire.moment(token.created_at),
        "expiresAt": _moment(token.expires_at),
        "revokedAt": _moment(token.revoked_at),
        "lastUsedAt": _moment(token.last_used_at),
        "rate": token.rate,
        "maxOpen": token.max_open,
    }
    return {name: value for name, value in shape.items() if value is not None}


def _moment(at: int | None) -> str | None:
    return None if at is None else wire.moment(at)
