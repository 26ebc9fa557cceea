"""Access control: scopes, tokens, callers and rate limits.

A token is `fl_<id>_<secret>_<crc>`. The id looks it up, the secret proves it, and the checksum lets
secret scanners and this program recognise a token without a lookup. The store keeps only a digest
of the secret; with 256 random bits a plain hash is as good as a slow one. A caller with an agent's
token sees and changes only that agent's objects; the existence of others is not revealed.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from fairlane.core.errors import Forbidden, InvalidRequest

PREFIX: Final = "fl"
ID_CHARACTERS: Final = 12
SECRET_BYTES: Final = 32
NAME_CHARACTERS_MAX: Final = 64
RATE_MAX: Final = 100_000
OPEN_MAX: Final = 100_000_000

_DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SECRET_CHARACTERS: Final = 43  # digits needed for 256 bits
_TOKEN: Final = re.compile(rb"(fl_([0-9A-Za-z]{12})_([0-9A-Za-z]{43}))_([0-9a-f]{8})")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@ -]{0,63}")
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/(s|m|h)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


class Scope(StrEnum):
    """`read` reads, `submit` submits, `cancel` cancels, `lease` runs tasks, `approve` decides about
    approvals; `operate` and `admin` tune.
    """

    SUBMIT = "submit"
    READ = "read"
    CANCEL = "cancel"
    LEASE = "lease"
    APPROVE = "approve"
    OPERATE = "operate"
    ADMIN = "admin"


ALL: Final = frozenset(Scope)
DEFAULT: Final = (Scope.SUBMIT, Scope.READ, Scope.CANCEL)
EVERY: Final = "all"


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request. `token` is the id of its token, None for a caller that is trusted
    without one. `login` is the id of the login that was presented in place of the token, if any.
    `address` is that of a worker.
    """

    name: str
    agent: str | None = None
    scopes: frozenset[Scope] = ALL
    token: str | None = None
    max_open: int | None = None
    login: str | None = None
    address: str | None = None

    def require(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise Forbidden(
                f"this request needs a token with the scope {scope}", details={"scope": str(scope)}
            )

    def owns(self, agent: str | None) -> bool:
        return self.agent is None or self.agent == agent

    def agent_for(self, given: str | None) -> str | None:
        """Return the agent of a request: the one it names, or the caller's own."""
        if self.agent is None or not given:
            return self.agent or given
        if given != self.agent:
            raise Forbidden(
                f"field 'agentId' must be '{self.agent}' or absent: the token is bound to that "
                "agent",
                details={"agentId": self.agent},
            )
        return given


# One text for every problem with a token, so that it reveals nothing.
NOT_LET_IN: Final = (
    "this request needs a valid token: send it as Authorization: Bearer fl_…; "
    "create one with fairlane token create"
)
TRUSTED: Final = Caller("local")
CALLER: Final = "fairlane.caller"  # key under which an authenticated request names its caller


class Token(msgspec.Struct, frozen=True):
    """A stored token. `scopes` are words; `parent` is the token that a login stands for.

    `rate` limits requests, as in `50/s`. The token may submit only while fewer than `max_open` of
    the tasks that it can see are open.
    """

    seq: int
    id: str
    name: str
    digest: str
    scopes: str
    created_at: int
    agent: str | None = None
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None
    rate: str | None = None
    max_open: int | None = None
    parent: str | None = None

    def valid(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def rights(self) -> str:
        return rights_of(self.agent, self.scopes.split())

    def caller(self) -> Caller:
        scopes = frozenset(Scope(word) for word in self.scopes.split())
        return Caller(self.name, self.agent, scopes, self.parent or self.id, self.max_open)


def rights_of(agent: str | None, scopes: Iterable[str]) -> str:
    """Return a word for what a caller may do: the same for the same agent and scopes."""
    return f"{agent!r} {' '.join(sorted(scopes))}"


# -------------------------------------------------------------------- the token itself


def format_token(token_id: str, secret: bytes) -> str:
    """Return the token as its owner receives it, once."""
    body = f"{PREFIX}_{token_id}_{base62(secret, _SECRET_CHARACTERS)}"
    return f"{body}_{zlib.crc32(body.encode()):08x}"


def base62(raw: bytes, characters: int) -> str:
    """Return the last `characters` base-62 digits of `raw`."""
    number, found = int.from_bytes(raw), []
    for _ in range(characters):
        number, digit = divmod(number, len(_DIGITS))
        found.append(_DIGITS[digit])
    return "".join(reversed(found))


def parse_token(token: bytes) -> tuple[str, bytes] | None:
    """Return the id and the secret of a presented token; None if it is not a token."""
    found = _TOKEN.fullmatch(token)
    if found is None or f"{zlib.crc32(found[1]):08x}".encode() != found[4]:
        return None
    return found[2].decode(), found[3]


def digest(secret: bytes) -> str:
    return hashlib.sha256(secret).hexdigest()


def proves(secret: bytes, kept: str) -> bool:
    """Return whether the secret has this digest, in constant time."""
    return hmac.compare_digest(digest(secret).encode(), kept.encode())


# -------------------------------------------------------------------- parts of a token


def parse_name(text: str) -> str:
    if not _NAME.fullmatch(text) or text != text.strip():
        raise InvalidRequest(
            f"field 'name' must be at most {NAME_CHARACTERS_MAX} letters, digits, spaces and "
            "characters of _.:@-"
        )
    return text


def parse_scopes(words: Iterable[str], agent: str | None) -> str:
    """Return the scopes of a new token, each once, in declaration order."""
    given = {part for word in words for part in word.replace(",", " ").split()} or set(DEFAULT)
    if EVERY in given:
        given = {scope for scope in Scope if agent is None or scope is not Scope.ADMIN}
    for word in sorted(given):
        if word not in list(Scope):
            known = ", ".join(Scope)
            raise InvalidRequest(
                f"field 'scopes': '{word[:40]}' is not a scope; use one of {known}, {EVERY}"
            )
    if agent is not None and Scope.ADMIN in given:
        raise InvalidRequest(
            "field 'scopes': admin covers all agents; a token bound to one agent cannot have it"
        )
    return " ".join(scope for scope in Scope if scope in given)


def parse_rate(text: str | None) -> str | None:
    if text is None:
        return None
    found = _RATE.fullmatch(text)
    if found is None or int(found[1]) > RATE_MAX:
        raise InvalidRequest(
            f"field 'rate' must be requests per second, minute or hour, as in 50/s, 600/m or "
            f"1000/h, and at most {RATE_MAX}"
        )
    return text


class RateBucket:
    """A token bucket. It holds the requests of one second, at least one, and refills steadily.

    A request that counts as many is admitted as one and the rest is charged afterwards; otherwise a
    request larger than the bucket would never be admitted.
    """

    def __init__(self, rate: str, now: float) -> None:
        count, unit = rate.split("/")
        self._per_second = int(count) / _SECONDS[unit]
        self._most = max(1.0, self._per_second)
        self._level = self._most
        self._at = now

    def take(self, now: float) -> int | None:
        """Take one request. Return None if it may proceed, else the milliseconds to wait."""
        self._level = min(self._most, self._level + max(0.0, now - self._at) * self._per_second)
        self._at = now
        if self._level < 1:
            return max(1, round((1 - self._level) / self._per_second * 1000))
        self._level -= 1
        return None

    def owe(self, cost: int) -> None:
        """Charge `cost` further requests for one that was admitted as one."""
        self._level -= cost
