"""Generate TypeScript types from a server's OpenAPI document, compile the example, and run it.

Needs Node.js and npm; the first time, npm fetches the packages that `requirements/typescript` pins.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "build" / "typescript"
PINNED: Final = ROOT / "requirements" / "typescript"
PROGRAM: Final = ROOT / "examples" / "tasks.mts"
READY: Final = "fairlane is listening on "
STRICT: Final = ("--strict", "--target", "es2022", "--module", "nodenext")
SECONDS_MAX: Final = 300


def main() -> None:
    if shutil.which("npm") is None:
        raise SystemExit("npm is missing: install Node.js 20 or newer")
    _install()
    shutil.copy(PROGRAM, FOLDER)
    with _server() as url:
        document = f"{url}/openapi.json"
        _run("openapi-typescript", document, "--default-non-nullable=false", "-o", "fairlane.d.ts")
        _run("tsc", "--noEmit", *STRICT, PROGRAM.name)
        _run("tsc", *STRICT, PROGRAM.name)
        printed = _run("node", f"{PROGRAM.stem}.mjs", FAIRLANE_URL=url)
    if "{ text: 'HELLO' }" not in printed:
        raise SystemExit(f"{PROGRAM.name} printed no result:\n{printed}")
    sys.stdout.write(f"{PROGRAM.name} compiles and runs with the generated types\n")


def _install() -> None:
    """Install the pinned packages, unless they are installed already."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = PINNED / "package-lock.json"
    installed = FOLDER / "package-lock.json"
    is_there = (FOLDER / "node_modules").exists() and installed.exists()
    if is_there and installed.read_bytes() == lock.read_bytes():
        return
    for source in (PINNED / "package.json", lock):
        shutil.copy(source, FOLDER)
    _run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")


@contextmanager
def _server() -> Iterator[str]:
    store = FOLDER / "fairlane.db"
    for old in FOLDER.glob("fairlane.db*"):
        old.unlink()
    command = [Path(sys.executable).parent / "fairlane", "serve", "--port", "0"]
    with subprocess.Popen(  # noqa: S603 - our own command
        [*command, "--store", f"sqlite:///{store}"], stdout=subprocess.PIPE, text=True, cwd=FOLDER
    ) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()
            if not line.startswith(READY):
                raise SystemExit("the server did not start; its log says why")
            yield line.removeprefix(READY).strip()
        finally:
            server.terminate()


def _run(program: str, *arguments: str, **variables: str) -> str:
    """Run a program of the packages, or one of this machine. Exit if it fails."""
    packaged = FOLDER / "node_modules" / ".bin" / program
    command = [str(packaged) if packaged.exists() else program, *arguments]
    done = subprocess.run(  # noqa: S603 - pinned packages, and arguments from here
        command,
        cwd=FOLDER,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}{program} failed with status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    main()
