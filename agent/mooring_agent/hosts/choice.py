"""Which host an agent uses."""

from pathlib import Path

from mooring_agent.hosts.contract import Host
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.hosts.process import ProcessHost


def host_for(kind: str, directory: Path, node_id: str) -> Host:
    """The host of this kind below the agent's state directory."""
    if kind == "namespace":
        return NamespaceHost(directory / "host", node_id)
    if kind == "process":
        return ProcessHost(directory / "host", node_id)
    raise ValueError(f"there is no host {kind!r}")
