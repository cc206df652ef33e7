"""The echo adapter on a whole Mooring: a cluster of three roles on a process host, grown, drained, used and ended.

The adapter's way to the platform loses answers, by the same faults as in the conformance suite.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse
from mooring_adapter.conformance.fault_proxy import (
    ConnectionDropped,
    FaultProxy,
    ForwardingBackend,
    ProxyFaults,
)
from mooring_workload.bundle import key_at, public_half
from tests.e2e.full_platform import FullPlatform

PART = Path(__file__).resolve().parents[2] / "adapters" / "echo"
NAME = "parrot"


def bundle(place: FullPlatform) -> Path:
    """What `mooring install` takes: the manifest, the script, and the adapter's key."""
    script = (PART / "mooring_echo" / "echo_node.py").read_bytes()
    (place.apps / "echo_node.py").write_bytes(script)
    (place.apps / "echo_node.py").chmod(0o644)
    app = {
        "bundle": 1,
        "app": {"slug": "echo", "display_name": "Echo", "category": "web"},
        "adapter_key": public_half(key_at(place.directory / "echo.key")),
        "artifacts": {"script": {"kind": "blob", "location": "file:echo_node.py"}},
        "manifest": json.loads((PART / "manifest.json").read_text(encoding="utf-8")),
    }
    (place.apps / "echo.json").write_text(json.dumps(app), encoding="utf-8")
    return place.apps / "echo.json"


@pytest.fixture(scope="module")
def place(full_platform: FullPlatform) -> Iterator[FullPlatform]:
    """The platform, with the echo adapter running on it."""
    file = bundle(full_platform)
    full_platform.platform.did("install", str(file), context="platform")
    full_platform.platform.did("install", str(file), "--project", full_platform.platform.project_id)
    url = full_platform.platform.mooring.url
    proxy = FaultProxy(ForwardingBackend(url), ProxyFaults(after=every_fifth_answer_is_lost()))
    command = [
        sys.executable,
        "-m",
        "mooring_echo",
        "--url",
        proxy.start(),
        "--key-file",
        str(full_platform.directory / "echo.key"),
        "--audience",
        f"{url}/api/v1/oauth/token",
    ]
    with (full_platform.directory / "echo.log").open("ab") as log:
        adapter = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield full_platform
    finally:
        adapter.terminate()
        adapter.wait(timeout=120)
        proxy.stop()


def every_fifth_answer_is_lost() -> Callable[[ApiRequest, int, ApiResponse], ApiResponse]:
    """A way to the platform on which answers get lost when what was asked for is done."""
    numbers = count(1)

    def lose(request: ApiRequest, number: int, answer: ApiResponse) -> ApiResponse:
        if "/instances/" in request.path and request.method == "POST" and next(numbers) % 5 == 0:
            raise ConnectionDropped
        return answer

    return lose


def did(place: FullPlatform, *words: str) -> Any:
    return place.platform.did("instances", *words, "--project", place.platform.project_id)


def members(place: FullPlatform, component: str) -> list[dict[str, Any]]:
    listed = did(place, "members", "list", NAME)
    return [each for each in listed if each["component_key"] == component and each["status"] != "removed"]


def test_a_cluster_grows_drains_shrinks_answers_and_ends_with_clean_receipts(place: FullPlatform) -> None:
    running = place.launch("echo", NAME, "--region", "process")
    assert [each["name"] for each in running["endpoints"]] == ["web"]
    assert place.entered("web").ask("GET", "/echo?text=ahoy").text == "ahoy"

    place.over(NAME, did(place, "members", "add", NAME, "--component", "worker", "--count", "1")["id"])
    first, second = members(place, "worker")
    assert (first["status"], second["status"]) == ("ready", "ready")
    place.over(NAME, did(place, "members", "drain", NAME, second["id"])["id"])
    assert members(place, "worker")[1]["status"] == "drained"
    place.over(NAME, did(place, "members", "remove", NAME, second["id"], "--yes")["id"])
    assert len(members(place, "worker")) == 1

    asked = did(place, "actions", "act", NAME, "echo.say", "--input", '{"text": "hello"}', "--wait", "60")
    said = place.over(NAME, asked["id"])
    assert said["output"] == {"text": "hello"}, said
    place.over(NAME, did(place, "restart", NAME)["id"])

    proofs = place.stopped(NAME)
    assert len(proofs) >= 3
    assert all(place.receipt(each["receipt_id"])["clean"] for each in proofs)
