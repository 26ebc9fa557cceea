"""What a handler prints and logs becomes output of its task.

While an executor captures, `sys.stdout` and `sys.stderr` pass everything on as before, and the text
of a running handler also goes to its run. Log records of a handler go there too; those of Fairlane
itself do not. Output is bounded and redacted like the text of `report_output`.

Caution: threads that a handler starts itself do not know the run unless they get its context, and
other processes write past these streams.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final, TextIO

from fairlane.worker.executors import current

_captured: ContextVar[bool] = ContextVar("fairlane_captured", default=False)
_LOG_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"


def begin() -> None:
    """Capture what the current run prints and logs, in this task and its calls."""
    _captured.set(True)


class Capture:
    """Replaces the streams of the process while at least one executor captures."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._replaced: dict[str, tuple[TextIO, _Stream]] = {}
        self._handler = _LogHandler()

    def start(self) -> None:
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            for name in ("stdout", "stderr"):
                original = getattr(sys, name)
                if original is not None:  # a program without a console has none
                    stream = _Stream(original)
                    self._replaced[name] = (original, stream)
                    setattr(sys, name, stream)
            logging.getLogger().addHandler(self._handler)

    def stop(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for name, (original, stream) in self._replaced.items():
                if getattr(sys, name) is stream:  # otherwise another program replaced it
                    setattr(sys, name, original)
            self._replaced.clear()
            logging.getLogger().removeHandler(self._handler)


class _Stream:
    """A stream that passes everything on, and reports the text of a running handler."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def write(self, text: str) -> int:
        count = self._original.write(text)
        _report(text)
        return count

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __iter__(self) -> Iterator[str]:
        return iter(self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _LogHandler(logging.Handler):
    """Reports the log records of a running handler."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(_LOG_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] == "fairlane" or not _captured.get():
            return
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - a record that cannot be written must not stop a handler
            self.handleError(record)
            return
        # A handler that writes to a replaced stream would show the record twice.
        if not any(isinstance(stream, _Stream) for stream in _streams(record)):
            _report(f"{text}\n")


def _streams(record: logging.LogRecord) -> Iterator[object]:
    """Yield the streams that the record is written to."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        for one in logger.handlers:
            if isinstance(one, logging.StreamHandler) and record.levelno >= one.level:
                yield one.stream
        logger = logger.parent if logger.propagate else None


def _report(text: str) -> None:
    """Add text to the output of the current run, if it is captured."""
    if not text or not _captured.get():
        return
    run, loop = current.running("report")
    if current.is_on(loop):
        run.output(text)
        return
    with contextlib.suppress(RuntimeError):  # the loop has ended, and the run with it
        loop.call_soon_threadsafe(run.output, text)


CAPTURE: Final = Capture()
