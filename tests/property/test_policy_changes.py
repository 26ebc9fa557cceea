"""Changes of the policy: a shown policy can be set, differences can be applied, a wrong
document changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlane.compat.policies import merge, patch, replace
from fairlane.core import json_diff
from fairlane.core.errors import InvalidPolicy
from fairlane.core.policy import Policy, from_document, read, to_document
from fairlane.engine.commands import MERGE, PATCH, REPLACE, PolicyChange, SetPolicy
from fairlane.store.sqlite import SqliteStore
from tests.property.histories import BOUNDED
from tests.property.test_policy import documents, garbage, policies
from tests.store.scheduler import Scheduler

WAYS = {MERGE: merge, REPLACE: replace, PATCH: patch}


@BOUNDED
@given(policies, policies)
def test_what_is_shown_can_be_set_and_changes_nothing(policy: Policy, other: Policy) -> None:
    shown = msgspec.json.decode(msgspec.json.encode(to_document(policy)))
    assert replace(other, shown) == policy
    assert replace(policy, {"version": 1, "policy": shown}) == policy
    assert merge(policy, shown) == policy
    assert read(shown) == (policy, [])


@BOUNDED
@given(policies, policies)
def test_the_difference_of_two_policies_makes_one_the_other(one: Policy, other: Policy) -> None:
    before, after = to_document(one), to_document(other)
    found = json_diff.between(before, after)
    assert json_diff.applied(before, found) == after
    assert from_document(json_diff.applied(before, found)) == other
    assert bool(found) == (one != other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=10,
)
json_objects = st.dictionaries(st.text(max_size=2), json_values, max_size=4)


@BOUNDED
@given(json_objects, json_objects)
def test_so_does_the_difference_of_any_two_documents(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    as_it_was = copy.deepcopy(one)
    found = json_diff.between(one, other)
    assert msgspec.json.encode(json_diff.applied(one, found), order="sorted") == (
        msgspec.json.encode(other, order="sorted")
    )
    assert one == as_it_was


@BOUNDED
@given(st.lists(st.text(), min_size=1, max_size=4).map(tuple), st.text())
def test_every_path_can_be_read_back(path: tuple[str, ...], value: str) -> None:
    assert json_diff.assignment(f"{json_diff.format_path(path)}={value}") == (path, value)


@BOUNDED
@given(policies, documents)
def test_a_patch_without_nulls_is_laid_over(policy: Policy, document: dict[str, Any]) -> None:
    said = _without_nulls(document)
    assert _outcome(patch, policy, said) == _outcome(merge, policy, said)


@BOUNDED
@given(policies)
def test_a_patch_of_nulls_brings_all_defaults_back(policy: Policy) -> None:
    assert patch(policy, dict.fromkeys(to_document(policy))) == Policy()


@contextlib.contextmanager
def _scheduler() -> Iterator[Scheduler]:
    store = SqliteStore(":memory:", "sqlite://:memory:")
    store.migrate()
    scheduler = Scheduler(store)
    try:
        yield scheduler
    finally:
        scheduler.close()
        store.close()


@BOUNDED
@given(
    documents,
    st.lists(
        st.tuples(
            documents | garbage.filter(lambda one: isinstance(one, dict)), st.sampled_from([*WAYS])
        ),
        max_size=4,
    ),
)
def test_a_document_becomes_the_next_version_or_changes_nothing(
    beginning: dict[str, Any], changes: list[tuple[Any, str]]
) -> None:
    with _scheduler() as scheduler:
        scheduler.apply(SetPolicy(beginning, "test"))
        for document, how in changes:
            before, versions = scheduler.engine.policy, _versions(scheduler)
            (answer,) = scheduler.apply(SetPolicy(document, "test", how)).answers
            after = scheduler.engine.policy
            if isinstance(answer, InvalidPolicy):
                assert (after, _versions(scheduler)) == (before, versions)
                assert _outcome(WAYS[how], before, document) == answer.problems
                continue
            kept = _versions(scheduler)
            assert answer == PolicyChange(len(kept), before, after)
            assert _outcome(WAYS[how], before, document) == after
            assert len(kept) == len(versions) + (before != after)
            assert (read(msgspec.json.decode(kept[-1]))[0] if kept else Policy()) == after


def _versions(scheduler: Scheduler) -> list[str]:
    """The documents of all versions, oldest first."""
    rows = scheduler.reader.run("policy_list", version=None, before=None, limit=100)
    return [row[1] for row in reversed(rows)]


def _outcome(act: Any, policy: Policy, document: Any) -> Any:
    """The policy, or the problems of the document."""
    try:
        return act(policy, document)
    except InvalidPolicy as refusal:
        return refusal.problems


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
