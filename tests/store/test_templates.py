"""Templates: kept under one name each, changed as a whole, and counted when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, Disabled, InvalidRequest, NotFound, QueueFull
from fairlane.core.templates import Template, define
from fairlane.engine.commands import (
    CreateTemplate,
    DeleteTemplate,
    IdempotencyKey,
    Submit,
    UpdateTemplate,
    UseTemplate,
)
from fairlane.engine.reads.views import Views
from tests.store.scheduler import submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    views = Views(store)
    yield views
    views.close()


def new(name: str, **fields: Any) -> CreateTemplate:
    document = {"name": name, "instruction": f"Do {name}", **fields}
    return CreateTemplate(f"tpl_{name}", define(document))


def made(scheduler: Scheduler, *names: str, **fields: Any) -> list[str]:
    """The ids of new templates."""
    templates = [scheduler.ask(new(name, **fields)) for name in names]
    assert all(isinstance(template, Template) for template in templates)
    return [template.id for template in templates]


def read(views: Views, template_id: str) -> Template:
    found = views.template(template_id)
    assert found is not None
    return found


def listed(views: Views, **wanted: Any) -> list[str]:
    arguments = {"name": None, "before": None, "limit": 100, **wanted}
    return [template.id for template in views.templates(**arguments)]


# -------------------------------------------------------------------- keeping


def test_a_template_can_be_read_at_once_and_whole(scheduler: Scheduler, views: Views) -> None:
    fields = {
        "instruction": "Grüße {{n}} '; DROP TABLE template; -- %s :now ?1",
        "parameters": [{"name": "n", "type": "number", "required": True, "default": 1.5}],
        "priority": "high",
        "timeoutMs": 5000,
        "retryPolicy": {"maxRetries": 2},
        "llmConfig": {"provider": "openai", "apiKey": "key"},
        "metadata": {"deep": [{"x": None}]},
    }
    template = scheduler.ask(new("a", **fields))
    assert read(views, "tpl_a") == template
    assert template.created_at == template.updated_at == scheduler.clock.now()
    assert template.definition.metadata == {"deep": [{"x": None}]}


def test_an_unknown_template_is_nothing(scheduler: Scheduler, views: Views) -> None:
    assert views.template("tpl_none") is None
    for request in (UpdateTemplate("x", {}), DeleteTemplate("x"), UseTemplate("x")):
        error = scheduler.refused(request)
        assert (type(error), error.message) == (NotFound, "template not found")


def test_a_bad_template_is_refused_and_leaves_nothing(scheduler: Scheduler, views: Views) -> None:
    secret = {"apiKey": "env:HOME"}  # which tasks may not refer to
    outcome = scheduler.apply(new("bad", llmConfig=secret), new("good"))
    assert isinstance(outcome.answers[0], InvalidRequest)
    assert listed(views) == ["tpl_good"]


def test_the_newest_come_first_and_pages_go_on_where_the_last_ended(
    scheduler: Scheduler, views: Views
) -> None:
    ids = made(scheduler, *"abcde")[::-1]
    assert listed(views) == ids
    page = views.templates(None, None, 2)
    made(scheduler, "newer")
    assert [template.id for template in page] == ids[:2]
    assert listed(views, before=page[-1].seq) == ids[2:]


def test_a_template_is_found_by_its_name(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a", "b")
    assert listed(views, name="b") == ["tpl_b"]
    assert listed(views, name="B") == []


# -------------------------------------------------------------------- one name each


def test_a_name_is_taken_once(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    error = scheduler.refused(
        CreateTemplate("tpl_other", define({"name": " a ", "instruction": "x"}))
    )
    assert isinstance(error, Conflict)
    assert error.message == (
        "a template named 'a' already exists; change it or choose another name"
    )
    assert error.details == {"id": "tpl_a"}
    assert listed(views) == ["tpl_a"]


def test_a_name_is_taken_once_within_a_batch(scheduler: Scheduler, views: Views) -> None:
    second = CreateTemplate("tpl_second", define({"name": "a", "instruction": "x"}))
    first_answer, second_answer = scheduler.apply(new("a"), second).answers
    assert isinstance(first_answer, Template)
    assert isinstance(second_answer, Conflict)
    assert listed(views) == ["tpl_a"]


def test_a_name_that_another_template_has_cannot_be_taken_over(
    scheduler: Scheduler, views: Views
) -> None:
    made(scheduler, "a", "b")
    assert isinstance(scheduler.refused(UpdateTemplate("tpl_b", {"name": "a"})), Conflict)
    assert read(views, "tpl_b").definition.name == "b"


def test_a_name_is_free_again_when_its_template_is_gone_or_renamed(scheduler: Scheduler) -> None:
    made(scheduler, "a", "b")
    scheduler.ask(DeleteTemplate("tpl_a"))
    scheduler.ask(UpdateTemplate("tpl_b", {"name": "c"}))
    again = [
        scheduler.ask(CreateTemplate(f"tpl_new_{name}", define({"name": name, "instruction": "x"})))
        for name in "ab"
    ]
    assert [template.id for template in again] == ["tpl_new_a", "tpl_new_b"]


# -------------------------------------------------------------------- changing


def test_a_change_is_kept(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a", timeoutMs=5)
    before = read(views, "tpl_a")
    scheduler.clock.advance(1000)
    change = {"name": "renamed", "timeoutMs": None, "description": "new"}
    after = scheduler.ask(UpdateTemplate("tpl_a", change))
    assert read(views, "tpl_a") == after
    assert (after.definition.name, after.definition.timeout_ms) == ("renamed", None)
    assert (after.created_at, after.updated_at) == (before.created_at, before.created_at + 1000)
    assert listed(views, name="renamed") == ["tpl_a"]


def test_a_change_that_changes_nothing_is_answered_and_not_written(
    scheduler: Scheduler, views: Views
) -> None:
    made(scheduler, "a")
    before = read(views, "tpl_a")
    scheduler.clock.advance(1000)
    assert scheduler.ask(UpdateTemplate("tpl_a", {"name": "a"})) == before
    assert read(views, "tpl_a") == before


def test_a_bad_change_leaves_the_template_as_it_was(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    before = read(views, "tpl_a")
    error = scheduler.refused(UpdateTemplate("tpl_a", {"instruction": "{{x}}"}))
    assert isinstance(error, InvalidRequest)
    assert read(views, "tpl_a") == before


def test_changes_of_one_batch_build_on_each_other(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    scheduler.apply(
        UpdateTemplate("tpl_a", {"timeoutMs": 5}), UpdateTemplate("tpl_a", {"priority": "low"})
    )
    definition = read(views, "tpl_a").definition
    assert (definition.timeout_ms, definition.priority) == (5, "low")


def test_a_deleted_template_is_gone(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a", "b")
    assert scheduler.ask(DeleteTemplate("tpl_a")) is None
    assert listed(views) == ["tpl_b"]
    assert isinstance(scheduler.refused(DeleteTemplate("tpl_a")), NotFound)


# -------------------------------------------------------------------- using


def use(name: str, task: str, key: IdempotencyKey | None = None) -> UseTemplate:
    return UseTemplate(f"tpl_{name}", Submit([submission(task)], key))


def test_a_use_makes_the_task_and_counts(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    before = read(views, "tpl_a")
    scheduler.clock.advance(1000)
    (task,) = scheduler.ask(use("a", "first"))
    assert (task.id, scheduler.view("first").state) == ("first", "queued")
    after = read(views, "tpl_a")
    assert (after.usage_count, after.updated_at) == (1, before.updated_at)
    assert scheduler.names() == ["first"]


def test_a_use_without_a_task_counts_too(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    assert scheduler.ask(UseTemplate("tpl_a")) == []
    assert read(views, "tpl_a").usage_count == 1


def test_many_uses_in_one_batch_are_all_counted(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a", "b")
    answers = scheduler.apply(
        use("a", "1"),
        use("none", "2"),
        UseTemplate("tpl_a"),
        use("b", "3"),
        use("a", "4"),
        Submit([submission("5")]),
    ).answers
    assert [answer[0].id for answer in (answers[0], *answers[3:])] == ["1", "3", "4", "5"]
    assert isinstance(answers[1], NotFound)
    assert scheduler.find("2") is None
    assert (read(views, "tpl_a").usage_count, read(views, "tpl_b").usage_count) == (3, 1)


def test_a_refused_task_is_no_use(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    scheduler.set_lane("main", maxQueueSize=1)
    scheduler.submit("first")
    assert isinstance(scheduler.refused(use("a", "second")), QueueFull)
    scheduler.set_policy(enabled=False)
    assert isinstance(scheduler.refused(use("a", "third")), Disabled)
    assert read(views, "tpl_a").usage_count == 0


def test_a_repeated_use_with_the_same_key_is_one_use(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    key = IdempotencyKey("a", "key", "digest")
    (first,) = scheduler.ask(use("a", "first", key))
    (again,) = scheduler.ask(use("a", "second", key))
    assert (first.id, again.id) == ("first", "first")
    assert read(views, "tpl_a").usage_count == 1


def test_a_key_counts_for_all_submissions_of_a_batch(scheduler: Scheduler, views: Views) -> None:
    made(scheduler, "a")
    key = IdempotencyKey("a", "key", "digest")
    plain, again = scheduler.apply(
        Submit([submission("first")], key), use("a", "second", key)
    ).answers
    assert (plain[0].id, again[0].id) == ("first", "first")
    assert read(views, "tpl_a").usage_count == 0


def test_a_use_of_a_deleted_template_makes_no_task(scheduler: Scheduler) -> None:
    made(scheduler, "a")
    scheduler.ask(DeleteTemplate("tpl_a"))
    assert isinstance(scheduler.refused(use("a", "first")), NotFound)
    assert scheduler.find("first") is None


def test_every_node_sees_the_same_templates(
    new_scheduler: Callable[..., Scheduler], views: Views
) -> None:
    one = new_scheduler("one")
    two = new_scheduler("two", one.clock)
    made(one, "a")
    two.ask(UseTemplate("tpl_a"))
    one.ask(UseTemplate("tpl_a"))
    assert isinstance(
        two.refused(CreateTemplate("x", define({"name": "a", "instruction": "x"}))), Conflict
    )
    assert read(views, "tpl_a").usage_count == 2
