"""Forwarding on the machine's uplinks, for whole-machine sandboxes and nobody else.

A routed sandbox needs its uplinks to forward packets. Where that was off, it is switched on behind two walls that drop
what is not for a sandbox: an nft table, and a routing rule that leads what arrives on the uplink to a routing table in
which there are only sandboxes. A restart of the machine's firewall flushes the first, one of its network manager may
flush the second; as long as one stands nothing else is forwarded, and each is restored from the other. Both also say
where forwarding was off before, so that the last sandbox to go switches it off again.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mooring_agent.hosts.namespace import nft_tables, project_network

LINK_PREFIX: Final = "mrw"
TABLE: Final = "mooring_forwarding"
ROUTES: Final = 7_007
"""The number of the routing table; its rule comes after that of the machine's own addresses, and before any other."""
_PRIORITY: Final = 7


def rules(opened: Iterable[str]) -> str:
    """The nft table: these interfaces forward to sandboxes only."""
    names = ", ".join(f'"{name}"' for name in opened)
    return f"""
add table inet {TABLE}
add set inet {TABLE} opened {{ type ifname; }}
add element inet {TABLE} opened {{ {names} }}
add chain inet {TABLE} forward {{ type filter hook forward priority filter - 10; policy accept; }}
flush chain inet {TABLE} forward
add rule inet {TABLE} forward iifname @opened oifname != "{LINK_PREFIX}*" drop
"""


def open_for_sandboxes(namespace: str, uplinks: Iterable[str]) -> None:
    """Let these interfaces forward, behind both walls where that was off; restores a wall that was taken down."""
    by_rules, by_routes = _opened_by_rules(namespace), _opened_by_routes(namespace)
    present = project_network.list_links(namespace)
    closed = [name for name in uplinks if not _forwards(namespace, name)]
    guarded = {name for name in (*by_rules, *by_routes, *closed) if name in present}
    # The walls first, so that no other packet is ever forwarded.
    if guarded - by_rules:
        nft_tables.load(namespace, rules(sorted(guarded)))
    if missing := sorted(guarded - by_routes):
        lines = [f"rule add priority {_PRIORITY} iif {each} lookup {ROUTES}" for each in missing]
        project_network.run_ip(namespace, [f"route replace blackhole default table {ROUTES}", *lines])
    for name in closed:
        _set_forwarding(namespace, name, on=True)


def open_link(namespace: str, link: str, subnet: str) -> None:
    """Let a sandbox's own link forward, and lead packets for it there."""
    project_network.run_ip(namespace, [f"route replace {subnet} dev {link} table {ROUTES}"])
    _set_forwarding(namespace, link, on=True)


def is_whole(namespace: str) -> bool:
    """Whether neither wall lacks what the other has."""
    return _opened_by_rules(namespace) == _opened_by_routes(namespace)


def close_unused(namespace: str) -> None:
    """If no sandbox is left, switch off forwarding where it was switched on here, then take the walls down."""
    tables = nft_tables.list_tables(namespace)
    links = project_network.list_links(namespace)
    if any(name != TABLE for name in tables) or any(name.startswith(LINK_PREFIX) for name in links):
        return
    by_routes = _opened_by_routes(namespace)
    for name in _opened_by_rules(namespace) | by_routes:
        with contextlib.suppress(FileNotFoundError):  # the interface is gone
            _set_forwarding(namespace, name, on=False)
    if TABLE in tables:
        nft_tables.load(namespace, f"delete table inet {TABLE}\n")
    lines = [f"rule del priority {_PRIORITY} iif {name} lookup {ROUTES}" for name in sorted(by_routes)]
    if lines:
        project_network.run_ip(namespace, [*lines, f"route flush table {ROUTES}"])


def _opened_by_rules(namespace: str) -> set[str]:
    if TABLE not in nft_tables.list_tables(namespace):
        return set()
    listed = nft_tables.list_parts(namespace, "set", "inet", TABLE, "opened")
    return {str(name) for each in listed if "set" in each for name in each["set"].get("elem", [])}


def _opened_by_routes(namespace: str) -> set[str]:
    listed = project_network.ip_json(namespace, "-4", "rule")
    ours = [each for each in listed if each.get("priority") == _PRIORITY and str(each.get("table")) == str(ROUTES)]
    return {str(each["iif"]) for each in ours if "iif" in each}


def _forwarding_file(name: str) -> Path:
    return Path("/proc/sys/net/ipv4/conf", name, "forwarding")


def _forwards(namespace: str, name: str) -> bool:
    return project_network.run_inside(namespace, lambda: _forwarding_file(name).read_text().strip() == "1")


def _set_forwarding(namespace: str, name: str, *, on: bool) -> None:
    project_network.run_inside(namespace, lambda: _forwarding_file(name).write_text("1" if on else "0"))
