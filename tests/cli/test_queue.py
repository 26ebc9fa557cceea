"""`fairlane queue`: entries come in, are listed, shown, handed over and imported."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.processes import running_server
from tests.cli.queues import Queue, entry
from tests.cli.test_sched import at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]


@pytest.fixture
def queue(run: Run, tmp_path: Path) -> Queue:
    queue = Queue(run, f"sqlite:///{tmp_path / 'fairlane.db'}", tmp_path)
    queue.policy(maxConcurrent=3)
    return queue


def ids(page: Any) -> list[str]:
    return [one["id"] for one in page["entries"]]


# -------------------------------------------------------------------- add


def test_every_option_of_add_reaches_the_entry(queue: Queue, tmp_path: Path) -> None:
    options = ["--app", "review", "--workflow", "wf", "--run", "run-7", "--note", "second"]
    inputs = ["--inputs", '{"a": 1}', "--input", "pr=7", "--input", "who=ada"]
    found = queue.add("job", *options, *inputs, "--priority", "20", "--agent", "a1")
    expected = {
        "schemaVersion": 1,
        "id": "job",
        "runId": "run-7",
        "appId": "review",
        "workflowId": "wf",
        "repo": str(tmp_path.resolve()),
        "agentId": "a1",
        "priority": 20,
        "enqueuedAt": found["enqueuedAt"],
        "status": "pending",
        "inputs": {"a": 1, "pr": 7, "who": "ada"},
        "note": "second",
        "attempts": 0,
        "maxAttempts": 3,
    }
    assert list(found.items()) == list(expected.items())
    assert queue.entry("job") == found


def test_an_entry_may_be_added_with_the_other_spellings(queue: Queue) -> None:
    found = queue.add("a", "--appId", "x", "--workflowId", "y", "--runId", "z")
    assert (found["appId"], found["workflowId"], found["runId"]) == ("x", "y", "z")


def test_an_entry_that_says_nothing_has_an_id_and_a_place(queue: Queue) -> None:
    found = queue("queue", "add", "--note", "  ")
    assert re.fullmatch(r"tsk_[0-9a-f]{28}", found["id"])
    assert (found["priority"], "note" in found) == (100, False)


def test_an_id_that_is_taken_is_refused(queue: Queue) -> None:
    queue.policy(maxConcurrent=1)
    queue.add("d")
    assert queue.refused("queue", "add", "--id", "d") == (
        4,
        'entry "d" already exists; use another id, or leave it out',
    )
    assert len(queue.lease()) == 1
    assert queue.plan()["inFlight"] == 1


@pytest.mark.parametrize("value", ["abc", "", "1.5", "0x10", "1e3"])
def test_a_priority_that_is_none_is_refused(queue: Queue, value: str) -> None:
    code, text = queue.refused("queue", "add", f"--priority={value}")
    assert (code, "priority" in text) == (2, True)
    assert queue("queue", "list")["total"] == 0


def test_a_priority_without_a_value_is_refused(queue: Queue) -> None:
    assert queue.refused("queue", "add", "--priority")[0] == 2


def test_eight_who_add_at_once_have_eight_ids(queue: Queue) -> None:
    clients = list(queue.clients(8))
    answers = at_once(clients, lambda client: client.queue_add(app="x"))
    for client in clients:
        client.close()
    assert len({answer["id"] for answer in answers}) == 8
    assert queue("queue", "list")["total"] == 8


def test_an_entry_is_a_task_that_every_other_command_knows(queue: Queue) -> None:
    queue.add("job", "--app", "review")
    task = queue("show", "job")
    assert (task["handler"], task["lane"], task["params"]["appId"]) == ("run", "queue", "review")
    queue("cancel", "job")
    assert queue.entry("job")["status"] == "cancelled"


# -------------------------------------------------------------------- list and show


def test_the_list_is_in_the_order_of_the_queue(queue: Queue) -> None:
    for name, priority in (("low", 200), ("high", 10), ("mid", 100), ("mid2", 100)):
        queue.add(name, "--priority", str(priority))
    page = queue("queue", "list")
    assert list(page) == ["schemaVersion", "total", "count", "entries"]
    assert (page["total"], ids(page)) == (4, ["high", "mid", "mid2", "low"])


def test_entries_of_one_moment_are_ordered_by_the_bytes_of_their_ids(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    queue.bring_in([entry(name) for name in ("a", "Z", "_", "b", "B")])
    assert ids(queue("queue", "list")) == ["B", "Z", "_", "a", "b"]


def test_the_list_may_be_of_one_status(queue: Queue) -> None:
    for name in "abcd":
        queue.add(name)
    queue("sched", "complete", queue.lease("--limit", "1")[0])
    queue.lease("--limit", "1")
    assert ids(queue("queue", "list", "--status", "drained")) == ["a"]
    assert ids(queue("queue", "list", "--status", "leased")) == ["b"]
    for word in ("pending", "ready"):
        page = queue("queue", "list", "--status", word)
        assert (page["total"], ids(page)) == (2, ["c", "d"])


def test_a_status_that_is_none_is_refused(queue: Queue) -> None:
    code, text = queue.refused("queue", "list", "--status", "draned")
    assert code == 2
    assert text.endswith("; did you mean drained?")


def test_a_long_list_comes_in_pages(queue: Queue) -> None:
    queue.bring_in([entry(f"e{number:02}", priority=number % 3) for number in range(10)])
    first = queue("queue", "list", "--limit", "4")
    second = queue("queue", "list", "--limit", "4", "--cursor", first["nextCursor"])
    rest = queue("queue", "list", "--cursor", second["nextCursor"])
    assert (first["total"], first["count"]) == (10, 4)
    expected = sorted((f"e{number:02}" for number in range(10)), key=lambda e: (int(e[1:]) % 3, e))
    assert ids(first) + ids(second) + ids(rest) == expected
    out = queue.ran("queue", "list", "--all", "--limit", "3").out.splitlines()
    assert [one for line in out for one in ids(json.loads(line))] == expected
    assert queue.refused("queue", "list", "--cursor", "x")[0] == 2


def test_an_empty_queue_is_an_empty_list(queue: Queue) -> None:
    assert queue("queue", "list") == {"schemaVersion": 1, "total": 0, "count": 0, "entries": []}


def test_what_is_not_there_cannot_be_shown(queue: Queue) -> None:
    assert queue.refused("queue", "show", "no-such-id") == (
        3,
        'the queue has no entry "no-such-id"',
    )
    assert queue.refused("queue", "show")[0] == 2
    other = queue("submit", "--handler", "h")["taskId"]
    assert queue.refused("queue", "show", other)[0] == 3


# -------------------------------------------------------------------- drain


def test_a_drain_hands_over_what_goes_first(queue: Queue) -> None:
    for name, priority in (("low", 200), ("high", 10), ("mid", 100)):
        queue.add(name, "--priority", str(priority))
    answer = queue("queue", "drain", "--limit", "2")
    assert [one["id"] for one in answer["drained"]] == ["high", "mid"]
    assert {one["status"] for one in answer["drained"]} == {"drained"}
    assert len({one["drainedAt"] for one in answer["drained"]}) == 1
    assert answer["remaining"] == 1
    assert queue.entry("high")["status"] == "drained"
    assert len(queue("queue", "drain")["drained"]) == 1
    assert queue("queue", "drain") == {"schemaVersion": 1, "drained": [], "remaining": 0}


def test_a_drain_gives_nothing_beside_a_lease_that_fills_the_ceiling(queue: Queue) -> None:
    queue.policy(maxConcurrent=1)
    queue.add("a")
    queue.add("b")
    queue.lease()
    answer = queue("queue", "drain", "--limit", "5")
    told = answer.pop("reason")
    assert told == "b is next: the only slot of lane queue is in use; no task is ahead of it"
    assert answer == {
        "schemaVersion": 1,
        "drained": [],
        "remaining": 1,
    }


def test_a_drain_through_one_slot_gives_as_many_as_are_asked_for(queue: Queue) -> None:
    queue.policy(maxConcurrent=1)
    for number in range(4):
        queue.add(f"e{number}")
    answer = queue("queue", "drain", "--limit", "3")
    assert [one["id"] for one in answer["drained"]] == ["e0", "e1", "e2"]
    assert (answer["remaining"], "reason" in answer) == (1, False)
    answer = queue("queue", "drain", "--limit", "3")
    assert (len(answer["drained"]), answer["remaining"], "reason" in answer) == (1, 0, False)


def test_the_text_says_why_a_drain_returned_fewer(queue: Queue) -> None:
    queue.policy(backoffBaseMs=60_000)
    queue.add("a")
    queue.add("b")
    queue("sched", "release", queue.lease("--limit", "1")[0], "--failed")
    ran = queue.run("queue", "drain", "--limit", "3", "--store", queue.store)
    first, second, third = ran.out.splitlines()
    assert (first, second) == ("drained b", "1 left")
    assert third.startswith(
        "no more for now: a is next: attempt 1 of 3 failed: released as failed; "
    )


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "x", "1001"])
def test_a_drain_of_a_wrong_number_is_refused(queue: Queue, limit: str) -> None:
    code, text = queue.refused("queue", "drain", f"--limit={limit}")
    assert (code, "limit" in text) == (2, True)
    assert queue.refused("queue", "drain", "--limit")[0] == 2


# -------------------------------------------------------------------- import


def test_a_queue_file_comes_in_as_it_is(queue: Queue) -> None:
    answer = queue.bring_in(
        [
            entry("r1", "ready"),
            entry("r2", "parked", attempts=3, parkedReason="tests red (attempt 3/3)"),
            entry("r3", "pending", appId="review", inputs={"a": 1}, provenance={"by": "x"}),
        ]
    )
    assert answer == {
        "schemaVersion": 1,
        "imported": 3,
        "byStatus": {"parked": 1, "pending": 2},
    }
    assert queue.entry("r2")["parkedReason"] == "tests red (attempt 3/3)"
    found = queue.entry("r3")
    assert (found["inputs"], found["provenance"]) == ({"a": 1}, {"by": "x"})
    assert found["enqueuedAt"] == "2026-01-01T00:00:00.000Z"


def test_a_file_with_something_wrong_brings_in_nothing(queue: Queue, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    entries = [entry("good"), entry("bad", "nonsense")]
    for text in (
        json.dumps({"schemaVersion": 1, "entries": entries}),
        "{",
        "[]",
        "null",
        '"x"',
        "",
    ):
        file.write_text(text)
        code, told = queue.refused("queue", "import", str(file))
        assert (code, bool(told)) == (2, True)
    assert queue("queue", "list")["total"] == 0


def test_a_file_that_came_in_does_not_come_in_again(queue: Queue) -> None:
    queue.bring_in([entry("a"), entry("b")])
    code, text = queue.refused("queue", "import", "queue.json")
    assert (code, text) == (
        4,
        'entry "a" and 1 more already exists; use another id, or leave it out',
    )


def test_a_file_that_is_not_there_is_named(queue: Queue) -> None:
    code, text = queue.refused("queue", "import", "nowhere.json")
    assert (code, text) == (2, "cannot read nowhere.json: No such file or directory")


def test_a_large_file_comes_in_over_http_too(queue: Queue, server: Server, run: Run) -> None:
    """Larger than other bodies may be."""
    entries = [entry(f"large-{number}", "drained", note="x" * 1000) for number in range(1200)]
    text = json.dumps({"schemaVersion": 1, "entries": entries})
    assert len(text) > 1_048_576
    (queue.folder / "large.json").write_text(text)
    ran = run("queue", "import", "large.json", "--url", server.url, "--json")
    assert ran.json["imported"] == 1200


# -------------------------------------------------------------------- words


def test_unknown_verbs_and_flags_are_refused_with_the_nearest(queue: Queue) -> None:
    told = queue.run("queue", "lst").err
    assert told == "error: unknown command 'queue lst'; did you mean list?\n"
    code, text = queue.refused("queue", "add", "--ap", "x")
    assert (code, text) == (2, "unknown option --ap; did you mean --app?")
    assert queue.run("queue").code == 2


def test_the_text_output_is_readable(queue: Queue) -> None:
    def say(*words: str) -> str:
        ran = queue.run(*words, "--store", queue.store)
        assert (ran.code, ran.err) == (0, "")
        return ran.out

    assert say("queue", "list") == "the queue is empty\n"
    told = say("queue", "add", "--id", "job", "--app", "review", "--note", "soon")
    assert told == "added job with priority 100\n"
    lines = say("queue", "list").splitlines()
    assert lines[0].split() == ["PRIORITY", "ENTRY", "STATUS", "WHAT", "ENQUEUED", "NOTE"]
    assert lines[1].split()[:4] == ["100", "job", "pending", "review"]
    assert re.search(r"^app +review$", say("queue", "show", "job"), re.MULTILINE)
    assert say("queue", "drain") == "drained job\n0 left\n"


def test_the_server_and_the_store_answer_alike(run: Run, server: Server) -> None:
    run("queue", "add", "--id", "alike", "--url", server.url)
    text = server.get("/queue/alike")
    for side in (["--url", server.url], ["--store", server.store]):
        assert run("queue", "show", "alike", "--json", *side).out == f"{text}\n"
    run("cancel", "alike", "--url", server.url)


@pytest.mark.slow
def test_sixty_who_lease_at_once_are_all_served(run: Run, tmp_path: Path) -> None:
    """However long the queue is; none is turned away because others were first."""
    from fairlane.client.sync import Client

    queue = Queue(run, f"sqlite:///{tmp_path / 'fairlane.db'}", tmp_path)
    queue.policy(maxConcurrent=100)
    queue.bring_in([entry(f"e{number}") for number in range(10_000)])
    with running_server(queue.store, tmp_path) as url:
        clients = [Client(url) for _ in range(60)]
        answers = at_once(clients, lambda client: client.lease("w", lanes=["queue"], limit=1))
        for client in clients:
            client.close()
    assert len({one["id"] for answer in answers for one in answer["leases"]}) == 60
