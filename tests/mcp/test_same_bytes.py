"""The text of a tool's answer is what its command prints with `--json`, for every tool.

What reads is asked twice about one store, and every byte has to be the same. What writes is asked
once each of two stores that were made alike, so names and moments differ: `without_chance` is the
one place that says which.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client as McpClient

from fairlane.cli import main
from fairlane.cli.commands.serve import store_side
from fairlane.cli.direct import StoreBackend
from fairlane.mcp.server import build
from fairlane.mcp.table import TOOLS
from tests.mcp.cases import CASES, REFUSED, Case, Names

Text = tuple[str, bool]

ID = re.compile(r"\b([a-z]+)_[0-9a-f]{28}\b")
MOMENT = re.compile(r"\b2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z|\b1[78]\d{11}\b")
# The token of a lease, which begins with its second; also as a part of the lease's id.
TOKEN = re.compile(r"(?<!\d)1[89]\d{14}(?!\d)")
HASH = re.compile(r"\b[0-9a-f]{64}\b")  # of what an approval shows, its task included
# How long something has waited so far: it grows between two looks at one store.
WAITED = re.compile(r'("(?:oldestWaitMs|waitingMs|avgDispatchLatencyMs)":)[\d.]+')

compared = pytest.mark.parametrize("name", [name for name in TOOLS if TOOLS[name].command])


def without_chance(text: str) -> str:
    """Names by the order in which they appear, so that who is who still counts; moments as one."""
    seen: dict[str, str] = {}
    text = TOKEN.sub(lambda found: seen.setdefault(found[0], f"TOKEN_{len(seen)}"), text)
    named = ID.sub(lambda found: seen.setdefault(found[0], f"{found[1]}_{len(seen)}"), text)
    return MOMENT.sub("MOMENT", HASH.sub("HASH", named))


def without_waiting(text: str) -> str:
    return WAITED.sub(r"\1SPAN", text)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("empty") / "fairlane.db"
    StoreBackend(f"sqlite:///{file}", create=True).client.close()
    return file


class World:
    """A store in which a case has been prepared."""

    def __init__(self, empty: Path, folder: Path, case: Case) -> None:
        folder.mkdir()
        shutil.copy(empty, folder / "fairlane.db")
        self.store = f"sqlite:///{folder / 'fairlane.db'}"
        with StoreBackend(self.store, create=False).client as client:
            self.names: Names = case.prepare(client)
        if case.file is not None:
            file = folder / "file.json"
            file.write_text(json.dumps(case.file), "utf-8")
            self.names["file"] = str(file)
        self._case = case

    def tool(self, name: str) -> Text:
        arguments = _filled(self._case.arguments, self.names)
        return asyncio.run(_called(self.store, name, arguments))

    def command(self, capsys: pytest.CaptureFixture[str]) -> str:
        words = [_filled(word, self.names) for word in self._case.command.split(" ")]
        capsys.readouterr()
        main([*words, "--json", "--store", self.store])
        return capsys.readouterr().out


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    """`{name}` is what has that name; JSON stays as it is."""
    if isinstance(value, str) and value.startswith("{"):
        return names.get(value[1:-1], value)
    if isinstance(value, Mapping):
        return {name: _filled(one, names) for name, one in value.items()}
    return value


async def _called(store: str, name: str, arguments: Mapping[str, Any]) -> Text:
    async with (
        store_side(store, create=False) as ask,
        McpClient(build(ask, writes=True, decides=True)) as client,
    ):
        result = await client.call_tool(name, dict(arguments))
        (content,) = result.content
        assert content.type == "text"
        return content.text, result.is_error


def test_every_tool_with_a_command_has_a_case() -> None:
    assert set(CASES) == {name for name, tool in TOOLS.items() if tool.command}


@compared
def test_a_case_uses_the_command_of_its_tool(name: str) -> None:
    assert f"{CASES[name].command} ".startswith(f"{TOOLS[name].command} ")


@compared
def test_a_tool_answers_what_its_command_prints(
    name: str, empty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, tool = CASES[name], TOOLS[name]
    first = World(empty, tmp_path / "first", case)
    second = World(empty, tmp_path / "second", case) if tool.writes else first
    printed = first.command(capsys)
    text, failed = second.tool(name)
    assert not failed, text
    same: Callable[[str], str] = without_chance if tool.writes else without_waiting
    assert same(f"{text}\n") == same(printed)
    assert text  # both saying nothing would be the same, too


@pytest.mark.parametrize("reason", REFUSED)
def test_a_tool_is_refused_in_the_words_of_its_command(
    reason: str, empty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, case = REFUSED[reason]
    printed = World(empty, tmp_path / "first", case).command(capsys)
    text, failed = World(empty, tmp_path / "second", case).tool(name)
    assert failed
    assert {"code", "error"} <= set(json.loads(text))
    assert without_chance(f"{text}\n") == without_chance(printed)


def test_names_that_trade_places_are_noticed() -> None:
    one, two = "tsk_" + "0" * 28, "tsk_" + "1" * 28
    assert without_chance(f"{one} {two} {one}") == without_chance(f"{two} {one} {two}")
    assert without_chance(f"{one} {two} {one}") != without_chance(f"{one} {two} {two}")
