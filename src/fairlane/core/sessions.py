"""Sessions: keys whose tasks run in order, and the handling of messages that arrive too fast.

A session is a row of counters with a few settings, usage and marks. The policy sets the defaults; a
session overrides them, and a message overrides its session. `limit` is how many tasks may have the
turn at once: one when the conversation has filled the policy's share of its context window.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fairlane.core import moments
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import SessionPolicy
from fairlane.core.types import json_name

INTERRUPT: Final = "interrupt"
COLLECT: Final = "collect"
STEER: Final = "steer"
REJECT: Final = "reject"
ROLLBACK: Final = "rollback"
Mode = Literal["queue", "followup", "interrupt", "collect", "steer", "reject", "rollback"]

OF_CRON: Final = "cron:"  # prefix of the sessions of cron jobs

# The session of a browser tab, in which actions run one at a time whatever the policy says.
TAB_PREFIX: Final = "tab:"

DROP_NEW: Final = "new"
Drop = Literal["old", "new"]

# Why a message of a session ended without running; the first word is its code.
DROPPED: Final = "queue_dropped: a newer message took its place in the session's queue"
INTERRUPTED: Final = "interrupted: a newer message in its session had to run immediately"
ROLLED_BACK: Final = "rolled_back: a newer message took the place of this turn"
WITHDRAWN: Final = "withdrawn: the sender withdrew the message"
STOPPED: Final = "stopped: its session was stopped"
RESET: Final = "session_reset: its session was reset"


class MessageSettings(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True
):
    """How a message is handled. None leaves a setting to the session, and that to the policy."""

    mode: Annotated[
        Mode | None, Meta(description="How the message is handled when the session is busy")
    ] = None
    cap: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        Meta(description="Maximum number of waiting messages"),
    ] = None
    drop: Annotated[
        Drop | None, Meta(description="Beyond the cap, drop the oldest or refuse the newest")
    ] = None
    debounce_ms: Annotated[
        Annotated[int, Meta(ge=0, le=60_000)] | None,
        Meta(description="How long to wait for further messages from the sender; 0: do not wait"),
    ] = None
    max_concurrent: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None,
        Meta(
            description="Maximum number of tasks of the session that run at once; stored as a "
            "setting"
        ),
    ] = None


class SessionSettings(MessageSettings):
    """The settings of a session. None leaves one to the policy."""

    debounce_max_ms: Annotated[
        Annotated[int, Meta(ge=0, le=600_000)] | None,
        Meta(description="Maximum total wait for further messages"),
    ] = None


class Session(msgspec.Struct):
    """`holders` have the turn, `waiting` wait for it, `debouncing` may still grow, and `later` wait
    for a time or for other tasks, or are parked.

    `settings` is JSON text. Messages sent before `cutoff_at` are too late to run. `generation`
    counts resets. `interrupted` is 1 from an interruption until the last run that it stopped has
    ended: until then all holders are stopped and no other task gets the turn. `agent` is the owner:
    the agent whose task came first.
    """

    key: str
    holders: int = 0
    waiting: int = 0
    debouncing: int = 0
    settings: str | None = None
    tokens: int | None = None
    context_window: int | None = None
    cutoff_at: int | None = None
    generation: int = 0
    touched_at: int = 0
    interrupted: int = 0
    agent: str | None = None
    later: int = 0
    limit: int = 1  # not stored: it follows from the rest and the policy

    @property
    def free(self) -> int:
        return 0 if self.interrupted else max(0, self.limit - self.holders)

    @property
    def busy(self) -> bool:
        """Return whether a new message would have to wait for its turn."""
        return bool(self.waiting or self.debouncing or not self.free)

    @property
    def idle(self) -> bool:
        return not (self.holders or self.waiting or self.debouncing or self.later)

    @property
    def empty(self) -> bool:
        """Return whether it can be forgotten without loss."""
        return self.idle and not (
            self.generation
            or self.settings is not None
            or self.tokens is not None
            or self.cutoff_at is not None
        )

    @property
    def own(self) -> SessionSettings:
        """Return its own settings; none if they are damaged, so that the policy applies."""
        try:
            return _decoder.decode(self.settings) if self.settings else SessionSettings()
        except msgspec.DecodeError:
            return SessionSettings()


_decoder: Final = msgspec.json.Decoder(SessionSettings)


@lru_cache(maxsize=4096)
def conversation_id(agent: str, key: str | None, generation: int) -> str | None:
    """Return the id of the conversation that an agent has in a session: the same for all of its
    tasks, and a new one after each reset. A cron job's runs are no conversation.
    """
    if key is None or key.startswith(OF_CRON):
        return None
    text = f"fairlane conversation\n{agent}\n{key}\n{generation}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    # As a UUID, which is what agents expect: variant 8, version 5 (from a name).
    parts = digest[:8], digest[8:12], f"5{digest[13:16]}", f"8{digest[17:20]}", digest[20:32]
    return "-".join(parts)


def messages_of(request: JsonMapping) -> list[JsonObject]:
    """Return the messages that a task consists of, oldest first, each with its media and metadata.

    The request of a single message has both only once, beside the list.
    """
    found: list[JsonObject] = [dict(one) for one in request.get("messages") or ()]
    if len(found) == 1:
        for name in ("media", "metadata"):
            if request.get(name):
                found[0].setdefault(name, request[name])
    return found


def messages_with_text(request: JsonMapping) -> list[JsonObject]:
    """Return the same messages, each with its text. Old requests have only the text of all."""
    found = messages_of(request)
    if found and not any("text" in one for one in found):
        text = request.get("instruction") or (request.get("params") or {}).get("message")
        found[0]["text"] = str(text or "")
    for one in found:
        one.setdefault("text", "")
    return found


def lines(*texts: str) -> str:
    """Return the texts of messages as one."""
    return "\n".join(text for text in texts if text.strip())


def resolved(
    policy: SessionPolicy, session: Session, own: MessageSettings | None = None
) -> SessionPolicy:
    """Return the policy with the session's settings over it, and the message's over those."""
    said: JsonObject = {"max_concurrent": _at_once(policy, session)}
    for settings in (session.own, own or MessageSettings()):
        given = msgspec.structs.asdict(settings)
        said.update({name: value for name, value in given.items() if value is not None})
    return msgspec.structs.replace(policy, **said)


def throttled(policy: SessionPolicy, session: Session) -> bool:
    if not session.tokens or not session.context_window:
        return False
    return session.tokens / session.context_window >= policy.throttle_at


def limit(policy: SessionPolicy, session: Session) -> int:
    """Return how many tasks may have the turn at once. A cron job never overlaps itself."""
    if throttled(policy, session) or session.key.startswith(OF_CRON):
        return 1
    own = session.own.max_concurrent if session.settings else None
    return own or _at_once(policy, session)


def _at_once(policy: SessionPolicy, session: Session) -> int:
    return 1 if session.key.startswith(TAB_PREFIX) else policy.max_concurrent


def changed(
    session: Session, new: SessionSettings, unset: frozenset[str] = frozenset()
) -> str | None:
    """Return the settings as text, without `unset` and overridden by `new`."""
    own = msgspec.structs.asdict(session.own)
    said = {name: value for name, value in own.items() if name not in unset}
    given = msgspec.structs.asdict(new)
    said.update({name: value for name, value in given.items() if value is not None})
    if all(value is None for value in said.values()):
        return None
    return msgspec.json.encode(SessionSettings(**said)).decode()


def excess(settings: SessionPolicy, session: Session) -> int:
    """Return how many messages, the new one or older ones, to drop before one more may wait.

    Messages that get a free turn do not wait. If old ones are dropped, the newest always has a
    place.
    """
    room = settings.cap if settings.drop == DROP_NEW else max(1, settings.cap)
    return session.waiting + session.debouncing - session.free - room + 1


def window_ends(settings: SessionPolicy, first_at: int, now: int) -> int:
    """Return when a growing message becomes eligible: each one restarts the wait, up to a limit."""
    ends_at = min(now + settings.debounce_ms, first_at + settings.debounce_max_ms)
    return moments.clamped(ends_at)
