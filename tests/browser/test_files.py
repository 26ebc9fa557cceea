"""The dashboard's files: plain modules without a build step, that cannot read text as markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.http.access import routes

FOLDER = Path(__file__).parents[2] / "src" / "fairlane" / "http" / "dashboard"
MODULES = sorted(FOLDER.rglob("*.js"))
LINES_MAX = 4500
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    r"|setAttribute\(.(?:style|on)|createContextualFragment|DOMParser|srcdoc|javascript:"
)
ADDRESS = re.compile(r"https?://[\w.-]+")
KNOWN_ADDRESSES = {"http://www.w3.org", "https://example.com"}  # the name of SVG, and an example


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_a_module_has_no_way_to_turn_text_into_markup(file: Path) -> None:
    assert FORBIDDEN.findall(file.read_text("utf-8")) == []


def test_the_rule_finds_what_it_forbids() -> None:
    for text in ("a.innerHTML = b", "eval('1')", 'e.setAttribute("style", s)', "new Function()"):
        assert FORBIDDEN.search(text)


def test_nothing_comes_from_elsewhere() -> None:
    for file in [*MODULES, FOLDER / "index.html", FOLDER / "app.css", FOLDER / "icon.svg"]:
        assert set(ADDRESS.findall(file.read_text("utf-8"))) <= KNOWN_ADDRESSES, file


def test_every_import_names_a_file_that_is_there() -> None:
    for file in MODULES:
        for name in re.findall(r'from "([^"]+)"', file.read_text("utf-8")):
            assert (file.parent / name).is_file(), (file.name, name)


def test_a_colour_is_declared_once_for_light_and_dark() -> None:
    named = re.findall(r"^\s*--([\w-]+):", (FOLDER / "app.css").read_text("utf-8"), re.MULTILINE)
    assert len(named) > 20
    assert sorted(named) == sorted(set(named))


def test_what_buttons_and_pages_need_are_routes_of_the_server() -> None:
    needed = [
        (method, path)
        for file in MODULES
        for method, path in re.findall(r'"([A-Z]+) (/[^"\s]*)"', file.read_text("utf-8"))
    ]
    assert len(needed) > 20
    assert set(needed) - set(routes()) == set()


def test_the_page_holds_no_script_and_no_style_of_its_own() -> None:
    page = (FOLDER / "index.html").read_text("utf-8")
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)


def test_it_stays_small() -> None:
    assert sum(len(file.read_text("utf-8").splitlines()) for file in MODULES) < LINES_MAX
