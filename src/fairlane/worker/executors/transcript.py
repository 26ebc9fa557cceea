"""Interpret an agent's event stream: its text so far, and a result or a failure.

The last event is the result, `[DONE]` is only an end mark. The kind of an event is its `type`, or
otherwise the name of the server-sent event. Text is in `text-delta` (`delta`, `textDelta` or
`text`), `text` and `message` (`text` or `content`). If the last event only starts or continues
something, the stream was interrupted. An event without a kind, or of an unknown kind, may be the
last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fairlane.core.errors import ExecutionFailed
from fairlane.schema.sse import SseEvent
from fairlane.worker.executors import exchange, failures

END_MARK: Final = "[DONE]"
UNFINISHED: Final = "the agent's stream ended before it had finished"
SILENT: Final = "the agent's stream ended without any event"
NO_REASON: Final = "the agent reported an error and gave no reason"

_TEXT: Final = {
    "text-delta": ("delta", "textDelta", "text"),
    "text": ("text", "content"),
    "message": ("text", "content"),
}
_FINISHING: Final = frozenset({"finish", "done", "result", "complete", "completed"})
_ON_THE_WAY: Final = frozenset(
    {"start", "start-step", "step-start", "finish-step", "step-finish", "progress", "ping"}
    | {"text-end", "reasoning", "reasoning-end", "tool-call", "tool-result", "tool-input-error"}
    | {"tool-output-available", "tool-output-error", "message-metadata"}
)
_ON_THE_WAY_ENDINGS: Final = ("-delta", "-start", "-input-available")
_FAILING: Final = frozenset({"error", "abort"})
# Beside these keys, an `error` is all that an event without a type has to say.
_ABOUT_AN_ERROR: Final = frozenset(
    {"error", "message", "code", "status", "statusCode", "details", "retryable", "success"}
)
_ERROR_TEXTS: Final = ("error", "errorText", "message", "text", "reason")

Hide = Callable[[str], str]


class Transcript:
    """Reads events one by one; raises ExecutionFailed at the first that reports an error."""

    def __init__(self, output: Callable[[str], None], hide: Hide) -> None:
        self.any = False  # there has been an event
        self.ended = False  # the end mark has been seen
        self.finished = False  # the end mark, or an event that finishes
        self._last: object = None
        self._unfinished = False  # the last event was cut short or only continues
        self._output = output
        self._hide = hide

    def take(self, event: SseEvent) -> None:
        if event.name == "error" and not self.ended:
            raise self._failure(_document_or_text(event.data))
        for document in _documents(event):
            if self.ended:
                return
            if document is _END:
                self.ended = self.finished = True
            elif document is _CUT:
                self._unfinished = True
            else:
                self._take(document, _kind(document, event.name))

    def result(self) -> object:
        """Return the last event. Raise ExecutionFailed unless it can be the last."""
        if self._unfinished and not self.finished:
            raise ExecutionFailed(UNFINISHED)
        if not self.any:
            raise ExecutionFailed(SILENT)
        if isinstance(self._last, dict) and self._last.get("success") is False:
            raise self._failure(self._last)
        return self._last

    def result_of(self, document: object) -> object:
        """Return a document that came instead of a stream. Raise if it reports a failure."""
        if isinstance(document, dict) and (
            document.get("error") or document.get("success") is False or _kind(document) in _FAILING
        ):
            raise self._failure(document)
        return document

    def hidden(self, text: str) -> str:
        return self._hide(text)

    def _take(self, document: object, kind: str) -> None:
        if kind in _FAILING or _is_error(document):
            raise self._failure(document)
        text = _text(document, kind)
        if text:
            self._output(text)
        self.any = True
        self.finished = self.finished or kind in _FINISHING
        self._unfinished = kind in _ON_THE_WAY or kind.endswith(_ON_THE_WAY_ENDINGS)
        self._last = document

    def _failure(self, document: object) -> ExecutionFailed:
        text, retryable = _reason(document)
        return ExecutionFailed(failures.one_line(self._hide(text)), retryable=retryable)


_END: Final = object()
_CUT: Final = object()


def _documents(event: SseEvent) -> Iterator[object]:
    """Return the documents of an event: one, or one per line, as some agents omit blank lines.

    Unreadable ones are skipped, unless the end of the stream may have cut them.
    """
    try:
        yield _read(event.data)
    except ValueError:
        lines = event.data.split("\n")
        for number, line in enumerate(lines, 1):
            try:
                yield _read(line)
            except ValueError:
                if number == len(lines) and not event.whole:
                    yield _CUT


def _read(text: str) -> object:
    return _END if text.strip() == END_MARK else exchange.parsed(text)


def _document_or_text(text: str) -> object:
    try:
        return exchange.parsed(text)
    except ValueError:
        return text


def _kind(document: object, name: str = "") -> str:
    kind = document.get("type") if isinstance(document, dict) else None
    return kind if isinstance(kind, str) else name


def _text(document: object, kind: str) -> str | None:
    if not isinstance(document, dict):
        return None
    found = (document.get(key) for key in _TEXT.get(kind, ()))
    return next((text for text in found if isinstance(text, str)), None)


def _is_error(document: object) -> bool:
    if not isinstance(document, dict) or not document.get("error"):
        return False
    return document.keys() <= _ABOUT_AN_ERROR


def _reason(document: object) -> tuple[str, bool]:
    """Return the text of an error, however it is wrapped, and whether another attempt may help."""
    retryable = True
    while isinstance(document, dict):
        retryable = retryable and document.get("retryable") is not False
        found = (document.get(key) for key in _ERROR_TEXTS)
        inner = next((one for one in found if one and isinstance(one, str | dict | list)), None)
        if inner is None:
            known = document.keys() - {"type", "success", "retryable"}
            return _error_text({key: document[key] for key in sorted(known)}), retryable
        document = inner
    return _error_text(document), retryable


def _error_text(error: object) -> str:
    return exchange.error_text(error) if error else NO_REASON
