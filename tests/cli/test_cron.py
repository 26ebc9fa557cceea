"""`fairlane cron`: on a server, and on the store beside it."""

from __future__ import annotations

import itertools
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.cli.commands.cron import last_run, local, schedule
from fairlane.cli.output import ahead
from tests.cli.processes import run_on_terminal, run_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

RULE = "0 9 29 2 *"
NEXT = r"next in \d+ d( \d+ h)? \(\w{3} \d{4}-02-29 09:00 CET\)"
_numbers = itertools.count(1)


@pytest.fixture
def name() -> str:
    """A name that no other test uses on the server they share."""
    return f"cron.{next(_numbers)}"


def _add(run: Run, side: list[str], name: str, *more: str) -> dict[str, Any]:
    what = () if "--instruction" in more or "--action" in more else ("--handler", "echo")
    ran = run("cron", "add", RULE, "--name", name, *what, *more, "--json", *side)
    assert ran.code == 0, ran
    job: dict[str, Any] = ran.json
    return job


def _show(run: Run, side: list[str], name: str) -> dict[str, Any]:
    ran = run("cron", "show", name, "--json", *side)
    assert ran.code == 0, ran
    job: dict[str, Any] = ran.json
    return job


# -------------------------------------------------------------------- add


def test_add_says_when_it_runs_next(run: Run, side: list[str], name: str) -> None:
    flags = ("--tz", "Europe/Berlin", "--name", name, "--instruction", "Write the notes")
    ran = run("cron", "add", RULE, *flags, *side)
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(rf"created job_\w+ \({re.escape(name)}\): {NEXT}\n", ran.out)
    assert _show(run, side, name)["task"] == {"instruction": "Write the notes"}


def test_the_fields_of_an_expression_may_be_words_of_their_own(
    run: Run, server: Server, name: str
) -> None:
    flags = ("--name", name, "--handler", "echo", "--json", "--url", server.url)
    assert run("cron", "add", *RULE.split(), *flags).json["schedule"]["expr"] == RULE
    ran = run("cron", "add", "0", "9", "a.txt", "b.txt", *flags)
    assert ran.code == 2
    assert "put it in quotes" in ran.err


def test_an_interval_and_a_moment_have_options(run: Run, server: Server, name: str) -> None:
    def made(suffix: str, *flags: str) -> dict[str, Any]:
        named = ("--name", name + suffix, "--handler", "echo", "--json", "--url", server.url)
        ran = run("cron", "add", *flags, *named)
        assert ran.code == 0, ran
        found: dict[str, Any] = ran.json
        return found

    every = made("a", "--every", "30m", "--anchor", "2026-01-01T00:00:00Z")
    expected = {"kind": "every", "everyMs": 1_800_000, "anchor": "2026-01-01T00:00:00.000Z"}
    assert every["schedule"] == expected
    once = made("b", "--at", "2090-01-01T09:00:00+01:00", "--no-delete-after-run")
    assert once["schedule"]["at"] == "2090-01-01T08:00:00.000Z"
    assert once["deleteAfterRun"] is False
    soon = made("c", "--at", "90m")
    created = datetime.fromisoformat(soon["createdAt"]).timestamp() * 1000
    assert 89 * 60_000 < soon["schedule"]["atMs"] - created < 91 * 60_000


def test_every_option_of_add_reaches_the_job(
    run: Run, server: Server, name: str, agent: str
) -> None:
    job = _add(
        run,
        ["--url", server.url],
        name,
        *("--agent", agent, "--param", "n=1", "--params", '{"a": [2]}', "--priority", "high"),
        *("--lane", "main", "--metadata", '{"x": 1}', "--callback-url", "http://127.0.0.1:1/c"),
        *("--overlap", "queue", "--misfire", "all", "--misfire-grace", "5m"),
        *("--misfire-cap", "7", "--misfire-spread", "10s", "--jitter", "30s"),
        *("--start", "2030-01-01T00:00:00Z", "--end", "2040-01-01T00:00:00Z"),
        *("--max-runs", "9", "--timeout", "30s", "--keep-runs", "11", "--keep-days", "12"),
        *("--retries", "1", "--backoff", "3s", "--multiplier", "1.5", "--max-backoff", "9s"),
        *("--retry-jitter", "0.5", "--alert-url", "http://127.0.0.1:1/a", "--alert-after", "2"),
        *("--disable-after", "8", "--disabled"),
    )
    expected = {
        "agentId": agent,
        "task": {
            "handler": "echo",
            "priority": "high",
            "lane": "main",
            "metadata": {"x": 1},
            "callbackUrl": "http://127.0.0.1:1/c",
            "params": {"a": [2], "n": 1},
        },
        "enabled": False,
        "overlap": "queue",
        "misfire": "all",
        "misfireGraceMs": 300_000,
        "misfireCap": 7,
        "misfireSpreadMs": 10_000,
        "jitterMs": 30_000,
        "timeoutMs": 30_000,
        "startAt": "2030-01-01T00:00:00.000Z",
        "endAt": "2040-01-01T00:00:00.000Z",
        "maxRuns": 9,
        "retryPolicy": {
            "maxRetries": 1,
            "backoffMs": 3000,
            "backoffMultiplier": 1.5,
            "maxBackoffMs": 9000,
            "jitter": 0.5,
        },
        "alertUrl": "http://127.0.0.1:1/a",
        "alertAfter": 2,
        "disableAfter": 8,
        "keepRuns": 11,
        "keepDays": 12,
    }
    assert {field: job.get(field) for field in expected} == expected


def test_a_job_may_come_from_a_file_and_options_win(
    run: Run, side: list[str], name: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.json"
    document = {
        "name": "other",
        "schedule": {"kind": "cron", "expr": RULE},
        "task": {"handler": "echo", "lane": "main"},
    }
    file.write_text(json.dumps(document))
    flags = ("--file", str(file), "--name", name, "--tz", "Asia/Tokyo", "--param", "a=1")
    job = run("cron", "add", *flags, "--json", *side).json
    assert (job["name"], job["schedule"]["tz"]) == (name, "Asia/Tokyo")
    assert job["task"] == {"handler": "echo", "lane": "main", "params": {"a": 1}}
    file.write_text("[]")
    assert "must contain a job" in run("cron", "add", "--file", str(file), *side).err


def test_a_bad_job_is_refused_with_what_is_wrong(run: Run, side: list[str]) -> None:
    flags = ("--name", "x", "--handler", "echo", "--overlap", "x", "--misfire-cap", "5000")
    ran = run("cron", "add", "61 * * * *", *flags, *side)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: invalid job: field 'overlap' must be one of allow")
    assert "'misfireCap'" in ran.err
    ran = run("cron", "add", "61 * * * *", "--name", "x", "--handler", "echo", *side)
    assert (ran.code, "field 'schedule.expr'" in ran.err) == (2, True)
    both = run("cron", "add", RULE, "--every", "5m", "--name", "x", "--handler", "echo", *side)
    assert both.err == "error: give only one of an expression, --every and --at\n"


def test_what_a_job_needs_is_asked_for(run: Run) -> None:
    assert run("cron", "add", "--handler", "x").err.startswith("error: no schedule given: ")
    assert run("cron", "add", RULE).err.startswith("error: no task given: ")
    assert run("cron", "add", RULE, "--handler", "x").err == ("error: no name given: add --name\n")


def test_a_name_that_is_taken_is_refused(run: Run, side: list[str], name: str) -> None:
    _add(run, side, name)
    ran = run("cron", "add", RULE, "--name", name, "--handler", "echo", *side)
    assert ran.code == 4
    assert name in ran.err


# -------------------------------------------------------------------- look


def test_an_empty_list_teaches(run: Run, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'f.db'}"
    assert run("submit", "--handler", "x", "--store", store).code == 0  # makes the store
    ran = run("cron", "--store", store)
    assert ran.code == 0
    assert ran.out.startswith(
        "no cron jobs yet; create one:\n  fairlane cron create '0 9 * * 1-5' "
    )
    assert run("cron", "--store", store, "--json").json == {"jobs": [], "count": 0}
    assert "fairlane cron list" in run("cron", "runs", "--store", store).out


def test_the_list_tells_when_jobs_run_and_what_they_do(
    run: Run, side: list[str], name: str, agent: str
) -> None:
    _add(run, side, name, "--agent", agent, "--tz", "Europe/Berlin")
    _add(run, side, f"{name}-off", "--agent", agent, "--disabled")
    ran = run("cron", "list", "--agent", agent, *side)
    head, off, on = ran.out.splitlines()
    assert head.split() == ["NAME", "SCHEDULE", "NEXT", "LOCAL", "TIME", "LAST", "WHAT", "JOB"]
    assert re.match(rf"{re.escape(name)}-off +0 9 29 2 \* UTC +off +- +- +handler echo +job_", off)
    times = r"in \d+ d( \d+ h)? +\w{3} \d{4}-02-29 09:00 CET"
    assert re.match(rf"{re.escape(name)} +0 9 29 2 \* Europe/Berlin +{times} +- +handler", on)
    assert run("cron", "--agent", agent, "--on", *side).out.count("\n") == 2
    assert run("cron", "--agent", agent, "--off", "--json", *side).json["count"] == 1
    (job,) = run("cron", "list", "--name", f"{name}-off", "--json", *side).json["jobs"]
    assert job["name"] == f"{name}-off"


def test_pages_of_jobs_can_be_asked_for_one_by_one_or_all(
    run: Run, server: Server, name: str, agent: str
) -> None:
    side = ["--url", server.url]
    for number in range(3):
        _add(run, side, f"{name}-{number}", "--agent", agent)
    page = run("cron", "list", "--agent", agent, "--limit", "2", *side)
    assert "more items follow; add --cursor" in page.err
    everything = run("cron", "list", "--agent", agent, "--limit", "2", "--all", *side)
    assert everything.out.count("\n") == 4


def test_show_tells_everything_in_words(run: Run, side: list[str], name: str) -> None:
    flags = ("--tz", "Europe/Berlin", "--timeout", "30s", "--misfire", "skip", "--jitter", "5s")
    _add(run, side, name, *flags, "--param", "a=1")
    ran = run("cron", "show", name, *side)
    lines = dict(
        re.split(r"  +", line, maxsplit=1) for line in ran.out.splitlines() if "  " in line
    )
    assert lines["name"] == name
    assert lines["schedule"] == f"{RULE} Europe/Berlin"
    assert re.fullmatch(r"in \d+ d( \d+ h)? \(\w{3} \d{4}-02-29 09:00 CET\)", lines["next"])
    assert lines["handler"] == "echo"
    assert lines["missed runs"] == "skipped (more than 1 min late)"
    assert lines["retries"].startswith("3; first after 2.0 s, each wait 2 times the one before")
    assert (lines["timeout"], lines["jitter"]) == ("30.0 s", "5.0 s")


def test_json_is_what_the_route_answers(run: Run, server: Server, name: str) -> None:
    job = _add(run, ["--url", server.url], name)
    path = f"/cron/jobs/{job['id']}"
    for side in (["--url", server.url], ["--store", server.store]):
        assert run("cron", "show", name, "--json", *side).out == server.get(path) + "\n"
        runs = run("cron", "runs", name, "--json", *side)
        assert runs.out == server.get(f"{path}/runs") + "\n"


def test_an_unknown_job_is_reported(run: Run, side: list[str]) -> None:
    for verb in ("show", "edit", "delete", "on", "off", "run", "runs"):
        more = ("--retries", "1") if verb == "edit" else ()
        ran = run("cron", verb, "nobody", *more, *side)
        assert (ran.code, ran.out) == (3, ""), verb
        assert "nobody" in ran.err, verb


# -------------------------------------------------------------------- change


def test_edit_changes_what_is_named(run: Run, side: list[str], name: str) -> None:
    before = _add(run, side, name, "--tz", "Europe/Berlin", "--max-runs", "5")
    ran = run("cron", "edit", name, "--expr", "0 10 29 2 *", "--clear", "maxRuns", *side)
    assert ran.code == 0, ran
    assert re.fullmatch(rf"changed {before['id']} \(.*\): next in .* 10:00 CET\)\n", ran.out)
    after = _show(run, side, name)
    assert after["schedule"] == {**before["schedule"], "expr": "0 10 29 2 *"}
    assert "maxRuns" not in after
    assert run("cron", "edit", name, "--tz", "Asia/Tokyo", "--retries", "0", *side).code == 0
    after = _show(run, side, name)
    assert (after["schedule"]["tz"], after["retryPolicy"]["maxRetries"]) == ("Asia/Tokyo", 0)
    assert run("cron", "edit", name, *side).err.startswith("error: nothing to change; ")


def test_jobs_are_switched_off_and_on(run: Run, side: list[str], name: str) -> None:
    _add(run, side, name, "--tz", "Europe/Berlin")
    ran = run("cron", "off", name, *side)
    assert (ran.code, ran.out) == (0, f"{name} is off: no next run (off)\n")
    ran = run("cron", "on", name, *side)
    assert re.fullmatch(rf"{re.escape(name)} is on: {NEXT}\n", ran.out)


def test_each_of_several_is_done_even_if_one_is_not_there(
    run: Run, side: list[str], name: str
) -> None:
    job = _add(run, side, name)
    ran = run("cron", "delete", "nobody", name, *side)
    assert (ran.code, ran.out) == (3, f"deleted {job['id']} ({name})\n")
    assert run("cron", "show", name, *side).code == 3


# -------------------------------------------------------------------- run


def test_a_run_by_hand_can_be_waited_for_and_is_in_the_log(
    run: Run, side: list[str], name: str
) -> None:
    _add(run, side, name, "--param", "a=1")
    task = run("cron", "run", name, "--wait", "20", "--json", *side)
    assert (task.code, task.json["state"]) == (0, "done")
    ran = run("cron", "runs", name, *side)
    head, entry = ran.out.splitlines()
    assert head.split() == ["SCHEDULED", "STATUS", "TRIGGER", "TOOK", "TRIES", "TASK", "NOTE"]
    assert re.search(rf" ok +manual +\d+ ms +1 +{task.json['taskId']} +\S", entry)
    assert run("cron", "runs", name, "--status", "error", "--json", *side).json["runs"] == []
    assert run("cron", "runs", name, "--status", "bad", *side).code == 2
    assert "\nSCHEDULED" in run("cron", "show", name, *side).out
    assert name in run("cron", "runs", *side).out
    assert re.search(r"ok \S+( \w+ ago| now)", run("cron", "show", name, *side).out)


def test_run_says_what_it_has_started(run: Run, side: list[str], name: str) -> None:
    _add(run, side, name)
    ran = run("cron", "run", name, *side)
    assert re.fullmatch(r"started run_\w+ \(task cron_\w+\)\n", ran.out)


# -------------------------------------------------------------------- preview


def test_preview_tells_the_next_moments(run: Run, side: list[str]) -> None:
    ran = run("cron", "preview", RULE, "--tz", "Europe/Berlin", "-n", "2", *side)
    head, first, _ = ran.out.splitlines()
    assert head.split() == ["UTC", "LOCAL", "FROM", "NOW"]
    moments = r"\d{4}-02-29T08:00:00.000Z +\d{4}-02-29T09:00:00\+01:00 +in \d+ d"
    assert re.match(moments, first)
    assert len(run("cron", "preview", "--every", "5m", "--json", *side).json["next"]) == 5
    once = run("cron", "preview", "--at", "2090-01-01T00:00:00Z", "--json", *side).json
    assert [one["utc"] for one in once["next"]] == ["2090-01-01T00:00:00.000Z"]
    assert run("cron", "preview", *side).err.startswith("error: no schedule given: ")
    assert run("cron", "preview", "x", *side).code == 2


# -------------------------------------------------------------------- files

CRONTAB = """\
# minute hour day month weekday
SHELL=/bin/sh
CRON_TZ=Europe/Berlin
0 9 29 2 *\t/srv/backup.sh --all
@yearly /srv/report.sh
"""


def _write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "crontab"
    file.write_text(text)
    return str(file)


def test_a_crontab_becomes_jobs(
    run: Run, side: list[str], name: str, agent: str, tmp_path: Path
) -> None:
    file = _write(tmp_path, CRONTAB)
    flags = ("--handler", "shell", "--agent", agent, "--prefix", f"{name}.")
    dry = run("cron", "import", file, *flags, "--dry-run", *side)
    assert (dry.code, dry.err) == (0, "")
    assert dry.out.endswith("would create 2 jobs; nothing was created\n")
    assert "handler shell: /srv/backup.sh --all" in dry.out
    assert run("cron", "--agent", agent, "--json", *side).json["count"] == 0

    ran = run("cron", "import", file, *flags, *side)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("created 2 jobs\n")
    job = _show(run, side, f"{name}.backup.sh")
    assert job["schedule"] == {"kind": "cron", "expr": RULE, "tz": "Europe/Berlin"}
    params = {
        "command": "/srv/backup.sh --all",
        "env": {"SHELL": "/bin/sh", "CRON_TZ": "Europe/Berlin"},
    }
    assert job["task"] == {"handler": "shell", "params": params}


def test_all_problems_of_a_crontab_are_reported_and_no_job_is_created(
    run: Run, side: list[str], name: str, agent: str, tmp_path: Path
) -> None:
    _add(run, side, f"{name}.taken", "--agent", agent)
    lines = "@daily good\n@reboot x\n61 * * * * y\n@daily taken\n0 9 * *\nTZ=No/Where\n@daily z\n"
    file = _write(tmp_path, lines)
    flags = ("--handler", "shell", "--agent", agent, "--prefix", f"{name}.")
    ran = run("cron", "import", file, *flags, *side)
    assert (ran.code, ran.out) == (2, "")
    told = ran.err.splitlines()
    starts = [f"error: {file}:{number}: " for number in (2, 3, 4, 5, 7)]
    assert all(line.startswith(start) for line, start in zip(told, starts, strict=False)), told
    assert told[-1] == f"error: 5 problems in {file}; nothing was created"
    assert f"a job named '{name}.taken' already" in told[2]
    assert run("cron", "--agent", agent, "--json", *side).json["count"] == 1
    as_json = run("cron", "import", file, *flags, "--json", *side).json
    assert [one["line"] for one in as_json["details"]["problems"]] == [2, 3, 4, 5, 7]


def test_a_crontab_of_words_becomes_instructions(
    run: Run, server: Server, name: str, tmp_path: Path
) -> None:
    file = _write(tmp_path, "0 9 29 2 * Write the notes\n")
    flags = ("--instruction", "--prefix", f"{name}.", "--tz", "Asia/Tokyo", "--json")
    (job,) = run("cron", "import", file, *flags, "--url", server.url).json["jobs"]
    assert (job["name"], job["schedule"]["tz"]) == (f"{name}.write-the-notes", "Asia/Tokyo")
    assert job["task"] == {"instruction": "Write the notes"}


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        ("@daily x", "", "a crontab needs --handler NAME"),
        ("# nothing\n", "--handler=x", "contains no jobs"),
        ("{", "", "is not valid JSON"),
        ("{}", "", "must contain a list of jobs"),
        ("[]", "", "contains no jobs"),
        ("[5]", "", "jobs[0]: must be a JSON object"),
        ("[]", "--handler=x", "are for crontabs, not for JSON"),
        ("@daily x\n" * 1001, "--handler=x", "the limit is 1000"),
    ],
)
def test_a_file_that_cannot_be_imported_is_reported(
    side: list[str], tmp_path: Path, text: str, flags: str, told: str
) -> None:
    file = _write(tmp_path, text)
    ran = run_process("cron", "import", file, *flags.split(), *side, folder=tmp_path)
    assert ran.returncode == 2
    assert told in ran.stderr.decode()


def test_a_crontab_comes_through_a_pipe(server: Server, name: str, tmp_path: Path) -> None:
    flags = ("--handler", "shell", "--prefix", f"{name}.", "--url", server.url)
    ran = run_process("cron", "import", "-", *flags, folder=tmp_path, stdin=CRONTAB.encode())
    assert (ran.returncode, ran.stderr) == (0, b"")
    bad = run_process("cron", "import", "-", *flags, folder=tmp_path, stdin=b"\xff")
    assert (bad.returncode, bad.stderr) == (2, b"error: - is not UTF-8\n")


def test_what_is_exported_can_be_imported_as_it_was(
    run: Run, side: list[str], name: str, agent: str, tmp_path: Path
) -> None:
    here = ("--agent", agent)
    _add(run, side, name, *here, "--tz", "Europe/Berlin", "--param", "a=[1]", "--retries", "0")
    flags = ("--name", f"{name}-every", "--handler", "echo", *here)
    assert run("cron", "add", "--every", "90s", *flags, *side).code == 0
    flags = ("--name", f"{name}-once", "--handler", "echo", *here)
    assert run("cron", "add", "--at", "2090-01-01T00:00:00Z", *flags, *side).code == 0
    exported = run("cron", "export", *here, *side)
    assert (exported.code, exported.err) == (0, "")
    assert exported.out.startswith('{\n  "jobs": [\n')
    file = _write(tmp_path, exported.out)

    there = ["--store", f"sqlite:///{tmp_path / 'other.db'}"]
    assert run("cron", "import", file, *there).code == 0
    assert run("cron", "export", *there).out == exported.out
    assert run("cron", "import", file, *there).code == 2  # the names are taken now
    one = run("cron", "export", name, "--json", *side).json["jobs"]
    assert one == json.loads(exported.out)["jobs"][:1]


# -------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [
        (0, "now"),
        (45_000, "in 45 s"),
        (60_000, "in 1 min"),
        (11_530_000, "in 3 h 12 min"),
        (3_600_000, "in 1 h"),
        (3_605_000, "in 1 h"),
        (2 * 86_400_000 + 4 * 3_600_000 + 59, "in 2 d 4 h"),
    ],
)
def test_how_far_ahead(milliseconds: int, told: str) -> None:
    assert ahead(1000 + milliseconds, 1000) == told


def test_local_times_and_schedules_in_words() -> None:
    assert local(1_790_000_000_000, "Asia/Tokyo") == "Mon 2026-09-21 23:13:20 JST"
    assert local(0, "No/Where") == "Thu 1970-01-01 00:00 UTC"
    assert schedule({"kind": "every", "everyMs": 5_400_000}) == "every 1 h 30 min"
    assert schedule({"kind": "at", "at": "2030-01-01T00:00:00.000Z"}).startswith("once at 2030")


def test_a_narrow_terminal_shows_what_matters(server: Server, name: str, tmp_path: Path) -> None:
    flags = ("--name", name, "--agent", name, "--handler", "echo", "--tz", "Europe/Berlin")
    where = ("--url", server.url)
    assert run_process("cron", "add", RULE, *flags, *where, folder=tmp_path).returncode == 0
    seen = run_on_terminal("cron", "--agent", name, *where, folder=tmp_path, columns=80)
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[\d;]*m", "", seen.text).splitlines())
    assert name in seen.text


def test_a_skipped_run_is_not_said_to_have_been_at_the_time_of_an_earlier_one() -> None:
    ran = {"lastRunAtMs": 1, "consecutiveErrors": 0}
    skipped = last_run({"state": {"lastStatus": "skipped", **ran}})
    assert ", ran " in str(skipped)
    assert ", ran " not in str(last_run({"state": {"lastStatus": "ok", **ran}}))
