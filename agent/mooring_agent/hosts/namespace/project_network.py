"""Project networks: per project a bridge in a network namespace of its own, never in the machine's.

Each member's init holds the namespace open, so it needs no process and no mount, survives the agent, and is gone with
its last member. Nothing in it has an address: it forwards packets between the members of one project, has no routes,
and is connected to no other network. A member's veth pair has one end there and the other, `eth0`, in the sandbox.
"""

import contextlib
import hashlib
import ipaddress
import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from mooring_agent.hosts.contract import HostFailure, Network
from mooring_agent.kernel import proc, syscalls

T = TypeVar("T")

BRIDGE: Final = "bridge0"
_TOOL_SECONDS: Final = 60.0


def link_name(allocation_id: str) -> str:
    """The project's end of a sandbox's veth pair; interface names must be short."""
    return "m" + hashlib.sha256(allocation_id.encode()).hexdigest()[:12]


def run_inside(namespace: str, action: Callable[[], T]) -> T:
    """Run an action in a network namespace, in a thread of its own so that the rest of this process stays outside."""
    outcome: list[T] = []
    problems: list[OSError] = []

    def enter() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
            finally:
                os.close(descriptor)
            outcome.append(action())
        except OSError as problem:
            problems.append(problem)

    thread = threading.Thread(target=enter, name="namespace")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return outcome[0]


def run_tool(argv: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise HostFailure("host_error", f"{argv[0]}: {problem}") from problem
    if done.returncode:
        raise HostFailure("host_error", f"{' '.join(argv)}: {done.stderr.strip()[:500]}")
    return done.stdout


def run_ip(namespace: str, lines: list[str]) -> None:
    run_tool(["nsenter", f"--net={namespace}", "ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def ip_json(namespace: str, *words: str) -> list[dict[str, Any]]:
    """What `ip` lists under these words."""
    text = run_tool(["nsenter", f"--net={namespace}", "ip", "-j", *words])
    listed: list[dict[str, Any]] = json.loads(text or "[]")
    return [each for each in listed if each]


def list_links(namespace: str) -> list[str]:
    return run_inside(namespace, proc.network_links)


def attach(namespace: str, network: Network, link: str, pid: int) -> None:
    """Connect a sandbox, by its init, to the project's network and set its address.

    What a crash left half done is done again from the start.
    """
    interface = ipaddress.ip_interface(f"{network.address}/{ipaddress.ip_network(network.subnet).prefixlen}")
    sandbox_namespace = f"/proc/{pid}/ns/net"
    present = list_links(namespace)
    lines = [] if BRIDGE in present else [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} addrgenmode none"]
    lines.append(f"link set {BRIDGE} up")
    if link in present and "eth0" not in list_links(sandbox_namespace):
        lines.append(f"link del {link}")
        present.remove(link)
    if link not in present:
        lines.append(f"link add {link} type veth peer name eth0 netns {pid}")
    lines += [f"link set {link} addrgenmode none", f"link set {link} master {BRIDGE} up"]
    run_ip(namespace, lines)
    switch_off_ipv6(sandbox_namespace, "eth0")
    run_ip(sandbox_namespace, ["link set lo up", f"addr replace {interface} dev eth0", "link set eth0 up"])


def switch_off_ipv6(namespace: str, name: str) -> None:
    """Nobody uses it, and the kernel would look for each of 2^64 neighbours, in one table for the whole machine."""
    with contextlib.suppress(FileNotFoundError):  # this kernel has no IPv6
        file = Path("/proc/sys/net/ipv6/conf", name, "disable_ipv6")
        run_inside(namespace, lambda: file.write_text("1"))


def remove_link(namespace: str, link: str) -> bool:
    """Remove a veth pair by either end; returns whether it existed."""
    if link not in list_links(namespace):
        return False
    with contextlib.suppress(HostFailure):
        # The kernel may be faster, if one of the two namespaces is just ending.
        run_ip(namespace, [f"link del {link}"])
    return True
