"""Planted bugs in the ways of sessions: turns, messages that are joined, dropped or stopped."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from fairlane.core import gates, sessions
from fairlane.core.model import Message, Submission, Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import Session, SessionSettings
from fairlane.engine import engine as engines
from fairlane.engine.commands import StopSession
from fairlane.engine.verbs import sessions as talking
from fairlane.engine.verbs import tasks as verbs
from fairlane.engine.verbs import ticks
from fairlane.store.counters import Counters
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction
from tests.simulation.planting import Bed, always

BED: Final = Bed()
plant = BED.plant


# --- turns ------------------------------------------------------------------------------------


@plant("session")
def one_too_many_has_the_turn(patch: pytest.MonkeyPatch) -> None:
    real = sessions.limit
    patch.setattr(sessions, "limit", lambda *args: real(*args) + 1)


@plant("session")
def a_full_conversation_is_not_throttled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "throttled", always(False))


@plant("session", seed=2)
def a_fallen_limit_takes_no_turn_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ticks, "_take_turns_back", lambda tx: tx.counters.tight_sessions.clear())


@plant("session")
def a_risen_limit_gives_no_turn(patch: pytest.MonkeyPatch) -> None:
    real = Counters.touch_session

    def touch(counters: Counters, key: str) -> None:
        real(counters, key)
        counters.open_sessions.discard(key)

    patch.setattr(Counters, "touch_session", touch)


@plant("interrupt", seed=11)
def a_new_run_starts_beside_the_interrupted_one(patch: pytest.MonkeyPatch) -> None:
    def free(session: Session) -> int:
        return max(0, session.limit - session.holders)

    patch.setattr(Session, "free", property(free))


@plant("interrupt", "session")
def a_session_stays_interrupted(patch: pytest.MonkeyPatch) -> None:
    real = gates.apply

    def apply(session: Session, change: Any) -> None:
        interrupted = session.interrupted
        real(session, change)
        session.interrupted = interrupted

    patch.setattr(gates, "apply", apply)


@plant("interrupt")
def an_interruption_lets_the_old_run_go_on(patch: pytest.MonkeyPatch) -> None:
    def interrupt(tx: Transaction, session: Session, error: str, now: int) -> None:
        waiting = talking._queued(tx, session.key)
        talking._cancel(tx, waiting, error, now)

    patch.setattr(talking, "_interrupt", interrupt)


# --- words ------------------------------------------------------------------------------------


@plant("fate", "window")
def a_joined_word_is_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(talking, "join_text", lambda body, _: body)


@plant("text")
def a_joined_word_stands_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "lines", lambda first, second: f"{second}\n{first}")


@plant("text")
def a_joined_word_makes_a_task_of_its_own_too(patch: pytest.MonkeyPatch) -> None:
    real = talking._that_may_grow

    def grow(tx: Transaction, submission: Submission, message: Message, *args: Any) -> Any:
        found = real(tx, submission, message, *args)
        if found is not None:
            row = (found[0].seq, talking.join_text(found[1], submission))
            tx.connection.run_rows("request_grow", [row])
        return None

    patch.setattr(talking, "_that_may_grow", grow)


@plant("text", "merge", "window")
def a_picture_is_joined(patch: pytest.MonkeyPatch) -> None:
    real = talking.admit

    def admit(tx: Transaction, submission: Submission, *args: Any) -> Any:
        assert submission.message is not None
        message = msgspec.structs.replace(submission.message, no_merge=False)
        return real(tx, msgspec.structs.replace(submission, message=message), *args)

    patch.setattr(talking, "admit", admit)


@plant("senders")
def two_senders_are_taken_for_one(patch: pytest.MonkeyPatch) -> None:
    real = talking._that_may_grow

    def grow(tx: Transaction, submission: Submission, message: Message, *args: Any) -> Any:
        other = "bob" if message.sender == "ann" else "ann"
        strange = msgspec.structs.replace(message, sender=other)
        found = real(tx, submission, message, *args)
        return found or real(tx, submission, strange, *args)

    patch.setattr(talking, "_that_may_grow", grow)


@plant("merge")
def nothing_is_joined(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(talking, "_that_may_grow", always(None))


@plant("merge", seed=29)
def nothing_is_collected(patch: pytest.MonkeyPatch) -> None:
    real = talking._that_may_grow

    def grow(tx: Transaction, one: Submission, message: Message, settings: SessionPolicy) -> Any:
        plain = msgspec.structs.replace(settings, mode="queue")
        return real(tx, one, message, plain)

    patch.setattr(talking, "_that_may_grow", grow)


@plant("speech")
def the_second_word_goes_before_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(talking, "_let_go", always(None))


@plant("stale", seed=35)
def a_message_from_before_the_stop_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = talking.admit

    def admit(tx: Transaction, submission: Submission, *args: Any) -> Any:
        assert submission.message is not None
        message = msgspec.structs.replace(submission.message, sent_at=None)
        return real(tx, msgspec.structs.replace(submission, message=message), *args)

    patch.setattr(talking, "admit", admit)


# --- windows ----------------------------------------------------------------------------------


@plant("window")
def a_window_has_no_end(patch: pytest.MonkeyPatch) -> None:
    def ends(settings: SessionPolicy, _: int, now: int) -> int:
        return now + settings.debounce_ms

    patch.setattr(sessions, "window_ends", ends)


@plant("window", seed=31)
def a_window_is_not_begun_anew(patch: pytest.MonkeyPatch) -> None:
    real = sessions.window_ends
    patch.setattr(sessions, "window_ends", lambda one, first, _: real(one, first, first))


@plant("time")
def a_window_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = task_table.due

    def due(*args: Any, **values: Any) -> list[Task]:
        return [task for task in real(*args, **values) if task.gate != "debounce"]

    patch.setattr(task_table, "due", due)


# --- who has to go ----------------------------------------------------------------------------


@plant("cap")
def any_number_may_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "excess", always(0))


@plant("drop", "cap", seed=2)
def one_too_many_is_dropped(patch: pytest.MonkeyPatch) -> None:
    real = sessions.excess

    def excess(*args: Any) -> int:
        found = real(*args)
        return found + 1 if found > 0 else found

    patch.setattr(sessions, "excess", excess)


@plant("drop", seed=2)
def the_newest_is_dropped(patch: pytest.MonkeyPatch) -> None:
    real = talking._cancel

    def cancel(tx: Transaction, tasks: Any, error: str, now: int) -> list[str]:
        tasks = list(tasks)
        if error == sessions.DROPPED and tasks:
            tasks = tx.lookup.tasks(session_table.waiting_tasks, session=tasks[0].session)[
                -len(tasks) :
            ]
        return real(tx, tasks, error, now)

    patch.setattr(talking, "_cancel", cancel)


@plant("drop", "marks", "interrupt", "cancel")
def a_refused_message_has_its_way(patch: pytest.MonkeyPatch) -> None:
    real = verbs._admit

    def admit(*args: Any, leaving: Any = (), enter: Any = None) -> Any:
        if enter is not None:
            enter()
        return real(*args)

    patch.setattr(verbs, "_admit", admit)


# --- stops and settings -----------------------------------------------------------------------


@plant("stop", "interrupt")
def a_stopall_leaves_what_waits(patch: pytest.MonkeyPatch) -> None:
    def queued(tx: Transaction, key: str) -> list[Task]:
        return tx.lookup.tasks(session_table.turn_tasks, session=key)

    patch.setattr(talking, "_queued", queued)


@plant("stop")
def a_stop_ends_the_newest_run(patch: pytest.MonkeyPatch) -> None:
    real = talking._running
    patch.setattr(talking, "_running", lambda *args: real(*args)[::-1])


@plant("stop")
def nobody_is_told_who_was_stopped(patch: pytest.MonkeyPatch) -> None:
    real = talking._cancel

    def cancel(*args: Any) -> list[str]:
        real(*args)
        return []

    patch.setattr(talking, "_cancel", cancel)


@plant("marks", "stale")
def a_stopall_has_no_cutoff(patch: pytest.MonkeyPatch) -> None:
    real = talking.stop

    def stop(tx: Transaction, requests: Any, now: int) -> Any:
        for request in requests:
            tx.counters.load_sessions([request.key])
            cutoff_at = tx.counters.session(request.key).cutoff_at
            yield next(iter(real(tx, [request], now)))
            tx.counters.session(request.key).cutoff_at = cutoff_at

    patch.setattr(engines, "VERBS", {**engines.VERBS, StopSession: stop})


@plant("marks", "interrupt")
def a_new_setting_clears_the_others(patch: pytest.MonkeyPatch) -> None:
    def changed(_: Session, new: SessionSettings, __: Any = None) -> str | None:
        return msgspec.json.encode(new).decode() if new != SessionSettings() else None

    patch.setattr(sessions, "changed", changed)
