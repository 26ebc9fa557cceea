"""Everything a user meets is documented: routes, codes, states, settings, policy, commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fairlane import config
from fairlane.cli import commands as parser
from fairlane.core import errors, lifecycle
from fairlane.core.policy import Policy, to_document
from fairlane.embedded.app import Fairlane
from fairlane.http.app import HttpApp
from fairlane.http.messages import STATUS
from fairlane.store import queries
from fairlane.store.tables import tasks

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")


def error_codes() -> set[str]:
    found: set[str] = set()
    pending: list[type[errors.FairlaneError]] = [errors.FairlaneError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        found.add(kind.code)
    return found - {"error"}


async def test_every_route_is_documented() -> None:
    app = Fairlane("sqlite://:memory:")
    routes = HttpApp(app.node, app.guard.check).routes
    app.node.views.close()
    text = read("http.md")
    missing = [
        f"{method} {path}"
        for path, methods in routes.items()
        for method in methods
        if f"`{method} {path}`" not in text
    ]
    assert missing == []


def test_every_code_that_http_can_answer_has_a_status() -> None:
    only_elsewhere = {
        "execution_failed", "task_failed", "invalid_settings", "store_in_use", "store_missing",
        "store_moved",
        "unreachable", "queue_dropped", "interrupted", "stopped", "session_reset", "lane_cleared",
        "resource_busy", "rolled_back", "withdrawn",
        "approval_denied", "approval_rejected", "approval_expired", "child_failed",
        "effect_not_done",
    }  # fmt: skip
    assert error_codes() - only_elsewhere - set(STATUS) == set()


async def test_every_scope_is_documented() -> None:
    """Who may ask a route, and whether a token that is one agent's may."""
    app = Fairlane("sqlite://:memory:")
    routes = HttpApp(app.node, app.guard.check).routes
    app.node.views.close()
    rows = re.findall(r"^\| `([A-Z]+ /[^`]*)` \| (\w+)( \*)? \|", read("http.md"), re.MULTILINE)
    told = {(route, scope, star == "") for route, scope, star in rows}
    assert told == {
        (f"{method} {path}", "none" if route.open else route.scope or "any", route.agents)
        for path, methods in routes.items()
        for method, route in methods.items()
    }


def test_every_state_is_documented() -> None:
    text = read("http.md")
    assert [state for state in lifecycle.STATES if f"| `{state}` |" not in text] == []


def test_every_setting_is_documented_and_has_the_flag_that_its_name_says() -> None:
    text = read("settings.md")
    names = config.Settings.__struct_fields__
    assert [name for name in names if f"| `{name}` " not in text] == []
    flags = parser.build("serve")[1]["serve"].format_help()
    missing = {name for name in names if f"--{name.replace('_', '-')} " not in flags}
    assert missing == set(re.findall(r"^\| `(\w+)` \(.*no flag\)", text, re.MULTILINE))


def keys_of(value: Any) -> set[str]:
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(keys_of(inner) for inner in value.values()))


def test_every_key_of_the_policy_is_documented() -> None:
    text = read("policy.md")
    assert [key for key in sorted(keys_of(to_document(Policy()))) if key not in text] == []


def test_every_statement_is_used() -> None:
    source = "".join(file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))
    deleted_in_a_loop = {f"{name}_delete" for name in tasks.DELETED_WITH_TASK}
    unused = {
        name
        for dialect in (queries.SQLITE, queries.POSTGRES)
        for name in queries.load(dialect)
        if f'"{name}"' not in source
    }
    # Runs of cron jobs owe webhooks as well; a fresh retry forgets steps.
    by_name_too = {"delivery_delete", "checkpoint_delete", "suspension_delete", "awaiting_delete"}
    assert unused == deleted_in_a_loop - by_name_too


def test_every_command_is_documented() -> None:
    text = read("cli.md")
    commands = re.findall(r"^    ([a-z]+) ", parser.build()[0].format_help(), re.MULTILINE)
    assert len(commands) >= 9
    assert [name for name in commands if f"`fairlane {name}" not in text] == []
