"""`fairlane sched`: plan, leases and their reports, the rules of the queue."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.processes import FAIRLANE, environment
from tests.cli.queues import Queue, entry
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.client.sync import Client
    from tests.cli.conftest import Ran, Server

    Run = Callable[..., Ran]

FLAT = (
    "maxConcurrent",
    "maxAttempts",
    "leaseTtlMs",
    "backoffBaseMs",
    "backoffFactor",
    "backoffCapMs",
)


@pytest.fixture
def queue(run: Run, store_url: str, tmp_path: Path) -> Queue:
    """A queue of its own, once on each database."""
    queue = Queue(run, store_url, tmp_path)
    queue.policy(maxConcurrent=1)
    return queue


@pytest.fixture
def light(run: Run, tmp_path: Path) -> Queue:
    """The same for what happens before the store, and is the same on each database."""
    queue = Queue(run, f"sqlite:///{tmp_path / 'fairlane.db'}", tmp_path)
    queue.policy(maxConcurrent=1)
    return queue


def looks() -> Iterator[None]:
    """Poll, with a limit."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up_at:
        yield


def lease_for_a_while(queue: Queue) -> tuple[str, str]:
    """The name of an entry, and a lease of it that runs out soon, and not before it is told."""
    for ttl_ms in (1500, 15_000):
        name = f"job-{ttl_ms}"
        queue.add(name)
        (lease,) = queue.lease("--ttl-ms", str(ttl_ms))
        if queue.entry(name)["status"] == "leased":
            return name, lease
    raise AssertionError("no lease lasts")


def reclaimed(queue: Queue, name: str) -> list[str]:
    """Reclaim expired leases as soon as there are some."""
    for _ in looks():
        found: list[str] = queue("sched", "reclaim")["reclaimed"]
        if found or queue.entry(name)["status"] != "leased":
            return found
    raise AssertionError("the lease has not run out")


def at_once(clients: list[Client], ask: Callable[[Client], Any]) -> list[Any]:
    """What each of them gets when all ask in the same moment."""
    gate, answers = threading.Barrier(len(clients)), [None] * len(clients)

    def one(number: int) -> None:
        gate.wait()
        answers[number] = ask(clients[number])

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


# -------------------------------------------------------------------- policy


def test_the_rules_are_set_and_shown(light: Queue) -> None:
    answer = light("sched", "policy", "set", "--maxAttempts", "2", "--backoffBaseMs", "1")
    assert (answer["policy"]["maxAttempts"], answer["policy"]["backoffBaseMs"]) == (2, 1)
    assert light("sched", "policy", "show") == answer
    assert light("sched", "policy") == answer
    assert tuple(answer["policy"]) == ("schemaVersion", *FLAT)


def test_a_store_nobody_has_set_has_the_documented_rules(run: Run, tmp_path: Path) -> None:
    queue = Queue(run, f"sqlite:///{tmp_path / 'fairlane.db'}", tmp_path)
    queue.add("a")
    assert queue("sched", "policy") == {
        "schemaVersion": 1,
        "policy": dict(
            zip(("schemaVersion", *FLAT), (1, 1, 3, 300_000, 1000, 2, 60_000), strict=True)
        ),
        "source": "default",
    }


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("value", ["abc", "", "0x10", "1e3", "-3", "NaN"])
def test_a_rule_that_is_not_a_number_is_refused_by_its_name(
    light: Queue, name: str, value: str
) -> None:
    before = light("sched", "policy")
    code, text = light.refused("sched", "policy", "set", f"--{name}={value}")
    assert code == 2
    assert f"--{name}" in text
    assert light("sched", "policy") == before


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--maxConcurrent=0", "maxConcurrent must be a whole number from 1"),
        ("--maxConcurrent=1.5", "--maxConcurrent"),
        ("--leaseTtlMs=100000000000000000", "leaseTtlMs must be a whole number from 1"),
        ("--backoffFactor=0.5", "backoffFactor must be a number from 1"),
    ],
)
def test_a_rule_out_of_its_range_is_refused_and_changes_nothing(
    light: Queue, flag: str, problem: str
) -> None:
    light.policy(maxConcurrent=8)
    _, text = light.refused("sched", "policy", "set", flag)
    assert problem in text
    assert light("sched", "policy")["policy"]["maxConcurrent"] == 8


def test_rules_may_be_spelled_with_hyphens(light: Queue) -> None:
    light("sched", "policy", "set", "--max-concurrent", "5")
    assert light("sched", "policy")["policy"]["maxConcurrent"] == 5


def test_nothing_to_set_is_refused(light: Queue) -> None:
    code, text = light.refused("sched", "policy", "set")
    assert (code, text[:19]) == (2, "nothing to set; use")


def test_rules_set_by_many_at_once_are_all_kept(queue: Queue) -> None:
    values = (7, 5, 9000, 50, 3, 700)
    clients = list(queue.clients(6))
    wishes = iter(zip(FLAT, values, strict=True))
    at_once(clients, lambda client: client.set_queue_policy(dict([next(wishes)])))
    for client in clients:
        client.close()
    found = queue("sched", "policy")["policy"]
    assert tuple(found[name] for name in FLAT) == values


# -------------------------------------------------------------------- lease


def test_an_entry_is_leased_failed_tried_again_and_parked(queue: Queue) -> None:
    queue.policy(maxAttempts=2, backoffBaseMs=1)
    queue.add("job")
    (first,) = queue.lease()
    answer = queue("sched", "release", first, "--failed", "--reason", "tests red")
    expected = {"schemaVersion": 1, "released": first, "failed": True}
    assert {name: answer[name] for name in expected} == expected
    assert queue.entry("job")["error"] == "tests red"
    again = next(filter(None, (queue.lease() for _ in looks())))
    assert again != [first]
    queue("sched", "release", again[0], "--failed")
    parked = queue.entry("job")
    assert (parked["status"], parked["attempts"]) == ("parked", 2)
    assert parked["parkedReason"] == "released as failed (attempt 2/2)"
    assert queue.plan("--now", "2036-01-01T00:00:00Z")["leases"] == []
    assert queue.lease() == []


def test_reset_is_the_way_out_of_parking(queue: Queue) -> None:
    queue.policy(maxAttempts=1)
    queue.add("job")
    queue("sched", "release", *queue.lease(), "--failed")
    answer = queue("sched", "reset", "job")
    assert (answer["schemaVersion"], answer["reset"]) == (1, "job")
    entry = queue.entry("job")
    assert (entry["status"], entry["attempts"]) == ("ready", 0)
    assert not {"parkedReason", "nextEligibleAt"} & entry.keys()
    assert queue.planned() == ["job"]


def test_only_what_is_parked_can_be_reset(light: Queue) -> None:
    light.add("job")
    assert light.refused("sched", "reset", "job") == (
        4,
        'task "job" is queued: only a parked task can be reset',
    )
    assert light.refused("sched", "reset", "nobody") == (3, 'task "nobody" not found')


@pytest.mark.parametrize("verb", ["complete", "release", "renew"])
def test_a_report_without_a_lease_is_refused(light: Queue, verb: str) -> None:
    code, text = light.refused("sched", verb, "lse_1_1")
    assert (code, text[:28]) == (4, "the lease is no longer valid")
    code, text = light.refused("sched", verb, "job")
    assert (code, text) == (3, '"job" is not a lease id; use the leaseId from POST /leases')


def test_a_completed_entry_is_drained_and_stays_so(queue: Queue) -> None:
    queue.add("job")
    (lease,) = queue.lease()
    answer = queue("sched", "complete", lease, "--result", '{"ok": true}')
    assert (answer["schemaVersion"], answer["completed"]) == (1, lease)
    again = queue("sched", "complete", "--leaseId", lease)  # the answer may have got lost
    assert again["completed"] == lease
    entry = queue.entry("job")
    assert (entry["status"], "drainedAt" in entry, "leaseId" in entry) == ("drained", True, False)
    assert queue.reasons() == {"job": "terminal"}


def test_a_clean_release_counts_no_attempt(queue: Queue) -> None:
    queue.add("job")
    (lease,) = queue.lease()
    answer = queue("sched", "release", lease)
    assert (answer["released"], answer["failed"]) == (lease, False)
    assert (queue.entry("job")["status"], queue.entry("job")["attempts"]) == ("ready", 0)


def test_a_reason_without_a_failure_is_refused(light: Queue) -> None:
    light.add("job")
    (lease,) = light.lease()
    assert light.refused("sched", "release", lease, "--reason", "x")[0] == 2
    assert light.refused("sched", "release", lease, "--failed=yes")[0] == 2
    assert light.entry("job")["status"] == "leased"


def test_one_failure_parks_when_there_is_one_attempt(light: Queue) -> None:
    light.policy(maxAttempts=1)
    light.add("job")
    light("sched", "release", *light.lease(), "--failed", "--reason", "no")
    assert light.entry("job")["parkedReason"] == "no (attempt 1/1)"


def test_a_renewed_lease_lasts_longer(light: Queue) -> None:
    light.add("job")
    (lease,) = light.lease("--ttl", "1s")
    before = light.entry("job")["leaseExpiresAt"]
    answer = light("sched", "renew", lease, "--ttl", "10m")
    assert answer["leaseExpiresAt"] == light.entry("job")["leaseExpiresAt"] > before
    assert answer["cancelRequested"] is False


def test_who_holds_a_lease_and_since_when_is_kept(light: Queue) -> None:
    light.add("job")
    light.lease("--worker", "host-7")
    assert light.entry("job")["worker"] == "host-7"
    shown = light("show", "job")
    assert [(one["worker"], "startedAt" in one) for one in shown["attemptLog"]] == [
        ("host-7", True)
    ]


def test_the_reason_of_every_failure_is_kept(light: Queue) -> None:
    light.policy(maxAttempts=3, backoffBaseMs=0)
    light.add("job")
    for reason in ("one", "two"):
        light("sched", "release", *light.lease(), "--failed", "--reason", reason)
    log = light("show", "job")["attemptLog"]
    assert [(one["outcome"], one["error"]) for one in log] == [
        ("retrying", "one"),
        ("retrying", "two"),
    ]


def test_the_ceiling_holds_for_every_worker(queue: Queue) -> None:
    queue.policy(maxConcurrent=2)
    for name in "abcd":
        queue.add(name)
    assert len(queue.lease()) == 2
    assert queue.lease() == []
    assert queue.plan()["available"] == 0
    assert queue.reasons() == dict.fromkeys("cd", "concurrency-ceiling")


def test_sixteen_who_lease_at_once_get_each_their_own(queue: Queue) -> None:
    queue.policy(maxConcurrent=16)
    queue.bring_in([entry(f"e{number}") for number in range(20)])
    clients = list(queue.clients(16))
    answers = at_once(clients, lambda client: client.lease("w", lanes=["queue"], limit=1))
    for client in clients:
        client.close()
    ids = [one["id"] for answer in answers for one in answer["leases"]]
    assert len(ids) == len(set(ids)) == 16
    assert queue.plan()["inFlight"] == 16


def test_a_limit_of_nothing_is_refused(light: Queue) -> None:
    for limit in ("0", "-1", "1.5", "abc", ""):
        code, text = light.refused("sched", "lease", f"--limit={limit}")
        assert code == 2
        assert "--limit" in text
    assert light.refused("sched", "lease", "--limit")[0] == 2


def test_all_granted_leases_are_printed(light: Queue) -> None:
    """However much that is: what the answer does not hold is not leased."""
    light.policy(maxConcurrent=5000)
    light.bring_in([entry(f"e{number}") for number in range(1200)])
    answer = light("sched", "lease")
    assert (answer["granted"], len(answer["leases"])) == (1000, 1000)
    assert light.plan()["inFlight"] == 1000


# -------------------------------------------------------------------- expiry


@pytest.mark.slow
def test_a_lease_that_ran_out_is_reclaimed_and_counts_an_attempt(queue: Queue) -> None:
    queue.policy(backoffBaseMs=60_000)
    name, lease = lease_for_a_while(queue)
    later = "2036-01-01T00:00:00Z"
    assert queue.plan("--now", later)["inFlight"] == 0
    assert queue.reasons("--now", later)[name] == "leased"
    assert name not in queue.planned("--now", later)
    assert reclaimed(queue, name) == [name]
    assert queue.entry(name)["attempts"] == 1
    assert queue.refused("sched", "complete", lease)[0] == 4
    assert queue("sched", "reclaim")["reclaimed"] == []


@pytest.mark.slow
def test_the_last_lease_that_runs_out_parks(queue: Queue) -> None:
    queue.policy(maxAttempts=1)
    name, _ = lease_for_a_while(queue)
    assert reclaimed(queue, name) == [name]
    reason = queue.entry(name)["parkedReason"]
    assert reason == "worker stopped reporting: its lease expired (attempt 1/1)"


def test_a_live_lease_is_not_reclaimed(light: Queue) -> None:
    light.add("job")
    light.lease()
    assert light("sched", "reclaim")["reclaimed"] == []
    assert light.entry("job")["status"] == "leased"


# -------------------------------------------------------------------- plan


def test_a_plan_is_the_same_bytes_again_and_changes_nothing(queue: Queue) -> None:
    queue.policy(maxConcurrent=2)
    for name, priority in (("c", 50), ("a", 10), ("b", 10), ("d", 100)):
        queue.add(name, "--priority", str(priority))
    command = ("sched", "plan", "--now", "2026-01-01T00:00:00.000Z")
    first = queue.ran(*command).out
    assert queue.ran(*command).out == first
    plan = json.loads(first)
    keys = ["schemaVersion", "now", "lane", "policyVersion", "maxConcurrent", "inFlight"]
    assert list(plan) == [*keys, "available", "leases", "skipped", "counts", "truncated"]
    assert [(one["id"], one["leaseExpiresAt"]) for one in plan["leases"]] == [
        ("a", "2026-01-01T00:05:00.000Z"),
        ("b", "2026-01-01T00:05:00.000Z"),
    ]
    assert plan["skipped"] == [
        {"id": "c", "reason": "concurrency-ceiling"},
        {"id": "d", "reason": "concurrency-ceiling"},
    ]
    assert {queue.entry(name)["status"] for name in "abcd"} == {"pending"}


def test_what_is_planned_is_what_is_leased(queue: Queue) -> None:
    queue.policy(maxConcurrent=3)
    for number, name in enumerate("abcde"):
        queue.add(name, "--priority", str(number % 2))
    planned = queue.planned()
    assert [one["id"] for one in queue("sched", "lease")["leases"]] == planned


@pytest.mark.parametrize(
    "now", ["Jan 1 2026", "2026-01-01", "2026-01-01T00:00:00", "1767225600000", "tomorrow", ""]
)
def test_a_moment_that_is_none_is_refused(light: Queue, now: str) -> None:
    code, text = light.refused("sched", "plan", f"--now={now}")
    assert (code, "now" in text) == (2, True)


def test_a_moment_in_another_zone_is_the_same_moment(light: Queue) -> None:
    light.add("job")
    light.lease("--ttl", "60s")
    ends = light.entry("job")["leaseExpiresAt"]
    hour = int(ends[11:13])
    east = f"{ends[:11]}{(hour + 2) % 24:02}{ends[13:-1]}+02:00" if hour < 22 else ends
    assert light.plan("--now", east)["now"] == ends


def test_only_a_plan_takes_a_time(light: Queue) -> None:
    """The clock of the store decides about leases, for all callers alike."""
    for words in (["lease"], ["reclaim"], ["complete", "lse_1_1"], ["release", "lse_1_1"]):
        code, text = light.refused("sched", *words, "--now", "2026-01-01T00:00:00Z")
        assert (code, "--now" in text) == (2, True)


def test_another_lane_has_a_plan_too(light: Queue) -> None:
    ran = light("submit", "--handler", "h", "--lane", "main")
    assert light.planned("--lane", "main") == [ran["taskId"]]
    code, text = light.refused("sched", "plan", "--lane", "quue")
    assert (code, text) == (3, 'lane "quue" is not in the policy; did you mean queue?')


# -------------------------------------------------------------------- words


def test_unknown_verbs_and_flags_are_refused_with_the_nearest(light: Queue) -> None:
    assert (
        light.run("sched", "plann").err
        == "error: unknown command 'sched plann'; did you mean plan?\n"
    )
    code, text = light.refused("sched", "lease", "--limt", "0")
    assert (code, text) == (2, "unknown option --limt; did you mean --limit?")
    assert light.run("sched").code == 2
    assert light.run("sched", "bogus").code == 2


def test_the_text_output_is_readable(light: Queue) -> None:
    light.add("job", "--app", "review")

    def say(*words: str) -> str:
        ran = light.run(*words, "--store", light.store)
        assert (ran.code, ran.err) == (0, "")
        return ran.out

    assert re.match(r"lane queue at \S+: 0 of 1 slots in use\n", say("sched", "plan"))
    told = say("sched", "lease")
    found = re.fullmatch(r"leased job as (lse_\d+_\d+) until \S+\n", told)
    assert found, told
    assert say("sched", "lease") == "nothing to lease; run fairlane sched plan to see why\n"
    assert say("sched", "renew", found[1]).startswith(f"renewed {found[1]}: job is running until ")
    assert say("sched", "complete", found[1]) == f"completed {found[1]}: job is done\n"
    assert say("sched", "reclaim") == "no lease has expired\n"
    assert say("sched", "policy").startswith("maxConcurrent  1\n")


def test_the_server_and_the_store_answer_alike(run: Run, server: Server) -> None:
    """The commands print exactly what the route answers."""
    command = ("sched", "plan", "--now", "2026-01-01T00:00:00Z", "--json")
    text = server.get("/scheduler/plan?now=2026-01-01T00:00:00Z")
    assert run(*command, "--url", server.url).out == f"{text}\n"
    assert run(*command, "--store", server.store).out == f"{text}\n"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_leases_that_nobody_reads_go_back_and_cost_no_attempt(
    queue: Queue, form: list[str]
) -> None:
    queue.add("a")
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [*FAIRLANE, "sched", "lease", "--store", queue.store, *form],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=queue.folder,
        env=environment(),
    )
    os.close(writing)
    _, complaint = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, complaint) == (141, b"")
    found = queue.entry("a")
    assert (found["status"], found["attempts"]) == ("ready", 0)
    assert len(queue.lease()) == 1
