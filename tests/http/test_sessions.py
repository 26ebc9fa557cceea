"""Sessions: how they stand, how they are tuned, stopped and reset, and that none blocks another.

Facts of specs/goclaw.md section 8: 5, 6, 26, 27, 30-32, 41; weaknesses of section 10: 1, 3, 9,
11-14.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from fairlane.core.events import STARTED
from tests.http.api import eventually
from tests.http.stage import HANG, HELD, ONE, on_sqlite
from tests.http.talk import Talk
from tests.http.work import Work

pytestmark = pytest.mark.asyncio(loop_scope="session")

WINDOW = 60_000
DEFAULTS = {
    "mode": "queue",
    "cap": 10,
    "drop": "old",
    "debounceMs": 800,
    "debounceMaxMs": 5000,
    "maxConcurrent": 1,
}
NOBODY: dict[str, list[str]] = {"stopped": [], "drained": []}


# --- how a session stands -----------------------------------------------------------------------


async def test_a_session_shows_who_runs_who_waits_and_why(work: Work) -> None:
    talk = await Talk(work).unhurried()
    running = await talk.busy()
    waiting = [await talk.say(text) for text in "ab"]
    growing = await talk.say("c", debounceMs=WINDOW)
    urgent = await talk.say("d", priority="high")
    session = await talk.show()
    assert session["sessionKey"] == talk.key
    (run,) = session["running"]
    assert (run["taskId"], run["state"], run["lane"]) == (running, "running", "main")
    assert run["startedAt"]
    lines = [(one["position"], one["taskId"], one.get("gate")) for one in session["waiting"]]
    assert lines == [
        (1, urgent, "session"),
        (2, waiting[0], "session"),
        (3, waiting[1], "session"),
        (4, growing, "debounce"),
    ]
    assert session["debouncing"] == 1
    assert (session["effectiveConcurrency"], session["throttled"]) == (1, False)
    assert session["why"] == "up to 1 at a time, as in its settings"
    assert session["generation"] == 0
    assert session["settings"] == {**DEFAULTS, "debounceMaxMs": 600_000}
    assert not {"usage", "cutoff"} & set(session)


async def test_a_session_that_was_told_nothing_shows_the_settings_of_the_policy(
    work: Work,
) -> None:
    talk = Talk(work)
    await talk.busy()
    assert (await talk.show())["settings"] == DEFAULTS


async def test_a_run_that_waits_for_a_slot_or_its_retry_is_seen(work: Work) -> None:
    talk = Talk(work)
    ready = await talk.say("a", lane=HELD)
    (line,) = (await talk.show())["waiting"]
    assert (line["taskId"], line["position"], line["lane"]) == (ready, 1, HELD)
    assert "gate" not in line
    other = Talk(work)
    work.fail_next(1)
    retry = {"maxRetries": 1, "backoffMs": 60_000}
    task_id = await work.submit(sessionKey=other.key, retryPolicy=retry)
    await work.waits_again(task_id)
    (line,) = (await other.show())["waiting"]
    assert (line["taskId"], line["gate"]) == (task_id, "delay")


async def test_an_unknown_session_is_not_found(work: Work) -> None:
    answer = await work.api.get("/sessions/never-heard-of")
    assert (answer.status, answer.code) == (404, "not_found")


async def test_an_idle_session_disappears(work: Work) -> None:
    talk = Talk(work)
    await talk.echoed(await talk.say("x"))
    await talk.gone()
    keys = [
        one["sessionKey"] for one in (await work.api.get("/sessions", limit=1000)).json["sessions"]
    ]
    assert talk.key not in keys


async def test_sessions_are_listed_by_key_page_by_page(work: Work) -> None:
    talks = [Talk(work, f"list:{work.agent}:{name}") for name in "cab"]
    for talk in talks:
        await talk.busy()
        await talk.say("waits")
    expected = sorted(talk.key for talk in talks)
    found: list[dict[str, Any]] = []
    cursor = expected[0][:-1]
    for _ in range(2):
        answer = await work.api.get("/sessions", limit=2, cursor=cursor)
        assert answer.json["count"] == len(answer.json["sessions"]) <= 2
        found += answer.json["sessions"]
        cursor = answer.json.get("nextCursor", "")
    mine = [one for one in found if one["sessionKey"] in expected]
    assert [one["sessionKey"] for one in mine] == expected
    assert all((one["running"], one["waiting"], one["debouncing"]) == (1, 1, 0) for one in mine)
    everything = (await work.api.get("/sessions")).json
    assert "nextCursor" not in everything
    assert {*expected} <= {one["sessionKey"] for one in everything["sessions"]}


@on_sqlite
@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/sessions?limit=0", "'limit'"),
        ("/sessions?limit=1001", "'limit'"),
        ("/sessions?state=idle", "unknown query parameter 'state'"),
        ("/sessions/x?limit=1", "unknown query parameter 'limit'"),
    ],
)
async def test_what_is_wrong_with_a_query_is_named(work: Work, path: str, named: str) -> None:
    answer = await work.api.get(path)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error


@on_sqlite
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/sessions/x"),
        ("POST", "/sessions"),
        ("GET", "/sessions/x/messages"),
        ("GET", "/sessions/x/stop"),
        ("POST", "/sessions/x/usage"),
    ],
)
async def test_other_methods_are_not_allowed(work: Work, method: str, path: str) -> None:
    answer = await work.api.ask(method, path)
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["Allow"]


# --- settings -----------------------------------------------------------------------------------


async def test_settings_are_kept_and_laid_over_each_other(work: Work) -> None:
    talk = Talk(work)
    await talk.tune(cap=3, mode="collect")
    session = await talk.tune(cap=4, drop="new", debounceMs=0, debounceMaxMs=10, maxConcurrent=2)
    assert session["settings"] == {
        "mode": "collect",
        "cap": 4,
        "drop": "new",
        "debounceMs": 0,
        "debounceMaxMs": 10,
        "maxConcurrent": 2,
    }
    assert (await talk.show())["settings"] == session["settings"]
    assert session["why"] == "up to 2 at a time, as in its settings"
    other = await Talk(work).tune(cap=1)
    assert other["settings"]["mode"] == "queue"


@on_sqlite
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"mode": "fast"}, "'mode'"),
        ({"drop": ""}, "'drop'"),
        ({"cap": 10_001}, "'cap' must be from 0 to 10000"),
        ({"debounceMs": -1}, "'debounceMs'"),
        ({"debounceMaxMs": 600_001}, "'debounceMaxMs'"),
        ({"maxConcurrent": 1001}, "'maxConcurrent'"),
        ({"maxConcurrent": "3"}, "'maxConcurrent'"),
        ({"maxconcurrent": 3}, "did you mean maxConcurrent?"),
    ],
)
async def test_settings_that_are_wrong_change_nothing(
    work: Work, body: dict[str, Any], named: str
) -> None:
    answer = await work.api.ask("PATCH", "/sessions/untuned", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error
    assert (await work.api.get("/sessions/untuned")).status == 404


async def test_null_leaves_a_setting_to_the_policy_again(work: Work) -> None:
    talk = Talk(work)
    default = (await talk.tune(maxConcurrent=3, cap=7))["settings"]["debounceMs"]
    session = await talk.tune(cap=None, debounceMs=9)
    assert (session["settings"]["cap"], session["settings"]["debounceMs"]) == (10, 9)
    assert session["effectiveConcurrency"] == 3
    session = await talk.tune(maxConcurrent=None, debounceMs=None, mode=None)
    assert (session["settings"]["debounceMs"], session["effectiveConcurrency"]) == (default, 1)
    assert (await work.api.get(f"/sessions/{talk.key}")).status == 404, "nothing is left to keep"


async def test_three_at_once_begin_in_order_and_lowering_stops_nobody(work: Work) -> None:
    talk = Talk(work)
    await talk.tune(maxConcurrent=3)
    ids = [await work.submit(fake=HANG, sessionKey=talk.key, params={"n": n}) for n in range(5)]
    await work.arrived(3)
    assert sorted(work.numbers()) == [0, 1, 2]  # on connections of their own
    events = [one for id_ in ids[:3] for one in await work.events(id_)]
    begun = [one["id"] for one in events if one["type"] == STARTED]
    assert len(begun) == 3
    assert begun == sorted(begun)
    session = await talk.tune(maxConcurrent=1)
    assert [one["state"] for one in session["running"]] == ["running"] * 3
    assert [one["taskId"] for one in session["waiting"]] == ids[3:]
    await talk.tune(maxConcurrent=4)
    await work.arrived(4)
    assert work.numbers()[3] == 3


async def test_a_message_may_say_how_many_run_at_once(work: Work) -> None:
    talk = Talk(work)
    first = await talk.busy()
    assert await talk.echoed(await talk.say("x", maxConcurrent=2)) == "x"
    assert (await talk.api.show(first))["state"] == "running"
    assert (await talk.show())["settings"]["maxConcurrent"] == 2


# --- usage --------------------------------------------------------------------------------------


async def test_from_60_percent_on_one_runs_and_below_the_rest_goes_on(work: Work) -> None:
    talk = Talk(work)
    await talk.tune(maxConcurrent=3)
    session = await talk.use(59)
    assert (session["effectiveConcurrency"], session["throttled"]) == (3, False)
    session = await talk.use(60)
    assert (session["effectiveConcurrency"], session["throttled"]) == (1, True)
    assert session["why"] == "one at a time: 60% of the context window is used"
    assert session["usage"] == {"tokens": 60, "contextWindow": 100}
    ids = [await work.submit(fake=HANG, sessionKey=talk.key) for _ in range(3)]
    await work.arrived(1)
    assert await work.states(*ids[1:]) == ["queued", "queued"]
    await talk.use(10)
    await work.arrived(3)
    session = await talk.use(99)
    assert len(session["running"]) == 3, "those that run go on"


async def test_a_result_may_tell_the_usage(work: Work) -> None:
    talk = Talk(work)
    usage = {"tokens": 700, "contextWindow": 1000}
    task_id = await work.echo(sessionKey=talk.key, params={"usage": usage})
    await talk.api.end_of(task_id)
    session = await talk.show()
    assert (session["usage"], session["throttled"]) == (usage, True)


@on_sqlite
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"tokens": -1, "contextWindow": 10}, "'tokens'"),
        ({"tokens": 1, "contextWindow": 0}, "'contextWindow'"),
        ({"tokens": 2**60, "contextWindow": 10}, "'tokens'"),
        ({"tokens": 1.5, "contextWindow": 10}, "'tokens'"),
        ({"tokens": 1}, "missing required field 'contextWindow'"),
        ({"tokens": 1, "contextWindow": 10, "window": 1}, "unknown field 'window'"),
        ([], "JSON object"),
    ],
)
async def test_usage_that_makes_no_sense_is_refused(work: Work, body: Any, named: str) -> None:
    answer = await work.api.ask("PUT", "/sessions/unused/usage", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error


# --- stop, stopall, reset -----------------------------------------------------------------------


async def test_stop_ends_the_oldest_run_and_the_next_one_begins(work: Work) -> None:
    talk = Talk(work)
    await talk.tune(maxConcurrent=2)
    ids = []
    for n in range(3):
        ids.append(await work.submit(fake=HANG, sessionKey=talk.key, params={"n": n}))
        entries = await work.arrived(min(n + 1, 2))
    assert await talk.ask("stop") == {"stopped": [ids[0]], "drained": []}
    task = await talk.api.end_of(ids[0])
    assert (task["state"], task["error"]) == ("cancelled", "stopped: its session was stopped")
    await work.arrived(3)
    assert work.numbers() == [0, 1, 2]
    assert entries[0].outcome == "gone"
    assert (await talk.api.show(ids[1]))["state"] == "running"


async def test_the_response_lists_stopped_and_drained_tasks(work: Work) -> None:
    talk = Talk(work)
    assert await talk.ask("stop") == NOBODY
    assert await talk.ask("stopall") == NOBODY
    await talk.unhurried()
    growing = await talk.say("a", debounceMs=WINDOW)
    assert await talk.ask("stop") == NOBODY, "nothing runs"
    assert await talk.ask("stopall") == {"stopped": [], "drained": [growing]}
    running = await talk.busy()
    waiting = await talk.say("b")
    assert await talk.ask("stopall") == {"stopped": [running], "drained": [waiting]}
    for task in await talk.api.ended(growing, running, waiting):
        assert (task["state"], task["error"].split(":")[0]) == ("cancelled", "stopped")
    assert (await talk.show())["cutoff"]


async def test_after_a_stopall_later_messages_run(work: Work) -> None:
    talk = Talk(work)
    await talk.busy()
    await talk.ask("stopall")
    assert await talk.echoed(await talk.say("later")) == "later"


async def test_reset_counts_a_generation_and_tells_those_that_waited(work: Work) -> None:
    talk = Talk(work)
    running = await talk.busy()
    waiting = await talk.say("a")
    answer = await talk.ask("reset")
    assert answer == {"stopped": [running], "drained": [waiting], "generation": 1}
    for task in await talk.api.ended(running, waiting):
        assert task["error"] == "session_reset: its session was reset"
    assert (await talk.ask("reset"))["generation"] == 2
    assert (await talk.show())["generation"] == 2
    assert await talk.echoed(await talk.say("b")) == "b"


@on_sqlite
@pytest.mark.parametrize("verb", ["stop", "stopall", "reset"])
async def test_only_keys_that_a_task_could_name_can_be_stopped(work: Work, verb: str) -> None:
    answer = await work.api.post(f"/sessions/a%25b/{verb}")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "path parameter 'key'" in answer.error


async def test_a_run_that_waits_for_a_slot_can_be_cancelled_and_stopped(work: Work) -> None:
    await work.block(ONE)
    first, second = Talk(work), Talk(work)
    one = await first.say("a", lane=ONE)
    two = await second.say("b", lane=ONE)
    assert (await work.api.cancel(one)).status == 200
    assert await second.ask("stopall") == {"stopped": [], "drained": [two]}
    assert await work.states(one, two) == ["cancelled", "cancelled"]


# --- none blocks another ------------------------------------------------------------------------


async def test_one_long_run_never_blocks_other_sessions(work: Work) -> None:
    slow = Talk(work)
    await slow.busy()
    stuck = await slow.say("behind it")
    others = [Talk(work) for _ in range(10)]
    said = await asyncio.gather(*(talk.say("quick") for talk in others))
    assert {task["state"] for task in await work.api.ended(*said)} == {"done"}
    assert (await work.api.show(stuck))["state"] == "queued"
    assert (await slow.show())["waiting"][0]["position"] == 1


async def test_a_full_lane_blocks_no_answer(work: Work) -> None:
    """A caller is answered at once, however many tasks wait for the slot."""
    await work.block(ONE)
    talk = Talk(work)
    ids = [await talk.say(str(n), lane=ONE) for n in range(5)]
    assert len((await talk.show())["waiting"]) == 5
    assert await Talk(work).echoed(await Talk(work).say("elsewhere")) == "elsewhere"
    assert (await talk.ask("stopall"))["drained"] == ids


async def test_two_sessions_run_at_the_same_time_and_one_does_not(work: Work) -> None:
    talks = [Talk(work), Talk(work)]
    for talk in talks:
        for _ in range(2):
            await work.submit(fake=HANG, sessionKey=talk.key)
    await work.arrived(2)
    await work.settled()
    assert len(work.actions(work.agent)) == 2


async def test_a_session_is_bound_to_no_lane(work: Work) -> None:
    talk = Talk(work)
    running = await talk.busy(lane="team")
    second = await talk.say("b", lane="main")
    third = await talk.say("c", lane="subagent")
    assert [one["lane"] for one in (await talk.show())["waiting"]] == ["main", "subagent"]
    await talk.api.cancel(running)
    before, after = await talk.api.ended(second, third)
    assert before["completedAt"] <= after["startedAt"]


async def test_the_same_name_of_a_run_twice_is_two_runs(work: Work) -> None:
    """Each has an id of its own, so a stop never reaches the wrong one."""
    talks = [Talk(work), Talk(work)]
    first, second = [await talk.busy() for talk in talks]
    assert await talks[0].ask("stop") == {"stopped": [first], "drained": []}
    assert (await work.api.show(second))["state"] == "running"


async def test_every_way_in_stands_in_the_same_line(work: Work) -> None:
    """A task, a batch and a message of one session wait for each other."""
    talk = Talk(work)
    running = await talk.busy()
    task = await work.echo(sessionKey=talk.key)
    batch = await work.batch(work.echo_item(sessionKey=talk.key))
    message = await talk.say("x")
    ids = [task, *batch.ids, message]
    assert [one["taskId"] for one in (await talk.show())["waiting"]] == ids
    await talk.api.cancel(running)
    tasks = await talk.api.ended(*ids)
    assert [one["state"] for one in tasks] == ["done"] * 3
    assert all(tasks[n]["completedAt"] <= tasks[n + 1]["startedAt"] for n in range(2))


async def test_what_failed_does_not_hold_up_the_session(work: Work) -> None:
    talk = Talk(work)
    broken = await work.echo(
        handler="sleep", params={"ms": "no"}, sessionKey=talk.key, retryPolicy={"maxRetries": 0}
    )
    assert await talk.echoed(await talk.say("next")) == "next"

    async def over() -> bool | None:
        return (await talk.api.show(broken))["state"] in {"failed", "parked"} or None

    await eventually(over)


# --- keys ---------------------------------------------------------------------------------------

KEYS = ("+49 170/123", "!room:example.org", "a/b", "/x/", "two words", "a+b!c")


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_with_slashes_signs_and_spaces_works_on_every_route(
    work: Work, key: str
) -> None:
    path = f"/sessions/{quote(key, safe='')}"
    sent = await work.api.post(
        f"{path}/messages", {"message": "hello", "handler": "nobody", "agentId": work.agent}
    )
    assert sent.status == 202, sent.json
    task = sent.json["taskId"]
    assert (await work.api.get(f"/tasks/{task}")).json["sessionKey"] == key
    assert (await work.api.get(path)).json["sessionKey"] == key
    found = (await work.api.get(f"/tasks?sessionKey={quote(key, safe='')}&state=queued")).json
    assert task in [one["taskId"] for one in found["tasks"]]
    assert (await work.api.ask("PATCH", path, {"cap": 5})).json["settings"]["cap"] == 5
    stopped = await work.api.post(f"{path}/stopall", {})
    assert stopped.status == 200
    named = await work.api.post("/tasks", {"handler": "nobody", "sessionKey": key})
    assert named.status == 202
    assert (await work.api.post(f"{path}/stopall", {})).status == 200


@pytest.mark.parametrize("key", [" a", "a ", "a%", "a\\b", "ä", "x" * 129])
async def test_other_keys_are_refused(work: Work, key: str) -> None:
    body = {"message": "hello", "handler": "nobody"}
    sent = await work.api.post(f"/sessions/{quote(key, safe='')}/messages", body)
    assert (sent.status, sent.json["code"]) == (400, "invalid_request")
    assert "key" in sent.json["error"]


async def test_an_encoded_slash_does_not_split_a_path(work: Work) -> None:
    for path in ("/tasks%2Fcount", "/sessions%2fa", "/ui%2Fapp.css", "/tasks/%ED%B0%AF"):
        assert (await work.api.get(path)).status == 404
