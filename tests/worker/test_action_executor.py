from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.errors import ExecutionFailed, LeaseLost
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from fairlane.worker.executors.action import ActionExecutor
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, Executor, Run
from fairlane.worker.executors.exchange import whole
from fairlane.worker.executors.tabs import Instance
from tests.fakes.runs import FakeRun
from tests.fakes.tab_instance import ACTION, TABS, Behaviour, TabInstance
from tests.outbound.receivers import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from fairlane.worker.executors.base import ResponseStream


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender(Guard(["127.0.0.1", "nowhere.invalid"])) as one:
        yield one


@pytest.fixture
async def instance() -> AsyncIterator[TabInstance]:
    async with TabInstance(["t1", "t2"]) as one:
        yield one


@pytest.fixture
async def second() -> AsyncIterator[TabInstance]:
    async with TabInstance(["t3"]) as one:
        yield one


def executor_for(sender: Sender, *instances: TabInstance) -> ActionExecutor:
    return ActionExecutor([Instance(one.url, one.token) for one in instances], sender)


@pytest.fixture
async def executor(sender: Sender, instance: TabInstance) -> AsyncIterator[ActionExecutor]:
    one = executor_for(sender, instance)
    yield one
    await one.close()


@pytest.fixture
async def two(
    sender: Sender, instance: TabInstance, second: TabInstance
) -> AsyncIterator[ActionExecutor]:
    one = executor_for(sender, instance, second)
    yield one
    await one.close()


def click(**more: Any) -> FakeRun:
    return FakeRun(**{"action": "click", "tabId": "t1", **more})


async def failure_of(executor: ActionExecutor, run: FakeRun) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await executor.execute(run)
    return caught.value


async def failure_with(
    executor: ActionExecutor, instance: TabInstance, **how: Any
) -> ExecutionFailed:
    instance.actions = Behaviour(**how)
    return await failure_of(executor, click())


def only_action(instance: TabInstance) -> Any:
    (entry,) = instance.seen(ACTION)
    return entry


# --- the request ---------------------------------------------------------------------------------


async def test_ref_selector_and_params_stand_at_the_top_of_the_body(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(
        FakeRun(action="type", tabId="t1", ref="e5", selector="#in", params={"text": "x", "n": 1})
    )
    body = only_action(instance).body
    assert body == {"kind": "type", "ref": "e5", "selector": "#in", "text": "x", "n": 1}


async def test_params_never_override_the_envelope(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    params = {"kind": "evil", "ref": "evil", "tabId": "evil", "selector": "evil", "text": "x"}
    await executor.execute(click(ref="e5", selector="#ok", params=params))
    assert only_action(instance).body == {
        "kind": "click",
        "ref": "e5",
        "selector": "#ok",
        "text": "x",
    }


async def test_reserved_params_are_dropped_even_when_the_task_has_none(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(params={"kind": "evil", "ref": "evil", "tabId": "evil"}))
    assert only_action(instance).body == {"kind": "click"}


async def test_what_a_task_lacks_is_absent_from_the_body(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(ref=None, selector="", params=None))
    assert only_action(instance).body == {"kind": "click"}


async def test_a_selector_in_params_is_used_when_the_task_has_none(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(params={"selector": "#btn"}))
    assert only_action(instance).body == {"kind": "click", "selector": "#btn"}


async def test_what_earlier_tasks_have_left_is_sent_along(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    left = [{"taskId": "tsk_0", "state": "done", "result": {"title": "ü"}}]
    params = {"inputs": "evil", "text": "x"}
    await executor.execute(click(params=params, inputs=left))
    assert only_action(instance).body == {"kind": "click", "inputs": left, "text": "x"}


async def test_without_earlier_tasks_there_are_no_inputs_but_those_in_params(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(params={"inputs": [1]}))
    assert only_action(instance).body == {"kind": "click", "inputs": [1]}


async def test_the_request_says_who_asks_for_what(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(agent="crawler:7"))
    entry = only_action(instance)
    assert (entry.method, entry.path) == ("POST", "/tabs/t1/action")
    assert entry.headers["content-type"] == "application/json"
    assert entry.headers["x-pinchtab-source"] == "scheduler"
    assert entry.headers["x-pinchtab-tab-id"] == "t1"
    assert entry.headers["x-agent-id"] == "crawler:7"
    assert "authorization" not in entry.headers


async def test_the_token_of_the_instance_is_sent(sender: Sender) -> None:
    async with TabInstance(["t1"], token="s3cret") as guarded:
        await executor_for(sender, guarded).execute(click())
        assert only_action(guarded).headers["authorization"] == "Bearer s3cret"


async def test_without_the_token_the_instance_refuses_for_good(sender: Sender) -> None:
    async with TabInstance(["t1"], token="s3cret") as guarded:
        failure = await failure_of(ActionExecutor([Instance(guarded.url)], sender), click())
    assert failure.message.startswith("executor returned 401: ")
    assert not failure.retryable


async def test_a_base_url_may_end_in_a_slash(sender: Sender, instance: TabInstance) -> None:
    await ActionExecutor([Instance(instance.url + "/")], sender).execute(click())
    assert only_action(instance).path == "/tabs/t1/action"


async def test_a_body_beyond_8_kib_arrives_whole(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    await executor.execute(click(params={"text": "x" * 100_000}))
    assert len(only_action(instance).body["text"]) == 100_000


# --- what never leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [{}, {"tabId": ""}, {"tabId": None}])
async def test_a_task_without_a_tab_fails_before_it_starts(
    executor: ActionExecutor, instance: TabInstance, request_: dict[str, Any]
) -> None:
    run = FakeRun(action="click", **request_)
    failure = await failure_of(executor, run)
    assert failure.message == "tabId is required for task execution"
    assert (failure.retryable, run.starts, instance.requests) == (False, 0, [])


@pytest.mark.parametrize(
    "tab_id",
    ["../t1", "t1/action?x=", "t1?", "t1#", "t 1", "t1\n", "x" * 129, "%2e%2e", "tä", ".", 7],
)
async def test_nothing_but_an_identifier_gets_into_the_path(
    executor: ActionExecutor, instance: TabInstance, tab_id: object
) -> None:
    run = click(tabId=tab_id)
    failure = await failure_of(executor, run)
    assert failure.message.startswith("tabId is not valid")
    assert (failure.retryable, run.starts, instance.requests) == (False, 0, [])


async def test_a_tab_id_of_128_characters_is_fine(sender: Sender) -> None:
    tab_id = "aZ0_-" * 25 + "abc"
    async with TabInstance([tab_id]) as one:
        await executor_for(sender, one).execute(click(tabId=tab_id))
        assert only_action(one).tab == tab_id


@pytest.mark.parametrize("agent", ["a\r\nX-Evil: 1", "ägent"])
async def test_an_agent_that_is_not_a_header_value_fails_before_it_starts(
    executor: ActionExecutor, instance: TabInstance, agent: str
) -> None:
    run = click(agent=agent)
    failure = await failure_of(executor, run)
    assert failure.message == "agentId cannot be sent as a header"
    assert (failure.retryable, run.starts, instance.requests) == (False, 0, [])


async def test_params_that_are_not_an_object_fail(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    failure = await failure_of(executor, click(params=["a"]))
    assert (failure.message, failure.retryable) == ("params is not valid: use an object", False)
    assert instance.requests == []


async def test_without_any_instance_the_failure_says_what_to_do(sender: Sender) -> None:
    run = click()
    failure = await failure_of(ActionExecutor([], sender), run)
    assert "--instance URL" in failure.message
    assert (failure.retryable, run.starts) == (False, 0)


async def test_a_tab_nobody_has_fails_before_it_starts(
    two: ActionExecutor, instance: TabInstance
) -> None:
    run = click(tabId="nowhere")
    failure = await failure_of(two, run)
    assert failure.message == 'could not resolve tab "nowhere": not found on any of 2 instances'
    assert (failure.retryable, run.starts, instance.seen(ACTION)) == (False, 0, [])


# --- starting ------------------------------------------------------------------------------------


async def test_the_task_starts_after_its_tab_is_found_and_before_the_request_leaves(
    two: ActionExecutor, instance: TabInstance
) -> None:
    seen_at_start: list[tuple[int, int]] = []

    def look() -> None:
        seen_at_start.append((len(instance.seen(TABS)), len(instance.seen(ACTION))))

    await two.execute(click(on_start=look))
    assert seen_at_start == [(1, 0)]
    assert len(instance.seen(ACTION)) == 1


async def test_a_lost_lease_sends_nothing(executor: ActionExecutor, instance: TabInstance) -> None:
    with pytest.raises(LeaseLost):
        await executor.execute(click(lost=True))
    assert instance.requests == []


def test_the_executor_and_its_run_keep_the_contract(sender: Sender) -> None:
    executor: Executor = ActionExecutor([], sender)
    run: Run = click()
    assert executor.starts_itself
    assert run.work.request["action"] == "click"


# --- answers that are results --------------------------------------------------------------------


async def test_an_answer_of_200_is_the_result(executor: ActionExecutor) -> None:
    result = await executor.execute(click(ref="e1"))
    received = {"kind": "click", "ref": "e1"}
    assert result == {"success": True, "result": {"click": True, "received": received}}


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (201, [1, 2], [1, 2]),
        (200, "null", None),
        (204, None, None),
        (200, None, None),
        (200, " \n", None),
        (200, "plain text", "plain text"),
        (200, "NaN", "NaN"),
        (200, b'"\xff"', '"\ufffd"'),
        (200, "[" * 50_000, "[" * 50_000),
        (200, {"success": None}, {"success": None}),
        (200, {"success": 0}, {"success": 0}),
    ],
)
async def test_a_2xx_body_is_json_or_text_or_nothing(
    executor: ActionExecutor, instance: TabInstance, status: int, body: Any, result: Any
) -> None:
    instance.actions = Behaviour(status=status, body=body)
    assert await executor.execute(click()) == result


# --- answers that are failures -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message", "retryable"),
    [
        ({"success": False, "error": "no such\nbutton"}, "no such button", True),
        ({"success": False, "error": "no", "retryable": False}, "no", False),
        ({"success": False, "error": {"why": 1}}, '{"why":1}', True),
        ({"success": False}, "no reason was given", True),
    ],
)
async def test_success_false_is_a_failure_also_under_200(
    executor: ActionExecutor,
    instance: TabInstance,
    body: dict[str, Any],
    message: str,
    retryable: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    failure = await failure_with(executor, instance, status=200, body=body)
    assert failure.message == f"executor reported failure: {message}"
    assert failure.retryable is retryable


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_failure_and_never_followed(
    executor: ActionExecutor, instance: TabInstance, second: TabInstance, status: int
) -> None:
    location = {"Location": f"{second.url}/tabs/t3/action"}
    failure = await failure_with(executor, instance, status=status, headers=location)
    assert failure.message == f"executor returned {status}: redirects are not followed"
    assert (failure.retryable, second.requests) == (False, [])


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504])
async def test_a_transient_status_may_be_tried_again(
    executor: ActionExecutor, instance: TabInstance, status: int
) -> None:
    failure = await failure_with(executor, instance, status=status, body="later")
    assert (failure.message, failure.retryable) == (f"executor returned {status}: later", True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 413, 422, 423])
async def test_any_other_4xx_is_final(
    executor: ActionExecutor, instance: TabInstance, status: int
) -> None:
    failure = await failure_with(
        executor, instance, status=status, body="no", headers={"Retry-After": "9"}
    )
    assert (failure.message, failure.retryable) == (f"executor returned {status}: no", False)
    assert failure.retry_after_ms is None


@pytest.mark.parametrize(("status", "code"), [(423, "tab_locked"), (409, "tab_paused_handoff")])
async def test_a_tab_that_is_busy_with_somebody_else_may_be_tried_again(
    executor: ActionExecutor, instance: TabInstance, status: int, code: str
) -> None:
    body = {"code": code, "error": "not now"}
    failure = await failure_with(executor, instance, status=status, body=body)
    assert failure.retryable


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"Retry-After": "7"}, 7_000),
        ({"retry-after": "0"}, 0),
        ({"Retry-After": "999999999"}, 86_400_000),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": f"Sun, 08 Mar {'9' * 20} 12:00:00 GMT"}, None),
        ({}, None),
        (
            {
                "Date": "Sun, 08 Mar 2026 12:00:00 GMT",
                "Retry-After": "Sun, 08 Mar 2026 12:00:30 GMT",
            },
            30_000,
        ),
        (
            {
                "Date": "Sun, 08 Mar 2026 12:00:00 GMT",
                "Retry-After": "Sun, 08 Mar 2026 11:00:00 GMT",
            },
            0,
        ),
        (
            {
                "Date": "Sun, 08 Mar 2026 12:00:00 GMT",
                "Retry-After": "Sun, 08 Mar 2026 12:00:30 -0000",
            },
            None,
        ),
    ],
)
async def test_retry_after_is_honoured(
    executor: ActionExecutor,
    instance: TabInstance,
    status: int,
    headers: dict[str, str],
    wait_ms: int | None,
) -> None:
    failure = await failure_with(executor, instance, status=status, headers=headers)
    assert failure.retry_after_ms == wait_ms


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("x" + "ä" * 5_000, "x" + "ä" * 1_023),
        ("x" * 2_045 + "😀" * 10, "x" * 2_045),
        (b"\xff" * 5_000, "\ufffd" * 682),
    ],
    ids=["two bytes", "four bytes", "not UTF-8"],
)
async def test_a_long_error_is_cut_on_a_character(
    executor: ActionExecutor, instance: TabInstance, body: str | bytes, kept: str
) -> None:
    failure = await failure_with(executor, instance, status=500, body=body)
    assert failure.message == f"executor returned 500: {kept}"


async def test_an_error_is_one_line_without_control_characters(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    body = "a\r\nb\x00c\x1b[31md\u2028e\u202ef\x85g".encode() + b"\xffh"
    failure = await failure_with(executor, instance, status=500, body=body)
    assert failure.message == "executor returned 500: a  b c [31md e f g\ufffdh"


async def test_an_answer_of_8_mib_is_kept(executor: ActionExecutor, instance: TabInstance) -> None:
    instance.actions = Behaviour(status=200, body="x" * RESPONSE_BYTES_MAX)
    assert len(await executor.execute(click())) == RESPONSE_BYTES_MAX


async def test_an_answer_beyond_8_mib_is_a_failure(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    body = "x" * (RESPONSE_BYTES_MAX + 1)
    failure = await failure_with(executor, instance, status=200, body=body)
    assert failure.message == f"executor sent more than {RESPONSE_BYTES_MAX} bytes"
    assert not failure.retryable


# --- a tab that moved ----------------------------------------------------------------------------


async def test_a_tab_that_moved_is_found_again(
    two: ActionExecutor, instance: TabInstance, second: TabInstance
) -> None:
    await two.execute(click())
    instance.move("t1", second)
    run = click()
    result = await two.execute(run)
    assert result["success"] is True
    assert [entry.status for entry in instance.seen(ACTION)] == [200, 404]
    assert [entry.status for entry in second.seen(ACTION)] == [200]
    assert run.starts == 1


async def test_the_new_owner_is_remembered(
    two: ActionExecutor, instance: TabInstance, second: TabInstance
) -> None:
    await two.execute(click())
    instance.move("t1", second)
    await two.execute(click())
    await two.execute(click())
    assert (len(instance.seen(ACTION)), len(second.seen(ACTION))) == (2, 2)


UNCLEAR = [
    {"code": "error", "error": "ref e9 not found - take a /snapshot first"},
    {"code": "error", "error": 'selector "#x" in tab t1 not found'},
    {"code": "error", "error": "404 page not found"},
    {"code": "not_found"},
    "no such page",
    "",
]


@pytest.mark.parametrize("body", UNCLEAR)
async def test_a_404_that_does_not_name_the_tab_stands_when_no_other_instance_has_it(
    two: ActionExecutor, instance: TabInstance, second: TabInstance, body: Any
) -> None:
    await two.execute(click())
    failure = await failure_with(two, instance, status=404, body=body)
    assert failure.message.startswith("executor returned 404: ")
    assert not failure.retryable
    assert second.seen(ACTION) == []
    instance.actions = Behaviour()
    asked = len(instance.seen(TABS))
    await two.execute(click())
    assert len(instance.seen(TABS)) == asked, "the owner is still known"


@pytest.mark.parametrize("body", UNCLEAR)
async def test_a_tab_that_moved_is_found_again_after_any_404(
    two: ActionExecutor, instance: TabInstance, second: TabInstance, body: Any
) -> None:
    await two.execute(click())
    second.tabs.append("t1")
    instance.actions = Behaviour(status=404, body=body)
    run = click()
    assert (await two.execute(run))["success"] is True
    assert run.starts == 1
    await two.execute(click())
    assert (len(instance.seen(ACTION)), len(second.seen(ACTION))) == (2, 2)


async def test_another_instance_that_does_not_answer_leaves_the_404_as_it_is(
    two: ActionExecutor, instance: TabInstance, second: TabInstance
) -> None:
    await two.execute(click())
    second.listing = Behaviour(status=500, body="broken")
    failure = await failure_with(two, instance, status=404, body={"error": "ref e9 not found"})
    assert failure.message.startswith("executor returned 404: ")
    assert not failure.retryable


@pytest.mark.parametrize(
    "body",
    [
        {"code": "error", "error": "tab t1 not found"},
        {"error": 'Tab "t1" not found'},
        {"code": "tab_not_found", "error": "gone"},
        "tab not found",
    ],
)
async def test_every_way_to_say_that_the_tab_is_gone_is_understood(
    two: ActionExecutor, instance: TabInstance, second: TabInstance, body: Any
) -> None:
    await two.execute(click())
    second.tabs.append("t1")
    instance.actions = Behaviour(status=404, body=body)
    await two.execute(click())
    assert len(second.seen(ACTION)) == 1


async def test_a_tab_closed_for_good_fails_and_is_asked_for_once(
    two: ActionExecutor, instance: TabInstance, second: TabInstance
) -> None:
    await two.execute(click())
    instance.tabs.remove("t1")
    failure = await failure_of(two, click())
    assert failure.message == 'could not resolve tab "t1": not found on any of 2 instances'
    assert not failure.retryable
    assert (len(instance.seen(ACTION)), second.seen(ACTION)) == (2, [])


async def test_the_chase_ends_after_one_new_owner(
    two: ActionExecutor, instance: TabInstance, second: TabInstance
) -> None:
    gone = {"error": "tab t1 not found"}
    await two.execute(click())
    second.tabs.append("t1")
    instance.actions = Behaviour(status=404, body=gone)
    second.actions = Behaviour(status=404, body=gone)
    failure = await failure_of(two, click())
    assert failure.message.startswith("executor returned 404: ")
    assert (len(instance.seen(ACTION)), len(second.seen(ACTION))) == (2, 1)
    instance.actions = Behaviour()
    second.tabs.remove("t1")
    await two.execute(click())
    assert (len(instance.seen(ACTION)), len(second.seen(ACTION))) == (3, 1)


async def test_a_single_instance_has_nobody_to_ask_instead(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    failure = await failure_of(executor, click(tabId="nowhere"))
    assert failure.message.startswith("executor returned 404: ")
    assert not failure.retryable
    assert (len(instance.seen(ACTION)), instance.seen(TABS)) == (1, [])


# --- when the exchange breaks --------------------------------------------------------------------


async def transport_failure(executor: ActionExecutor) -> str:
    failure = await failure_of(executor, click())
    assert failure.retryable
    return failure.message


async def test_a_dead_instance_is_a_failure_without_its_address(sender: Sender) -> None:
    async with TabInstance(["t1"]) as one:
        executor = executor_for(sender, one)
    message = await transport_failure(executor)
    assert message == "executor request failed: connection refused"


async def test_a_name_that_does_not_exist_is_a_failure_without_the_name(
    sender: Sender,
) -> None:
    executor = ActionExecutor([Instance("http://nowhere.invalid:9")], sender)
    message = await transport_failure(executor)
    assert message == "executor request failed: the instance's name could not be resolved"


async def test_tls_that_is_none_is_a_failure(sender: Sender, instance: TabInstance) -> None:
    executor = ActionExecutor([Instance(instance.url.replace("http:", "https:"))], sender)
    message = await transport_failure(executor)
    assert message == "executor request failed: no trusted TLS connection"


async def test_a_dropped_connection_is_a_failure(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    instance.actions = Behaviour(drop=True)
    message = await transport_failure(executor)
    assert message == (
        "executor request failed: the connection was closed before a response arrived"
    )


async def test_no_token_gets_into_the_log_when_an_answer_is_no_http(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(b"this is not HTTP\r\n\r\n") as one:
        executor = ActionExecutor([Instance(one.url, "t0ken")], sender)
        assert await transport_failure(executor) == "executor request failed: no connection"
    assert f"no response from instance {one.url}" in caplog.text
    assert "t0ken" not in caplog.text


async def test_an_answer_that_breaks_off_is_a_failure(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    instance.actions = Behaviour(break_off=True)
    assert await transport_failure(executor) == "executor request failed: the response was cut off"


class Failing:
    """A sender whose connections always fail in a way that loopback cannot show."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def stream(self, *_: object, **__: object) -> AbstractAsyncContextManager[ResponseStream]:
        raise self._error


async def test_a_connection_that_cannot_be_opened_in_time_is_a_failure() -> None:
    executor = ActionExecutor([Instance("http://x")], Failing(TimeoutError("to 10.0.0.1:80")))
    assert await transport_failure(executor) == "executor request failed: timed out"


async def test_an_error_without_a_number_names_nothing() -> None:
    error = OSError("Multiple exceptions: [Errno 111] ('127.0.0.1', 9)")
    executor = ActionExecutor([Instance("http://x")], Failing(error))
    assert await transport_failure(executor) == "executor request failed: no connection"


# --- through the guard ---------------------------------------------------------------------------


async def test_an_instance_the_operator_listed_is_reached_through_the_guard(
    instance: TabInstance, second: TabInstance
) -> None:
    async with Sender(Guard(["127.0.0.1"])) as guarded:
        executor = executor_for(guarded, instance, second)
        result = await executor.execute(click(tabId="t3"))
        await executor.close()
    assert result["success"] is True
    assert only_action(second).headers["x-agent-id"] == "agent-a"


@pytest.mark.parametrize("token", [None, "a\r\nX-Evil: 1"])
async def test_what_the_guard_refuses_is_final(instance: TabInstance, token: str | None) -> None:
    allowed = ["127.0.0.1"] if token else []
    async with Sender(Guard(allowed)) as guarded:
        failure = await failure_of(
            ActionExecutor([Instance(instance.url, token)], guarded), click()
        )
    assert failure.message == (
        "executor request failed: the outbound guard does not allow this instance"
    )
    assert (failure.retryable, instance.requests) == (False, [])


# --- time ----------------------------------------------------------------------------------------


async def test_cancelling_ends_the_request_itself(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    instance.actions = Behaviour(hang=True)
    running = asyncio.create_task(executor.execute(click()))
    await instance.until(lambda: len(instance.seen(ACTION)) == 1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await instance.until(lambda: only_action(instance).outcome == "gone")


async def test_actions_do_not_wait_for_each_other(
    executor: ActionExecutor, instance: TabInstance
) -> None:
    instance.actions = Behaviour(hang=True)
    runs = [asyncio.create_task(executor.execute(click(tabId=tab))) for tab in ("t1", "t1", "t2")]
    await instance.until(lambda: instance.max_concurrent == 3)
    instance.release()
    await asyncio.gather(*runs)
    assert instance.max_concurrent_per_tab == {"t1": 2, "t2": 1}


# --- the fake as a program -----------------------------------------------------------------------


@pytest.mark.slow
async def test_the_fake_also_runs_as_a_process(sender: Sender) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.tab_instance", "--tabs", "a,b", "--token", "T"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            url = msgspec.json.decode(await process.stdout.readline())["url"]
        executor = ActionExecutor([Instance(url, "T")], sender)
        params = {"fake": {"status": 503, "body": "busy"}}
        failure = await failure_of(executor, click(tabId="b", params=params))
        assert failure.message == "executor returned 503: busy"
        await executor.execute(click(tabId="a"))
        exchange = sender.stream(
            "GET", f"{url}/__record", headers={}, body=None, max_bytes=10**6, timeout_seconds=5
        )
        answer = await whole(exchange)
        record = msgspec.json.decode(answer.body)
        assert [(one["tab"], one["status"]) for one in record["requests"]] == [
            ("b", 503),
            ("a", 200),
        ]
        assert record["maxConcurrentPerTab"] == {"a": 1, "b": 1}
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    assert process.returncode == 0
