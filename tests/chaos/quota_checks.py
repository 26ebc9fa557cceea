"""Checks of the provider's log: no window exceeded, no late refusal, high use of the quota."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from tests.chaos.provider import OURS, Call, Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WINDOW_SAMPLES = 40  # moments per window at which the use is looked at
WORK_SHARE = 0.95  # of the calls: until then there is work for the whole quota


class Load(NamedTuple):
    """The largest sums of any one window."""

    tokens: int
    requests: int


def peak(calls: Iterable[Call], window_seconds: float) -> Load:
    """Return the most tokens and requests that arrived within any window, served or not."""
    inside: deque[Call] = deque()
    tokens = most_tokens = most_requests = 0
    for call in calls:
        inside.append(call)
        tokens += call.tokens
        while inside[0].at <= call.at - window_seconds:
            tokens -= inside.popleft().tokens
        most_tokens = max(most_tokens, tokens)
        most_requests = max(most_requests, len(inside))
    return Load(most_tokens, most_requests)


def ours(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.caller == OURS]


def refusals(calls: Iterable[Call], after: float) -> list[Call]:
    """Return our requests that the provider refused later than `after`."""
    return [call for call in ours(calls) if not call.served and call.at > after]


def use_of_the_rest(calls: Sequence[Call], limits: Limits) -> float:
    """Return our tokens as a share of what the stranger left, averaged over all windows while
    there was work: from the end of the first window until most calls were served.
    """
    served = [call for call in calls if call.served]
    mine = ours(served)
    if not mine:
        return 0.0
    first, last = mine[0].at, mine[int(len(mine) * WORK_SHARE) - 1].at
    window, step = limits.window_seconds, limits.window_seconds / WINDOW_SAMPLES
    shares = []
    at = first + window
    while at <= last:
        inside = [call for call in served if at - window < call.at <= at]
        used = sum(call.tokens for call in ours(inside))
        left = limits.tokens - sum(call.tokens for call in inside) + used
        shares.append(used / left)
        at += step
    return sum(shares) / len(shares) if shares else 0.0
