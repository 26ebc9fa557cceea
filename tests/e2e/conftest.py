"""Fixtures: programs that never outlive a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.processes import Programs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as programs:
        yield programs
