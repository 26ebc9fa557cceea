"""What takes seconds: forgetting old records, and a webhook's second try.

Facts 57, 87 and 89 of specs/pinchtab.md section 17. The server of these tests is started with the
first of this folder and looked at here, so that the waiting is mostly over by then.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.http.api import eventually

if TYPE_CHECKING:
    from tests.http.early import Early

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.slow
async def test_a_webhook_is_tried_again_after_a_failure_under_the_same_id(early: Early) -> None:
    first, second = await early.refused_once.until(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.task["taskId"] == second.task["taskId"] == early.told_twice
    assert second.genuine
    sent_at = [int(one.headers["webhook-timestamp"]) for one in (first, second)]
    # At its time, and not when somebody looks next for what is forgotten, every half a minute.
    assert 5 <= sent_at[1] - sent_at[0] < 25


@pytest.mark.slow
async def test_a_record_is_forgotten_after_its_time(early: Early) -> None:
    """Ended ones go after `resultTTLSec`; those that wait stay however old they are."""
    api = early.server.api

    async def forgotten() -> bool | None:
        return (await api.get(f"/tasks/{early.ended}")).status == 404 or None

    await eventually(forgotten)
    assert (await api.get("/tasks", agentId="early", state="done")).json["count"] == 0
    assert (await api.show(early.waiting))["state"] == "queued"
    answer = await api.cancel(early.ended)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.slow
async def test_a_record_is_not_forgotten_before_its_time(early: Early) -> None:
    assert early.lasting is not None
    assert await early.lasting >= timedelta(seconds=2)


@pytest.mark.slow
async def test_totals_outlive_the_records(early: Early) -> None:
    await early.refused_once.until(2)
    metrics = (await early.server.api.stats())["metrics"]
    assert (metrics["tasksSubmitted"], metrics["tasksCompleted"]) == (early.ran + 1, early.ran)


@pytest.mark.slow
async def test_a_key_is_remembered_as_long_as_its_task_is_there(early: Early) -> None:
    """Also beyond the time for which ended tasks are kept: this one has not ended."""
    await test_a_record_is_forgotten_after_its_time(early)
    again = await early.submit_waiting()
    assert again.json["taskId"] == early.waiting
