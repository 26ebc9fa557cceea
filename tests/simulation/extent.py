"""How many histories the tests play: some of them each time, all with `SIMULATION=full`."""

from __future__ import annotations

import os
from typing import Final

SEEDS: Final = range(1, 21)
# Each of them is lively enough for every rule; in the last one nothing is ever dropped.
SOME: Final = (1, 2, 3, 4, 14)


def seeds() -> range | tuple[int, ...]:
    return SEEDS if os.environ.get("SIMULATION") == "full" else SOME
