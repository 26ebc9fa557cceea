"""Authenticate callers and decide whether they may make a request; log the dashboard in and out.

While no token exists, every caller on a loopback address is trusted. Once a token exists, and
always on any other address, every route except the open ones needs a token. A browser logs in
instead: the server creates a token for it and stores it in a cookie that scripts cannot read and
that browsers do not send from other sites; requests that change data also need a header that no
form can set. Every problem with a token gets the same response, so a caller without a valid token
learns nothing about the tokens that exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from fairlane.core import moments
from fairlane.core.access import NOT_LET_IN, TRUSTED, Caller, Token
from fairlane.core.errors import Forbidden, StoreUnavailable, Unauthenticated
from fairlane.engine.commands import CreateToken, RevokeToken
from fairlane.engine.node import Node
from fairlane.engine.verbs.tokens import LOGIN_MS, new_token
from fairlane.http.messages import Answer, HttpRequest, Route, Routes
from fairlane.schema import decoding
from fairlane.schema.access import identity
from fairlane.services.catalog import refused

AWAY_SECONDS: Final = 1.0  # between two checks whether the store is available
COOKIE: Final = "fairlane_login"
STREAM_LATE_SECONDS: Final = 0.1
_ATTRIBUTES: Final = "HttpOnly; SameSite=Strict; Path=/"
_SAFE: Final = ("GET", "HEAD")
_BEARER: Final = b"bearer "
_NO_SCOPE: Final = Route(lambda _: _unused_handler(), None)


class Gate:
    def __init__(self, node: Node, *, exposed: bool = False) -> None:
        """`exposed`: other machines can reach the server, so every caller needs a token."""
        self._node = node
        self._tokens = node.tokens
        self._tokens.exposed |= exposed

    def routes(self) -> Routes:
        return {
            "/login": {"POST": Route(self.login, None, open=True)},
            "/logout": {"POST": Route(self.logout, None, open=True)},
        }

    def knows(self, request: HttpRequest) -> bool:
        """Return whether `judge` can decide without reading the store, which is the usual case."""
        if request.named is not None:
            return True
        return self._tokens.fresh and not self._node.counts_elsewhere

    async def admit(self, request: HttpRequest, route: Route = _NO_SCOPE) -> None:
        """Set the request's caller. Raise `Unauthenticated` or `Forbidden` to refuse it."""
        caller = request.named
        if caller is None:
            if not self._tokens.fresh:
                await self._tokens.refresh()
            caller = self._identified(request)
            if caller is not TRUSTED:
                await self._node.spend(caller)
        self._check(request, caller, route)

    def judge(self, request: HttpRequest, route: Route) -> None:
        """Do the same as `admit` with the tokens in memory."""
        caller = request.named
        if caller is None:
            caller = self._identified(request)
            if caller is not TRUSTED:
                self._tokens.spend(caller)
        self._check(request, caller, route)

    @staticmethod
    def _check(request: HttpRequest, caller: Caller, route: Route) -> None:
        request.caller = caller
        problem = refused(caller, route)
        if problem is not None:
            raise problem

    async def while_valid(
        self, request: HttpRequest, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the pieces of a stream until the token of its request stops being valid.

        Streams have many pieces, and each read of the store takes time from the event loop. While
        the store cannot say whether the token is still valid, only heartbeats pass.
        """
        async for piece in pieces:
            if request.named is None:
                while not await self._asked(heartbeat=piece.startswith(b":")):  # noqa: ASYNC110 - nothing announces it
                    await asyncio.sleep(AWAY_SECONDS)
                if not self._holds(request.caller):
                    return
            yield piece

    async def _asked(self, *, heartbeat: bool) -> bool:
        try:
            await self._tokens.refresh(STREAM_LATE_SECONDS)
        except StoreUnavailable:
            return heartbeat
        return True

    def _holds(self, caller: Caller) -> bool:
        return not self._tokens.required if caller is TRUSTED else self._tokens.holds(caller)

    def _identified(self, request: HttpRequest) -> Caller:
        if not self._tokens.required:
            return TRUSTED
        header = request.headers.get(b"authorization")
        if header is not None:
            bearer = header[: len(_BEARER)].lower() == _BEARER
            found = self._tokens.find(header[len(_BEARER) :]) if bearer else None
        else:
            found = self._tokens.find(_cookie(request), login=True)
            if found and request.method not in _SAFE and request.header(b"x-fairlane") is None:
                raise Forbidden(
                    "requests that change data need the X-Fairlane header when you use a login "
                    "cookie"
                )
        if found is None:
            raise Unauthenticated(NOT_LET_IN)
        return found

    # ---------------------------------------------------------------- logins

    async def login(self, request: HttpRequest) -> Answer:
        body = decoding.decode(await request.body(), LoginBody)
        await self._tokens.refresh()
        caller = self._tokens.find(_raw(body.token.strip()))
        if caller is None:
            raise Unauthenticated("invalid token; create one with fairlane token create")
        await self._node.spend(caller)
        now = self._node.clock.now()
        seed = Token(0, "", caller.name, "", "", now, expires_at=moments.later(now, LOGIN_MS))
        kept, text = new_token(msgspec.structs.replace(seed, parent=caller.token))
        await self._node.writer.ask(CreateToken(kept))
        cookie = f"{COOKIE}={text}; Max-Age={LOGIN_MS // 1000}; {_ATTRIBUTES}"
        shown = identity(caller, tokens_required=self._tokens.required)
        return Answer(200, shown, {"Set-Cookie": cookie})

    async def logout(self, request: HttpRequest) -> Answer:
        await self._tokens.refresh()
        login = self._tokens.login(_cookie(request))
        if login is not None:
            await self._node.writer.ask(RevokeToken(login))
        cookie = f"{COOKIE}=; Max-Age=0; {_ATTRIBUTES}"
        return Answer(200, {"loggedOut": login is not None}, {"Set-Cookie": cookie})


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    token: str


async def _unused_handler() -> Answer:
    raise AssertionError("only the caller is checked here")


def _raw(text: str) -> bytes:
    """Encode any text; one that cannot be a token just matches none."""
    return text.encode("utf-8", "replace")


def _cookie(request: HttpRequest) -> bytes:
    """Return the login cookie. Python's parser gives up at a malformed cookie of another
    application.
    """
    for one in (request.header(b"cookie") or "").split(";"):
        name, _, value = one.partition("=")
        if name.strip() == COOKIE:
            return _raw(value.strip())
    return b""
