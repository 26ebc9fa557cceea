"""The client: Fairlane's verbs for programs that are not in the server's process.

An answer is the JSON of the route, as a dict; a refusal is raised as the error of `core.errors`
that has its code. Connections are kept open, and any number of threads may use one client.
The trap: a request whose answer got lost may have been carried out, so only what is safe to repeat
is repeated: reads, and submissions with an idempotency key.
"""

from __future__ import annotations

import http.client
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, Self
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from fairlane import wire
from fairlane.clock import SystemClock
from fairlane.config import DEFAULT_PORT
from fairlane.core import errors, lifecycle
from fairlane.core.errors import FairlaneError, InvalidSettings, Unreachable
from fairlane.version import __version__

DEFAULT_URL: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
TIMEOUT_SECONDS: Final = 30.0
# How long the server is asked to wait at a time; a parked task is noticed when it is over.
WAIT_SLICE_SECONDS: Final = 1.0
# Where a task stays until a person acts.
AT_REST: Final = lifecycle.TERMINAL | {lifecycle.PARKED}

_HEADERS: Final = {"Accept": "application/json", "User-Agent": f"fairlane/{__version__}"}
_BY_CODE: Final[Mapping[str, type[FairlaneError]]] = {
    error.code: error
    for error in (
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
    )
}


class Request(msgspec.Struct, frozen=True):
    """`target` is the path and the query, quoted as they go over the wire."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None
    timeout_seconds: float

    @property
    def repeatable(self) -> bool:
        return self.method == "GET" or "Idempotency-Key" in self.headers


class Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class Transport(Protocol):
    """What carries requests: HTTP, or something that answers them itself."""

    where: str

    def ask(self, request: Request) -> Answer:
        """Raises `Unreachable` when there is no answer."""
        ...

    def close(self) -> None: ...


class Client:
    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        timeout: float = TIMEOUT_SECONDS,
        transport: Transport | None = None,
    ) -> None:
        self._transport = transport or HttpTransport(url)
        self._timeout = timeout
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def submit(
        self,
        *,
        handler: str | None = None,
        action: str | None = None,
        agent: str | None = None,
        params: Mapping[str, Any] | None = None,
        priority: int | str | None = None,
        session: str | None = None,
        lane: str | None = None,
        deadline: str | None = None,
        callback_url: str | None = None,
        tab: str | None = None,
        ref: str | None = None,
        selector: str | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        fields = {
            "agentId": agent,
            "action": action,
            "tabId": tab,
            "ref": ref,
            "selector": selector,
            "handler": handler,
            "params": params,
            "priority": priority,
            "deadline": deadline,
            "callbackUrl": callback_url,
            "lane": lane,
            "sessionKey": session,
        }
        return self.submit_body(_given(fields), idempotency_key=idempotency_key)

    def submit_body(
        self, body: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> dict[str, Any]:
        """Submit a task given as the body of `POST /tasks`, or a batch when it has `tasks`."""
        path = "/tasks/batch" if "tasks" in body else "/tasks"
        return self.call("POST", path, body=body, idempotency_key=idempotency_key)

    def submit_batch(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        agent: str | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """`tasks` are bodies as of `POST /tasks`; each has an outcome of its own in the answer."""
        body = _given({"agentId": agent, "callbackUrl": callback_url, "tasks": list(tasks)})
        return self.submit_body(body, idempotency_key=idempotency_key)

    def tasks(
        self,
        *,
        agent: str | None = None,
        states: Sequence[str] = (),
        lane: str | None = None,
        session: str | None = None,
        batch: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """One page, newest first; `nextCursor` is there when there are more."""
        query = {
            "agentId": agent,
            "state": ",".join(states) or None,
            "lane": lane,
            "sessionKey": session,
            "batchId": batch,
            "limit": limit,
            "cursor": cursor,
        }
        return self.call("GET", "/tasks", query=query)

    def show(self, task_id: str) -> dict[str, Any]:
        return self.call("GET", f"/tasks/{_quoted(task_id)}")

    def wait(self, task_id: str, timeout: float | None = None) -> dict[str, Any]:
        """The task when it has ended or was parked, or as it is when the time is up."""
        end = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            left = WAIT_SLICE_SECONDS
            if end is not None:
                left = min(left, max(0.0, end - self._clock.monotonic()))
            task = self._wait_once(task_id, left)
            over = end is not None and self._clock.monotonic() >= end
            if over or task["state"] in AT_REST:
                return task

    def cancel(self, task_id: str) -> dict[str, Any]:
        return self.call("POST", f"/tasks/{_quoted(task_id)}/cancel")

    def stats(self) -> dict[str, Any]:
        return self.call("GET", "/scheduler/stats")

    def create_template(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """`document` is the body of `POST /templates`."""
        return self.call("POST", "/templates", body=document)

    def templates(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> dict[str, Any]:
        """One page, newest first; `nextCursor` is there when there are more."""
        query = {"name": name, "limit": limit, "cursor": cursor}
        return self.call("GET", "/templates", query=query)

    def template(self, template_id: str) -> dict[str, Any]:
        return self.call("GET", f"/templates/{_quoted(template_id)}")

    def update_template(self, template_id: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Change the fields that `document` names; None clears one."""
        return self.call("PATCH", f"/templates/{_quoted(template_id)}", body=document)

    def delete_template(self, template_id: str) -> dict[str, Any]:
        return self.call("DELETE", f"/templates/{_quoted(template_id)}")

    def use_template(
        self,
        template_id: str,
        params: Mapping[str, Any] | None = None,
        *,
        submit: bool = False,
        overrides: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> dict[str, Any]:
        """The body of the task it makes, or with `submit` what became of the task."""
        body = _given({"params": params, "overrides": overrides, "submit": submit or None})
        path = f"/templates/{_quoted(template_id)}/instantiate"
        return self.call("POST", path, body=body, idempotency_key=idempotency_key)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Any route. Raises the error that the server answered with."""
        query = _given(query or {})
        headers = dict(_HEADERS)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if idempotency_key is not None:
            headers["Idempotency-Key"] = _header(idempotency_key)
        request = Request(
            method,
            path + (f"?{urlencode(query)}" if query else ""),
            headers,
            body=None if body is None else wire.encode(body),
            timeout_seconds=self._timeout if timeout is None else timeout,
        )
        return self._understood(self._transport.ask(request))

    def _wait_once(self, task_id: str, seconds: float) -> dict[str, Any]:
        query = {"timeoutMs": round(seconds * 1000)}
        return self.call(
            "GET", f"/tasks/{_quoted(task_id)}/wait", query=query, timeout=self._timeout + seconds
        )

    def _understood(self, answer: Answer) -> dict[str, Any]:
        try:
            shape = wire.decode(answer.body)
        except (wire.DecodeError, UnicodeDecodeError):
            shape = None
        if not isinstance(shape, dict) or (answer.status >= 400 and "code" not in shape):
            raise Unreachable(
                f"what answers at {self._transport.where} is not a fairlane server "
                f"(its answer had status {answer.status}); give the right address with --url"
            )
        if answer.status >= 400:
            raise _error(shape, answer)
        return shape


class HttpTransport:
    def __init__(self, url: str) -> None:
        self.where, self._host, self._port, self._prefix = _parsed(url)
        self._tls = ssl.create_default_context() if url.startswith("https:") else None
        self._idle: deque[http.client.HTTPConnection] = deque()

    def ask(self, request: Request) -> Answer:
        try:
            connection = self._kept()
            if connection is not None:
                try:
                    return self._exchange(connection, request)
                except ConnectionError:
                    # The server may have closed it at the very moment it was used again.
                    if not request.repeatable:
                        raise
            return self._exchange(self._new(request.timeout_seconds), request)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error, request.timeout_seconds) from None

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _exchange(self, connection: http.client.HTTPConnection, request: Request) -> Answer:
        try:
            if connection.sock is not None:
                connection.sock.settimeout(request.timeout_seconds)
            target, headers = self._prefix + request.target, dict(request.headers)
            connection.request(request.method, target, body=request.body, headers=headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(response.status, found, response.read())
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return answer

    def _kept(self) -> http.client.HTTPConnection | None:
        """A connection from an earlier request that the server has not closed since."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.sock is not None and _is_silent(connection.sock):
                return connection
            connection.close()

    def _new(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_seconds, context=self._tls
        )

    def _lost(self, error: Exception, timeout_seconds: float) -> Unreachable:
        if isinstance(error, ConnectionRefusedError):
            why = "is fairlane serve running? start it with make run, or fairlane serve"
        elif isinstance(error, TimeoutError):
            why = f"it did not answer within {timeout_seconds:g} s"
        elif isinstance(error, ConnectionError | http.client.IncompleteRead):
            why = "it hung up before it had answered; look whether the request was carried out"
        elif isinstance(error, http.client.HTTPException):
            why = "what listens there does not speak HTTP"
        else:
            why = getattr(error, "strerror", None) or str(error)
        return Unreachable(f"cannot reach {self.where}: {why}")


def _is_silent(sock: socket.socket) -> bool:
    """An idle connection that has something to read was closed by the server."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return not selector.select(0)


def _parsed(url: str) -> tuple[str, str, int | None, str]:
    """The address to show (never with a password), host, port and path of a server's URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or "?" in url or "#" in url or not plain:
        shown = url.rpartition("@")[2]
        raise InvalidSettings([f"url must look like {DEFAULT_URL}, not {shown!r}"])
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", host, port, path


def _error(shape: Mapping[str, Any], answer: Answer) -> FairlaneError:
    code, message = str(shape["code"]), str(shape.get("error", ""))
    seconds = answer.headers.get("retry-after", "")
    retry_after_ms = int(seconds) * 1000 if seconds.isascii() and seconds.isdigit() else None
    if code == errors.InvalidPolicy.code:
        return errors.InvalidPolicy([message])
    kind = _BY_CODE.get(code)
    if kind is None:  # an error of the server itself, or of a newer one
        return FairlaneError(message, details={"code": code, "status": answer.status})
    return kind(message, details=shape.get("details"), retry_after_ms=retry_after_ms)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _quoted(task_id: str) -> str:
    return quote(task_id, safe="")


def _header(text: str) -> str:
    """Text that cannot be a header's value is refused here as the server would refuse it."""
    if not (text.isascii() and text.isprintable()):
        raise errors.InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return text
