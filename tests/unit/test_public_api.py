"""The public names: there without a search, light to import, documented, and typed for users."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fairlane
from fairlane.core import errors
from fairlane.testing import MemoryFairlane

CLASSES = {
    name: value
    for name in fairlane.__all__
    if inspect.isclass(value := getattr(fairlane, name))
} | {"MemoryFairlane": MemoryFairlane}  # fmt: skip


def error_names(kind: type[Exception] = errors.FairlaneError) -> set[str]:
    return {kind.__name__}.union(*(error_names(one) for one in kind.__subclasses__()))


def test_every_public_name_is_there_and_shown() -> None:
    assert sorted(fairlane.__all__) == fairlane.__all__
    assert set(fairlane.__all__) <= set(dir(fairlane))
    assert all(getattr(fairlane, name) is not None for name in fairlane.__all__)


def test_a_name_that_does_not_exist_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'fairlane' has no attribute 'Clinet'"):
        _ = fairlane.Clinet  # type: ignore[attr-defined]  # there is no such name


def test_every_error_is_public() -> None:
    assert error_names() - set(fairlane.__all__) == set()


def test_type_checkers_see_what_is_imported_late() -> None:
    tree = ast.parse(Path(fairlane.__file__).read_text("utf-8"))
    declared = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared == fairlane._MODULES


def test_importing_the_package_loads_neither_http_nor_a_database() -> None:
    program = "import sys, fairlane; fairlane.QueueFull; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ran.stdout.split())
    assert "fairlane.core.errors" in loaded
    assert loaded & {"aiohttp", "apsw", "asyncio", "msgspec", "uvicorn"} == set()


def public_members(kind: type) -> dict[str, Any]:
    found = inspect.getmembers(
        kind, lambda value: inspect.isfunction(value) or isinstance(value, property)
    )
    return {name: value for name, value in found if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_class_and_method_has_a_docstring(name: str) -> None:
    kind = CLASSES[name]
    assert kind.__dict__["__doc__"], name
    undocumented = [
        member for member, value in public_members(kind).items() if not inspect.getdoc(value)
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", ["Fairlane", "Client", "AsyncClient", "Worker", "TaskHandle"])
def test_a_docstring_begins_with_a_sentence(name: str) -> None:
    first_lines = {
        member: (inspect.getdoc(value) or "").partition("\n")[0]
        for member, value in public_members(CLASSES[name]).items()
    }
    assert {one for one in first_lines.items() if not re.match(r"[A-Z`]", one[1])} == set()


USER_PROGRAM = """
import asyncio

from fairlane import AsyncClient, Client, Fairlane, QueueFull, TaskFailed, Work, Worker

app = Fairlane("sqlite://:memory:")
worker = Worker("http://localhost:9867", concurrency=2)

@app.handler("double")
async def double(work: Work) -> int:
    return 2 * int(work.request["params"]["n"])

@worker.handler("shout")
def shout(work: Work) -> str:
    return work.agent.upper()

@app.on_event
def listen(event: dict[str, object]) -> None:
    print(event["type"])

async def main() -> None:
    async with app:
        task = await app.submit(handler="double", params={"n": 2})
        try:
            print(await task.result(timeout=5))
        except (QueueFull, TaskFailed) as error:
            print(error.code, error.retryable)
    async with AsyncClient() as remote:
        reveal_type((await remote.batches()).batches[0].total)

def plain() -> None:
    with Client("http://localhost:9867") as client:
        reveal_type(client.submit(handler="double"))

reveal_type(double)
reveal_type(shout)
reveal_type(listen)
asyncio.run(main())
"""
WRONG_PROGRAM = """
from fairlane import Client, Fairlane, Nothing

app = Fairlane(stoer="sqlite://:memory:")

@app.handler("wrong")
async def wrong(number: int) -> int:
    return number

Client().submit(handler="double", priorty=1)
"""


def checked_by_mypy(program: str, folder: Path) -> str:
    (folder / "program.py").write_text(program)
    cache = Path(__file__).parents[2] / ".mypy_cache" / "users"
    command = ["-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}", "program.py"]
    ran = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not ran.stderr, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_users_program_is_typed(tmp_path: Path) -> None:
    said = checked_by_mypy(USER_PROGRAM, tmp_path)
    work = "fairlane.worker.executors.base.Work"
    revealed = re.findall(r'Revealed type is "(.*)"', said)
    assert [one.replace("builtins.", "") for one in revealed] == [
        "int",
        "fairlane.schema.tasks.TaskAccepted",
        f"def (work: {work}) -> typing.Coroutine[Any, Any, int]",
        f"def (work: {work}) -> str",
        "def (event: dict[str, object])",
    ], said
    assert "error:" not in said


@pytest.mark.slow
def test_a_users_mistakes_are_found(tmp_path: Path) -> None:
    said = checked_by_mypy(WRONG_PROGRAM, tmp_path)
    codes = re.findall(r"program.py:(\d+): error: .*\[([a-z-]+)\]", said)
    assert codes == [
        ("2", "attr-defined"),
        ("4", "call-arg"),
        ("6", "type-var"),
        ("10", "call-arg"),
    ], said
