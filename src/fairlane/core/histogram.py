"""Histograms: counts of values up to fixed bounds, and the percentiles that follow.

Because the bounds are fixed, histograms can be added, and subtracted to get those of a time span.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

# Upper bounds; greater values have a place after the last.
SPANS_MS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000),
)
SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TRIPS: Final = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 50)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SPANS_MS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[int]:
        """Return how many values each bound covers and, at the end, how many there are."""
        return list(accumulate(self.counts))


def percentile(counts: Sequence[int], share: float) -> int | None:
    """Return the approximate value below which a share of all values lies; None without values.

    Values between two bounds are assumed to be spread evenly.
    """
    rank = share * sum(counts)
    before = 0
    for number, count in enumerate(counts):
        if count and before + count >= rank:
            low = SPANS_MS[number - 1] if number else 0
            high = SPANS_MS[min(number, len(SPANS_MS) - 1)]
            return round(low + (high - low) * (rank - before) / count)
        before += count
    return None
