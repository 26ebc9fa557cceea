"""NATS JetStream with a file store that is synchronised with the disk on every write.

It keeps messages and schedules nothing: no priorities, no fairness, no retries with a back-off.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stacks import harness
from benchmarks.stacks.harness import Mark, NotMeasured, Server, Stack

_CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}"{sync} }}
"""
_ALWAYS = ", sync_interval: always"  # from version 2.10 on


class NatsJetstream(Stack):
    name = "nats jetstream"
    store = "file"

    def version(self) -> str:
        program = shutil.which("nats-server")
        if program is None:
            raise NotMeasured("nats-server is not installed: apt-get install nats-server")
        importlib.metadata.version("nats-py")
        words = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
        return words.stdout.split()[-1].lstrip("v")

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        port, file = harness.free_port(), folder / "nats.conf"
        for sync in (_ALWAYS, ""):
            file.write_text(_CONFIG.format(port=port, folder=folder, sync=sync))
            check = ["nats-server", "-t", "-c", str(file)]
            if subprocess.run(check, capture_output=True, check=False).returncode == 0:
                break
        type(self).durable = bool(sync)
        type(self).note = "explicit acknowledgement" + (
            "" if sync else "; this version cannot synchronise every write: sync every 2 minutes"
        )
        command = ["nats-server", "-c", str(file)]
        with harness.started(command, stderr=subprocess.DEVNULL) as process:
            harness.wait_for_port(port, process)
            yield Server(f"nats://127.0.0.1:{port}", process.pid)

    async def connect(self, url: str) -> Callable[[], Any]:
        import nats

        connection = await nats.connect(url)
        stream = connection.jetstream()

        async def submit() -> None:
            await stream.publish("work.no_op", b"{}")

        return submit

    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        import nats
        from nats.js.api import RetentionPolicy, StorageType

        connection = await nats.connect(url)
        stream = connection.jetstream()
        await stream.add_stream(
            name="work",
            subjects=["work.*"],
            storage=StorageType.FILE,
            retention=RetentionPolicy.WORK_QUEUE,
        )
        pulled = await stream.pull_subscribe("work.*", durable="worker")
        ready()
        while True:
            try:
                messages = await pulled.fetch(100, timeout=5)
            except TimeoutError:
                continue
            for message in messages:
                mark()
                await message.ack()


STACK = NatsJetstream
