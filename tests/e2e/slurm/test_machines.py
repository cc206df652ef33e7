"""A cluster of real Slurm over several whole machines, which reach each other by their own addresses."""

from mooring_agent.hosts.namespace.project_network import list_links
from mooring_sdk import models
from tests.e2e.network_namespaces import NAMESPACES, network_namespaces
from tests.e2e.slurm.cluster import SlurmSite, SlurmTenant
from tests.e2e.slurm.sandbox_footprint import SandboxFootprint

THERE = "there"
WHOLE = "whole"
GPUS = 2
PRINT_NODE_AND_GPUS = "echo $SLURMD_NODENAME; ls /dev | grep -c sim"


def test_workers_stand_on_machines_of_their_own_and_reach_the_controller_by_its_machines_address(
    place: SlurmSite, ada: SlurmTenant
) -> None:
    with network_namespaces(3, (place.mooring.port, place.mooring.relay_port)) as networks:
        bare = [list_links(str(NAMESPACES / each.name)) for each in networks]
        machines = [place.join(GPUS, THERE, each.command_prefix) for each in networks]
        nodes = [each.node_id for each in machines]  # a plan counts only machines that are ready
        place.until(lambda: all(place.admin.get_node(each).status == "ready" for each in nodes), "three machines")
        place.admin.create_sku(
            slug=WHOLE,
            display_name="A whole machine",
            shape="baremetal",
            gpu_model="simulated",
            regions=[THERE],
            allowed_gpu_counts=[GPUS],
            price_minor_per_gpu_hour=0,
            currency="EUR",
        )
        whole = models.Placement(sku=WHOLE, gpu_count=GPUS)
        cluster = place.launch(ada, "wide", workers=1, placement=whole).id
        added = ada.client.add_members(ada.project_id, cluster, component="worker", count=1, placement=whole)
        place.over(ada, cluster, added.id)

        members = [*place.members(ada, cluster, "controller"), *place.members(ada, cluster)]
        allocations = [ada.client.get_allocation(ada.project_id, str(each.allocation_id)) for each in members]
        assert len({each.node_id for each in allocations}) == 3
        assert {each.address for each in allocations} == {each.address for each in networks}
        workers = [each.name for each in members[1:]]
        said = place.slurm(ada, cluster, "srun", "--quiet", "-N2", "sh", "-c", PRINT_NODE_AND_GPUS)
        assert sorted(said.lines) == ["1", "1", *sorted(workers)], said.text
        shown = place.slurm(ada, cluster, "sh", "-c", "scontrol -o show node | grep -o NodeAddr=[0-9.]*").lines
        assert sorted(shown) == sorted(f"NodeAddr={each.address}" for each in allocations[1:])

        footprints = [
            SandboxFootprint.of(machine, [each.id])
            for machine in machines
            for each in allocations
            if each.node_id == machine.node_id
        ]
        place.stop(ada, cluster)
        for machine in machines:
            machine.stop()  # it is in the network that the sandbox had
        assert [each.left() for each in footprints] == [[], [], []]
        assert [list_links(str(NAMESPACES / each.name)) for each in networks] == bare
