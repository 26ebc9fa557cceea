"""What each session was told, and who has to be waited for: how many may have its turn at once.

Taken from what was asked, in the order in which a batch is carried out: completions, stops,
settings, usage, messages. The row of the session has to say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import COLLECT, INTERRUPT
from fairlane.engine.commands import Complete, SetSession, SetUsage, StopSession
from tests.simulation.causes import demand
from tests.simulation.histories import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fairlane.core.model import Message, Submission
    from fairlane.core.policy import Policy
    from tests.simulation.causes import Causes, Step
    from tests.simulation.ledger import Row, Seen

_SAID: Final = ("mode", "cap", "drop", "debounce_ms")


class Told(msgspec.Struct):
    """`settings` are those that differ from the policy's by the session's own words."""

    settings: dict[str, Any] = {}
    tokens: int | None = None
    window: int | None = None
    cutoff_at: int | None = None
    generation: int = 0

    @property
    def anything(self) -> bool:
        marks = (self.tokens, self.cutoff_at)
        return bool(self.settings or self.generation) or any(m is not None for m in marks)


class Rule(msgspec.Struct, frozen=True):
    """What holds for one message: the policy, its session and itself, the last word counts."""

    mode: str
    cap: int
    drop: str
    debounce_ms: int
    debounce_max_ms: int
    no_merge: bool

    @property
    def interrupts(self) -> bool:
        return self.mode == INTERRUPT

    @property
    def collects(self) -> bool:
        return self.mode == COLLECT

    @property
    def room(self) -> int:
        """How many may wait; where old ones go the newest always may."""
        return self.cap if self.drop == "new" else max(1, self.cap)

    def window_ends(self, since: int, now: int) -> int:
        return min(now + self.debounce_ms, since + self.debounce_max_ms)

    @property
    def opens_a_window(self) -> bool:
        return self.debounce_ms > 0 and not self.interrupts and not self.no_merge


class Marks:
    def __init__(self) -> None:
        self.policy = SessionPolicy()
        self.known: dict[str, Told] = {}
        self._touched_at: dict[str, int] = {}

    def of(self, key: str) -> Told:
        return self.known.setdefault(key, Told())

    def limit(self, key: str) -> int:
        """How many may have the turn at once."""
        told = self.known.get(key, Told())
        share = (told.tokens or 0) / (told.window or 1)
        return 1 if share >= self.policy.throttle_at else self.unthrottled(key)

    def unthrottled(self, key: str) -> int:
        told = self.known.get(key, Told())
        default = 1 if key.startswith("tab:") else self.policy.max_concurrent
        own: int = told.settings.get("max_concurrent", default)
        return own

    def rule(self, key: str, message: Message) -> Rule:
        own = {name: getattr(message.settings, name) for name in _SAID}
        said = {name: value for name, value in own.items() if value is not None}
        all_ = {**msgspec.structs.asdict(self.policy), **self.of(key).settings, **said}
        values = {name: all_[name] for name in (*_SAID, "debounce_max_ms")}
        return Rule(**values, no_merge=message.no_merge)

    # ------------------------------------------------------------ what was asked

    def hear(self, step: Step, changed: Iterable[Seen], causes: Causes) -> None:
        """All but the messages."""
        done = [(s, e) for s in changed for e in s.word if e.type == COMPLETED and s.after.session]
        for seen, _ in sorted(done, key=lambda pair: pair[1].id):
            used = _usage([r.result for r in causes.of(seen.before, Complete)])
            if used:
                told = self.of(seen.after.session or "")
                told.tokens, told.window = used
        if not step.committed:
            return
        for request in step.batch:
            if isinstance(request, StopSession) and not request.only_oldest:
                told = self.of(request.key)
                told.cutoff_at = step.now
                told.generation += request.reset
        for request in step.batch:
            if isinstance(request, SetSession):
                said = msgspec.structs.asdict(request.settings)
                given = {name: value for name, value in said.items() if value is not None}
                told = self.of(request.key)
                kept = {name: told.settings[name] for name in told.settings.keys() - request.unset}
                told.settings = {**kept, **given}
        for request in step.batch:
            if isinstance(request, SetUsage):
                told = self.of(request.key)
                told.tokens, told.window = request.tokens, request.context_window

    def take_over(self, submission: Submission) -> None:
        """What an accepted message says about its session."""
        message, key = submission.message, submission.session
        assert message is not None
        assert key is not None
        told = self.of(key)
        if message.settings.max_concurrent is not None:
            told.settings = {**told.settings, "max_concurrent": message.settings.max_concurrent}
        if message.tokens is not None:
            told.tokens, told.window = message.tokens, message.context_window

    # ------------------------------------------------------------ what is kept

    def judge_row(self, key: str, row: Row, *, interrupted: bool) -> None:
        """`row` is all that the store keeps beside the counters."""
        settings, tokens, window, cutoff_at, generation, touched_at, flag = row
        told = self.known.get(key, Told())
        found = (_plain(settings), tokens, window, cutoff_at, generation)
        right = (told.settings, told.tokens, told.window, told.cutoff_at, told.generation)
        demand("marks", found == right, f"session {key} keeps {found}, was told {right}")
        demand("interrupt", flag == interrupted, f"session {key}: interrupted is {flag}")
        self._touched_at[key] = touched_at

    def forget(self, rows: Mapping[str, Row], policy: Policy, now: int) -> None:
        """A session that nothing has happened in for long may go, with all that it was told.

        In the same step it may have begun anew.
        """
        for key, told in list(self.known.items()):
            row = rows.get(key)
            age_ms = now - self._touched_at.get(key, now)
            old = age_ms >= policy.retention.ttl_ms
            if row is None:
                demand("marks", old or not told.anything, f"{key} was forgotten after {age_ms} ms")
            if row is None or (old and not _marked(row)):
                del self.known[key]


def _marked(row: Row) -> bool:
    settings, tokens, _, cutoff_at, generation = row[4:9]
    return bool(settings or generation) or tokens is not None or cutoff_at is not None


def _plain(settings: str | None) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(settings) if settings else {}
    return {_SNAKE.get(name, name): value for name, value in found.items()}


_SNAKE: Final = {
    "debounceMs": "debounce_ms",
    "debounceMaxMs": "debounce_max_ms",
    "maxConcurrent": "max_concurrent",
}


def _usage(results: list[str | None]) -> tuple[int, int] | None:
    found = msgspec.json.decode(results[0]) if results and results[0] else None
    usage = found.get("usage") if isinstance(found, dict) else None
    return (usage["tokens"], usage["contextWindow"]) if usage else None
