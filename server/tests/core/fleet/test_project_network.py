"""Networks of projects on nodes: one subnet each, no address twice, and nothing is handed on while it is used."""

from hypothesis import given
from hypothesis import strategies as st

from mooring.core.fleet.project_network import (
    NetworkPlan,
    NodeNeighbour,
    NodeNetworks,
    ProjectNetwork,
    plan_network,
    pool_of,
)
from mooring.core.kernel.decision import Insert, Update
from server.tests.support.decision_context import NOW, TENANT, context

HERE = context()


def network(number: int, project_id: str) -> ProjectNetwork:
    return ProjectNetwork(f"net_{number:03}", "nod_1", TENANT, project_id, f"10.64.{number}.0/24", 4, NOW)


def plan(seen: NodeNetworks, project_id: str = "p1", count: int = 1, *, single: bool = False) -> NetworkPlan | None:
    owner = {"node_id": "nod_1", "tenant_id": TENANT, "project_id": project_id}
    return plan_network(HERE, seen, pool_of(None), count, **owner, single=single)


def test_the_first_project_gets_the_first_subnet() -> None:
    made = plan(NodeNetworks(), count=2)
    assert made is not None
    assert (made.subnet, made.addresses) == ("10.64.0.0/24", ("10.64.0.2", "10.64.0.3"))
    assert isinstance(made.write, Insert)


def test_a_project_stays_in_its_network_and_touches_it() -> None:
    neighbours = (NodeNeighbour("a", "p1", "one", "10.64.3.2"), NodeNeighbour("b", "p2", "two", "10.64.0.2"))
    made = plan(NodeNetworks((network(0, "p2"), network(3, "p1")), neighbours))
    assert made is not None
    assert (made.subnet, made.addresses) == ("10.64.3.0/24", ("10.64.3.3",))
    assert made.peers == neighbours[:1]
    assert made.write == Update("project_network", "net_003", 4, {})


def test_a_machine_that_keeps_nobody_apart_hands_its_network_on_when_it_is_empty() -> None:
    used = NodeNetworks((network(0, "p2"),), (NodeNeighbour("a", "p2", "one", "10.64.0.2"),))
    assert plan(used, single=True) is None
    made = plan(NodeNetworks((network(0, "p2"),)), single=True)
    assert made is not None
    assert made.write == Update("project_network", "net_000", 4, {"tenant_id": TENANT, "project_id": "p1"})


def test_a_full_subnet_has_no_room() -> None:
    there = tuple(NodeNeighbour(str(host), "p1", "any", f"10.64.0.{host}") for host in range(2, 255))
    assert plan(NodeNetworks((network(0, "p1"),), there)) is None
    assert plan(NodeNetworks((network(0, "p1"),), there[1:])) is not None


def test_a_node_may_name_its_own_part_of_the_addresses() -> None:
    assert str(pool_of("10.200.0.0/16")) == "10.200.0.0/16"
    for wrong in ("10.0.0.1/8", "192.168.0.0/16", "10.0.0.0/30", "nonsense", "::/0", None, ""):
        assert str(pool_of(wrong)) == "10.64.0.0/10"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 3)), max_size=30))
def test_no_two_have_one_address_and_no_two_projects_one_subnet(asked: list[tuple[str, int]]) -> None:
    networks: dict[str, ProjectNetwork] = {}
    neighbours: list[NodeNeighbour] = []
    for project_id, count in asked:
        made = plan(NodeNetworks(tuple(networks.values()), tuple(neighbours)), project_id, count)
        assert made is not None
        networks[project_id] = ProjectNetwork(f"net_{project_id}", "nod_1", TENANT, project_id, made.subnet, 0, NOW)
        neighbours += [NodeNeighbour(f"{len(neighbours)}-{each}", project_id, "any", each) for each in made.addresses]
    addresses = [each.address for each in neighbours]
    assert len(set(addresses)) == len(addresses)
    assert len({each.subnet for each in networks.values()}) == len(networks)
