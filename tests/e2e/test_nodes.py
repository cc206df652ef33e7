"""From a machine that joins to a receipt: a real platform, a real agent, real sandboxes."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mooring_sdk import errors
from tests.e2e.agent_platform import AgentPlatform, running_agent_platform

HOSTS = ("process", "namespace") if os.geteuid() == 0 else ("process",)
HERE = ["/bin/sh", "-c"]


@pytest.fixture(scope="module", params=HOSTS)
def place(request: pytest.FixtureRequest) -> Iterator[AgentPlatform]:
    """A platform with one machine of each kind of host that this account can have."""
    with running_agent_platform() as made:
        made.offer()
        made.join(request.param)
        yield made


@pytest.fixture
def box(place: AgentPlatform) -> Iterator[Any]:
    """An active allocation, released at the end with a clean receipt."""
    project = place.projects[0]
    allocation = place.allocate(project)
    yield allocation
    machine = place.machines[0]
    if machine.process is None or machine.process.poll() is not None:
        machine.start()
    if place.tenant_admin.get_allocation(project.id, allocation.id).status == "active":
        place.tenant_admin.release_allocation(project.id, allocation.id)
    over = place.until(lambda seen: seen.status in ("released", "release_failed"), project, allocation.id)
    assert (over.status, over.teardown_proof) == ("released", "receipts"), machine.said()[-3000:]


def test_a_program_runs_in_its_sandbox_and_says_so(place: AgentPlatform, box: Any) -> None:
    ran = place.do(place.projects[0], box, "process.run", {"argv": [*HERE, "echo hello; exit 3"]})
    assert (ran.status, ran.failure_code, ran.exit_code) == ("failed", "exited", 3)
    assert ran.last_lines == ["hello"]
    assert ran.correlation_id.startswith("cor_")


def test_the_whole_output_of_a_program_can_be_read(place: AgentPlatform, box: Any) -> None:
    ran = place.do(place.projects[0], box, "process.run", {"argv": [*HERE, "seq 1 20000"]})
    said, offset = "", 0
    while len(said) < ran.log_bytes:
        part = place.tenant_admin.get_task_log(place.projects[0].id, ran.id, offset=offset)
        assert part.next_offset > offset
        said, offset = said + part.text, part.next_offset
    assert said.splitlines() == [str(number) for number in range(1, 20_001)]
    assert ran.last_lines[-1] == "20000"


def test_paths_that_leave_the_sandbox_are_refused_before_a_node_hears_of_them(place: AgentPlatform, box: Any) -> None:
    for path in ("/../etc/shadow", "/a/../../b", "relative", "/a\u0000b", "/" + "x" * 5_000):
        with pytest.raises(errors.ValidationFailed):
            place.do(place.projects[0], box, "files.write", {"files": [{"path": path, "content": "x"}]})


def test_a_link_that_leads_out_is_not_followed(place: AgentPlatform, box: Any) -> None:
    project = place.projects[0]
    planted = place.do(project, box, "process.run", {"argv": ["/bin/ln", "-s", "/etc", "out"], "directory": "/tmp"})
    assert planted.status == "succeeded", planted
    written = place.do(project, box, "files.write", {"files": [{"path": "/tmp/out/mooring-was-here", "content": "x"}]})
    assert (written.status, written.failure_code) == ("failed", "path_refused"), written
    assert not os.path.exists("/etc/mooring-was-here")


def test_an_agent_that_is_killed_goes_on_with_what_it_started(place: AgentPlatform, box: Any) -> None:
    project, machine = place.projects[0], place.machines[0]
    counted = "echo started >> count; while [ ! -e go ]; do sleep 0.1; done; cat count"
    made = place.tenant_admin.create_allocation_task(
        project.id, box.id, type="process.run", arguments={"argv": [*HERE, counted], "directory": "/tmp"}
    )
    seen = made
    while seen.status != "claimed" or seen.log_bytes is None:
        seen = place.tenant_admin.get_task(project.id, made.id, wait=10, changed_from=seen.etag)
    wait_for_start(place, box)
    machine.stop(signal.SIGKILL)
    machine.start()
    place.do(project, box, "files.write", {"files": [{"path": "/tmp/go", "content": ""}]}, label="other")
    ended = place.ended(project, made.id)
    assert (ended.status, ended.last_lines) == ("succeeded", ["started"]), machine.said()[-2000:]


def wait_for_start(place: AgentPlatform, box: Any) -> None:
    """Until the program that counts has begun; another owner looks, so that it waits for nobody."""
    looks = "for i in $(seq 1200); do [ -s /tmp/count ] || [ -s tmp/count ] && exit 0; sleep 0.1; done; exit 1"
    found = place.do(place.projects[0], box, "process.run", {"argv": [*HERE, looks], "directory": "/"}, label="looks")
    assert found.status == "succeeded", found


def test_an_agent_that_is_killed_while_it_creates_and_destroys_ends_the_same(place: AgentPlatform) -> None:
    project, machine = place.projects[0], place.machines[0]
    asked = place.tenant_admin.create_allocation(
        project.id, sku="gpu-slice", shape="gpu_slice", gpu_count=1, name="box"
    )
    kill_when_claimed(place, asked.id, "sandbox.create")
    box = place.until(lambda seen: seen.status == "active", project, asked.id)
    assert place.do(project, box, "process.run", {"argv": ["/bin/true"]}).status == "succeeded"
    place.tenant_admin.release_allocation(project.id, box.id)
    kill_when_claimed(place, box.id, "sandbox.destroy")
    over = place.until(lambda seen: seen.status in ("released", "release_failed"), project, box.id)
    assert (over.status, over.teardown_proof) == ("released", "receipts"), machine.said()[-3000:]


def kill_when_claimed(place: AgentPlatform, allocation_id: str, type: str) -> None:
    """Kill the agent as soon as it holds this task, whatever it is doing with it by then, and start another."""
    project, machine = place.projects[0], place.machines[0]
    while True:
        tasks = place.tenant_admin.list_tasks(project.id, allocation_id=allocation_id).items
        if any(each.type == type and each.first_claimed_at is not None for each in tasks):
            break
    machine.stop(signal.SIGKILL)
    machine.start()


def test_the_receipt_can_be_verified_offline(place: AgentPlatform) -> None:
    project = place.projects[0]
    allocation = place.allocate(project)
    place.do(project, allocation, "process.run", {"argv": ["/bin/true"]})
    place.tenant_admin.release_allocation(project.id, allocation.id)
    over = place.until(lambda seen: seen.status == "released", project, allocation.id)
    bundle = place.tenant_admin.export_receipt(project.id, over.receipt_id)
    file = place.directory / "receipt.json"
    file.write_bytes(encoded(bundle))
    verified = run_cli("receipts", "verify", str(file))
    assert verified.returncode == 0, verified.stderr
    assert allocation.id in verified.stdout
    spoiled = json.loads(encoded(bundle))
    body = base64.urlsafe_b64decode(spoiled["receipts"][-1]["body"] + "===").replace(
        b'"remaining":[]', b'"remaining":[0]'
    )
    spoiled["receipts"][-1]["body"] = base64.urlsafe_b64encode(body).rstrip(b"=").decode()
    file.write_text(json.dumps(spoiled))
    assert run_cli("receipts", "verify", str(file)).returncode != 0


def encoded(value: Any) -> bytes:
    """What the API answered, as JSON."""
    return msgspec.json.encode(value)


def run_cli(*words: str) -> "subprocess.CompletedProcess[str]":
    """The command, without a server or a context."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
    command = [sys.executable, "-m", "mooring_cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_request_that_does_not_fit_says_why_and_what_would(place: AgentPlatform) -> None:
    explanation = place.tenant_admin.explain_allocation(
        place.projects[0].id, sku="gpu-slice", shape="gpu_slice", gpu_count=4, region="here"
    )
    assert json.loads(encoded(explanation))


def test_what_is_in_one_project_is_not_seen_from_another(place: AgentPlatform, box: Any) -> None:
    with pytest.raises(errors.NotFound):
        place.tenant_admin.get_allocation(place.projects[1].id, box.id)
