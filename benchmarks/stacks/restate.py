"""Restate's server from npm, with its Python SDK behind Hypercorn."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stacks import harness
from benchmarks.stacks.harness import Mark, NotMeasured, Server, Stack

PACKAGES = "BENCH_NPM"  # the folder with node_modules


class Restate(Stack):
    name = "restate"
    store = "rocksdb"
    note = "one-way call, a handler of a service"
    share = 0.5

    def version(self) -> str:
        if _program() is None:
            raise NotMeasured("restate-server is not installed: npm ci in requirements/peers-npm")
        words = subprocess.run(
            [str(_program()), "--version"], capture_output=True, text=True, check=True
        )
        sdk = importlib.metadata.version("restate-sdk")
        return f"{words.stdout.split()[1]}, SDK {sdk}"

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        ingress, admin, node, service = (harness.free_port() for _ in range(4))
        environment = {
            **os.environ,
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RUST_LOG": "error",
        }
        command = [str(_program()), "--base-dir", str(folder)]
        quiet = subprocess.DEVNULL
        with harness.started(command, env=environment, stdout=quiet, stderr=quiet) as process:
            for port in (admin, ingress):
                harness.wait_for_port(port, process)
            yield Server(f"{ingress} {admin} {service}", process.pid)

    async def register(self, url: str) -> None:
        _, admin, service = url.split()
        body = {"uri": f"http://127.0.0.1:{service}", "force": True}
        for _ in range(100):
            try:
                harness.post_json(f"http://127.0.0.1:{admin}/deployments", body)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                return
        raise NotMeasured("the deployment could not be registered")

    async def connect(self, url: str) -> Callable[[], Any]:
        import aiohttp

        ingress = url.split(maxsplit=1)[0]
        session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

        async def submit() -> None:
            target = f"http://127.0.0.1:{ingress}/NoOp/run/send"
            async with session.post(target, json={}) as answer:
                answer.raise_for_status()
                await answer.read()

        return submit

    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        import restate
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        from benchmarks.stacks.restate_service import marks, no_op

        marks.append(mark)
        config = Config()
        config.bind = [f"127.0.0.1:{url.split()[2]}"]
        config.loglevel = "ERROR"
        ready()
        await serve(restate.app([no_op]), config)


def _program() -> Path | None:
    file = Path(os.environ.get(PACKAGES, ""), "node_modules", ".bin", "restate-server")
    return file if file.exists() else None


STACK = Restate
