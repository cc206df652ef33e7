"""The first real apps, from the catalog to the receipt: launched by the command, used through the platform, stopped."""

import base64
import json
import os
import socket
import uuid
from typing import Any

import pytest

from agent.tests.support.busybox_image import BUSYBOX
from mooring_agent.containers.podman import Podman
from tests.e2e.full_platform import EndpointVisitor, FullPlatform
from tools.app_images import image_of

pytestmark = pytest.mark.real_part("apps")
KERNEL_SECONDS = 120


def needs_containers() -> None:
    if not Podman.on_this_machine() or not os.access(BUSYBOX, os.X_OK):
        pytest.skip("containers need root, podman, runc and conmon")


def clean(place: FullPlatform, name: str) -> None:
    """Stop it; each member's node looked, and found nothing."""
    proofs = place.stopped(name)
    assert proofs
    for proof in proofs:
        receipt = place.receipt(proof["receipt_id"])
        assert receipt["clean"] is True, receipt
    over = place.platform.did("instances", "get", name, "--project", place.platform.project_id)
    assert (over["status"], over["teardown_proof"]) == ("stopped", "receipts")


def test_hello_runs_without_root_as_a_process_and_its_page_is_read_through_the_platform(
    full_platform: FullPlatform,
) -> None:
    place = full_platform
    place.install("hello")
    wanted = ("--version", "1.0.0", "--config", "greeting=Ahoy & welcome")
    running = place.launch("hello", "greeter", "--region", "process", *wanted)
    assert [each["name"] for each in running["endpoints"]] == ["web"]
    page = place.entered("web").ask("GET", "/")
    assert page.status_code == 200
    assert "Ahoy &amp; welcome" in page.text
    read = place.written("greeter")
    assert read["kind"] == "service"
    assert read["text"].startswith("hello listens on "), read
    assert read["next_offset"] == read["size"]
    clean(place, "greeter")


def test_an_instance_is_changed_in_every_way_and_its_members_say_what_they_run(full_platform: FullPlatform) -> None:
    place = full_platform
    place.install("hello")
    place.install("hello", version="1.2.0")
    place.launch("hello", "lively", "--region", "process", "--version", "1.0.0", "--topology", "web=2")
    first, second = place.members("lively")
    place.changed("lively", "members", "drain", "lively", second["id"])
    back = place.platform.did("instances", "members", "resume", "lively", second["id"], *place.project)
    assert back["status"] == "ready"
    place.changed("lively", "reconcile", "lively")
    place.changed("lively", "members", "replace", "lively", first["id"])
    place.changed("lively", "restart", "lively")
    place.changed("lively", "upgrade", "lively", "--version", "1.2.0")
    assert {(each["status"], each["version"]) for each in place.members("lively")} == {("ready", "1.2.0")}
    place.changed("lively", "rollback", "lively")
    standing = place.members("lively")
    assert {(each["status"], each["version"]) for each in standing} == {("ready", "1.0.0")}
    reached = place.platform.did("instances", "get", "lively", *place.project)["endpoints"]
    assert {each["member_id"] for each in reached} == {each["id"] for each in standing}
    assert first["id"] not in {each["id"] for each in standing}
    clean(place, "lively")


def test_hello_runs_in_a_container_where_there_are_some(full_platform: FullPlatform) -> None:
    needs_containers()
    place = full_platform
    where = place.pushed("hello", image_of("hello"))
    place.install("hello", {"image": where}, version="1.1.0")
    place.launch("hello", "boxed", "--region", "namespace", "--version", "1.1.0")
    (member,) = place.platform.did("instances", "members", "list", "boxed", "--project", place.platform.project_id)
    assert (member["status"], member["adapter_detail"]["runs_as"]) == ("ready", "container")
    assert "Hello from Mooring" in place.entered("web").ask("GET", "/").text
    clean(place, "boxed")


def test_jupyterlab_is_launched_used_with_its_token_and_stopped(full_platform: FullPlatform) -> None:
    needs_containers()
    place = full_platform
    place.install("jupyter", {"image": place.pushed("jupyter", image_of("jupyter"))})
    place.launch("jupyter", "lab", "--region", "namespace")
    visitor = place.entered("lab")
    refused = visitor.ask("GET", "/api/kernels")
    assert refused.status_code == 403, refused.text
    assert visitor.ask("GET", "/api/kernels", Authorization="token wrong").status_code == 403
    words = ("instances", "secrets", "reveal", "lab", "access-token", "--project", place.platform.project_id)
    token = place.platform.did(*words)["value"]
    page = visitor.ask("GET", f"/lab?token={token}")
    assert page.status_code == 200
    assert "<title>JupyterLab</title>" in page.text
    assert calculated(visitor, token, "1 + 1") == "2"
    assert token not in place.said()
    clean(place, "lab")


def calculated(visitor: EndpointVisitor, token: str, expression: str) -> str:
    """What a new kernel makes of an expression, asked over its WebSocket."""
    entry = {"Authorization": f"token {token}"}
    made = visitor.ask("POST", "/api/kernels", b"{}", **entry)
    assert made.status_code == 201, made.text
    path = f"/api/kernels/{made.json()['id']}/channels"
    address, _, port = visitor.relay.removeprefix("http://").partition(":")
    with socket.create_connection((address, int(port)), timeout=KERNEL_SECONDS) as line:
        denied = upgraded(line, visitor, path, {})
        assert denied.startswith(b"HTTP/1.1 403"), denied
    with socket.create_connection((address, int(port)), timeout=KERNEL_SECONDS) as line:
        assert upgraded(line, visitor, path, entry).startswith(b"HTTP/1.1 101")
        sent = uuid.uuid4().hex
        header = {"msg_id": sent, "username": "", "session": "s", "msg_type": "execute_request", "version": "5.3"}
        content = {"code": expression, "silent": False, "store_history": False, "user_expressions": {}}
        request = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        send(line, json.dumps(request).encode())
        while True:
            message: dict[str, Any] = json.loads(received(line))
            if message["parent_header"].get("msg_id") != sent:
                continue
            assert message["msg_type"] != "error", message
            if message["msg_type"] == "execute_result":
                return str(message["content"]["data"]["text/plain"])


def upgraded(line: socket.socket, visitor: EndpointVisitor, path: str, headers: dict[str, str]) -> bytes:
    """Ask for a WebSocket; the head of the answer."""
    headers = {
        "Host": visitor.host,
        "Cookie": visitor.cookie,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Origin": f"http://{visitor.host}",
        **headers,
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    line.sendall("\r\n".join(lines).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        part = line.recv(1)
        assert part, head
        head += part
    return head


def send(line: socket.socket, text: bytes) -> None:
    """One text frame, masked with nothing."""
    line.sendall(bytes((129, 128 | 126)) + len(text).to_bytes(2, "big") + bytes(4) + text)


def received(line: socket.socket) -> bytes:
    """The next text; what is said about the connection itself is passed over."""
    whole = b""
    while True:
        first, second = exactly(line, 2)
        length = second & 127
        if length > 125:
            length = int.from_bytes(exactly(line, 2 if length == 126 else 8), "big")
        data = exactly(line, length)
        if first & 15 in (0, 1, 2):
            whole += data
            if first & 128:
                return whole


def exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        assert part, "the line was cut"
        data += part
    return data
