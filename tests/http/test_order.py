"""What runs next, and how much at once: priority, FIFO, fairness, limits, one tab at a time.

Facts of specs/pinchtab.md section 17: 34, 37, 38, 41, 115; weaknesses of section 18: 2 (limits stay
exact after cancels and expiries), 6, 11, 12, 13; section 21: strict alternation, FIFO.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.waiting import TooLate, in_time
from tests.http.api import TERMINAL, eventually
from tests.http.stage import HANG, ONE, SHARED, TWO, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def queue_up(stage: Stage, *tasks: dict[str, Any], lane: str = ONE) -> list[str]:
    """Submit the tasks in order while the lane's one slot is taken, then let go."""
    await stage.block(lane)
    ids = [await stage.submit(lane=lane, **task) for task in tasks]
    stage.instance.release()
    await stage.api.ended(*ids)
    return ids


# --- one agent ----------------------------------------------------------------------------------


async def test_equal_priorities_run_in_order_of_submission(stage: Stage) -> None:
    await queue_up(stage, *({"params": {"n": n}} for n in range(12)))
    assert stage.numbers() == list(range(12))


async def test_a_lower_number_runs_first(stage: Stage) -> None:
    numbers = [5, 1, 99, -3, 50, 0, 1]
    tasks = [{"priority": one, "params": {"n": one}} for one in numbers]
    await queue_up(stage, *tasks)
    assert stage.numbers() == sorted(numbers)


async def test_priority_decides_between_tasks_of_one_tab_too(stage: Stage) -> None:
    tab = stage.tab()
    numbers = [5, 1, 9, 1, -2]
    tasks = [{"priority": one, "params": {"n": one}, "tabId": tab} for one in numbers]
    await queue_up(stage, *tasks)
    assert stage.numbers() == sorted(numbers)


async def test_the_tasks_of_a_batch_run_in_its_order(stage: Stage) -> None:
    await stage.block(ONE)
    items = [
        {"action": "click", "tabId": stage.tab(), "lane": ONE, "params": {"n": n}}
        for n in range(10)
    ]
    answer = await stage.api.post("/tasks/batch", {"agentId": stage.agent, "tasks": items})
    stage.instance.release()
    await stage.api.ended(*answer.ids)
    assert stage.numbers() == list(range(10))


# --- between agents -----------------------------------------------------------------------------


@pytest.mark.parametrize("one_tab_each", [True, False], ids=["a tab per agent", "a tab per task"])
async def test_two_agents_with_a_backlog_take_strict_turns(
    stage: Stage, *, one_tab_each: bool
) -> None:
    await stage.block(ONE)
    ids, agents = [], [stage.new_agent("a"), stage.new_agent("b")]
    for agent in agents:
        tab = stage.tab()
        for n in range(6):
            fields = {"tabId": tab} if one_tab_each else {}
            ids.append(await stage.submit(lane=ONE, agentId=agent, params={"n": n}, **fields))
    stage.instance.release()
    await stage.api.ended(*ids)
    assert stage.agents() == agents * 6
    assert stage.numbers() == [n for n in range(6) for _ in agents]


async def test_three_agents_take_turns_whatever_their_backlog(stage: Stage) -> None:
    await stage.block(ONE)
    many, some, few = (stage.new_agent(name) for name in ("many", "some", "few"))
    ids = [
        await stage.submit(lane=ONE, agentId=agent, params={"n": n})
        for agent, count in ((many, 9), (some, 3), (few, 1))
        for n in range(count)
    ]
    stage.instance.release()
    await stage.api.ended(*ids)
    order = stage.agents()
    assert sorted(order[:3]) == sorted([many, some, few])
    assert sorted(order[3:7]) == sorted([many, some] * 2)
    assert order[7:] == [many] * 6


async def test_an_urgent_number_does_not_overtake_another_agent(stage: Stage) -> None:
    """Priority counts within an agent; between agents, who has fewer in flight goes first."""
    await stage.block(ONE)
    a, b = stage.new_agent("a"), stage.new_agent("b")
    ids = [
        await stage.submit(lane=ONE, agentId=agent, priority=priority, params={"n": priority})
        for agent, priority in ((a, -5), (a, -6), (b, 9), (b, 8))
    ]
    stage.instance.release()
    await stage.api.ended(*ids)
    assert stage.agents() == [a, b, a, b]
    assert stage.numbers() == [-6, 8, -5, 9]


async def test_a_critical_task_goes_before_fairness(stage: Stage) -> None:
    await stage.block(ONE)
    a, b = stage.new_agent("a"), stage.new_agent("b")
    tasks = [(a, 0), (a, 0), (b, 0), (b, -20), (b, -21)]
    ids = [
        await stage.submit(lane=ONE, agentId=agent, priority=priority, params={"n": priority})
        for agent, priority in tasks
    ]
    stage.instance.release()
    await stage.api.ended(*ids)
    assert stage.numbers() == [-21, -20, 0, 0, 0]
    assert stage.agents()[:3] == [b, b, a]


async def test_the_agent_with_fewer_in_flight_goes_first(stage: Stage) -> None:
    """One agent came first with everything; still the two slots go to one task of each."""
    blockers = [await stage.block(TWO) for _ in range(2)]
    greedy, modest = stage.new_agent("greedy"), stage.new_agent("modest")
    for n in range(3):
        await stage.submit(lane=TWO, agentId=greedy, params={"n": n}, fake=HANG)
    await stage.submit(lane=TWO, agentId=modest, params={"n": 9}, fake=HANG)
    for blocker in blockers:
        await stage.api.cancel(blocker)
    await stage.instance.until(lambda: len(stage.agents()) == 2)
    assert sorted(stage.agents()) == sorted([greedy, modest])
    stats = (await stage.api.stats())["queue"]["agents"]
    assert stats[greedy] == {"queued": 2, "inflight": 1}
    assert stats[modest] == {"queued": 0, "inflight": 1}


async def test_a_flood_does_not_delay_a_quiet_agent(stage: Stage) -> None:
    await stage.block(ONE)
    flood, quiet = stage.new_agent("flood"), stage.new_agent("quiet")
    for n in range(30):
        await stage.submit(lane=ONE, agentId=flood, params={"n": n})
    task_id = await stage.submit(lane=ONE, agentId=quiet, params={"n": 0})
    stage.instance.release()
    await stage.api.end_of(task_id)
    assert stage.agents().index(quiet) <= 1


# --- limits -------------------------------------------------------------------------------------


async def test_never_more_run_at_once_than_the_lane_allows(stage: Stage) -> None:
    for _ in range(2):
        await stage.block(TWO)
    ids = [
        await stage.submit(lane=TWO, agentId=f"{stage.agent}-{n}", fake={"delayMs": 5})
        for n in range(20)
    ]
    assert len(stage.actions()) == 2
    stage.instance.release()
    await stage.api.ended(*ids)
    assert stage.most_at_once() == 2


async def test_one_agent_has_no_more_in_flight_than_allowed_and_another_gets_the_rest(
    stage: Stage,
) -> None:
    ids = [await stage.submit(lane=SHARED, fake=HANG) for _ in range(4)]
    await stage.arrived(2, stage.agent)
    other = stage.new_agent("other")
    theirs = await stage.submit(lane=SHARED, agentId=other, fake=HANG)
    await stage.api.until(theirs, "running")
    states = [(await stage.api.show(one))["state"] for one in ids]
    assert states == ["running", "running", "queued", "queued"]
    stats = (await stage.api.stats())["queue"]
    assert stats["agents"][stage.agent] == {"queued": 2, "inflight": 2}
    assert stats["agents"][other] == {"queued": 0, "inflight": 1}
    await stage.arrived(3)
    stage.instance.release()
    await stage.arrived(5)
    stage.instance.release()
    await stage.api.ended(*ids, theirs)
    assert stage.most_at_once() == 3


async def test_the_documented_limits_of_an_agent_can_be_reached(stage: Stage) -> None:
    """Ten in flight for one agent, twenty in all: no hidden number of workers is in the way."""
    agents = [stage.new_agent() for _ in range(3)]
    for agent in agents:
        for _ in range(12):
            await stage.submit(agentId=agent, fake=HANG)
    await stage.arrived(20)
    queue = (await stage.api.stats())["queue"]
    assert (queue["totalInflight"], queue["totalQueued"]) == (20, 16)
    assert [queue["agents"][agent]["inflight"] for agent in agents] == [10, 10, 0]


async def test_limits_stay_exact_after_cancels_and_expiries_in_the_queue(stage: Stage) -> None:
    running = [await stage.block(TWO) for _ in range(2)]
    expiring = [await stage.expiring(lane=TWO) for _ in range(3)]
    cancelled = [await stage.submit(lane=TWO) for _ in range(3)]
    for task_id in cancelled:
        assert (await stage.api.cancel(task_id)).status == 200
    await stage.api.ended(*expiring)
    waiting = [await stage.submit(lane=TWO, fake=HANG, params={"n": n}) for n in range(4)]
    queue = (await stage.api.stats())["queue"]
    assert (queue["totalInflight"], queue["totalQueued"]) == (2, 4)
    assert len(stage.actions()) == 2

    await stage.api.cancel(running[0])
    await stage.arrived(3)
    queue = (await stage.api.stats())["queue"]
    assert (queue["totalInflight"], queue["totalQueued"]) == (2, 3)
    stage.instance.release()
    await stage.arrived(5)
    queue = (await stage.api.stats())["queue"]
    assert (queue["totalInflight"], queue["totalQueued"]) == (2, 1)
    stage.instance.release()
    await stage.arrived(6)
    stage.instance.release()
    assert {task["state"] for task in await stage.api.ended(*waiting)} == {"done"}
    assert stage.most_at_once() <= 2


# --- one tab ------------------------------------------------------------------------------------


async def test_one_agents_actions_on_one_tab_never_overlap_and_keep_their_order(
    stage: Stage,
) -> None:
    tab = stage.tab()
    ids = [await stage.submit(tabId=tab, params={"n": n}, fake={"delayMs": 2}) for n in range(15)]
    await stage.api.ended(*ids)
    assert stage.numbers() == list(range(15))
    assert stage.most_at_once(tab) == 1


async def test_actions_on_different_tabs_run_side_by_side(stage: Stage) -> None:
    for _ in range(4):
        await stage.submit(fake=HANG)
    await stage.arrived(4)
    assert stage.most_at_once() == 4


async def test_two_agents_may_use_one_tab_at_once(stage: Stage) -> None:
    tab = stage.tab()
    for agent in (stage.new_agent(), stage.new_agent()):
        await stage.submit(agentId=agent, tabId=tab, fake=HANG)
    await stage.arrived(2)
    assert stage.most_at_once(tab) == 2


@pytest.mark.parametrize("how", ["failed", "cancelled", "expired"])
async def test_the_next_action_on_a_tab_runs_however_the_one_before_ended(
    stage: Stage, how: str
) -> None:
    async def play(seconds: float) -> None:
        tab, before = stage.tab(), len(stage.actions())
        hanging = {"tabId": tab, "fake": HANG}
        expires = how == "expired"
        first = await (
            stage.expiring_in(seconds, **hanging) if expires else stage.submit(**hanging)
        )
        second = await stage.submit(tabId=tab, params={"n": 2})
        third = await stage.submit(tabId=tab, params={"n": 3})
        entry = (await stage.arrived(before + 1))[before]
        waiting = await stage.api.show(second)
        if expires and (await stage.api.show(first))["state"] in TERMINAL:
            await stage.api.ended(first, second, third)  # and not in the next scene
            raise TooLate("it was over before it was seen to be under way")
        assert waiting["gate"] == "session"
        if how == "cancelled":
            await stage.api.cancel(first)
        elif how == "failed":
            stage.instance.tabs.remove(tab)  # 404 for what comes, and the hanging one is let go
            stage.instance.release()
        await stage.api.ended(first, second, third)
        later = stage.actions()[before + 1 :]
        assert [one.body["n"] for one in later] == [2, 3]
        assert entry.finished is not None
        assert entry.finished < later[0].arrived or entry.outcome == "gone"

    await in_time(play)


async def test_a_waiting_action_that_is_cancelled_does_not_hold_up_its_tab(stage: Stage) -> None:
    tab = stage.tab()
    first = await stage.submit(tabId=tab, fake=HANG)
    second, third = [await stage.submit(tabId=tab, params={"n": n}) for n in (2, 3)]
    await stage.arrived(1)
    await stage.api.cancel(second)
    stage.instance.release()
    assert [one["state"] for one in await stage.api.ended(first, third)] == ["done", "done"]
    assert stage.numbers() == [3]


async def test_a_session_key_of_the_callers_own_orders_across_tabs(stage: Stage) -> None:
    key = f"mine:{stage.agent}"
    ids = [
        await stage.submit(sessionKey=key, params={"n": n}, fake={"delayMs": 2}) for n in range(8)
    ]
    await stage.api.ended(*ids)
    assert stage.numbers() == list(range(8))
    assert stage.most_at_once() == 1


async def test_a_line_of_one_tab_does_not_take_slots_from_other_tabs(stage: Stage) -> None:
    """Tasks that wait for their tab are no candidates: others pass them."""
    tab = stage.tab()
    for _ in range(5):
        await stage.submit(lane=TWO, tabId=tab, fake=HANG)
    other = await stage.submit(lane=TWO)
    assert (await stage.api.end_of(other))["state"] == "done"

    async def still_one() -> bool | None:
        return len([one for one in stage.actions() if one.tab == tab]) == 1 or None

    await eventually(still_one)
