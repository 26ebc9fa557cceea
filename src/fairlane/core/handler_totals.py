"""Totals of what ran, by hour, capability and agent: runs, failures, and the time that they took.

They are added up from the changes of each commit. Because histograms have fixed bounds, totals of
several hours, agents and servers can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.histogram import SPANS_MS
from fairlane.core.model import Change

HOUR_MS: Final = 3_600_000
KEPT_HOURS: Final = 8 * 24
OTHERS: Final = ""  # agent of the totals of all agents beyond `PAIRS_MAX`
PAIRS_MAX: Final = 2000  # pairs of capability and agent in one hour
BEGUN_MAX: Final = 10_000
_SIZE: Final = len(SPANS_MS) + 1

Key = tuple[int, str, str]  # hour, capability, agent


class Totals(msgspec.Struct):
    """`starts` are leases. `failed` and `parked` count tasks that ended so, `retried` failed
    attempts that are repeated, `runs` runs whose duration is known. `waits` and `durations` are
    histograms over `SPANS_MS`.
    """

    starts: int = 0
    done: int = 0
    failed: int = 0
    parked: int = 0
    retried: int = 0
    cancelled: int = 0
    runs: int = 0
    waited_ms: int = 0
    ran_ms: int = 0
    waits: list[int] = msgspec.field(default_factory=lambda: [0] * _SIZE)
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * _SIZE)

    @property
    def failures(self) -> int:
        """Return the number of attempts that failed."""
        return self.failed + self.parked + self.retried

    @property
    def ended(self) -> int:
        """Return the number of attempts that succeeded or failed."""
        return self.done + self.failures

    def add(self, other: Totals) -> None:
        self.starts += other.starts
        self.done += other.done
        self.failed += other.failed
        self.parked += other.parked
        self.retried += other.retried
        self.cancelled += other.cancelled
        self.runs += other.runs
        self.waited_ms += other.waited_ms
        self.ran_ms += other.ran_ms
        self.waits = _sum(self.waits, other.waits)
        self.durations = _sum(self.durations, other.durations)


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Add histograms; one that was stored with other bounds counts as far as it goes."""
    known = [*other, *[0] * (_SIZE - len(other))]
    return [value + more for value, more in zip(one, known, strict=False)]


def added(totals: Iterable[Mapping[Key, Totals]]) -> dict[Key, Totals]:
    """Return the sums of totals, key by key. The arguments do not change."""
    found: dict[Key, Totals] = {}
    for one in totals:
        for key, value in one.items():
            if key not in found:
                found[key] = Totals()
            found[key].add(value)
    return found


class Counter:
    """Counts changes. It remembers when repeated attempts began: a task's row keeps only the start
    of the first one. It also remembers the pairs of the hour, to limit their number.
    """

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}
        self._hour = 0
        self._pairs: set[tuple[str, str]] = set()

    def count(
        self, changes: Iterable[Change], now: int, found: dict[Key, Totals] | None = None
    ) -> dict[Key, Totals]:
        """Add changes at `now` to the totals in `found`, and return those. Hot path: each task
        passes here three times.
        """
        found = {} if found is None else found
        hour = now // HOUR_MS
        if hour != self._hour:
            self._hour, self._pairs = hour, set()
        for change in changes:
            verb, after = change.verb, change.after
            if verb == lifecycle.LEASE:
                key = (hour, after.capability, after.agent)
                totals = found.get(key) or self._new(found, key)
                totals.starts += 1
                waited_ms = change.waited_ms
                totals.waited_ms += waited_ms
                totals.waits[bisect_left(SPANS_MS, waited_ms)] += 1
                if after.started_at != now and after.state == lifecycle.RUNNING:
                    self._begin(after.seq, now)
            elif verb in _ENDS:
                key = (hour, after.capability, after.agent)
                totals = found.get(key) or self._new(found, key)
                if verb == lifecycle.COMPLETE:
                    totals.done += 1
                else:
                    _count_rare(totals, verb)
                self._end(totals, change, now)
            elif verb == lifecycle.START and after.started_at != now:
                self._begin(after.seq, now)
        return found

    def _new(self, found: dict[Key, Totals], key: Key) -> Totals:
        hour, capability, _ = key
        if key[1:] not in self._pairs and len(self._pairs) >= PAIRS_MAX:
            key = (hour, capability, OTHERS)
            if key in found:
                return found[key]
        else:
            self._pairs.add(key[1:])
        totals = found[key] = Totals()
        return totals

    def _begin(self, seq: int, now: int) -> None:
        """Note the start of a repeated attempt. Bounded, because other servers may end it."""
        if len(self._begun) >= BEGUN_MAX:
            del self._begun[next(iter(self._begun))]
        self._begun[seq] = now

    def _end(self, totals: Totals, change: Change, now: int) -> None:
        before = change.before
        if before is None or before.lease_expires_at is None or change.after.lease_expires_at:
            return
        begun = self._begun.pop(before.seq, None) if self._begun else None
        if begun is None and before.attempts <= 1:
            begun = before.started_at
        if begun is not None:
            took_ms = max(0, now - begun)
            totals.runs += 1
            totals.ran_ms += took_ms
            totals.durations[bisect_left(SPANS_MS, took_ms)] += 1


def _count_rare(totals: Totals, verb: str) -> None:
    name = _ENDS[verb]
    if name is not None:
        setattr(totals, name, getattr(totals, name) + 1)


# The counter that a verb moves, None for one that only ends a run.
_ENDS: Final[Mapping[str, str | None]] = {
    lifecycle.COMPLETE: "done",
    lifecycle.FAIL: "failed",
    lifecycle.EXPIRE: "failed",
    lifecycle.PARK: "parked",
    lifecycle.BACK_OFF: "retried",
    lifecycle.CANCEL: "cancelled",
    lifecycle.RELEASE: None,
    lifecycle.SUSPEND: None,
}
