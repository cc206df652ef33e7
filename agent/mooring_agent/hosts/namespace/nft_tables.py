"""Loading and listing nft rules in a network namespace."""

import json
from typing import Any

from mooring_agent.hosts.namespace import project_network
from mooring_agent.hosts.namespace.sandbox_disk import find_program


def load(namespace: str, rules: str) -> None:
    """Load rules, all of them or none."""
    project_network.run_tool(["nsenter", f"--net={namespace}", find_program("nft"), "-f", "-"], rules)


def list_parts(namespace: str, *words: str) -> list[dict[str, Any]]:
    """What `nft list` knows under these words."""
    text = project_network.run_tool(["nsenter", f"--net={namespace}", find_program("nft"), "-j", "list", *words])
    listed: list[dict[str, Any]] = json.loads(text)["nftables"]
    return listed


def list_tables(namespace: str) -> list[str]:
    """The tables in this namespace that agents made; none where there is no nft to make them."""
    if not find_program("nft"):
        return []
    listed = list_parts(namespace, "tables", "inet")
    names = [str(each["table"]["name"]) for each in listed if "table" in each]
    return [name for name in names if name.startswith("mooring_")]
