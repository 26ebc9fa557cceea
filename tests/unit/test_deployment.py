"""The files for operators: image, compose, Kubernetes, systemd. They agree with each other and with
the program, as far as that shows without running them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlane import config
from fairlane.cli.commands import parse
from fairlane.worker import signals

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
USER = 10001
PORT = 9867


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, one instruction each, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions():
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def image_environment() -> dict[str, str]:
    """What ENV sets in the image that runs."""
    words = [word for name, rest in stages()[-1] if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


def only(stage: list[tuple[str, str]], name: str) -> str:
    (found,) = [rest for word, rest in stage if word == name]
    return found


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    return found


def manifests() -> list[dict[str, Any]]:
    return [one for file in KUBERNETES for one in yaml.safe_load_all(file.read_text("utf-8"))]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if one["kind"] == kind]
    return found


def pod(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(kind)["spec"]["template"]["spec"]
    return found


def variables(names: dict[str, str]) -> list[str]:
    """The names that are settings of Fairlane."""
    return [name for name in names if name.startswith("FAIRLANE_")]


def known_settings() -> set[str]:
    return {f"FAIRLANE_{name.upper()}" for name in config.Settings.__struct_fields__}


# -------------------------------------------------------------------- the image


def test_the_image_has_two_stages_and_the_last_builds_nothing() -> None:
    build, final = stages()
    assert only(build, "FROM").endswith(" AS build")
    assert "--from=build" in only(final, "COPY")
    assert [rest for name, rest in final if name == "RUN" and "pip" in rest] == []


def test_the_image_installs_what_the_lock_pins() -> None:
    runs = [rest for name, rest in stages()[0] if name == "RUN"]
    assert "--require-hashes --no-deps -r requirements/runtime.txt" in runs[0]
    assert "--no-deps --no-build-isolation ." in runs[1]


def test_the_image_runs_without_rights_and_says_when_it_is_ready() -> None:
    final = stages()[-1]
    assert only(final, "USER") == f"{USER}:{USER}"
    assert f"--uid {USER} " in only(final, "RUN")
    assert only(final, "STOPSIGNAL") in {signal.name for signal in signals.stopping()}
    assert "os.environ['FAIRLANE_PORT'] + '/health/ready'" in only(final, "HEALTHCHECK")
    assert only(final, "EXPOSE") == image_environment()["FAIRLANE_PORT"] == str(PORT)
    assert parse([*json.loads(only(final, "CMD"))]).command == "serve"


def test_the_context_of_the_image_has_what_it_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {word for name, rest in stages()[0] if name == "COPY" for word in rest.split()[:-1]}
    assert {path for path in copied if not (ROOT / path).exists()} == set()
    assert copied == allowed


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_every_variable_is_a_setting(kind: str) -> None:
    container = pod(kind)["containers"][0]
    told = {one["name"]: "" for one in container["env"]}
    told |= image_environment() | compose()["services"]["fairlane"]["environment"]
    assert set(variables(told)) - known_settings() == set()


# -------------------------------------------------------------------- compose


def test_compose_waits_for_a_healthy_database() -> None:
    services = compose()["services"]
    assert services["fairlane"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["postgres"]["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    database = services["postgres"]["environment"]
    address = services["fairlane"]["environment"]["FAIRLANE_STORE"]
    user, name = database["POSTGRES_USER"], database["POSTGRES_DB"]
    assert address == f"postgresql://{user}@postgres/{name}"


def test_compose_shuts_the_server_in_and_lets_it_drain() -> None:
    service = compose()["services"]["fairlane"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    drain = int(service["environment"]["FAIRLANE_DRAIN_SECONDS"])
    assert int(service["stop_grace_period"].removesuffix("s")) > drain + 10
    named = {volume.split(":")[0] for volume in service["volumes"]}
    assert named <= set(compose()["volumes"])


def test_no_password_stands_in_a_file() -> None:
    for service in compose()["services"].values():
        for name, value in service["environment"].items():
            assert "PASSWORD" not in name or value.startswith("${POSTGRES_PASSWORD:?")
    kinds = {one["kind"] for one in manifests()}
    assert kinds == {"Deployment", "Service", "PodDisruptionBudget", "Job"}, "no Secret"


# -------------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_a_pod_runs_without_rights(kind: str) -> None:
    spec = pod(kind)
    context = spec["containers"][0]["securityContext"]
    assert spec["automountServiceAccountToken"] is False
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (
        True,
        USER,
    )
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_selectors_find_the_pods_of_the_server_only() -> None:
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Deployment")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Service")["spec"]["selector"] == labels
    assert manifest("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert manifest("Job")["spec"]["template"]["metadata"]["labels"] != labels


def test_a_disruption_leaves_a_node() -> None:
    replicas = manifest("Deployment")["spec"]["replicas"]
    assert 0 < manifest("PodDisruptionBudget")["spec"]["minAvailable"] < replicas


def test_a_pod_has_time_to_drain() -> None:
    container = pod("Deployment")["containers"][0]
    told = {one["name"]: one.get("value") for one in container["env"]}
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = pause + int(told["FAIRLANE_DRAIN_SECONDS"]) + 10
    assert pod("Deployment")["terminationGracePeriodSeconds"] > needed


def test_ports_and_volumes_have_the_names_that_refer_to_them() -> None:
    spec = pod("Deployment")
    (container,) = spec["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": PORT}
    assert manifest("Service")["spec"]["ports"][0]["targetPort"] in ports
    probes = [container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")]
    assert {probe["httpGet"]["port"] for probe in probes} <= set(ports)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert manifest("Service")["metadata"]["name"] in {
        one.get("value") for one in container["env"] if one["name"] == "FAIRLANE_ALLOWED_HOSTS"
    }


def test_commands_in_the_manifests_are_commands() -> None:
    assert parse(pod("Deployment")["containers"][0]["args"]).command == "serve"
    assert parse(pod("Job")["containers"][0]["args"]).name == "admin"


# -------------------------------------------------------------------- systemd


def unit() -> list[tuple[str, str]]:
    lines = (DEPLOY / "fairlane.service").read_text("utf-8").splitlines()
    parts = (line.partition("=") for line in lines if line and line[0] not in "#[")
    return [(key, value) for key, _, value in parts]


def test_the_unit_gives_the_server_time_to_drain() -> None:
    settings = dict(unit())
    told = dict(word.split("=", 1) for word in settings["Environment"].split())
    assert set(told) - known_settings() == set()
    assert int(settings["TimeoutStopSec"]) >= int(told["FAIRLANE_DRAIN_SECONDS"]) + 10
    assert settings["Restart"] == "on-failure", "a server whose store was moved exits with 6"
    # Callers wait for the restart, and it must also happen after a long loss of the database.
    assert (settings["RestartSec"], settings["StartLimitIntervalSec"]) == ("500ms", "0")
    assert parse(settings["ExecStart"].split()[1:]).command == "serve"


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "fairlane.service").read_text("utf-8")
    # The program is not installed here, and the user may not exist.
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", text)
    (tmp_path / "fairlane.service").write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "fairlane.service"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ours = [line for line in ran.stderr.splitlines() if "fairlane.service" in line]
    assert ours == []
