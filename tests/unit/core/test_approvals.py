"""Approvals: who decides, about what exactly, once, and what follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import approvals, validation
from fairlane.core.approvals import Approval, ApprovalRequest, Voter
from fairlane.core.errors import ApprovalDenied, FairlaneError, InvalidRequest
from tests.unit.core.rows import NOW

BODY = '{"params":{"to":"ada"}}'
BOSS = Voter("boss", None, "tok_boss")
FORM = {"properties": {"amount": {"type": "integer", "default": 5}}, "required": ["amount"]}


def _request(**fields: Any) -> ApprovalRequest:
    request = validation.convert({"title": "Send it?", **fields}, ApprovalRequest)
    approvals.check(request, "approval")
    return request


def _open(**fields: Any) -> Approval:
    return approvals.opened(
        _request(**fields),
        seq=9,
        approval_id="apr_9",
        agent="ada",
        task=(1, "tsk_1"),
        submitter="tok_ada",
        asker="tok_worker",
        now=NOW,
    )


def _decide(approval: Approval, voter: Voter = BOSS, **given: Any) -> Approval | FairlaneError:
    fields = {
        "decision": "approve",
        "answer": None,
        "comment": None,
        "given_hash": approvals.hash_of(approval, BODY),
        "body": BODY,
        "now": NOW + 1,
        **given,
    }
    decision = approvals.decide(approval, voter, fields.pop("decision"), **fields)
    if decision.change is not None:
        assert decision.answer is decision.change
    return decision.answer


def _approved(approval: Approval, voter: Voter = BOSS, **given: Any) -> Approval:
    after = _decide(approval, voter, **given)
    assert isinstance(after, Approval), after
    return after


def _code(approval: Approval, voter: Voter = BOSS, **given: Any) -> str:
    error = _decide(approval, voter, **given)
    assert isinstance(error, FairlaneError), error
    return error.code


# ---------------------------------------------------------------- the question-


def test_a_request_has_its_defaults() -> None:
    made = _open()
    assert (made.needed, made.on_expiry, made.expires_at, made.state) == (1, "reject", None, "open")
    assert made.is_gate


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"title": "  "}, "field 'approval.title' must not be empty"),
        ({"onExpiry": "approve"}, "field 'approval.onExpiry' needs 'approval.expiresMs'"),
        ({"approvers": ["a", "a"]}, "field 'approval.approvers' must not contain a name twice"),
        ({"approvers": ["a"], "count": 2}, "field 'approval.count' must not exceed the number of"),
        (
            {
                "expiresMs": 5,
                "onExpiry": "approve",
                "form": {"properties": {"x": {"type": "string"}}, "required": ["x"]},
            },
            "field 'approval.form.properties.x.default' is needed to approve on expiry",
        ),
        ({"form": {"properties": {}}}, "field 'approval.form.properties' must not be empty"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _request(**fields)
    assert caught.value.message.startswith(text)


def test_every_problem_of_a_request_is_reported_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        _request(title=" ", onExpiry="reject", form={"properties": {}})
    assert caught.value.details is not None
    assert len(caught.value.details["problems"]) == 3


def test_a_question_of_its_own_has_short_paths() -> None:
    with pytest.raises(InvalidRequest, match="field 'title' must not be empty"):
        approvals.check(ApprovalRequest(" "), "")


# ---------------------------------------------------------------- the hash


def test_the_hash_covers_everything_that_is_shown() -> None:
    base = _open(detail="d", form=FORM)
    hashes = {approvals.hash_of(base, BODY), approvals.hash_of(base, '{"params":{"to":"eve"}}')}
    hashes.add(approvals.hash_of(base, None))
    for field, value in {
        "title": "Other?", "detail": "e", "form": None, "task": "tsk_2", "agent": "eve",
        "id": "apr_8", "name": "q", "resource": "spend", "answer": '{"amount":1}',
    }.items():  # fmt: skip
        hashes.add(approvals.hash_of(msgspec.structs.replace(base, **{field: value}), BODY))
    assert len(hashes) == 12


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    assert approvals.hash_of(_open(), '{"a":1,"b":2}') == approvals.hash_of(
        _open(), '{"b":2,"a":1}'
    )


def test_secrets_are_masked_and_damage_is_shown_as_nothing() -> None:
    body = '{"llmConfig":{"apiKey":"sk-very-secret","model":"m"},"params":{}}'
    shown = approvals.request_shown(body)
    assert "sk-very-secret" not in str(shown)
    assert shown["llmConfig"]["model"] == "m"
    assert approvals.request_shown("{") == {}


# ---------------------------------------------------------------- decide


def test_an_approval_is_final() -> None:
    after = _approved(_open(), comment="fine")
    assert (after.state, after.decided_by, after.decided_at) == ("approved", "boss", NOW + 1)
    assert (after.approved, after.comment) == (True, "fine")
    assert _code(after, Voter("other")) == "approval_closed"
    assert _code(after, BOSS, decision="reject") == "approval_closed"


def test_a_second_click_changes_nothing_and_is_no_error() -> None:
    after = _approved(_open())
    assert _decide(after) is after
    assert _decide(after, given_hash="old") is after


def test_a_rejection_tells_the_task_why() -> None:
    after = _approved(_open(), decision="reject", comment="too late")
    assert after.state == "rejected"
    assert approvals.task_error(after) == "approval_rejected: rejected by boss: too late"
    silent = _approved(_open(), decision="reject")
    assert approvals.task_error(silent) == "approval_rejected: rejected by boss"


def test_what_was_edited_is_not_approved() -> None:
    approval = _open()
    assert _code(approval, body='{"params":{"to":"eve"}}') == "approval_changed"
    assert _code(approval, given_hash="") == "approval_changed"


@pytest.mark.parametrize(
    "voter",
    [Voter("a", "ada", "tok_x"), Voter("b", None, "tok_ada"), Voter("w", "x", "tok_worker")],
)
def test_no_caller_decides_about_its_own_request(voter: Voter) -> None:
    assert _code(_open(), voter) == "own_task"
    assert _code(_open(approvers=["a", "b", "w", "ada"]), voter) == "own_task"


def test_only_named_approvers_decide_by_their_name_or_agent() -> None:
    approval = _open(approvers=["boss", "judge"])
    assert _code(approval, Voter("other", "helper")) == "forbidden"
    assert _approved(approval, BOSS).approved
    assert _approved(approval, Voter("tok", "judge", "t")).approved


def test_two_different_people_approve_each_once() -> None:
    once = _approved(_open(count=2))
    assert once.state == "open"
    assert _decide(once) is once
    assert _decide(once, Voter("boss2", None, "tok_boss")) is once
    twice = _approved(once, Voter("cfo"))
    assert (twice.state, twice.decided_by) == ("approved", "boss, cfo")


def test_one_rejection_is_enough_and_nobody_changes_their_mind() -> None:
    once = _approved(_open(count=2))
    assert _code(once, decision="reject") == "conflict"
    assert _approved(once, Voter("cfo"), decision="reject").state == "rejected"


# ---------------------------------------------------------------- answers


def test_an_answer_gets_the_defaults_of_the_form() -> None:
    assert _approved(_open(form=FORM)).answer == '{"amount":5}'
    assert _approved(_open(form=FORM), answer={"amount": 7}).answer == '{"amount":7}'
    assert _approved(_open()).answer is None


@pytest.mark.parametrize(
    ("fields", "given"),
    [
        ({"form": FORM}, {"answer": {"amount": "x"}}),
        ({"form": FORM}, {"answer": {"amount": 5, "more": 1}}),
        ({"form": FORM}, {"answer": {"amount": 1}, "decision": "reject"}),
        ({}, {"answer": {"amount": 1}}),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(
    fields: dict[str, Any], given: dict[str, Any]
) -> None:
    assert _code(_open(**fields), **given) == "invalid_request"


def test_an_answer_is_not_nested_without_end() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    assert _code(_open(form=FORM), answer={"amount": deep}) == "invalid_request"


def test_the_second_approver_approves_the_answer_of_the_first() -> None:
    blank = _open(form=FORM, count=2)
    once = _approved(blank, answer={"amount": 7})
    unseen = approvals.hash_of(blank, BODY)
    assert _code(once, Voter("cfo"), given_hash=unseen) == "approval_changed"
    assert _code(once, Voter("cfo"), answer={"amount": 8}) == "invalid_request"
    assert _approved(once, Voter("cfo")).answer == '{"amount":7}'
    assert _approved(once, Voter("cfo"), answer={"amount": 7}).approved
    assert _approved(once, Voter("cfo"), decision="reject").answer == '{"amount":7}'


# ---------------------------------------------------------------- time and ends


def test_an_expired_approval_cannot_be_decided() -> None:
    approval = _open(expiresMs=10)
    assert approval.expires_at == NOW + 10
    assert _approved(approval, now=NOW + 9).approved
    assert _code(approval, now=NOW + 10) == "approval_closed"


def test_time_rejects_or_approves_as_the_request_says() -> None:
    late = approvals.expire(_open(expiresMs=10), NOW + 10)
    assert (late.state, late.decided_by) == ("expired", "expiry")
    assert approvals.task_error(late) == "approval_expired: no decision in time"
    given = approvals.expire(_open(expiresMs=10, onExpiry="approve", form=FORM), NOW + 10)
    assert (given.state, given.answer) == ("approved", '{"amount":5}')
    assert approvals.expire(_open(expiresMs=1, onExpiry="approve"), NOW + 1).answer is None


def test_a_closed_approval_says_who_closed_it() -> None:
    closed = approvals.close(_open(), NOW + 5)
    assert (closed.state, closed.decided_at, closed.decided_by) == ("cancelled", NOW + 5, None)
    assert _code(closed) == "approval_closed"


def test_a_retried_task_is_asked_about_again() -> None:
    decided = _approved(_open(expiresMs=10, form=FORM))
    again = approvals.opened_again(decided, seq=12, approval_id="apr_12", now=NOW + 100)
    assert (again.state, again.votes, again.answer, again.expires_at) == (
        "open", "[]", None, NOW + 110,
    )  # fmt: skip
    assert approvals.withdrawn(decided).in_force == 0
    forever = approvals.opened_again(_open(), seq=12, approval_id="apr_12", now=NOW + 100)
    assert forever.expires_at is None


@pytest.mark.parametrize(
    "field", [{"title": "Other?"}, {"detail": "e"}, {"form": FORM}, {"approvers": ["x"]}]
)
def test_a_question_with_another_text_is_another_question(field: dict[str, Any]) -> None:
    assert approvals.is_same_question(_open(), _open(expiresMs=9))
    assert not approvals.is_same_question(_open(), _open(**field))


def test_an_approval_is_named_after_its_number() -> None:
    assert approvals.id_of(7) == "apr_7"


def test_a_denied_question_is_not_asked_again_by_a_retry() -> None:
    error = ApprovalDenied("no", "expired", "late")
    assert (error.code, error.retryable) == ("approval_denied", False)
    assert (error.state, error.comment) == ("expired", "late")
