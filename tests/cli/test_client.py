from __future__ import annotations

import contextlib
import json
import socket
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.client.sync import Client
from fairlane.core import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Server


class Listener:
    """Answers each request with the next script: bytes to send, and whether to hang up then.

    A script that is None hangs up without an answer."""

    def __init__(self, *scripts: tuple[bytes, bool] | None) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.hung_up = Event()
        self._scripts = list(scripts)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while self._scripts:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                self._talk(connection)
            self.hung_up.set()

    def _talk(self, connection: socket.socket) -> None:
        while self._scripts:
            request = _read_request(connection)
            if not request:
                return
            self.requests.append(request)
            script = self._scripts.pop(0)
            if script is None:
                return
            connection.sendall(script[0])
            if script[1]:
                return


def _read_request(connection: socket.socket) -> bytes:
    """The head and as much of the body as has come: the client sends both in one go."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return b""
        received += part
    return received


def _answer(
    shape: Any, status: int = 200, *, hang_up: bool = False, headers: str = ""
) -> tuple[bytes, bool]:
    body = shape if isinstance(shape, bytes) else json.dumps(shape).encode()
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body, hang_up


@contextlib.contextmanager
def _listening(*scripts: tuple[bytes, bool] | None) -> Iterator[tuple[Listener, Client]]:
    listener = Listener(*scripts)
    with Client(listener.url, timeout=5) as client:
        try:
            yield listener, client
        finally:
            client.close()
            listener.close()


# -------------------------------------------------------------------- verbs


def test_a_task_can_be_submitted_and_waited_for(server: Server, agent: str) -> None:
    with Client(server.url) as client:
        accepted = client.submit(handler="echo", agent=agent, params={"n": 1})
        task = client.wait(accepted["taskId"], timeout=15)
        assert (task["state"], task["result"]) == ("done", {"n": 1})
        assert client.show(accepted["taskId"]) == task


def test_a_wait_ends_with_its_time(server: Server, agent: str) -> None:
    with Client(server.url) as client:
        accepted = client.submit(handler="nobody", agent=agent)
        assert client.wait(accepted["taskId"], timeout=0.05)["state"] == "queued"
        assert client.cancel(accepted["taskId"])["status"] == "cancelled"
        assert client.wait(accepted["taskId"])["state"] == "cancelled"


def test_a_wait_ends_when_the_task_is_parked() -> None:
    names = ("taskId", "agentId", "kind", "lane", "createdAt")
    numbers = dict.fromkeys(("priority", "attempts", "maxAttempts", "retryCount"), 1)
    shape = {**dict.fromkeys(names, "t"), **numbers}
    states = [_answer({**shape, "state": state}) for state in ("running", "parked")]
    with _listening(*states) as (listener, client):
        assert client.wait("t")["state"] == "parked"
        assert len(listener.requests) == 2


def test_a_batch_is_listed_and_counted(server: Server, agent: str) -> None:
    with Client(server.url) as client:
        batch = client.submit_batch([{"handler": "nobody"}] * 2, agent=agent)
        page = client.tasks(batch=batch["batchId"], states=["queued"], limit=1)
        assert page["count"] == 1
        rest = client.tasks(batch=batch["batchId"], cursor=page["nextCursor"])
        assert (rest["count"], "nextCursor" in rest) == (1, False)
        assert client.stats()["queue"]["agents"][agent] == {"queued": 2, "inflight": 0}


@pytest.mark.parametrize(
    ("verb", "arguments", "wrong", "right"),
    [
        ("events", (), "tasl", "task"),
        ("submit", (), "handlr", "handler"),
    ],
)
def test_an_argument_that_is_none_is_refused_with_the_nearest(
    verb: str, arguments: tuple[Any, ...], wrong: str, right: str
) -> None:
    with Client() as client:
        expected = rf"^{verb}\(\) got an unexpected keyword argument '{wrong}'.*{right}"
        with pytest.raises(TypeError, match=expected):
            getattr(client, verb)(*arguments, **{wrong: "x"})


def test_many_threads_may_share_a_client(server: Server, agent: str) -> None:
    ids: list[str] = []
    with Client(server.url) as client:

        def submit() -> None:
            answers = [client.submit(handler="nobody", agent=agent) for _ in range(5)]
            ids.extend(answer["taskId"] for answer in answers)

        threads = [Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = client.tasks(agent=agent)["tasks"]
    assert sorted(ids) == sorted(task["taskId"] for task in found)
    assert len(set(ids)) == 20


# -------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "kind",
    [
        errors.InvalidRequest,
        errors.BatchTooLarge,
        errors.PayloadTooLarge,
        errors.NotFound,
        errors.Conflict,
        errors.IdempotencyConflict,
        errors.LeaseLost,
        errors.QueueFull,
        errors.Draining,
        errors.Disabled,
        errors.StoreUnavailable,
        errors.TargetRefused,
        errors.InvalidPolicy,
    ],
)
def test_an_error_comes_back_as_what_it_was(kind: type[errors.FairlaneError]) -> None:
    shape = {"code": kind.code, "error": "no"}
    with _listening(_answer(shape, 400)) as (_, client), pytest.raises(kind, match=r"^no$"):
        client.show("x")


def test_an_error_keeps_its_details_and_when_to_come_back() -> None:
    shape = {"code": "queue_full", "error": "full", "details": {"queued": 3}}
    answer = _answer(shape, 429, headers="Retry-After: 7\r\n")
    with _listening(answer) as (_, client), pytest.raises(errors.QueueFull) as raised:
        client.submit(handler="x")
    assert (raised.value.details, raised.value.retry_after_ms) == ({"queued": 3}, 7000)


def test_an_error_of_a_newer_server_is_reported_all_the_same() -> None:
    answer = _answer({"code": "moon_phase", "error": "not today"}, 418)
    with _listening(answer) as (_, client), pytest.raises(errors.FairlaneError) as raised:
        client.call("GET", "/scheduler/stats")
    assert (raised.value.message, raised.value.details) == (
        "not today",
        {"code": "moon_phase", "status": 418},
    )


@pytest.mark.parametrize(
    "answer",
    [
        _answer(b"<html>It works!</html>"),
        _answer(b"<html>no</html>", 404),
        _answer({"detail": "Not Found"}, 404),
        _answer([1, 2]),
        _answer(b"\xff\xfe"),
    ],
)
def test_a_server_of_another_program_is_recognised(answer: tuple[bytes, bool]) -> None:
    with _listening(answer) as (listener, client), pytest.raises(errors.Unreachable) as raised:
        client.call("GET", "/scheduler/stats")
    assert f"the server at {listener.url} is not Fairlane" in raised.value.message


def test_what_does_not_speak_http_is_recognised() -> None:
    other = _listening((b"220 mail.example ESMTP\r\n", True))
    with other as (_, client), pytest.raises(errors.Unreachable, match="does not speak HTTP"):
        client.call("GET", "/scheduler/stats")


def test_a_server_that_is_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        complaint = pytest.raises(errors.Unreachable, match=r"no response within 0\.05 s")
        with Client(url, timeout=0.05) as client, complaint:
            client.call("GET", "/scheduler/stats")


def test_a_half_answer_is_no_answer() -> None:
    half = b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"a":'
    complaint = pytest.raises(
        errors.Unreachable, match="connection closed before a response arrived"
    )
    with _listening((half, True)) as (_, client), complaint:
        client.call("GET", "/scheduler/stats")


# -------------------------------------------------------------------- connections


def test_a_connection_is_used_again() -> None:
    with _listening(_answer({}), _answer({}), _answer({})) as (listener, client):
        for _ in range(3):
            client.call("GET", "/scheduler/stats")
        assert listener.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with _listening(_answer({}, hang_up=True), _answer({})) as (listener, client):
        client.call("GET", "/scheduler/stats")
        assert listener.hung_up.wait(5)
        client.call("POST", "/tasks/x/cancel")
        assert listener.connections == 2


def test_a_read_is_repeated_when_the_server_closes_an_old_connection() -> None:
    with _listening(_answer({}), None, _answer({"n": 2})) as (listener, client):
        client.call("GET", "/scheduler/stats")
        assert client.call("GET", "/scheduler/stats") == {"n": 2}
        assert listener.connections == 2


def test_a_submission_is_not_repeated_unless_it_has_a_key() -> None:
    with _listening(_answer({}), None, _answer({})) as (listener, client):
        client.call("GET", "/scheduler/stats")
        with pytest.raises(errors.Unreachable, match="check whether the request took effect"):
            client.submit(handler="x")
        assert len(listener.requests) == 2


def test_a_submission_with_a_key_is_repeated() -> None:
    accepted = {"taskId": "t", "state": "queued", "position": 1, "createdAt": "now"}
    with _listening(_answer({}), None, _answer(accepted)) as (listener, client):
        client.call("GET", "/scheduler/stats")
        assert client.submit(handler="x", idempotency_key="k").to_dict() == accepted
        assert [request.count(b"Idempotency-Key: k") for request in listener.requests] == [0, 1, 1]


def test_a_server_may_stand_under_a_path() -> None:
    with _listening(_answer({})) as (listener, _):
        cannot_read = pytest.raises(errors.Unreachable, match="cannot read")
        with Client(listener.url + "/fairlane/") as client, cannot_read:
            client.show("a/b")
        assert listener.requests[0].startswith(b"GET /fairlane/tasks/a%2Fb HTTP/1.1\r\n")


# -------------------------------------------------------------------- forms of an answer


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"n"\r\n4\r\n: 2}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"n": 2}',
        b'HTTP/1.0 200 OK\r\n\r\n{"n": 2}',
        b'HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"n": 2}',
    ],
    ids=["in chunks", "until the end", "of an old server", "after another one"],
)
def test_an_answer_is_understood_in_any_form(answer: bytes) -> None:
    with _listening((answer, True)) as (_, client):
        assert client.call("GET", "/scheduler/stats") == {"n": 2}


def test_a_connection_that_will_be_closed_is_not_used_again() -> None:
    last = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    with _listening((last, True), _answer({})) as (listener, client):
        client.call("GET", "/scheduler/stats")
        client.call("POST", "/tasks/x/cancel")
        assert listener.connections == 2


@pytest.mark.parametrize("length", [b"Content-Length: 20", b"Transfer-Encoding: chunked"])
def test_an_answer_that_breaks_off_is_no_answer(length: bytes) -> None:
    broken = b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n"
    complaint = pytest.raises(
        errors.Unreachable, match="connection closed before a response arrived"
    )
    with _listening((broken, True)) as (_, client), complaint:
        client.call("GET", "/scheduler/stats")


def test_headers_without_an_end_are_not_read_for_ever() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: x\r\n" * 20_000
    complaint = pytest.raises(errors.Unreachable, match="does not speak HTTP")
    with _listening((endless, True)) as (_, client), complaint:
        client.call("GET", "/scheduler/stats")
