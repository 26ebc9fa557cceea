"""The lines of the guides are run as they stand, against real servers, so that they cannot rot.

A page's blocks of shell run in one shell, in order, and every line has to succeed: a request that
is refused counts as a failure. Blocks of Python that begin with the name of a file are put into
that file. A block behind `<!-- not run: why -->` is left out; it starts what the test has started.
Ports of the pages are replaced by those of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.processes import FAIRLANE, ROOT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

PAGE_SECONDS_MAX = 240
# A stream that is cut off after --max-time has done what the page wanted.
CURL = 'curl() { command curl "$@" || test $? = 28; }\n'
BLOCK = re.compile(
    r"(?P<skip><!-- not run: [^\n]+ -->\n)?^ *```(?P<language>bash|python)\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)
FILE = re.compile(r"# (\w+\.py)\n")


class Page(NamedTuple):
    shell: str
    files: dict[str, str]


def read(name: str) -> Page:
    """What of a page is run."""
    shell, files = [], {}
    for block in BLOCK.finditer((ROOT / name).read_text("utf-8")):
        file = FILE.match(block["text"])
        if block["skip"]:
            continue
        if block["language"] == "bash":
            shell.append(block["text"])
        elif file is not None:
            files[file[1]] = block["text"]
    return Page("\n".join(shell), files)


def ran(page: Page, ports: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """All of it in one shell, which ends with the first line that fails."""
    home = folder / "home"
    home.mkdir()
    (home / ".curlrc").write_text("fail-with-body\nshow-error\n")
    for name, text in page.files.items():
        (home / name).write_text(_with(ports, text))
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FAIRLANE_")},
        "HOME": str(home),
        "CURL_HOME": str(home),
        "PATH": f"{FAIRLANE.parent}{os.pathsep}{os.environ['PATH']}",
        "FAIRLANE_URL": f"http://localhost:{ports['9867']}",
    }
    # To files, not pipes: what it leaves in the background would keep those open. In a session of
    # its own, so that whatever that is can be ended.
    with (
        (folder / "out.txt").open("w+") as out,
        (folder / "err.txt").open("w+") as err,
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-x", "-c", CURL + _with(ports, page.shell)],
            cwd=home,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as shell,
    ):
        try:
            code = shell.wait(PAGE_SECONDS_MAX)
        finally:
            _end(shell.pid)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess("bash", code, out.read(), err.read())


def _with(ports: dict[str, str], text: str) -> str:
    for named, real in ports.items():
        text = text.replace(f"localhost:{named}", f"localhost:{real}")
        text = text.replace(f"--port {named}", f"--port {real}")
    return text


def _end(session: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)


def port_of(url: str) -> str:
    return url.rpartition(":")[2]


async def one_server(programs: Programs, folder: Path) -> dict[str, str]:
    server = programs.server(f"sqlite:///{folder / 'fairlane.db'}", "--drain-seconds", "0")
    await server.start()
    return {"9867": port_of(server.url)}


async def with_a_browser(programs: Programs, folder: Path) -> dict[str, str]:
    instance = programs.tab_instance("8f9c7d4e")
    await instance.start()
    server = programs.server(f"sqlite:///{folder / 'fairlane.db'}", "--instance", instance.url)
    await server.start()
    return {"9867": port_of(server.url)}


async def with_an_agent(programs: Programs, folder: Path) -> dict[str, str]:
    agent = programs.chat_agent()
    await agent.start()
    server = programs.server(f"sqlite:///{folder / 'fairlane.db'}", "--agent", agent.url)
    await server.start()
    return {"9867": port_of(server.url)}


async def no_server(programs: Programs, folder: Path) -> dict[str, str]:
    """The page starts its own, where nobody else listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return {"9867": "1", "9868": str(free.getsockname()[1])}


PAGES: dict[str, Callable[[Programs, Path], Awaitable[dict[str, str]]]] = {
    "README.md": one_server,
    "docs/quickstart.md": one_server,
    "docs/work.md": one_server,
    "docs/cron.md": one_server,
    "docs/sessions.md": one_server,
    "docs/steering.md": one_server,
    "docs/templates.md": one_server,
    "docs/queue.md": one_server,
    "docs/resources.md": one_server,
    "docs/budget.md": one_server,
    "docs/shared-key.md": one_server,
    "docs/workers.md": one_server,
    "docs/troubleshooting.md": one_server,
    "docs/browser-agents.md": with_a_browser,
    "docs/chat-gateway.md": with_an_agent,
    "docs/upkeep.md": no_server,
}


@pytest.mark.parametrize("name", PAGES)
async def test_every_line_of_a_guide_works(name: str, programs: Programs, tmp_path: Path) -> None:
    ports = await PAGES[name](programs, tmp_path)
    page = read(name)
    assert page.shell.count("\n") >= 2
    done = await asyncio.to_thread(ran, page, ports, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


async def test_every_line_of_the_guide_to_many_nodes_works(
    programs: Programs, tmp_path: Path, fresh_postgres: str
) -> None:
    first = programs.server(fresh_postgres, name="first")
    second = programs.server(fresh_postgres, name="second")
    await first.start()
    await second.start()
    ports = {"9867": port_of(first.url), "9868": port_of(second.url)}
    done = await asyncio.to_thread(ran, read("docs/postgresql.md"), ports, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


async def test_a_line_that_is_refused_is_found(programs: Programs, tmp_path: Path) -> None:
    """Or the tests above would find nothing."""
    ports = await one_server(programs, tmp_path)
    page = Page("curl -s http://localhost:9867/tasks/tsk_nobody\necho went on\n", {})
    done = await asyncio.to_thread(ran, page, ports, tmp_path)
    assert done.returncode != 0
    assert "went on" not in done.stdout
