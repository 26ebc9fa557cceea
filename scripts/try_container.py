"""Build the image of the Dockerfile and run it: it serves, drains, and keeps its data.

    python scripts/try_container.py [--engine podman|docker] [--base auto|debian]

Needs docker, or podman as root. The base image comes from a registry; without one, or with
`--base debian`, it is made with debootstrap. All that it starts has the name fairlane-try and is
removed at the end; the images stay, so that the next run is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError

ROOT: Final = Path(__file__).parents[1]
NAME: Final = "fairlane-try"
USER: Final = "10001:10001"
SUITES: Final = {"3.11": "bookworm", "3.13": "trixie"}  # of Debian, by their Python
HOST_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
CONFINED: Final = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),  # noqa: S108 - in the container
    *("--security-opt", "no-new-privileges"),
)
WAIT_SECONDS: Final = 90
TASKS: Final = 20
NAP_MS: Final = 3000
LIMIT: Final = 4096  # of open files and processes: less than any machine allows
REFUSED: Final = "no container engine can be used here"


class Engine:
    """The commands that docker and podman share."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        self.program = program
        self._environment = {**os.environ, **environment}

    def run(self, *arguments: str, seconds: float = 600) -> str:
        done = self.attempt(*arguments, seconds=seconds)
        if done.returncode != 0:
            words = shlex.join([self.program, *arguments])
            raise SystemExit(f"{words} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def attempt(
        self, *arguments: str, seconds: float = 600, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own commands
            [self.program, *arguments],
            cwd=ROOT,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=seconds,
            **options,
        )

    def has_image(self, name: str) -> bool:
        return self.attempt("image", "inspect", name).returncode == 0

    def image(self, name: str) -> dict[str, Any]:
        """Return the configuration of an image. podman shows the health check elsewhere."""
        found = json.loads(self.run("image", "inspect", name))[0]
        health = found["Config"].get("Healthcheck") or found.get("Healthcheck")
        return {**found["Config"], "Healthcheck": health}

    def state(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("container", "inspect", name))[0]["State"]
        return found

    def is_healthy(self, name: str) -> bool:
        """Run the health check of the image now, or ask for its last result."""
        if self.program == "podman":
            return self.attempt("healthcheck", "run", name).returncode == 0
        return bool(self.state(name)["Health"]["Status"] == "healthy")


# -------------------------------------------------------------------- engine and base


@contextlib.contextmanager
def found_engine(wanted: str | None) -> Iterator[Engine]:
    """Give an engine that works, or exit and say what each lacks."""
    complaints = []
    with tempfile.TemporaryDirectory(prefix=NAME) as folder:
        for program in [wanted] if wanted else ["docker", "podman"]:
            if shutil.which(program) is None:
                complaints.append(f"{program} is not installed")
                continue
            engine = Engine(program, podman_settings(Path(folder)) if program == "podman" else {})
            tried = engine.attempt("info", seconds=60)
            if tried.returncode == 0:
                yield engine
                return
            complaints.append(f"{program} info fails: {tried.stderr.strip().splitlines()[-1]}")
    raise SystemExit(
        f"{REFUSED}: {'; '.join(complaints)}.\nInstall docker, or on Debian, as root: "
        "apt install --no-install-recommends podman runc netavark catatonit debootstrap"
    )


def podman_settings(folder: Path) -> dict[str, str]:
    """Make podman start containers where it may not raise limits and systemd does not run."""
    if "CONTAINERS_CONF" in os.environ:
        return {}
    ulimits = [f"{name}={LIMIT}:{LIMIT}" for name in ("nofile", "nproc")]
    lines = ["[containers]", f"default_ulimits = {json.dumps(ulimits)}", "[engine]"]
    if not Path("/run/systemd/system").exists():
        lines += ['cgroup_manager = "cgroupfs"', 'events_logger = "file"']
    if Path("/sys/fs/cgroup/unified").exists() and shutil.which("runc"):
        lines.append('runtime = "runc"')  # crun refuses two versions of control groups at once
    file = folder / "containers.conf"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return {"CONTAINERS_CONF": str(file)}


def build(engine: Engine, base: str) -> None:
    """Build the Dockerfile on its own base, or on one made here."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    found = re.search(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    if found is None:
        raise SystemExit("the Dockerfile has no ARG PYTHON")
    python = found[1]
    official = f"docker.io/library/python:{python}-slim"
    if base == "auto" and not engine.has_image(official):
        say(f"pulling {official}")
        pulled = engine.attempt("pull", "--quiet", official, seconds=300)
        if pulled.returncode != 0:
            say(f"no registry: {pulled.stderr.strip().splitlines()[-1]}")
            base = "debian"
    if base == "debian":
        python = debian_base(engine, python)
    options = ["--format", "docker"] if engine.program == "podman" else []  # OCI has no health
    say("building the Dockerfile")
    engine.run("build", *options, "--build-arg", f"PYTHON={python}", "--tag", NAME, ".")


def debian_base(engine: Engine, python: str) -> str:
    """Make a base image from Debian's packages; return the build argument that selects it."""
    argument = f"{python}-debootstrap"
    image = f"docker.io/library/python:{argument}-slim"  # no such image is published
    if engine.has_image(image):
        return argument
    suite = SUITES.get(python)
    if suite is None or shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise SystemExit(
            f"cannot make a base image with Python {python}: needs root, debootstrap "
            f"(apt install debootstrap), and one of Python {', '.join(SUITES)}"
        )
    say(f"making {image} from Debian {suite}; takes some minutes")
    with tempfile.TemporaryDirectory(prefix=NAME) as folder:
        packages = "--include=python3,python3-venv,ca-certificates"
        command = ["debootstrap", "--variant=minbase", packages, suite, folder]
        made = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if made.returncode != 0:
            raise SystemExit(f"debootstrap failed:\n{made.stdout[-2000:]}{made.stderr[-2000:]}")
        (Path(folder) / "usr/local/bin/python").symlink_to("/usr/bin/python3")
        if HOST_CERTIFICATES.exists():  # this machine may see the index through a proxy of its own
            shutil.copy(HOST_CERTIFICATES, f"{folder}{HOST_CERTIFICATES}")
        Path(folder).chmod(0o755)
        archive = Path(folder).with_suffix(".tar")
        try:
            subprocess.run(["tar", "-C", folder, "-cf", archive, "."], check=True)  # noqa: S603, S607
            engine.run("import", str(archive), image)
        finally:
            archive.unlink(missing_ok=True)
    return argument


# -------------------------------------------------------------------- what the container must do


class Container:
    """A server on the volume, confined as in deploy/compose.yaml.

    It listens on a free port of this machine, because the server compares the port of a request.
    """

    def __init__(self, engine: Engine, token: str) -> None:
        self._engine = engine
        self._token = token
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]

    def create(self) -> None:
        volume = ("--volume", f"{NAME}:/data", "--stop-timeout", "30")
        settings = {"FAIRLANE_PORT": self._port, "FAIRLANE_DRAIN_SECONDS": 20}
        told = [word for item in settings.items() for word in ("--env", f"{item[0]}={item[1]}")]
        published = ("--publish", f"127.0.0.1:{self._port}:{self._port}")
        words = ("--detach", "--name", NAME, *volume, *told, *published, *CONFINED)
        self._engine.run("run", *words, NAME)
        self.until_healthy()

    def start(self) -> None:
        self._engine.run("start", NAME)
        self.until_healthy()

    def until_healthy(self) -> None:
        until(lambda: self._engine.is_healthy(NAME), self.log)

    def ended(self) -> int:
        """Return the exit code of the server."""
        return int(self._engine.state(NAME)["ExitCode"])

    def remove(self) -> None:
        self._engine.run("rm", "--force", "--volumes=false", NAME)

    def log(self) -> str:
        done = self._engine.attempt("logs", NAME)
        return done.stdout + done.stderr

    def execute(self, *command: str) -> str:
        return self._engine.run("exec", NAME, *command)

    def request(self, path: str, body: object = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - as above
            found: dict[str, Any] = json.loads(response.read())
        return found

    def submit(self, **task: object) -> str:
        accepted = self.request("/tasks", {"agentId": "agent-a", **task})
        return str(accepted["taskId"])

    def states(self, ids: Sequence[str]) -> list[str]:
        return [str(self.request(f"/tasks/{task}")["state"]) for task in ids]


def look_at_image(engine: Engine) -> None:
    image = engine.image(NAME)
    check(image["User"] == USER, "the image runs as user 10001")
    check(bool(image["Healthcheck"]), "the image has a health check")
    programs = "command -v fairlane; command -v gcc pip /app/bin/pip; id -u; id -g"
    found = engine.run("run", "--rm", "--entrypoint", "sh", NAME, "-c", programs).split()
    check(found == ["/app/bin/fairlane", "10001", "10001"], "no build tools are in the image")


def first_token(engine: Engine) -> str:
    command = ("token", "create", "--name", "admin", "--scope", "all")
    store = ("--store", "sqlite:////data/fairlane.db")
    said = engine.run("run", "--rm", "--volume", f"{NAME}:/data", NAME, *command, *store)
    found = re.search(r"\bfl_\S+", said)
    if found is None:
        raise SystemExit(f"token create printed no token:\n{said}")
    return found[0]


def serves(container: Container) -> list[str]:
    container.create()
    say("ok  it is healthy, with a read-only root, no capabilities and no new privileges")
    check(container.execute("id", "-u") == "10001", "the server is not root")
    ids = [container.submit(handler="echo", params={"n": number}) for number in range(TASKS)]
    later = container.submit(handler="echo", delayMs=3_600_000)
    until(lambda: set(container.states(ids)) == {"done"}, container.log)
    say(f"ok  {TASKS} tasks that came over a published port are done")
    return [*ids, later]


def drains(engine: Engine, container: Container) -> str:
    running = container.submit(handler="sleep", params={"ms": NAP_MS})
    until(lambda: container.states([running]) == ["running"], container.log)
    began = time.monotonic()
    engine.run("stop", NAME)
    took = time.monotonic() - began
    code = container.ended()
    log = container.log()
    check("no new work is accepted" in log, "the log says that the server drains")
    check(code == 0, f"the server ended with exit code {code}")
    check(took > NAP_MS / 1000 - 2, f"stop waited {took:.1f} s for the task that ran")
    return running


def keeps(container: Container, ids: Sequence[str], napped: str) -> None:
    expected = ["done"] * TASKS + ["queued"]
    container.start()
    check(container.states(ids) == expected, "every task survives a restart")
    task = container.request(f"/tasks/{napped}")
    found = (task["state"], task["attempts"])
    check(found == ("done", 1), f"the task that ran at the stop is {found[0]}, in one attempt")
    container.remove()
    container.create()
    check(container.states(ids) == expected, "every task is in the new container")


def survives_a_kill(engine: Engine, container: Container, ids: Sequence[str]) -> None:
    engine.run("kill", "--signal", "KILL", NAME)
    until(lambda: not engine.state(NAME)["Running"], container.log)
    check(container.ended() == 137, "kill -9 ends it")
    container.start()
    check(len(container.states(ids)) == TASKS + 1, "every task survives kill -9")


def looks_after_itself(container: Container) -> None:
    container.execute("fairlane", "doctor")
    container.execute("fairlane", "backup", "/data/backup.db")
    size = int(container.execute("stat", "--format", "%s", "/data/backup.db"))
    check(size > 0, "doctor and backup work in the container")


# -------------------------------------------------------------------- the program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=["docker", "podman"])
    parser.add_argument("--base", choices=["auto", "debian"], default="auto")
    options = parser.parse_args()
    with found_engine(options.engine) as engine:
        say(f"using {engine.run('--version')}")
        build(engine, options.base)
        clean(engine)
        try:
            look_at_image(engine)
            container = Container(engine, first_token(engine))
            ids = serves(container)
            napped = drains(engine, container)
            keeps(container, ids, napped)
            survives_a_kill(engine, container, ids)
            looks_after_itself(container)
        finally:
            clean(engine)


def clean(engine: Engine) -> None:
    engine.attempt("rm", "--force", NAME)
    engine.attempt("volume", "rm", NAME)


def check(is_so: bool, claim: str) -> None:  # noqa: FBT001 - reads as the sentence
    if not is_so:
        raise SystemExit(f"FAILED  {claim}")
    say(f"ok  {claim}")


def until(condition: Callable[[], bool], log: Callable[[], str]) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS
    while True:
        with contextlib.suppress(URLError, ConnectionError):
            if condition():
                return
        if time.monotonic() > give_up_at:
            raise SystemExit(
                f"FAILED  not within {WAIT_SECONDS} s; the log of the container:\n{log()}"
            )
        time.sleep(0.25)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
