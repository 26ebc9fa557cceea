"""Policy: show it, change it, compare its versions, roll it back.

The body of a change is only the policy document; author and note are in the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, field

from fairlane.core import json_diff
from fairlane.core.access import Scope
from fairlane.core.json_diff import Difference
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import Policy
from fairlane.core.types import Actor, Cursor, Moment, Note, PageLimit, SequenceNumber
from fairlane.schema.operation import (
    GET,
    PATCH,
    POST,
    PUT,
    Header,
    Operation,
    Query,
    Request,
    Response,
    WholeBody,
)

PolicyDocument = Annotated[JsonMapping, WholeBody(Policy), Meta(description="The policy document")]
VersionNumber = Annotated[
    SequenceNumber | None, Meta(description="Number of a version; 0 for the defaults")
]


class ShowPolicy(Request):
    version: VersionNumber = None


class PolicyVersions(Request):
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ComparePolicy(Request):
    before: Annotated[
        SequenceNumber | None,
        Meta(description="Version to compare with; default: the previous version"),
    ] = field(name="from", default=None)
    after: Annotated[
        SequenceNumber | None, Meta(description="Version to compare; default: the newest")
    ] = field(name="to", default=None)


class CheckPolicy(Request):
    document: PolicyDocument
    patch: Annotated[
        bool, Query(), Meta(description="The document changes the policy instead of replacing it")
    ] = False


class PolicyReason(Request, kw_only=True):
    """The note, the author, and the version that must still be in force."""

    note: Annotated[Note | None, Query(), Meta(description="Reason for the change")] = None
    author: Annotated[Actor | None, Query(), Meta(description="Author of the change")] = None
    expected_version: Annotated[
        SequenceNumber | None,
        Query(),
        Meta(description="Refuse the change if another version is in force"),
    ] = None
    actor: Annotated[Actor | None, Header("X-Fairlane-Actor")] = None


class ChangePolicy(PolicyReason):
    document: PolicyDocument


class RollbackPolicy(PolicyReason):
    version: Annotated[SequenceNumber, Meta(description="Number of a version; 0 for the defaults")]


class PolicyDifference(Response):
    """A value that differs; `from` or `to` is absent if the value does not exist there."""

    path: str
    before: Any = field(name="from", default=UNSET)
    after: Any = field(name="to", default=UNSET)


class PolicyVersion(Response, kw_only=True):
    version: int
    created_at: Moment | None = None
    source: Annotated[
        str, Meta(description="How this version was created: put, patch, rollback, …")
    ]
    author: str | None = None
    note: str | None = None


class PolicyShown(PolicyVersion, kw_only=True):
    policy: JsonObject


class PolicyVersionChanges(PolicyVersion, kw_only=True):
    changes: list[PolicyDifference]


class PolicyVersionPage(Response):
    versions: list[PolicyVersionChanges]
    count: int
    next_cursor: str | None = None


class PolicyDiff(Response):
    before: int = field(name="from")
    after: int = field(name="to")
    changes: list[PolicyDifference]


class PolicyChanged(Response):
    version: int
    changed: bool
    changes: list[PolicyDifference]
    policy: JsonObject
    notes: Annotated[
        list[str] | None,
        Meta(description="Ignored parts of the document, and removed resources that tasks need"),
    ] = None


class PolicyChecked(Response):
    valid: bool
    problems: list[str]
    changes: list[PolicyDifference]
    version: int | None = None
    notes: list[str] | None = None


def policy_differences(changes: Iterable[Difference]) -> list[PolicyDifference]:
    return [
        PolicyDifference(json_diff.format_path(one.path), one.before, one.after) for one in changes
    ]


POLICY: Final = Operation(
    "policy",
    GET,
    "/policy",
    ShowPolicy,
    PolicyShown,
    Scope.READ,
    "Show the policy in force, or one of its versions",
    agents=False,
    positional=("version",),
)
SET_POLICY: Final = Operation(
    "set_policy",
    PUT,
    "/policy",
    ChangePolicy,
    PolicyChanged,
    Scope.ADMIN,
    "Replace the policy; keys that the document leaves out get their default",
    agents=False,
)
PATCH_POLICY: Final = Operation(
    "patch_policy",
    PATCH,
    "/policy",
    ChangePolicy,
    PolicyChanged,
    Scope.ADMIN,
    "Change the keys that the document has; null restores a default",
    agents=False,
)
CHECK_POLICY: Final = Operation(
    "check_policy",
    POST,
    "/policy/check",
    CheckPolicy,
    PolicyChecked,
    Scope.READ,
    "Check a policy document: its problems, or what it would change; changes nothing",
    agents=False,
)
POLICY_VERSIONS: Final = Operation(
    "policy_versions",
    GET,
    "/policy/versions",
    PolicyVersions,
    PolicyVersionPage,
    Scope.READ,
    "List the versions of the policy, newest first, with author, time, note and changes",
    agents=False,
)
POLICY_DIFF: Final = Operation(
    "policy_diff",
    GET,
    "/policy/diff",
    ComparePolicy,
    PolicyDiff,
    Scope.READ,
    "Compare two versions of the policy",
    agents=False,
    positional=("before", "after"),
)
ROLLBACK_POLICY: Final = Operation(
    "rollback_policy",
    POST,
    "/policy/rollback",
    RollbackPolicy,
    PolicyChanged,
    Scope.ADMIN,
    "Restore an old version of the policy, as a new version",
    agents=False,
)
