"""The options of the network of whole-machine sandboxes: what is accepted, and what is refused with a reason."""

import pytest

from mooring_agent.hosts.namespace import machine_network
from mooring_agent.hosts.namespace.machine_network import MachineNetwork, RoutedLink, Uplinks


def test_ports_networks_and_pools_are_normalized_or_refused() -> None:
    assert machine_network.parse_ports("8081-65535, 1024-8079,22") == "22,1024-8079,8081-65535"
    assert machine_network.parse_network("10.20.0.0/16") == "10.20.0.0/16"
    assert machine_network.parse_pool("10.9.0.0/24") == "10.9.0.0/24"
    for text in ("", "0", "70000", "9-8", "1-5,5-9", "ssh", "1;drop"):
        with pytest.raises(ValueError, match="--machine-ports"):
            machine_network.parse_ports(text)
    for text in ("", "10.20.0.1/16", "fd00::/8", "10.0.0.0/8 }"):
        with pytest.raises(ValueError, match="--deny-network"):
            machine_network.parse_network(text)
    for text in ("10.9.0.0/25", "x"):
        with pytest.raises(ValueError, match="--machine-link-pool"):
            machine_network.parse_pool(text)


def test_a_network_that_the_operator_denies_is_denied_on_the_machine_and_inside() -> None:
    settings = MachineNetwork(denied=("10.20.0.0/16",))
    link = RoutedLink("mrw1", "mooring_1", "198.19.0.0/30", "192.0.2.7")
    uplinks = Uplinks(("eth0",), 1500, ("192.0.2.7",), ("192.0.2.7", "10.1.1.1"))
    inside = machine_network.sandbox_rules(link, uplinks, settings)
    for rules in (machine_network.machine_rules(link, uplinks, settings), inside):
        assert "10.20.0.0/16" in rules
        assert "169.254.0.0/16" in rules
    assert "10.1.1.1/32" in inside  # another address of the machine


def test_a_node_reports_how_its_whole_machines_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_network, "unavailable_reason", lambda: "")
    assert (MachineNetwork().describe(), MachineNetwork("shared").describe()) == ("routed", "shared")
    monkeypatch.setattr(machine_network, "unavailable_reason", lambda: "missing programs: nft")
    assert MachineNetwork().describe() == "refused: missing programs: nft"
