"""TLS to a pinned address: the name of the URL is asked for and has to be in the certificate.

In a process of its own, because which authorities are trusted is read once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificates with openssl"
)

ROOT = Path(__file__).parents[2]

ASKING = """
import asyncio, ssl, sys
from fairlane.core.errors import ExecutionFailed
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from tests.outbound.receivers import http, listening

async def main(certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked = []
    context.sni_callback = lambda _, name, __: asked.append(name)

    async def lookup(_):
        return ["127.0.0.1"]

    guard = Guard(["127.0.0.1"], lookup=lookup)
    async with listening(tls=context) as listener, Sender(guard) as sender:
        for host in ("good.test", "bad.test", "127.0.0.1"):
            url = f"https://{host}:{listener.port}/"
            try:
                answer = await sender.post(
                    url, body=b"", headers={}, timeout_seconds=20
                )
                print(host, answer.status)
            except ExecutionFailed as error:
                print(host, type(error.__cause__).__name__)
        print("asked", *asked)
        print("hosts", *[line.split(b" ")[1].split(b":")[0].decode()
              for request in listener.requests
              for line in request.split(b"\\r\\n") if line.startswith(b"Host:")])

asyncio.run(main(*sys.argv[1:]))
"""


def test_the_name_is_kept_for_the_handshake_the_certificate_and_the_request(
    tmp_path: Path,
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subject = ["-nodes", "-subj", "/CN=good.test", "-addext", "subjectAltName=DNS:good.test"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *subject, *files], check=True, capture_output=True)
    environment = {**os.environ, "SSL_CERT_FILE": str(certificate), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", ASKING, str(certificate), str(key)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "good.test 200",
        "bad.test SSLCertVerificationError",
        "127.0.0.1 SSLCertVerificationError",
        "asked good.test bad.test None",
        "hosts good.test",
    ]
