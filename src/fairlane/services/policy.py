"""Policy: show, replace, patch, check, compare, roll back.

A check runs the same code as a change except for storing it, so both agree.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from fairlane.compat.policies import notes
from fairlane.core import json_diff
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidPolicy, NotFound, StoreMismatch
from fairlane.core.json_types import JsonObject
from fairlane.core.policy import Policy, read, to_document
from fairlane.engine.commands import PATCH, REPLACE, PolicyChange, SetPolicy
from fairlane.engine.engine import parse_stored_policy
from fairlane.engine.node import Node
from fairlane.engine.reads.views import PolicyView
from fairlane.schema import policy as schema
from fairlane.schema.policy import (
    PolicyChanged,
    PolicyChecked,
    PolicyDiff,
    PolicyDifference,
    PolicyReason,
    PolicyShown,
    PolicyVersionChanges,
    PolicyVersionPage,
    policy_differences,
)
from fairlane.schema.wire import moment
from fairlane.services.actors import actor, one_line
from fairlane.services.pages import number
from fairlane.services.registry import implements
from fairlane.store.pages import Page


@implements(schema.POLICY)
async def show_policy(node: Node, _: Caller, request: schema.ShowPolicy) -> PolicyShown:
    view = await _find(node, request.version)
    if view is None:
        return PolicyShown(version=0, source="default", policy=to_document(Policy()))
    policy = parse_stored_policy(view.version, view.document)
    return PolicyShown(**_about(view), policy=to_document(policy))


@implements(schema.SET_POLICY)
async def replace_policy(node: Node, caller: Caller, request: schema.ChangePolicy) -> PolicyChanged:
    return await _set(node, caller, request, SetPolicy(dict(request.document), "put", REPLACE))


@implements(schema.PATCH_POLICY)
async def patch_policy(node: Node, caller: Caller, request: schema.ChangePolicy) -> PolicyChanged:
    return await _set(node, caller, request, SetPolicy(dict(request.document), "patch", PATCH))


@implements(schema.ROLLBACK_POLICY)
async def rollback_policy(
    node: Node, caller: Caller, request: schema.RollbackPolicy
) -> PolicyChanged:
    view = await _find(node, request.version)
    document = {} if view is None else _kept(view)
    note = f"rollback to version {request.version}"
    return await _set(node, caller, request, SetPolicy(document, "rollback", REPLACE, note=note))


@implements(schema.CHECK_POLICY)
async def check_policy(node: Node, _: Caller, request: schema.CheckPolicy) -> PolicyChecked:
    document = dict(request.document)
    how = PATCH if request.patch else REPLACE
    try:
        change = await node.set_policy(SetPolicy(document, "", how, dry_run=True))
    except InvalidPolicy as error:
        return PolicyChecked(valid=False, problems=error.problems, changes=[])
    return PolicyChecked(
        valid=True,
        problems=[],
        changes=_changes(change),
        version=change.version,
        notes=_notes(document, change),
    )


@implements(schema.POLICY_VERSIONS)
async def list_versions(node: Node, _: Caller, request: schema.PolicyVersions) -> PolicyVersionPage:
    return await node.views.read(_page, node, number(request.cursor), request.limit)


@implements(schema.POLICY_DIFF)
async def compare_policy(node: Node, _: Caller, request: schema.ComparePolicy) -> PolicyDiff:
    newer = await _find(node, request.after)
    to = 0 if newer is None else newer.version
    from_ = max(0, to - 1) if request.before is None else request.before
    older = await _find(node, from_)
    changes = json_diff.between(_document(older), _document(newer))
    return PolicyDiff(from_, to, policy_differences(changes))


async def _set(
    node: Node, caller: Caller, reason: PolicyReason, command: SetPolicy
) -> PolicyChanged:
    """Set the policy; the note is the request's, or else the name of the command."""
    change = await node.set_policy(
        msgspec.structs.replace(
            command,
            author=_author(caller, reason),
            note=one_line("query parameter 'note'", reason.note) or command.note,
            expected_version=reason.expected_version,
        )
    )
    return PolicyChanged(
        version=change.version,
        changed=change.before != change.after,
        changes=_changes(change),
        policy=to_document(change.after),
        notes=_notes(command.document, change),
    )


def _notes(document: JsonObject, change: PolicyChange) -> list[str] | None:
    return [*notes(document), *change.notes] or None


def _author(caller: Caller, reason: PolicyReason) -> str | None:
    """Return the name of the caller's token; without a token, the author that the caller gave."""
    named = one_line("query parameter 'author'", reason.author)
    return actor(caller, reason.actor) if caller.token is not None or not named else named


def _page(node: Node, before: int | None, limit: int) -> PolicyVersionPage:
    """Compare each version with the one before, which may take too long for the event loop."""
    found = node.views.policy_versions(before, limit)
    documents = [*map(_document, found), _document(_older(node, found))]
    versions = [
        PolicyVersionChanges(
            **_about(view), changes=policy_differences(json_diff.between(older, newer))
        )
        for view, (newer, older) in zip(found, pairwise(documents), strict=True)
    ]
    next_cursor = str(found[-1].version) if found.more else None
    return PolicyVersionPage(versions, len(versions), next_cursor)


def _older(node: Node, page: Page[PolicyView]) -> PolicyView | None:
    """Return the version before the last of a page; None means the defaults."""
    if not page.more:
        return None
    return next(iter(node.views.policy_versions(page[-1].version, 1)), None)


async def _find(node: Node, version: int | None) -> PolicyView | None:
    """Return a version, or the newest. None means the defaults, which are version 0."""
    if version == 0:
        return None
    view = await node.views.read(node.views.policy, version)
    if view is None and version is not None:
        raise NotFound(f"the policy has no version {version}; GET /policy/versions lists them")
    return view


def _about(view: PolicyView) -> JsonObject:
    return {
        "version": view.version,
        "created_at": moment(view.created_at),
        "source": view.source,
        "author": view.author,
        "note": view.note,
    }


def _kept(view: PolicyView) -> Any:
    try:
        return msgspec.json.decode(view.document)
    except msgspec.DecodeError:
        raise StoreMismatch(f"version {view.version} of the policy is not valid JSON") from None


def _document(view: PolicyView | None) -> object:
    """Return a version as a parsed document, or its text if it cannot be parsed.

    None means the defaults.
    """
    if view is None:
        return to_document(Policy())
    try:
        return to_document(read(_kept(view))[0])
    except (InvalidPolicy, StoreMismatch):
        return view.document


def _changes(change: PolicyChange) -> list[PolicyDifference]:
    before, after = to_document(change.before), to_document(change.after)
    return policy_differences(json_diff.between(before, after))
