"""The worker's loop: lease, run and report until it is stopped.

Runs are asyncio tasks. A thread that the work cannot block renews the leases. A run that is stopped
(cancel, deadline) is cancelled and keeps its slot until it has ended. Draining releases tasks that
have not started, waits for the others, and then interrupts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from fairlane import tracing
from fairlane.core.approvals import ApprovalRequest
from fairlane.core.errors import ExecutionFailed, FairlaneError, LeaseLost, StoreUnavailable
from fairlane.core.json_types import JsonObject
from fairlane.core.suspensions import Until
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.engine.verbs.nodes import HEARD_SECONDS
from fairlane.schema.approvals import ApprovalOutcome
from fairlane.schema.wire import OUTPUT_CHARACTERS_MAX
from fairlane.tracing import Tracer
from fairlane.worker.executors import failures
from fairlane.worker.executors.asking import Suspended
from fairlane.worker.executors.base import Executor, Work
from fairlane.worker.executors.permits import NOTHING, Needs, ResourceNotes, SettlementReport
from fairlane.worker.executors.steps import StepLog
from fairlane.worker.executors.waiting import Waited
from fairlane.worker.source import Assignment, LeaseSource

log = logging.getLogger("fairlane.worker")

T = TypeVar("T")
R = TypeVar("R")

UNLIMITED: Final = 10_000
# While the tasks of one request are being started, the other waits for the next commit.
ASKS: Final = 2
ASK_MAX: Final = 1000
INTERRUPTED: Final = "interrupted: the worker stopped before the work had finished"
INTERRUPT_SECONDS: Final = 10.0
START_TRIES: Final = 5
OUTPUT_SECONDS: Final = 0.1
# One character may take six bytes of JSON; this many still fit into one body.
_REPORT_CHARACTERS_MAX: Final = 131_072
PROGRESS_SECONDS: Final = 1.0
PERMIT_WAIT_MS: Final = 30_000
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0
_RUNS: Final = "task %s (%s) starts attempt %d of %d"
_DONE: Final = "task %s (%s) is done in attempt %d of %d"


class _Run:
    """One assignment that is running; executors see it as `Run`."""

    def __init__(self, assignment: Assignment, source: LeaseSource) -> None:
        self.assignment = assignment
        self.work: Work = assignment.work
        self.started = assignment.started
        self.ended = False  # stopped or interrupted
        self.ending = False  # its end is being reported
        self.interrupted = False
        self.task: asyncio.Task[None] | None = None
        self.began = False
        self.working = False
        self.limit: asyncio.Timeout | None = None
        self.span: tracing.Span | None = None
        self._source = source
        self._output: _Output | None = None
        self._progress: _Progress | None = None
        self._resources: ResourceNotes | None = None
        self._steps: StepLog | None = None
        self._inbox_after: str | None = None

    async def start(self) -> None:
        if not self.started:
            self._count_time(None)  # recording the start is not part of the work
            await _repeated(self._source.start, self.assignment, tries=START_TRIES)
            self.started = True
            self._count_time(self.work.timeout_ms)

    def _count_time(self, timeout_ms: int | None) -> None:
        if self.limit is not None:
            now = asyncio.get_running_loop().time()
            self.limit.reschedule(None if timeout_ms is None else now + timeout_ms / 1000)

    def output(self, text: str) -> None:
        if self._output is None:
            self._output = _Output(self.assignment, self._source)
        self._output.add(text)

    def progress(self, progress: object) -> None:
        if self._progress is None:
            self._progress = _Progress(self.assignment, self._source)
        self._progress.add(progress)

    async def ask(self, name: str, request: ApprovalRequest) -> ApprovalOutcome | None:
        if self.has_reports:
            await self.finish_reports()
        return await _repeated(self._source.ask, self.assignment, name, request)

    @property
    def steps(self) -> StepLog:
        if self._steps is None:
            self._steps = StepLog(self.work.steps)
        return self._steps

    async def checkpoint(self, number: int, name: str, value: bytes) -> None:
        await _repeated(self._source.checkpoint, self.assignment, number, name, value)

    async def begin_effect(self, number: int, name: str, *, checks: bool) -> str:
        return await _repeated(self._source.effect, self.assignment, number, name, checks)

    async def withdraw_effect(self, number: int, name: str) -> None:
        await _repeated(self._source.withdraw_effect, self.assignment, number, name)

    async def suspend(self, number: int, name: str, until: Until) -> Waited | None:
        if self.has_reports:
            await self.finish_reports()
        return await _repeated(self._source.suspend, self.assignment, number, name, until)

    async def inbox(self) -> list[JsonObject]:
        """Take messages until none is left; a repeated request gets the same ones."""
        found: list[JsonObject] = []
        more = True
        while more:
            page = await _repeated(self._source.inbox, self.assignment, self._inbox_after)
            self._inbox_after, more = page.cursor, page.more
            found += msgspec.to_builtins(page.messages)
        return found

    async def submit(self, fields: JsonObject, key: str) -> str:
        return await _repeated(self._source.submit, fields, key)

    @property
    def resources(self) -> ResourceNotes:
        if self._resources is None:
            self._resources = ResourceNotes(self.work.request.get("needs") or {})
        return self._resources

    @property
    def settlement(self) -> SettlementReport:
        """Return the run's report about the resources of its task."""
        return NOTHING if self._resources is None else self._resources.report()

    async def permit(self, needs: Needs, wait_seconds: float | None) -> str:
        """Ask until there is room, also across an outage of the server."""
        loop = asyncio.get_running_loop()
        end = None if wait_seconds is None else loop.time() + wait_seconds
        tries = 0
        while True:
            left_ms = PERMIT_WAIT_MS if end is None else round(max(0.0, end - loop.time()) * 1000)
            wait_ms = min(left_ms, PERMIT_WAIT_MS)
            try:
                found = await self._source.permit(self.assignment, needs, wait_ms)
            except StoreUnavailable:
                tries += 1
                await asyncio.sleep(min(PAUSE_SECONDS * 2 ** min(tries, 10), PAUSE_SECONDS_MAX))
                continue
            if isinstance(found, str):
                return found
            if end is not None and loop.time() >= end:
                raise found

    async def settle(self, permit_id: str, report: SettlementReport) -> None:
        """Report until the store has it. A run that was stopped tries once: the end of its lease
        settles the permit as well.
        """
        tries = 1 if self.ended else None
        try:
            await _repeated(self._source.settle, self.assignment, permit_id, report, tries=tries)
        except StoreUnavailable:
            log.debug(
                "permit %s of task %s is settled with its lease", permit_id, self.work.task_id
            )

    @property
    def has_reports(self) -> bool:
        return self._output is not None or self._progress is not None

    async def finish_reports(self) -> None:
        """Send the remaining reports before the end is reported."""
        for reports in (self._output, self._progress):
            if reports is not None:
                await reports.finish()

    def interrupt(self) -> None:
        self.interrupted = True
        self.stop()

    def stop(self) -> None:
        """Cancel the work, at most once, but never the report about it.

        A run that has not started is only marked: a task that is cancelled before its first step
        does not reach its `finally`.
        """
        self.ended = True
        if self.working and self.task is not None:
            self.working = False
            self.task.cancel()


class _Reports(Generic[R]):
    """Reports of a run, collected for a moment before they are sent.

    A report that the store does not accept after several tries is dropped: reports are only
    informational; the result is what matters.
    """

    pause_seconds: float

    def __init__(self, assignment: Assignment, source: LeaseSource) -> None:
        self._assignment = assignment
        self._source = source
        self._pending: list[R] = []
        self._parts = itertools.count()
        self._ending = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None

    def add(self, report: R) -> None:
        self._pending.append(report)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def finish(self) -> None:
        self._ending.set()
        if self._sending is not None:
            await self._sending

    async def _send(self) -> None:
        while self._pending:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pause_seconds):
                    await self._ending.wait()
            part, reports = next(self._parts), self._taken()
            try:
                await _repeated(self._keep, part, reports, tries=START_TRIES)
            except FairlaneError as error:
                task_id = self._assignment.work.task_id
                level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.WARNING
                log.log(level, "a report about task %s was dropped: %s", task_id, error)

    def _taken(self) -> list[R]:
        taken, self._pending = self._pending, []
        return taken

    async def _keep(self, part: int, reports: Sequence[R]) -> None:
        raise NotImplementedError


class _Progress(_Reports[object]):
    """Progress of a run; only the newest is sent."""

    pause_seconds = PROGRESS_SECONDS

    async def _keep(self, part: int, reports: Sequence[object]) -> None:  # noqa: ARG002 - see above
        await self._source.progress(self._assignment, reports[-1])


class _Output(_Reports[str]):
    """Text that a run has produced. Text beyond the limit is dropped."""

    pause_seconds = OUTPUT_SECONDS

    def __init__(self, assignment: Assignment, source: LeaseSource) -> None:
        super().__init__(assignment, source)
        self._size = 0

    def add(self, text: str) -> None:
        # No database can store lone surrogates and U+0000.
        text = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        text = text[: OUTPUT_CHARACTERS_MAX - self._size]
        if not text:
            return
        self._size += len(text)
        for start in range(0, len(text), _REPORT_CHARACTERS_MAX):
            super().add(text[start : start + _REPORT_CHARACTERS_MAX])

    def _taken(self) -> list[str]:
        """Return as much text as one report may hold, however its characters are escaped."""
        sizes = itertools.accumulate(map(len, self._pending))
        count = max(1, sum(size <= _REPORT_CHARACTERS_MAX for size in sizes))
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    async def _keep(self, part: int, reports: Sequence[str]) -> None:
        await self._source.output(self._assignment, part, "".join(reports))


class Loop:
    def __init__(
        self,
        source: LeaseSource,
        executors: Callable[[], Mapping[str, Executor]],
        limit: Callable[[], int],
        *,
        renew_seconds: float = HEARD_SECONDS,
        tracer: Tracer | None = None,
    ) -> None:
        """Create a loop. `executors` maps capabilities to executors; both callables are called for
        each lease.
        """
        self._tracer = tracer
        self._outage = _Outage()
        self._source = source
        self._executors = executors
        self._limit = limit
        self._renew_seconds = renew_seconds
        self._runs: dict[tuple[int, int], _Run] = {}
        self._asked = 0
        self._ending = 0  # runs whose work has ended and whose end is being reported
        self._changed = asyncio.Event()
        self._draining = False
        self._drained = False
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def active(self) -> int:
        """Return the number of runs, including those being reported."""
        return len(self._runs)

    @property
    def assignments(self) -> list[Assignment]:
        """Return the assignments of all runs."""
        return [run.assignment for run in self._runs.values()]

    async def run(self) -> None:
        """Lease and run tasks until `drain` or cancellation."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._renew, name="fairlane-renew", daemon=True).start()
        try:
            async with asyncio.TaskGroup() as asking:
                for _ in range(ASKS):
                    asking.create_task(self._keep_asking())
        except BaseException:
            self._ended.set()
            raise

    async def _keep_asking(self) -> None:
        while not self._draining:
            limit = self._limit() or UNLIMITED
            # The report that ends a run frees its slot: ask for the next task along with it.
            working = len(self._runs) - min(self._ending, limit)
            free = limit - working - self._asked
            if free <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            wanted = min(free, ASK_MAX)
            self._asked += wanted
            try:
                await self._lease(wanted)
            finally:
                self._asked -= wanted
                self._changed.set()

    async def _lease(self, free: int) -> None:
        assert self._loop is not None
        executors = self._executors()
        started = frozenset(r for r, executor in executors.items() if not executor.starts_itself)
        try:
            assignments = await self._source.lease(frozenset(executors), started, free)
        except StoreUnavailable as error:
            self._outage.failed(error)
            await asyncio.sleep(1.0)
            return
        self._outage.worked()
        for assignment in assignments:
            run = _Run(assignment, self._source)
            log.debug(_RUNS, *_named(assignment))
            self._runs[assignment.seq, assignment.fencing_token] = run
            run.task = self._loop.create_task(self._execute(run, executors[assignment.capability]))
            if self._draining:  # it arrived too late to start
                run.interrupt()

    def poke(self) -> None:
        """Ask for leases again because the set of handlers has changed."""
        self._changed.set()
        self._source.withdraw()

    def stop_runs(self, keys: Iterable[tuple[int, int]]) -> None:
        """Stop the runs whose tasks have ended. Safe to call from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_here, list(keys))

    def _stop_here(self, keys: list[tuple[int, int]]) -> None:
        for key in keys:
            run = self._runs.get(key)
            if run is not None:
                run.stop()

    def take_nothing_new(self) -> None:
        """Request no more leases, and release tasks that have not started."""
        self._draining = True
        self._source.withdraw()
        self._changed.set()
        for run in list(self._runs.values()):
            if not run.started:
                run.interrupt()

    async def drain(self, seconds: float) -> None:
        """Lease nothing new, let runs finish within the given time, and interrupt the rest."""
        if self._drained:
            return
        self._drained = True
        self.take_nothing_new()
        try:
            await self._wait_until_idle(seconds)
            for run in list(self._runs.values()):
                run.interrupt()
            await self._wait_until_idle(INTERRUPT_SECONDS)
        finally:
            self._ended.set()  # until here, leases of running tasks are renewed

    async def _wait_until_idle(self, seconds: float) -> None:
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    async def _execute(self, run: _Run, executor: Executor) -> None:
        try:
            if self._tracer is None:
                await self._attempt(run, executor)
            else:
                await self._traced_attempt(self._tracer, run, executor)
        except LeaseLost:
            log.info("the lease of task %s was lost; its run was dropped", run.work.task_id)
        except Exception:
            log.exception("task %s: the report failed; its lease will expire", run.work.task_id)
        finally:
            self._ending -= run.ending
            del self._runs[run.assignment.seq, run.assignment.fencing_token]
            run.task = None  # its context refers to the run: break the cycle
            self._changed.set()

    async def _traced_attempt(self, tracer: Tracer, run: _Run, executor: Executor) -> None:
        work = run.work
        with tracer.step(
            tracing.ATTEMPT,
            work.request.get(tracing.HEADER),
            task_id=work.task_id,
            agent=work.agent,
            lane=work.lane,
            attempt=work.attempt,
        ) as span:
            run.span = span
            run.work = msgspec.structs.replace(work, traceparent=span.traceparent)
            await self._attempt(run, executor)

    async def _attempt(self, run: _Run, executor: Executor) -> None:
        try:
            try:
                result = await self._bounded(run, executor)
                _refuse_too_deep(result)
            finally:
                self._end(run)
        except asyncio.CancelledError:
            await self._give_back(run)
        except Suspended:
            log.info("task %s is suspended and released its slot", run.work.task_id)
        except LeaseLost:
            raise
        except ExecutionFailed as error:
            await self._fail(run, error)
        except StoreUnavailable:  # the start was not recorded, so it has not begun
            await self._give_back(run)
        except FairlaneError as error:
            await self._fail(run, ExecutionFailed(error.message, retryable=error.retryable))
        except Exception as error:  # noqa: BLE001 - whatever it is, the attempt has failed
            await self._fail(run, failures.from_exception(error))
        else:
            log.debug(_DONE, *_named(run.assignment))
            await _repeated(self._source.complete, run.assignment, result, run.settlement)

    def _end(self, run: _Run) -> None:
        run.ending = True
        self._ending += 1
        self._changed.set()

    async def _bounded(self, run: _Run, executor: Executor) -> Any:
        if run.ended:
            raise asyncio.CancelledError
        run.began = run.working = True
        try:
            if run.work.timeout_ms is None:
                return await executor.execute(run)
            return await self._timed(run, executor, run.work.timeout_ms)
        finally:
            run.working = False
            if run.has_reports:
                await run.finish_reports()

    async def _timed(self, run: _Run, executor: Executor, timeout_ms: int) -> Any:
        """Run with a time limit, which starts again when the start is recorded."""
        run.limit = limit = asyncio.timeout(timeout_ms / 1000)
        try:
            async with limit:
                return await executor.execute(run)
        except TimeoutError as error:
            if not limit.expired():  # a timeout inside the executor
                raise failures.from_exception(error) from error
            raise ExecutionFailed(f"Task timed out after {timeout_ms}ms") from None

    async def _give_back(self, run: _Run) -> None:
        """Release the lease after a stop. After an interruption, fail a started task that may run
        only once.
        """
        log.debug("task %s (%s) was stopped in attempt %d of %d", *_named(run.assignment))
        may_have_happened = run.began and run.started
        if run.interrupted and may_have_happened and run.work.max_attempts == 1:
            await self._fail(run, ExecutionFailed(INTERRUPTED))
        else:
            await _repeated(self._source.release, run.assignment, run.settlement)

    async def _fail(self, run: _Run, error: ExecutionFailed) -> None:
        if run.span is not None:
            run.span.fail(error.message)
        for name, seconds in error.closed.items():
            run.resources.closed(name, retry_after=seconds, reason=error.message)
        log.warning(
            "task %s (%s) failed in attempt %d of %d: %s%s",
            *_named(run.assignment),
            error.message,
            f"\n{error.traceback}" if error.traceback else "",
        )
        await _repeated(self._source.fail, run.assignment, error, run.settlement)

    def _renew(self) -> None:
        while not self._ended.wait(self._renew_seconds):
            runs = list(self._runs.values())
            if not runs:
                continue
            try:
                over = self._source.renew([run.assignment for run in runs])
            except Exception as error:  # noqa: BLE001 - the next round may do; leases outlast two
                self._outage.failed(error)
                continue
            self._outage.worked()
            if over:
                self.stop_runs((a.seq, a.fencing_token) for a in over)


def _named(assignment: Assignment) -> tuple[str, str, int, int]:
    """Return what a line of the log says about a run."""
    work = assignment.work
    return work.task_id, assignment.capability, work.attempt, work.max_attempts


def _refuse_too_deep(result: object) -> None:
    """Raise `ExecutionFailed` for a result that some caller could not read."""
    if too_deep(result):
        problem = f"the result must not be nested deeper than {DEPTH_MAX} levels"
        raise ExecutionFailed(problem, retryable=False)


class _Outage:
    """Logs one line when the source of leases becomes unavailable, and one when it recovers."""

    def __init__(self) -> None:
        self._failures = 0

    def failed(self, error: Exception) -> None:
        if not self._failures:
            log.warning("cannot lease or renew until the scheduler responds again: %s", error)
        self._failures += 1

    def worked(self) -> None:
        if self._failures:
            log.warning("leasing works again (%d requests failed)", self._failures)
            self._failures = 0


async def _repeated(
    send: Callable[..., Awaitable[T]], *what: object, tries: int | None = None
) -> T:
    """Call `send` until the store is available, and return its result. By default there is no
    limit: the work is done, and its report is valid until the lease is lost.
    """
    attempt = 1
    while True:
        try:
            return await send(*what)
        except StoreUnavailable:
            if attempt == tries:
                raise
            await asyncio.sleep(min(PAUSE_SECONDS * 2 ** min(attempt, 10), PAUSE_SECONDS_MAX))
            attempt += 1
