"""Planted bugs in the ways of single tasks: leases, order, sessions, time, the store."""

from __future__ import annotations

import copy
from typing import Any, Final

import pytest

from fairlane.core import (
    admission,
    consequences,
    counts,
    fairness,
    gates,
    leases,
    lifecycle,
    retries,
)
from fairlane.core.fairness import Contender
from fairlane.core.model import Change
from fairlane.engine import engine as engine_module
from fairlane.engine.engine import Engine
from fairlane.engine.verbs import leasing, tasks, ticks
from fairlane.store.counters import Counters
from fairlane.store.lookup import StoreLookup
from fairlane.store.sqlite import SqliteConnection
from fairlane.store.transaction import Transaction
from tests.simulation.planting import Bed, always

BED: Final = Bed()
plant = BED.plant


@plant("fencing", "result")
def any_token_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_stale", lambda task, _: not task.leased)


@plant("fencing", "error")
def a_closed_lease_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_stale", lambda task, token: task.fencing_token != token)


@plant("result")
def another_result_is_accepted_and_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_loses_nothing", lambda _result, _kept: True)


@plant("fencing")
def a_result_cannot_be_reported_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_loses_nothing", lambda _result, _kept: False)


@plant("deadline", seed=15)
def a_task_is_started_after_its_deadline(patch: pytest.MonkeyPatch) -> None:
    real = leases.start

    def start(task: Any, token: int, now: int) -> leases.LeaseDecision:
        late = task is not None and task.deadline_at is not None and task.deadline_at <= now
        return real(task, token, task.deadline_at - 1 if late else now)

    patch.setattr(leases, "start", start)


@plant("tokens")
def a_token_is_given_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transaction, "next_fencing_token", lambda tx: tx.last_fencing_token + 1)


@plant("tokens")
def tokens_only_count_on_from_what_the_store_remembers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "fencing_token_base", lambda last, _now, _draw: last)


@plant("counters", "starvation", "fairness")
def a_slot_leaks_when_a_cancelled_run_ends(patch: pytest.MonkeyPatch) -> None:
    real = counts.apply

    def leak(lane: counts.Tally, line: counts.Tally, change: Change) -> None:
        if change.verb != lifecycle.CLOSE:
            real(lane, line, change)

    patch.setattr(counts, "apply", leak)


@plant("counters")
def a_new_weight_changes_no_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Counters, "reshare", always(None))


@plant("ceiling")
def a_lane_takes_one_too_many(patch: pytest.MonkeyPatch) -> None:
    real = fairness.free_slots
    patch.setattr(fairness, "free_slots", lambda *args: real(*args) + 1)


@plant("ceiling")
def an_agent_has_no_ceiling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Contender, "eligible", property(lambda agent: agent.ready > 0))


@plant("paused", seed=2)
def a_paused_lane_goes_on(patch: pytest.MonkeyPatch) -> None:
    def ready(tx: Transaction, lanes: Any) -> list[str]:
        return [
            name for name in lanes if name in tx.counters.lanes() and tx.counters.lane(name).ready
        ]

    patch.setattr(leasing, "_open_lanes", ready)


@plant("starvation")
def only_one_lane_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    real = leasing._open_lanes
    patch.setattr(leasing, "_open_lanes", lambda tx, lanes: real(tx, lanes)[:1])


@plant("fairness")
def the_agent_with_most_leases_goes_first(patch: pytest.MonkeyPatch) -> None:
    def key_after(one: Contender, turns: int, _: int) -> tuple[bool, float, int, str]:
        return (False, -one.slots - turns, 0, one.agent)

    patch.setattr(Contender, "key_after", key_after)


@plant("order")
def the_newest_task_goes_first(patch: pytest.MonkeyPatch) -> None:
    def last(ready: Any, limit: int, **_: Any) -> Any:
        return sorted(ready, key=lambda pair: (pair[0].priority, -pair[0].seq))[:limit]

    patch.setattr(leasing, "_first", last)


@plant("starvation", "error")
def a_new_strategy_loses_the_queue(patch: pytest.MonkeyPatch) -> None:
    real = SqliteConnection.run

    def forget(self: SqliteConnection, name: str, /, **values: Any) -> Any:
        return [] if name == "task_reline" else real(self, name, **values)

    patch.setattr(SqliteConnection, "run", forget)


@plant("session")
def a_session_has_no_gate(patch: pytest.MonkeyPatch) -> None:
    real = gates.next_gate

    def next_gate(task: Any, session: Any, *args: Any, **values: Any) -> str | None:
        return real(task, None, *args, **values)

    patch.setattr(gates, "next_gate", next_gate)


@plant("session")
def a_turn_is_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    def forget(tx: Transaction, _: int) -> None:
        tx.counters.open_sessions.clear()

    patch.setattr(ticks, "_settle_sessions", forget)


@plant("session order")
def a_turn_goes_to_the_newest(patch: pytest.MonkeyPatch) -> None:
    real = StoreLookup.next_in_sessions

    def newest(lookup: StoreLookup, keys: Any, limit: int) -> Any:
        found = {task.session: task for task in real(lookup, keys, limit + 9)}
        return list(found.values())

    patch.setattr(StoreLookup, "next_in_sessions", newest)


@plant("final", "history", "state")
def a_task_that_has_ended_can_be_cancelled(patch: pytest.MonkeyPatch) -> None:
    def cancel(task: Any, _: str, __: int, reason: str | None = None) -> leases.LeaseDecision:
        after = copy.copy(task)
        after.state = lifecycle.CANCELLED
        return leases.LeaseDecision(Change(task, after, lifecycle.CANCEL, error=reason), after)

    real = leases.cancel
    patch.setattr(leases, "cancel", lambda task, *args: (cancel if task else real)(task, *args))


@plant("attempts")
def a_released_attempt_is_lost(patch: pytest.MonkeyPatch) -> None:
    real = leases.release

    def release(task: Any, token: int, now: int, *, last: bool) -> leases.LeaseDecision:
        decision = real(task, token, now, last=last)
        if decision.change and decision.change.verb == lifecycle.RELEASE:
            decision.change.after.attempts += 1
        return decision

    patch.setattr(leases, "release", release)


@plant("end")
def a_task_parks_with_attempts_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retries, "after_failure", always(lifecycle.PARK))


@plant("time")
def deadlines_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ticks, "_expire", always(False))


@plant("time")
def what_is_due_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def remember(engine: Engine, tx: Transaction) -> None:
        engine.policy, engine._policy_version = tx.policy, tx.policy_version
        engine.due_at = engine._prune_at

    patch.setattr(Engine, "_remember", remember)


@plant("spin")
def what_is_done_stays_due(patch: pytest.MonkeyPatch) -> None:
    real = ticks.tick

    def tick(tx: Transaction, now: int, grace_ms: int = 0) -> None:
        real(tx, now, grace_ms)
        tx.note_due(now)

    patch.setattr(ticks, "tick", tick)


@plant("time", seed=17)
def after_an_outage_no_lease_ever_runs_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine_module, "GRACE_SECONDS", 1e6)


@plant("lost", "told", "starvation", "time")
def a_lost_commit_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_committed", always(True))


@plant("error", "told", "lease", "tokens", "events", seed=11)
def a_durable_commit_is_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_committed", always(False))


@plant("error", "idempotency")
def a_key_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tasks, "_remembered", lambda *_: {})


@plant("admission")
def a_full_queue_takes_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "refusal", always(None))


@plant("retention")
def history_is_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    real = ticks.prune
    patch.setattr(ticks, "prune", lambda tx, now: real(tx, now + 3000))


@plant("delivery")
def a_webhook_of_a_cancelled_task_is_not_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consequences, "of", _without_webhooks_of(lifecycle.CANCEL))


@plant("delivery")
def a_webhook_of_a_parked_task_is_not_owed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(consequences, "of", _without_webhooks_of(lifecycle.PARK))


def _without_webhooks_of(verb: str) -> Any:
    real = consequences.of

    def of(change: Change, *, awaited: bool) -> Any:
        following = real(change, awaited=awaited)
        if following is not None and change.verb == verb:
            following.webhook = None
        return following

    return of


@plant("told")
def a_worker_is_not_told_to_stop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_runs_to_stop", always([]))
