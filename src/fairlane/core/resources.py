"""Resources: quotas, budgets, pools and locks that tasks share, as the policy declares them.

A task's **needs** name resources and amounts of their units. A resource has one **account**, or one
per key (`by`); a need is charged to each of its accounts. `check` says whether an account can give
amounts now, and if not, why and from which moment on: that is the wait of a task, and its wake-up.

All or nothing: a lease reserves in all accounts of its needs after `check` of each, in one
transaction, and holds nothing while it waits. So no two tasks can wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cached_property
from typing import Final

import msgspec

from fairlane.core import amounts, limits, moments
from fairlane.core.amounts import Written
from fairlane.core.documents import nearest
from fairlane.core.errors import InvalidRequest, NeedsUnsatisfiable
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.limits import Limit, LimitState

WAIT: Final = "wait"
FAIL: Final = "fail"
PARK: Final = "park"
ASK: Final = "ask"

BY_KEY: Final = "key"
LEVELS: Final = ("agent", "session", "batch", "lane", BY_KEY)

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
UNIT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}")
LIMITS_MAX: Final = 16
NEEDS_MAX: Final = 16
PERIOD_MS_MAX: Final = 366 * 86_400_000
LOCK: Final = "lock"

# Why an account cannot meet a need.
CLOSED: Final = "closed"  # closed until a time, or until an operator opens it
SPENT: Final = "spent"  # the budget does not have enough left in its window
BUSY: Final = "busy"  # others hold or used too much of it
KEPT: Final = "kept"  # the free amount is reserved for a running task or for a larger need
MISSING: Final = "missing"  # the policy no longer has it

Needs = dict[str, dict[str, int]]  # amounts by unit, by resource (with its key after a slash)


_stored_needs: Final = msgspec.json.Decoder(Needs)


class LimitPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One limit as an operator wrote it; `limits_of` converts it to a `Limit`."""

    amount: Written
    unit: str = LOCK
    per_ms: int | None = None
    window: str | None = None
    reset_every_ms: int | None = None
    anchor: str | None = None
    reset_every: str | None = None
    tz: str | None = None


class ResourcePolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, dict=True):
    """A resource. `by` says per what it is counted; with a list each level has its own account."""

    limits: tuple[LimitPolicy, ...]
    by: str | tuple[str, ...] | None = None
    warn_at: float | None = None
    when_spent: str = WAIT
    allow_larger: bool = False

    @property
    def levels(self) -> tuple[str, ...]:
        if self.by is None:
            return ()
        return (self.by,) if isinstance(self.by, str) else self.by

    @property
    def usage_prefix(self) -> str:
        """Return how the keys begin whose use adds up to the whole: of several levels each has the
        same use, and every task has an agent, a lane and a key.
        """
        level = next((one for one in self.levels if one in ("agent", "lane", BY_KEY)), "")
        return f"{level}:" if level and len(self.levels) > 1 else ""

    @cached_property
    def declared(self) -> tuple[Limit, ...]:
        return limits_of(self.limits)

    @cached_property
    def of_slot(self) -> dict[str, Limit]:
        return {limit.slot: limit for limit in self.declared}

    @cached_property
    def of_unit(self) -> dict[str, Limit]:
        return {limit.unit: limit for limit in self.declared}


def limits_of(written: tuple[LimitPolicy, ...]) -> tuple[Limit, ...]:
    """Return the limits of a valid resource. Limits of one unit and kind are numbered, so that each
    keeps its state when its amount or period changes.
    """
    found: list[Limit] = []
    for one in written:
        kind = _kind(one)
        nth = sum(other.unit == one.unit and other.kind == kind for other in found)
        found.append(
            Limit(
                unit=one.unit,
                slot=f"{one.unit}:{kind}:{nth}" if nth else f"{one.unit}:{kind}",
                kind=kind,
                amount=amounts.parse(one.amount),
                period_ms=one.per_ms or one.reset_every_ms or 0,
                anchor_at=0 if one.anchor is None else moments.parse(one.anchor),
                every=one.reset_every,
                tz=one.tz or "UTC",
            )
        )
    return tuple(found)


def _kind(one: LimitPolicy) -> str:
    if one.per_ms is not None:
        return limits.BUCKET if one.window == limits.BUCKET else limits.RATE
    return limits.POOL if (one.reset_every_ms or one.reset_every) is None else limits.BUDGET


# -------------------------------------------------------------------- needs


def merged_needs(*written: JsonMapping | None) -> JsonObject:
    """Return needs of several sources; for each resource the last source counts."""
    found: JsonObject = {}
    for needs in written:
        if needs:
            found.update(needs)
    return found


def read_needs(
    needs: Mapping[str, JsonMapping],
    declared: Mapping[str, ResourcePolicy],
    path: str = "needs",
) -> Needs:
    """Return needs in micro-units. `{}` means 1 of each unit.

    Raise `InvalidRequest` for unknown names and `NeedsUnsatisfiable` for amounts above a limit.
    """
    found: Needs = {}
    for name, units in needs.items():
        place = f"{path}.{name}"
        policy = resource_of(name, declared, place)
        if not units:
            found[name] = dict.fromkeys(policy.of_unit, amounts.MICRO)
        else:
            found[name] = {
                unit: _amount(unit, value, policy.of_unit, place) for unit, value in units.items()
            }
        _refuse_unsatisfiable(found[name], policy, place)
    return found


def resource_of(name: str, declared: Mapping[str, ResourcePolicy], place: str) -> ResourcePolicy:
    """Return the declared resource of a name with its key.

    Raise `InvalidRequest` that names the field `place` if there is none, or if the key is wrong.
    """
    plain, slash, key = name.partition("/")
    policy = declared.get(plain)
    if policy is None:
        raise InvalidRequest(
            f"field '{place[:100]}' is not a resource of the policy{nearest(plain, declared)}"
        )
    if slash and BY_KEY not in policy.levels:
        raise InvalidRequest(
            f"field '{place[:100]}': resource {plain} has no keys; write '{plain}', or declare it "
            'with "by": "key"'
        )
    if slash and not KEY.fullmatch(key):
        raise InvalidRequest(f"field '{place[:100]}': the key must match {KEY.pattern}")
    if not slash and BY_KEY in policy.levels:
        raise InvalidRequest(f"field '{place}': resource {plain} needs a key: write '{plain}/KEY'")
    return policy


def _amount(unit: str, value: object, units: Mapping[str, Limit], place: str) -> int:
    if unit not in units:
        raise InvalidRequest(
            f"field '{place}.{unit[:40]}' is not a unit of the resource{nearest(unit, units)}"
        )
    try:
        return amounts.parse(value)
    except ValueError as error:
        raise InvalidRequest(f"field '{place}.{unit}' {error}") from None


def _refuse_unsatisfiable(needed: Mapping[str, int], policy: ResourcePolicy, place: str) -> None:
    for limit in policy.declared:
        need = needed.get(limit.unit, 0)
        if need > limit.amount and not policy.allow_larger:
            raise NeedsUnsatisfiable(
                f"field '{place}.{limit.unit}': {amounts.text(need)} exceeds the limit of the "
                f"resource, {amounts.text(limit.amount)}; request less, or set allowLarger in the "
                "policy",
                details={
                    "resource": place.partition(".")[2],
                    "unit": limit.unit,
                    "needed": amounts.shown(need),
                    "amount": amounts.shown(limit.amount),
                },
            )


def shown_needs(
    stored: str, written: Mapping[str, dict[str, Written]] | None
) -> dict[str, dict[str, Written]]:
    """Return all needs of a task: those of its request as written, and the policy's defaults."""
    found: dict[str, dict[str, Written]] = {
        name: {unit: amounts.shown(amount) for unit, amount in units.items()}
        for name, units in _stored_needs.decode(stored).items()
    }
    return {**found, **(written or {})}


def read_usage(
    usage: Mapping[str, JsonMapping], reserved: Mapping[str, Mapping[str, int]]
) -> Needs:
    """Return reported use in micro-units. Raise `InvalidRequest` for unreserved units."""
    found: Needs = {}
    for name, units in usage.items():
        if name not in reserved:
            raise InvalidRequest(
                f"field 'usage.{name[:100]}' was not reserved{nearest(name, reserved)}"
            )
        known = reserved[name]
        found[name] = {}
        for unit, value in units.items():
            place = f"usage.{name}.{unit[:40]}"
            if unit not in known:
                raise InvalidRequest(f"field '{place}' was not reserved{nearest(unit, known)}")
            try:
                found[name][unit] = amounts.parse(value)
            except ValueError as error:
                raise InvalidRequest(f"field '{place}' {error}") from None
    return found


class Subject(msgspec.Struct, frozen=True):
    """The names by which a task is counted."""

    agent: str
    lane: str
    session: str | None = None
    batch: str | None = None


def keys_of(policy: ResourcePolicy | None, key: str, subject: Subject) -> list[str]:
    """Return the keys of the accounts that a need is charged to.

    With one level the key is the agent, session, batch, lane or key itself, with several it begins
    with the level (`agent:ada`). A task without the session or batch has no account at that level;
    one without any has the common one, whose key is empty.
    """
    if policy is None:
        return [key]
    values = {
        "agent": subject.agent,
        "session": subject.session,
        "batch": subject.batch,
        "lane": subject.lane,
        BY_KEY: key,
    }
    found = [(level, values[level]) for level in policy.levels if values[level]]
    if isinstance(policy.by, str):
        return [str(value) for _, value in found] or [""]
    return [f"{level}:{value}" for level, value in found] or [""]


# -------------------------------------------------------------------- accounts


class Account(msgspec.Struct):
    """The use of one resource under one key.

    `closed_until` is the moment at which it opens again, 0 if it is open. `urgent_until` is how
    long running tasks wait for it: until then nothing else takes from it. `turn` is the share of
    the line that was woken last. `asked_at` is the window for which a person was asked to raise it.
    `blocked` counts the lines that sleep because of it, `awake` the ready tasks that need it, and
    `wake_at` is when the first task of a sleeping line may fit.
    """

    id: int
    resource: str
    key: str
    states: dict[str, LimitState] = msgspec.field(default_factory=dict)
    closed_until: int = 0
    reason: str | None = None
    urgent_until: int = 0
    turn: float = 0.0
    asked_at: int | None = None
    blocked: int = 0
    awake: int = 0
    wake_at: int | None = None

    @property
    def label(self) -> str:
        return f"{self.resource}/{self.key}" if self.key else self.resource

    def state(self, limit: Limit) -> LimitState:
        found = self.states.get(limit.slot)
        if found is None:
            found = self.states[limit.slot] = LimitState()
        return found


class WaitLine(msgspec.Struct):
    """The tasks of one agent and capability in one lane that need the same accounts.

    `waiting` of them are behind the gate and `awake` are ready. A line with waiting tasks sleeps
    because of one `account`; `share` is its place in the order there: the amount that its agent
    took while it competed, divided by its weight. `overtaken` counts the lines that were woken
    before it although it came first.
    """

    id: int
    lane: str
    agent: str
    capability: str
    accounts: str
    waiting: int = 0
    awake: int = 0
    account: int | None = None
    share: float = 0.0
    since: int = 0
    overtaken: int = 0


class HeldAmounts(msgspec.Struct, array_like=True):
    """The amounts that a reservation took from one account for one need, by slot.

    `notes` say how much was taken in all after the commit that granted a permit. By these one can
    tell how much others had used when the provider got the call.
    """

    need: str
    account: int
    amounts: dict[str, int]
    notes: dict[str, int] = msgspec.field(default_factory=dict)


class Reservation(msgspec.Struct):
    """The amounts that an open lease holds; `permit` is 0, or the number of one of its permits."""

    id: int
    seq: int
    fencing_token: int
    at: int
    held: list[HeldAmounts]
    permit: int = 0


class LedgerEntry(msgspec.Struct, frozen=True):
    """One change of used + reserved: `balance` is the sum after it, `used` the amount used up.

    The amount of a raise is what the limit grew by; it does not change the balance.
    """

    id: int
    account: int
    slot: str
    at: int
    kind: str
    amount: int
    balance: int
    used: int = 0
    seq: int | None = None
    agent: str | None = None
    detail: str | None = None


class Blocked(msgspec.Struct, frozen=True):
    """Why an account cannot meet a need; `at` is when it can, None if time alone does not help.
    `spent` says that only the next window, or a raise, can help.
    """

    account: str
    why: str
    at: int | None
    unit: str | None = None
    needed: int = 0
    available: int = 0
    spent: bool = False
    slot: str | None = None


class BudgetSpent(msgspec.Struct, frozen=True):
    """A budget with `whenSpent: "ask"` ran out: a person may raise it until the window resets."""

    resource: str
    key: str
    unit: str
    slot: str
    window_at: int
    resets_at: int
    needed: int
    amount: int


def advance(account: Account, policy: ResourcePolicy, now: int) -> list[tuple[Limit, int]]:
    """Let time pass; return the limits whose `committed` changed, and by how much."""
    found = []
    for limit in policy.declared:
        by = limits.advance(limit, account.state(limit), now)
        if by:
            found.append((limit, by))
    if account.closed_until and account.closed_until <= now:
        account.closed_until, account.reason = 0, None
    return found


def check(
    account: Account,
    policy: ResourcePolicy | None,
    needed: Mapping[str, int],
    now: int,
    *,
    running: bool = False,
) -> Blocked | None:
    """Return why `needed` cannot be reserved, None if it can. A task that is `running` goes before
    others. The account has been advanced to `now`.
    """
    if policy is None:
        return Blocked(account.label, MISSING, None)
    if account.closed_until > now:
        return Blocked(account.label, CLOSED, account.closed_until)
    if not needed.keys() <= policy.of_unit.keys():
        unit = min(needed.keys() - policy.of_unit.keys())
        return Blocked(account.label, MISSING, None, unit)
    if account.urgent_until > now and not running:
        return Blocked(account.label, KEPT, account.urgent_until)
    worst: Blocked | None = None
    for limit in policy.declared:
        found = _limit_check(account, policy, limit, needed.get(limit.unit, 0), now)
        # The last one to fit decides; one that time does not free is later than all.
        if found is not None and (worst is None or _later(found.at, worst.at)):
            worst = found
    return worst


def _later(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


def _limit_check(
    account: Account, policy: ResourcePolicy, limit: Limit, need: int, now: int
) -> Blocked | None:
    if not need:
        return None
    state, larger = account.state(limit), policy.allow_larger
    at = limits.fit_at(limit, state, need, now, larger=larger)
    if at == now:
        return None
    spent = False
    if limit.kind == limits.BUDGET:
        settled = LimitState(used=state.used, raised=state.raised, others=state.others)
        spent = not limits.fits(limit, settled, need, now, larger=larger)
    return Blocked(
        account.label,
        SPENT if spent else BUSY,
        at,
        limit.unit,
        need,
        limits.available(limit, state, now),
        spent=spent,
        slot=limit.slot,
    )


def reserve(
    account: Account, policy: ResourcePolicy, needed: Mapping[str, int]
) -> list[tuple[Limit, int]]:
    """Reserve the needed amounts; return the changes. The caller has called `check`."""
    return [
        (limit, limits.reserve(limit, account.state(limit), needed[limit.unit]))
        for limit in policy.declared
        if needed.get(limit.unit)
    ]


def notes(account: Account, policy: ResourcePolicy | None, slots: Container[str]) -> dict[str, int]:
    """Return `limits.note` of those limits that a provider counts too."""
    return {
        limit.slot: limits.note(limit, account.state(limit))
        for limit in (policy.declared if policy else ())
        if limit.slot in slots and limit.kind in (limits.RATE, limits.BUCKET)
    }


def settle(
    account: Account,
    policy: ResourcePolicy | None,
    held: Mapping[str, int],
    used: Mapping[str, int],
    now: int,
) -> list[tuple[Limit, int, int]]:
    """Replace a reservation by the amounts used; return each limit with the change and the use.

    `held` is by slot: what the reservation took, whatever limits the policy has now. `used` is by
    unit; a unit that it does not name was used as reserved. A limit that the policy no longer has
    gets everything back.
    """
    found = []
    declared = policy.of_slot if policy else {}
    for slot, amount in held.items():
        limit = declared.get(slot)
        if limit is None:
            account.states[slot].reserved -= amount
            unit, kind = slot.split(":")[:2]
            if kind != limits.BUCKET:  # a bucket keeps leaking if it comes back
                found.append((Limit(unit, slot, kind, 0), -amount, 0))
            continue
        actual = 0 if limit.kind == limits.POOL else used.get(limit.unit, amount)
        change = limits.settle(limit, account.state(limit), amount, actual, now)
        found.append((limit, change, actual))
    return found


def beyond_count(
    account: Account, policy: ResourcePolicy | None, used: Mapping[str, int]
) -> Limit | None:
    """Return the first limit that could not count so much use; it would not fit the store."""
    for limit in policy.declared if policy else ():
        taken = limits.committed(limit, account.state(limit))
        if taken + used.get(limit.unit, 0) > amounts.BALANCE_MAX:
            return limit
    return None


def cost(policy: ResourcePolicy, needed: Mapping[str, int]) -> float:
    """Return the largest share of a limit that is needed: the cost of a turn in the fair order."""
    return max(
        (needed.get(limit.unit, 0) / limit.amount for limit in policy.declared),
        default=0.0,
    )


def idle_at(account: Account, policy: ResourcePolicy | None, now: int) -> int | None:
    """Return when the account becomes blank and may be deleted; None while it is in use."""
    if account.blocked or any(state.reserved for state in account.states.values()):
        return None
    declared = policy.declared if policy else ()
    ends = [limits.blank_at(limit, account.state(limit), now) for limit in declared]
    return max([now, account.closed_until, *(end for end in ends if end is not None)])
