"""The programs that the examples need, which never outlive a test."""

from __future__ import annotations

from tests.e2e.conftest import programs

__all__ = ["programs"]
