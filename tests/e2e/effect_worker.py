"""A worker that kills itself in the middle of an effect: before or after it acts, once."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from fairlane import EffectNotDone, Work, Worker

NAME = "charge:42"


def main(url: str, folder: str) -> None:
    worker = Worker(url)
    sink, died = Path(folder) / "sink.log", Path(folder) / "died"

    def die() -> None:
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    async def act(key: str, when: str) -> str:
        if when == "before" and not died.exists():
            die()
        with sink.open("a", encoding="utf-8") as log:
            log.write(f"{key}\n")
        if when == "after" and not died.exists():
            die()
        return "charged"

    async def happened(key: str) -> str:
        if not sink.exists() or key not in sink.read_text("utf-8").splitlines():
            raise EffectNotDone
        return "charged"

    @worker.handler("pay")
    async def pay(work: Work) -> Any:
        check = happened if work.params["checks"] else None
        return await work.effect(NAME, act, work.params["when"], check=check)

    worker.serve(lambda: print("leases", flush=True))  # noqa: T201 - the test waits for it


if __name__ == "__main__":
    main(*sys.argv[1:])
