"""Bring the files of other programs into a store, with the ids they had there.

The dialects are in `compat`. Every file can be imported again: ids that exist are left alone, so an
import that was interrupted is repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from fairlane import config
from fairlane.cli.backends import read_json
from fairlane.cli.direct import StoreClient, usable_store
from fairlane.cli.output import remark
from fairlane.clock import SystemClock
from fairlane.compat import browseros_file, goclaw_file, policies
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest, QueueFull, TargetRefused
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission
from fairlane.engine.commands import CreateJobs, CreateTemplate, Submit
from fairlane.engine.engine import Engine, apply_one
from fairlane.engine.ids import new_node_name
from fairlane.engine.import_commands import ImportFinished
from fairlane.engine.reads.views import Views
from fairlane.schema.queue import imported_entries
from fairlane.store.base import Store

T = TypeVar("T")

STEP: Final = 200  # tasks in one transaction
SHOWN_MAX: Final = 10


class ImportReport(msgspec.Struct, rename="camel", omit_defaults=True):
    """`imported` counts what is new, `existing` what the store had already; `problems` are about
    what was left out.
    """

    source: str
    file: str
    dry_run: bool
    imported: dict[str, int]
    existing: int
    problems: list[str]
    notes: list[str]


class Import:
    """One file for one store. With `dry_run`, nothing is written."""

    def __init__(self, url: str, file: str, *, dry_run: bool, skip_invalid: bool) -> None:
        self._url = url
        self._file = file
        self._dry_run = dry_run
        self._skip_invalid = skip_invalid
        self._imported: dict[str, int] = {}
        self._existing = 0
        self.problems: list[str] = []
        self.notes: list[str] = []

    def run(self, source: str) -> ImportReport:
        SOURCES[source](self)
        return ImportReport(
            source=source,
            file=self._file,
            dry_run=self._dry_run,
            imported=self._imported,
            existing=self._existing,
            problems=self.problems,
            notes=self.notes,
        )

    # ---------------------------------------------------------------- PinchTab, cool-workflow

    def pinchtab(self) -> None:
        document = self._object()
        if not policies.FOREIGN.is_foreign(document):
            raise InvalidRequest(
                f"{self._file} is not a PinchTab configuration: it has no section 'scheduler'"
            )
        self._policy(document)

    def coolworkflow(self) -> None:
        document = self._object()
        if "entries" not in document:
            if not policies.FOREIGN.is_foreign(document):
                raise InvalidRequest(
                    f"{self._file} is neither a queue of cool-workflow, with 'entries', "
                    "nor a scheduling policy"
                )
            self._policy(document)
            return
        imported_entries(document)  # raises all problems at once
        with self._views() as views:
            new = self._new(document["entries"], lambda one: views.task(one["id"]))
        self._imported["entries"] = len(new)
        if new and not self._dry_run:
            with self._client() as client:
                client.queue_import({**document, "entries": new})

    def _policy(self, document: JsonObject) -> None:
        with self._client() as client:
            checked = client.check_policy(document)
            if not checked["valid"]:
                raise InvalidRequest(f"{self._file}: {'; '.join(checked['problems'])}")
            self.notes += checked.get("notes", ())
            self._imported["policyChanges"] = len(checked["changes"])
            if not self._dry_run:
                client.set_policy(document, note=f"imported from {Path(self._file).name}")

    # ---------------------------------------------------------------- BrowserOS

    def browseros(self) -> None:
        if not Path(self._file).is_file():
            raise InvalidRequest(f"cannot read {self._file}: there is no such file")
        found = browseros_file.read(Path(self._file), _check_url)
        self._judge(found.problems, found.notes)
        with self._views() as views:
            finished = self._new(found.finished, lambda one: views.task(one.submission.id))
            waiting = self._new(found.waiting, lambda one: views.task(one.id))
            templates = self._new(found.templates, lambda one: views.template(one[0]))
        self._imported = {
            "waitingTasks": len(waiting),
            "finishedTasks": len(finished),
            "templates": len(templates),
        }
        if self._dry_run:
            return
        with self._engine() as engine:
            for id_, definition in templates:
                apply_one(engine, CreateTemplate(id_, definition))
            for part in _parts(finished):  # first: others may depend on them
                apply_one(engine, ImportFinished(list(part)))
            self._submit(engine, waiting)

    def _submit(self, engine: Engine, waiting: Sequence[Submission]) -> None:
        done = 0
        for part in _parts(waiting):
            for answer in apply_one(engine, Submit(list(part))):
                if isinstance(answer, QueueFull):
                    raise Conflict(
                        f"imported {done} of {len(waiting)} waiting tasks: {answer.message}; raise "
                        "lanes.instruction.maxQueueSize and maxPerAgent in the policy, and repeat "
                        "the import"
                    )
                if isinstance(answer, FairlaneError):
                    raise answer
                done += 1

    # ---------------------------------------------------------------- GoClaw

    def goclaw(self) -> None:
        found = goclaw_file.read(read_json(self._file), SystemClock().now())
        self._judge(found.problems, found.notes)
        with self._views() as views:
            jobs = self._new(found.jobs, lambda one: views.job(one[0]))
        self._imported["jobs"] = len(jobs)
        if jobs and not self._dry_run:
            with self._engine() as engine:
                apply_one(engine, CreateJobs([id_ for id_, _ in jobs], [job for _, job in jobs]))

    # ---------------------------------------------------------------- the store

    def _judge(self, problems: list[str], notes: list[str]) -> None:
        """Keep the problems of the file; refuse it unless the caller accepts them."""
        self.problems, self.notes = problems, notes
        if problems and not (self._skip_invalid or self._dry_run):
            more = len(problems) - SHOWN_MAX
            shown = "; ".join(problems[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")
            raise InvalidRequest(
                f"nothing was imported from {self._file}: {shown}. Use "
                "--skip-invalid to leave these out",
                details={"problems": problems[:100]},
            )

    def _new(self, found: Sequence[T], known: Callable[[T], object]) -> list[T]:
        new = [one for one in found if known(one) is None]
        self._existing += len(found) - len(new)
        return new

    def _object(self) -> JsonObject:
        document = read_json(self._file)
        if not isinstance(document, dict):
            raise InvalidRequest(f"{self._file} must contain a JSON object")
        return document

    def _store(self) -> Store:
        return usable_store(self._url, create=not self._dry_run, empty=self._dry_run, tell=remark)

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        with contextlib.closing(StoreClient(self._store())) as client:
            yield client

    @contextlib.contextmanager
    def _views(self) -> Iterator[Views]:
        with contextlib.closing(self._store()) as store, contextlib.closing(Views(store)) as views:
            yield views

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        with contextlib.closing(self._store()) as store:
            engine = Engine(store, SystemClock(), name=new_node_name())
            with contextlib.closing(engine):
                yield engine


SOURCES: Final[dict[str, Callable[[Import], None]]] = {
    "pinchtab": Import.pinchtab,
    "browseros": Import.browseros,
    "goclaw": Import.goclaw,
    "coolworkflow": Import.coolworkflow,
}


def _check_url(url: str) -> None:
    from fairlane.outbound.guard import Guard  # noqa: PLC0415 - slow to import

    settings = config.load()
    try:
        Guard(settings.allow_outbound, deny=settings.deny_outbound).check(url)
    except TargetRefused as error:
        raise InvalidRequest(f"webhook_url: {error.message}") from None


def _parts(found: Sequence[T]) -> Iterator[Sequence[T]]:
    return (found[start : start + STEP] for start in range(0, len(found), STEP))
