"""Starting: a wrong set-up is reported in one line and leaves a running server alone."""

from __future__ import annotations

import os
import socket
import sqlite3
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.e2e import checks
from tests.e2e.asking import Asker
from tests.e2e.processes import Program, Programs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow


async def complaint(server: Program) -> str:
    """The one line that a server says when it cannot start."""
    server.begin()
    assert await server.end() > 0
    (line,) = server.output().splitlines()
    return line


# -------------------------------------------------------------------- one server per file


@pytest.mark.parametrize("spelling", ["the same", "a link"])
async def test_a_second_server_on_one_file_is_refused_and_the_first_goes_on(
    programs: Programs, tmp_path: Path, spelling: str
) -> None:
    file, link = tmp_path / "fairlane.db", tmp_path / "link.db"
    link.symlink_to(file)
    tabs = programs.tab_instance("tab")
    await tabs.start()
    first = programs.server(f"sqlite:///{file}", "--instance", tabs.url, name="first")
    await first.start()
    async with Asker(first) as asker:
        hanging = {"fake": {"hang": True}}
        task = await asker.submit(action="click", tabId="tab", params=hanging)
        await asker.until_tasks([task], state="running")
        other = file if spelling == "the same" else link
        line = await complaint(programs.server(f"sqlite:///{other}", name="second"))
        assert "is in use by another fairlane" in line
        assert f"process {first.pid}" in line
        assert (await asker.task(task))["state"] == "running"
        async with aiohttp.ClientSession() as session:
            await session.post(f"{tabs.url}/__release")
        await asker.until_tasks([task], state="done", attempts=1)
        await asker.until_tasks([await asker.sleep(1)], state="done")


async def test_a_file_is_free_again_after_a_kill(programs: Programs, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    first = programs.server(store, name="first")
    await first.start()
    first.kill()
    second = programs.server(store, name="second")
    await second.start()
    async with Asker(second) as asker:
        await asker.until_tasks([await asker.sleep(1)], state="done")
    assert second.alive


# -------------------------------------------------------------------- stores that cannot be used


def in_a_file(folder: Path) -> Path:
    (folder / "file").write_text("not a folder")
    return folder / "file" / "fairlane.db"


def a_folder(folder: Path) -> Path:
    (folder / "folder").mkdir()
    return folder / "folder"


def text(folder: Path) -> Path:
    (folder / "fairlane.db").write_text("dear diary, " * 1000)
    return folder / "fairlane.db"


def of_somebody_else(folder: Path) -> Path:
    connection = sqlite3.connect(folder / "music.db")
    connection.execute("CREATE TABLE song (name TEXT)")
    connection.close()
    return folder / "music.db"


def read_only(folder: Path) -> Path:
    if os.geteuid() == 0:
        pytest.skip("nothing is read-only for root")
    file = folder / "fairlane.db"
    file.touch(mode=0o400)
    return file


def out_of_bounds(_folder: Path) -> Path:
    from pathlib import Path as SystemPath

    if not SystemPath("/proc/self").exists():
        pytest.skip("no place where nobody may write")
    return SystemPath("/proc/fairlane/fairlane.db")


@pytest.mark.parametrize(
    "made", [in_a_file, a_folder, text, of_somebody_else, read_only, out_of_bounds]
)
async def test_a_file_that_cannot_be_a_store_is_named(
    programs: Programs, tmp_path: Path, made: Callable[[Path], Path]
) -> None:
    file = made(tmp_path)
    before = file.read_bytes() if file.is_file() else b""
    line = await complaint(programs.server(f"sqlite:///{file}"))
    assert str(file) in line
    if before:
        assert file.read_bytes() == before


async def test_a_full_disk_is_named(programs: Programs, tmp_path: Path) -> None:
    server = programs.server(f"sqlite:///{tmp_path / 'fairlane.db'}", file_bytes_max=32 * 1024)
    line = await complaint(server)
    assert "fairlane.db" in line
    assert "full" in line or "disk" in line


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("postgresql://ada:secret@127.0.0.1:1/fairlane", "does not respond"),
        ("postgresql://ada:secret@127.0.0.1:notaport/fairlane", "port"),
        ("mysql://ada:secret@127.0.0.1/fairlane", "sqlite:///PATH or postgresql://"),
    ],
)
async def test_an_address_that_is_not_a_store_is_refused_without_its_password(
    programs: Programs, store: str, said: str
) -> None:
    line = await complaint(programs.server(store))
    assert said in line
    assert "secret" not in line


async def test_a_missing_database_is_named(programs: Programs, postgres_url: str) -> None:
    line = await complaint(programs.server(postgres_url.replace("/postgres?", "/nowhere?")))
    assert 'database "nowhere" does not exist' in line


# -------------------------------------------------------------------- other settings


async def test_a_port_in_use_is_named(programs: Programs, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = programs.server(f"sqlite:///{tmp_path / 'a.db'}", "--port", str(port))
        line = await complaint(server)
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line


@pytest.mark.parametrize("content", [None, "{", "[]", '{"lanes": {"main": {"maxInflite": 3}}}'])
async def test_a_policy_file_that_cannot_be_used_is_named(
    programs: Programs, tmp_path: Path, content: str | None
) -> None:
    policy = tmp_path / "policy.json"
    if content is not None:
        policy.write_text(content)
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    line = await complaint(programs.server(store, "--policy", str(policy)))
    assert str(policy) in line
    if content is None or not content.startswith('{"'):
        assert not (tmp_path / "fairlane.db").exists()  # read before anything is opened
    else:
        assert checks.disagreements(store) == []


# -------------------------------------------------------------------- a disk that fills up later


async def test_a_disk_that_is_full_for_a_while_loses_nothing(
    programs: Programs, tmp_path: Path
) -> None:
    server = programs.server(f"sqlite:///{tmp_path / 'fairlane.db'}")
    await server.start()
    async with Asker(server) as asker:
        before = await asker.sleep(1)
        await asker.until_tasks([before], state="done")
        server.limit_files(0)
        refused = await asker.post("/tasks", {"handler": "echo", "params": {"of": "nobody"}})
        assert (refused.status, refused.body["code"]) == (503, "store_unavailable")
        assert (await asker.task(before))["state"] == "done"
        server.limit_files(None)
        after = await asker.sleep(1)
        await asker.until_tasks([after], state="done", attempts=1)
        stats = (await asker.get("/scheduler/stats")).body["metrics"]
        assert (stats["tasksSubmitted"], stats["tasksCompleted"]) == (2, 2)
    assert checks.disagreements(f"sqlite:///{tmp_path / 'fairlane.db'}") == []
