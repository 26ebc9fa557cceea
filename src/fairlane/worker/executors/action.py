"""A browser action: `POST {instance}/tabs/{tabId}/action` on the instance that owns the tab.

The rule: the task is marked running immediately before the request is sent, so a task that never
started can be queued again, and a started one never runs twice. Caution: a 404 may refer to a tab
that has moved, or to a ref that no other instance has either. In both cases no action was
performed, so the action goes to another instance if one lists the tab; otherwise a 404 that does
not name the tab is the result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.compat import pinchtab
from fairlane.core.errors import ExecutionFailed
from fairlane.core.json_types import JsonObject
from fairlane.core.secrets import Redactor
from fairlane.worker.executors import exchange, failures
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, HttpSender, Run, Work
from fairlane.worker.executors.tabs import Instance, TabResolver

if TYPE_CHECKING:
    from collections.abc import Sequence

TAB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
NOT_FOUND: Final = 404
RESERVED: Final = frozenset({"kind", "ref", "tabId"})

# Another client uses the tab: a 4xx status, but a later retry may succeed.
_WAIT_CODES: Final = frozenset({"tab_locked", "tab_paused_handoff"})


class ActionExecutor:
    starts_itself = True

    def __init__(self, instances: Sequence[Instance], sender: HttpSender) -> None:
        self._sender = sender
        self._tabs = TabResolver(instances, sender)
        # An instance may echo the token that it was sent.
        self._redactor = Redactor(one.token or "" for one in instances)

    async def execute(self, run: Run) -> object:
        tab_id, body = tab_of(run.work), body_of(run.work)
        headers = headers_of(run.work, tab_id)
        owner = await self._tabs.resolve(tab_id)
        await run.start()
        answer = await self._send(owner, tab_id, headers, body)
        moved_to = await self._new_owner(tab_id, owner, answer)
        if moved_to is not None:
            answer = await self._send(moved_to, tab_id, headers, body)
            if says_tab_is_gone(answer):
                self._tabs.forget(tab_id, moved_to)
        return self._redactor.hide_in(result_of(run.work, answer, self._redactor))

    async def _new_owner(
        self, tab_id: str, owner: Instance, answer: exchange.ExecutorResponse
    ) -> Instance | None:
        """Return the tab's new instance if the response may mean that `owner` no longer has it.

        Raise `ExecutionFailed` if the owner no longer has it and no other instance does.
        """
        if answer.status != NOT_FOUND:
            return None
        if says_tab_is_gone(answer):
            return await self._tabs.resolve_again(tab_id, not_on=owner)
        return await self._tabs.find_elsewhere(tab_id, not_on=owner)

    async def close(self) -> None:
        await self._tabs.close()

    async def _send(
        self, instance: Instance, tab_id: str, headers: dict[str, str], body: bytes
    ) -> exchange.ExecutorResponse:
        with exchange.broken_is_failed(
            "executor", server="instance", url=instance.url, max_bytes=RESPONSE_BYTES_MAX
        ):
            answer = self._sender.stream(
                "POST",
                instance.address(f"/tabs/{tab_id}/action"),
                headers={**headers, **instance.credentials},
                body=body,
                max_bytes=RESPONSE_BYTES_MAX,
                timeout_seconds=None,
            )
            return await exchange.whole(answer)


def tab_of(work: Work) -> str:
    """Return the task's tab. It becomes part of a path, so only an identifier is accepted."""
    tab_id = work.request.get("tabId")
    if not tab_id:
        raise ExecutionFailed("tabId is required for task execution", retryable=False)
    if not isinstance(tab_id, str) or not TAB_ID.fullmatch(tab_id):
        raise ExecutionFailed(
            "tabId is not valid: use 1 to 128 letters, digits, '_' or '-'", retryable=False
        )
    return tab_id


def body_of(work: Work) -> bytes:
    """Return the params at the top level, overridden by the task's own fields.

    `inputs` are the results of its parents; a task without any may have a param of that name.
    """
    params = work.request.get("params") or {}
    if not isinstance(params, dict):
        raise ExecutionFailed("params is not valid: use an object", retryable=False)
    envelope = {
        "kind": work.request.get("action"),
        "ref": work.request.get("ref"),
        "selector": work.request.get("selector"),
        "inputs": work.inputs,
    }
    body = {key: value for key, value in envelope.items() if value}
    body.update({key: params[key] for key in params.keys() - RESERVED - body.keys()})
    return msgspec.json.encode(body)


def headers_of(work: Work, tab_id: str) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        **pinchtab.action_headers(tab_id),
        **exchange.agent_header(work),
        **exchange.context_headers(work),
    }


def result_of(work: Work, answer: exchange.ExecutorResponse, redactor: Redactor) -> Any:
    """Return the result of a response, or raise its failure."""
    if not 200 <= answer.status < 300:
        wait = _fields(answer.body).get("code") in _WAIT_CODES
        text = redactor.hide(answer.body.decode("utf-8", "replace"))
        raise exchange.refused("executor", work, answer, text, wait=wait)
    result = _decoded(answer.body)
    if isinstance(result, dict) and result.get("success") is False:
        raise _unsuccessful(redactor.hide_in(result))
    return result


def says_tab_is_gone(answer: exchange.ExecutorResponse) -> bool:
    """Return whether this instance does not have the tab, rather than the action's ref."""
    if answer.status != NOT_FOUND:
        return False
    fields = _fields(answer.body)
    text = fields.get("error", "") if fields else failures.one_line(answer.body)
    if fields.get("code") == "tab_not_found":
        return True
    return re.match(r'tab( "?[A-Za-z0-9_-]+"?)? not found', str(text), re.IGNORECASE) is not None


def _unsuccessful(result: JsonObject) -> ExecutionFailed:
    """Return the failure that a 2xx response reports in its body; it may forbid a retry."""
    text = exchange.error_text(result.get("error") or "no reason was given")
    return ExecutionFailed(
        f"executor reported failure: {failures.one_line(text)}",
        retryable=result.get("retryable") is not False,
    )


def _fields(body: bytes) -> JsonObject:
    document = _decoded(body)
    return document if isinstance(document, dict) else {}


def _decoded(body: bytes) -> object:
    """Return JSON that every caller can parse, otherwise the text; None without a body."""
    if not body.strip():
        return None
    try:
        return exchange.parsed(body)
    except ValueError:
        return body.decode("utf-8", "replace")
