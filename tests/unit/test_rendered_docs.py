"""What `make docs` renders: every page, every public name, every route. mkdocs checks the links."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import stage_docs

import fairlane

ROOT = Path(__file__).parents[2]
NAV = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"- (\S+\.md)$", NAV, re.MULTILINE))
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md"), *ROOT.glob("*.md")]
    generated = {
        f"reference/{name}" for name in (*stage_docs.python_pages(), "errors.md", "http.md")
    }
    assert listed == {str(page.relative_to(ROOT)) for page in pages} | generated


def test_every_public_class_and_function_has_its_place() -> None:
    text = "\n".join(stage_docs.python_pages().values()) + "\n".join(stage_docs.errors_page())
    named = set(re.findall(r"^::: \S+\.(\w+)$", text, re.MULTILINE))
    errors = set(re.findall(r"^ *- \*\*(\w+)\*\* `[a-z_]+`: [A-Z]", text, re.MULTILINE))
    assert named | errors == {*fairlane.__all__, "MemoryFairlane"} - {"__version__"}


async def test_every_route_and_type_is_described() -> None:
    document = stage_docs.description()
    text = "\n".join(stage_docs.http_page(document))
    routes = {
        f"{method.upper()} {path}" for path, ways in document["paths"].items() for method in ways
    }
    assert set(re.findall(r"^## `(.+)`$", text, re.MULTILINE)) == routes
    linked = set(re.findall(r"\]\(#(\w+)\)", text))
    assert linked <= {name.lower() for name in document["components"]["schemas"]}
    assert "| `delayMs?` | integer, 0 to 31536000000 or null |" in text
