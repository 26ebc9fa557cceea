"""A change of the key that seals secrets: what stays in the store is sealed with the new one.

Asked for at each start with more than one key. Tasks are left as they are: they go by their
retention, and until then the old key opens them. What no key opens stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairlane.core.errors import StoreMismatch
from fairlane.engine.commands import Reseal
from fairlane.store.base import Row
from fairlane.store.transaction import Transaction
from fairlane.store.vault import Vault

SEALED_LIKE: Final = '%"sealed:1:%'
_STATEMENTS: Final = {
    "template": "template_reseal",
    "job": "job_reseal",
    "endpoint": "endpoint_reseal",
}


def reseal(tx: Transaction, requests: Sequence[Reseal], _: int) -> Iterator[int]:
    rows: dict[str, list[Row]] = {what: [] for what in _STATEMENTS}
    for what, id_, first, second in tx.connection.run("sealed_all", text=SEALED_LIKE):
        if what == "endpoint":
            rows[what].append((id_, _again(tx.vault, first), _again(tx.vault, second)))
        else:
            rows[what].append((id_, tx.vault.seal_body(tx.vault.open_body(first))))
    for what, changed in rows.items():
        if changed:
            tx.connection.change_rows(_STATEMENTS[what], changed)
            tx.changed = True
    kept = tx.connection.run("secret_get")[0][0]
    if kept is not None:
        tx.connection.run("secret_set", secret=_again(tx.vault, kept))
    return iter([sum(map(len, rows.values()))] * len(requests))


def _again(vault: Vault, text: str | None) -> str | None:
    try:
        return None if text is None else vault.seal(vault.open(text))
    except StoreMismatch:
        return text
