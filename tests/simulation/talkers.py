"""People who talk in sessions: fast, at the same time, impatient, and changing their minds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from fairlane.core.sessions import Drop, SessionSettings
from fairlane.engine.commands import IdempotencyKey, SetSession, SetUsage, StopSession, Submit
from fairlane.schema.sessions import SendMessage
from fairlane.schema.wire import moment
from fairlane.services.sessions import message_submission

if TYPE_CHECKING:
    from random import Random

    from fairlane.clock import ManualClock
    from fairlane.core.model import Submission
    from tests.simulation.people import Names

SENDERS: Final = ("ann", "bob")
# Steering, rejecting and rolling back have histories of their own: tests/property.
MODES: Final = ("queue", "followup", "interrupt", "collect")
TOKENS: Final = (0, 30, 59, 60, 90)
WINDOW: Final = 100
# What a session that was tuned goes back to, piece by piece.
CAPS: Final = (0, 1, 2, 3, 5)
DROPS: Final[tuple[str, ...]] = get_args(Drop)
DEBOUNCES: Final = (0, 300, 900)
DEBOUNCES_MAX: Final = (200, 700, 2000)


class Talkers:
    def __init__(self, rng: Random, clock: ManualClock, names: Names, agents: list[str]) -> None:
        self._rng = rng
        self._clock = clock
        self._names = names
        self._agents = agents
        self._keyed: deque[Submit] = deque(maxlen=6)

    def ask(self) -> list[Any]:
        rng, chance = self._rng, self._rng.random()
        key = f"chat:{rng.randrange(4)}"
        if chance < 0.72:
            return self._talk(key)
        if chance < 0.84:
            return [StopSession(key, only_oldest=True)] * rng.choice((1, 1, 2))
        if chance < 0.87:
            return [StopSession(key, reset=rng.random() < 0.4)]
        if chance < 0.94:
            settings = self._settings()
            unset = [name for name in SessionSettings.__struct_fields__ if rng.random() < 0.1]
            return [SetSession(key, settings, frozenset(unset))]
        return [SetUsage(key, rng.choice(TOKENS), WINDOW)]

    def _talk(self, key: str) -> list[Submit]:
        rng = self._rng
        if self._keyed and rng.random() < 0.08:
            return [self._again(rng.choice(self._keyed))]
        chance = rng.random()
        if chance < 0.1:
            return self._crowd(key)
        if chance < 0.15:
            return self._chatter(key)
        said = [self._message(key) for _ in range(rng.choice((1, 1, 2, 3)))]
        if rng.random() < 0.1:
            return [Submit(said)]  # all in one request
        found = [Submit([one]) for one in said]
        if rng.random() < 0.15:
            name = IdempotencyKey(said[0].agent, self._names.new("key"), "one")
            found[0] = msgspec.structs.replace(found[0], idempotency=name)
            self._keyed.append(found[0])
        return found

    def _crowd(self, key: str) -> list[Submit]:
        """More at once than the session takes: the newest are refused, or older ones dropped."""
        drop = self._rng.choice(DROPS)
        said = [self._message(key, mode="queue", cap=1, drop=drop, no_merge=True) for _ in range(5)]
        return [Submit([one]) for one in said]

    def _chatter(self, key: str) -> list[Submit]:
        """One sender who says one thing in many messages."""
        alike = {"agent": self._agents[0], "sender": "ann", "handler": "mail", "priority": None}
        open_ = {"mode": "queue", "no_merge": False, "debounce_ms": 900, "callback_url": None}
        return [Submit([self._message(key, **alike, **open_)]) for _ in range(3)]

    def _again(self, first: Submit) -> Submit:
        """The same words with the same key, as one who has not heard the answer repeats them."""
        (said,) = first.submissions
        again = msgspec.structs.replace(said, id=self._names.new("tsk"))
        return msgspec.structs.replace(first, submissions=[again])

    def _message(self, key: str, **told: Any) -> Submission:
        """A message that says anything; `told` is what it says in any case."""
        rng = self._rng
        said = SendMessage(
            key=key,
            text=self._names.new("say"),
            agent=self._agents[0] if rng.random() < 0.9 else rng.choice(self._agents),
            sender=rng.choice(SENDERS),
            handler="mail" if rng.random() < 0.9 else "sum",
            no_merge=rng.random() < 0.1,
            priority=rng.choice((-10, 5)) if rng.random() < 0.1 else None,
            callback_url="https://example.org/said" if rng.random() < 0.15 else None,
            sent_at=self._sent_at() if rng.random() < 0.25 else None,
            max_concurrent=rng.randrange(1, 4) if rng.random() < 0.05 else None,
        )
        if rng.random() < 0.15:
            said.mode = rng.choice(MODES)
        if rng.random() < 0.1:
            said.cap, said.drop = rng.choice(CAPS), rng.choice(DROPS)
        if rng.random() < 0.1:
            said.debounce_ms = rng.choice(DEBOUNCES)
        for name, value in told.items():
            setattr(said, name, value)
        made = message_submission(said, task_id=self._names.new("tsk"))
        if rng.random() < 0.04:
            assert made.message is not None
            used = {"tokens": rng.choice(TOKENS), "context_window": WINDOW}
            made = msgspec.structs.replace(
                made, message=msgspec.structs.replace(made.message, **used)
            )
        return made

    def _sent_at(self) -> str:
        return moment(self._clock.now() - self._rng.choice((0, 0, 1, 400, 3000)))

    def _settings(self) -> SessionSettings:
        rng = self._rng
        said: dict[str, Any] = {
            "mode": rng.choice((*MODES, "queue")),
            "cap": rng.choice(CAPS),
            "drop": rng.choice(DROPS),
            "debounce_ms": rng.choice(DEBOUNCES),
            "debounce_max_ms": rng.choice(DEBOUNCES_MAX),
            "max_concurrent": rng.choice((1, 2, 3, 3)),
        }
        return SessionSettings(**{name: said[name] for name in said if rng.random() < 0.4})
