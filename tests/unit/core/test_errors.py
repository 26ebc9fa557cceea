"""The tree of errors is the one that its docstring draws, with a code of its own for each leaf."""

from __future__ import annotations

import re

import pytest

from fairlane.core import errors


def _leaves(parent: type[errors.FairlaneError]) -> list[type[errors.FairlaneError]]:
    """All below `parent` that have a code of their own: the errors that are raised."""
    below = [leaf for child in parent.__subclasses__() for leaf in _leaves(child)]
    return [parent, *below] if "code" in vars(parent) and parent.code != "error" else below


def test_the_docstring_draws_the_whole_tree() -> None:
    drawn = re.findall(r"[|`]-- (\w+)[: ]+([a-z_]+)(?=:|\n)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(
        (leaf.__name__, leaf.code) for leaf in _leaves(errors.FairlaneError)
    )


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [leaf.code for leaf in _leaves(errors.FairlaneError)]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("error", _leaves(errors.BusyError))
def test_a_busy_error_asks_to_come_back(error: type[errors.BusyError]) -> None:
    refusal = error("full", details={"limit": 1}, retry_after_ms=500)
    assert (refusal.retryable, refusal.retry_after_ms, refusal.details) == (True, 500, {"limit": 1})


@pytest.mark.parametrize("error", _leaves(errors.CallerError))
def test_a_caller_error_is_not_to_be_repeated(error: type[errors.CallerError]) -> None:
    refusal = error("wrong")
    assert (str(refusal), refusal.message, refusal.retryable) == ("wrong", "wrong", False)


@pytest.mark.parametrize("error", [errors.InvalidPolicy, errors.InvalidSettings])
def test_all_problems_of_a_document_are_reported_at_once(
    error: type[errors.InvalidPolicy | errors.InvalidSettings],
) -> None:
    refusal = error(["lanes.main: too small", "agents: not a table"])
    assert refusal.problems == ["lanes.main: too small", "agents: not a table"]
    assert refusal.message == "lanes.main: too small; agents: not a table"


def test_a_failed_run_says_whether_another_attempt_could_go_better() -> None:
    assert errors.ExecutionFailed("timeout").retryable
    assert not errors.ExecutionFailed("bad request", retryable=False).retryable


def test_a_task_that_failed_says_how_it_ended_and_why() -> None:
    assert errors.TaskFailed("tsk_1", "failed", "no such tab").message == (
        "task tsk_1 ended failed: no such tab"
    )
    silent = errors.TaskFailed("tsk_2", "cancelled", None)
    assert (silent.message, silent.state, silent.error) == (
        "task tsk_2 ended cancelled",
        "cancelled",
        None,
    )


@pytest.mark.parametrize(
    ("state", "error", "kind"),
    [
        ("cancelled", "queue_dropped: a newer one came", errors.QueueDropped),
        ("cancelled", "session_reset: by an operator", errors.SessionReset),
        ("cancelled", "something else", errors.TaskFailed),
        ("cancelled", None, errors.TaskFailed),
        ("failed", "queue_dropped: said by a handler", errors.TaskFailed),
    ],
)
def test_the_first_word_of_a_cancelled_tasks_error_tells_its_kind(
    state: str, error: str | None, kind: type[errors.TaskFailed]
) -> None:
    assert type(errors.task_failed("tsk_1", state, error)) is kind
