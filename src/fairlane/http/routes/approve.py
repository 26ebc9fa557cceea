"""The page behind a one-time link: the question, the form, and two buttons. It needs no script.

The link is the credential, so the page needs no token and no cookie, and a forged request from
another site would have to know it. A GET decides nothing: programs open links to preview them. The
hidden field with the hash identifies the version that the person saw.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec

from fairlane.core import approvals, forms
from fairlane.core.approvals import Approval
from fairlane.core.errors import FairlaneError, InvalidRequest, NotFound
from fairlane.core.forms import FormField
from fairlane.core.json_types import JsonObject
from fairlane.engine.node import Node
from fairlane.http.messages import STATUS, Answer, HttpRequest, Raw, Route, Routes
from fairlane.services.approvals import LINK_PATH, decide_by_link, linked
from fairlane.store.tables.approvals import ApprovalView

HTML: Final = "text/html; charset=utf-8"
BODY_BYTES_MAX: Final = 262_144
_FIELDS_MAX: Final = 4 * forms.FIELDS_MAX
_PREFIX: Final = "f."
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}([.][0-9]{1,18})?", re.ASCII)

Values = Mapping[str, str]


def _text(value: object) -> str:
    return html.escape(str(value))


class ApprovePage:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        """Both are open: the link in the path is the credential."""
        return {
            f"{LINK_PATH}{{link}}": {
                "GET": Route(self.show, None, open=True),
                "POST": Route(self.decide, None, open=True),
            }
        }

    async def show(self, request: HttpRequest) -> Answer:
        try:
            view = await linked(self._node, request.path["link"])
        except FairlaneError as error:
            return _refused(request, error)
        return _page(200, view.approval.title, _question(view, {}))

    async def decide(self, request: HttpRequest) -> Answer:
        try:
            values = _values(await request.body(BODY_BYTES_MAX))
            view = await linked(self._node, request.path["link"])
            decision = values.get("decision", "")
            if decision not in (approvals.APPROVE, approvals.REJECT):
                raise InvalidRequest("field 'decision' must be approve or reject")
            answer = _answer(view.approval, values) if decision == approvals.APPROVE else None
        except FairlaneError as error:
            return _refused(request, error)
        try:
            after = await decide_by_link(
                self._node,
                request.path["link"],
                decision,
                seen=values.get("hash", ""),
                answer=answer,
                comment=values.get("comment", ""),
            )
        except InvalidRequest as error:
            if request.wants_json():
                raise
            problem = f'<p class="error" role="alert">{_text(error.message)}</p>'
            return _page(400, view.approval.title, problem + _question(view, values))
        except FairlaneError as error:
            return _refused(request, error)
        return _page(200, after.title, _thanks(after, decision))


def _values(body: bytes) -> dict[str, str]:
    """Return the fields of a form. Raise `InvalidRequest` if the body is not a form."""
    try:
        found = parse_qs(
            body.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_FIELDS_MAX,
        )
    except (ValueError, UnicodeDecodeError):
        raise InvalidRequest("the body must be the form of this page") from None
    values = {name: texts[-1] for name, texts in found.items()}
    if any("\0" in text for text in values.values()):
        raise InvalidRequest("a field must not contain the character U+0000")
    return values


# -------------------------------------------------------------------- the answer


def _answer(approval: Approval, values: Values) -> JsonObject | None:
    """Return the values of a form by their types; the check reports values that do not fit."""
    if approval.form is None or approval.answer is not None:
        return None
    answer: JsonObject = {}
    for name, field in approvals.form_of(approval).properties.items():
        text = values.get(f"{_PREFIX}{name}")
        if field.type == forms.BOOLEAN:
            answer[name] = text is not None
        elif text:
            answer[name] = _typed(field, text)
    return answer


def _typed(field: FormField, text: str) -> Any:
    if field.type == forms.ARRAY:
        kind = field.items.type if field.items else forms.STRING
        return [_value(kind, line.strip()) for line in text.splitlines() if line.strip()]
    return _value(field.type, text.replace("\r\n", "\n"))


def _value(kind: str, text: str) -> Any:
    word = text.strip()
    if kind == forms.INTEGER and _WHOLE.fullmatch(word):
        return int(word)
    if kind == forms.NUMBER and _NUMBER.fullmatch(word):
        return float(word) if "." in word else int(word)
    if kind == forms.BOOLEAN and word in ("true", "false"):
        return word == "true"
    return text


# -------------------------------------------------------------------- the page


def _question(view: ApprovalView, values: Values) -> str:
    one = view.approval
    request = None if view.body is None else approvals.request_shown(view.body)
    seen = approvals.hash_of(one, view.body)
    parts = [f"<h1>{_text(one.title)}</h1>"]
    if one.detail:
        parts.append(f"<pre>{_text(one.detail)}</pre>")
    about = f"Agent {_text(one.agent)}"
    about += f", task {_text(one.task)}" if one.task else ""
    parts.append(f"<p>{about}</p>")
    if request:
        shown = msgspec.json.format(msgspec.json.encode(request), indent=2).decode()
        parts.append(f"<h2>What will run</h2><pre>{_text(shown)}</pre>")
    parts += ['<form method="post">', f'<input type="hidden" name="hash" value="{seen}">']
    if one.form is not None:
        parts.append(_fields(one, values))
    comment = _text(values.get("comment", ""))
    parts.append(
        f'<label>Comment<textarea name="comment" rows="2" maxlength="'
        f'{approvals.COMMENT_CHARACTERS_MAX}">{comment}</textarea></label>'
        '<p class="buttons"><button name="decision" value="approve" class="primary">Approve'
        '</button> <button name="decision" value="reject" formnovalidate>Reject</button></p></form>'
    )
    return "".join(parts)


def _fields(one: Approval, values: Values) -> str:
    if one.answer is not None:
        return f"<h2>Answer of the previous approver</h2><pre>{_text(one.answer)}</pre>"
    form = approvals.form_of(one)
    required = set(form.required or ())
    return "".join(
        _field(name, field, values.get(f"{_PREFIX}{name}"), required=name in required)
        for name, field in form.properties.items()
    )


def _field(name: str, field: FormField, given: str | None, *, required: bool) -> str:
    label = _text(field.title or name)
    hint = f"<small>{_text(field.description)}</small>" if field.description else ""
    default = "" if field.default is None else field.default
    if field.type == forms.ARRAY:
        default = "\n".join(map(str, default)) if isinstance(default, list) else ""
        hint += "<small>one per line</small>"
    text = _text(default if given is None else given)
    attributes = f'name="{_PREFIX}{_text(name)}"'
    attributes += " required" if required and field.type != forms.BOOLEAN else ""
    if field.type == forms.BOOLEAN:
        checked = " checked" if (given is not None or default is True) else ""
        control = f'<input type="checkbox" {attributes}{checked}>'
    elif field.enum is not None:
        options = "".join(
            f"<option{' selected' if _text(one) == text else ''}>{_text(one)}</option>"
            for one in ("", *field.enum)
        )
        control = f"<select {attributes}>{options}</select>"
    elif field.type in (forms.NUMBER, forms.INTEGER):
        step = "1" if field.type == forms.INTEGER else "any"
        bounds = "" if field.minimum is None else f' min="{field.minimum:.15g}"'
        bounds += "" if field.maximum is None else f' max="{field.maximum:.15g}"'
        control = f'<input type="number" step="{step}" {attributes}{bounds} value="{text}">'
    elif field.type == forms.ARRAY or (field.max_length or forms.TEXT_CHARACTERS_MAX) > 200:
        control = f'<textarea {attributes} rows="3">{text}</textarea>'
    else:
        control = f'<input {attributes} maxlength="{field.max_length}" value="{text}">'
    return f"<label>{label}{control}{hint}</label>"


def _thanks(after: Approval, decision: str) -> str:
    word = "approved" if decision == approvals.APPROVE else "rejected"
    more = ""
    if after.state == approvals.OPEN:
        more = f" It needs {after.needed} approvals; {len(approvals.votes(after))} received so far."
    return f"<h1>Thank you</h1><p>You {word}: {_text(after.title)}.{more}</p>"


def _refused(request: HttpRequest, error: FairlaneError) -> Answer:
    """Return the error as a page. A program that wants JSON gets it as from any route."""
    if request.wants_json():
        raise error
    title = "This link is not valid" if isinstance(error, NotFound) else "Not decided"
    body = f'<h1>{title}</h1><p role="alert">{_text(error.message)}</p>'
    return _page(STATUS.get(error.code, 500), title, body)


def _page(status: int, title: str, body: str) -> Answer:
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="robots" content="noindex"><link rel="stylesheet" href="/ui/approve.css">'
        f"<title>{_text(title)}</title></head><body><main>{body}</main></body></html>"
    )
    return Answer(status, Raw(page.encode(), HTML, is_form=True))
