"""Reference pages agree with the code, and their links work."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from fairlane.cli import exit_code
from fairlane.core import errors, events, lifecycle
from fairlane.http.messages import STATUS

ROOT = Path(__file__).parents[2]
PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))
OVERVIEWS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of all rows of all tables that begin with something in backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


# -------------------------------------------------------------------- the life of a task


def diagram() -> str:
    """The table of moves as a drawing; verbs between the same states share an arrow."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for before, moves in lifecycle.MOVES.items():
        for verb, after in moves.items():
            arrows.setdefault((before, after), []).append(verb)
    lines = [
        f"    {'[*]' if before == lifecycle.NEW else before} --> {after}: {', '.join(verbs)}"
        for (before, after), verbs in arrows.items()
    ]
    final = [state for state in lifecycle.STATES if state not in lifecycle.MOVES]
    lines += [f"    {state} --> [*]" for state in final]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])


def test_the_drawing_of_a_tasks_life_is_the_table() -> None:
    found = re.search(r"```mermaid\n.*?```", read("docs/concepts.md"), re.DOTALL)
    assert found is not None
    assert found[0] == diagram()


def test_every_verb_that_moves_a_task_is_explained() -> None:
    verbs = {verb for moves in lifecycle.MOVES.values() for verb in moves}
    explained = {row[0].strip("`") for row in rows(read("docs/concepts.md"))}
    assert verbs - explained == set()


# -------------------------------------------------------------------- events


def test_every_event_is_on_its_page_with_its_state() -> None:
    table = {row[0].strip("`"): row[1] for row in rows(read("docs/events.md")) if len(row) == 3}
    assert set(table) == set(events.TYPES)
    for kind, cell in table.items():
        state = events.STATES.get(kind)
        assert cell.split(" or ")[0] == ("-" if state is None else f"`{state}`"), kind


# -------------------------------------------------------------------- errors


def kinds() -> dict[str, type[errors.FairlaneError]]:
    found: dict[str, type[errors.FairlaneError]] = {}
    pending: list[type[errors.FairlaneError]] = [errors.FairlaneError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        found[kind.code] = kind
    del found["error"]
    return found


def example(kind: type[errors.FairlaneError]) -> errors.FairlaneError:
    if issubclass(kind, errors.TaskFailed):
        return kind("tsk_1", "failed", None)
    if issubclass(kind, errors.InvalidPolicy | errors.InvalidSettings):
        return kind(["a problem"])
    return kind("a problem")


def test_every_error_is_on_its_page_with_its_status_and_exit_code() -> None:
    expected = {}
    for code in {*kinds(), *STATUS}:
        problem = example(kinds()[code]) if code in kinds() else None
        expected[code] = (
            str(STATUS.get(code, "-")),
            "yes" if problem is not None and problem.retryable else "no",
            "-" if problem is None else str(exit_code(problem)),
        )
    table = {
        row[0].strip("`"): tuple(row[1:4]) for row in rows(read("docs/errors.md")) if len(row) == 5
    }
    assert table == expected


# -------------------------------------------------------------------- figures


def test_the_figures_of_the_overview_are_those_that_were_measured() -> None:
    table = read("README.md").partition("| queue |")[2].partition("\n\n")[0]
    figures = [row.split(" | ")[-1].strip(" |").replace(",", "") for row in table.splitlines()[2:]]
    assert len(figures) >= 8
    measured = read("docs/benchmarks.md").replace(",", "")
    assert [
        one
        for one in figures
        if f"lifecycle_per_s={one}" not in measured and f"gave {one}/s" not in measured
    ] == []


# -------------------------------------------------------------------- links


def anchors(text: str) -> set[str]:
    """The names that headings get where such pages are shown."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*OVERVIEWS, *PAGES])
def test_links_lead_somewhere(name: str) -> None:
    text = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"(?:\]\(|src=\")([^)\s\"]+)", text):
        target, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        page = (ROOT / name).parent / target if target else ROOT / name
        missing = not page.exists()
        if missing or (anchor and anchor not in anchors(page.read_text("utf-8"))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_found_from_the_index(name: str) -> None:
    page = Path(name).relative_to("docs")
    assert page.name == "README.md" or f"]({page})" in read("docs/README.md")


# -------------------------------------------------------------------- the command line


def test_the_tables_of_the_command_line_are_made_from_the_parser() -> None:
    script = runpy.run_path(str(ROOT / "scripts/cli_reference.py"))
    text = read("docs/cli.md")
    assert script["page"](text) == text, "run python scripts/cli_reference.py"
    assert "| `fairlane show ID` | Show a task | |" in text
    assert "on a schedule | `create`, `add`, `list`, " in text


@pytest.mark.parametrize("name", [*OVERVIEWS, "CHANGELOG.md", "examples/README.md", *PAGES])
def test_a_page_is_wrapped(name: str) -> None:
    """Rows of tables and pictures are one line each."""
    lines = [line for line in read(name).splitlines() if not line.lstrip().startswith(("|", "<"))]
    assert [line for line in lines if len(line) > 100] == []
