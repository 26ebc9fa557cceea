"""The programs that the tests of this folder start, stop and kill.

The rule: whatever a test does, none of its processes outlives it. What they wrote is printed when
they are put away, and pytest shows that only when the test has failed.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.fakes.signals import heed_signals

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

ROOT = Path(__file__).parents[2]
FAIRLANE = Path(sysconfig.get_path("scripts")) / "fairlane"
START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.005
LOG_CHARACTERS_SHOWN = 6000


class Program:
    """One program, started as often as a test wants; its output goes to one file."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        ready: str,
        folder: Path,
        file_bytes_max: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`ready` matches what it prints when it can be used; group 1 is its address."""
        self.name = name
        self.url = ""
        self.before: Callable[[], None] = heed_signals  # in the new process, first
        self._command = command
        self._ready = re.compile(ready)
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._begins_at = 0
        self._file_bytes_max = file_bytes_max
        self._variables = variables or {}

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin(self) -> None:
        """Start it, and do not wait until it can be used."""
        assert not self.alive, f"{self.name} is running already"
        self._begins_at = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**_environment(), **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
                preexec_fn=self.before,  # noqa: PLW1509 - it takes no lock
            )
        if self._file_bytes_max is not None:
            self.limit_files(self._file_bytes_max)

    async def start(self) -> None:
        self.begin()
        await self.until_ready()

    async def until_ready(self) -> None:
        await until(
            lambda: not self.alive or self._announced(),
            START_SECONDS_MAX,
            lambda: f"{self.name} is not ready: {self.output()}",
        )
        assert self._announced(), f"{self.name} ended before it was ready: {self.output()}"

    def _announced(self) -> bool:
        found = self._ready.search(self.output())
        if found:
            self.url = found[1]
        return found is not None

    def output(self) -> str:
        """What it has written since it was last started."""
        with self._log.open("rb") as log:
            log.seek(self._begins_at)
            return log.read().decode("utf-8", "replace")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def limit_files(self, bytes_max: int | None) -> None:
        """Let it write no file longer than this, as on a disk that is full; None lifts it."""
        soft = resource.RLIM_INFINITY if bytes_max is None else bytes_max
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    def kill(self) -> None:
        """`kill -9`, and wait until the system has cleared it away."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(END_SECONDS_MAX)

    async def end(self, seconds: float = END_SECONDS_MAX) -> int:
        """The exit code of a program that ends by itself, a negative number after a signal."""
        await until(
            lambda: not self.alive, seconds, lambda: f"{self.name} goes on: {self.output()}"
        )
        assert self._process is not None
        return int(self._process.returncode)

    def put_away(self) -> None:
        if self.alive:
            self.kill()
        if self._log.exists():
            written = self._log.read_text("utf-8", "replace")
            show(f"--- {self.name} ({len(written)} characters in all)")
            show(written[-LOG_CHARACTERS_SHOWN:])


class Programs:
    """All programs of one test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._all: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._all:
            program.put_away()

    def server(
        self,
        store: str,
        *flags: str,
        name: str = "fairlane",
        file_bytes_max: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Program:
        command = [str(FAIRLANE), "serve", "--store", store, "--port", "0", *flags]
        ready = r"fairlane is listening on (http://\S+)\n"
        return self.add(name, command, ready, file_bytes_max=file_bytes_max, variables=variables)

    def tab_instance(self, *tabs: str) -> Program:
        command = [sys.executable, "-m", "tests.fakes.tab_instance", "--tabs", ",".join(tabs)]
        return self.add("tab-instance", command, r'\{"url":"([^"]+)"\}\n')

    def chat_agent(self) -> Program:
        command = [sys.executable, "-m", "tests.fakes.chat_agent"]
        return self.add("chat-agent", command, r'\{"url":"([^"]+)"\}\n')

    def external_worker(self, url: str, record: Path, name: str) -> Program:
        module = "tests.e2e.external_worker"
        return self.add(name, [sys.executable, "-m", module, url, str(record), name], r"(leases)\n")

    def add(
        self,
        name: str,
        command: list[str],
        ready: str,
        *,
        file_bytes_max: int | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Program:
        program = Program(
            name,
            command,
            ready=ready,
            folder=self._folder,
            file_bytes_max=file_bytes_max,
            variables=variables,
        )
        self._all.append(program)
        return program


def _environment() -> dict[str, str]:
    """Ours without settings of Fairlane, and with the tests to import."""
    ours = ("FAIRLANE_", "GOCLAW_LANE_", "TASK_QUEUE_")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def show(text: str) -> None:
    """For a person: pytest keeps it to itself unless the test fails, or is run with -s."""
    sys.stdout.write(f"{text}\n")


async def until(
    condition: Callable[[], bool | Awaitable[bool]], seconds: float, complaint: Callable[[], str]
) -> None:
    """Wait for a condition that nobody announces, and not for ever."""
    give_up_at = time.monotonic() + seconds
    while True:
        found = condition()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < give_up_at, complaint()
        await asyncio.sleep(LOOK_SECONDS)
