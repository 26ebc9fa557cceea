"""Who asks: the one place where a request is let in or turned away, and the dashboard's login.

With no token made, whoever reaches a loopback address is trusted. From the first token on, and on
any other address always, every route but the open ones needs one. A browser has a login instead: a
token of its own in a cookie that no script can read and no other site can have sent; what changes
something needs a header besides that no form can set. One answer for all that is wrong with a
token: who does not have a valid one learns nothing about those there are.
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
from fairlane.http.messages import Answer, Request, Route, Routes
from fairlane.schema import decoding
from fairlane.schema.access import identity
from fairlane.services.catalog import refused

AWAY_SECONDS: Final = 1.0  # between two looks whether the store is back
COOKIE: Final = "fairlane_login"
STREAM_LATE_SECONDS: Final = 0.1
_ATTRIBUTES: Final = "HttpOnly; SameSite=Strict; Path=/"
_SAFE: Final = ("GET", "HEAD")
_BEARER: Final = b"bearer "
_ANYBODY: Final = Route(lambda _: _nobody(), None)


class Gate:
    def __init__(self, node: Node, *, exposed: bool = False) -> None:
        """`exposed`: others than this machine can reach it, so nobody is trusted."""
        self._node = node
        self._tokens = node.tokens
        self._tokens.exposed |= exposed

    def routes(self) -> Routes:
        return {
            "/login": {"POST": Route(self.login, None, open=True)},
            "/logout": {"POST": Route(self.logout, None, open=True)},
        }

    def knows(self, request: Request) -> bool:
        """Whether `judge` can be called without asking the store first, as nearly always."""
        return request.named is not None or self._tokens.fresh

    async def admit(self, request: Request, route: Route = _ANYBODY) -> None:
        """Name the caller, or raise what keeps them out."""
        if not self.knows(request):
            await self._tokens.refresh()
        self.judge(request, route)

    def judge(self, request: Request, route: Route) -> None:
        """Do as `admit` does, with the tokens as they are known."""
        caller = request.named
        if caller is None:
            caller = self._identified(request)
            if caller is not TRUSTED:
                self._tokens.spend(caller)
        request.caller = caller
        problem = refused(caller, route)
        if problem is not None:
            raise problem

    async def while_valid(
        self, request: Request, pieces: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """What is streamed ends with the token that it was asked with.

        Streams have many pieces, and each look at the store takes the event loop's time. While the
        store cannot say whether the token is still valid, only heartbeats pass.
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

    def _identified(self, request: Request) -> Caller:
        if not self._tokens.required:
            return TRUSTED
        header = request.headers.get(b"authorization")
        if header is not None:
            bearer = header[: len(_BEARER)].lower() == _BEARER
            found = self._tokens.find(header[len(_BEARER) :]) if bearer else None
        else:
            found = self._tokens.find(_cookie(request), login=True)
            if found and request.method not in _SAFE and request.header(b"x-fairlane") is None:
                raise Forbidden("with a login, what changes something needs the header X-Fairlane")
        if found is None:
            raise Unauthenticated(NOT_LET_IN)
        return found

    # ---------------------------------------------------------------- logins

    async def login(self, request: Request) -> Answer:
        body = decoding.decode(await request.body(), LoginBody)
        await self._tokens.refresh()
        caller = self._tokens.find(_raw(body.token.strip()))
        if caller is None:
            raise Unauthenticated("this token is not valid")
        self._tokens.spend(caller)
        now = self._node.clock.now()
        seed = Token(0, "", caller.name, "", "", now, expires_at=moments.later(now, LOGIN_MS))
        kept, text = new_token(msgspec.structs.replace(seed, parent=caller.token))
        await self._node.writer.ask(CreateToken(kept))
        cookie = f"{COOKIE}={text}; Max-Age={LOGIN_MS // 1000}; {_ATTRIBUTES}"
        shown = identity(caller, tokens_required=self._tokens.required)
        return Answer(200, shown, {"Set-Cookie": cookie})

    async def logout(self, request: Request) -> Answer:
        await self._tokens.refresh()
        login = self._tokens.login(_cookie(request))
        if login is not None:
            await self._node.writer.ask(RevokeToken(login))
        cookie = f"{COOKIE}=; Max-Age=0; {_ATTRIBUTES}"
        return Answer(200, {"loggedOut": login is not None}, {"Set-Cookie": cookie})


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    token: str


async def _nobody() -> Answer:
    raise AssertionError("only who may ask is looked at here")


def _raw(text: str) -> bytes:
    """What cannot be a token is none, whatever characters it has."""
    return text.encode("utf-8", "replace")


def _cookie(request: Request) -> bytes:
    """By hand: cookies of all ports come along, and Python's reader gives up at one it dislikes."""
    for one in (request.header(b"cookie") or "").split(";"):
        name, _, value = one.partition("=")
        if name.strip() == COOKIE:
            return _raw(value.strip())
    return b""
