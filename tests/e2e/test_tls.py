"""`mooring up --tls` as a whole: the command, a real agent and the relay over TLS, with certificates that end soon."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooring_sdk import models
from tests.e2e.test_up import MooringUp, begun, done, place
from tests.support.waiting import until_sync
from tools.ports import free_port

pytestmark = pytest.mark.real_part("postgresql")
CERTIFICATE_SECONDS = 6


@dataclass
class TlsUp(MooringUp):
    """`mooring up --tls`, with client certificates of nodes that last for seconds."""

    relay_port: int = 0

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.layout.tls / "ca.crt"

    @property
    def client_certificate(self) -> bytes:
        return (self.layout.node / "client.pem").read_bytes()

    def start_with_tls(self, **environment: str) -> None:
        self.relay_port = free_port()
        self.start(
            "This machine is a node",
            adapters=False,
            MOORING_TLS="local",
            MOORING_RELAY_LISTEN_PORT=str(self.relay_port),
            MOORING_NODE_CERTIFICATE_HOURS=str(CERTIFICATE_SECONDS / 3_600),
            **environment,
        )


def test_a_machine_works_over_tls_while_its_certificates_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    with place("process") as plain:
        up = TlsUp(plain.directory, plain.host)
        try:
            monkeypatch.setenv("MOORING_CA_FILE", str(up.ca_file))
            works_over_tls(up)
        finally:
            if up.process is not None:
                up.stop()


def works_over_tls(up: TlsUp) -> None:
    up.start_with_tls()
    first = up.client_certificate
    project, held = begun(up)
    said = run_in_sandbox(up, project, held, "--ca-file", str(up.ca_file))
    assert said.returncode == 0, said.stderr
    assert "through the relay" in said.stdout
    untrusting = run_in_sandbox(up, project, held)
    assert untrusting.returncode != 0
    assert "certificate" in untrusting.stderr.lower()
    assert page_without_session(up) == 401
    admin, ada = up.clients()
    with admin, ada:
        # Tasks go on while the certificate is renewed under the agent's polls: each is done once.
        count = 0
        shown = {first}
        until = time.monotonic() + 120
        while len(shown) < 3:
            assert time.monotonic() < until, "the certificate is not renewed"
            arguments = {"argv": ["/bin/sh", "-c", "echo done >> tally"], "directory": "/tmp"}
            done(ada, project, held, "process.run", arguments)
            count += 1
            shown.add(up.client_certificate)
        arguments = {"argv": ["/usr/bin/wc", "-l", "tally"], "directory": "/tmp"}
        assert done(ada, project, held, "process.run", arguments).last_lines == [f"{count} tally"]
    # An agent that was away for longer than its certificate lasts comes back by its own key.
    stopped_at = time.time()
    assert up.stop(signal.SIGINT) == 0
    until_sync(lambda: time.time() > stopped_at + CERTIFICATE_SECONDS)
    up.start_with_tls(MOORING_PUBLIC_URL="https://mooring.example")  # for others; this machine uses its own address
    admin, ada = up.clients()
    with admin, ada:
        looked = done(ada, project, held, "process.run", {"argv": ["/bin/cat", "count"], "directory": "/tmp"})
        assert looked.last_lines == ["started"]
        ada.release_allocation(project.id, held.id)
        until_sync(lambda: ada.get_allocation(project.id, held.id).status == "released")


def run_in_sandbox(
    up: TlsUp, project: models.Project, held: models.Allocation, *options: str
) -> "subprocess.CompletedProcess[str]":
    """`cat` by `mooring exec`, through the relay."""
    words = up.directory / "words"
    words.write_text("through the relay\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(up.directory),
        "MOORING_URL": up.url,
        "MOORING_TOKEN": (up.directory / "ada").read_text(),
    }
    command = [sys.executable, "-m", "mooring_cli", "exec", *options, "--project", project.id, held.id, "--", "cat"]
    with words.open("rb") as stdin:
        return subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, check=False)


def page_without_session(up: TlsUp) -> int:
    """The status of an endpoint's page for a browser without a session; its certificate must be for that name."""
    trusted = ssl.create_default_context(cafile=str(up.ca_file))
    name = f"e-{'0' * 26}.apps.localhost"
    with (
        socket.create_connection(("127.0.0.1", up.relay_port), timeout=30) as plain,
        trusted.wrap_socket(plain, server_hostname=name) as secure,
    ):
        secure.sendall(f"GET / HTTP/1.1\r\nHost: {name}:{up.relay_port}\r\n\r\n".encode())
        return int(secure.recv(1_000).split()[1])
