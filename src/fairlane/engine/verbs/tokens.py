"""Tokens: the verbs that make and revoke them, and what a node knows of them.

Every request asks here, so what it costs is a look at a dictionary: all tokens are in memory, with
those that were presented and proved. They are read again when they have changed: at once after this
node's own change, and when another one rings; whether another process has changed them is asked
again and again, on SQLite every millisecond in which there are requests, which is cheap there, on a
shared store every `LOOK_SECONDS`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.clock import Clock
from fairlane.core import access
from fairlane.core.access import Caller, RateBucket, Token
from fairlane.core.errors import (
    Conflict,
    NotFound,
    RateLimited,
    Unauthenticated,
)
from fairlane.engine.commands import CreateToken, RevokeToken, UseTokens
from fairlane.engine.telemetry.outages import store_unavailable
from fairlane.store.base import Connection, ConnectionLost, Store
from fairlane.store.tables import tokens as table
from fairlane.store.transaction import Transaction

if TYPE_CHECKING:  # the engine knows these verbs, and both of these know the engine
    from fairlane.engine.reads.views import Views
    from fairlane.engine.writer import Writer

LOOK_SECONDS: Final = 0.25
_GLANCE_SECONDS: Final = 0.001
USED_EVERY_MS: Final = 60_000
LOGINS_MAX: Final = 100  # of one token; the oldest make room
LOGIN_MS: Final = 12 * 3_600_000

# -------------------------------------------------------------------- making


def new_token(seed: Token) -> tuple[Token, str]:
    """What is kept of a token like `seed`, and the token itself."""
    token_id = access.spelled(secrets.token_bytes(16), access.ID_CHARACTERS)
    text = access.written(token_id, secrets.token_bytes(access.SECRET_BYTES))
    found = access.presented(text.encode())
    assert found is not None
    return msgspec.structs.replace(seed, id=token_id, digest=access.digest(found[1])), text


def create_token(tx: Transaction, requests: Sequence[CreateToken], now: int) -> Iterator[object]:
    for request in requests:
        kept = _all(tx)
        new = msgspec.structs.replace(request.token, seq=tx.next_seq(), created_at=now)
        if new.parent is not None:
            _forget_logins(tx, kept.values(), new.parent, now)
        elif any(t.name == new.name and t.parent is None and t.valid(now) for t in kept.values()):
            yield Conflict(f"there is a token named '{new.name}' already; revoke it first")
            continue
        table.insert(tx.connection, new)
        _changed(tx)
        yield new


def revoke_token(tx: Transaction, requests: Sequence[RevokeToken], now: int) -> Iterator[object]:
    for request in requests:
        kept = _all(tx)
        named = [t for t in kept.values() if t.name == request.word and t.parent is None]
        valid = [token for token in named if token.revoked_at is None]
        found = kept.get(request.word) or next(iter([*valid, *named]), None)
        if found is None:
            yield NotFound("token not found; GET /tokens lists them")
            continue
        if found.revoked_at is None:
            table.revoke(tx.connection, found.id, now)
            _changed(tx)
            found = msgspec.structs.replace(found, revoked_at=now)
        yield found


def use_tokens(tx: Transaction, requests: Sequence[UseTokens], _: int) -> Iterator[None]:
    newest: dict[str, int] = {}
    for request in requests:
        newest.update(request.used)
    table.save_uses(tx.connection, newest)
    return iter([None] * len(requests))


def _all(tx: Transaction) -> dict[str, Token]:
    return {token.id: token for token in table.all_tokens(tx.connection)}


def _changed(tx: Transaction) -> None:
    table.next_version(tx.connection)
    tx.access_changed = True


def _forget_logins(tx: Transaction, kept: Any, parent: str, now: int) -> None:
    """Logins that are over, and the oldest of a token that has too many."""
    logins = [token for token in kept if token.parent is not None]
    open_ = [token for token in logins if token.valid(now) and token.parent == parent]
    gone = [token for token in logins if not token.valid(now)]
    gone += open_[: max(0, len(open_) - LOGINS_MAX + 1)]
    if gone:
        table.forget(tx.connection, [token.id for token in gone])


# -------------------------------------------------------------------- knowing


class _Known(msgspec.Struct, frozen=True):
    """A token that was presented and proved; `parent` is the one that a login stands for."""

    token: Token
    parent: Token | None
    caller: Caller

    def valid(self, now: int) -> bool:
        return self.token.valid(now) and (self.parent is None or self.parent.valid(now))


class Tokens:
    """What one node knows. It belongs to one event loop; only `changed` comes from elsewhere."""

    def __init__(self, store: Store, views: Views, writer: Writer, clock: Clock) -> None:
        self._store = store
        self._views = views
        self._writer = writer
        self._clock = clock
        self._tokens: Mapping[str, Token] = {}
        self._proved: dict[bytes, _Known] = {}
        self._buckets: dict[str, RateBucket] = {}
        self._used: dict[str, int] = {}
        self._version: int | None = None
        self._good_until = 0.0
        self._stale = True
        self.exposed = False  # others than this machine can reach the server
        self._watch: Connection | None = None
        self._reading: asyncio.Future[None] | None = None

    @property
    def any(self) -> bool:
        """Whether a token was ever made."""
        return bool(self._tokens)

    @property
    def required(self) -> bool:
        """Whether every caller needs a token."""
        return self.exposed or self.any

    def changed(self) -> None:
        """Somebody says that tokens have come or gone. From any thread."""
        self._stale = True

    @property
    def fresh(self) -> bool:
        """Whether there is no need to ask the store, as nearly always."""
        return not self._stale and self._clock.monotonic() < self._good_until

    async def refresh(self, late_seconds: float = 0.0) -> None:
        """Before anything is judged: know what the store knows. Raises when it does not answer.

        What another process has changed may be noticed `late_seconds` later than at once.
        """
        if not self._stale and self._clock.monotonic() < self._good_until + late_seconds:
            return
        if self._store.shared:
            await self._read_elsewhere()
            return
        until = self._clock.monotonic() + _GLANCE_SECONDS
        if self._stale or self._others_wrote():
            self._read_here()
        self._good_until = until

    def find(self, presented: bytes, *, login: bool = False) -> Caller | None:
        """Who presents this; None when it is not, or no longer, a token."""
        now = self._clock.now()
        known = self._proved.get(presented) or self._prove(presented)
        if known is None or not known.valid(now) or (known.parent is not None) is not login:
            return None
        self._note_use(known.caller.token or "", now)
        return known.caller

    def holds(self, caller: Caller) -> bool:
        """Whether the caller's token is still valid, and so is the login, if it is one."""
        now = self._clock.now()
        found = [self._tokens.get(one) for one in (caller.token, caller.login) if one]
        return all(token is not None and token.valid(now) for token in found) and bool(found)

    async def require(self, caller: Caller) -> None:
        """For who has waited: raises `Unauthenticated` when the token has gone meanwhile."""
        if caller.token is None:
            return
        await self.refresh()
        if not self.holds(caller):
            raise Unauthenticated(access.NOT_LET_IN)

    def login(self, presented: bytes) -> str | None:
        """The id of a login that was presented and holds."""
        if self.find(presented, login=True) is None:
            return None
        return self._proved[presented].token.id

    def spend(self, caller: Caller) -> None:
        """Count a request against the token's rate. Raises `RateLimited` when that is spent."""
        bucket = self._bucket(caller)
        wait_ms = bucket.take(self._clock.monotonic()) if bucket else None
        if wait_ms is not None:
            rate = self._tokens[caller.token or ""].rate
            raise RateLimited(
                f"this token may make {rate} requests; try again later",
                details={"rate": rate},
                retry_after_ms=wait_ms,
            )

    def owe(self, caller: Caller, cost: int) -> None:
        """Count what a request is worth besides."""
        bucket = self._bucket(caller) if cost else None
        if bucket is not None:
            bucket.owe(cost)

    def _bucket(self, caller: Caller) -> RateBucket | None:
        token = self._tokens.get(caller.token or "")
        if token is None or token.rate is None:
            return None
        if token.id not in self._buckets:
            self._buckets[token.id] = RateBucket(token.rate, self._clock.monotonic())
        return self._buckets[token.id]

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    # ---------------------------------------------------------------- parts

    def _prove(self, presented: bytes) -> _Known | None:
        parts = access.presented(presented)
        token = self._tokens.get(parts[0]) if parts else None
        if parts is None or token is None or not access.proves(parts[1], token.digest):
            return None
        parent = self._tokens.get(token.parent) if token.parent else None
        if token.parent is not None and parent is None:
            return None
        caller = token.caller()
        if parent is not None:
            caller = msgspec.structs.replace(parent.caller(), login=token.id)
        known = _Known(token, parent, caller)
        self._proved[presented] = known
        return known

    def _note_use(self, token_id: str, now: int) -> None:
        """Seldom enough to cost nothing, and nobody waits for it."""
        if now - self._used.get(token_id, 0) >= USED_EVERY_MS:
            self._used[token_id] = now
            self._writer.tell(UseTokens({token_id: now}))

    def _others_wrote(self) -> bool:
        try:
            return self._watching().changed_outside()
        except ConnectionLost:
            self.close()
            return True

    def _watching(self) -> Connection:
        if self._watch is None:
            self._watch = self._store.reader()
        return self._watch

    def _read_here(self) -> None:
        """In the event loop: on a private store it is a page or two, and they are in memory."""
        self._stale = False
        try:
            connection = self._watching()
            connection.changed_outside()
            self._take(*_read(connection, self._version))
        except ConnectionLost as error:
            self.close()
            self._stale = True
            raise store_unavailable("try again") from error

    async def _read_elsewhere(self) -> None:
        """Once, however many wait for it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read_again())
            self._reading.add_done_callback(self._read_over)
        await asyncio.shield(self._reading)

    def _read_over(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # told to those who wait, if anybody still does

    async def _read_again(self) -> None:
        self._stale = False
        began = self._clock.monotonic()
        try:
            self._take(*await self._views.read(self._views.ask, _read, self._version))
        except BaseException:
            self._stale = True
            raise
        self._good_until = began + LOOK_SECONDS

    def _take(self, version: int, found: Sequence[Token] | None) -> None:
        if found is not None:
            self._tokens = {token.id: token for token in found}
            self._proved.clear()
            self._version = version
            for token in found:
                self._used.setdefault(token.id, token.last_used_at or 0)


def _read(connection: Connection, known: int | None) -> tuple[int, list[Token] | None]:
    """The version, and all tokens when it is another than the one that is known."""
    version = table.version(connection)
    if version == known:
        return version, None  # nearly always
    with connection.snapshot():
        return table.version(connection), table.all_tokens(connection)
