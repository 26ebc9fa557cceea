"""Arrays in binary: PostgreSQL reads what was written, whatever it is."""

from __future__ import annotations

import struct
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlane.store.arrays import ARRAYS, register

INTS = st.none() | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
REALS = st.none() | st.floats(allow_nan=False)
COLUMNS = {"int": ("bigint[]", INTS), "text": ("text[]", TEXTS), "real": ("float8[]", REALS)}


def read_back(url: str, kind: str, values: list[Any]) -> list[Any]:
    with psycopg.connect(url) as connection:
        register(connection.adapters)
        query = f"SELECT * FROM unnest(%s::{COLUMNS[kind][0]})"
        rows = connection.execute(query, [ARRAYS[kind](values, "utf-8")]).fetchall()  # type: ignore[arg-type]  # our own text
    return [row[0] for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("kind", COLUMNS)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_what_was_sent_is_read_back(postgres_url: str, kind: str, data: st.DataObject) -> None:
    values = data.draw(st.lists(COLUMNS[kind][1], min_size=1, max_size=20))
    assert read_back(postgres_url, kind, values) == values


def test_awkward_texts_are_only_texts(postgres_url: str) -> None:
    values = [
        "",
        "NULL",
        "{a,b}",
        'say "hi"',
        "back\\slash",
        "ü€😀",
        None,
        "'; DROP TABLE task; --",
    ]
    assert read_back(postgres_url, "text", values) == values


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_may_be_empty(postgres_url: str, kind: str) -> None:
    assert read_back(postgres_url, kind, [None] * 3) == [None] * 3


def test_a_number_that_does_not_fit_is_refused_here() -> None:
    for values in ([2**63], [None, 2**63]):
        with pytest.raises(struct.error):
            ARRAYS["int"](values, "utf-8")


def test_a_text_that_the_database_cannot_hold_is_an_error_of_its_data(postgres_url: str) -> None:
    with pytest.raises(psycopg.DataError):
        read_back(postgres_url, "text", ["a\0b"])
