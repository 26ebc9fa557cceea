"""The checks themselves: each finds its planted error, and nothing in a clean run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e import checks
from tests.e2e.checks import WORKER_GONE, Executed, Final, Webhook
from tests.e2e.history import CANCEL_OK, INVOKE, MISSING, OK, REFUSED, SEEN, UNKNOWN, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

PARAMS = {"key": "k"}
EMPTY = dict.fromkeys(("Submitted", "Completed", "Failed", "Cancelled", "Parked", "Rejected"), 0)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path, "a test") as history:
        yield history


def final(key: str = "k", **fields: Any) -> Final:
    given = {
        "id": f"id-{key}",
        "seq": 1,
        "kind": "handler",
        "lane": "main",
        "state": "done",
        "attempts": 1,
        "max_attempts": 3,
        "request": {"handler": "echo", "params": PARAMS},
        "result": PARAMS,
        **fields,
    }
    return Final(key=key, **given)


def action(key: str = "k", **fields: Any) -> Final:
    result = {"result": {"received": {"key": key}}}
    return final(key, kind="action", max_attempts=1, **{"result": result, **fields})


def acknowledged(history: History, *keys: str) -> None:
    for key in keys:
        history.add("c", INVOKE, key=key, group=key)
        history.add("c", OK, key=key, id=f"id-{key}", group=key)


def test_a_clean_run_has_no_problems(history: History) -> None:
    acknowledged(history, "k", "a")
    history.add("w", SEEN, key="k", id="id-k", note="running")
    history.add("w", SEEN, key="k", id="id-k", note="done")
    tasks = [final(callback=True), action("a", seq=2)]
    found = [
        *checks.lost(history, tasks),
        *checks.unexpected(history, tasks),
        *checks.duplicated(tasks),
        *checks.torn(history, tasks),
        *checks.unfinished(tasks),
        *checks.changed_their_mind(history, tasks),
        *checks.badly_ended(tasks),
        *checks.wrongly_executed(tasks, [Executed("a", "t")]),
        *checks.wrongly_told(tasks, [Webhook("msg", "id-k", "done")] * 2),
        *checks.miscounted(tasks, stats(Submitted=2, Completed=2)),
    ]
    assert found == []
    assert checks.recovered(history, tasks) == 0


def stats(queued: int = 0, **metrics: int) -> dict[str, Any]:
    numbers = {f"tasks{name}": count for name, count in {**EMPTY, **metrics}.items()}
    return {"metrics": numbers, "queue": {"totalQueued": queued, "totalInflight": 0}}


# Each is told of a history and the tasks that are there, and has one thing to complain about.
WRONG_TASKS: dict[str, tuple[Callable[[list[Final]], Iterable[str]], list[Final]]] = {
    "twice": (checks.duplicated, [final(), final(id="other")]),
    "open": (checks.unfinished, [final(state="running")]),
    "leased": (checks.unfinished, [final(leased=True)]),
    "too many attempts": (checks.badly_ended, [final(attempts=4)]),
    "done without an attempt": (checks.badly_ended, [final(attempts=0)]),
    "the result of another": (checks.badly_ended, [final(result={"key": "other"})]),
    "an action's result of another": (
        checks.badly_ended,
        [action(result={"result": {"received": {"key": "other"}}})],
    ),
    "failed by itself": (checks.badly_ended, [action(state="failed", error="no")]),
    "a handler that failed": (
        checks.badly_ended,
        [final(state="failed", attempts=3, error=WORKER_GONE)],
    ),
    "parked too early": (checks.badly_ended, [final(state="parked", error=WORKER_GONE)]),
}


@pytest.mark.parametrize(("check", "tasks"), WRONG_TASKS.values(), ids=WRONG_TASKS)
def test_a_task_that_ended_wrongly_is_found(
    check: Callable[[list[Final]], Iterable[str]], tasks: list[Final]
) -> None:
    assert len(list(check(tasks))) == 1


def test_a_server_that_died_is_a_reason_to_end_badly() -> None:
    spent = final(state="parked", attempts=3, error=WORKER_GONE)
    assert list(checks.badly_ended([spent, action(state="failed", error=WORKER_GONE)])) == []


def test_what_is_lost_or_missing_for_a_while_is_found(history: History) -> None:
    acknowledged(history, "gone", "swapped", "blinking")
    history.add("w", MISSING, key="blinking", id="id-blinking", note="404")
    tasks = [final("blinking"), final("k", id="id-swapped")]
    found = list(checks.lost(history, tasks))
    assert [line.split()[-1] for line in found] == ["nowhere", "k", "404"]


def test_what_nobody_asked_for_or_was_refused_is_found(history: History) -> None:
    history.add("c", INVOKE, key="refused", group="g")
    history.add("c", REFUSED, key="refused", group="g")
    history.add("c", INVOKE, key="unknown", group="g")
    history.add("c", UNKNOWN, key="unknown", group="g")
    tasks = [final("refused"), final("unknown"), final("nobody")]
    assert len(list(checks.unexpected(history, tasks))) == 2
    assert checks.recovered(history, [tasks[1]]) == 1


def test_half_a_batch_is_found(history: History) -> None:
    for key in ("a", "b"):
        history.add("c", INVOKE, key=key, group="g")
    assert len(list(checks.torn(history, [final("a")]))) == 1
    assert list(checks.torn(history, [])) == []


def test_an_end_that_did_not_last_is_found(history: History) -> None:
    history.add("w", SEEN, key="a", note="failed")
    history.add("w", CANCEL_OK, key="b")
    assert len(list(checks.changed_their_mind(history, [final("a"), final("b")]))) == 2


@pytest.mark.parametrize(
    "executed",
    [
        [],  # done, and never carried out
        [("a", "t"), ("a", "t"), ("b", "t")],  # twice
        [("b", "t"), ("a", "t")],  # in the wrong order
        [("a", "t"), ("b", "t"), ("c", "t2")],  # by nobody's order
    ],
)
def test_an_action_carried_out_wrongly_is_found(executed: list[tuple[str, str]]) -> None:
    tasks = [action("a", seq=1), action("b", seq=2, state="failed")]
    found = list(checks.wrongly_executed(tasks, [Executed(*one) for one in executed]))
    assert len(found) == 1


@pytest.mark.parametrize(
    "webhooks",
    [
        [],  # owed
        [("m", "id-k", "failed")],  # says something else
        [("m", "id-k", "done"), ("n", "id-k", "done")],  # under two names
        [("m", "id-k", "done"), ("n", "id-quiet", "done")],  # owed to nobody
    ],
)
def test_a_wrong_webhook_is_found(webhooks: list[tuple[str, str, str]]) -> None:
    tasks = [final(callback=True), final("quiet")]
    found = list(checks.wrongly_told(tasks, [Webhook(*one) for one in webhooks]))
    assert len(found) == 1


def test_one_id_for_two_webhooks_is_found() -> None:
    tasks = [final("a", callback=True), final("b", callback=True)]
    webhooks = [Webhook("m", "id-a", "done"), Webhook("m", "id-b", "done")]
    assert len(list(checks.wrongly_told(tasks, webhooks))) == 1


def test_a_wrong_total_is_found() -> None:
    counted_twice = stats(Submitted=1, Completed=2)
    assert len(list(checks.miscounted([final()], counted_twice))) == 2
    still_queued = stats(queued=1, Submitted=1, Completed=1)
    assert len(list(checks.miscounted([final()], still_queued))) == 1
