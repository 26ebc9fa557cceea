"""A command starts fast because it imports and builds only what it needs."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from fairlane.cli import commands as parser
from fairlane.core import webhooks

CODE = """
import sys
from fairlane.cli import main
main(sys.argv[2:])
sys.exit("loaded" if sys.argv[1] in sys.modules else "not loaded")
"""


def loads(module: str, *arguments: str) -> bool:
    ran = subprocess.run(
        [sys.executable, "-c", CODE, module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = ran.stderr.splitlines()[-1]
    assert said in ("loaded", "not loaded"), ran
    return said == "loaded"


def test_every_command_has_its_place_in_the_help() -> None:
    grouped = [word for words in parser.GROUPS.values() for word in words]
    assert sorted(grouped) == sorted(parser.COMMANDS)
    text = parser.outline()[0].format_help()
    lines = [
        line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    assert [line for line in lines if line in parser.COMMANDS] == grouped


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_loads_no_command_and_nothing_that_reads_json(arguments: list[str]) -> None:
    assert not loads("msgspec", *arguments)
    assert not loads("fairlane.cli.commands.tasks", *arguments)
    assert loads("argparse", *arguments)


@pytest.mark.parametrize("command", ["tasks", "queue", "serve", "completion"])
def test_the_help_of_a_command_loads_neither_the_engine_nor_the_server(command: str) -> None:
    assert loads("msgspec", command, "--help")
    assert not loads("fairlane.engine", command, "--help")
    assert not loads("uvicorn", command, "--help")


def test_json_is_printed_without_the_library_for_terminals() -> None:
    assert not loads("rich", "tasks", "--json", "--url", "http://127.0.0.1:1")


def test_a_command_that_is_named_is_the_only_one_that_is_built() -> None:
    assert set(parser.build("lanes")[1]) == {
        "lanes",
        *(f"lanes {verb}" for verb in ("list", "pause", "resume", "clear")),
    }
    assert set(parser.build("nothing")[1]) == set(parser.build()[1])


def test_the_states_of_deliveries_are_named() -> None:
    help_text = parser.build()[1]["deliveries list"].format_help()
    assert (
        f"only deliveries in this state: {', '.join(get_args(webhooks.DeliveryState))}"
        in " ".join(help_text.split())
    )
