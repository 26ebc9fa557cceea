"""Rules about the table of tools: nothing is forgotten, nothing is offered twice or in silence."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from mcp import Client

from fairlane.cli import commands as parser
from fairlane.client.methods import AsyncMethods
from fairlane.core.errors import InvalidSettings
from fairlane.core.submissions import TaskRequest
from fairlane.mcp import toolsets
from fairlane.mcp.calls import Calls
from fairlane.mcp.schemas import arguments, schema_of
from fairlane.mcp.server import INSTRUCTIONS, build
from fairlane.mcp.table import TOOLS
from fairlane.mcp.tool import STRANGERS, Scope, Tool
from fairlane.schema import catalog
from fairlane.schema.operation import Operation
from fairlane.schema.tasks import ListTasks, TaskPage

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "mcp.md").read_text("utf-8")

LEFT_OUT = {
    "decide": "approve and reject call it",
    "link_approval": "is for operators: its answer is a secret",
    "ask_lease": "a model asks the person that it talks to",
    "suspend_lease": "waits are for programs that are run again from their beginning",
    "lease_inbox": "a model reads what is said to it in its own conversation",
    "take_inbox": "a model reads what is said to it in its own conversation",
    "send_signal": "is for the system that a run waits for",
    "effect_lease": "effects are for programs that are run again from their beginning",
    "resolve_effect": "a person looks whether it happened, outside of what a model can see",
    "checkpoint_lease": "steps are for programs that are run again from their beginning",
    "task_stats": "is for clients of BrowserOS; count_tasks says the same",
    "perform": "is no verb, but how operations are carried out",
    "wait_once": "wait asks it as often as it takes",
    "task_events": "events takes the id of a task",
    "delete": "the same as cancel, by another route",
    "prune": "is for operators, and happens by itself",
    "withdraw_leases": "no lease waits here",
    "output_lease": "renew takes output too",
    "submit_lines": "for files of any length; a model submits a batch",
    "report_leases": "for workers that run many tasks; a model reports on one at a time",
    "queue_import": "is for a person who moves in",
    "cron_job_runs": "cron_runs does it with job",
    "history": "draws curves, for people",
    "task_timeline": "draws a chart, for people",
    "batch_timeline": "draws a chart, for people",
    "resource_history": "draws curves, for people",
    "request_permit": "a model has no calls to meter; workers do",
    "settle_permit": "a model has no calls to meter; workers do",
    "lane": "lanes lists them all",
    "nodes": "is for operators",
    "live": "is for probes",
    "ready": "is for probes",
    "whoami": "a tool that is not allowed says so",
    "create_token": "is for operators: no agent makes tokens",
    "tokens": "is for operators",
    "audit": "is for operators",
    "revoke_token": "is for operators",
    "deliveries": "is for who looks after receivers",
    "delivery": "is for who looks after receivers",
    "redeliver": "is for who looks after receivers",
    "webhooks": "is for operators",
    "webhook": "is for operators",
    "create_webhook": "is for operators: its answer is a secret",
    "rotate_webhook": "is for operators: its answer is a secret",
    "enable_webhook": "is for operators",
    "delete_webhook": "is for operators",
}

each = pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)


async def _perform(*_: Any) -> Any:
    raise AssertionError("nobody is asked here")


def test_every_verb_is_a_tool_or_left_out_for_a_reason() -> None:
    verbs = {
        name
        for name, _ in inspect.getmembers(AsyncMethods, inspect.isfunction)
        if not name.startswith("_")
    }
    offered = {tool.verb.__name__ for tool in TOOLS.values()}
    assert verbs - offered == set(LEFT_OUT)


def test_no_two_tools_call_one_verb() -> None:
    assert len({tool.verb for tool in TOOLS.values()}) == len(TOOLS)


@each
def test_a_tool_has_a_command_or_a_reason_to_have_none(tool: Tool) -> None:
    assert bool(tool.command) != bool(tool.alone)
    assert not tool.command or tool.command in parser.build()[1]


LISTS = {
    "tasks": "GET /tasks",
    "batches": "GET /batches",
    "queue_list": "GET /queue",
    "sessions_list": "GET /sessions",
    "policy_versions": "GET /policy/versions",
    "templates_list": "GET /templates",
    "cron_list": "GET /cron/jobs",
    "cron_runs": "GET /cron/jobs/{id}/runs",
}
OPTIONS = {"agentId": "agent", "sessionKey": "session", "batchId": "batch", "enabled": "on"}


def _filters(route: str) -> tuple[str, ...]:
    (operation,) = (
        one for one in catalog.OPERATIONS.values() if f"{one.method} {one.path}" == route
    )
    return operation.part("query").__struct_encode_fields__


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_the_filters_of_its_route_as_a_tool_and_as_a_command(name: str) -> None:
    tool, filters = TOOLS[name], _filters(LISTS[name])
    assert set(filters) <= set(tool.schema["properties"])
    leaf = parser.build()[1][tool.command]
    kebab = {word: re.sub("(?=[A-Z])", "-", word).lower() for word in filters}
    assert all(leaf.knows(f"--{OPTIONS.get(word, kebab[word])}") for word in filters)


@each
def test_a_tool_says_what_it_does(tool: Tool) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", tool.name)
    assert tool.about.endswith(".")
    assert tool.scope in get_args(Scope)
    assert (tool.scope == "read") == (not tool.writes)
    assert not (tool.destructive and not tool.writes)


@each
def test_the_schema_of_a_tool_is_one_that_any_client_understands(tool: Tool) -> None:
    Draft202012Validator.check_schema(tool.schema)
    assert tool.schema["type"] == "object"
    assert tool.schema["additionalProperties"] is False
    assert "$ref" not in str(tool.schema)
    assert all(shape["description"] for shape in tool.schema["properties"].values())


@each
def test_a_tool_is_documented(tool: Tool) -> None:
    row = next((line for line in DOCS.splitlines() if line.startswith(f"| {tool.scope} |")), "")
    named = tool.command in {"", tool.name.replace("_", " ")}
    assert (f"`{tool.name}`" if named else f"`{tool.name}` ({tool.command})") in row


def test_an_argument_is_described_by_the_field_of_its_request() -> None:
    submitted = TOOLS["submit"].schema["properties"]
    described = schema_of(TaskRequest)["properties"]
    shared = submitted.keys() & described.keys()
    assert {"handler", "deadline", "callbackUrl", "dependsOn"} <= shared
    for name in shared:
        assert submitted[name]["description"] == described[name]["description"]
    listed = TOOLS["tasks"].schema["properties"]
    assert (
        listed["dependsOn"]["description"] == catalog.OPERATIONS["tasks"].descriptions["depends_on"]
    )
    assert all(
        one["description"] for tool in TOOLS.values() for one in tool.schema["properties"].values()
    )


def test_a_model_may_give_one_text_where_a_list_is_meant() -> None:
    kind = TOOLS["tasks"].arguments
    assert arguments({"state": "failed,parked"}, kind) == {"states": ["failed", "parked"]}
    assert arguments({"state": ["failed"], "text": "a,b"}, kind) == {
        "states": ["failed"],
        "text": "a,b",
    }


def test_a_time_is_declared_as_one() -> None:
    assert TOOLS["submit"].schema["properties"]["deadline"]["format"] == "date-time"
    assert "format" not in TOOLS["submit"].schema["properties"]["handler"]


def test_tools_that_tell_what_tasks_contain_say_that_it_is_data() -> None:
    told = {"tasks", "show", "wait", "events", "output", "lease", "queue_list", "queue_show"}
    told |= {"approvals", "approval"}
    assert all(STRANGERS in TOOLS[name].description for name in told)
    assert STRANGERS in INSTRUCTIONS


async def test_annotations_say_what_a_tool_may_do() -> None:
    async with Client(build(_perform, writes=True, sets=["all"])) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == {name for name, tool in TOOLS.items() if not tool.decides}
    cancel, show = listed["cancel"].annotations, listed["show"].annotations
    assert cancel
    assert show
    assert (cancel.read_only_hint, cancel.destructive_hint) == (False, True)
    assert (show.read_only_hint, show.open_world_hint) == (True, False)
    assert listed["cancel"].meta == {"fairlane/scope": "cancel"}


async def test_deciding_for_a_person_needs_a_permission_of_its_own() -> None:
    given = {"approvalId": "apr_1", "hash": "x"}
    async with Client(build(_perform, writes=True)) as client:
        refused = await client.call_tool("approve", given)
    assert refused.is_error
    assert "--allow-approve" in str(refused.content)
    async with Client(build(_perform, writes=False, decides=True)) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
    assert {"approve", "reject", "approvals"} <= listed
    assert "submit" not in listed


# -------------------------------------------------------------------- sets

# Measured on JSON schemas, a token has 3.5 to 4 characters.
TOKENS_MAX = 2500
CHARACTERS_PER_TOKEN = 3.5


async def _listed(**options: Any) -> dict[str, Any]:
    async with Client(build(_perform, **options)) as client:
        return {tool.name: tool for tool in (await client.list_tools()).tools}


@pytest.mark.parametrize("writes", [False, True], ids=["read", "submit"])
async def test_the_tools_of_a_working_model_are_few_and_short(*, writes: bool) -> None:
    tools = await _listed(writes=writes)
    assert len(tools) == 12
    shapes = [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools.values()]
    size = len(json.dumps(shapes, separators=(",", ":")))
    assert size / CHARACTERS_PER_TOKEN < TOKENS_MAX
    assert {"tasks", "show", "why", "wait", "output", "handlers"} <= set(tools)
    assert ("submit" in tools) == writes


async def test_a_set_is_listed_and_allows_what_it_lists() -> None:
    read = await _listed(writes=False)
    assert not any(TOOLS[name].writes for name in read)
    submit = await _listed(writes=False, sets=["submit"])
    assert {"submit", "submit_batch", "cancel"} <= set(submit)
    both = await _listed(writes=False, sets=["submit", "operate"])
    assert set(both) > set(submit) | set(read)
    async with Client(build(_perform, writes=False, sets=["submit"])) as client:
        allowed = await client.call_tool("submit", {"handler": 7})
        refused = await client.call_tool("policy_set", {"document": {}})
        unlisted = await client.call_tool("cron_list", {"limit": "many"})
    codes = [one.structured_content["code"] for one in (allowed, refused, unlisted)]
    assert codes == ["invalid_request", "forbidden", "invalid_request"]


async def test_all_tools_are_listed_on_request_but_not_allowed_by_it() -> None:
    everything = await _listed(writes=False, sets=["all"])
    assert set(everything) == {name for name, tool in TOOLS.items() if not tool.writes}
    assert everything["tasks"].input_schema == TOOLS["tasks"].schema
    approving = await _listed(writes=False, sets=["approve"])
    assert set(approving) == {"approvals", "approval"}


@pytest.mark.parametrize("name", sorted(set(toolsets.SETS) - {"all"}))
def test_a_short_schema_has_arguments_of_the_whole_one(name: str) -> None:
    for tool in toolsets.members([name]).values():
        short = toolsets.brief_schema(tool)
        Draft202012Validator.check_schema(short)
        assert short["properties"].keys() <= tool.schema["properties"].keys()
        assert set(tool.schema.get("required", ())) <= short["properties"].keys()
    for tool_name, kept in toolsets.COMMON.items():
        assert set(kept) <= TOOLS[tool_name].schema["properties"].keys()


def test_an_unknown_set_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidSettings, match="no tool set 'submt'; did you mean submit"):
        toolsets.chosen("read,submt")


def test_states_are_listed_for_a_model() -> None:
    states = TOOLS["tasks"].schema["properties"]["state"]["items"]["enum"]
    assert {"queued", "parked", "failed"} <= set(states)


async def test_a_missing_argument_is_named() -> None:
    async with Client(build(_perform, writes=False)) as client:
        wrong = await client.call_tool("wait", {"id": "tsk_1"})
    assert "taskId" in wrong.structured_content["error"]
    assert "'id'" in wrong.structured_content["error"]


# -------------------------------------------------------------------- refusals


async def test_a_defect_is_reported_without_its_insides(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(build(_perform, writes=True)) as client:
        result = await client.call_tool("stats", {})
    assert result.is_error
    assert result.structured_content["code"] == "internal_error"
    assert "nobody is asked" not in str(result)
    assert "nobody is asked here" in caplog.text


async def test_what_is_null_is_as_good_as_absent() -> None:
    asked: list[Any] = []

    async def perform(operation: Operation[Any, Any], request: Any) -> Any:
        asked.append((operation.name, request))
        return TaskPage(tasks=[], count=0)

    async with Client(build(perform, writes=False)) as client:
        await client.call_tool("tasks", {"limit": None, "agentId": "a1", "state": None})
    assert asked == [("tasks", ListTasks(agent="a1"))]


# -------------------------------------------------------------------- the extra


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_server_does_not_load_the_sdk_before_it_is_asked() -> None:
    code = "import sys, fairlane.cli.server; print({'mcp', 'pydantic'} & set(sys.modules))"
    assert _python(code).stdout == "set()\n"


WITHOUT = """
import importlib.machinery, sys
found = importlib.machinery.PathFinder.find_spec
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name == "mcp" else found(name, path, target)
sys.meta_path = [Without if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
from fairlane.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    "arguments", [["mcp"], ["serve", "--mcp-writes", "--store", "sqlite://:memory:", "--port", "0"]]
)
def test_without_the_extra_it_says_what_to_install(arguments: list[str]) -> None:
    ran = _python(WITHOUT.format(arguments=arguments))
    assert ran.returncode == 6
    assert "pip install '.[mcp]' in a clone of fairlane" in ran.stderr
    assert ran.stdout == ""


def test_the_table_calls_verbs_of_its_own_class() -> None:
    assert all(getattr(Calls, tool.verb.__name__) is tool.verb for tool in TOOLS.values())
