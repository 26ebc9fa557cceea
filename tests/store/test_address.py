"""What an operator says about the connection to PostgreSQL goes before what Fairlane would say."""

from __future__ import annotations

import pytest

from fairlane.core.errors import OperatorError
from fairlane.store.postgres import PostgresStore


def parameters(url: str, options: str = "") -> dict[str, str]:
    with PostgresStore(url).connect(options, autocommit=True) as connection:
        return connection.info.get_parameters()


def test_a_lost_server_is_noticed_within_seconds_by_default(postgres_url: str) -> None:
    found = parameters(postgres_url)
    assert (found["connect_timeout"], found["tcp_user_timeout"]) == ("5", "10000")
    assert found["application_name"] == "fairlane"


def test_what_the_address_says_goes_before(postgres_url: str) -> None:
    found = parameters(f"{postgres_url}&connect_timeout=9&keepalives_idle=60&application_name=us")
    assert (found["connect_timeout"], found["keepalives_idle"]) == ("9", "60")
    assert found["application_name"] == "us"
    assert found["tcp_user_timeout"] == "10000"


def test_so_does_what_the_environment_tells_libpq(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "11")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=7MB")
    found = parameters(postgres_url, "-c lock_timeout=15000")
    assert found["connect_timeout"] == "11"
    assert found["options"] == "-c work_mem=7MB -c lock_timeout=15000"
    assert parameters(f"{postgres_url}&connect_timeout=9")["connect_timeout"] == "9"


def test_an_invalid_address_is_refused() -> None:
    with pytest.raises(OperatorError, match="the store's address is not valid"):
        PostgresStore("postgresql://localhost/fairlane?no_such_option=1")
