"""What the image and the pods run, run here: the same commands, variables, checks and signals."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest

from tests.e2e.asking import Asker
from tests.e2e.processes import FAIRLANE, Programs
from tests.unit.test_deployment import PORT, image_environment, only, pod, stages

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Program

pytestmark = pytest.mark.slow

READY = r"fairlane is listening on (http://\S+)\n"


def port_of(server: Program) -> str:
    return server.url.rpartition(":")[2]


def health(server: Program) -> int:
    """The exit code of the image's health check."""
    words = json.loads(only(stages()[-1], "HEALTHCHECK").partition("CMD ")[2])
    program, option, code = words
    assert (program, option) == ("python", "-c")
    environment = {**os.environ, "FAIRLANE_PORT": port_of(server)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, timeout=30, env=environment).returncode


async def test_the_image_serves_drains_and_keeps_its_data(
    programs: Programs, tmp_path: Path
) -> None:
    told = {
        name: text.replace("/data", str(tmp_path)) for name, text in image_environment().items()
    }
    del told["PATH"]
    told |= {"FAIRLANE_HOST": "127.0.0.1", "FAIRLANE_PORT": "0"}  # nothing else may reach a test
    assert json.loads(only(stages()[-1], "ENTRYPOINT")) == ["fairlane"]
    command = [str(FAIRLANE), *json.loads(only(stages()[-1], "CMD"))]
    server = programs.add("image", command, READY, variables=told)
    await server.start()
    assert health(server) == 0
    async with Asker(server) as asker:
        task = await asker.sleep(1500)
        await asker.until_tasks([task], state="running")
        server.send(signal.SIGTERM)
        assert await server.end() == 0
    assert health(server) != 0
    await server.start()
    async with Asker(server) as asker:
        assert (await asker.task(task))["state"] == "done"
    assert (tmp_path / "fairlane.db").exists()


def secrets(store: str) -> dict[str, str]:
    return {"store": store, "secret-key": base64.b64encode(bytes(32)).decode()}


def environment(kind: str, store: str) -> dict[str, str]:
    """The variables of a pod, with the Secret that an operator creates."""
    found = {}
    for one in pod(kind)["containers"][0]["env"]:
        reference = one.get("valueFrom", {}).get("secretKeyRef")
        found[one["name"]] = secrets(store)[reference["key"]] if reference else one["value"]
    return found


def probe(server: Program, name: str) -> int:
    """The status that a probe gets, sent as the kubelet sends it."""
    asked = pod("Deployment")["containers"][0][f"{name}Probe"]["httpGet"]
    headers = {one["name"]: one["value"] for one in asked["httpHeaders"]}
    headers["Host"] = headers["Host"].replace(str(PORT), port_of(server))
    request = urllib.request.Request(server.url + asked["path"], headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


async def test_a_pod_passes_its_probes_and_drains(
    programs: Programs, tmp_path: Path, fresh_postgres: str
) -> None:
    arguments = [
        word.replace("$(FAIRLANE_STORE)", fresh_postgres)
        for word in pod("Job")["containers"][0]["args"]
    ]
    told = {**environment("Job", fresh_postgres), "XDG_DATA_HOME": str(tmp_path)}
    job = programs.add("job", [str(FAIRLANE), *arguments], r"(fl_\S+)", variables=told)
    job.begin()
    assert await job.end() == 0, job.output()

    told = {**environment("Deployment", fresh_postgres), "FAIRLANE_PORT": "0"}
    command = [str(FAIRLANE), *pod("Deployment")["containers"][0]["args"]]
    server = programs.add("pod", command, READY, variables=told)
    await server.start()
    assert [probe(server, name) for name in ("startup", "liveness", "readiness")] == [200] * 3
    async with Asker(server) as asker:
        assert (await asker.get("/tasks")).status == 401
    server.send(signal.SIGTERM)
    assert await server.end() == 0
