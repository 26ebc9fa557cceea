"""Sixteen leasers at once never exceed a ceiling, at any instant: in threads and in processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.clock import SystemClock
from fairlane.core.policy import Policy
from fairlane.engine.commands import SetPolicy, Submit
from fairlane.engine.engine import Engine, apply_one
from tests.store.invariants import assert_sound
from tests.store.leasers import QUOTA, Held, most_at_once, take_all_in_threads
from tests.store.scheduler import submission

if TYPE_CHECKING:
    from fairlane.store.base import Connection, Store

ROOT = Path(__file__).parents[2]
LEASERS = 16
PROCESSES = 8
CEILING = 5
PER_AGENT = 2
AGENTS = ("a", "b", "c", "d")
TASKS_EACH = 14


def fill(store: Store) -> None:
    """Four agents with tasks of their own, and every fourth task in a session of its agent."""
    engine = Engine(store, SystemClock(), name="filler")
    lane = {"maxInflight": CEILING, "maxPerAgentInflight": PER_AGENT}
    apply_one(engine, SetPolicy({"lanes": {"main": lane}}, "test"))
    for agent in AGENTS:
        tasks = [
            submission(f"{agent}{n:03}", agent, session=f"chat-{agent}" if n % 4 == 0 else None)
            for n in range(TASKS_EACH)
        ]
        apply_one(engine, Submit(tasks))
    engine.close()


class Sampler:
    """Looks into the database again and again while others work; keeps the most it ever saw."""

    def __init__(self, reader: Connection) -> None:
        self.samples = 0
        self.most = 0
        self.most_of_an_agent = 0
        self._reader = reader
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(0.001):
            agents = [row[4] for row in self._reader.run("task_leased")]
            self.samples += 1
            self.most = max(self.most, len(agents))
            counts = [agents.count(agent) for agent in set(agents)]
            self.most_of_an_agent = max([self.most_of_an_agent, *counts])


def check(store: Store, history: list[Held], sampler: Sampler) -> None:
    assert sorted(held.task for held in history) == sorted(
        f"{agent}{n:03}" for agent in AGENTS for n in range(TASKS_EACH)
    )
    assert len({held.fencing_token for held in history}) == len(history)
    assert len({held.leaser for held in history}) >= len(history) / QUOTA
    assert sampler.samples
    (most,) = most_at_once(history).values()
    assert max(most, sampler.most) == CEILING, "more, or the ceiling was never put to the test"
    most = max(most_at_once(history, lambda held: held.agent).values())
    assert max(most, sampler.most_of_an_agent) == PER_AGENT
    assert set(most_at_once(history, lambda held: held.session).values()) == {1}
    for agent in AGENTS:
        turns = sorted(
            (held.from_ns, held.task) for held in history if held.session == f"chat-{agent}"
        )
        assert turns == sorted(turns, key=lambda turn: turn[1])
    reader = store.reader()
    assert_sound(reader, Policy())
    reader.close()


@pytest.mark.slow
def test_threads_with_connections_of_their_own_never_exceed_a_ceiling(store: Store) -> None:
    fill(store)
    reader = store.reader()
    with Sampler(reader) as sampler:
        history = take_all_in_threads(store, "leaser", LEASERS)
    reader.close()
    check(store, history, sampler)
    assert sampler.most <= CEILING


@pytest.mark.slow
def test_processes_on_one_database_never_exceed_a_ceiling(postgres_store: Store) -> None:
    fill(postgres_store)
    command = [sys.executable, "-m", "tests.store.leasers", postgres_store.url]
    leasers = [
        subprocess.Popen(
            [*command, f"leaser{number}", str(LEASERS // PROCESSES)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    try:
        for leaser in leasers:
            assert leaser.stdout
            assert leaser.stdout.readline() == "ready\n"
        reader = postgres_store.reader()
        with Sampler(reader) as sampler:
            for leaser in leasers:
                assert leaser.stdin
                leaser.stdin.write("go\n")
                leaser.stdin.flush()
            answers = [leaser.communicate()[0] for leaser in leasers]
        reader.close()
    finally:
        for leaser in leasers:
            leaser.kill()
            leaser.communicate()
    history = [Held(*held) for answer in answers for held in json.loads(answer)]
    check(postgres_store, history, sampler)
