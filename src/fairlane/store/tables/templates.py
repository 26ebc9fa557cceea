"""Templates in the store. Their secrets are sealed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fairlane.core.templates import Template, TemplateDefinition
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page
from fairlane.store.vault import Vault

_definition = msgspec.json.Decoder(TemplateDefinition)
_STAND_IN = TemplateDefinition(
    name="(damaged)", description="", instruction="", priority=0, parameters=[]
)


def template_from_row(row: Row, vault: Vault) -> Template:
    """Return the template of a row; it is `damaged` if its definition cannot be read."""
    seq, template_id, text, usage_count, created_at, updated_at = row
    try:
        definition, damaged = _definition.decode(vault.open_body(text)), False
    except msgspec.DecodeError:
        definition, damaged = _STAND_IN, True
    return Template(seq, template_id, definition, usage_count, created_at, updated_at, damaged)


def by_id(connection: Connection, vault: Vault, ids: Iterable[str]) -> dict[str, Template]:
    rows = connection.run_rows("template_by_id", [(id_,) for id_ in dict.fromkeys(ids)])
    return {template.id: template for template in (template_from_row(row, vault) for row in rows)}


def id_by_name(connection: Connection, name: str) -> str | None:
    """Return the id of the template with a name; None if there is none."""
    rows = connection.run("template_list", name=name, before=None, limit=1)
    return rows[0][1] if rows else None


def page(
    connection: Connection, vault: Vault, name: str | None, before: int | None, limit: int
) -> Page[Template]:
    """Return templates, newest first; `before` continues below a sequence number."""
    return read_page(
        connection,
        lambda row: template_from_row(row, vault),
        "template_list",
        limit,
        name=name,
        before=before,
    )


def insert(connection: Connection, vault: Vault, template: Template) -> None:
    row = (
        template.seq,
        template.id,
        template.definition.name,
        _text(template, vault),
        template.usage_count,
        template.created_at,
        template.updated_at,
    )
    connection.run_rows("template_insert", [row])


def update(connection: Connection, vault: Vault, template: Template) -> None:
    text = _text(template, vault)
    row = (template.id, template.definition.name, text, template.updated_at)
    connection.change_rows("template_update", [row])


def count_uses(connection: Connection, uses: Mapping[str, int]) -> None:
    """Add to the use counts of templates, by id."""
    connection.change_rows("template_use", list(uses.items()))


def delete(connection: Connection, template_id: str) -> None:
    connection.change_rows("template_delete", [(template_id,)])


def _text(template: Template, vault: Vault) -> str:
    return vault.seal_body(msgspec.json.encode(template.definition).decode())
