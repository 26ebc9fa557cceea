"""What follows a failed attempt: another one after a wait, parking, or failure.

The n-th retry waits `min(base * factor^(n-1), cap)`. Jitter, if a kind has it, is drawn from the
task's fencing token, so the same history always gives the same times.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fairlane.core import lifecycle
from fairlane.core.policy import KindPolicy
from fairlane.core.types import DAY_MS

PARK: Final = "park"
_OF_A_KIND: Final = ("backoff_ms", "backoff_multiplier", "max_backoff_ms", "jitter")
_SPREAD: Final = 2654435761  # Knuth's multiplicative hash spreads neighbouring seeds over [0, 1)


class Backoff(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The retry settings of a task; None leaves one to its kind."""

    max_retries: Annotated[int, Meta(ge=0, le=1000)] | None = None
    backoff_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | None = None
    backoff_multiplier: Annotated[float, Meta(ge=1, le=100)] | None = None
    max_backoff_ms: Annotated[int, Meta(ge=0, le=DAY_MS)] | None = None
    jitter: Annotated[float, Meta(ge=0, le=1)] | None = None


def overlaid(settings: KindPolicy, own: Backoff | None) -> KindPolicy:
    """Return the settings of a kind, overridden by those of a task."""
    if own is None:
        return settings
    said = {name: getattr(own, name) for name in _OF_A_KIND}
    return msgspec.structs.replace(settings, **{k: v for k, v in said.items() if v is not None})


def after_failure(
    attempts: int, max_attempts: int, *, retryable: bool, settings: KindPolicy
) -> str:
    """Return the verb that follows the failure of attempt number `attempts`."""
    if not retryable:
        return lifecycle.FAIL
    if attempts < max_attempts:
        return lifecycle.BACK_OFF
    return lifecycle.PARK if settings.when_spent == PARK else lifecycle.FAIL


def backoff_ms(retry: int, settings: KindPolicy, *, seed: int = 0) -> int:
    """Return how long the `retry`-th retry waits (the first is 1). `seed` draws the jitter."""
    assert retry >= 1, retry
    try:
        grown = settings.backoff_ms * settings.backoff_multiplier ** (retry - 1)
    except OverflowError:  # too large for a float, so far beyond any cap
        grown = settings.max_backoff_ms if settings.backoff_ms else 0
    wait = min(grown, settings.max_backoff_ms)
    if settings.jitter:
        unit = (seed * _SPREAD % 2**32) / 2**32
        wait *= 1 - settings.jitter + 2 * settings.jitter * unit
    return round(wait)
