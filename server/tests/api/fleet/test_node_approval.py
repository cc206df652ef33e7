"""A machine that must be accepted gets no work before; what it reports is compared with the plan and with its past."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from mooring.commands.fleet.node_approval import attest
from mooring.gateways.attestation import Attestation, AttestationCommand, Verdict
from mooring.workers.attestation import AttestationWorker
from server.tests.conftest import World
from server.tests.support.agents import ENROLMENTS, MachineKeys, new_token
from server.tests.support.allocation_site import make_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NODES = "/api/v1/platform/nodes"


async def joined(world: World, **token: Any) -> MachineKeys:
    """A machine that has joined with a token of this plan."""
    machine, client = MachineKeys(), world.client()
    answer = await client.post(ENROLMENTS, json=machine.request(await new_token(world.admin, **token)))
    assert answer.status_code == 201, answer.text
    machine.node_id = answer.json()["node_id"]
    return machine


async def node(world: World, machine: MachineKeys) -> dict[str, Any]:
    return dict((await world.admin.get(f"{NODES}/{machine.node_id}")).json())


async def judged(world: World, command: str) -> None:
    """One pass of the worker with this attestation command."""
    services = world.running.platform.services
    settings = replace(services.settings, node_attestation_command=command)
    await AttestationWorker(replace(services, settings=settings)).tick()


async def test_a_machine_that_nobody_accepted_gets_no_work(world: World) -> None:
    site = await make_site(world)
    machine = await joined(world, approval="required")
    assert (await machine.report(world.client()))["status"] == "pending"
    asked = await site.ask(await site.fleet.sku(gpu_model="made-up"), gpu_count=1)
    await site.look()
    assert (await site.get(asked["id"]))["status"] == "requested"
    seen = await node(world, machine)
    assert (seen["takes_work"], seen["needs_attention"]) == (False, True)
    assert [each["code"] for each in seen["why"]] == ["approval_missing"]
    assert {"approve", "reject"} <= set(seen["allowed_moves"])
    approved = await world.admin.post(f"{NODES}/{machine.node_id}/approve")
    assert (approved.status_code, approved.json()["status"]) == (200, "ready")
    await site.look()
    placed = await site.get(asked["id"])
    assert placed["node_id"] == machine.node_id


async def test_a_rejected_machine_is_out_for_good(world: World) -> None:
    machine = await joined(world, approval="required")
    await machine.report(world.client())
    body = {"reason": "nobody ordered this machine"}
    rejected = await world.admin.post(f"{NODES}/{machine.node_id}/reject", json=body)
    assert (rejected.status_code, rejected.json()["status"]) == (200, "retired")
    assert (await machine.exchange(world.client())).status_code == 401
    again = await world.admin.post(f"{NODES}/{machine.node_id}/approve")
    assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")


async def test_a_machine_that_is_not_what_was_expected_waits_also_with_an_automatic_token(world: World) -> None:
    planned = {"gpu_model": "made-up", "gpu_count": 2, "name_pattern": "machine-*"}
    fits = await joined(world, expects=planned)
    assert (await fits.report(world.client()))["status"] == "ready"
    other = await joined(world, expects=planned | {"gpu_count": 8, "name_pattern": "rack-*"})
    taken = await other.report(world.client())
    assert taken["status"] == "pending"
    assert [each["code"] for each in taken["findings"]] == ["unexpected_gpu_count", "unexpected_name"]
    approved = (await world.admin.post(f"{NODES}/{other.node_id}/approve")).json()
    assert (approved["status"], approved["needs_attention"]) == ("ready", False)


async def test_a_machine_that_lost_something_is_flagged_until_somebody_accepts_it(world: World) -> None:
    machine = await joined(world)
    await machine.report(world.client(), 4, facts={"machine": "a"})
    for _ in range(2):
        taken = await machine.report(world.client(), 3, cpus=8, facts={"machine": "b"})
        assert [each["code"] for each in taken["findings"]] == ["gpus_lost", "cpus_lost", "machine_changed"]
    assert (await node(world, machine))["needs_attention"]
    accepted = await world.admin.post(f"{NODES}/{machine.node_id}/acknowledge")
    assert (accepted.status_code, accepted.json()["needs_attention"]) == (200, False)
    assert (await machine.report(world.client(), 3, cpus=8, facts={"machine": "b"}))["findings"] == []


async def test_the_attestation_command_decides_by_its_exit_code(world: World) -> None:
    for command, status in (("true", "ready"), ("false", "retired"), ("sh -c 'exit 7'", "pending")):
        machine = await joined(world, approval="required")
        await machine.report(world.client())
        await judged(world, command)
        seen = await node(world, machine)
        assert seen["status"] == status, command
    await judged(world, "true")
    assert (await node(world, machine))["status"] == "pending", "it is asked once about each inventory"
    await machine.report(world.client(), 3)
    await judged(world, "true")
    assert (await node(world, machine))["status"] == "ready"


async def test_a_verdict_is_about_the_report_that_the_command_saw(world: World) -> None:
    machine, services = await joined(world, approval="required"), world.running.platform.services
    await machine.report(world.client(), 2)

    class Slow(AttestationCommand):
        """It takes its time, in which the machine reports something else."""

        async def run(self, facts: Mapping[str, Any]) -> Attestation:
            await machine.report(world.client(), len(facts["inventory"]["gpus"]) + 1)
            return Attestation(Verdict.ACCEPTED, "two GPUs, as ordered")

    await attest(services, Slow((), 1.0), 10)
    seen = await node(world, machine)
    assert (seen["status"], len(seen["slots"])) == ("pending", 3)
    await judged(world, "true")
    assert (await node(world, machine))["status"] == "ready"


async def test_only_a_machine_that_waits_is_judged(world: World) -> None:
    machine = await joined(world)
    await machine.report(world.client())
    await judged(world, "false")
    assert (await node(world, machine))["status"] == "ready"
