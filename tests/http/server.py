"""One running `fairlane serve`, as an operator would start and stop it.

The rule: it is a process of its own, known only by its address, its exit code and its log. Whoever
stops it learns whether anything in it went wrong unexpectedly: its log must not hold a traceback.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from tests.fakes.signals import heed_signals
from tests.http.api import Api

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
READY = "fairlane is listening on "
COMMAND = Path(sys.executable).parent / "fairlane"
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0" * 4


class Server:
    """`policy` is a document that the server watches; `write_policy` replaces it later."""

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        policy: Mapping[str, Any] | None = None,
        instances: Sequence[str] = (),
        allow_outbound: Sequence[str] = (),
        drain_seconds: float = 5.0,
        port: int = 0,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.url = ""
        self.log_file = folder / "log"
        self.policy_file = folder / "policy.json"
        self._flags = ["--store", store, "--port", str(port), "--drain-seconds", str(drain_seconds)]
        if processes > 1:
            self._flags += ["--processes", str(processes)]
        for url in instances:
            self._flags += ["--instance", url]
        for target in allow_outbound:
            self._flags += ["--allow-outbound", target]
        if policy is not None:
            self.write_policy(policy)
            self._flags += ["--policy", str(self.policy_file)]
        self._environment = {
            **{name: text for name, text in os.environ.items() if not name.startswith("FAIRLANE_")},
            "FAIRLANE_WEBHOOK_SECRET": WEBHOOK_SECRET,
            **(environment or {}),
        }
        self._process: subprocess.Popen[str] | None = None
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        assert self._api is not None
        return self._api

    @property
    def log(self) -> str:
        return self.log_file.read_text("utf-8")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def write_policy(self, document: Mapping[str, Any] | str) -> None:
        """Replace the policy file at once, as a careful operator does."""
        text = document if isinstance(document, str) else msgspec.json.encode(document).decode()
        new = self.policy_file.with_suffix(".new")
        new.write_text(text, "utf-8")
        new.replace(self.policy_file)

    async def start(self) -> Self:
        self._process = self._begin()
        assert self._process.stdout
        async with asyncio.timeout(START_SECONDS_MAX):
            line = await asyncio.to_thread(self._process.stdout.readline)
        assert line.startswith(READY), f"it does not start: {line}{self.log}"
        self.url = line.removeprefix(READY).strip()
        self._api = Api(self.url)
        return self

    def _begin(self) -> subprocess.Popen[str]:
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [COMMAND, "serve", *self._flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.folder,
                env=self._environment,
                preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the end of the process."""
        assert self._process is not None
        code = await asyncio.to_thread(self._process.wait, STOP_SECONDS_MAX)
        if self._process.stdout:
            self._process.stdout.close()
        await self.api.close()
        return code

    async def stop(self) -> None:
        """Stop it as an operator does, and complain about anything unexpected."""
        if self.running:
            self.signal()
            assert await self.exit_code() == 0, self.log
        assert "Traceback" not in self.log, self.log

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process is not None and self._process.stdout:
            self._process.stdout.close()


@asynccontextmanager
async def serving(folder: Path, store: str, **options: Any) -> AsyncIterator[Server]:
    server = Server(folder, store, **options)
    try:
        yield await server.start()
        await server.stop()
    finally:
        server.kill()
        if server._api is not None:
            await server._api.close()
