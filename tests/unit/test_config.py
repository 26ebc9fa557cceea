"""Settings: the agent that runs instructions, the ceilings of lanes, what agents may do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import config
from fairlane.cli import commands as parser
from fairlane.cli.commands.serve import SERVE_SETTINGS
from fairlane.cli.server import PolicyFile, serve
from fairlane.compat.policies import merge
from fairlane.config import InstanceSetting
from fairlane.core.errors import InvalidPolicy, InvalidSettings, OperatorError
from fairlane.core.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def settings(
    folder: Path, flags: dict[str, Any] | None = None, /, **environment: str
) -> config.Settings:
    return config.load(flags, environment=environment, folder=folder)


def problems(folder: Path, flags: dict[str, Any] | None = None, /, **environment: str) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        settings(folder, flags, **environment)
    return caught.value.problems


# --- the agent -----------------------------------------------------------------------------------


def test_there_is_no_agent_unless_it_is_named(folder: Path) -> None:
    assert settings(folder).agent is None
    assert settings(folder, FAIRLANE_AGENT="").agent is None


def test_the_agent_may_stand_in_the_file_the_environment_and_a_flag(folder: Path) -> None:
    (folder / "fairlane.toml").write_text('agent = "http://file:1/"\n')
    assert settings(folder).agent == InstanceSetting("http://file:1")
    variable = {"FAIRLANE_AGENT": "http://variable:1"}
    assert settings(folder, **variable).agent == InstanceSetting("http://variable:1")
    flags = vars(parser.parse(["serve", "--agent", "http://flag:1"]))
    flags = {name: flags[name] for name in SERVE_SETTINGS}
    assert settings(folder, flags, **variable).agent == InstanceSetting("http://flag:1")


def test_the_agent_may_have_a_token(folder: Path) -> None:
    (folder / "token").write_text("from a file\n")
    (folder / "token").chmod(0o600)
    of_variable = settings(folder, FAIRLANE_AGENT="http://a:1#token=env:T", T="hush").agent
    of_file = settings(folder, FAIRLANE_AGENT=f"http://a:1#token=file:{folder}/token").agent
    assert of_variable == InstanceSetting("http://a:1", "hush")
    assert of_file == InstanceSetting("http://a:1", "from a file")
    assert "hush" not in repr(settings(folder, FAIRLANE_AGENT="http://a#token=env:T", T="hush"))


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("a:1", "agent 'a:1' must be http(s)://… or …#token=env:NAME"),
        ("http://a#token=secret", "agent 'http://a' must be http(s)://… or …#token=env:NAME"),
        ("http://a#token=env:T", "agent http://a: token: the variable T is not set"),
        ("http://a#token=file:none", "agent http://a: token: the file none cannot be read: "),
    ],
)
def test_an_agent_that_cannot_be_used_is_named(folder: Path, value: str, complaint: str) -> None:
    (problem,) = problems(folder, FAIRLANE_AGENT=value)
    assert problem.startswith(complaint)


# --- ceilings of lanes ---------------------------------------------------------------------------


def test_no_ceiling_is_set_unless_it_is_named(folder: Path) -> None:
    assert settings(folder).lanes == {}
    assert settings(folder, TASK_QUEUE_MAX_CONCURRENT="", FAIRLANE_LANE_MAIN="").lanes == {}


@pytest.mark.parametrize(
    ("variable", "lane"),
    [
        ("TASK_QUEUE_MAX_CONCURRENT", "instruction"),
        ("FAIRLANE_LANE_INSTRUCTION", "instruction"),
        ("FAIRLANE_LANE_instruction", "instruction"),
        ("FAIRLANE_LANE_BROWSER", "browser"),
        ("FAIRLANE_LANE_MY_LANE_2", "my_lane_2"),
        ("FAIRLANE_LANE_myLane", "myLane"),
    ],
)
def test_a_variable_sets_the_ceiling_of_a_lane(folder: Path, variable: str, lane: str) -> None:
    assert settings(folder, **{variable: "3"}).lanes == {lane: 3}


def test_several_ceilings_stand_in_one_variable_or_a_table(folder: Path) -> None:
    assert settings(folder, FAIRLANE_LANES="main=4 my-lane=5").lanes == {"main": 4, "my-lane": 5}
    (folder / "fairlane.toml").write_text("[lanes]\nmain = 6\n")
    assert settings(folder).lanes == {"main": 6}


def test_the_more_particular_name_of_a_ceiling_wins(folder: Path) -> None:
    (folder / "fairlane.toml").write_text("lanes = {instruction = 2, main = 9}\n")
    theirs, ours = {"TASK_QUEUE_MAX_CONCURRENT": "3"}, {"FAIRLANE_LANE_INSTRUCTION": "4"}
    assert settings(folder).lanes == {"instruction": 2, "main": 9}
    assert settings(folder, **theirs).lanes == {"instruction": 3, "main": 9}
    assert settings(folder, **ours, **theirs).lanes == {"instruction": 4, "main": 9}


def test_the_variables_of_goclaw_are_ceilings_of_its_four_lanes(folder: Path) -> None:
    names = ("MAIN", "SUBAGENT", "TEAM", "CRON")
    theirs = {f"GOCLAW_LANE_{name}": str(n) for n, name in enumerate(names, 1)}
    found = settings(folder, **theirs, GOCLAW_LANE_OTHER="7", GOCLAW_HOME="/x").lanes
    assert found == {"main": 1, "subagent": 2, "team": 3, "cron": 4}
    (folder / "fairlane.toml").write_text("lanes = {main = 8, team = 9}\n")
    theirs["GOCLAW_LANE_CRON"] = ""
    ours = settings(folder, **theirs, FAIRLANE_LANE_MAIN="5").lanes
    assert ours == {"main": 5, "subagent": 2, "team": 3}


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "100001", "\u0663", "9" * 30, " 3"])
@pytest.mark.parametrize(
    "variable", ["TASK_QUEUE_MAX_CONCURRENT", "GOCLAW_LANE_CRON", "FAIRLANE_LANE_MAIN"]
)
def test_a_ceiling_that_is_none_is_named(folder: Path, variable: str, value: str) -> None:
    assert problems(folder, **{variable: value}) == [
        f"{variable} must be a whole number from 1 to 100000, not {value!r}"
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("lanes = 3", "lanes must be a table of ceilings"),
        ('lanes = ["main"]', "lanes must be a table of ceilings"),
        ("lanes = {main = true}", "lanes.main must be a whole number"),
        ("lanes = {main = 2.0}", "lanes.main must be a whole number"),
        ('lanes = {"a b" = 2}', "lanes.a b: 'a b' is not a valid lane name"),
    ],
)
def test_a_table_of_ceilings_that_is_none_is_named(folder: Path, text: str, complaint: str) -> None:
    (folder / "fairlane.toml").write_text(text)
    (problem,) = problems(folder)
    assert problem.startswith(complaint)


def test_a_variable_without_the_name_of_a_lane_is_refused(folder: Path) -> None:
    assert problems(folder, FAIRLANE_LANE_="3") == ["FAIRLANE_LANE_: '' is not a valid lane name"]


def test_another_file_may_be_named_and_has_to_be_there(folder: Path) -> None:
    (folder / "other.toml").write_text("port = 8000\n")
    assert settings(folder, FAIRLANE_CONFIG=str(folder / "other.toml")).port == 8000
    none = folder / "none.toml"
    assert problems(folder, FAIRLANE_CONFIG=str(none)) == [
        f"cannot read {none}: No such file or directory"
    ]


def test_all_problems_are_reported_at_once(folder: Path) -> None:
    found = problems(folder, FAIRLANE_AGENT="x", FAIRLANE_LANE_MAIN="0", FAIRLANE_AGNT="y")
    assert len(found) == 3
    assert "unknown variable FAIRLANE_AGNT; did you mean agent?" in found


# --- laid over the policy ------------------------------------------------------------------------


def policy_file(folder: Path, text: str) -> str:
    (folder / "policy.json").write_text(text)
    return str(folder / "policy.json")


def test_ceilings_are_a_policy_of_their_own() -> None:
    document = PolicyFile(None, {"instruction": 3, "new": 5}).load()
    assert document == {"lanes": {"instruction": {"maxInflight": 3}, "new": {"maxInflight": 5}}}
    policy = merge(Policy(), document)
    assert (policy.lanes["instruction"].max_inflight, policy.lanes["new"].max_inflight) == (3, 5)
    assert policy.lanes["instruction"].strategy == "priority"


def test_without_a_file_and_ceilings_there_is_nothing_to_lay_over() -> None:
    assert PolicyFile(None, {}).load() == {}


@pytest.mark.parametrize(
    "text",
    [
        '{"lanes": {"browser": {"maxInflight": 7, "maxQueueSize": 8}}}',
        '{"scheduler": {"maxInflight": 7, "maxQueueSize": 8}}',
    ],
)
def test_ceilings_win_over_the_policy_file(folder: Path, text: str) -> None:
    file = policy_file(folder, text)
    browser = merge(Policy(), PolicyFile(file, {"browser": 3}).load()).lanes
    assert (browser["browser"].max_inflight, browser["browser"].max_queue_size) == (3, 8)


@pytest.mark.parametrize("text", ['{"lanes": 3}', '{"lanes": {"browser": 3}}'])
def test_ceilings_do_not_hide_what_is_wrong_with_the_file(folder: Path, text: str) -> None:
    document = PolicyFile(policy_file(folder, text), {"browser": 3}).load()
    with pytest.raises(InvalidPolicy, match="must be an object"):
        merge(Policy(), document)


PINCHTAB = '{"server": {"token": "hush"}, "scheduler": {"maxInflight": 7, "maxQueueSize": 8}}'


@pytest.mark.parametrize("text", [PINCHTAB, '{"maxInflight": 7, "maxQueueSize": 8}'])
def test_ceilings_win_over_a_configuration_of_pinchtab(folder: Path, text: str) -> None:
    file = PolicyFile(policy_file(folder, text), {"browser": 3, "main": 4})
    lanes = merge(Policy(), file.load()).lanes
    assert (lanes["browser"].max_inflight, lanes["browser"].max_queue_size) == (3, 8)
    assert lanes["main"].max_inflight == 4


def test_what_is_ignored_of_a_file_is_logged_whenever_that_changes(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = policy_file(folder, PINCHTAB)
    file = PolicyFile(name, {})
    note = "ignored, because the document is a PinchTab configuration: "
    with caplog.at_level(logging.INFO, "fairlane"):
        for text in (PINCHTAB, PINCHTAB, "{}", PINCHTAB.replace("server", "browser")):
            policy_file(folder, text)
            file.load()
    assert caplog.messages == [
        f"the policy file {name}: {note}server",
        f"the policy file {name}: {note}browser",
    ]


# --- servers that a program names ----------------------------------------------------------------


def test_a_program_names_servers_as_settings_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hush")
    own = InstanceSetting("http://c:3", "own")
    said = ["http://a:1/", "http://b:2#token=env:SECRET", own]
    assert config.servers("instances", said) == [
        InstanceSetting("http://a:1"),
        InstanceSetting("http://b:2", "hush"),
        own,
    ]
    assert config.servers("agent", "http://a:1") == [InstanceSetting("http://a:1")]


def test_a_server_that_is_none_is_named() -> None:
    with pytest.raises(InvalidSettings) as raised:
        config.servers("instances", ["nowhere", 7])
    assert raised.value.problems == [
        "instances 'nowhere' must be http(s)://… or …#token=env:NAME",
        "instances must be a URL or an InstanceSetting, not int",
    ]


# --- what agents may do --------------------------------------------------------------------------


def test_agents_may_only_read_by_default(folder: Path) -> None:
    assert settings(folder).mcp_writes is False
    assert settings(folder, FAIRLANE_MCP_WRITES="true").mcp_writes is True
    assert settings(folder, FAIRLANE_MCP_WRITES="0").mcp_writes is False
    (folder / "fairlane.toml").write_text("mcp-writes = true\n")
    assert settings(folder).mcp_writes is True
    assert settings(folder, FAIRLANE_MCP_WRITES="false").mcp_writes is False


def test_a_flag_lets_agents_write(folder: Path) -> None:
    flags = vars(parser.parse(["serve", "--mcp-writes"]))
    assert settings(folder, {"mcp_writes": flags["mcp_writes"]}).mcp_writes is True
    assert parser.parse(["serve"]).mcp_writes is None


def test_what_is_neither_true_nor_false_is_refused(folder: Path) -> None:
    assert problems(folder, FAIRLANE_MCP_WRITES="perhaps") == [
        "mcp_writes must be true or false, not 'perhaps'"
    ]


# --- processes -----------------------------------------------------------------------------------


def test_a_server_has_one_process_by_default(folder: Path) -> None:
    assert settings(folder).processes == 1
    assert settings(folder, FAIRLANE_PROCESSES="3").processes == 3
    assert settings(folder, {"processes": "64"}, FAIRLANE_PROCESSES="3").processes == 64


@pytest.mark.parametrize("given", ["0", "-1", "65", "two", "1.5"])
def test_the_number_of_processes_is_from_1_to_64(folder: Path, given: str) -> None:
    expected = f"processes must be a whole number from 1 to 64, not {given!r}"
    assert problems(folder, {"processes": given}) == [expected]


def test_several_processes_need_a_store_that_they_can_share(folder: Path) -> None:
    found = settings(folder, {"processes": "2", "store": "sqlite://:memory:"})
    with pytest.raises(OperatorError, match="a store that they can share"):
        serve(found)
