"""`GET /metrics`: read by the parser of the Prometheus client, and held against the store."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.http.api import Api, eventually
from tests.http.stage import HELD, ONE, POLICY, TINY
from tests.http.work import AT_ONCE, Work

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
LABELS = {"lane", "outcome", "le", "version", "python", "store", "kind", "state"}
ENDED = ("done", "failed", "cancelled")

Numbers = Counter[tuple[str, ...]]


class Scraped:
    """The samples of some scrapes, added up: by name, and by the values of their labels."""

    def __init__(self, *texts: str) -> None:
        self.values: Counter[tuple[str, ...]] = Counter()
        self.labels: set[str] = set()
        self.kinds: dict[str, str] = {}
        for text in texts:
            for family in text_string_to_metric_families(text):
                self.kinds[family.name] = family.type
                for sample in family.samples:
                    self.labels |= sample.labels.keys()
                    key = (sample.name, *(v for k, v in sample.labels.items() if k != "le"))
                    if not sample.name.endswith("_bucket"):
                        self.values[key] += sample.value  # type: ignore[assignment]  # or a float

    def by_lane(self, name: str) -> Numbers:
        found = {key[1:]: value for key, value in self.values.items() if key[0] == name}
        return Counter({key: value for key, value in found.items() if value})


async def scrape(*apis: Api) -> Scraped:
    answers = [await api.get("/metrics") for api in apis]
    assert {answer.status for answer in answers} == {200}
    for answer in answers:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scraped(*(answer.raw.decode() for answer in answers))


def rows(url: str, query: str) -> list[Any]:
    """Straight from the database, by none of our own code."""
    if url.startswith("sqlite:///"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()
    with psycopg.connect(url) as database:
        return database.execute(query).fetchall()


def by_state(url: str) -> Numbers:
    found = rows(url, "SELECT lane, state, count(*) FROM task GROUP BY lane, state")
    return Counter({(lane, state): count for lane, state, count in found})


def lanes_in(states: Numbers, *wanted: str) -> Numbers:
    found: Numbers = Counter()
    for (lane, state), count in states.items():
        if state in wanted:
            found[lane,] += count
    return found


def assert_same(found: Scraped, url: str) -> None:
    """Everything that was counted, against a recount of what the store holds."""
    states = by_state(url)
    everything = {state for _, state in states}
    assert found.by_lane("fairlane_tasks_submitted_total") == lanes_in(
        states, *(everything - {"rejected"})
    )
    assert found.by_lane("fairlane_tasks_rejected_total") == lanes_in(states, "rejected")
    finished = found.by_lane("fairlane_tasks_finished_total")
    retried = found.by_lane("fairlane_manual_retries_total")
    assert found.by_lane("fairlane_tasks_revived_total") == retried
    finished.subtract(retried)
    assert +finished == Counter({key: n for key, n in states.items() if key[1] in ENDED})
    happened = events_of(url)
    assert found.by_lane("fairlane_tasks_retried_total") == lanes_in(happened, "task.retrying")
    assert found.by_lane("fairlane_parkings_total") == lanes_in(happened, "task.parked")
    dispatched = rows(url, "SELECT name, dispatched FROM lane WHERE dispatched > 0")
    assert found.by_lane("fairlane_wait_seconds_count") == Counter(
        {(lane,): count for lane, count in dispatched}
    )


def events_of(url: str) -> Numbers:
    query = "SELECT lane, type, count(*) FROM event JOIN task USING (seq) GROUP BY lane, type"
    return Counter({(lane, kind): count for lane, kind, count in rows(url, query)})


def assert_runs(found: Scraped, url: str) -> None:
    """Each run that was begun has been measured, but for those that go on."""
    begun = lanes_in(events_of(url), "task.started")
    begun.subtract(lanes_in(by_state(url), "running"))
    assert found.by_lane("fairlane_run_seconds_count") == +begun


def assert_webhooks(found: Scraped, url: str) -> None:
    tried = rows(url, "SELECT coalesce(sum(attempts), 0) FROM delivery")[0][0]
    states = dict(rows(url, "SELECT state, count(*) FROM delivery GROUP BY state"))
    counted = found.by_lane("fairlane_webhooks_total")
    assert counted.total() == tried
    assert counted["delivered",] == states.get("delivered", 0)
    assert counted["given_up",] == states.get("given_up", 0)
    assert found.values["fairlane_webhooks_owed",] == states.get("due", 0)


def assert_standing(found: Scraped, url: str) -> None:
    """What waits and runs, which each node tells of the whole store."""
    states = by_state(url)
    waiting = lanes_in(states, "queued", "waiting_dependency")
    assert found.by_lane("fairlane_tasks_waiting") == waiting
    assert found.by_lane("fairlane_tasks_running") == lanes_in(states, "assigned", "running")
    assert found.by_lane("fairlane_tasks_parked") == lanes_in(states, "parked")


async def many_outcomes(work: Work, hook_url: str) -> None:
    """Every way in which a task can end or wait, a few at a time."""
    api = work.api
    done = [await work.echo(callbackUrl=hook_url) for _ in range(40)]
    done += [await work.submit(lane=ONE, retryPolicy=AT_ONCE) for _ in range(5)]
    failed = [await work.submit(fake={"status": 500}) for _ in range(6)]
    await api.ended(*done, *failed)
    for task_id in [await work.echo(lane=HELD) for _ in range(4)]:
        await api.cancel(task_id)
    await asyncio.gather(*(work.post(lane=TINY) for _ in range(9)))
    await work.park()
    await work.api.end_of(await work.expiring(lane=HELD))
    for task_id in failed[:2]:
        assert (await work.retry(task_id)).status == 200
    await api.ended(*failed)
    work.fail_next(1)
    await api.end_of(await work.submit(retryPolicy=AT_ONCE))
    await work.echo(lane=HELD)
    await work.echo(dependsOn=["nobody"])


async def test_the_numbers_are_those_of_the_store(
    store_url: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(store_url, policy=POLICY)
    hook = hooks.new()
    work = Work(server.api, instance, hooks)
    await many_outcomes(work, hook.url)
    running = await work.block(ONE)
    await hook.until(40)

    async def settled() -> Scraped | None:
        found = await scrape(server.api)
        sent = found.values["fairlane_webhooks_total", "delivered"]
        return found if sent == 40 else None

    found = await eventually(settled)
    assert_same(found, store_url)
    assert_standing(found, store_url)
    assert_runs(found, store_url)
    assert_webhooks(found, store_url)
    values = found.values
    assert values["fairlane_tasks_running", ONE] == values["fairlane_slots_in_use", ONE] == 1
    assert values["fairlane_parkings_total", "main"] == 1
    assert values["fairlane_tasks_expired_total", HELD] == 1
    assert values["fairlane_tasks_retried_total", "browser"] == 1
    assert values["fairlane_manual_retries_total", "browser", "failed"] == 2
    assert values["fairlane_lane_paused", HELD] == 1
    assert values["fairlane_lane_paused", ONE] == 0
    assert values["fairlane_slots", ONE] == 1
    assert values["fairlane_oldest_wait_seconds", HELD] > 0
    # Each run that began has ended, but for the one that hangs: six failed, two of them twice.
    assert values["fairlane_run_seconds_count", "browser"] == 6 + 2 + 2
    assert values["fairlane_run_seconds_count", ONE] == 5
    assert values["fairlane_commit_seconds_count",] > 0
    assert 0 < values["fairlane_lock_seconds_sum",] <= values["fairlane_commit_seconds_sum",]
    commits = values["fairlane_commit_seconds_count",]
    assert values["fairlane_commit_round_trips_count",] == commits
    on_sqlite = any(key[0] == "fairlane_build_info" and "sqlite" in key for key in values)
    trips = values["fairlane_commit_round_trips_sum",]
    assert trips == 0 if on_sqlite else trips >= 2 * commits
    assert values["fairlane_commit_batch_size_sum",] >= 60
    await server.api.cancel(running)
    instance.release()


async def test_under_load_the_numbers_only_grow_and_end_where_the_store_does(
    store_url: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(store_url, policy=POLICY)
    works = [Work(server.api, instance, hooks) for _ in range(8)]

    async def hand_in(work: Work) -> None:
        for number in range(40):
            if number % 8 == 7:
                await work.api.cancel(await work.echo(lane=HELD))
            elif number % 8 == 5:
                await work.submit(fake={"status": 500})
            else:
                await work.echo()

    loads = asyncio.gather(*map(hand_in, works))
    seen = [await scrape(server.api)]
    while not loads.done():
        seen.append(await scrape(server.api))
    await loads
    await server.api.until_stats(lambda stats: not stats["queue"]["totalInflight"])
    await server.api.until_stats(lambda stats: not stats["queue"]["totalQueued"])
    seen.append(await scrape(server.api))
    for before, after in itertools.pairwise(seen):
        for key, value in before.values.items():
            if key[0].endswith(("_total", "_count", "_sum")):
                assert after.values[key] >= value, key
    assert_same(seen[-1], store_url)
    assert_standing(seen[-1], store_url)
    assert_runs(seen[-1], store_url)
    finished = seen[-1].by_lane("fairlane_tasks_finished_total")
    assert finished == Counter(
        {("main", "done"): 240, ("browser", "failed"): 40, (HELD, "cancelled"): 40}
    )


async def test_only_lanes_and_fixed_words_tell_series_apart(work: Work) -> None:
    for _ in range(3):
        await work.api.end_of(await work.echo(agentId=work.new_agent("secretive")))
    answer = await work.api.get("/metrics")
    found = Scraped(answer.raw.decode())
    assert found.labels <= LABELS
    assert b"secretive" not in answer.raw
    assert found.kinds["fairlane_tasks_submitted"] == "counter"
    assert found.kinds["fairlane_wait_seconds"] == "histogram"
    assert found.kinds["fairlane_tasks_waiting"] == "gauge"
    assert found.values["process_cpu_seconds_total",] > 0
    assert found.values["process_resident_memory_bytes",] > 1_000_000


async def test_names_and_units_are_those_of_prometheus(work: Work) -> None:
    text = (await work.api.get("/metrics")).raw.decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    told = dict(re.findall(r"^# HELP (\S+) (\S.*)\.$", text, re.MULTILINE))
    assert kinds.keys() == told.keys()
    assert text.count("# TYPE ") == len(kinds) > 25  # none twice
    bare = [name.removesuffix("_total") for name in kinds]
    assert len(set(bare)) == len(bare)  # OpenMetrics knows a counter by its name without the ending
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|milli\w*|minutes|kb|mb|percent|count|sum|bucket)$", name), name
        if kind == "histogram":
            assert name.endswith(("_seconds", "_size", "_trips")), name
    started = float(re.findall(r"^process_start_time_seconds (\S+)$", text, re.MULTILINE)[0])
    assert 0 < datetime.now(UTC).timestamp() - started < 3600


async def test_histograms_are_whole(work: Work) -> None:
    await work.api.end_of(await work.echo())
    families = list(text_string_to_metric_families((await work.api.get("/metrics")).raw.decode()))
    histograms = [family for family in families if family.type == "histogram"]
    assert len(histograms) == 7
    for family in histograms:
        buckets: dict[str, list[float]] = {}
        counts: dict[str, float] = {}
        for sample in family.samples:
            lane = sample.labels.get("lane", "")
            if sample.name.endswith("_bucket"):
                buckets.setdefault(lane, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[lane] = sample.value
        for lane, values in buckets.items():
            assert values == sorted(values)
            assert values[-1] == counts[lane]


async def test_who_follows_is_counted(work: Work) -> None:
    before = (await scrape(work.api)).values["fairlane_stream_clients",]

    async def counted() -> bool | None:
        return (await scrape(work.api)).values["fairlane_stream_clients",] == before + 1 or None

    async with work.stream():
        assert await eventually(counted)

    async def gone() -> bool | None:
        return (await scrape(work.api)).values["fairlane_stream_clients",] == before or None

    assert await eventually(gone)


async def test_waiting_workers_are_counted(serve: Serve) -> None:
    server = await serve()

    async def counted(expected: int) -> None:
        async def look() -> bool | None:
            found = await scrape(server.api)
            return found.values["fairlane_lease_waits",] == expected or None

        await eventually(look)

    asked = [
        asyncio.create_task(server.api.post("/leases", {"worker": worker, "waitMs": 60_000}))
        for worker in ("stays", "goes")
    ]
    await counted(2)
    asked[1].cancel()
    await counted(1)
    await server.api.submit(handler="elsewhere")
    assert (await asked[0]).json["granted"] == 1
    await counted(0)


@pytest.mark.slow
async def test_two_nodes_add_up_to_the_store(
    fresh_postgres: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    left, right = [await serve(fresh_postgres, policy=POLICY) for _ in range(2)]
    hook = hooks.new()
    both = [Work(server.api, instance, hooks) for server in (left, right)]
    await many_outcomes(both[0], hook.url)
    await many_outcomes(both[1], hook.url)
    tasks = await asyncio.gather(*(both[n % 2].echo() for n in range(100)))
    await left.api.ended(*tasks)
    assert_same(await scrape(left.api, right.api), fresh_postgres)
    for server in (left, right):
        found = await scrape(server.api)
        assert_standing(found, fresh_postgres)
        assert found.by_lane("fairlane_tasks_submitted_total")  # each has done something


async def test_leases_that_are_reclaimed_are_counted(serve: Serve) -> None:
    server = await serve(policy={"lanes": {"out": {"maxInflight": 5}}})
    await server.api.submit(handler="elsewhere", lane="out")
    leased = await server.api.post(
        "/leases", {"worker": "w", "lanes": ["out"], "limit": 1, "ttlMs": 1000}
    )
    assert len(leased.json["leases"]) == 1

    async def taken_back() -> bool | None:
        found = await scrape(server.api)
        return found.values["fairlane_leases_reclaimed_total", "out"] == 1 or None

    await eventually(taken_back)


async def test_every_query_of_the_dashboard_names_metrics_that_exist(work: Work) -> None:
    document = json.loads((ROOT / "deploy" / "grafana.json").read_text("utf-8"))
    queries = [target["expr"] for panel in _panels(document) for target in panel["targets"]]
    assert len(queries) > 15
    found = await scrape(work.api)
    known = {key[0] for key in found.values}
    known |= {name.removesuffix("_count") + "_bucket" for name in known if name.endswith("_count")}
    for query in queries:
        names = set(re.findall(r"\b(?:fairlane|process)_\w+", query))
        assert names, query
        assert names <= known, (query, names - known)


def _panels(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in document["panels"] if panel["type"] != "row"]
