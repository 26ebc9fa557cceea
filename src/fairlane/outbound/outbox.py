"""Claim due deliveries in the store, fill in their content and settle them, for the deliverer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane import tracing
from fairlane.core.batches import Batch
from fairlane.core.cron import ALERTS, Job, RunRecord
from fairlane.core.events import APPROVALS
from fairlane.core.json_types import JsonObject
from fairlane.engine.commands import ClaimDeliveries, OwedDelivery, SettleDelivery
from fairlane.engine.reads.views import TaskView
from fairlane.engine.writing_node import WritingNode
from fairlane.outbound.webhooks import ClaimedDelivery, DeliveryOutcome
from fairlane.schema import wire
from fairlane.schema.approvals import approval_status
from fairlane.schema.batches import batch_status
from fairlane.schema.cron import cron_run
from fairlane.schema.task_status import task_status
from fairlane.store.tables.approvals import ApprovalView

_LOOK_SECONDS: Final = 30.0
_SOON_SECONDS: Final = 0.05
_CROWDED_SECONDS: Final = 1.0  # how often to look while all due deliveries wait for their hosts


class Outbox:
    def __init__(self, node: WritingNode) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._owed = asyncio.Event()
        self._crowded = False
        node.on_owed.append(self._tell)

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._owed.set)

    async def claim_deliveries(
        self, limit: int, *, room: int, rooms: Mapping[str, int]
    ) -> list[ClaimedDelivery]:
        self._owed.clear()
        wait_ms = await self._wait_ms()
        if wait_ms is None or wait_ms > 0:
            return []
        claim = ClaimDeliveries(limit, room=room, rooms=dict(rooms))
        owed: list[OwedDelivery] = await self._node.writer.ask(claim)
        self._crowded = not owed
        views, seqs = self._node.views, [delivery.seq for delivery in owed]
        tasks = await views.read(views.tasks_by_seq, seqs)
        batches = await views.read(views.batches_by_seq, seqs) if len(tasks) < len(owed) else {}
        found = [_delivery(item, tasks.get(item.seq), batches.get(item.seq)) for item in owed]
        if self._node.tracer is not None:
            traces = {view.task.id: view.body for view in tasks.values()}
            found = [None if one is None else _in_trace(one, traces) for one in found]
        asked = await self._approvals([item for item in owed if item.event in APPROVALS])
        alerts = await self._alerts([item for item in owed if item.event in ALERTS])
        return [*(delivery for delivery in found if delivery is not None), *asked, *alerts]

    async def _alerts(self, owed: list[OwedDelivery]) -> list[ClaimedDelivery]:
        """Return the bodies of alerts about cron runs that fail, or succeed again."""
        if not owed:
            return []
        views = self._node.views
        runs = await views.read(views.runs_by_seq, [item.seq for item in owed])
        alerts = [(item, runs[item.seq]) for item in owed if item.seq in runs]
        jobs = [await views.read(views.job, run.job_id) for _, run in alerts]
        return [_alert(item, run, job) for (item, run), job in zip(alerts, jobs, strict=True)]

    async def _approvals(self, owed: list[OwedDelivery]) -> list[ClaimedDelivery]:
        """Return the bodies of webhooks about opened or closed approvals."""
        if not owed:
            return []
        views = self._node.views
        found = await views.read(views.approvals_by_seq, [item.seq for item in owed])
        return [_about_approval(item, found[item.seq]) for item in owed if item.seq in found]

    async def _wait_ms(self) -> int | None:
        views, now = self._node.views, self._node.clock.now()
        return await views.read(views.next_delivery_ms, now)

    async def settle_delivery(
        self, delivery: ClaimedDelivery, outcome: DeliveryOutcome, took_ms: int
    ) -> None:
        request = SettleDelivery(
            delivery.id,
            outcome.delivered,
            outcome.error,
            outcome.retry_after_ms,
            status=outcome.status,
            attempt=delivery.attempt,
            took_ms=took_ms,
        )
        await self._node.writer.ask(request)

    async def wait_for_deliveries(self) -> None:
        wait_ms = await self._wait_ms()
        seconds = _LOOK_SECONDS
        if wait_ms is not None:
            least = _CROWDED_SECONDS if self._crowded else _SOON_SECONDS
            seconds = min(seconds, max(least, wait_ms / 1000))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._owed.wait()


def _delivery(
    owed: OwedDelivery, view: TaskView | None, batch: tuple[Batch, dict[str, int]] | None
) -> ClaimedDelivery | None:
    """Return the delivery about a task or a batch; None if it has been forgotten."""
    if view is not None:
        status = task_status(view.task, view.body, view.result, view.error, view.log)
        return _message(owed, view.task.id, status)
    if batch is not None:
        return _message(owed, batch[0].id, batch_status(*batch))
    return None


def _in_trace(delivery: ClaimedDelivery, bodies: Mapping[str, str]) -> ClaimedDelivery:
    """Return the delivery with the trace of the task's submission, if there was one."""
    try:
        request = wire.decode(bodies.get(delivery.task_id, "{}"), type=JsonObject)
    except wire.DecodeError:
        return delivery
    return msgspec.structs.replace(delivery, traceparent=request.get(tracing.HEADER))


def _about_approval(owed: OwedDelivery, view: ApprovalView) -> ClaimedDelivery:
    body = {"event": owed.event, **approval_status(view.approval, view.body).to_dict()}
    return _message(owed, view.approval.id, body)


def _alert(owed: OwedDelivery, run: RunRecord, job: Job | None) -> ClaimedDelivery:
    body = {"event": owed.event, **cron_run(run).to_dict()}
    if job is not None and not job.damaged:
        body["consecutiveErrors"] = job.consecutive_errors
        body["enabled"] = job.definition.enabled
    return _message(owed, run.task_id or run.id, body)


def _message(owed: OwedDelivery, about: str, body: object) -> ClaimedDelivery:
    return ClaimedDelivery(
        id=owed.id,
        task_id=about,
        url=owed.url,
        event=owed.event,
        attempt=owed.attempt,
        agent=owed.agent,
        body=wire.encode(body),
        secret=owed.secret,
    )
