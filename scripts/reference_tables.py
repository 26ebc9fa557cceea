"""Reference tables of the documentation, written from the routes and tools.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`. What a row says comes from the
declared operation. A route without one keeps the text that its row has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fairlane.core.access import Scope
from fairlane.embedded.app import Fairlane
from fairlane.http.app import HttpApp
from fairlane.http.messages import Route
from fairlane.mcp.table import TOOLS, Tool

ROOT = Path(__file__).parents[1]

# At the end of the list of routes: routes for people and browsers.
_LAST = ("", "openapi.json", "ui")
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def routes() -> dict[str, Route]:
    """Return every route by `METHOD /path`, grouped by noun."""
    app = Fairlane("sqlite://:memory:")
    found = HttpApp(app.node, app.guard.check).routes
    app.node.views.close()
    nouns = list(dict.fromkeys(_noun(path) for path in found))
    ordered = sorted(found, key=lambda path: (_noun(path) in _LAST, nouns.index(_noun(path))))
    return {f"{method} {path}": found[path][method] for path in ordered for method in found[path]}


def _noun(path: str) -> str:
    return path.split("/")[1]


def _needed(route: Route) -> str:
    """The scope; a star marks routes that the token of one agent may not use."""
    scope = "none" if route.open else route.scope or "any"
    return scope if route.agents else f"{scope} *"


def route_rows(texts: dict[str, str]) -> Iterator[list[str]]:
    yield ["route", "scope", "what it does"]
    for name, route in routes().items():
        declared = route.operation
        text = texts.get(name, "") if declared is None else declared.summary
        yield [f"`{name}`", _needed(route), text]


def tool_rows(_: dict[str, str]) -> Iterator[list[str]]:
    yield ["scope", "tools"]
    for scope in Scope:
        named = [_tool(name, tool) for name, tool in TOOLS.items() if tool.scope == scope]
        yield [scope, ", ".join(named)]


def _tool(name: str, tool: Tool) -> str:
    """A tool, and its command if that has another name."""
    same = tool.command in {"", name.replace("_", " ")}
    return f"`{name}`" if same else f"`{name}` ({tool.command})"


TABLES = {"routes": route_rows, "tools": tool_rows}
PAGES = [ROOT / "docs" / name for name in ("http.md", "mcp.md")]


def page(text: str) -> str:
    """Return a page with its tables replaced."""

    def table(block: re.Match[str]) -> str:
        texts = dict(re.findall(r"^\| `([^`]+)` \|.* \| (.+) \|$", block[0], re.MULTILINE))
        head, *rows = TABLES[block[2]](texts)
        lines = [head, ["---"] * len(head), *rows]
        drawn = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
        return block[1] + drawn.replace("| --- ", "|---").replace("--- |", "---|") + block[3]

    return _BLOCK.sub(table, text)
