"""The program around an adapter, as a process on the simulated platform."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring_adapter import Adapter, Finish, Plan, ReportMember
from mooring_adapter.claim_loop import ClaimLoop
from mooring_adapter.conformance.fake_api import ApiRequest
from mooring_adapter.conformance.simulated_platform import SimulatedPlatform
from mooring_adapter.conformance.suite import read_profile
from mooring_adapter.instance_view import InstanceView, Operation
from mooring_adapter.platform_client import PlatformClient, read_key
from mooring_adapter.program import _once, read_options
from mooring_sdk import AsyncClient, ServiceAccountCredentials
from tests.support.waiting import turns

MANIFEST: dict[str, Any] = {
    "app": "plain",
    "version": "1.0.0",
    "artifacts": {"main": f"sha256:{'ab' * 32}"},
    "components": [{"key": "worker", "min_count": 1, "max_count": 10}],
    "required_actions": ["runtime.claim", "runtime.report", "task.create"],
}
ADAPTER = """
from mooring_adapter import Adapter, Finish, Plan, ReportMember, RunTask, main

def plan(view, operation):
    if view.instance.name == "wrong":
        raise KeyError("a mistake")
    steps = []
    for each in view.concerned(operation):
        steps += [
            ReportMember(step=f"join/{each.id}", member_id=each.id, status="joining"),
            RunTask(step=f"run/{each.id}", member_id=each.id, type="process.run", arguments={"argv": ["true"]}),
            ReportMember(step=f"ready/{each.id}", member_id=each.id, status="ready"),
        ]
    return Plan((*steps, Finish()))

main(Adapter(app_slug="plain", plan=plan))
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[SimulatedPlatform]:
    (tmp_path / "plain.py").write_text(ADAPTER, encoding="utf-8")
    made = SimulatedPlatform(
        [sys.executable, str(tmp_path / "plain.py")], read_profile(MANIFEST, {"patience_seconds": 120})
    )
    yield made
    made.close()


def test_once_does_what_is_due_gives_it_back_and_ends(platform: SimulatedPlatform) -> None:
    platform.adapter.command = [*platform.adapter.command, "--once"]
    instance_id = platform.create_instance("once")
    platform.start_adapter()
    platform.wait_for("the end of the program", lambda: not platform.adapter.is_alive)
    seen = platform.instance(instance_id)
    assert (seen.status, seen.held_by) == ("running", None)


def test_once_does_not_end_before_the_platform_has_answered(platform: SimulatedPlatform) -> None:
    may_answer, paused = threading.Event(), 0

    def hold(asked: ApiRequest, number: int) -> None:
        if asked.path.endswith("/claims"):
            may_answer.wait(platform.profile.patience_seconds)

    def plan(view: InstanceView, operation: Operation) -> Plan:
        members = view.concerned(operation)
        reports = [
            ReportMember(step=f"{status}/{each.id}", member_id=each.id, status=status)
            for each in members
            for status in ("joining", "ready")
        ]
        return Plan((*reports, Finish()))

    async def pause(seconds: float) -> None:
        nonlocal paused
        paused += 1
        if paused == 5:
            may_answer.set()
        await turns()

    async def once() -> None:
        account = next(iter(platform.store.accounts.values()))
        key = read_key((platform.place / "key.pem").read_bytes())
        credentials = ServiceAccountCredentials(account.id, account.key_id, key.private)
        async with AsyncClient(platform.api.address, credentials=credentials) as client:
            await _once(ClaimLoop(Adapter(app_slug="plain", plan=plan), PlatformClient(client, "once")), pause)

    platform.faults.before = hold
    instance_id = platform.create_instance("late")
    try:
        asyncio.run(once())
    finally:
        may_answer.set()
    seen = platform.instance(instance_id)
    assert (seen.status, seen.held_by) == ("running", None)


def test_a_mistake_in_a_plan_fails_its_operation_alone(platform: SimulatedPlatform) -> None:
    wrong, right = platform.create_instance("wrong"), platform.create_instance("right")
    platform.start_adapter()
    ends = {"failed", "running"}
    platform.wait_for("both ends", lambda: {platform.instance(each).status for each in (wrong, right)} == ends)
    assert platform.instance(wrong).failure_code == "adapter_error"
    assert "a mistake" in "".join(platform.adapter.last_lines())


def test_a_task_that_is_refused_for_good_fails_the_operation_with_the_reason(platform: SimulatedPlatform) -> None:
    refused = ADAPTER.replace("process.run", "artifact.fetch").replace('"argv": ["true"]', '"artifact": "of-nobody"')
    Path(platform.adapter.command[1]).write_text(refused, encoding="utf-8")
    instance_id = platform.create_instance("refused")
    platform.start_adapter()
    platform.wait_for("the end of it", lambda: platform.instance(instance_id).status == "failed")
    assert platform.instance(instance_id).failure_code == "artifact_refused"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--url is missing"),
        (["--url", "http://127.0.0.1:1"], "--key-file is missing"),
        (["--url", "http://127.0.0.1:1", "--key-file", "k", "--most", "0"], "between 1 and"),
        (["--url", "http://127.0.0.1:1", "--key-file", "k", "--key-id", "x"], "given together"),
    ],
)
def test_a_missing_option_is_reported_at_the_start(
    words: list[str], why: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOORING_URL", "MOORING_KEY_FILE", "MOORING_KEY_ID", "MOORING_SERVICE_ACCOUNT_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        read_options(words)
    assert why in capsys.readouterr().err


async def test_once_ends_with_the_error_that_ended_its_claim_loop() -> None:
    class Falling(ClaimLoop):
        async def run(self) -> None:
            raise OSError("no room for a log line")

    falling = Falling(Adapter(app_slug="plain", plan=lambda view, operation: Plan(())), cast(Any, None))
    with pytest.raises(OSError, match="no room"):
        await _once(falling, lambda seconds: turns())


def test_plain_http_to_another_machine_is_refused_before_anything_is_sent(
    platform: SimulatedPlatform, tmp_path: Path
) -> None:
    key = tmp_path / "adapter.key"
    private = Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    words = [sys.executable, str(tmp_path / "plain.py"), "--url", "http://10.0.0.1:1", "--key-file", str(key)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    assert "plain http" in done.stderr
    assert "--allow-plain-http" in done.stderr
    assert "Traceback" not in done.stderr
