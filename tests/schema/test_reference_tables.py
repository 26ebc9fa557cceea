"""The tables of the documentation follow from the operations; the rest keeps its text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import reference_tables as generate

from fairlane.schema.catalog import OPERATIONS

ROOT = Path(__file__).parents[2]
PAGE = """before
<!-- generated: {table} -->
| `GET /metrics` | x | Text of a route without an operation |
| `GET /lanes` | x | stale |
| `wait` | x | y | Text of a tool without an operation |
| `GET /gone` | x | of no route |
<!-- end -->
after
"""


def rows(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_a_declared_operation_says_what_its_route_does_and_others_keep_their_text() -> None:
    made = generate.page(PAGE.format(table="routes"))
    assert made.startswith("before\n<!-- generated: routes -->\n| route | scope | what it does |\n")
    assert made.endswith("|\n<!-- end -->\nafter\n")
    table = rows(made)
    assert table["GET /lanes"] == ["read", OPERATIONS["lanes"].summary]
    assert table["GET /metrics"] == ["read", "Text of a route without an operation"]
    assert "GET /gone" not in table


def test_a_tool_says_what_its_operation_says() -> None:
    table = rows(generate.page(PAGE.format(table="tools")))
    assert table["lanes"] == ["read", "`fairlane lanes list`", OPERATIONS["lanes"].summary]
    assert table["wait"][-1] == "Text of a tool without an operation"


def test_a_scope_lists_its_routes_by_who_may_ask() -> None:
    text = generate.page(PAGE.format(table="scopes"))
    admin = re.search(r"^\| admin \| (.*) \| (.*) \|$", text, re.MULTILINE)
    assert admin is not None
    assert admin[1] == "-"
    assert "`POST /tokens`" in admin[2]


@pytest.mark.parametrize(("page", "table"), [("http.md", "routes"), ("mcp.md", "tools")])
def test_every_row_says_something(page: str, table: str) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    block = text.partition(f"<!-- generated: {table} -->")[2].partition("<!-- end -->")[0]
    found = rows(block)
    assert len(found) >= 60
    assert [name for name, cells in found.items() if not cells[-1]] == []
