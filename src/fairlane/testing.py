"""For your tests: a scheduler in memory whose clock stands still until you advance it.

It is the real scheduler on an in-memory store; only the clock differs. Handlers run in real time.
Everything that waits for the clock (delays, retries, deadlines, cron jobs) waits for `advance`.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from fairlane.clock import ManualClock
from fairlane.core.errors import LeaseLost
from fairlane.core.json_types import JsonMapping
from fairlane.embedded.app import Fairlane
from fairlane.engine.commands import Prune, Renew
from fairlane.engine.verbs.nodes import LEASE_MS

__all__ = ["ManualClock", "MemoryFairlane"]

SETTLE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.001
_QUIET_LOOKS: Final = 2


class MemoryFairlane(Fairlane):
    """`Fairlane` in memory with a manual clock. It leaves nothing behind."""

    clock: ManualClock

    def __init__(
        self,
        *,
        policy: JsonMapping | None = None,
        clock: ManualClock | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("drain_seconds", 0)
        super().__init__(
            "sqlite://:memory:", policy=policy, clock=clock or ManualClock(), **options
        )

    async def advance(self, seconds: float) -> None:
        """Advance the clock and carry out everything that is due by then.

        Running tasks keep their leases, however far the clock moves. Tasks that become ready start;
        `settle` waits for their end.
        """
        span_ms = round(seconds * 1000)
        if self._worker is not None:
            for held in self._worker.assignments:
                with contextlib.suppress(LeaseLost):  # it has ended meanwhile
                    await self.node.writer.ask(
                        Renew(held.seq, held.fencing_token, span_ms + LEASE_MS)
                    )
        self.clock.advance(span_ms)
        self.node.writer.nudge()
        await self._catch_up()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until nothing runs and nothing more happens at this time of the clock.

        Raise `TimeoutError` if handlers still run after `seconds` of real time.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._catch_up()
                quiet = 0  # a granted lease may still be on its way to the worker at one look
                while self._worker is not None and quiet < _QUIET_LOOKS:
                    await asyncio.sleep(_LOOK_SECONDS)
                    await self._catch_up()
                    quiet = 0 if self._worker.active else quiet + 1
        except TimeoutError:
            held = self._worker.assignments if self._worker is not None else ()
            running = ", ".join(one.work.task_id for one in held)
            raise TimeoutError(f"still running after {seconds:g} s: {running}") from None

    async def _catch_up(self) -> None:
        """Commit until nothing is due: one commit may not carry out everything."""
        engine = self.node.engine
        while True:
            await self.node.writer.ask(Prune(dry_run=True))
            if engine.due_at is None or engine.due_at > self.clock.now():
                return
