"""Policy documents of Fairlane, PinchTab (configuration) and cool-workflow (rules)."""

from __future__ import annotations

import functools
from typing import Final

from fairlane.compat import coolworkflow, pinchtab
from fairlane.core import policy as policies
from fairlane.core.documents import Schema
from fairlane.core.json_types import JsonObject
from fairlane.core.policy import LANE_RULES, RULES, unframed

# All top-level keys of a document that are not PinchTab's.
_OWN: Final[Schema] = {**RULES, **dict.fromkeys(coolworkflow.POLICY_KEYS, LANE_RULES)}


class Foreign:
    """The dialect of PinchTab and cool-workflow."""

    keys = coolworkflow.POLICY_KEYS | {pinchtab.SECTION}

    def is_foreign(self, document: object) -> bool:
        if not isinstance(document, dict) or not document:
            return False
        return reduced(document).keys() <= self.keys

    def translate(self, document: JsonObject, problems: list[str]) -> JsonObject:
        own = pinchtab.translated(document, _OWN, problems)
        return coolworkflow.translated(own, problems)


FOREIGN: Final = Foreign()

merge: Final = functools.partial(policies.merge, dialect=FOREIGN)
replace: Final = functools.partial(policies.replace, dialect=FOREIGN)
patch: Final = functools.partial(policies.patch, dialect=FOREIGN)


def notes(document: object) -> list[str]:
    """Return the ignored parts of an accepted document, for the operator."""
    if not isinstance(document, dict):
        return []
    return pinchtab.notes(unframed(document), _OWN, RULES)


def reduced(document: JsonObject) -> JsonObject:
    """Return the document without its ignored parts, so that Fairlane's keys can be added to it."""
    return pinchtab.reduced(document, _OWN)
