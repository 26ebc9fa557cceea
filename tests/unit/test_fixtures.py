"""The databases that tests get: real, empty, apart from each other, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.postgres import new_database

ROOT = Path(__file__).parents[2]
WAIT_SECONDS_MAX = 60


def test_each_test_gets_an_empty_database_of_its_own(postgres_url: str) -> None:
    with new_database(postgres_url) as first, new_database(postgres_url) as second:
        with psycopg.connect(first) as connection:
            connection.execute("CREATE TABLE seen (id int)")
        with psycopg.connect(second) as connection:
            found = connection.execute("SELECT to_regclass('seen')").fetchone()
    assert found == (None,)


def test_a_database_is_dropped_even_while_somebody_is_connected(postgres_url: str) -> None:
    with new_database(postgres_url) as url:
        forgotten = psycopg.connect(url)
    with forgotten, pytest.raises(psycopg.OperationalError):
        forgotten.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_the_database_is_as_durable_as_in_production(fresh_postgres: str) -> None:
    with psycopg.connect(fresh_postgres) as connection:
        settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit')"
        assert connection.execute(settings).fetchone() == ("on", "on")


def test_a_store_url_names_an_empty_store(store_url: str) -> None:
    address = urlsplit(store_url)
    assert address.scheme in {"sqlite", "postgresql"}
    if address.scheme == "sqlite":
        file = Path(address.path.removeprefix("/"))
        assert file.is_absolute()
        assert file.parent.is_dir()
        assert not file.exists()


@pytest.mark.slow
def test_the_server_ends_even_when_its_tests_are_killed() -> None:
    program = (
        "from tests.postgres import running_postgres\n"
        "with running_postgres() as url:\n"
        "    print(url, flush=True)\n"
        "    input()\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout
        url = tests.stdout.readline().strip()
        home = Path(parse_qs(urlsplit(url).query)["host"][0])
        server = int((home / "data" / "postmaster.pid").read_text().split()[0])
        tests.send_signal(signal.SIGKILL)
    _wait_until_gone(server, home)


def _wait_until_gone(process: int, home: Path) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while _is_alive(process) or home.exists():
        assert time.monotonic() < give_up_at, f"process {process} or {home} is still there"
        time.sleep(0.01)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
