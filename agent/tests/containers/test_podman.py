"""podman's configuration follows what the machine has."""

from pathlib import Path

from mooring_agent.containers.podman import Podman, network_backend


def test_podman_is_not_pointed_at_a_program_that_the_machine_lacks(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    assert network_backend((here, there)) == "cni"
    (there / "netavark").touch()
    assert network_backend((here, there)) == "netavark"


def test_podman_keeps_its_networks_below_the_agents_own_directory(tmp_path: Path) -> None:
    podman = Podman(tmp_path / "containers")
    podman.prepare()
    written = (tmp_path / "containers" / "containers.conf").read_text(encoding="utf-8")
    assert f'network_backend = "{network_backend()}"' in written
    assert f'network_config_dir = "{tmp_path}/containers/networks"' in written
