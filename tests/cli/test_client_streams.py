"""The client's streams: each event once, whatever the connections do; and its newer verbs."""

from __future__ import annotations

import contextlib
import itertools
import json
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.client.sync import Client
from fairlane.core import errors
from tests.cli.test_client import Listener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Server

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
HELLO = b"retry: 1000\n: more follows\n\n"


def _stream(*parts: bytes, hello: bytes = HELLO) -> tuple[bytes, bool]:
    """One connection that gives the parts and then hangs up."""
    return HEAD + hello + b"".join(parts), True


def _event(number: int) -> bytes:
    return b'id: %d\nevent: task.created\ndata: {"id":%d}\n\n' % (number, number)


def _piece(text: str) -> bytes:
    data = json.dumps({"attempt": 1, "text": text}).encode()
    return b"event: output\ndata: %s\n\n" % data


END = b'event: end\ndata: {"state":"done"}\n\n'


@contextlib.contextmanager
def _listening(
    *scripts: tuple[bytes, bool] | None, reconnect_seconds: float = 5
) -> Iterator[tuple[Listener, Client]]:
    listener = Listener(*scripts)
    with Client(listener.url, reconnect_seconds=reconnect_seconds) as client:
        try:
            yield listener, client
        finally:
            listener.close()


def _resumed_after(listener: Listener) -> list[str]:
    """What each connection gave as the last event it had seen; empty for none."""
    found = []
    for request in listener.requests:
        lines = request.decode().split("\r\n")
        named = [line.split(": ")[1] for line in lines if line.startswith("Last-Event-ID")]
        found.append(named[0] if named else "")
    return found


# -------------------------------------------------------------------- events that break off


@pytest.mark.slow
def test_a_stream_that_breaks_off_goes_on_where_it_was() -> None:
    half = b"id: 3\nevent: task.created\ndata: {"
    scripts = [
        _stream(_event(1), _event(2), half),
        None,
        _stream(_event(3)),
        _stream(_event(4)),
    ]
    with _listening(*scripts) as (listener, client):
        with contextlib.closing(client.events(after=0, agent="a", types=["task.created"])) as found:
            events = list(itertools.islice(found, 4))
        assert events == [{"id": number} for number in (1, 2, 3, 4)]
        assert _resumed_after(listener) == ["0", "2", "2", "3"]
        assert listener.requests[0].startswith(b"GET /events?agentId=a&type=task.created HTTP/1.1")


@pytest.mark.slow
def test_nothing_is_missed_before_the_first_event() -> None:
    first = _stream(hello=b"id: 41\n" + HELLO)
    with _listening(first, _stream(_event(42))) as (listener, client):
        with contextlib.closing(client.events()) as found:
            assert next(found) == {"id": 42}
        assert _resumed_after(listener) == ["", "41"]


def test_a_stream_is_connected_when_it_is_handed_out(server: Server, agent: str) -> None:
    with Client(server.url) as client, contextlib.closing(client.events(agent=agent)) as found:
        task_id = client.submit(handler="nobody", agent=agent)["taskId"]
        assert next(found)["taskId"] == task_id


def test_a_stream_that_is_refused_is_reported_at_once(server: Server) -> None:
    with Client(server.url) as client, pytest.raises(errors.InvalidRequest, match="did you mean"):
        client.events(types=["task.complete"])


def test_a_server_of_another_program_does_not_stream() -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: %s\r\n\r\n{}" % kind
               for kind in (b"application/json", b"text/html")]  # fmt: skip
    for answer in answers:
        with _listening((answer, True)) as (_, client), pytest.raises(errors.Unreachable):
            client.events()


@pytest.mark.slow
def test_a_server_that_does_not_come_back_is_given_up() -> None:
    with _listening(_stream(_event(1)), None, None, reconnect_seconds=0.5) as (_, client):
        found = client.events(after=0)
        assert next(found) == {"id": 1}
        with pytest.raises(errors.Unreachable):
            next(found)


def test_a_missing_server_is_reported_at_once() -> None:
    with (
        _listening(None) as (_, client),
        pytest.raises(errors.Unreachable, match="connection closed before"),
    ):
        client.events()


@pytest.mark.slow
def test_events_of_many_tasks_come_once_and_in_order(server: Server, agent: str) -> None:
    with Client(server.url) as client, contextlib.closing(client.events(agent=agent)) as found:
        threads = [
            Thread(target=lambda: [client.submit(handler="echo", agent=agent) for _ in range(10)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        events = list(itertools.islice(found, 120))
        for thread in threads:
            thread.join()
        numbers = [event["id"] for event in events]
        assert numbers == sorted(set(numbers))
        kinds = [event["type"] for event in events]
        assert {kind: kinds.count(kind) for kind in kinds} == {
            "task.created": 40,
            "task.started": 40,
            "task.completed": 40,
        }
        assert list(client.events(follow=False, agent=agent)) == events
        assert list(client.events(follow=False, agent=agent, after=numbers[99])) == events[100:]


# -------------------------------------------------------------------- output


@pytest.mark.slow
def test_output_that_breaks_off_is_not_repeated() -> None:
    pieces = [_piece(text) for text in "abc"]
    scripts = [_stream(*pieces[:2]), _stream(*pieces[:1]), _stream(*pieces, END)]
    with _listening(*scripts) as (listener, client):
        texts = [piece["text"] for piece in client.output("t/1", follow=True)]
        assert texts == ["a", "b", "c"]
        assert len(listener.requests) == 3
        assert listener.requests[0].startswith(b"GET /tasks/t%2F1/output HTTP/1.1")


# -------------------------------------------------------------------- verbs


def test_every_field_of_a_task_can_be_given_in_python(server: Server, agent: str) -> None:
    given: dict[str, Any] = {
        "depends_on": ["tsk_later"],
        "retry_policy": {"maxRetries": 1},
        "timeout_ms": 5000,
        "metadata": {"a": 1},
        "llm_config": {"model": "m", "apiKey": "secret"},
        "delay_ms": 1000,
        "preemptible": True,
        "key": "k",
    }
    with Client(server.url) as client:
        task_id = client.submit(instruction="Do", agent=agent, session=None, **given)["taskId"]
        task = client.show(task_id)
    assert (task["instruction"], task["dependsOn"]) == ("Do", ["tsk_later"])
    assert (task["retryPolicy"], task["timeoutMs"]) == ({"maxRetries": 1}, 5000)
    assert (task["metadata"], task["preemptible"], task["key"]) == ({"a": 1}, True, "k")
    assert task["llmConfig"] == {"model": "m", "apiKey": "***"}
    assert "sessionKey" not in task


def test_a_field_that_there_is_not_is_a_mistake_of_the_program(server: Server) -> None:
    with Client(server.url) as client:
        with pytest.raises(TypeError, match=r"'handlr'; did you mean handler\?"):
            client.submit(handlr="echo")  # type: ignore[call-arg]  # that is what is tried here
        with pytest.raises(TypeError, match=r"cancel_many.*'agnt'"):
            client.cancel_many(agnt="a")  # type: ignore[call-arg]  # as above


def test_tasks_are_cancelled_and_tried_again(server: Server, agent: str) -> None:
    with Client(server.url) as client:
        task_id = client.submit(handler="nobody", agent=agent)["taskId"]
        assert client.delete(task_id) == {
            "taskId": task_id,
            "cancelled": True,
            "state": "cancelled",
        }
        assert client.retry(task_id)["state"] == "queued"
        with pytest.raises(errors.Conflict):
            client.reset(task_id)
        looked = client.cancel_many(agent=agent, states=["queued"], dry_run=True)
        assert (looked["matched"], looked["changed"], looked["taskIds"]) == (1, 0, [task_id])
        assert client.cancel_many(agent=agent)["changed"] == 1
        assert client.retry_many(agent=agent, kind="handler", lane="main")["changed"] == 1
        assert client.reset_many(agent=agent, session="s")["matched"] == 0
        assert client.prune(dry_run=True) == {"tasks": 0, "dryRun": True}
        types = [event["type"] for event in client.task_events(task_id)["events"]]
        assert types == ["task.created", *("task.cancelled", "task.requeued") * 2]
        assert client.output(task_id)["text"] == ""
        assert [one["taskId"] for one in client.tasks(agent=agent, kind="handler")["tasks"]] == [
            task_id
        ]
        assert client.tasks(agent=agent, kind="action")["count"] == 0


def test_a_batch_is_looked_at_and_cancelled(server: Server, agent: str) -> None:
    items: list[dict[str, Any]] = [
        {"key": "a", "handler": "nobody"},
        {"handler": "nobody", "dependsOn": ["#a"]},
    ]
    with Client(server.url) as client:
        batch_id = client.submit_batch(items, agent=agent, parallelism=3)["batchId"]
        batch = client.batch(batch_id)
        assert (batch["state"], batch["parallelism"], batch["total"]) == ("running", 3, 2)
        assert [one["batchId"] for one in client.batches(agent=agent, limit=1)["batches"]] == [
            batch_id
        ]
        assert client.cancel_batch(batch_id).to_dict() == {
            "batchId": batch_id,
            "cancelled": 2,
            "state": "cancelled",
        }
        with pytest.raises(errors.Conflict):
            client.cancel_batch(batch_id)
