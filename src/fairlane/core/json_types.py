"""JSON objects whose fields are not declared: documents, params, details. The rest is typed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]
