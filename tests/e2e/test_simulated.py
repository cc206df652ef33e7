"""A fleet that is only imagined: whole agents over the simulated host, in one process, at a real platform."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.agent_platform import AgentPlatform, running_agent_platform

COUNT = 20


@pytest.fixture(scope="module")
def place() -> Iterator[AgentPlatform]:
    """A platform whose only machines are simulated."""
    with running_agent_platform() as made:
        made.offer()
        token = made.directory / "admin-token"
        token.write_text(made.admin.create_token(name="fleet").token)
        with SimulatedFleet(made, token, "fleet"):
            yield made


class SimulatedFleet:
    """The program with its fleet, until the end of the block."""

    def __init__(self, place: AgentPlatform, token: Path, prefix: str, *more: str) -> None:
        command = [
            sys.executable,
            "-m",
            "mooring_agent",
            "simulate",
            "--url",
            place.mooring.url,
            "--count",
            str(COUNT),
            "--token-file",
            str(token),
            "--region",
            "here",
            "--name-prefix",
            prefix,
            *more,
        ]
        self._log = (place.directory / f"{prefix}.log").open("wb")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)

    def __enter__(self) -> list[str]:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line.strip())
            if "agents run" in line:
                return said
        raise AssertionError(Path(self._log.name).read_text())

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(timeout=180) == 0
        self._log.close()


def nodes_of(place: AgentPlatform, prefix: str) -> list[Any]:
    return [each for each in place.admin.iter_nodes() if each.name.startswith(f"{prefix}-")]


def test_all_of_them_join_and_say_that_they_are_simulated(place: AgentPlatform) -> None:
    found = nodes_of(place, "fleet")
    assert len(found) == COUNT
    assert {each.host for each in found} == {"simulated"}
    assert {each.labels["simulated"] for each in found} == {"true"}


def test_a_task_runs_and_the_receipt_of_its_sandbox_says_simulated(place: AgentPlatform) -> None:
    project = place.projects[0]
    allocation = place.allocate(project)
    assert allocation.host == "simulated"
    ran = place.do(project, allocation, "process.run", {"argv": ["/opt/exit-3"]})
    assert (ran.status, ran.exit_code) == ("failed", 3)
    assert all("simulated" in line for line in ran.last_lines)
    assert ran.last_lines
    place.tenant_admin.release_allocation(project.id, allocation.id)
    over = place.until(lambda seen: seen.status == "released", project, allocation.id)
    assert over.teardown_proof == "receipts"
    receipt = place.tenant_admin.get_receipt(project.id, over.receipt_id)
    assert (receipt.document["host"], receipt.clean) == ("simulated", True)
    assert place.tenant_admin.export_receipt(project.id, over.receipt_id).host == "simulated"


def test_many_allocations_are_spread_over_the_fleet_and_given_back(place: AgentPlatform) -> None:
    project = place.projects[1]
    asked = [
        place.tenant_admin.create_allocation(
            project.id, sku="gpu-slice", shape="gpu_slice", gpu_count=4, name=f"box-{number}"
        )
        for number in range(COUNT)
    ]
    standing = [place.until(lambda seen: seen.status == "active", project, each.id) for each in asked]
    assert {each.host for each in standing} == {"simulated"}
    for each in standing:
        place.tenant_admin.release_allocation(project.id, each.id)
    for each in standing:
        over = place.until(lambda seen: seen.status == "released", project, each.id)
        assert over.teardown_proof == "receipts"


def test_a_token_that_may_not_make_nodes_is_turned_away(place: AgentPlatform) -> None:
    token = place.directory / "tenant-token"
    token.write_text(place.token)
    command = [
        sys.executable,
        "-m",
        "mooring_agent",
        "simulate",
        "--url",
        place.mooring.url,
        "--count",
        "2",
        "--token-file",
        str(token),
    ]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "mooring-agent: " in refused.stderr
    assert place.token not in refused.stderr + refused.stdout
