"""A Run whose lease is a flag: it counts its starts and may have lost its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.core.errors import LeaseLost
from fairlane.worker.executors.base import Work

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeRun:
    def __init__(
        self,
        *,
        kind: str = "action",
        agent: str = "agent-a",
        lost: bool = False,
        on_start: Callable[[], None] = lambda: None,
        attempt: int = 1,
        inputs: list[dict[str, Any]] | None = None,
        **request: Any,
    ) -> None:
        self.work = Work(
            task_id="tsk_1",
            agent=agent,
            kind=kind,
            lane="main",
            attempt=attempt,
            deadline_at=None,
            request=request,
            inputs=inputs or [],
        )
        self.texts: list[str] = []
        self.told: list[Any] = []
        self.starts = 0
        self._lost = lost
        self._on_start = on_start

    async def start(self) -> None:
        if self._lost:
            raise LeaseLost("the lease of tsk_1 has ended")
        self.starts += 1
        self._on_start()

    def output(self, text: str) -> None:
        self.texts.append(text)

    def progress(self, progress: Any) -> None:
        self.told.append(progress)
