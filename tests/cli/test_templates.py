from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.client.sync import Client
from fairlane.core.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses on the server they share."""
    return f"trip {next(_numbers)}"


def _create(run: Run, side: list[str], name: str, *more: str) -> dict[str, Any]:
    flags = ("--name", name, "--instruction", "Go to {{city}}, {{n}} of you")
    params = ("--param", "city:required", "--param", "n:number=2")
    ran = run("templates", "create", *flags, *params, *more, "--json", *side)
    assert ran.code == 0, ran
    template: dict[str, Any] = ran.json
    return template


def _use(run: Run, side: list[str], name: str, *more: str) -> Ran:
    return run("templates", "use", name, *more, *side)


# -------------------------------------------------------------------- create


def test_create_says_what_has_been_kept(run: Run, side: list[str], name: str) -> None:
    ran = run("templates", "create", "--name", name, "--instruction", "Go", *side)
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(rf"created tpl_[0-9a-f]+ \({name}\)\n", ran.out)


def test_every_option_of_create_reaches_the_template(run: Run, server: Server, name: str) -> None:
    more = ("--description", "Trips", "--priority", "high", "--timeout", "5s")
    template = _create(run, ["--url", server.url], name, *more, "--metadata", '{"a": 1}')
    expected = {
        "name": name,
        "description": "Trips",
        "instruction": "Go to {{city}}, {{n}} of you",
        "priority": "high",
        "parameters": [
            {"name": "city", "type": "string", "required": True},
            {"name": "n", "type": "number", "required": False, "default": 2},
        ],
        "timeoutMs": 5000,
        "metadata": {"a": 1},
    }
    assert {field: template[field] for field in expected} == expected


@pytest.mark.parametrize(
    ("text", "parameter"),
    [
        ("x", {"name": "x", "type": "string", "required": False}),
        ("x:required", {"name": "x", "type": "string", "required": True}),
        ("x:number:required", {"name": "x", "type": "number", "required": True}),
        ("x=5", {"name": "x", "type": "string", "required": False, "default": "5"}),
        ("x=a=b:c", {"name": "x", "type": "string", "required": False, "default": "a=b:c"}),
        ("x=", {"name": "x", "type": "string", "required": False, "default": ""}),
        ("x:number=1.5", {"name": "x", "type": "number", "required": False, "default": 1.5}),
        ("x:boolean=true", {"name": "x", "type": "boolean", "required": False, "default": True}),
    ],
)
def test_parameters_have_a_short_spelling(
    run: Run, server: Server, name: str, text: str, parameter: dict[str, Any]
) -> None:
    flags = ("--name", name, "--instruction", "Go", "--param", text, "--json")
    ran = run("templates", "create", *flags, "--url", server.url)
    assert ran.json["parameters"] == [parameter]


@pytest.mark.parametrize("text", ["", ":number", "x:number:yes", "x:number:required:more"])
def test_a_parameter_that_cannot_be_read_is_reported(run: Run, text: str) -> None:
    ran = run("templates", "create", "--name", "x", "--instruction", "x", "--param", text)
    assert ran.code == 2
    assert f"must be NAME[:TYPE][:required][=DEFAULT], not {text!r}" in ran.err


def test_a_template_may_come_from_a_file_and_options_win(
    run: Run, side: list[str], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "template.json"
    document = {
        "name": "other",
        "instruction": "Go",
        "timeout": 9,
        "llmConfig": {"model": "m", "apiKey": "sk-1"},
    }
    file.write_text(json.dumps(document))
    flags = ("--file", str(file), "--name", name, "--timeout", "5")
    template = run("templates", "create", *flags, "--json", *side).json
    assert (template["name"], template["instruction"]) == (name, "Go")
    assert template["timeoutMs"] == 5000
    assert template["llmConfig"] == {"model": "m", "apiKey": "***"}


@pytest.mark.parametrize("text", ["[]", "nonsense"])
def test_a_file_without_a_template_is_reported(run: Run, tmp_path: Path, text: str) -> None:
    file = tmp_path / "template.json"
    file.write_text(text)
    ran = run("templates", "create", "--file", str(file))
    assert ran.code == 2
    assert ran.err.startswith(f"error: {file} ")


def test_a_bad_template_is_refused_with_all_its_problems(run: Run, side: list[str]) -> None:
    ran = run("templates", "create", "--instruction", "{{x}}", "--priority", "urgent", *side)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        "error: invalid template: missing required field 'name'; field 'priority' must be "
        "a whole number or one of critical, high, low, normal\n"
    )


def test_a_name_that_is_taken_is_refused(run: Run, side: list[str], name: str) -> None:
    _create(run, side, name)
    ran = run("templates", "create", "--name", name, "--instruction", "x", *side)
    assert ran.code == 4
    assert ran.err.startswith(f"error: a template named '{name}' already exists; ")


# -------------------------------------------------------------------- list and show


def test_templates_are_listed_newest_first(run: Run, side: list[str], name: str) -> None:
    older, newer = _create(run, side, f"{name} a"), _create(run, side, f"{name} b")
    page = run("templates", "list", "--limit", "2", "--json", *side).json
    assert [one["id"] for one in page["templates"]] == [newer["id"], older["id"]]
    ran = run("templates", "list", "--limit", "2", *side)
    header, first, second = ran.out.splitlines()
    assert header.split() == ["TEMPLATE", "NAME", "USED", "CREATED", "PARAMETERS"]
    assert re.fullmatch(rf"{newer['id']}  {name} b +0  (?:just now|\d+ s ago) +city \[n\]", first)
    assert second.startswith(f"{older['id']}  {name} a ")
    page = run("templates", "list", "--name", f"{name} a", "--json", *side).json
    assert [one["id"] for one in page["templates"]] == [older["id"]]


def test_a_long_list_goes_on(run: Run, server: Server, name: str) -> None:
    side = ["--url", server.url]
    ids = [_create(run, side, f"{name} {letter}")["id"] for letter in "abc"][::-1]
    ran = run("templates", "list", "--limit", "1", *side)
    (cursor,) = re.findall(
        r"^more items follow; add --cursor (\d+), or --all$", ran.err, re.MULTILINE
    )
    page = run("templates", "list", "--limit", "1", "--cursor", cursor, "--json", *side).json
    assert [one["id"] for one in page["templates"]] == ids[1:2]
    ran = run("templates", "list", "--all", "--limit", "1", *side)
    assert [line.split()[0] for line in ran.out.splitlines()[1:4]] == ids
    assert ran.err == ""


def test_a_template_is_shown_by_name_and_by_id(run: Run, side: list[str], name: str) -> None:
    template = _create(run, side, name, "--description", "Trips")
    assert run("templates", "show", name, "--json", *side).json == template
    ran = run("templates", "show", template["id"], *side)
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in ran.out.splitlines()[:4])
    assert lines == {
        "template": template["id"],
        "name": name,
        "used": "0 times",
        "description": "Trips",
    }
    assert re.search(r"^instruction +Go to {{city}}, {{n}} of you$", ran.out, re.MULTILINE)
    assert re.search(r"^parameter +city: string, required$", ran.out, re.MULTILINE)
    assert re.search(r"^parameter +n: number, default 2$", ran.out, re.MULTILINE)
    assert re.search(r"^created +\S+Z \((?:just now|\d+ s ago)\)$", ran.out, re.MULTILINE)


@pytest.mark.parametrize("verb", ["show", "use", "delete", "update"])
def test_an_unknown_template_is_reported(run: Run, side: list[str], verb: str) -> None:
    ran = run("templates", verb, "nowhere", *side)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("error: no template is named 'nowhere'; ")
    ran = run("templates", verb, "tpl_nowhere", *side)
    assert (ran.code, ran.err) == (3, "error: template not found\n")
    assert run("templates", verb, "", *side).code == 3


# -------------------------------------------------------------------- update and delete


def test_an_update_changes_what_it_names(run: Run, side: list[str], name: str) -> None:
    before = _create(run, side, name)
    after = run("templates", "update", name, "--description", "New", "--json", *side).json
    assert after == {**before, "description": "New", "updatedAt": after["updatedAt"]}
    flags = ("--name", f"{name} new", "--instruction", "Go", "--param", "x")
    ran = run("templates", "update", name, *flags, *side)
    assert (ran.code, ran.out) == (0, f"updated {before['id']} ({name} new)\n")
    after = run("templates", "show", before["id"], "--json", *side).json
    assert [parameter["name"] for parameter in after["parameters"]] == ["x"]


def test_deleted_templates_are_gone(run: Run, side: list[str], name: str) -> None:
    ids = [_create(run, side, f"{name} {letter}")["id"] for letter in "ab"]
    ran = run("templates", "delete", ids[0], "nowhere", f"{name} b", *side)
    assert (ran.code, ran.out) == (3, f"deleted {ids[0]}\ndeleted {ids[1]}\n")
    assert run("templates", "show", ids[0], *side).code == 3


# -------------------------------------------------------------------- use


def test_a_use_shows_what_it_would_submit(run: Run, side: list[str], name: str) -> None:
    template = _create(run, side, name)
    ran = _use(run, side, name, "--set", "city=1e5 {{n}}", "--set", "n=007", "--json")
    assert ran.code == 0, ran
    assert ran.json["instruction"] == "Go to 1e5 {{n}}, 7 of you"
    assert ran.json["metadata"] == {"templateId": template["id"], "templateName": name}
    out = _use(run, side, name, "--set", "city=Rome").out
    assert re.search(r"^instruction +Go to Rome, 2 of you$", out, re.MULTILINE)
    assert re.search(r"^priority +normal$", out, re.MULTILINE)
    assert re.search(r"^used +2 times$", run("templates", "show", name, *side).out, re.MULTILINE)


def test_a_use_can_submit_the_task(run: Run, side: list[str], name: str, agent: str) -> None:
    template = _create(run, side, name)
    flags = ("--set", "city=Rome", "--submit", "--agent", agent, "--priority", "5")
    more = ("--lane", "team", "--session", f"s:{agent}", "--override", 'metadata={"run": 7}')
    ran = _use(run, side, name, *flags, *more, "--json")
    assert ran.code == 0, ran
    assert ran.json["templateId"] == template["id"]
    task = run("show", ran.json["taskId"], "--json", *side).json
    assert task["instruction"] == "Go to Rome, 2 of you"
    assert (task["agentId"], task["priority"], task["lane"]) == (agent, 5, "team")
    assert (task["sessionKey"], task["metadata"]["run"]) == (f"s:{agent}", 7)
    out = _use(run, side, name, *flags).out
    assert re.fullmatch(r"submitted tsk_[0-9a-f]+ \(queued, position \d+\)\n", out)


def test_waiting_for_a_use_submits_it(run: Run, side: list[str], name: str, agent: str) -> None:
    """Nobody here runs instructions, so the time is up with the task as it is."""
    _create(run, side, name)
    ran = _use(run, side, name, "--set", "city=Rome", "--agent", agent, "--wait", "0")
    assert ran.code == 124, ran
    assert re.search(r"^state +queued", ran.out, re.MULTILINE)
    assert "not finished yet" in ran.err


def test_a_repeated_use_with_the_same_key_is_one_task(
    run: Run, side: list[str], name: str, agent: str
) -> None:
    _create(run, side, name)
    flags = ("--set", "city=Rome", "--submit", "--agent", agent, "--idempotency-key", "k")
    first, again = (_use(run, side, name, *flags, "--json").json for _ in range(2))
    assert first == again
    assert run("templates", "show", name, "--json", *side).json["usageCount"] == 1


def test_a_key_is_of_no_use_without_a_task(run: Run) -> None:
    ran = run("templates", "use", "x", "--idempotency-key", "k")
    assert (ran.code, ran.err) == (2, "error: --idempotency-key needs --submit\n")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "missing required parameter: city"),
        (("--set", "cty=x"), "unknown parameter 'cty'; did you mean city?"),
        (("--set", "city=x", "--set", "n="), "Parameter 'n' must be a number, got: string"),
        (("--set", "city=x", "--override", "agnetId=x"), "unknown field 'overrides.agnetId'"),
    ],
)
def test_a_use_with_wrong_values_is_reported(
    run: Run, side: list[str], name: str, flags: tuple[str, ...], told: str
) -> None:
    _create(run, side, name)
    ran = _use(run, side, name, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {told}")


def test_a_value_needs_a_name(run: Run) -> None:
    ran = run("templates", "use", "x", "--set", "city")
    assert ran.code == 2
    assert "must be NAME=VALUE, not 'city'" in ran.err


# -------------------------------------------------------------------- complaints, store, client


def test_an_unknown_verb_or_option_is_reported_with_the_nearest(run: Run) -> None:
    ran = run("templates", "lsit")
    assert ran.code == 2
    assert ran.err == "error: unknown command 'templates lsit'; did you mean list?\n"
    ran = run("templates", "create", "--nmae", "x")
    assert (ran.code, ran.err) == (2, "error: unknown option --nmae; did you mean --name?\n")
    assert run("templates").code == 2


def test_templates_wait_in_a_store_that_nobody_serves(run: Run, tmp_path: Path) -> None:
    side = ["--store", f"sqlite:///{tmp_path / 'own.db'}"]
    assert run("templates", "list", *side).code == 6
    template = _create(run, side, "trip")
    assert run("templates", "list", "--json", *side).json["templates"] == [template]
    assert run("templates", "delete", "trip", *side).code == 0
    assert run("templates", "list", *side).out == "no templates\n"


def test_what_others_wrote_cannot_move_the_cursor(run: Run, server: Server, name: str) -> None:
    side = ["--url", server.url]
    flags = ("--name", name, "--instruction", "a\x1b[2Jb\nc", "--description", "d\x1b]0;x\x07e")
    assert run("templates", "create", *flags, *side).code == 0
    out = run("templates", "show", name, *side).out
    assert "\x1b" not in out
    assert re.search(r"^instruction +ab\n +c$", out, re.MULTILINE)


def test_the_client_keeps_changes_and_uses_templates(server: Server, name: str) -> None:
    with Client(server.url) as client:
        template = client.create_template({"name": name, "instruction": "Go"})
        assert client.template(template["id"]) == template
        assert client.templates(name=name).templates == [template]
        assert client.update_template(template["id"], {"priority": "low"})["priority"] == "low"
        assert client.use_template(template["id"])["instruction"] == "Go"
        answer = client.use_template(template["id"], submit=True, overrides={"lane": "team"})
        assert client.show(answer["taskId"])["lane"] == "team"
        assert client.delete_template(template["id"]).deleted
        with pytest.raises(NotFound, match="template not found"):
            client.template(template["id"])
