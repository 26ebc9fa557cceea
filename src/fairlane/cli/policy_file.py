"""The file that `fairlane serve --policy` reads, and reads again when it has changed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlane.compat import policies
from fairlane.core.errors import InvalidPolicy, OperatorError
from fairlane.schema import wire

log = logging.getLogger("fairlane")


class PolicyFile:
    """A policy file, if there is one, under the ceilings of lanes that are settings."""

    def __init__(self, file: str | None, ceilings: Mapping[str, int]) -> None:
        self.file = Path(file) if file else None
        self._ceilings = ceilings
        self._notes: list[str] = []

    def load(self) -> dict[str, Any]:
        """Return the document to lay over the policy. Log what of it is ignored, once."""
        if self.file is None:
            return _with_ceilings({}, self._ceilings)
        document = _read(self.file)
        before, self._notes = self._notes, policies.notes(document)
        if self._notes != before:
            for note in self._notes:
                log.info("the policy file %s: %s", self.file, note)
        return _with_ceilings(policies.reduced(document), self._ceilings)

    def named(self, error: InvalidPolicy) -> InvalidPolicy:
        """Return the error with the name of the file before each problem."""
        if self.file is None:
            return error
        return InvalidPolicy([f"{self.file}: {problem}" for problem in error.problems])


def _with_ceilings(document: dict[str, Any], ceilings: Mapping[str, int]) -> dict[str, Any]:
    lanes = document.get("lanes", {})
    if not ceilings or not isinstance(lanes, dict):
        return document  # the policy complains about what is no object
    lanes = dict(lanes)
    for name, ceiling in ceilings.items():
        lane = lanes.get(name, {})
        if isinstance(lane, dict):
            lanes[name] = {**lane, "maxInflight": ceiling}
    return {**document, "lanes": lanes}


def _read(file: Path) -> dict[str, Any]:
    try:
        document: Any = wire.decode(file.read_bytes())
    except OSError as error:
        raise OperatorError(f"the policy file {file} cannot be read: {error.strerror}") from None
    except (wire.DecodeError, RecursionError) as error:
        raise InvalidPolicy([f"{file} is not valid JSON: {error}"]) from None
    if not isinstance(document, dict):
        raise InvalidPolicy([f"{file} must hold a JSON object"])
    return document
