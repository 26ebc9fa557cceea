"""Limits: how much of one unit may be taken, and when a need fits again.

There are four kinds. A **pool** is held while a run lasts. A **rate** is an exact sliding window of
`period_ms`. A **bucket** leaks evenly, its amount per `period_ms`. A **budget** is a window that
resets at set moments. All are functions of a limit, its state and the time, in integer micro-units.

Theorems, for every sequence of calls whose times do not go back:

1. Nothing is promised twice: `reserve` after `fits` leaves used + reserved + others <= amount +
   raised, except for a need above the amount, which only an otherwise empty limit takes. Only debt
   (`settle` with more than was reserved) and a lower limit exceed it.
2. A rate is never exceeded in any provider window: a reservation counts from the moment it is made
   until `period_ms` after its settlement, and the provider counted it somewhere in between.
3. Merging window entries moves amounts only to later expiries, so it is never generous.
4. `fit_at` is exact: if nothing else happens, the need does not fit before that moment and fits at
   it. None means that time alone does not help.
5. `committed` changes by what `reserve`, `settle` and `advance` return, to the micro-unit.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from fairlane.core import moments
from fairlane.core.moments import EPOCH, MS

POOL: Final = "pool"
RATE: Final = "rate"
BUCKET: Final = "bucket"
BUDGET: Final = "budget"

HOUR: Final = "hour"
DAY: Final = "day"
WEEK: Final = "week"
MONTH: Final = "month"
CALENDAR: Final = (HOUR, DAY, WEEK, MONTH)

_HOUR_MS: Final = 3_600_000
ENTRIES_MAX: Final = 64  # more window entries than this are merged
# Use by other programs counts for one window, then declines over another in this many steps. It
# varies, so some 32nds more are kept free: with 3 no call was refused in simulations of bursts.
_STEPS: Final = 16
_MARGIN: Final = 3
_LONG: Final = 4  # a call is long if it takes more than such a part of the window
_COUNTER: Final = 2**62


class Limit(msgspec.Struct, frozen=True):
    """One limit of a resource. `slot` names its state: a changed amount or period keeps it."""

    unit: str
    slot: str
    kind: str
    amount: int
    period_ms: int = 0
    anchor_at: int = 0
    every: str | None = None
    tz: str = "UTC"


class LimitState(msgspec.Struct, array_like=True):
    """The use of a limit. An unused limit has a blank state.

    `entries` are the settled amounts of a rate with the moments at which they leave the window.
    `level` is a bucket's content times its period, at `level_at`. `window_at` is the start of a
    budget's window; `raised` and `warned` belong to it. `others` is the amount kept free for
    programs outside Fairlane, as of `others_at`; `lately` are the smaller amounts seen since then
    with their moments, in falling order. `refunded` sums up by how much less than reserved was
    used, modulo `_COUNTER`.
    """

    used: int = 0
    reserved: int = 0
    entries: list[tuple[int, int]] = msgspec.field(default_factory=list)
    level: int = 0
    level_at: int = 0
    window_at: int | None = None
    raised: int = 0
    warned: bool = False
    others: int = 0
    others_at: int = 0
    refunded: int = 0
    lately: list[tuple[int, int]] = msgspec.field(default_factory=list)


# -------------------------------------------------------------------- time


def advance(limit: Limit, state: LimitState, now: int) -> int:
    """Let time pass; return by how much `committed` changed, at most 0."""
    before = committed(limit, state)
    if limit.kind == RATE:
        gone = sum(amount for at, amount in state.entries if at <= now)
        if gone:
            state.entries = [entry for entry in state.entries if entry[0] > now]
            state.used -= gone
    elif limit.kind == BUCKET:
        leaked = limit.amount * max(0, now - state.level_at)
        state.level = max(0, state.level - leaked)
        state.level_at = max(state.level_at, now)
    elif limit.kind == BUDGET:
        start = window_start(limit, now)
        if state.window_at is None or start > state.window_at:
            # Reserved amounts stay: a run that crosses the reset is charged to the new window.
            state.used = state.raised = state.others = 0
            state.lately = []
            state.warned = False
            state.window_at = start
    return committed(limit, state) - before


def shift(state: LimitState, by: int) -> None:
    """Move all moments by `by` milliseconds: the clock was set. Windows follow the calendar."""
    state.entries = [(at + by, amount) for at, amount in state.entries]
    state.level_at += by
    state.others_at += by
    state.lately = [(at + by, amount) for at, amount in state.lately]


def window_start(limit: Limit, now: int) -> int:
    """Return when the budget window that contains `now` began."""
    if limit.every is None:
        return now - (now - limit.anchor_at) % limit.period_ms
    return _calendar(limit.every, limit.tz, now)[0]


def window_end(limit: Limit, now: int) -> int:
    """Return when the budget window that contains `now` ends."""
    if limit.every is None:
        return window_start(limit, now) + limit.period_ms
    return _calendar(limit.every, limit.tz, now)[1]


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _calendar(every: str, tz: str, now: int) -> tuple[int, int]:
    """Return the start and end of a calendar window on the clocks of a zone.

    A midnight that does not exist is the end of the gap; of two, the first counts.
    """
    local = moments.local(now, _zone(tz))
    if every == HOUR:  # by elapsed time, so that a repeated hour is a window of its own
        offset = local.utcoffset() or timedelta()
        start = now - (now + offset // MS) % _HOUR_MS
        return start, start + _HOUR_MS
    first = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if every == WEEK:
        first -= timedelta(days=first.weekday())
    elif every == MONTH:
        first = first.replace(day=1)
    if every == MONTH:
        following = (first + timedelta(days=32)).replace(day=1)
    else:
        following = first + timedelta(days=7 if every == WEEK else 1)
    return _instant(first), _instant(following)


def _instant(local: datetime) -> int:
    return (local.astimezone(UTC) - EPOCH) // MS


# -------------------------------------------------------------------- use


def committed(limit: Limit, state: LimitState) -> int:
    """Return used + reserved."""
    if limit.kind == BUCKET:
        return -(-state.level // limit.period_ms)
    return state.used + state.reserved


def ceiling(limit: Limit, state: LimitState) -> int:
    return limit.amount + state.raised


def outside_use(limit: Limit, state: LimitState, now: int) -> int:
    """Return the amount that is kept free for programs outside Fairlane: the largest that was seen
    within a window. Each amount counts in full for one window, then declines over another.
    """
    if not state.others or limit.kind == BUDGET:
        return state.others
    found = _left_of(limit, state.others_at, state.others, now)
    for at, amount in state.lately:
        found = max(found, _left_of(limit, at, amount, now))
    return found


def _left_of(limit: Limit, seen_at: int, amount: int, now: int) -> int:
    steps = max(0, (now - seen_at - limit.period_ms) * _STEPS // limit.period_ms)
    return -(-amount * max(0, _STEPS - steps) // _STEPS)


def _seen(state: LimitState) -> list[tuple[int, int]]:
    return [(state.others_at, state.others), *state.lately] if state.others else []


def available(limit: Limit, state: LimitState, now: int) -> int:
    taken = committed(limit, state) + outside_use(limit, state, now)
    return max(0, ceiling(limit, state) - taken)


def overdrawn(limit: Limit, state: LimitState) -> int:
    return max(0, committed(limit, state) - ceiling(limit, state))


def blank_at(limit: Limit, state: LimitState, now: int) -> int | None:
    """Return when the state becomes blank; None while an amount is reserved."""
    if state.reserved:
        return None
    if limit.kind == BUDGET:
        return window_end(limit, now)
    ends = [now]
    ends += [at + 2 * limit.period_ms for at, _ in _seen(state)]
    if limit.kind == BUCKET:
        ends.append(state.level_at - (-state.level // limit.amount))
    return max([*ends, *(at for at, _ in state.entries)])


# -------------------------------------------------------------------- whether a need fits


def fits(limit: Limit, state: LimitState, need: int, now: int, *, larger: bool = False) -> bool:
    """Return whether `need` can be reserved; `larger` allows more than the limit can ever give."""
    room = _room(limit, state, need, larger=larger)
    return room is not None and committed(limit, state) + outside_use(limit, state, now) <= room


def _room(limit: Limit, state: LimitState, need: int, *, larger: bool) -> int | None:
    """Return how much may be taken beside `need`; None if it never fits."""
    room = ceiling(limit, state) - need
    if room >= 0:
        return room
    return 0 if larger else None


def fit_at(
    limit: Limit, state: LimitState, need: int, now: int, *, larger: bool = False
) -> int | None:
    """Return the first moment at which `need` fits if nothing else happens; None if there is none.

    The state has been advanced to `now`.
    """
    if fits(limit, state, need, now, larger=larger):
        return now
    if limit.kind == BUDGET:
        fresh = LimitState(reserved=state.reserved)
        return window_end(limit, now) if fits(limit, fresh, need, now, larger=larger) else None
    room = _room(limit, state, need, larger=larger)
    if limit.kind == POOL or room is None:
        return None
    if limit.kind == BUCKET:
        return _leaked_at(limit, state, room, now)
    if state.reserved > room:
        return None
    moments_ = sorted({at for at, _ in state.entries} | set(_step_moments(limit, state, now)))
    return next(at for at in moments_ if _used_at(limit, state, at) <= room)


def _used_at(limit: Limit, state: LimitState, at: int) -> int:
    used = sum(amount for leaves_at, amount in state.entries if leaves_at > at)
    return used + state.reserved + outside_use(limit, state, at)


def _step_moments(limit: Limit, state: LimitState, now: int) -> list[int]:
    """Return the moments after `now` at which less is kept free for other programs."""
    period = limit.period_ms
    steps = {
        at + period - (-step * period // _STEPS)
        for at, _ in _seen(state)
        for step in range(1, _STEPS + 1)
    }
    return sorted(at for at in steps if at > now)


def _leaked_at(limit: Limit, state: LimitState, room: int, now: int) -> int:
    """Return when a bucket has leaked so much that only `room` is taken."""
    starts = [now, *_step_moments(limit, state, now)]
    for start, end in itertools.pairwise([*starts, moments.MAX]):
        left = (room - outside_use(limit, state, start)) * limit.period_ms
        at = max(start, state.level_at - ((left - state.level) // limit.amount))
        if left >= 0 and at < end:
            return at
    return moments.MAX


# -------------------------------------------------------------------- changes


def reserve(limit: Limit, state: LimitState, need: int) -> int:
    """Take `need`; return by how much `committed` changed. The caller has asked `fits`."""
    state.reserved += need
    if limit.kind == BUCKET:
        state.level += need * limit.period_ms
    return need


def settle(limit: Limit, state: LimitState, reserved: int, actual: int, now: int) -> int:
    """Replace a reservation by the amount used; return by how much `committed` changed.

    A pool gets everything back, whatever was used. The state has been advanced to `now`.
    """
    before = committed(limit, state)
    state.reserved -= reserved
    if limit.kind == BUCKET:
        state.level = max(0, state.level + (actual - reserved) * limit.period_ms)
    elif limit.kind != POOL:
        state.used += actual
    state.refunded = (state.refunded + reserved - actual) % _COUNTER
    if limit.kind == RATE and actual:
        state.entries.append((now + limit.period_ms, actual))
        if len(state.entries) > ENTRIES_MAX:
            state.entries = _merged(state.entries, limit.period_ms // ENTRIES_MAX + 1)
    return committed(limit, state) - before


def _merged(entries: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    """Join entries that leave the window within one cell of `width` to its last one."""
    cells: dict[int, tuple[int, int]] = {}
    for at, amount in entries:
        latest, total = cells.get(at // width, (at, 0))
        cells[at // width] = (max(latest, at), total + amount)
    return sorted(cells.values())


def observe(
    limit: Limit,
    state: LimitState,
    remaining: int,
    now: int,
    granted: tuple[int, int] | None = None,
) -> None:
    """Record the remaining amount that the provider reports; others used what we did not.

    All running calls count as ours, although some are still on their way, so the figure is the
    least that others can have used. It is exact when the last call of a burst is settled, and the
    largest figure of a window counts. `granted` says when the call was granted, with `note` of
    that moment: the figure of a long call is compared with that, as many calls began after it.
    """
    if limit.kind == POOL:
        return
    ours = committed(limit, state)
    if granted is not None and now - granted[0] > limit.period_ms // _LONG:
        ours = (granted[1] - state.refunded) % _COUNTER
        if ours > _COUNTER // 2:  # later calls got more back than was taken before
            ours = 0
    seen = max(0, limit.amount - remaining - ours)
    if limit.kind == BUDGET:
        state.others = max(state.others, seen)
    elif seen:
        _keep_free(limit, state, min(limit.amount, seen + seen * _MARGIN // 32), now)


def _keep_free(limit: Limit, state: LimitState, amount: int, now: int) -> None:
    """Remember the amount if it may become the largest of a window. So the estimate does not fall
    while nothing is reported, for example during a restart of the server.
    """
    found = _seen(state)
    while found and found[-1][1] <= amount:
        found.pop()
    if not found or now - found[-1][0] >= limit.period_ms // _STEPS:
        found.append((now, amount))
    while len(found) > 1 and _left_of(limit, *found[0], now) <= _left_of(limit, *found[1], now):
        found.pop(0)
    (state.others_at, state.others), *state.lately = found


def note(limit: Limit, state: LimitState) -> int:
    """Return used + reserved, in a form from which later refunds can be subtracted."""
    return (committed(limit, state) + state.refunded) % _COUNTER


def warns(limit: Limit, state: LimitState, warn_at: float | None) -> bool:
    """Return whether a budget has just passed its warning mark; true once per window."""
    if warn_at is None or limit.kind != BUDGET or state.warned:
        return False
    millionths = round(warn_at * 1_000_000)
    state.warned = committed(limit, state) * 1_000_000 >= ceiling(limit, state) * millionths
    return state.warned


def adapt(old: Limit, new: Limit, state: LimitState, now: int) -> int:
    """Carry a state over to a changed limit; return by how much `committed` changed.

    Used amounts stay used, and a longer period keeps them longer.
    """
    before = committed(old, state)
    advance(old, state, now)
    if new.kind == RATE:
        by = new.period_ms - old.period_ms
        state.entries = [(at + by, amount) for at, amount in state.entries]
    elif new.kind == BUCKET:
        state.level = -(-state.level * new.period_ms // old.period_ms)
    elif new.kind == BUDGET:
        state.window_at = window_start(new, now)
    advance(new, state, now)
    return committed(new, state) - before
