"""The use of resources over the last five minutes, hour and day, in memory.

The store is sampled once a second; a step keeps the largest use in it. A restart clears the
history. Memory is bounded: only the first accounts in use are recorded, each with a fixed number of
steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fairlane.core import limits
from fairlane.core.policy import Policy
from fairlane.engine.reads.accounts import AccountView
from fairlane.engine.telemetry.history import WINDOWS

ACCOUNTS_MAX: Final = 200


class UseSample(NamedTuple):
    """The use of one limit at one time: used plus reserved, in micro-units."""

    resource: str
    key: str
    unit: str
    taken: int
    amount: int


class UseStep(NamedTuple):
    """One step: the largest use and the newest limit of each unit."""

    at: int
    units: Mapping[str, tuple[int, int]]


Ring = deque[UseStep]


class ResourceHistory:
    """Fed by one task and read by others of the same event loop."""

    def __init__(self) -> None:
        self._rings: dict[tuple[str, str], dict[str, Ring]] = {}

    def add(self, at: int, samples: Iterable[UseSample]) -> None:
        accounts: dict[tuple[str, str], dict[str, tuple[int, int]]] = {}
        for one in samples:
            units = accounts.setdefault((one.resource, one.key), {})
            units[one.unit] = one.taken, one.amount
        for account, units in accounts.items():
            rings = self._rings.get(account)
            if rings is None:
                if len(self._rings) >= ACCOUNTS_MAX and not self._forget_one(at):
                    continue
                rings = self._rings[account] = _rings()
            for window, (_, step_ms) in WINDOWS.items():
                _add(rings[window], at - at % step_ms, units)

    def _forget_one(self, at: int) -> bool:
        """Make room: forget an account that was not sampled within the longest window."""
        longest = max(WINDOWS, key=lambda window: WINDOWS[window][0])
        oldest = at - WINDOWS[longest][0]
        for account, rings in self._rings.items():
            if rings[longest][-1].at < oldest:
                del self._rings[account]
                return True
        return False

    def span(self, resource: str, key: str, window: str, now: int) -> Sequence[UseStep]:
        span_ms, step_ms = WINDOWS[window]
        rings = self._rings.get((resource, key))
        ring = () if rings is None else rings[window]
        return [step for step in ring if now - span_ms - step_ms < step.at <= now]


def use_samples(found: Iterable[AccountView], policy: Policy) -> Iterator[UseSample]:
    """Yield the use of each limit of the accounts."""
    for one in found:
        account = one.account
        declared = policy.resources.get(account.resource)
        for limit in declared.declared if declared else ():
            state = account.state(limit)
            taken, amount = limits.committed(limit, state), limits.ceiling(limit, state)
            yield UseSample(account.resource, account.key, limit.unit, taken, amount)


def _rings() -> dict[str, Ring]:
    return {
        window: deque[UseStep](maxlen=span_ms // step_ms + 1)
        for window, (span_ms, step_ms) in WINDOWS.items()
    }


def _add(ring: Ring, at: int, units: Mapping[str, tuple[int, int]]) -> None:
    if ring and ring[-1].at == at:
        before = ring.pop().units
        units = {
            unit: (max(taken, before.get(unit, (0, 0))[0]), amount)
            for unit, (taken, amount) in units.items()
        }
    ring.append(UseStep(at, dict(units)))
