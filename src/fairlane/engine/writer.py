"""The write thread: group commit without artificial delay.

Requests that arrive during a commit form the next batch. The requests of one turn of an event loop
arrive together; the answers of a commit go to each loop in one hop. A batch that is small compared
with those answers waits a few turns of the loop for the requests that follow from them: a worker
that gets ten tasks starts ten, and one commit is cheaper than two. After an answer to many callers
it waits longer, because callers in other processes need more than a few turns, but not longer than
the last commit took. It does not wait for the fronts of this server: they work during a commit, and
would only take turns with it. Leases that find nothing wait here and are tried again whenever a
task may have become ready; the thread sleeps until a request arrives or something is due.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from fairlane.core.errors import FairlaneError, OperatorError, StoreMoved, StoreUnavailable
from fairlane.core.policy import Policy
from fairlane.engine.command_writer import releases
from fairlane.engine.commands import (
    AppendOutput,
    Complete,
    Enqueue,
    Fail,
    Lease,
    Release,
    Report,
    Submit,
    UseTemplate,
)
from fairlane.engine.engine import Engine, Outcome
from fairlane.engine.resource_commands import Permit
from fairlane.engine.telemetry.outages import store_unavailable

log = logging.getLogger("fairlane.writer")

BATCH_MAX: Final = 1000
# A batch also ends after this many characters: a transaction of large requests would delay others.
BATCH_CHARACTERS_MAX: Final = 4 << 20
ANSWER_SECONDS: Final = 8.5  # a caller has an answer by then, whatever the store does
OVERDUE_LOOK_SECONDS: Final = 0.25
INBOX_MAX: Final = 50_000
POLL_SECONDS: Final = 0.25  # between nodes polling decides; notifications only make it faster
DEFECT_PAUSE_SECONDS: Final = 1.0
_ADMITS: Final = (Submit, UseTemplate, Enqueue)
_LAST: Final = (Complete, Fail, Release)  # no request follows from their answers
# How long a small batch waits for the next requests of callers that were just answered, and after
# how many turns of their loop those have come: one wakes them, one starts the runs of a lease, and
# one submits the requests of both.
ECHO_SECONDS: Final = 0.003
ECHO_TURNS: Final = 3
CROWD: Final = 8  # this many callers may be worth as much time as a commit takes
CLOCK_JUMP_SECONDS: Final = 1.0  # how late a step of the wall clock may be noticed


class Ticket(msgspec.Struct, eq=False):
    """One waiting caller. `loop` is None if it waits in a thread.

    `asked_at` is a time of the monotonic clock. With `elsewhere`, another process answers it.
    """

    request: Any
    future: Any
    loop: asyncio.AbstractEventLoop | None = None
    asked_at: float = 0.0
    elsewhere: bool = False


def _of_thread(request: object) -> Ticket:
    return Ticket(request, concurrent.futures.Future())


class Writer:
    def __init__(self, engine: Engine, on_commit: Callable[[Outcome], None] | None = None) -> None:
        self.engine = engine
        self._on_commit = on_commit
        self._inbox: deque[Ticket] = deque()
        # Requests of each event loop's current turn; each loop appends to its own list.
        self._gathered: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}
        self._waiting: list[Ticket] = []
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._nudged = True
        self._stopping = False
        self._begins_asked = False  # the thread starts with the first request
        # Loops that still carry on with the answers of the last commit, and how many those were.
        self._echoes: set[asyncio.AbstractEventLoop] = set()
        self._answered = self._returned = 0  # callers; requests that have arrived since
        self._commits = 0
        self._awaits_echoes = False
        # Health figures. Times are of the monotonic clock.
        self.busy_since: float | None = None
        self.written_at: float | None = None
        self.trouble: str | None = None  # why the last batch could not be written
        self._batch: list[Ticket] = []  # the batch that is being written
        self._worked_at = engine.clock.monotonic()  # when the last batch ended
        # Called in the write thread when the store was moved away: nothing can be written any more.
        self.on_moved: Callable[[StoreMoved], None] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fairlane-writer", daemon=True)

    def start(self, *, look: bool = True) -> None:
        """Start the write thread. With `look=False`, wait for the first request instead of running
        an initial tick.
        """
        self._nudged = look
        self._begins_asked = not look
        if look:
            self._thread.start()

    def stop(self) -> None:
        """Answer all requests, then end the thread."""
        with self._wake:
            self._take_gathered()
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Return whether the writer can still answer. Before the first request the thread need not
        run.
        """
        return self._thread.ident is None or self._thread.is_alive()

    @property
    def backlog(self) -> int:
        """Return how many requests wait for the next batch."""
        return len(self._inbox)

    @property
    def policy(self) -> Policy:
        return self.engine.policy

    def moment(self) -> int:
        return self.engine.moment()

    async def ask(self, request: object) -> Any:
        """Return the answer to `request` once it is durable; raise it if it is an error."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._gather(Ticket(request, future, loop, self.engine.clock.monotonic()), loop)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result())  # the caller left while the answer arrived
            raise

    def ask_and_wait(self, request: object) -> object:
        ticket = _of_thread(request)
        self._post([ticket])
        return ticket.future.result()

    def tell(self, request: object) -> None:
        """Send a request without waiting for the answer."""
        with contextlib.suppress(StoreUnavailable):
            self._post([_of_thread(request)])

    def ask_all_and_wait(self, requests: Sequence[object]) -> list[object]:
        """Return the answers to several requests at once; errors are answers here."""
        tickets = [_of_thread(request) for request in requests]
        self._post(tickets)
        answers = []
        for ticket in tickets:
            error = ticket.future.exception()
            answers.append(ticket.future.result() if error is None else error)
        return answers

    def take(self, asked: Iterable[tuple[object, object]], loop: asyncio.AbstractEventLoop) -> None:
        """Queue requests of another process, with the replies that are used like futures."""
        now = self.engine.clock.monotonic()
        tickets = [Ticket(request, reply, loop, now, elsewhere=True) for request, reply in asked]
        if len(self._inbox) >= INBOX_MAX:
            busy = [one for one in tickets if isinstance(one.request, _ADMITS)]
            tickets = [one for one in tickets if not isinstance(one.request, _ADMITS)]
            _settle([(one.future, _overloaded()) for one in busy], self.give_back)
        try:
            self._post(tickets)
        except (StoreUnavailable, RuntimeError) as error:
            _settle([(one.future, error) for one in tickets], self.give_back)

    @property
    def lease_waiters(self) -> frozenset[str]:
        """Return the workers whose requests for leases wait. Safe in any thread."""
        with self._lock:
            waiting = list(self._waiting)
        leases = (one for one in waiting if isinstance(one.request, Lease))
        return frozenset(one.request.worker for one in leases if not one.future.done())

    def nudge(self) -> None:
        """Wake the write thread, because another process may have changed something."""
        with self._wake:
            self._nudged = True
            self._wake.notify()

    def withdraw(self, worker: str | None, agent: str | None = None) -> int:
        """Answer the waiting leases of a worker, or of all, with nothing; return how many.

        With `agent`, only leases for that agent's tasks.
        """

        def is_mine(ticket: Ticket) -> bool:
            return _is_lease_of(ticket, worker) and agent in (None, ticket.request.agent)

        with self._wake:
            self._take_gathered()
            mine = [t for t in (*self._waiting, *self._inbox) if is_mine(t)]
            self._waiting = [t for t in self._waiting if not is_mine(t)]
            self._inbox = deque(t for t in self._inbox if not is_mine(t))
        _answer((ticket, []) for ticket in mine)
        return len(mine)

    def _gather(self, ticket: Ticket, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the request until the loop's turn ends. If the first one woke the write thread, it
        would compete with the others for Python's lock and start with a batch of one.
        """
        gathered = self._gathered.get(loop)
        if gathered is None:
            loop.call_soon(self._hand_over, loop)
            gathered = self._gathered[loop] = []
        if len(self._inbox) + len(gathered) >= INBOX_MAX and isinstance(ticket.request, _ADMITS):
            raise _overloaded()
        gathered.append(ticket)

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            tickets = self._gathered.pop(loop, [])
            try:
                self._receive(tickets)
            except (StoreUnavailable, RuntimeError) as error:  # the thread may be unable to start
                _settle([(ticket.future, error) for ticket in tickets], self.give_back)
            if self._gathered:
                self._take_gathered()

    def _post(self, tickets: list[Ticket]) -> None:
        with self._lock:
            self._receive(tickets)

    def _receive(self, tickets: list[Ticket]) -> None:
        """Queue requests. Hold the lock, as below."""
        if not tickets:
            return
        if self._stopping:
            raise StoreUnavailable("the scheduler has stopped")
        if self._begins_asked:
            self._thread.start()
            self._begins_asked = False
        self._inbox += tickets
        self._returned += len(tickets)
        if not self._awaits_echoes or self._returned >= self._answered:
            self._wake.notify()

    def _take_gathered(self) -> None:
        """Collect requests that loops have not passed on yet, and those of closed loops."""
        if self._stopping:
            return
        for loop, gathered in list(self._gathered.items()):
            taken = gathered[:]  # the loop may keep appending; that comes later
            self._receive(taken)
            del gathered[: len(taken)]
            if loop.is_closed():
                del self._gathered[loop]

    def _run(self) -> None:
        # no memory for one more thread: callers wait longer
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._watch, name="fairlane-overdue", daemon=True).start()
        while (batch := self._collect()) is not None:
            try:
                self._write(batch)
            except Exception:
                log.exception("a batch failed; the writer continues")
            self._answer_late_leases()
        self._ended.set()
        self.engine.close()

    def _collect(self) -> list[Ticket] | None:
        """Wait for work; return None if there is none left and the writer stops."""
        with self._wake:
            if not self._inbox and not self._nudged and not self._stopping:
                self._wake.wait(self._pause_seconds())
            if 0 < len(self._inbox) < BATCH_MAX and self._returned < self._answered:
                self._await_echoes()
            if self._stopping and not self._inbox:
                waiting, self._waiting = self._waiting, []
                _answer((ticket, []) for ticket in waiting)
                return None
            batch: list[Ticket] = []
            room = BATCH_CHARACTERS_MAX
            while self._inbox and len(batch) < BATCH_MAX and room > 0:
                ticket = self._inbox.popleft()
                if waits(ticket.request):
                    self._waiting.append(ticket)
                    self._nudged = True
                    self._hear(ticket)
                else:
                    batch.append(ticket)
                    room -= _characters(ticket.request)
            self._batch = batch
            return batch

    def _hear(self, ticket: Ticket) -> None:
        """Note that the worker of a waiting lease is there."""
        if isinstance(ticket.request, Lease) and not ticket.future.done():
            self.engine.roster.heard(ticket.request, self.engine.clock.monotonic())

    def _ask_for_echoes(self, loops: set[asyncio.AbstractEventLoop]) -> None:
        """Let each loop report when its callers have processed their answers."""
        self._commits += 1
        with self._wake:
            self._echoes = set(loops)  # which the loops change from now on
        for loop in loops:
            with contextlib.suppress(RuntimeError):  # it is closed: the wait has a limit
                loop.call_soon_threadsafe(self._echo, loop, self._commits, ECHO_TURNS)

    def _echo(self, loop: asyncio.AbstractEventLoop, commit: int, turns: int) -> None:
        if turns:
            loop.call_soon(self._echo, loop, commit, turns - 1)
            return
        with self._wake:
            if commit == self._commits:
                self._echoes.discard(loop)
                if self._awaits_echoes:
                    self._wake.notify()

    def _await_echoes(self) -> None:
        """Wait for the next requests of callers that were just answered."""
        seconds = ECHO_SECONDS
        if self._answered >= CROWD:
            since = self.engine.clock.monotonic() - self._worked_at
            seconds = min(seconds, self.engine.took_seconds - since)
        elif len(self._inbox) * 2 >= self._answered:
            seconds = 0.0
        if seconds > 0:
            self._awaits_echoes = True
            self._wake.wait_for(self._need_not_wait, seconds)
            self._awaits_echoes = False
        self._answered, self._echoes = 0, set()

    def _need_not_wait(self) -> bool:
        if self._stopping or self._returned >= self._answered:
            return True
        return self._answered < CROWD and not self._echoes

    def _pause_seconds(self) -> float | None:
        pauses = []
        now = self.engine.clock.monotonic()
        look_at = self.engine.look_at
        if look_at is not None:
            pauses.append(min(max(0.0, look_at - now), CLOCK_JUMP_SECONDS))
        untils = [t.request.until for t in self._waiting if t.request.until is not None]
        pauses += [max(0.0, until - now) for until in untils]
        if self.engine.store.shared:
            pauses.append(POLL_SECONDS)
        return min(pauses) if pauses else None

    def _write(self, batch: list[Ticket], *, leasing: bool = True) -> None:
        """Apply a batch and, if `leasing`, serve the waiting leases."""
        if not batch and not self._has_reason():
            return
        with self._wake:
            self._nudged = False
            self._waiting = [t for t in self._waiting if not t.future.done()]
            waiting = list(self._waiting) if leasing else []
        self.busy_since = self.engine.clock.monotonic()
        try:
            outcome = self.engine.apply(
                [ticket.request for ticket in batch], [ticket.request for ticket in waiting]
            )
        except FairlaneError as error:
            self.trouble = error.message
            self.nudge()  # the waiting leases still have to be served
            is_moved = isinstance(error, StoreMoved)
            told = store_unavailable("the request had no effect") if is_moved else error
            _answer((ticket, told) for ticket in batch)
            if isinstance(error, StoreMoved) and self.on_moved is not None:
                self.on_moved(error)
            if isinstance(error, OperatorError):  # only an operator can fix it: retry slowly
                log.warning("no batch can be written: %s", error.message)
                self.engine.clock.sleep(DEFECT_PAUSE_SECONDS)
        except Exception as error:
            self.trouble = "internal error; see the server's log"
            log.exception("a batch of %d could not be applied", len(batch))
            self._write_one_by_one(batch, error, leased=bool(waiting))
        else:
            self.trouble = None
            self._worked_at = self.engine.clock.monotonic()
            if outcome.committed:
                self.written_at = self._worked_at
            self._share(batch, waiting, outcome)
        finally:
            self.busy_since = None

    def _has_reason(self) -> bool:
        """Return whether a request arrived, something is due, the clock was set, or another process
        wrote.
        """
        due_at = self.engine.due_at
        is_due = due_at is not None and due_at <= self.engine.clock.now()
        shared = self.engine.store.shared
        asked = self._nudged or is_due or shared
        return asked or self.engine.clock_was_set() or self.engine.others_wrote()

    def _write_one_by_one(self, batch: list[Ticket], error: Exception, *, leased: bool) -> None:
        """Apply requests singly: a bad one must not fail its batch, nor a bad lease any request."""
        if not batch:  # a defect in the tick: do not repeat it without a pause
            self.engine.clock.sleep(DEFECT_PAUSE_SECONDS)
        elif len(batch) > 1:
            for ticket in batch:
                self._write([ticket])
        elif leased:
            self._write(batch, leasing=False)
        else:
            _answer((ticket, error) for ticket in batch)

    def _share(self, batch: list[Ticket], waiting: list[Ticket], outcome: Outcome) -> None:
        answers = list(zip(batch, outcome.answers, strict=True))
        served = [(t, grants) for t, grants in zip(waiting, outcome.grants, strict=True) if grants]
        if served:
            served = self._take_out(served)
        self._tell(outcome)
        ended = sum(ticket.elsewhere or isinstance(ticket.request, _LAST) for ticket in batch)
        count = len(batch) - ended
        count += sum(len(grants) for ticket, grants in served if not ticket.elsewhere)
        answered = answers + served
        with self._wake:
            self._answered, self._returned = count, 0
        _answer(answered, self.give_back)
        self._ask_for_echoes({ticket.loop for ticket, _ in answered if ticket.loop is not None})

    def _tell(self, outcome: Outcome) -> None:
        """Call the listener. If it fails, the callers are answered all the same."""
        if self._on_commit is None:
            return
        try:
            self._on_commit(outcome)
        except Exception:
            log.exception("the listener for commits failed")

    def _take_out(
        self, served: list[tuple[Ticket, list[object]]]
    ) -> list[tuple[Ticket, list[object]]]:
        """Remove the served leases; release what was granted to withdrawn ones."""
        gone = {id(ticket) for ticket, _ in served}
        with self._wake:
            present = {id(ticket) for ticket in self._waiting}
            self._waiting = [t for t in self._waiting if id(t) not in gone]
        for ticket, grants in served:
            if id(ticket) not in present:
                self.give_back(grants)
        return [(ticket, grants) for ticket, grants in served if id(ticket) in present]

    def give_back(self, answer: object) -> None:
        """Release leases and permits that were granted to a caller that has gone."""
        found = releases(answer)
        if found:
            with self._wake:
                self._inbox.extend(map(_of_thread, found))
                self._wake.notify()

    def keep(self, leases: Sequence[tuple[int, int]]) -> None:
        """Do nothing: this process needs no record of the leases it has sent."""

    def _watch(self) -> None:
        """Answer callers that have waited too long while no batch ends, until the writer stops.

        The write thread cannot do that, because it hangs together with the store: in a driver, a
        name lookup or the disk. Callers in threads of this process wait without a limit.
        """
        while not self._ended.wait(OVERDUE_LOOK_SECONDS):
            before = self.engine.clock.monotonic() - ANSWER_SECONDS
            if self._worked_at > before:
                continue
            with self._wake:
                writing = [t for t in self._batch if _is_overdue(t, before)]
                asked, self._inbox = self._inbox, deque()
                refused = []
                for ticket in asked:
                    if waits(ticket.request):
                        self._waiting.append(ticket)
                    elif _is_overdue(ticket, before):
                        refused.append(ticket)
                    else:
                        self._inbox.append(ticket)
            unknown = store_unavailable("it is unknown whether the request took effect")
            undone = store_unavailable("the request had no effect")
            _answer([(t, unknown) for t in writing] + [(t, undone) for t in refused])
            self._answer_late_leases()

    def _answer_late_leases(self) -> None:
        now = self.engine.clock.monotonic()
        with self._wake:
            late = [t for t in self._waiting if _is_late(t.request, now)]
            if late:
                self._waiting = [t for t in self._waiting if not _is_late(t.request, now)]
            else:
                return
        for ticket in late:
            self._hear(ticket)
        _answer((ticket, []) for ticket in late)


def _overloaded() -> StoreUnavailable:
    return StoreUnavailable("the scheduler is overloaded; try again later", retry_after_ms=1000)


def _is_lease_of(ticket: Ticket, worker: str | None) -> bool:
    return isinstance(ticket.request, Lease) and worker in (None, ticket.request.worker)


def waits(request: object) -> bool:
    """Return whether a request is tried again until it can be served."""
    if isinstance(request, Permit):
        return request.until is not None
    return isinstance(request, Lease)


def _characters(request: object) -> int:
    """Return the amount of text in a request, for verbs that may carry large texts."""
    if isinstance(request, Submit):
        return sum(len(one.body) for one in request.submissions)
    if isinstance(request, Complete):
        return len(request.result or "")
    if isinstance(request, AppendOutput):
        return len(request.text)
    if isinstance(request, Report):
        return sum(map(_characters, request.reports))
    if isinstance(request, Enqueue):
        return sum(len(one.submission.body) for one in request.entries)
    return _characters(request.submit) if isinstance(request, UseTemplate) else 0


def _is_overdue(ticket: Ticket, before: float) -> bool:
    return ticket.loop is not None and ticket.asked_at <= before and not ticket.future.done()


def _is_late(request: Lease | Permit, now: float) -> bool:
    return request.until is not None and request.until <= now


def _answer(
    answers: Iterable[tuple[Ticket, object]], lost: Callable[[object], None] = lambda _: None
) -> None:
    """Deliver the answers; `lost` receives answers whose caller has gone."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[object, object]]] = {}
    for ticket, answer in answers:
        if ticket.loop is None:
            _settle([(ticket.future, answer)], lost)
        else:
            by_loop.setdefault(ticket.loop, []).append((ticket.future, answer))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, pairs, lost)
        except RuntimeError:  # the caller's loop is closed, so it no longer waits
            log.debug(
                "dropped %d answers because the event loop of their callers was closed", len(pairs)
            )
            for _, answer in pairs:
                lost(answer)


def _settle(pairs: list[tuple[Any, Any]], lost: Callable[[Any], None]) -> None:
    for future, answer in pairs:
        if future.done():
            lost(answer)
        elif isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
