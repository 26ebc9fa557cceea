"""Task requests: what each field may be, what goes together, and what is stored of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import model, submissions
from fairlane.core.errors import BatchTooLarge, InvalidRequest
from fairlane.core.model import Submission
from fairlane.core.submissions import (
    ACTION_BATCH_MAX,
    BATCH_MAX,
    Item,
    TaskRequest,
    batch_submissions,
    callback_of,
    invalid_task,
    submission,
    task_request,
)
from fairlane.core.types import json_name

ACTION: dict[str, Any] = {"agent": "ada", "action": "click"}


def submitted(**fields: Any) -> Submission:
    return submission(task_request(**fields), task_id="tsk_1")


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_a_plain_request_becomes_a_plain_submission() -> None:
    made = submitted(handler="echo")
    assert made == Submission("tsk_1", "handler", "default", "handler/echo", '{"handler":"echo"}')


def test_every_field_reaches_the_submission() -> None:
    made = submitted(
        handler="echo",
        agent="ada",
        lane="team",
        session="s",
        priority="high",
        deadline="1970-01-01T00:00:01Z",
        run_at="1970-01-01T00:00:02Z",
        callback_url=" https://example.com ",
        depends_on=["tsk_2", "tsk_2", "tsk_3"],
        retry_policy={"maxRetries": 2},
        preemptible=True,
    )
    assert (made.agent, made.lane, made.session, made.priority) == ("ada", "team", "s", -10)
    assert (made.deadline_at, made.run_at, made.delay_ms) == (1000, 2000, None)
    assert made.callback_url == "https://example.com"
    assert made.depends_on == ("tsk_2", "tsk_3")
    assert (made.max_attempts, made.preemptible) == (3, True)
    assert submitted(handler="echo", retry_policy={"backoffMs": 1}).max_attempts is None
    assert submitted(handler="echo", priority=7, delay_ms=5).priority == 7


def test_only_the_work_is_stored_and_nothing_that_is_empty() -> None:
    made = submitted(
        agent="ada",
        action="click",
        tab="t",
        ref="",
        params={},
        metadata={"b": 1, "a": None},
        preemptible=False,
        timeout=9,
        lane="browser",
    )
    assert made.body == '{"action":"click","tabId":"t","metadata":{"b":1,"a":null},"timeoutMs":9}'


def test_what_earlier_versions_stored_is_a_request_still() -> None:
    body = (
        b'{"action":"click","tabId":"t","ref":"e","selector":"#x","params":{"a":1},"metadata":{},'
        b'"dependsOn":["tsk_0"],"retryPolicy":{"maxRetries":1},"timeoutMs":5,"preemptible":true,'
        b'"key":"k"}'
    )
    read = msgspec.json.decode(body, type=TaskRequest)
    read.agent = "ada"
    made = submission(read, task_id="tsk_1")
    assert msgspec.json.decode(made.body) == {
        name: value for name, value in msgspec.json.decode(body).items() if value
    }


def test_actions_on_one_tab_are_a_session_of_their_agent() -> None:
    assert submitted(**ACTION, tab="t1").session == "tab:ada:t1"
    assert submitted(**ACTION, tab="t1", session="own").session == "own"
    assert submitted(**ACTION, tab="").session is None


def test_an_instruction_has_a_kind_of_its_own() -> None:
    made = submitted(instruction="go", llm_config={"model": "m"})
    assert (made.kind, made.capability) == (model.INSTRUCTION, "instruction")
    assert submission(TaskRequest(instruction="go"), task_id="t", agent="bob").agent == "bob"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"handler": "a", "action": "b"}, "give either 'action' or 'handler', not both"),
        ({"handler": "a", "instruction": "b"}, "give either 'handler' or 'instruction'"),
        ({"instruction": "a", "action": "b"}, "give either 'action' or 'instruction'"),
        ({"instruction": " "}, "field 'instruction' must not be empty"),
        ({"action": "click"}, "missing required field 'agentId'"),
        ({"agent": "ada"}, "missing required field 'action'"),
        ({"agent": "ada", "action": ""}, "missing required field 'action'"),
        ({"handler": "a", "tab": "t"}, "'tabId' is for 'action', not for 'handler'"),
        ({"handler": "a", "ref": "t"}, "'ref' is for 'action'"),
        ({"instruction": "a", "selector": "t"}, "'selector' is for 'action'"),
        ({**ACTION, "llm_config": {}}, "'llmConfig' is for 'instruction', not for 'action'"),
        ({"handler": "a", "params": nested(65)}, "field 'params' must not be nested deeper"),
        ({"handler": "a", "metadata": nested(65)}, "field 'metadata' must not be nested deeper"),
        ({"handler": "a", "timeout": 1, "timeout_ms": 2}, "'timeout' is an alias"),
        ({"instruction": "a", "timeout_ms": 600_001}, "field 'timeoutMs' must be from 1 to 600000"),
        ({"handler": "a", "run_at": "1970-01-01T00:00:01Z", "delay_ms": 0}, "give either 'runAt'"),
        ({"handler": "a", "run_at": "soon"}, "invalid runAt format"),
        ({"handler": "a", "deadline": "soon"}, "invalid deadline format"),
        ({"handler": "a", "depends_on": ["#b"]}, "names an item of the same batch"),
        ({"handler": "a", "depends_on": ["tsk_1"]}, "cycle"),
        ({"handler": "a", "callback_url": "x", "webhook_url": "y"}, "'webhookUrl' is an alias"),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        submitted(**fields)
    assert said in raised.value.message
    assert invalid_task(raised.value).message == f"invalid task: {raised.value.message}"


def test_the_same_value_by_both_names_is_one_value() -> None:
    made = submitted(handler="a", timeout=5, timeout_ms=5, callback_url="u", webhook_url="u")
    assert (made.body, made.callback_url) == ('{"handler":"a","timeoutMs":5}', "u")
    assert callback_of(None, " ") is None


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("handler", ["", "a b", "x" * 65]),
        ("lane", ["", "a@b"]),
        ("agent", ["a b", "x" * 129, "a\n"]),
        ("tab", ["a.b", "x" * 129]),
        ("priority", [1_000_001, -1_000_001, "urgent", 1.5, True]),
        ("timeout_ms", [0, 86_400_001]),
        ("delay_ms", [-1, 365 * 86_400_000 + 1]),
        ("depends_on", [["a b"], ["#"], "tsk_1"]),
        ("retry_policy", [{"maxRetries": 1001}, {"jitter": 1.1}, {"backoffMultiplier": 0.9}]),
        ("instruction", ["x" * 100_001]),
        ("ref", ["x" * 4097]),
        ("callback_url", ["x" * 2049]),
        ("key", ["", "#k"]),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_its_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as raised:
            task_request(**{field: value})
        assert raised.value.message.startswith(f"field '{json_name(field)}")


# -------------------------------------------------------------------- batches


def batch(*items: Item, agent: str | None = "ada") -> list[Submission | InvalidRequest]:
    ids = [f"tsk_{number}" for number in range(len(items))]
    return batch_submissions(items, ids=ids, batch="bat_1", agent=agent, callback_url="https://b")


def told(made: Submission | InvalidRequest) -> str:
    assert isinstance(made, InvalidRequest)
    return made.message


def test_items_get_the_agent_and_the_callback_of_their_batch() -> None:
    first, second = batch(
        task_request(handler="a", agent="other"),
        task_request(handler="b", callback_url="https://c"),
    )
    assert isinstance(first, Submission)
    assert isinstance(second, Submission)
    assert (first.agent, first.callback_url, first.batch) == ("ada", "https://b", "bat_1")
    assert second.callback_url == "https://c"


def test_keys_become_ids() -> None:
    made = batch(
        task_request(handler="b", depends_on=["#a", "tsk_old"]), task_request(handler="a", key="a")
    )
    assert isinstance(made[0], Submission)
    assert made[0].depends_on == ("tsk_1", "tsk_old")


def test_what_is_wrong_with_an_item_is_reported_in_its_place() -> None:
    broken = InvalidRequest("it cannot be read")
    made = batch(
        broken,
        task_request(handler="a", key="k"),
        task_request(handler="b", key="k"),
        task_request(handler="c", depends_on=["#unknown"]),
        task_request(handler="d", instruction="e", key="d"),
        task_request(handler="f", depends_on=["#d"], key="f"),
        task_request(handler="g", depends_on=["#f"]),
    )
    assert made[0] is broken
    assert isinstance(made[1], Submission)
    assert "'k' is used twice" in told(made[2])
    assert "no valid item in the batch has the key 'unknown'" in told(made[3])
    assert told(made[4]).startswith("invalid task: give either")
    for number in (5, 6):
        assert "refers to an item that was rejected" in told(made[number])


def test_a_cycle_is_named_by_its_keys() -> None:
    items = [task_request(handler="a", key=a, depends_on=[f"#{b}"]) for a, b in ("ab", "ba")]
    with pytest.raises(InvalidRequest, match="#a"):
        batch(*items)


def test_a_batch_that_is_empty_too_large_or_nobodys_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one task"):
        batch()
    handler, action = task_request(handler="a"), task_request(action="a")
    with pytest.raises(BatchTooLarge):
        batch(*[handler] * (BATCH_MAX + 1))
    with pytest.raises(BatchTooLarge):
        batch(*[action] * (ACTION_BATCH_MAX + 1))
    for items in ([action], [InvalidRequest("it cannot be read")]):
        with pytest.raises(InvalidRequest, match="agentId"):
            batch(*items, agent=None)
    assert isinstance(batch(handler, agent=None)[0], Submission)


def test_needs_are_amounts() -> None:
    request = submissions.task_request(handler="x", needs={"gpt": {"tokens": "many"}})
    with pytest.raises(InvalidRequest, match=r"field 'needs\.gpt\.tokens'"):
        submissions.submission(request, task_id="t")
