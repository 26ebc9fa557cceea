"""Audit log: list it. `trail.py` writes it."""

from __future__ import annotations

from fairlane.core.access import Caller
from fairlane.engine.node import Node
from fairlane.schema import audit as schema
from fairlane.schema.audit import AuditPage, audit_entry
from fairlane.services.pages import number
from fairlane.services.registry import implements


@implements(schema.AUDIT)
async def list_audit(node: Node, _: Caller, request: schema.ListAudit) -> AuditPage:
    wanted = {
        "who": request.who,
        "action": request.action,
        "outcome": request.outcome,
        "before": number(request.cursor),
        "after": request.after,
    }
    page = await node.views.read(node.views.audit, wanted, request.limit)
    return AuditPage(
        entries=[audit_entry(one) for one in page],
        count=len(page),
        next_cursor=str(page[-1].id) if page.more else None,
    )
