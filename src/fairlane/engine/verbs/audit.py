"""The audit log: what operators did, what was denied, which targets were blocked.

An operator's action is durable before the response is sent. Denials and blocks come from outside
callers, possibly in large numbers, so each must cost little: the same event is written when it
first happens and once more, with a count, when its minute has ended; beyond a number of different
events per minute only a count is kept. Entries never change. When the log is full, the oldest
entries of the actor with the most entries are dropped: an actor that floods the log pushes out its
own entries and not those of others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane import logs
from fairlane.clock import Clock
from fairlane.core.audit import BLOCKED, DENIED, DONE, AuditRecord, Entry
from fairlane.engine.commands import Record
from fairlane.store.tables import audit as table
from fairlane.store.transaction import Transaction

if TYPE_CHECKING:
    from fairlane.engine.command_writer import CommandWriter

DAYS: Final = 90
ENTRIES_MAX: Final = 100_000
KINDS_MAX: Final = 100  # different events per minute that are recorded separately
_MINUTE_MS: Final = 60_000
_TRIM_EVERY: Final = 256
_WORD_MAX: Final = 128
_TEXT_MAX: Final = 300
_OTHERS: Final = "(others)"


def record(tx: Transaction, requests: Sequence[Record], now: int) -> Iterator[None]:
    entries = [entry for request in requests for entry in request.entries]
    written = [
        AuditRecord(tx.next_seq(), now, *msgspec.structs.astuple(entry)) for entry in entries
    ]
    table.insert(tx.connection, written)
    keep = max((request.keep or 0 for request in requests), default=0)
    if keep:
        table.forget(tx.connection, now - DAYS * 86_400_000)
        _make_room(tx, keep)
    tx.changed = True
    yield from [None] * len(requests)


def _make_room(tx: Transaction, keep: int) -> None:
    """Drop a tenth at once, because finding actors is slow; at most half of one actor's."""
    excess = table.count(tx.connection) - keep
    if excess > 0:
        whose, count = table.most(tx.connection)
        limit = max(1, min(excess + keep // 10, count // 2))
        table.trim(tx.connection, whose, limit)


class Audit:
    """Thread-safe. Recording a denial or a block returns at once."""

    def __init__(self, writer: CommandWriter, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._lock = threading.Lock()
        self._minute = 0
        self._seen: dict[Entry, int] = {}
        self._written = 0

    async def note(
        self,
        who: str,
        action: str,
        target: str = "",
        *,
        outcome: str = DONE,
        detail: str | None = None,
    ) -> None:
        """Record an action. Return when it is durable."""
        await self._writer.ask(self._record([_entry(who, action, target, outcome, detail)]))

    def denied(self, who: str, action: str, target: str = "", *, reason: str) -> None:
        """Record a refused call: without a token, with a wrong one, or beyond its scope."""
        self._count(_entry(who, action, target, DENIED, reason))

    def blocked(self, action: str, target: str, *, reason: str) -> None:
        """Record a target that the outbound guard refused."""
        self._count(_entry("fairlane", action, target, BLOCKED, reason))

    def flush(self) -> None:
        """Write the events that have only been counted so far."""
        with self._lock:
            entries = self._counted()
        self._tell(entries)

    def _count(self, entry: Entry) -> None:
        with self._lock:
            minute = self._clock.now() // _MINUTE_MS
            entries = self._counted() if minute != self._minute else []
            self._minute = minute
            if entry not in self._seen and len(self._seen) >= KINDS_MAX:
                entry = Entry(_OTHERS, _OTHERS, "", entry.outcome)
            first = entry not in self._seen
            self._seen[entry] = 0 if first else self._seen[entry] + 1
        self._tell([*entries, entry] if first else entries)

    def _counted(self) -> list[Entry]:
        """Return the repeated events with their counts, and forget them."""
        seen, self._seen = self._seen, {}
        return [_again(entry, count) for entry, count in seen.items() if count]

    def _tell(self, entries: Sequence[Entry]) -> None:
        if entries:
            self._writer.tell(self._record(entries))

    def _record(self, entries: Sequence[Entry]) -> Record:
        before, self._written = self._written, self._written + len(entries)
        trim = before == 0 or before // _TRIM_EVERY != self._written // _TRIM_EVERY
        return Record(tuple(entries), ENTRIES_MAX if trim else None)


def _entry(who: str, action: str, target: str, outcome: str, detail: str | None) -> Entry:
    """Return an entry, cut and sanitised: callers wrote parts of it."""
    return Entry(
        logs.clean(who, _WORD_MAX),
        logs.clean(action, _WORD_MAX),
        logs.clean(target, _TEXT_MAX),
        outcome,
        None if detail is None else logs.clean(detail, _TEXT_MAX),
    )


def _again(entry: Entry, count: int) -> Entry:
    times = f"{count} more within a minute"
    detail = times if entry.detail is None else f"{entry.detail}; {times}"
    return msgspec.structs.replace(entry, detail=detail)


def facts(shape: object, names: Iterable[str]) -> str | None:
    """Return a short summary of an action from its response."""
    if not isinstance(shape, dict):
        return None
    found = [(name, shape[name]) for name in names if shape.get(name) not in (None, "")]
    texts = (f"{name} {len(one) if isinstance(one, list) else one}" for name, one in found)
    return ", ".join(texts) or None
