"""Reaching an app with no port published: HTTP, WebSocket, TCP and an interactive command, all through the relay."""

import base64
import hashlib
import json
import os
import pty
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from mooring_sdk import errors
from tests.e2e.agent_platform import AgentPlatform, running_agent_platform

HOST = "namespace" if os.geteuid() == 0 else "process"
APP = r"""
import base64, hashlib, http.server, json, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            while True:
                head = self.rfile.read(2)
                if len(head) < 2 or head[0] & 15 == 8:
                    self.close_connection = True
                    return
                mask, length = self.rfile.read(4), head[1] & 127
                data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
                self.wfile.write(bytes((129, length)) + data.upper())
        body = json.dumps({"path": self.path, "headers": dict(self.headers)}).encode()
        if self.path == "/large":
            body = b"x" * 5_000_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "app=1; Domain=localhost; Path=/")
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        digest = hashlib.sha256(body).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(digest)))
        self.end_headers()
        self.wfile.write(digest)
    def log_message(self, *words): pass
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
Server(("127.0.0.1", PORT), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def place() -> Iterator[AgentPlatform]:
    """A platform with one machine."""
    with running_agent_platform() as made:
        made.offer()
        made.join(HOST)
        yield made


@pytest.fixture(scope="module")
def box(place: AgentPlatform) -> Iterator[Any]:
    """An allocation in which two web apps run, as two owners."""
    project = place.projects[0]
    allocation = place.allocate(project)
    for name, port in (("web", 18_080), ("side", 18_081)):
        path = f"/tmp/{name}.py"
        program = APP.replace("PORT", str(port))
        written = place.do(
            project, allocation, "files.write", {"files": [{"path": path, "content": program}]}, label=name
        )
        assert written.status == "succeeded", written
        started = place.do(
            project,
            allocation,
            "service.start",
            {
                "name": name,
                "argv": ["/usr/bin/python3", f"{name}.py"],
                "directory": "/tmp",
                "endpoint": {"name": name, "port": port, "protocol": "http"},
            },
            label=name,
        )
        assert started.status == "succeeded", started
        served = place.do(project, allocation, "probe.http", {"port": port, "attempts": 1_000, "interval_seconds": 0.2})
        assert served.status == "succeeded", served
    yield allocation
    place.tenant_admin.release_allocation(project.id, allocation.id)
    over = place.until(lambda seen: seen.status in ("released", "release_failed"), project, allocation.id)
    assert over.status == "released", over


def endpoint(place: AgentPlatform, name: str) -> Any:
    """One of the two endpoints."""
    return next(each for each in place.tenant_admin.iter_endpoints(place.projects[0].id) if each.name == name)


class RelayBrowser:
    """As much of a browser as a test needs: cookies that stay with their host, and the relay's address."""

    def __init__(self, place: AgentPlatform) -> None:
        self.relay = f"http://127.0.0.1:{place.mooring.relay_port}"
        self.cookies: dict[str, str] = {}

    def get(self, url: str, **headers: str) -> httpx.Response:
        """A page of this host."""
        return self.ask("GET", url, b"", headers)

    def ask(self, method: str, url: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        """A request to this host."""
        host = url.split("/")[2]
        sent = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if host in self.cookies:
            sent.setdefault("Cookie", self.cookies[host])
        answer = httpx.request(
            method, url.replace(f"http://{host}", self.relay), headers=sent, content=content, timeout=180
        )
        if "set-cookie" in answer.headers and "mooring_endpoint" in answer.headers["set-cookie"]:
            self.cookies[host] = answer.headers["set-cookie"].partition(";")[0]
        return answer


def opened(place: AgentPlatform, name: str) -> tuple[RelayBrowser, str]:
    """A browser with a session at an endpoint, and the endpoint's origin."""
    app = endpoint(place, name)
    browser = RelayBrowser(place)
    link = place.tenant_admin.open_endpoint(place.projects[0].id, app.id)
    assert browser.get(link.url).status_code == 303
    assert browser.get(link.url).status_code == 401  # it counts once
    return browser, str(app.origin)


def test_a_page_is_read_through_the_relay_and_the_app_sees_nothing_of_the_platforms(
    place: AgentPlatform, box: Any
) -> None:
    browser, origin = opened(place, "web")
    session = browser.cookies[origin.split("/")[2]]
    answer = browser.get(
        origin + "/some/path?x=1", Cookie=f"{session}; theirs=2", Authorization="Bearer mrgp_" + "a" * 40
    )
    echoed = json.loads(answer.content)
    heard = {name.lower(): value for name, value in echoed["headers"].items()}
    assert echoed["path"] == "/some/path?x=1"
    assert heard["cookie"] == "theirs=2"
    assert "authorization" not in heard
    assert heard["host"] == origin.split("/")[2]
    assert answer.headers["set-cookie"] == "app=1; Path=/"
    assert browser.get(origin + "/", Authorization="token of-the-app").json()["headers"]["authorization"]


def test_large_answers_and_bodies_pass_whole(place: AgentPlatform, box: Any) -> None:
    browser, origin = opened(place, "web")
    assert browser.get(origin + "/large").content == b"x" * 5_000_000
    body = os.urandom(3_000_000)
    assert browser.ask("POST", origin + "/", body, {}).text == hashlib.sha256(body).hexdigest()


def test_a_session_counts_at_its_endpoint_alone(place: AgentPlatform, box: Any) -> None:
    browser, origin = opened(place, "web")
    other = str(endpoint(place, "side").origin)
    session = browser.cookies[origin.split("/")[2]]
    assert browser.get(other + "/").status_code == 401
    assert browser.get(other + "/", Cookie=session).status_code == 404
    for headers in ({"Cookie": session}, {"Authorization": f"Bearer {session.partition('=')[2]}"}):
        assert httpx.get(f"{place.mooring.url}/api/v1/whoami", headers=headers, timeout=180).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "cors"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"},
    ],
)
def test_what_another_sites_page_sends_is_refused(place: AgentPlatform, box: Any, headers: dict[str, str]) -> None:
    browser, origin = opened(place, "web")
    assert browser.get(origin + "/", **headers).status_code == 403
    assert browser.get(origin + "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status_code == 200


def test_a_websocket_is_carried_both_ways(place: AgentPlatform, box: Any) -> None:
    browser, origin = opened(place, "web")
    host = origin.split("/")[2]
    with socket.create_connection(("127.0.0.1", place.mooring.relay_port), timeout=180) as line:
        key = base64.b64encode(os.urandom(16)).decode()
        line.sendall(
            f"GET /socket HTTP/1.1\r\nHost: {host}\r\nCookie: {browser.cookies[host]}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Origin: {origin}\r\n\r\n".encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += line.recv(4096)
        assert head.startswith(b"HTTP/1.1 101 ")
        wanted = base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        assert wanted in head
        for word in (b"ahoy", b"again"):
            line.sendall(bytes((129, 128 | len(word), 0, 0, 0, 0)) + word)
            assert line.recv(4096) == bytes((129, len(word))) + word.upper()


def cli_environment(place: AgentPlatform) -> dict[str, str]:
    """The command line of the tenant's admin."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    return {
        **kept,
        "MOORING_URL": place.mooring.url,
        "MOORING_TOKEN": place.token,
        "MOORING_PROJECT": place.projects[0].id,
        "HOME": str(place.directory),
    }


@contextmanager
def connected(place: AgentPlatform, name: str) -> Iterator[int]:
    """`mooring connect`, and the local port that it opened."""
    command = [sys.executable, "-m", "mooring_cli", "-o", "json", "connect", name]
    process = subprocess.Popen(
        command, env=cli_environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = ""
        while "}" not in said:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            said += line
        yield int(json.loads(said)["address"].rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate()


def test_mooring_connect_gives_a_local_port(place: AgentPlatform, box: Any) -> None:
    with connected(place, "web") as port:
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/large", timeout=180).content == b"x" * 5_000_000


def test_mooring_exec_runs_a_command_with_a_terminal_and_its_exit_code(place: AgentPlatform, box: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "mooring_cli",
        "exec",
        box.id,
        "--",
        "/bin/sh",
        "-c",
        "stty size; id -u; read line; echo got:$line; exit 7",
    ]
    main, child = pty.openpty()
    process = subprocess.Popen(command, env=cli_environment(place), stdin=child, stdout=child, stderr=child)
    os.close(child)
    said = read_until(main, b"\n", 2)
    os.write(main, b"ahoy\r")
    said += read_until(main, b"got:ahoy", 1)
    assert process.wait(timeout=180) == 7
    os.close(main)
    lines = said.replace(b"\r", b"").splitlines()
    assert lines[0] == b"24 80"
    if HOST == "namespace":
        assert int(lines[1]) > 0
    rows = list(place.tenant_admin.iter_tenant_audit(place.tenant.id, action="instance.exec"))
    assert any(row.after and "read line" in str(row.after.get("argv")) for row in rows)


ATTEND = """
import asyncio, json, os, sys
from mooring_cli.exec_command import attend
sys.exit(asyncio.run(attend(json.loads(os.environ["TICKET"]), terminal=False)))
"""


def test_a_command_in_a_pipeline_has_clean_output_its_errors_apart_and_its_exit_code(
    place: AgentPlatform, box: Any
) -> None:
    script = "echo of errors >&2; tty; cat; exit 9"
    ticket = place.tenant_admin.exec_allocation(
        place.projects[0].id, box.id, argv=["/bin/sh", "-c", script], terminal=False
    )
    ticket_json = json.dumps({"relay_url": ticket.relay_url, "ticket": ticket.ticket})
    long = "x" * 300_000 + "\n"
    ran = subprocess.run(
        [sys.executable, "-c", ATTEND],
        env={**cli_environment(place), "TICKET": ticket_json},
        input=long,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"not a tty\n{long}", "of errors\n", 9)


def read_until(descriptor: int, wanted: bytes, count: int) -> bytes:
    """What a terminal shows until something has appeared so often."""
    said, deadline = b"", time.monotonic() + 180
    while said.count(wanted) < count:
        assert time.monotonic() < deadline, said
        if select.select([descriptor], [], [], 1.0)[0]:
            said += os.read(descriptor, 4096)
    return said


def test_no_command_runs_as_root(place: AgentPlatform, box: Any) -> None:
    for user in ("root", "0", "0:0", "00"):
        with pytest.raises(errors.ValidationFailed):
            place.tenant_admin.exec_allocation(place.projects[0].id, box.id, argv=["id"], user=user)


def test_a_port_that_nobody_serves_and_an_address_outside_are_not_reached(place: AgentPlatform, box: Any) -> None:
    project = place.projects[0]
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        probed = place.do(project, box, "probe.tcp", {"port": port, "attempts": 1})
        assert (probed.status, probed.failure_code) == ("failed", "probe_failed")
        declared = place.do(
            project,
            box,
            "service.start",
            {
                "name": "liar",
                "argv": ["/bin/sleep", "600"],
                "endpoint": {"name": "liar", "port": port, "protocol": "tcp"},
            },
            label="liar",
        )
        assert declared.status == "succeeded"
        liar = endpoint(place, "liar")
        command = [sys.executable, "-m", "mooring_cli", "connect", liar.id]
        attempt = subprocess.run(
            command, env=cli_environment(place), capture_output=True, text=True, timeout=180, check=False
        )
        assert attempt.returncode != 0
        assert "inside the sandbox" in attempt.stderr
        outside.settimeout(0.2)
        with pytest.raises(TimeoutError):
            outside.accept()


def test_a_viewer_who_may_only_look_gets_no_way_in(place: AgentPlatform, box: Any) -> None:
    project, app = place.projects[0], endpoint(place, "web")
    with place.member("project_viewer", project) as viewer:
        assert viewer.get_endpoint(project.id, app.id).name == "web"
        for refused in (
            lambda: viewer.open_endpoint(project.id, app.id),
            lambda: viewer.connect_endpoint(project.id, app.id),
            lambda: viewer.exec_allocation(project.id, box.id, argv=["id"]),
        ):
            with pytest.raises(errors.PermissionDenied):
                refused()


def test_a_session_ends_with_the_right_that_it_came_from(place: AgentPlatform, box: Any) -> None:
    project, app = place.projects[0], endpoint(place, "web")
    with place.member("project_member", project) as member:
        link = member.open_endpoint(project.id, app.id)
        browser = RelayBrowser(place)
        assert browser.get(link.url).status_code == 303
        assert browser.get(str(app.origin) + "/").status_code == 200
        user = member.get_whoami().id
        place.tenant_admin.disable_tenant_user(place.tenant.id, user)
        deadline = time.monotonic() + 180
        while browser.get(str(app.origin) + "/").status_code != 401:
            assert time.monotonic() < deadline
