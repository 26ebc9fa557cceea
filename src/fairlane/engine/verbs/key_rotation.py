"""Key rotation: seal the secrets that stay in the store with the new key.

Runs at each start with more than one key. Tasks stay as they are: they are deleted when their
retention ends, and until then the old key opens them. Secrets that no key opens stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core.errors import StoreMismatch
from fairlane.engine.commands import Reseal
from fairlane.store.tables import secrets
from fairlane.store.tables.secrets import Sealed, SealedBody, SealedSecrets
from fairlane.store.transaction import Transaction
from fairlane.store.vault import Vault


def reseal(tx: Transaction, requests: Sequence[Reseal], _: int) -> Iterator[int]:
    before, vault = secrets.sealed(tx.connection), tx.vault
    after = Sealed(
        templates=[_resealed_body(vault, one) for one in before.templates],
        jobs=[_resealed_body(vault, one) for one in before.jobs],
        endpoints=[_resealed_secrets(vault, one) for one in before.endpoints],
    )
    count = secrets.reseal(tx.connection, after)
    secret = secrets.webhook_secret(tx.connection)
    if secret is not None:
        secrets.save_webhook_secret(tx.connection, _resealed(vault, secret))
    return iter([count] * len(requests))


def _resealed_body(vault: Vault, one: SealedBody) -> SealedBody:
    return SealedBody(one.id, vault.seal_body(vault.open_body(one.definition)))


def _resealed_secrets(vault: Vault, one: SealedSecrets) -> SealedSecrets:
    previous = None if one.previous is None else _resealed(vault, one.previous)
    return SealedSecrets(one.id, _resealed(vault, one.secret), previous)


def _resealed(vault: Vault, text: str) -> str:
    try:
        return vault.seal(vault.open(text))
    except StoreMismatch:
        return text
