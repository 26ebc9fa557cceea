"""Crontab files, line by line."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.cli.commands import cron_documents as crontab


def read(text: str, zone: str | None = None, prefix: str = "") -> list[crontab.JobEntry]:
    return crontab.read_crontab(text, crontab.shell_task("shell"), zone=zone, prefix=prefix)


def document(text: str, **options: Any) -> dict[str, Any]:
    (line,) = read(text, **options)
    assert line.document is not None, line
    return line.document


def test_a_line_is_a_job() -> None:
    assert document("0 9 * * 1-5 /usr/bin/backup.sh --all") == {
        "name": "backup.sh",
        "schedule": {"kind": "cron", "expr": "0 9 * * 1-5"},
        "task": {"handler": "shell", "params": {"command": "/usr/bin/backup.sh --all"}},
    }


def test_blank_lines_and_comments_are_passed_over_and_lines_keep_their_numbers() -> None:
    found = read("\n# every day\n   # indented\n@daily a\n\n\t0\t*  * * *\tb c\n")
    assert [(line.where["line"], line.problem) for line in found] == [(4, None), (6, None)]
    assert found[1].document is not None
    assert found[1].document["schedule"]["expr"] == "0 * * * *"


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("@daily a", None),
        ("TZ=Asia/Tokyo\n@daily a", "Asia/Tokyo"),
        ("CRON_TZ = 'Europe/Rome'\n@daily a", "Europe/Rome"),
        ("CRON_TZ=Europe/Rome\nTZ=Asia/Tokyo\n@daily a", "Europe/Rome"),
        ("CRON_TZ=Europe/Rome\nCRON_TZ=\n@daily a", None),
    ],
)
def test_the_zone_is_that_of_the_lines_above(text: str, zone: str | None) -> None:
    assert document(text)["schedule"].get("tz") == zone


def test_the_zone_of_the_option_is_that_of_lines_before_any() -> None:
    found = read("@daily a\nTZ=Asia/Tokyo\n@daily b", zone="Europe/Rome")
    zones = [line.document["schedule"]["tz"] for line in found if line.document]
    assert zones == ["Europe/Rome", "Asia/Tokyo"]


def test_variables_go_to_the_commands_below_them() -> None:
    found = read('@daily a\nSHELL=/bin/sh\nMAILTO=""\n"PATH" = "/bin:/x y"\n@daily b')
    params = [line.document["task"]["params"] for line in found if line.document]
    assert "env" not in params[0]
    assert params[1]["env"] == {"SHELL": "/bin/sh", "MAILTO": "", "PATH": "/bin:/x y"}


def test_a_command_with_an_assignment_is_no_variable() -> None:
    assert document("0 1 * * * A=1 run")["task"]["params"] == {"command": "A=1 run"}


def test_a_percent_sign_begins_the_input() -> None:
    params = document(r"@daily mail -s 10\% me%Hello%all 5\%")["task"]["params"]
    assert params == {"command": "mail -s 10% me", "stdin": "Hello\nall 5%"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@reboot start", "@reboot is not supported"),
        ("@dayly start", "unknown nickname '@dayly'; known ones: @yearly"),
        ("@daily", "the command is missing"),
        ("@daily %x", "the command is missing"),
        ("0 9 * *", "must be five fields"),
        ("0 9 * * *", "must be five fields"),
        ("nonsense", "must be five fields"),
    ],
)
def test_an_invalid_line_of_a_crontab_is_reported(text: str, problem: str) -> None:
    (line,) = read(f"# first\n{text}")
    assert (line.where["line"], line.document) == (2, None)
    assert problem in (line.problem or "")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/srv/backup.sh --full > /dev/null 2>&1", "backup.sh"),
        ("python3 poll.py", "python3-poll.py"),
        ("cd /srv/ && make report all", "cd-srv-make"),
        ("A=1 run 2>/dev/null", "run"),
        ("ps aux | grep x", "ps-aux"),
        ("--", "job"),
    ],
)
def test_a_job_is_named_after_its_command(command: str, name: str) -> None:
    assert document(f"@daily {command}")["name"] == name


def test_names_are_distinguished() -> None:
    found = read("@daily /a/run\n@daily /b/run -y\n@daily run-2\n@daily '(weird)'", prefix="p.")
    names = [line.document["name"] for line in found if line.document]
    assert names == ["p.run", "p.run-2", "p.run-2-2", "p.weird"]


def test_an_instruction_is_named_after_its_first_words() -> None:
    text = "0 9 * * * Write the standup notes for everybody%Be brief"
    (line,) = crontab.read_crontab(text, crontab.instruction_task, zone=None)
    assert line.document is not None
    assert line.document["name"] == "write-the-standup-notes"
    expected = {"instruction": "Write the standup notes for everybody\nBe brief"}
    assert line.document["task"] == expected
