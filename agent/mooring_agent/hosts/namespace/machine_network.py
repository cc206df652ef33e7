"""The network of a whole-machine sandbox: a namespace of its own, routed through the machine.

A veth pair connects the sandbox to the machine. What it sends leaves with the machine's address, within a policy: no
address of the machine itself, no link-local address (a cloud's metadata service among them), no network that the
operator names, and only by the machine's uplinks. What arrives at the machine's address on one of the sandbox's ports,
and that no program of the machine listens on, is forwarded to it. Inside, the machine's address is the sandbox's own.

Each sandbox has one nft table on the machine and one in its own namespace, which a flush of the machine's rules does
not reach. A table is replaced as a whole, so that everything here can be repeated after a crash.
"""

import contextlib
import hashlib
import ipaddress
import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.namespace import forwarding_guard, nft_tables, project_network, uid_ranges
from mooring_agent.hosts.namespace.forwarding_guard import LINK_PREFIX
from mooring_agent.hosts.namespace.sandbox_disk import find_program

Mode = Literal["routed", "shared"]

PORTS: Final = "1024-65535"
POOL: Final = "198.19.0.0/16"
"""Link addresses; a part of the range for benchmarks (RFC 2544), which no network should use, nor a project's pool."""
DENIED: Final = (
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "192.0.0.0/24",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "224.0.0.0/3",
)
"""This host, loopback, link-local, protocol assignments, metadata services outside of these, multicast and reserved."""
CONNECTIONS: Final = 65_536
_CONNECTION_BUCKETS: Final = 256
_CONNECTION_TABLE: Final = Path("/proc/sys/net/netfilter/nf_conntrack_max")
SHARED_LIMIT: Final = "not enforced: the machine's own network, which its operator allows"
_OWN: Final = "/proc/self/ns/net"
_LINK_BITS: Final = 30
_POOL_BITS: Final = 24
_PORT_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_PROBE: Final = (
    "ip link add mrwprobe type veth peer name eth0 && echo 1 > /proc/sys/net/ipv4/conf/mrwprobe/forwarding && nft -f -"
)


@dataclass(frozen=True, slots=True)
class MachineNetwork:
    """How whole-machine sandboxes get their network, as the operator configured it."""

    mode: Mode | None = None  # none means routed, and refused where the machine cannot
    ports: str = PORTS  # of the machine's address, for the sandbox
    denied: tuple[str, ...] = ()  # networks that it may not reach, besides `DENIED`
    pool: str = POOL
    connections: int = CONNECTIONS  # of a sandbox, in the machine's table of connections
    namespace: str = _OWN  # the machine's, by a path

    def choose(self) -> Mode:
        """The mode of a new sandbox; refused unless the machine can isolate it, or the operator allows sharing."""
        if self.mode == "shared":
            return "shared"
        if reason := unavailable_reason():
            raise HostFailure(
                "refused",
                f"this machine cannot give a whole-machine sandbox a network of its own ({reason}); its operator can "
                "allow the machine's network with `--machine-network shared`",
            )
        return "routed"

    def describe(self) -> str:
        """What the node reports."""
        if self.mode == "shared":
            return "shared"
        reason = unavailable_reason()
        return f"refused: {reason}" if reason else "routed"


@dataclass(frozen=True, slots=True)
class RoutedLink:
    """What one sandbox has on the machine: a link and a table, both named by its allocation, and two addresses."""

    name: str
    table: str
    subnet: str = ""
    address: str = ""  # the machine's, by which others reach the sandbox; a loopback address means that none do

    @property
    def gateway(self) -> str:
        """The machine's end."""
        return str(ipaddress.ip_network(self.subnet)[1])

    @property
    def inside(self) -> str:
        """The sandbox's end."""
        return str(ipaddress.ip_network(self.subnet)[2])

    @property
    def own_address(self) -> str:
        return "" if ipaddress.ip_address(self.address).is_loopback else self.address


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The machine's interfaces to other machines, and its addresses."""

    names: tuple[str, ...]
    mtu: int
    targets: tuple[str, ...]  # the addresses where packets for the sandbox arrive
    addresses: tuple[str, ...]  # every IPv4 address of the machine


def link_of(label: str, allocation_id: str, subnet: str = "", address: str = "") -> RoutedLink:
    """The names on the machine: several agents may share it, and interface names must be short."""
    digest = hashlib.sha256(f"{label}\n{allocation_id}".encode()).hexdigest()[:12]
    return RoutedLink(f"{LINK_PREFIX}{digest}", f"mooring_{label}_{digest}", subnet, address)


def parse_ports(text: str) -> str:
    """Ports and ranges of ports, such as `1024-8079,8081`, in the form that nft reads."""
    ranges = []
    for part in text.split(","):
        match = _PORT_RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 0 < first <= last < 65536:
            raise ValueError(f"`--machine-ports` must be ports such as 1024-8079,8081-65535, not {text!r}")
        ranges.append((first, last))
    ranges.sort()
    if any(later[0] <= earlier[1] for earlier, later in itertools.pairwise(ranges)):
        raise ValueError(f"the ranges of `--machine-ports` must not overlap: {text!r}")
    return ",".join(f"{first}-{last}" if first != last else str(first) for first, last in ranges)


def parse_network(text: str) -> str:
    """A network that sandboxes may not reach."""
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError as error:
        raise ValueError(
            f"`--deny-network` must be an IPv4 network such as 10.20.0.0/16 (IPv6 is never routed): {error}"
        ) from error


def parse_pool(text: str) -> str:
    """The network that link addresses come from."""
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"`--machine-link-pool` must be an IPv4 network such as {POOL}: {error}") from error
    if pool.prefixlen > _POOL_BITS:
        raise ValueError(f"`--machine-link-pool` needs a network of at least /{_POOL_BITS}, not {text}")
    return str(pool)


@cache
def unavailable_reason() -> str:
    """Why this machine cannot route a sandbox; empty if it can, which is tried once in a throw-away namespace."""
    if missing := [name for name in ("nft", "ip", "nsenter", "unshare") if not find_program(name)]:
        return f"missing programs: {', '.join(missing)}"
    link = RoutedLink("mrwprobe", "mooring_probe", "198.19.0.0/30", "192.0.2.1")
    uplinks = Uplinks(("eth0",), 1500, ("192.0.2.1",), ("192.0.2.1",))
    rules = machine_rules(link, uplinks, MachineNetwork()) + sandbox_rules(link, uplinks, MachineNetwork())
    try:
        project_network.run_tool(["unshare", "--net", "sh", "-c", _PROBE], rules + forwarding_guard.rules(["eth0"]))
    except HostFailure as failure:
        return f"this kernel lacks a part of it: {' '.join(failure.detail.rpartition(_PROBE)[2].split())[:120]}"
    return ""


# --- rules ---


def machine_rules(link: RoutedLink, uplinks: Uplinks, settings: MachineNetwork) -> str:
    """The sandbox's table in the machine's namespace.

    Its connections are counted by the lower bits of the source port: the kernel walks through all connections of a
    count whenever a new one comes, and one list of them all would cost milliseconds.
    """
    mine, refuse = f'"{link.name}"', "reject with icmp type admin-prohibited"
    bucket = max(connections_max(settings) // _CONNECTION_BUCKETS, 1)
    return f"""
table inet {link.table}
delete table inet {link.table}
table inet {link.table} {{
    {_set("uplinks", "ifname", [f'"{name}"' for name in uplinks.names])}
    {_set("denied", "ipv4_addr", _denied(settings), interval=True)}
    {_set("targets", "ipv4_addr", uplinks.targets)}
    {_set("ports", "inet_service", settings.ports.split(","), interval=True)}
    set busy {{ type inet_service; size {_CONNECTION_BUCKETS}; flags dynamic; }}
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        iifname {mine} ct state established,related accept
        iifname {mine} meta nfproto ipv6 drop
        iifname {mine} reject with icmp type admin-prohibited
    }}
    chain forward {{
        type filter hook forward priority filter - 10; policy accept;
        iifname {mine} jump leaving
        oifname {mine} ct state established,related accept
        oifname {mine} ct status & dnat != dnat drop
        oifname {mine} ct state new jump bounded
    }}
    chain leaving {{
        meta nfproto ipv6 drop
        ip saddr != {link.inside} drop
        ip daddr @denied reject with icmp type admin-prohibited
        oifname != @uplinks reject with icmp type admin-prohibited
        ct state new jump bounded
    }}
    chain bounded {{
        meta l4proto {{ tcp, udp }} add @busy {{ th sport & {_CONNECTION_BUCKETS - 1} ct count over {bucket} }} {refuse}
        meta l4proto != {{ tcp, udp }} ct count over {bucket} {refuse}
    }}
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        iifname @uplinks ip daddr @targets jump arriving
    }}
    chain arriving {{
        socket wildcard 0 return
        socket wildcard 1 return
        tcp dport @ports tcp flags & (fin | syn | rst | ack) == syn dnat ip to {link.inside}
        udp dport @ports dnat ip to {link.inside}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr {link.inside} oifname @uplinks masquerade
    }}
}}
"""


def connections_max(settings: MachineNetwork) -> int:
    """How many connections a sandbox may have: at most half of the machine's table, so that the machine keeps some."""
    try:
        return min(settings.connections, int(_CONNECTION_TABLE.read_text()) // 2)
    except FileNotFoundError:  # the table comes with the first rule that needs it
        return settings.connections


def sandbox_rules(link: RoutedLink, uplinks: Uplinks, settings: MachineNetwork) -> str:
    """The table in the sandbox's own namespace.

    It repeats the policy, for the case that the machine's rules are flushed, and makes the machine's address the
    sandbox's own: a program that binds or dials the address that others know reaches itself.
    """
    foreign = [each for each in uplinks.addresses if each != link.own_address]
    translations = ""
    if link.own_address:
        translations = f"""
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        iifname "eth0" ip daddr {link.inside} dnat ip to {link.own_address}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname "eth0" ip saddr {link.own_address} snat ip to {link.inside}
    }}"""
    return f"""
table inet mooring
delete table inet mooring
table inet mooring {{
    {_set("denied", "ipv4_addr", _denied(settings, foreign), interval=True)}
    chain output {{
        type filter hook output priority filter; policy accept;
        oifname "lo" accept
        meta nfproto ipv6 drop
        ip daddr @denied reject with icmp type admin-prohibited
    }}{translations}
}}
"""


def _set(name: str, kind: str, elements: Sequence[str], *, interval: bool = False) -> str:
    flags = " flags interval;" if interval else ""
    content = f" elements = {{ {', '.join(elements)} }};" if elements else ""
    return f"set {name} {{ type {kind};{flags}{content} }}"


def _denied(settings: MachineNetwork, addresses: Iterable[str] = ()) -> list[str]:
    networks = [ipaddress.IPv4Network(each) for each in (*DENIED, *settings.denied, settings.pool, *addresses)]
    return [str(each) for each in ipaddress.collapse_addresses(networks)]


# --- the machine ---


def claim_subnet(settings: MachineNetwork, link: RoutedLink) -> str:
    """A free subnet for the two ends of the link: the one that it has, unless somebody else uses it."""
    used = [network for name, network in _networks(settings.namespace) if name != link.name]
    pool = ipaddress.IPv4Network(settings.pool)
    count = 1 << (_LINK_BITS - pool.prefixlen)
    # From a random one on: connections of an earlier sandbox that the kernel still tracks do not find a new one.
    first = secrets.randbelow(count)
    offers = (pool[(first + number) % count * 4] for number in range(count))
    candidates = (ipaddress.IPv4Network((address, _LINK_BITS)) for address in offers)
    own = [ipaddress.IPv4Network(link.subnet)] if link.subnet else []
    for candidate in (*own, *candidates):
        if not any(candidate.overlaps(each) for each in used):
            return str(candidate)
    raise HostFailure("capacity", f"every link address of {settings.pool} is in use")


def restrict(settings: MachineNetwork, link: RoutedLink) -> Uplinks:
    """Load the sandbox's rules on the machine, and let its uplinks forward packets."""
    uplinks = read_uplinks(settings.namespace, link.address)
    nft_tables.load(settings.namespace, machine_rules(link, uplinks, settings))
    forwarding_guard.open_for_sandboxes(settings.namespace, uplinks.names)
    return uplinks


def connect(settings: MachineNetwork, link: RoutedLink, pid: int) -> None:
    """Connect a sandbox, by its init, to the machine. What a crash left half done is done again."""
    uplinks = restrict(settings, link)
    sandbox = f"/proc/{pid}/ns/net"
    nft_tables.load(sandbox, sandbox_rules(link, uplinks, settings))
    present = project_network.list_links(settings.namespace)
    lines = []
    if link.name in present and "eth0" not in project_network.list_links(sandbox):
        lines.append(f"link del {link.name}")
        present.remove(link.name)
    if link.name not in present:
        lines.append(f"link add {link.name} type veth peer name eth0 netns {pid}")
    project_network.run_ip(settings.namespace, [*lines, f"link set {link.name} addrgenmode none mtu {uplinks.mtu}"])
    for namespace, name in ((settings.namespace, link.name), (sandbox, "eth0")):
        project_network.switch_off_ipv6(namespace, name)
    lines = [f"addr replace {link.gateway}/{_LINK_BITS} dev {link.name}", f"link set {link.name} up"]
    project_network.run_ip(settings.namespace, lines)
    forwarding_guard.open_link(settings.namespace, link.name, link.subnet)
    own = link.own_address
    inside = ["link set lo up", f"addr replace {link.inside}/{_LINK_BITS} dev eth0"]
    inside += [f"addr replace {own}/32 dev lo"] if own else []
    inside += [f"link set eth0 addrgenmode none mtu {uplinks.mtu} up"]
    inside += [f"route replace default via {link.gateway} dev eth0{f' src {own}' if own else ''}"]
    project_network.run_ip(sandbox, inside)


def release(settings: MachineNetwork, link: RoutedLink) -> None:
    """Remove the link, then its table; with the last sandbox of the machine, forwarding is as it was before."""
    project_network.remove_link(settings.namespace, link.name)
    if link.table in nft_tables.list_tables(settings.namespace):
        nft_tables.load(settings.namespace, f"delete table inet {link.table}\n")
    forwarding_guard.close_unused(settings.namespace)


def strays(settings: MachineNetwork, label: str, known: Iterable[str]) -> Iterator[RoutedLink]:
    """The links of this agent that belong to no allocation that it knows, by their tables."""
    wanted = {link_of(label, each).table for each in known}
    for table in nft_tables.list_tables(settings.namespace):
        if table.startswith(f"mooring_{label}_") and table not in wanted:
            yield RoutedLink(f"{LINK_PREFIX}{table.rpartition('_')[2]}", table)


def locked(registry: Path) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of all agents of the machine: they share its link addresses and its forwarding."""
    return uid_ranges.locked(registry)


def read_uplinks(namespace: str, address: str) -> Uplinks:
    """The interfaces with the machine's address, and those of its default routes."""
    interfaces = project_network.ip_json(namespace, "-4", "address")
    routes = project_network.ip_json(namespace, "-4", "route", "show", "default")
    hops = [hop for route in routes for hop in (route, *route.get("nexthops", ()))]
    by_route = {str(hop["dev"]) for hop in hops if "dev" in hop}
    held = {
        str(each["ifname"]): [str(info["local"]) for info in each.get("addr_info", ()) if "local" in info]
        for each in interfaces
    }
    usable = [name for name in held if name != "lo" and not name.startswith(LINK_PREFIX)]
    names = [name for name in usable if name in by_route or address in held[name]]
    addresses = tuple(each for name in held for each in held[name])
    is_reachable = not ipaddress.ip_address(address).is_loopback
    # An address that the machine does not have itself is translated outside: its packets arrive at an uplink's.
    arriving = (address,) if address in addresses else tuple(each for name in names for each in held[name])
    mtu = min((int(each["mtu"]) for each in interfaces if each["ifname"] in names), default=1500)
    return Uplinks(tuple(names), mtu, arriving if is_reachable else (), addresses)


def _networks(namespace: str) -> Iterator[tuple[str, ipaddress.IPv4Network]]:
    """Every network that the machine has an address in or a route to, by interface."""
    for each in project_network.ip_json(namespace, "-4", "address"):
        for info in each.get("addr_info", ()):
            yield str(each["ifname"]), ipaddress.ip_interface(f"{info['local']}/{info['prefixlen']}").network  # type: ignore[misc]
    for route in project_network.ip_json(namespace, "-4", "route"):
        if route["dst"] != "default":
            yield str(route.get("dev", "")), ipaddress.IPv4Network(route["dst"])
