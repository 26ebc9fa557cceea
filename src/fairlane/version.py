"""The version, in one place: the package's metadata, `--version` and the API read it here."""

from __future__ import annotations

__version__ = "0.1.0"
