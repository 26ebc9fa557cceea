"""Real processes for the tests of the command line: a server, and `fairlane` as a shell runs it."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import selectors
import signal
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.fakes.signals import heed_signals
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

FAIRLANE = [sys.executable, "-m", "fairlane"]


def environment(**more: str) -> dict[str, str]:
    """What a command may know of the machine the tests run on: nothing that changes its answers."""
    ours = ("FAIRLANE_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_", "TERM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "TERM": "xterm-256color", **more}


@contextlib.contextmanager
def running_server(store: str, folder: Path, *flags: str) -> Iterator[str]:
    """The address of a server of its own process, which drains when the test is over."""
    command = [*FAIRLANE, "serve", "--store", store, "--port", "0", "--drain-seconds", "0", *flags]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment()
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert "listening on" in ready, ready
        yield ready.rsplit(" ", 1)[1].strip()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_SECONDS)
        process.stdout.close()
    assert code == 0


def run_process(
    *arguments: str, folder: Path, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*FAIRLANE, *arguments],
        input=stdin,
        capture_output=True,
        timeout=WAIT_SECONDS,
        cwd=folder,
        env=environment(**variables),
        check=False,
    )


@dataclass
class Terminal:
    """What a person at a terminal sees, and how the command ended."""

    text: str = ""
    code: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _keys: int = -1

    def type(self, text: str) -> None:
        os.write(self._keys, text.encode())

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)


def run_on_terminal(
    *arguments: str,
    folder: Path,
    columns: int = 120,
    variables: Mapping[str, str] | None = None,
    on_text: Callable[[Terminal], None] = lambda _: None,
) -> Terminal:
    """Run until the command ends; `on_text` is called whenever there is more to see."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [*FAIRLANE, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment(**(variables or {})),
        start_new_session=True,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
    )
    os.close(theirs)
    terminal = Terminal(_process=process, _keys=ours)
    decoder = codecs.getincrementaldecoder("utf-8")()  # a part may end within a character
    try:
        for part in _read(ours):
            terminal.text += decoder.decode(part)
            on_text(terminal)
        terminal.code = process.wait(WAIT_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return terminal


def _read(descriptor: int) -> Iterator[bytes]:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while selector.select(WAIT_SECONDS):
            try:
                part = os.read(descriptor, 65536)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            yield part
    raise AssertionError("nothing came from the terminal for a long time")
