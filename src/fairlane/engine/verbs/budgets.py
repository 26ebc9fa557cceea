"""Budgets that ask: a spent budget with `whenSpent: "ask"` asks a person to raise it.

There is one question per budget, key and window. Approving raises the budget until the window
resets, which wakes the tasks that wait for it; rejecting parks them (`waking.py`). Without a
decision the question expires with the window, and the tasks continue.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import amounts, approvals, moments
from fairlane.core.approvals import Approval, ApprovalRequest
from fairlane.core.forms import Form, FormField
from fairlane.core.limits import BUDGET
from fairlane.core.resources import Account, Blocked, BudgetSpent
from fairlane.core.types import YEAR_MS
from fairlane.engine.resource_commands import RaiseResource
from fairlane.engine.verbs import resources
from fairlane.store.transaction import Transaction

BY_AGENT: Final = ("agent",)
AMOUNT: Final = "amount"
# As exact as amounts are: a JSON number would be a double.
_DECIMAL: Final = r"^[0-9]{1,12}\.?[0-9]{0,6}$"
_PLACE: Final = "#"  # between the name of an account and the unit of its budget


def ask(tx: Transaction, account: Account, why: Blocked) -> bool:
    """Ask to raise a spent budget, unless that was asked in this window. Return whether a person
    refused.
    """
    spent = resources.spent_budget(tx, account, why)
    newest = tx.lookup.approval_of_resource(_place(spent))
    if newest is None or newest.approved or newest.opened_at < spent.window_at:
        tx.spent_budgets[_place(spent)] = spent
        return False
    return newest.state == approvals.REJECTED


def question(tx: Transaction, account: Account, why: Blocked) -> Approval | None:
    """Return the open question whether to raise a spent budget."""
    newest = tx.lookup.approval_of_resource(_place(resources.spent_budget(tx, account, why)))
    return newest if newest is not None and newest.state == approvals.OPEN else None


def ask_to_raise(tx: Transaction) -> None:
    """Open the questions about the budgets that ran out in this transaction."""
    found, tx.spent_budgets = tx.spent_budgets, {}
    for place, one in found.items():
        seq = tx.next_seq()
        account = tx.accounts.account(one.resource, one.key)
        account.asked_at = one.window_at
        tx.accounts.save(account)
        made = approvals.opened(
            _question(one, tx.now),
            seq=seq,
            approval_id=approvals.id_of(seq),
            agent=_agent(tx, one),
            resource=place,
            now=tx.now,
        )
        tx.save_approval(None, made)


def _question(spent: BudgetSpent, now: int) -> ApprovalRequest:
    label = f"{spent.resource}/{spent.key}" if spent.key else spent.resource
    resets = moments.text(spent.resets_at)
    field = FormField(
        type="string",
        title=f"Raise by ({spent.unit})",
        pattern=_DECIMAL,
        default=amounts.text(spent.needed),
    )
    return ApprovalRequest(
        f"Raise {label}?"[: approvals.TITLE_CHARACTERS_MAX],
        detail=(
            f"The budget of {amounts.text(spent.amount)} {spent.unit} is spent until {resets}. "
            f"The next task needs {amounts.text(spent.needed)} {spent.unit}. Approving raises it "
            "until then; rejecting parks the tasks that wait for it."
        ),
        form=Form({AMOUNT: field}, required=[AMOUNT]),
        expires_ms=max(1, min(spent.resets_at - now, YEAR_MS)),
    )


def _agent(tx: Transaction, spent: BudgetSpent) -> str:
    """Return the agent that owns the budget and cannot raise it; "" for a shared budget."""
    policy = tx.accounts.resource(spent.resource)
    return spent.key if policy is not None and policy.levels == BY_AGENT else ""


def _place(spent: BudgetSpent) -> str:
    """Return the name of a budget. Of several budgets of one unit the first has the unit's name."""
    label = f"{spent.resource}/{spent.key}" if spent.key else spent.resource
    return f"{label}{_PLACE}{spent.slot.replace(f':{BUDGET}', '')}"


def follow(tx: Transaction, approval: Approval) -> None:
    """Raise the budget if a person approved; otherwise park the tasks that wait for it."""
    assert approval.resource is not None
    label, _, unit = approval.resource.rpartition(_PLACE)
    unit = unit.partition(":")[0]
    name, _, key = label.partition("/")
    if not approval.approved:
        if approval.state == approvals.REJECTED and name in tx.policy.resources:
            tx.accounts.touch(tx.accounts.account(name, key))
        return
    answer = msgspec.json.decode(approval.answer or "{}")
    amount = amounts.parse(answer[AMOUNT].rstrip("."))
    reason = f"approved by {approval.decided_by}"
    for _ in resources.raise_resource(tx, [RaiseResource(name, unit, amount, key, reason)], tx.now):
        tx.changed = True
