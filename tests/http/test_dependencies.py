"""Tasks that wait for other tasks: `dependsOn`.

Rules 1-4 of seed 3; facts of specs/browseros.md section 12: 25, 26, 30-49, 55, 56, 83, 84;
weaknesses of section 13: 3 (a retrying parent), 4 (a blocked task stalls nobody), 5 (history is not
rewritten), 11 (cycles), and the passing on of results, which it misses.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.http.api import Answer
from tests.http.stage import HANG, HELD, ONE, TINY, TWO
from tests.http.work import FOR_EVER, QUEUE, Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

NOBODY = "tsk_nobody00"


async def ended_as(work: Work, state: str) -> str:
    """The id of a task that has ended so."""
    if state == "rejected":
        for _ in range(3):
            await work.submit(lane=TINY)
        refused: str = (await work.post(lane=TINY)).json["details"]["taskId"]
        return refused
    if state == "cancelled":
        task_id = await work.submit(lane=HELD)
        await work.api.cancel(task_id)
        return task_id
    task_id = await work.submit(fake={} if state == "done" else {"status": 500})
    assert (await work.api.end_of(task_id))["state"] == state
    return task_id


# --- rule 1: when all are done ------------------------------------------------------------------


async def test_without_dependencies_a_task_runs_at_once(work: Work) -> None:
    task = await work.api.end_of(await work.echo(dependsOn=[]))
    assert (task["state"], task.get("dependsOn", [])) == ("done", [])
    assert (await work.types(task["taskId"])) == ["created", "started", "completed"]


async def test_a_task_whose_parents_are_done_already_is_queued(work: Work) -> None:
    parents = [await ended_as(work, "done") for _ in range(2)]
    task_id = await work.echo(lane=HELD, dependsOn=parents)
    task = await work.api.show(task_id)
    assert (task["state"], task["dependsOn"]) == ("queued", parents)
    assert task.get("gate") != "dependency"
    again = await work.api.end_of(await work.echo(dependsOn=parents))
    assert again["state"] == "done"


async def test_a_child_waits_while_its_parent_is_queued_and_while_it_runs(work: Work) -> None:
    await work.block(ONE)
    parent = await work.submit(lane=ONE, fake=HANG, params={"n": 1})
    answer = await work.post(params={"n": 2}, dependsOn=[parent])
    child = answer.json["taskId"]
    assert (answer.status, answer.json["state"]) == (202, "waiting_dependency")
    waiting = await work.api.show(child)
    assert (waiting["state"], waiting["gate"]) == ("waiting_dependency", "dependency")
    assert waiting["dependsOn"] == [parent]
    work.instance.release()
    await work.instance.until(lambda: work.numbers() == [1])
    assert await work.states(child) == ["waiting_dependency"]
    work.instance.release()
    tasks = await work.api.ended(parent, child)
    assert [task["state"] for task in tasks] == ["done", "done"]
    assert tasks[1]["startedAt"] >= tasks[0]["completedAt"]
    assert work.numbers() == [1, 2]


async def test_all_parents_have_to_be_done(work: Work) -> None:
    done = await ended_as(work, "done")
    first, second = [await work.submit(fake=HANG) for _ in range(2)]
    child = await work.submit(dependsOn=[done, first, second])
    entries = await work.arrived(3)
    work.instance.release()
    await work.api.ended(first, second, child)
    assert max(entry.finished or 0 for entry in entries) < work.actions()[3].arrived
    half = await work.echo(dependsOn=[done, await work.submit(lane=HELD)])
    assert await work.states(half) == ["waiting_dependency"]


async def test_of_a_chain_only_the_one_behind_a_done_one_may_run(work: Work) -> None:
    a = await ended_as(work, "done")
    b = await work.submit(dependsOn=[a], lane=HELD)
    c = await work.submit(dependsOn=[b])
    assert await work.states(a, b, c) == ["done", "queued", "waiting_dependency"]


async def test_the_same_parent_twice_counts_once(work: Work) -> None:
    one, two = [await work.submit(fake=HANG) for _ in range(2)]
    child = await work.echo(dependsOn=[one, two, one, one])
    assert (await work.api.show(child))["dependsOn"] == [one, two]
    await work.arrived(2)
    work.instance.release()
    assert (await work.api.end_of(child))["state"] == "done"


async def test_a_chain_runs_in_its_order(work: Work) -> None:
    await work.block(ONE)
    ids = [await work.submit(lane=ONE, params={"n": 0})]
    for n in range(1, 10):
        ids.append(await work.submit(params={"n": n}, dependsOn=[ids[-1]], priority=-n))
    work.instance.release()
    assert {task["state"] for task in await work.api.ended(*ids)} == {"done"}
    assert work.numbers() == list(range(10))


async def test_the_bottom_of_a_diamond_runs_once_after_both_sides(work: Work) -> None:
    top = await work.submit(fake=HANG, params={"n": 0})
    sides = [await work.submit(dependsOn=[top], params={"n": 1}) for _ in range(2)]
    bottom = await work.submit(dependsOn=sides, params={"n": 2})
    await work.arrived(1)
    work.instance.release()
    assert (await work.api.end_of(bottom))["state"] == "done"
    assert work.numbers() == [0, 1, 1, 2]


async def test_two_children_may_run_side_by_side(work: Work) -> None:
    parent = await work.submit(lane=TWO, fake=HANG)
    for _ in range(2):
        await work.submit(lane=TWO, dependsOn=[parent], fake=HANG)
    await work.arrived(1)
    work.instance.release()
    await work.arrived(3)
    assert work.most_at_once() == 2


async def test_a_fan_out_of_two_hundred_comes_together_again(work: Work) -> None:
    parent = await work.submit(fake=HANG)
    middle: list[str] = []
    for part in range(2):
        items = [
            work.echo_item(dependsOn=[parent], params={"n": part * 100 + n}) for n in range(100)
        ]
        middle += (await work.batch(*items)).ids
    assert set(await work.states(*middle)) == {"waiting_dependency"}
    last = await work.submit(dependsOn=middle, params={"last": True})
    await work.arrived(1)
    work.instance.release()
    assert (await work.api.end_of(last))["state"] == "done"
    assert set(await work.states(*middle)) == {"done"}
    first, second = work.actions()
    assert "inputs" not in first.body
    assert [one["taskId"] for one in second.body["inputs"]] == middle
    assert [one["result"]["n"] for one in second.body["inputs"]] == list(range(200))


# --- what a child is told -----------------------------------------------------------------------


async def test_a_child_gets_the_results_of_its_parents_in_the_order_it_names_them(
    work: Work,
) -> None:
    numbers = await work.echo(params={"numbers": [1, 2.5, None]})
    text = await work.submit(fake={"status": 200, "body": "grüße"})
    await work.api.ended(numbers, text)
    waiting = await work.submit(fake=HANG, params={"n": 1})
    child = await work.submit(dependsOn=[text, waiting, numbers], params={"mine": True})
    await work.arrived(2)
    work.instance.release()
    await work.api.end_of(child)
    body = work.actions()[-1].body
    parent = await work.api.show(waiting)
    assert body == {
        "kind": "click",
        "mine": True,
        "inputs": [
            {"taskId": text, "state": "done", "result": "grüße"},
            {"taskId": waiting, "state": "done", "result": parent["result"]},
            {"taskId": numbers, "state": "done", "result": {"numbers": [1, 2.5, None]}},
        ],
    }


async def test_only_the_parents_of_a_task_are_its_inputs(work: Work) -> None:
    first = await work.echo(params={"n": 1})
    second = await work.echo(params={"n": 2}, dependsOn=[first])
    assert (await work.run(dependsOn=[second]))["state"] == "done"
    assert [one["taskId"] for one in work.actions()[-1].body["inputs"]] == [second]


# --- rule 2: when one has failed or was cancelled -----------------------------------------------


@pytest.mark.parametrize("state", ["failed", "cancelled", "rejected"])
async def test_a_task_whose_parent_has_ended_badly_is_accepted_and_cancelled(
    work: Work, state: str
) -> None:
    hook = work.hooks.new()
    bad, good = await ended_as(work, state), await ended_as(work, "done")
    answer = await work.post(dependsOn=[good, bad], params={"n": 1}, callbackUrl=hook.url)
    assert (answer.status, answer.json["state"]) == (202, "cancelled")
    task = await work.api.show(answer.json["taskId"])
    assert (task["state"], task["error"]) == ("cancelled", f"dependency {bad} {state}")
    assert "completedAt" in task
    assert not {"startedAt", "result"} & set(task)
    assert await work.types(task["taskId"]) == ["created", "cancelled"]
    assert (await hook.one()).task == task
    assert work.numbers() == []


async def test_the_final_failure_of_a_parent_cancels_those_behind_it(work: Work) -> None:
    hook = work.hooks.new()
    work.fail_next(2)
    await work.block(ONE)
    parent = await work.submit(lane=ONE, retryPolicy={"maxRetries": 1, "backoffMs": 0})
    child = await work.submit(dependsOn=[parent], params={"n": 1}, callbackUrl=hook.url)
    grandchild = await work.echo(dependsOn=[child])
    assert await work.states(child, grandchild) == ["waiting_dependency"] * 2
    work.instance.release()
    assert (await work.api.end_of(parent))["state"] == "failed"
    tasks = await work.api.ended(child, grandchild)
    assert [task["state"] for task in tasks] == ["cancelled", "cancelled"]
    assert tasks[0]["error"] == f"dependency {parent} failed"
    assert tasks[1]["error"] == f"dependency {child} cancelled"
    assert (await hook.one()).event == "task.cancelled"
    assert work.numbers() == []


async def test_a_cancel_goes_down_the_whole_tree_and_no_further(work: Work) -> None:
    root = await work.submit(lane=HELD)
    other = await work.submit(lane=HELD)
    left, right = [await work.echo(dependsOn=[root]) for _ in range(2)]
    bottom = await work.echo(dependsOn=[left, right, other])
    beside = await work.echo(dependsOn=[other])
    deeper = await work.echo(dependsOn=[bottom])
    assert (await work.api.cancel(root)).status == 200
    assert await work.states(left, right, bottom, deeper) == ["cancelled"] * 4
    assert await work.states(other, beside) == ["queued", "waiting_dependency"]
    errors = [(await work.api.show(one))["error"] for one in (left, right)]
    assert errors == [f"dependency {root} cancelled"] * 2
    for one in (left, bottom, deeper):
        assert (await work.types(one)).count("cancelled") == 1


async def test_the_cancel_of_a_running_parent_cancels_its_children(work: Work) -> None:
    parent = await work.submit(lane=ONE, fake=HANG)
    child = await work.submit(dependsOn=[parent], params={"n": 1})
    await work.arrived(1)
    await work.api.cancel(parent)
    assert (await work.api.end_of(child))["error"] == f"dependency {parent} cancelled"
    await work.settled(ONE)
    assert work.numbers() == []


async def test_a_parent_that_expires_cancels_its_children(work: Work) -> None:
    parent = await work.expiring(lane=HELD)
    child = await work.echo(dependsOn=[parent])
    assert (await work.api.end_of(child))["error"] == f"dependency {parent} failed"


async def test_a_waiting_child_has_a_deadline_of_its_own(work: Work) -> None:
    parent = await work.submit(lane=HELD)
    child = await work.expiring(dependsOn=[parent])
    grandchild = await work.echo(dependsOn=[child])
    task = await work.api.end_of(child)
    assert (task["state"], task["error"]) == ("failed", "deadline exceeded while queued")
    assert (await work.api.end_of(grandchild))["error"] == f"dependency {child} failed"
    assert await work.states(parent) == ["queued"]


async def test_a_waiting_child_can_be_cancelled_and_its_parent_goes_on(work: Work) -> None:
    parent = await work.submit(lane=ONE, fake=HANG)
    child = await work.submit(dependsOn=[parent], params={"n": 1})
    grandchild = await work.echo(dependsOn=[child])
    await work.arrived(1)
    assert (await work.api.cancel(child)).status == 200
    assert (await work.api.show(grandchild))["error"] == f"dependency {child} cancelled"
    work.instance.release()
    assert (await work.api.end_of(parent))["state"] == "done"
    assert "error" not in await work.api.show(child)
    await work.settled(ONE)
    assert await work.states(child) == ["cancelled"]
    assert work.numbers() == []


async def test_a_parent_that_will_be_tried_again_keeps_its_children_waiting(work: Work) -> None:
    work.fail_next(1)
    parent = await work.submit(retryPolicy={"maxRetries": 1, "backoffMs": 300})
    child = await work.submit(dependsOn=[parent], params={"n": 1})
    await work.waits_again(parent)
    assert await work.states(child) == ["waiting_dependency"]
    late = await work.post(dependsOn=[parent], params={"n": 2})
    assert late.json["state"] == "waiting_dependency"
    tasks = await work.api.ended(parent, child, late.json["taskId"])
    assert [task["state"] for task in tasks] == ["done"] * 3
    assert [one["outcome"] for one in tasks[0]["attemptLog"]] == ["retrying", "completed"]
    assert sorted(work.numbers()) == [1, 2]


async def test_a_parked_parent_keeps_its_children_waiting_until_it_is_cancelled(
    work: Work,
) -> None:
    parent = await work.park()
    early = await work.echo(dependsOn=[parent])
    grandchild = await work.echo(dependsOn=[early])
    assert await work.states(parent, early, grandchild) == ["parked"] + ["waiting_dependency"] * 2
    assert (await work.api.cancel(parent)).status == 200
    assert (await work.api.show(early))["error"] == f"dependency {parent} cancelled"
    assert await work.states(early, grandchild) == ["cancelled"] * 2


async def test_a_refused_cancel_of_a_done_parent_does_not_touch_its_children(work: Work) -> None:
    done, slow = await ended_as(work, "done"), await work.submit(lane=HELD)
    child = await work.echo(dependsOn=[done, slow])
    assert (await work.api.cancel(done)).status == 409
    assert await work.states(done, child) == ["done", "waiting_dependency"]


# --- rule 3: cycles -----------------------------------------------------------------------------


def cycle_in(answer: Answer) -> list[str]:
    """The keys of the cycle that the message shows, from either end, from the smallest on."""
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    found = re.search(r"#?\w+(?: -> #?\w+)+", answer.error)
    assert found, answer.error
    first, *rest = [key.removeprefix("#") for key in found.group().split(" -> ")]
    assert rest[-1] == first, answer.error
    start = rest.index(min(rest))
    cycle = rest[start:] + rest[:start]
    return min(cycle, cycle[:1] + cycle[:0:-1])


def linked(work: Work, edges: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        work.echo_item(key=key, lane=HELD, dependsOn=[f"#{one}" for one in parents])
        for key, parents in edges.items()
    ]


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": ["a"]}, ["a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b"]),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c"]),
        ({"x": [], "a": ["x", "b"], "b": ["x", "a"], "y": ["a"]}, ["a", "b"]),
    ],
    ids=["itself", "two", "three", "among others"],
)
async def test_a_cycle_in_a_batch_is_refused_and_shown(
    work: Work, edges: dict[str, list[str]], cycle: list[str]
) -> None:
    before = await work.newest()
    answer = await work.batch(*linked(work, edges))
    assert cycle_in(answer) == cycle
    assert (await work.api.get("/tasks", agentId=work.agent)).json["count"] == 0
    assert (await work.page(after=before, agentId=work.agent)).json["events"] == []


@pytest.mark.parametrize(
    "edges",
    [
        {"a": []},
        {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]},
        {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]},
        {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []},
    ],
    ids=["one", "chain", "diamond", "diamond upside down"],
)
async def test_what_is_not_a_cycle_is_accepted(work: Work, edges: dict[str, list[str]]) -> None:
    answer = await work.batch(*linked(work, edges))
    assert (answer.status, answer.json["accepted"]) == (202, len(edges))
    ids = dict(zip(edges, answer.ids, strict=True))
    for key, parents in edges.items():
        task = await work.api.show(ids[key])
        assert task["state"] == ("waiting_dependency" if parents else "queued")
        assert task.get("dependsOn", []) == [ids[one] for one in parents]


# --- rule 4: unknown ids ------------------------------------------------------------------------


async def test_an_unknown_id_is_waited_for(work: Work) -> None:
    done = await ended_as(work, "done")
    task_id = await work.echo(dependsOn=[done, NOBODY])
    task = await work.api.show(task_id)
    assert (task["state"], task["gate"]) == ("waiting_dependency", "dependency")
    await work.settled(ONE)
    assert await work.states(task_id) == ["waiting_dependency"]
    found = await work.api.get("/tasks", agentId=work.agent, state="waiting_dependency")
    assert found.ids == [task_id]
    assert (await work.api.cancel(task_id)).status == 200
    assert await work.states(task_id) == ["cancelled"]


async def test_blocked_urgent_tasks_do_not_stall_the_one_they_wait_for(work: Work) -> None:
    """One slot, strict priority, forty in front of it that cannot run."""
    await work.block(QUEUE)
    low = await work.submit(lane=QUEUE, priority="low", params={"n": 1})
    blocked = [
        await work.submit(lane=QUEUE, priority="critical", dependsOn=[NOBODY]) for _ in range(20)
    ]
    urgent = [
        await work.submit(lane=QUEUE, priority="high", dependsOn=[low], params={"n": 2})
        for _ in range(20)
    ]
    last = await work.submit(lane=QUEUE, priority="low", params={"n": 3})
    work.instance.release()
    tasks = await work.api.ended(low, *urgent, last)
    assert {task["state"] for task in tasks} == {"done"}
    assert work.numbers() == [1] + [2] * 20 + [3]
    assert set(await work.states(*blocked)) == {"waiting_dependency"}


async def test_a_waiting_child_holds_no_slot(work: Work) -> None:
    parent = await work.submit(lane=ONE, fake={"status": 500}, retryPolicy=FOR_EVER)
    child = await work.submit(lane=ONE, dependsOn=[parent])
    await work.waits_again(parent)
    assert (await work.run(lane=ONE))["state"] == "done"
    assert await work.states(child) == ["waiting_dependency"]


# --- the field ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["tsk_1", 5, {"a": 1}, [5], [None], [""], [["tsk_1"]], ["no spaces please"], ["#key"]],
    ids=str,
)
async def test_dependencies_in_another_form_are_refused(work: Work, value: Any) -> None:
    answer = await work.post(lane=HELD, dependsOn=value)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "dependsOn" in answer.error
    assert (await work.api.get("/tasks", agentId=work.agent)).json["count"] == 0


async def test_ten_thousand_parents_are_the_most(work: Work) -> None:
    unknown = [f"tsk_{n:08}" for n in range(10_001)]
    answer = await work.post(dependsOn=unknown[:-1])
    assert (answer.status, answer.json["state"]) == (202, "waiting_dependency")
    assert len((await work.api.show(answer.json["taskId"]))["dependsOn"]) == 10_000
    answer = await work.post(dependsOn=unknown)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "dependsOn" in answer.error


# --- at once ------------------------------------------------------------------------------------


async def test_no_child_is_stranded_when_it_meets_the_end_of_its_parent(work: Work) -> None:
    """Submitted while the parent finishes: the child runs or is cancelled, as the parent ended."""

    async def race(state: str) -> tuple[str, str]:
        fake = {"status": 200} if state == "done" else {"status": 500}
        parent = await work.submit(fake=fake, agentId=work.new_agent())
        child = await work.echo(dependsOn=[parent])
        return state, (await work.api.end_of(child))["state"]

    ends = await asyncio.gather(*(race(state) for state in ["done", "failed"] * 20))
    assert set(ends) == {("done", "done"), ("failed", "cancelled")}
