"""Secrets at rest: rows hold none, readers get them back, and only with the right key."""

from __future__ import annotations

import base64
import contextlib
import stat
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import InvalidRequest, InvalidSettings, OperatorError, StoreMismatch
from fairlane.core.secrets import References, is_sealed
from fairlane.core.templates import define
from fairlane.embedded.app import Fairlane
from fairlane.engine.commands import (
    AppendOutput,
    Complete,
    CreateEndpoint,
    CreateJobs,
    CreateTemplate,
    Fail,
    Renew,
    RotateEndpoint,
    Submit,
    UpdateJob,
    UpdateTemplate,
    UseSecret,
)
from fairlane.engine.reads.views import EventFilter, Views
from fairlane.engine.writing_node import WritingNode
from fairlane.store.opening import open_store
from fairlane.store.tables.secrets import SEALED_LIKE
from fairlane.store.vault import Vault, new_key, read_keys
from tests.store.crontab import job_document
from tests.store.scheduler import Scheduler, lease_request, submission
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fairlane.store.base import Store

CANARY = "sk-canary-e2f1a0"
CONFIG = {"apiKey": CANARY, "model": "m", "more": [{"credentials": {"deep": CANARY}}]}
SCHEDULE = {"kind": "every", "everyMs": 60_000}


def instruction(name: str = "one", **config: Any) -> Submit:
    body = {"instruction": "do", "llmConfig": config or CONFIG}
    text = msgspec.json.encode(body).decode()
    return Submit([submission(name, kind="instruction", body=text)])


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    with contextlib.closing(Views(store)) as views:
        yield views


def rows_of(store: Store) -> str:
    """Everything that the tables with requests in them hold, as text."""
    connection = store.reader()
    try:
        found = [
            connection.run("task_view", id="one"),
            connection.run("template_list", limit=9),
            connection.run("job_list", limit=9),
            connection.run("secret_get"),
        ]
    finally:
        connection.close()
    return repr(found)


# --- rows and memory ----------------------------------------------------------------------------


def test_rows_hold_no_secret_and_who_runs_the_task_gets_it(scheduler: Scheduler) -> None:
    scheduler.ask(instruction())
    assert CANARY not in rows_of(scheduler.store)
    assert "sealed:1:" in rows_of(scheduler.store)
    (grant,) = scheduler.lease(lanes=None, capabilities=frozenset({"instruction"}))
    assert msgspec.json.decode(grant.body)["llmConfig"] == CONFIG


def test_what_is_leased_in_the_transaction_that_submits_it_is_clear_too(
    scheduler: Scheduler,
) -> None:
    lease = lease_request(lanes=None, capabilities=frozenset({"instruction"}))
    outcome = scheduler.engine.apply([instruction()], [lease])
    assert CANARY in outcome.grants[0][0].body
    assert CANARY not in rows_of(scheduler.store)


def test_templates_and_jobs_are_sealed_and_a_mask_stands_for_what_is_kept(
    scheduler: Scheduler, views: Views
) -> None:
    scheduler.ask(
        CreateTemplate("tpl_1", define({"name": "t", "instruction": "x", "llmConfig": CONFIG}))
    )
    task = {"instruction": "x", "llmConfig": CONFIG}
    scheduler.ask(CreateJobs(["job_1"], [job_document("j", schedule=SCHEDULE, task=task)]))
    masked = {"apiKey": "***", "model": "other"}
    scheduler.ask(UpdateTemplate("tpl_1", {"llmConfig": masked}))
    scheduler.ask(UpdateJob("job_1", {"task": {"llmConfig": masked}}))
    assert CANARY not in rows_of(scheduler.store)
    template, job = views.template("tpl_1"), views.job("job_1")
    assert template is not None
    assert job is not None
    assert template.definition.llm_config == {"apiKey": CANARY, "model": "other"}
    assert (job.definition.task.llm_config or {})["apiKey"] == CANARY


def test_the_webhook_secret_is_sealed_and_a_clear_one_of_before_becomes_so(
    scheduler: Scheduler,
) -> None:
    assert scheduler.ask(UseSecret("whsec_first")) == "whsec_first"
    assert scheduler.ask(UseSecret("whsec_other")) == "whsec_first"
    assert "whsec_" not in rows_of(scheduler.store)
    writer = scheduler.store.writer()
    writer.begin()
    writer.run("secret_set", secret="whsec_of_before")
    writer.commit()
    writer.close()
    assert scheduler.ask(UseSecret("whsec_other")) == "whsec_of_before"
    assert "whsec_" not in rows_of(scheduler.store)


def test_requests_from_before_there_were_keys_are_read_as_they_are(scheduler: Scheduler) -> None:
    scheduler.ask(instruction())
    writer = scheduler.store.writer()
    writer.begin()
    seq = writer.run("task_view", id="one")[0][0]
    old = '{"instruction":"do","llmConfig":{"apiKey":"old-one"}}'
    writer.run_rows("request_grow", [(seq, old)])
    writer.commit()
    writer.close()
    (grant,) = scheduler.lease(lanes=None, capabilities=frozenset({"instruction"}))
    assert msgspec.json.decode(grant.body)["llmConfig"] == {"apiKey": "old-one"}


def test_a_stolen_sealed_text_is_not_opened_for_who_sends_it(scheduler: Scheduler) -> None:
    stolen = scheduler.store.vault.seal(CANARY)
    scheduler.ask(instruction(apiKey=stolen))
    (grant,) = scheduler.lease(lanes=None, capabilities=frozenset({"instruction"}))
    assert msgspec.json.decode(grant.body)["llmConfig"] == {"apiKey": stolen}


def test_what_tasks_may_not_refer_to_is_refused_wherever_it_is_reported(
    scheduler: Scheduler,
) -> None:
    config = {"apiKey": "env:HOME"}
    (answer,) = scheduler.ask(instruction(**config))
    assert isinstance(answer, InvalidRequest)
    made = [
        CreateTemplate("tpl_1", define({"name": "t", "instruction": "x", "llmConfig": config})),
        CreateJobs(
            ["job_1"],
            [job_document("j", schedule=SCHEDULE, task={"instruction": "x", "llmConfig": config})],
        ),
    ]
    for request in made:
        assert "refers to 'env:HOME'" in scheduler.refused(request).message
    scheduler.store.vault.references = References(["env:HOME"])
    assert not isinstance(scheduler.ask(instruction(**config))[0], InvalidRequest)
    assert '"env:HOME"' in rows_of(scheduler.store)  # shown as it is: it is no secret


# --- keys ---------------------------------------------------------------------------------------


def test_a_key_is_made_beside_the_database_and_read_again(tmp_path: Path) -> None:
    url = f"{SQLITE}{tmp_path / 'fairlane.db'}"
    sealed = open_store(url).vault.seal(CANARY)
    key = tmp_path / "fairlane.db.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "fairlane.db").stat().st_mode) == 0o600
    assert len(read_keys(key.read_text())[0]) == 32
    assert open_store(url).vault.open(sealed) == CANARY
    assert [file.name for file in tmp_path.iterdir() if ".key." in file.name] == []


def test_a_new_folder_for_the_database_is_private(tmp_path: Path) -> None:
    open_store(f"{SQLITE}{tmp_path / 'new' / 'fairlane.db'}")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    url = f"{SQLITE}{tmp_path / 'fairlane.db'}"
    open_store(url).vault.seal(CANARY)
    (tmp_path / "fairlane.db.key").chmod(0o640)
    with pytest.raises(OperatorError, match="other users can read it; run chmod 600"):
        open_store(url).vault.seal(CANARY)


def test_another_key_opens_nothing_and_destroys_nothing() -> None:
    ours, theirs = Vault(), Vault()
    body = msgspec.json.encode({"llmConfig": {"apiKey": CANARY}}).decode()
    sealed = theirs.seal_body(body)
    with pytest.raises(StoreMismatch, match=r"sealed with the key [0-9a-f]{16}, which this"):
        ours.open(msgspec.json.decode(sealed)["llmConfig"]["apiKey"])
    assert ours.open_body(sealed) == sealed
    assert ours.seal_body(sealed) == sealed
    assert theirs.open_body(sealed) == body


def test_a_changed_text_is_noticed() -> None:
    vault = Vault()
    sealed = vault.seal(CANARY)
    head, _, tail = sealed.rpartition(":")
    raw = bytearray(base64.urlsafe_b64decode(tail))
    raw[-1] ^= 1
    with pytest.raises(StoreMismatch, match="is damaged: set it again"):
        vault.open(f"{head}:{base64.urlsafe_b64encode(raw).decode()}")


def test_keys_are_changed_by_putting_the_new_one_first() -> None:
    old, new = new_key(), new_key()
    before = Vault(lambda: [old]).seal(CANARY)
    both = Vault(lambda: [new, old])
    assert both.open(before) == CANARY
    after = both.seal(CANARY)
    assert Vault(lambda: [new]).open(after) == CANARY
    assert is_sealed(after)


def test_what_stays_is_sealed_with_the_new_key_at_the_next_start(tmp_path: Path) -> None:
    old, new = (base64.b64encode(new_key()).decode() for _ in range(2))
    url = f"{SQLITE}{tmp_path / 'fairlane.db'}"
    before = open_store(url, secret_key=old)
    before.migrate()
    with contextlib.closing(Scheduler(before)) as scheduler:
        scheduler.ask(
            CreateTemplate("t", define({"name": "t", "instruction": "x", "llmConfig": CONFIG}))
        )
        task = {"instruction": "x", "llmConfig": CONFIG}
        scheduler.ask(CreateJobs(["j"], [job_document("j", schedule=SCHEDULE, task=task)]))
        scheduler.ask(CreateEndpoint("e", "a", "https://hook.example/", "whsec_first"))
        scheduler.ask(RotateEndpoint("e", "whsec_second", 1000))
        scheduler.ask(UseSecret("whsec_own"))
    node = WritingNode(open_store(url, secret_key=f"{new} {old}"), ManualClock())
    node.start()
    node.stop()
    after = open_store(url, secret_key=new)
    with contextlib.closing(Views(after)) as views:
        template, job = views.template("t"), views.job("j")
    assert template is not None
    assert job is not None
    assert template.definition.llm_config == CONFIG
    assert job.definition.task.llm_config == CONFIG
    with contextlib.closing(Scheduler(after)) as scheduler:
        assert scheduler.ask(UseSecret("whsec_other")) == "whsec_own"
        rows = scheduler.reader.run("sealed_all", text=SEALED_LIKE)
        (kept,) = [row[2:] for row in rows if row[0] == "endpoint"]
        assert [after.vault.open(one) for one in kept] == ["whsec_second", "whsec_first"]


def test_the_same_secret_never_looks_the_same() -> None:
    vault = Vault()
    assert vault.seal(CANARY) != vault.seal(CANARY)


@pytest.mark.parametrize("text", ["", "short", "QUJD", "not base64!"])
def test_what_is_not_a_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="secret_key"):
        open_store("sqlite://:memory:", secret_key=text)


def test_a_key_may_be_given(tmp_path: Path) -> None:
    key = base64.b64encode(new_key()).decode()
    url = f"{SQLITE}{tmp_path / 'fairlane.db'}"
    sealed = open_store(url, secret_key=key).vault.seal(CANARY)
    assert not (tmp_path / "fairlane.db.key").exists()
    assert open_store(url, secret_key=key).vault.open(sealed) == CANARY


def test_nothing_of_a_secret_reaches_the_files_of_a_database(tmp_path: Path) -> None:
    store = open_store(f"{SQLITE}{tmp_path / 'fairlane.db'}")
    store.migrate()
    scheduler = Scheduler(store)
    scheduler.ask(instruction())
    scheduler.ask(
        CreateTemplate("tpl_1", define({"name": "t", "instruction": "x", "llmConfig": CONFIG}))
    )
    try:
        for file in tmp_path.iterdir():
            assert CANARY.encode() not in file.read_bytes(), file.name
        assert b"sealed:1:" in (tmp_path / "fairlane.db-wal").read_bytes()
    finally:
        scheduler.close()


# --- who runs it outside ------------------------------------------------------------------------


def test_what_an_external_worker_repeats_is_hidden_where_it_is_kept(
    scheduler: Scheduler, views: Views
) -> None:
    scheduler.ask(instruction("one"))
    scheduler.ask(instruction("two"))
    for name in ("one", "two"):
        (grant,) = scheduler.lease(
            lanes=None, capabilities=frozenset({"instruction"}), worker="outside", start=True
        )
        key = (grant.task.seq, grant.task.fencing_token)
        scheduler.ask(AppendOutput(*key, None, f"it is {CANARY}", trusted=False))
        scheduler.ask(Renew(*key, 1000, f'{{"at":"{CANARY}"}}'))
        if name == "one":
            done = Complete(*key, f'{{"{CANARY}":["{CANARY}",1]}}', begun=True)
            assert scheduler.ask(done) == scheduler.ask(done)  # compared as it is kept
        else:
            scheduler.ask(Fail(*key, f"wrong: {CANARY}", retryable=False, begun=True))
    one, two = views.task("one"), views.task("two")
    assert one is not None
    assert two is not None
    assert one.result == '{"***":["***",1]}'
    assert two.error == "wrong: ***"
    pieces = views.output(one.task.seq, 0, -1, 10)
    assert "it is ***" in repr(pieces)
    happened = repr(views.events(EventFilter(), 0, 2**40, 100))
    assert '{"at":"***"}' in happened
    assert CANARY not in happened


async def test_a_node_with_another_key_does_not_start(store_url: str) -> None:
    ours, theirs = (base64.b64encode(new_key()).decode() for _ in range(2))
    async with Fairlane(store_url, secret_key=ours):
        pass
    with pytest.raises(
        StoreMismatch, match="which this node does not have: set secret_key to the key of"
    ):
        await Fairlane(store_url, secret_key=theirs).start()
    async with Fairlane(store_url, secret_key=f"{theirs} {ours}"):
        pass
