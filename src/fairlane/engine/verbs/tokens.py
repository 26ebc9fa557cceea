"""Access tokens: the verbs that create and revoke them, and a node's cache of them.

Every request checks its token here, so a check costs only a dictionary lookup: all tokens are in
memory, and so are the presented tokens that were verified. They are read again when they have
changed: at once after a change by this node or a notification of another one. Changes by other
processes are polled: on SQLite in every millisecond with requests, which is cheap there, on a
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

if TYPE_CHECKING:  # the engine imports these verbs, and both of these import the engine
    from fairlane.engine.command_writer import CommandWriter
    from fairlane.engine.reads.views import Views

LOOK_SECONDS: Final = 0.25
_GLANCE_SECONDS: Final = 0.005
USED_EVERY_MS: Final = 60_000
LOGINS_MAX: Final = 100  # per token; the oldest make room
LOGIN_MS: Final = 12 * 3_600_000

# -------------------------------------------------------------------- creation


def new_token(seed: Token) -> tuple[Token, str]:
    """Return the row of a token like `seed`, and the token itself."""
    token_id = access.base62(secrets.token_bytes(16), access.ID_CHARACTERS)
    text = access.format_token(token_id, secrets.token_bytes(access.SECRET_BYTES))
    found = access.parse_token(text.encode())
    assert found is not None
    return msgspec.structs.replace(seed, id=token_id, digest=access.digest(found[1])), text


def create_token(tx: Transaction, requests: Sequence[CreateToken], now: int) -> Iterator[object]:
    for request in requests:
        kept = _all(tx)
        new = msgspec.structs.replace(request.token, seq=tx.next_seq(), created_at=now)
        if new.parent is not None:
            _forget_logins(tx, kept.values(), new.parent, now)
        elif any(t.name == new.name and t.parent is None and t.valid(now) for t in kept.values()):
            yield Conflict(f"a token named '{new.name}' already exists; revoke it first")
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
    """Delete expired logins, and the oldest of a token that has too many."""
    logins = [token for token in kept if token.parent is not None]
    open_ = [token for token in logins if token.valid(now) and token.parent == parent]
    gone = [token for token in logins if not token.valid(now)]
    gone += open_[: max(0, len(open_) - LOGINS_MAX + 1)]
    if gone:
        table.forget(tx.connection, [token.id for token in gone])


# -------------------------------------------------------------------- cache


class _Known(msgspec.Struct, frozen=True):
    """A token that was presented and verified; `parent` is the token that a login represents."""

    token: Token
    parent: Token | None
    caller: Caller

    def valid(self, now: int) -> bool:
        return self.token.valid(now) and (self.parent is None or self.parent.valid(now))


class Tokens:
    """A node's cache of tokens. It belongs to one event loop; only `changed` is thread-safe."""

    def __init__(self, store: Store, views: Views, writer: CommandWriter, clock: Clock) -> None:
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
        self.limited = False  # a token has a rate
        self.exposed = False  # other machines can reach the server
        self._watch: Connection | None = None
        self._reading: asyncio.Future[None] | None = None

    @property
    def any(self) -> bool:
        """Return whether a token was ever created."""
        return bool(self._tokens)

    @property
    def required(self) -> bool:
        """Return whether every caller needs a token."""
        return self.exposed or self.any

    def changed(self) -> None:
        """Mark the cache as stale: tokens have changed. Thread-safe."""
        self._stale = True

    @property
    def fresh(self) -> bool:
        """Return whether the cache is current, so that the store need not be read; this is nearly
        always so.
        """
        return not self._stale and self._clock.monotonic() < self._good_until

    async def refresh(self, late_seconds: float = 0.0) -> None:
        """Bring the cache up to date. Raise if the store does not respond.

        A change by another process may be noticed up to `late_seconds` late.
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
        """Return the caller with this token; None if it is not, or no longer, valid."""
        now = self._clock.now()
        known = self._proved.get(presented) or self._prove(presented)
        if known is None or not known.valid(now) or (known.parent is not None) is not login:
            return None
        self._note_use(known.caller.token or "", now)
        return known.caller

    def holds(self, caller: Caller) -> bool:
        """Return whether the caller's token, and its login if it has one, is still valid."""
        now = self._clock.now()
        found = [self._tokens.get(one) for one in (caller.token, caller.login) if one]
        return all(token is not None and token.valid(now) for token in found) and bool(found)

    async def require(self, caller: Caller) -> None:
        """Raise `Unauthenticated` if the token of a caller was revoked while it waited."""
        if caller.token is None:
            return
        await self.refresh()
        if not self.holds(caller):
            raise Unauthenticated(access.NOT_LET_IN)

    def login(self, presented: bytes) -> str | None:
        """Return the id of a valid login."""
        if self.find(presented, login=True) is None:
            return None
        return self._proved[presented].token.id

    def spend(self, caller: Caller) -> None:
        """Count a request against the token's rate. Raise `RateLimited` beyond it."""
        bucket = self._bucket(caller)
        wait_ms = bucket.take(self._clock.monotonic()) if bucket else None
        if wait_ms is not None:
            rate = self._tokens[caller.token or ""].rate
            raise RateLimited(
                f"this token is limited to {rate} requests; try again later",
                details={"rate": rate},
                retry_after_ms=wait_ms,
            )

    def owe(self, caller: Caller, cost: int) -> None:
        """Charge the cost of a request beyond the first unit."""
        bucket = self._bucket(caller) if cost else None
        if bucket is not None:
            bucket.owe(cost)

    def rate_of(self, caller: Caller) -> str | None:
        """Return the rate of the caller's token, if it has one."""
        token = self._tokens.get(caller.token or "")
        return None if token is None else token.rate

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
        parts = access.parse_token(presented)
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
        """Record the use without waiting for it, rarely enough to cost nothing."""
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
        """Read in the event loop: on a private store it is a page or two, cached in memory."""
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
        """Read once in a thread, however many callers wait; again if tokens change meanwhile."""
        while True:
            if self._reading is None:
                self._reading = asyncio.ensure_future(self._read_again())
                self._reading.add_done_callback(self._read_over)
            await asyncio.shield(self._reading)
            if not self._stale:
                return

    def _read_over(self, reading: asyncio.Future[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # the waiting callers receive it, if there are any

    async def _read_again(self) -> None:
        self._stale = False
        self._good_until = 0.0  # callers that arrive during the read wait for it
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
            self.limited = any(token.rate is not None for token in found)
            self._proved.clear()
            self._version = version
            for token in found:
                self._used.setdefault(token.id, token.last_used_at or 0)


def _read(connection: Connection, known: int | None) -> tuple[int, list[Token] | None]:
    """Return the version, and all tokens if it differs from the known one."""
    version = table.version(connection)
    if version == known:
        return version, None  # nearly always
    with connection.snapshot():
        return table.version(connection), table.all_tokens(connection)
