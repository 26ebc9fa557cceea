"""The tables of the documentation follow from the operations; the rest keeps its text."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import reference_tables as generate

from fairlane.schema.catalog import OPERATIONS

ROOT = Path(__file__).parents[2]
PAGE = """before
<!-- generated: {table} -->
| `GET /metrics` | x | Text of a route without an operation |
| `GET /lanes` | x | stale |
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
    assert table["GET /metrics"] == ["read *", "Text of a route without an operation"]
    assert "GET /gone" not in table


def test_a_scope_lists_its_tools_and_the_command_of_those_with_another_name() -> None:
    text = generate.page(PAGE.format(table="tools"))
    admin = re.search(r"^\| admin \| (.*) \|$", text, re.MULTILINE)
    assert admin is not None
    assert admin[1].startswith("`queue_policy_set` (sched policy set), `policy_set`, ")


def test_a_star_marks_routes_that_an_agents_token_may_not_use() -> None:
    table = rows(generate.page(PAGE.format(table="routes")))
    assert table["POST /tokens"][0] == "admin *"
    assert table["POST /tasks"][0] == "submit"


def test_every_row_says_something() -> None:
    text = (ROOT / "docs" / "http.md").read_text("utf-8")
    block = text.partition("<!-- generated: routes -->")[2].partition("<!-- end -->")[0]
    found = rows(block)
    assert len(found) >= 60
    assert [name for name, cells in found.items() if not cells[-1]] == []
