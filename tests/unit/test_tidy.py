"""Rules about the code itself that no linter knows.

A rule is a function from a path and a text to its complaints, with the files it looks at and small
texts that break it or keep it. Every rule is tried on those too: one that cannot complain is a
defect.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[2]

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
EMPTY_NAMES = {"util", "utils", "helper", "helpers", "common", "misc", "manager"}
CLOCK_READERS = {
    *(f"time.{name}{ns}" for name in ("time", "monotonic", "perf_counter") for ns in ("", "_ns")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}
ENVIRONMENT_READERS = {"os.environ", "os.environb", "os.getenv"}
STATEMENT_RUNNERS = {"run_rows", "run_page", "change_rows"}
ROW_TYPES = {"fairlane.store.base.Row", "fairlane.store.base.RowPage"}
EXCUSE = re.compile(r"#\s*(?:noqa|type:\s*ignore|pragma:)(?::?\s*[A-Z]+\d+,?|\[[^]]*\]|\s*no \w+)*")
MACHINE = re.compile(
    r"(?:(?<![\w.~})/-])|file://)/(?:home|opt|root|work|Users)/[\w.]"  # somebody's folders
    r"|pypi\.(?:org|python)|pythonhosted\.|npmjs\.|deb\.debian\."  # a registry's address
    r"|^\s*--(?:extra-)?(?:index-url|find-links)",  # where a lock was made
    re.MULTILINE,
)


def file_is_short(path: PurePath, text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, at most {FILE_LINES_MAX}"


def functions_are_short(path: PurePath, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def module_name_says_something(path: PurePath, text: str) -> Iterator[str]:
    for part in path.with_suffix("").parts:
        if part in EMPTY_NAMES:
            yield f"the name {part} says nothing"


def module_has_a_docstring(path: PurePath, text: str) -> Iterator[str]:
    if not ast.get_docstring(ast.parse(text)):
        yield "no module docstring"


def only_the_clock_reads_time(path: PurePath, text: str) -> Iterator[str]:
    if path.name != "clock.py":
        yield from _uses(text, CLOCK_READERS, "belongs in clock.py")


def only_config_reads_the_environment(path: PurePath, text: str) -> Iterator[str]:
    if path.name != "config.py":
        yield from _uses(text, ENVIRONMENT_READERS, "belongs in config.py")


def only_the_store_runs_statements(path: PurePath, text: str) -> Iterator[str]:
    """A statement is named, and its rows are taken apart, in `store/` and nowhere else."""
    if path.parts[:3] == ("src", "fairlane", "store"):
        return
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _runs_a_statement(node):
            yield f"{node.lineno}: runs a statement, which belongs in store/tables"
    for name in ROW_TYPES.intersection(full for _, full in _imported(tree)):
        yield f"takes rows apart ({name}), which belongs in store/tables"


def _runs_a_statement(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in STATEMENT_RUNNERS:
        return True
    first = call.args[0] if call.args else None
    names_one = isinstance(first, ast.Constant) and isinstance(first.value, str)
    owner = _dotted(call.func.value).rpartition(".")[2]
    return call.func.attr == "run" and (names_one or owner == "connection")


def excuses_have_a_reason(path: PurePath, text: str) -> Iterator[str]:
    if not EXCUSE.search(text):
        return  # as nearly everywhere: to take a text apart takes long
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        excuse = EXCUSE.search(token.string) if token.type == tokenize.COMMENT else None
        if excuse and len(re.findall(r"[a-z]{2,}", token.string[excuse.end() :])) < 2:
            yield f"{token.start[0]}: {excuse.group()} gives no reason behind it"


def no_machine_shows(path: PurePath, text: str) -> Iterator[str]:
    for found in MACHINE.finditer(text):
        yield f"{text.count(chr(10), 0, found.start()) + 1}: {found.group().strip()}"


def _uses(text: str, forbidden: set[str], where: str) -> Iterator[str]:
    """Find the dotted names in a text, whatever they were imported as."""
    tree = ast.parse(text)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            head, _, rest = _dotted(node).partition(".")
            name = f"{names.get(head, head)}.{rest}".rstrip(".")
            if name in forbidden:
                yield f"{node.lineno}: {name} {where}"


# What looks at a page, and waits for what is to be there, is Playwright's.
ASSERTIONS = {"pytest.raises", "pytest.warns", "expect", "dash.sees"}


def each_test_asserts(_path: PurePath, text: str) -> Iterator[str]:
    """What a test is about is asserted in it, however much its helpers look at besides."""
    nodes = ast.walk(ast.parse(text))
    functions = (one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
    for function in functions:
        if function.name.startswith("test_") and not _asserts(function):
            yield f"{function.name} has no assertion of its own"


def _asserts(function: ast.AST) -> bool:
    nodes = list(ast.walk(function))
    calls = {_dotted(node.func) for node in nodes if isinstance(node, ast.Call)}
    return bool(calls & ASSERTIONS) or any(isinstance(node, ast.Assert) for node in nodes)


def _dotted(node: ast.expr) -> str:
    """`a.b.c` of such a node; of anything that is not only names, what no rule looks for."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


@dataclass(frozen=True)
class Rule:
    broken_by: Callable[[PurePath, str], Iterator[str]]
    files: tuple[str, ...]
    bad: tuple[str, ...]  # each text breaks the rule
    good: tuple[str, ...]  # and each of these keeps it
    sample_path: str = "src/fairlane/sample.py"


CODE = ("src/**/*.py",)
PYTHON = ("src/**/*.py", "tests/**/*.py", "benchmarks/**/*.py")
FOLDERS = ("benchmarks", "deploy", "docs", "examples", "requirements", "scripts", "src", "tests")
AT_THE_TOP = ("*.md", "*.toml", "*.y*ml", "*file", "LICENSE", ".editorconfig", ".gitignore")
EVERYTHING = (*AT_THE_TOP, ".ci/*", *(f"{folder}/**/*" for folder in FOLDERS))

RULES = [
    Rule(file_is_short, ("src/**/*",), ("\n" * 601,), ("\n" * 600,)),
    Rule(
        functions_are_short,
        CODE,
        ("def f():\n" + "    x = 1\n" * 70, "class A:\n  async def f():\n" + "    x = 1\n" * 70),
        ("def f():\n" + "    x = 1\n" * 69,),
    ),
    Rule(module_name_says_something, CODE, ("",), (), sample_path="src/fairlane/utils/text.py"),
    Rule(module_has_a_docstring, CODE, ("import os\n", ""), ('"""What lives here."""\n',)),
    Rule(
        only_the_clock_reads_time,
        CODE,
        (
            "import time\nnow = time.time()",
            "import time as t\nnow = t.monotonic_ns",
            "from time import perf_counter as pc\nnow = pc()",
            "from datetime import datetime\nnow = datetime.now(UTC)",
            "import datetime as dt\nnow = dt.datetime.now(dt.UTC)",
        ),
        ("import time\ntime.sleep(1)", "from datetime import datetime\ndatetime.fromtimestamp(1)"),
    ),
    Rule(
        each_test_asserts,
        ("tests/**/test_*.py",),
        (
            "def test_a():\n    check(1)",
            "class A:\n    async def test_a():\n        await until(lambda: done)",
            "def test_a():\n    raises(ValueError)",
        ),
        (
            "def test_a():\n    assert f()",
            "def test_a():\n    with pytest.raises(ValueError):\n        f()",
            "def test_a():\n    def look():\n        assert f()\n    eventually(look)",
            "async def test_a():\n    await expect(page).to_have_text('a')",
            "def check():\n    pass",
        ),
    ),
    Rule(
        only_config_reads_the_environment,
        CODE,
        (
            "import os\nos.environ['A']",
            "from os import environ as e\ne.get('A')",
            "import os\nos.getenv('A')",
        ),
        ("import os\nos.getpid()", "environ = scope['environ']"),
    ),
    Rule(
        only_the_store_runs_statements,
        CODE,
        (
            "def f(tx):\n    return tx.connection.run('lane_all')",
            "def f(tx, name):\n    return tx.connection.run(name, limit=1)",
            "def f(reader):\n    return reader.run('lane_all')",
            "def f(c):\n    c.run_rows(f'{x}_delete', [])",
            "def f(c):\n    c.change_rows('task_update', [])",
            "def f(c):\n    return c.run_page('task_list', 1, 2)",
            "from fairlane.store.base import Connection, Row",
        ),
        (
            "import asyncio\nasyncio.run(main())",
            "def f(worker):\n    return worker.run()",
            "from fairlane.store.base import Connection\nlanes(connection)",
        ),
    ),
    Rule(
        excuses_have_a_reason,
        PYTHON,
        (
            "import os  # noqa\n",
            "import os  # noqa: F401\n",
            "import os  # noqa: F401, E402\n",
            "x = 1  # type: ignore\n",
            "x = 1  # type: ignore[assignment]\n",
            "x = 1  # pragma: no cover\n",
        ),
        (
            "import os  # noqa: F401, E402  # registers the codec\n",
            "x = 1  # type: ignore[assignment]  # the stub is wrong\n",
            "x = '# noqa'\n",
        ),
    ),
    Rule(
        no_machine_shows,
        EVERYTHING,
        (
            "/ho" + "me/ada/project",
            '"/ro' + 'ot/.cache"',
            "file:///o" + "pt/packages",
            "https://files.python" + "hosted.org/x",
            "--index" + "-url https://example.org",
        ),
        ("GET /tasks/opt/x", "uv pip compile --no-emit-index-url", "~/work/x", "src/root/x"),
    ),
]

rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.broken_by.__name__)


def _files(patterns: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if "__pycache__" not in path.parts)


@rules
def test_a_rule_complains_about_what_breaks_it(rule: Rule) -> None:
    for text in rule.bad:
        assert list(rule.broken_by(PurePath(rule.sample_path), text)), text


@rules
def test_a_rule_leaves_the_rest_alone(rule: Rule) -> None:
    for text in rule.good:
        assert list(rule.broken_by(PurePath(rule.sample_path), text)) == []


@rules
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    files = _files(rule.files)
    assert files
    complaints = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture or a font
        place = path.relative_to(ROOT)
        complaints += [f"{place}: {complaint}" for complaint in rule.broken_by(place, text)]
    assert not complaints, "\n".join(["", *complaints])
