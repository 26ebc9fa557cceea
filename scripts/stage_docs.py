"""Collect the input of mkdocs in build/docs: the pages, and a generated reference.

usage: python scripts/stage_docs.py

The folders are those of the repository, so links between pages, examples and other files lead to
the same places as on disk. Pages in `reference/` name the public classes (mkdocstrings fills them
in from the docstrings); `reference/http.md` is the OpenAPI document.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fairlane
from fairlane.embedded.app import Fairlane
from fairlane.http import openapi
from fairlane.http.app import HttpApp

ROOT = Path(__file__).parents[1]
STAGE = ROOT / "build" / "docs"
FOLDERS = ("docs", "examples", "deploy")

Schema = dict[str, Any]


def main() -> int:
    shutil.rmtree(STAGE, ignore_errors=True)
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, STAGE / folder, ignore=ignored)
    for file in ROOT.glob("*.md"):
        shutil.copy(file, STAGE)
    reference = STAGE / "reference"
    reference.mkdir()
    document = description()
    for name, text in {
        **python_pages(),
        "errors.md": "\n".join(errors_page()),
        "http.md": "\n".join(http_page(document)),
        "openapi.json": json.dumps(document, indent=1, ensure_ascii=False),
    }.items():
        (reference / name).write_text(text + "\n", "utf-8")
    return 0


# -------------------------------------------------------------------- Python

# Every public name that is not an error, by the page that describes it.
PYTHON = {
    "fairlane": (
        "Fairlane",
        "SyncFairlane",
        "TaskHandle",
        "BatchHandle",
        "ConfigWatcher",
        "InstanceSetting",
        "tune",
    ),
    "client": ("Client",),
    "async-client": ("AsyncClient",),
    "worker": ("Worker", "Work", "report_output", "report_progress"),
}
TESTING = "::: fairlane.testing.MemoryFairlane\n    options: {inherited_members: false}\n"


def python_pages() -> dict[str, str]:
    errors = {kind.__name__ for kind in _errors(fairlane.FairlaneError)}
    listed = {name for names in PYTHON.values() for name in names}
    assert listed == set(fairlane.__all__) - errors - {"__version__"}, "give each name its page"
    pages = {page: [_directive(name) for name in names] for page, names in PYTHON.items()}
    pages["testing"] = [TESTING]
    guide = "[The guide](../docs/python.md) shows how to use it.\n"
    return {
        f"{page}.md": "\n".join([f"# {page.replace('-', ' ').capitalize()}\n", guide, *parts])
        for page, parts in pages.items()
    }


def _directive(name: str) -> str:
    return f"::: {getattr(fairlane, name).__module__}.{name}\n"


def _errors(kind: type[fairlane.FairlaneError]) -> Iterator[type[fairlane.FairlaneError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _errors(below)


def errors_page() -> Iterator[str]:
    yield "# Python errors\n"
    yield "All are in `fairlane`. [Errors](../docs/errors.md) says what to do about each code.\n"
    yield from _tree(fairlane.FairlaneError, 0)


def _tree(kind: type[fairlane.FairlaneError], depth: int) -> Iterator[str]:
    about = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    yield f"{'    ' * depth}- **{kind.__name__}** `{kind.code}`: {about}"
    for below in kind.__subclasses__():
        yield from _tree(below, depth + 1)


# -------------------------------------------------------------------- HTTP


def description() -> Schema:
    app = Fairlane("sqlite://:memory:")
    routes = HttpApp(app.node, app.guard.check).routes
    app.node.views.close()
    return openapi.document(routes)


def http_page(document: Schema) -> Iterator[str]:
    yield "# HTTP: every field\n"
    yield (
        "From the [OpenAPI document](openapi.json) that `GET /openapi.json` returns. "
        "[HTTP](../docs/http.md) explains what the routes do.\n"
    )
    table = (ROOT / "docs" / "http.md").read_text("utf-8")
    texts = dict(re.findall(r"^\| `([A-Z]+ /[^`]*)` \| [\w *]+ \| (.+) \|$", table, re.MULTILINE))
    for path, ways in document["paths"].items():
        for method, operation in ways.items():
            name = f"{method.upper()} {path}"
            about = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", texts[name])  # without its links
            yield f"## `{name}`\n\n{about}.\n"
            yield from _operation(operation)
    yield "## Types\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name}\n"
        yield from _fields(schema)


def _operation(operation: Schema) -> Iterator[str]:
    parameters = operation["parameters"]
    if parameters:
        yield from _table(
            ("parameter", "in", "type", "meaning"),
            [(one["name"], one["in"], _type(one["schema"]), _about(one)) for one in parameters],
        )
    body = operation.get("requestBody")
    if body:
        yield f"Body: {_content(body['content'])}.\n"
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            yield f"Response {status}: {_content(response['content'])}.\n"


def _fields(schema: Schema) -> Iterator[str]:
    about = schema.get("description")
    if about:
        yield f"{about}\n"
    required = schema.get("required", ())
    rows = [
        (f"{name}{'' if name in required else '?'}", _type(field), _about(field))
        for name, field in schema.get("properties", {}).items()
    ]
    if rows:
        yield from _table(("field", "type", "meaning"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for name, *cells in rows:
        yield f"| `{name}` | {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _content(content: Schema) -> str:
    return ", or ".join(
        _type(kind["schema"]) if name == "application/json" else f"`{name}`"
        for name, kind in content.items()
    )


def _about(schema: Schema) -> str:
    return str(schema.get("description") or schema.get("schema", {}).get("description") or "")


def _type(schema: Schema) -> str:
    """A type in a few words, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "minimum" in schema and "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    return str(schema.get("format") or kind)


if __name__ == "__main__":
    sys.exit(main())
