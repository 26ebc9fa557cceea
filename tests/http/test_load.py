"""Under load, with cancels and failures: the books balance at every moment, and limits hold.

Section 21 of specs/pinchtab.md, first list; weaknesses 2, 3, 15, 16, 17 of section 18.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from tests.http.api import balance
from tests.http.stage import SHARED, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = 6
TASKS_EACH = 25


@pytest.mark.slow
async def test_the_books_balance_at_every_moment_under_load(stage: Stage) -> None:
    chance = random.Random(7)
    hook = stage.hooks.new()
    ids: list[str] = []
    busy = True
    samples: list[tuple[int, int]] = []

    async def submit(agent: str) -> None:
        tabs = [stage.tab() for _ in range(3)]
        for n in range(TASKS_EACH):
            submit_one = stage.expiring if n % 10 == 0 else stage.submit
            ids.append(
                await submit_one(
                    agentId=agent,
                    lane=SHARED,
                    tabId=chance.choice([*tabs, stage.tab()]),
                    priority=chance.randrange(3),
                    fake=chance.choice([{}, {}, {"delayMs": 3}, {"status": 500}, {"drop": True}]),
                    callbackUrl=hook.url,
                )
            )

    async def cancel() -> None:
        while busy:
            if ids:
                answer = await stage.api.cancel(chance.choice(ids))
                assert answer.status in {200, 409}, answer
            await asyncio.sleep(0.002)

    async def sample() -> None:
        while busy:
            stats = await stage.api.stats()
            samples.append((balance(stats), stats["queue"]["totalInflight"]))
            await asyncio.sleep(0.002)

    beside = [asyncio.create_task(one()) for one in (cancel, cancel, sample, sample)]
    try:
        agents = [stage.new_agent("load") for _ in range(AGENTS)]
        await asyncio.gather(*map(submit, agents))
        tasks = await stage.api.ended(*ids)
    finally:
        busy = False
        await asyncio.gather(*beside)

    assert len(samples) > 20
    assert {left for left, _ in samples} == {0}
    assert max(inflight for _, inflight in samples) <= 4
    assert stage.most_at_once() <= 4

    states = Counter(task["state"] for task in tasks)
    assert set(states) == {"done", "failed", "cancelled"}
    per_agent = (await stage.api.stats())["metrics"]["agents"]
    for agent in agents:
        mine = Counter(task["state"] for task in tasks if task["agentId"] == agent)
        numbers = per_agent[agent]
        told = (numbers["completed"], numbers["failed"], numbers["cancelled"])
        assert told == (mine["done"], mine["failed"], mine["cancelled"])
        assert numbers["submitted"] == TASKS_EACH

    deliveries = await hook.until(len(ids))
    assert Counter(one.task["taskId"] for one in deliveries) == Counter(ids)
    by_id = {task["taskId"]: task["state"] for task in tasks}
    assert all(one.task["state"] == by_id[one.task["taskId"]] for one in deliveries)


@pytest.mark.slow
async def test_tabs_stay_in_order_while_their_tasks_are_cancelled(stage: Stage) -> None:
    chance = random.Random(11)
    tabs = [stage.tab() for _ in range(4)]
    ids = [
        await stage.submit(tabId=tabs[n % 4], params={"n": n}, fake={"delayMs": 2})
        for n in range(60)
    ]
    for task_id in chance.sample(ids, 20):
        await stage.api.cancel(task_id)
    await stage.api.ended(*ids)
    for tab in tabs:
        numbers = [one.body["n"] for one in stage.actions() if one.tab == tab]
        assert numbers == sorted(set(numbers))
        assert stage.most_at_once(tab) <= 1
