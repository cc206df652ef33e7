"""Project networks: a bridge in a network namespace of its own per project, never in the machine's.

The namespace is held by a mount below the agent's state directory, so it needs no process and stands when the agent
does not. Nothing in it has an address: it carries packets between the members of one project, knows no route and
meets no other network. A member's cable has one end there and the other, `eth0`, in the sandbox.
"""

import contextlib
import hashlib
import ipaddress
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from mooring_agent.birth import kernel
from mooring_agent.hosts.contract import HostFailure, Network

T = TypeVar("T")

BRIDGE: Final = "bridge0"
_TOOL_SECONDS: Final = 60.0


def link_name(allocation_id: str) -> str:
    """The project's end of a sandbox's cable; names of links are short."""
    return "m" + hashlib.sha256(allocation_id.encode()).hexdigest()[:12]


def place_of(networks: Path, name: str) -> Path:
    """The directory of a project's network."""
    return networks / hashlib.sha256(name.encode()).hexdigest()[:16]


def inside(namespace: str, action: Callable[[], T]) -> T:
    """Do something in a network namespace, in a thread that ends with it, so that nothing else of this process is
    there."""
    outcome: list[T] = []
    problems: list[OSError] = []

    def enter() -> None:
        try:
            descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                kernel.setns(descriptor, kernel.CLONE_NEWNET)
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


def _tool(argv: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise HostFailure("host_error", f"{argv[0]}: {problem}") from problem
    if done.returncode:
        raise HostFailure("host_error", f"{' '.join(argv)}: {done.stderr.strip()[:500]}")
    return done.stdout


def _ip(namespace: str, lines: list[str]) -> None:
    _tool(["nsenter", f"--net={namespace}", "ip", "-batch", "-"], "".join(f"{line}\n" for line in lines))


def is_mounted(path: Path) -> bool:
    """Whether a namespace is held here."""
    name = str(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(line.split(" ")[4] == name for line in file)


def links(namespace: str) -> list[str]:
    """The names of the links in a network namespace."""

    def read() -> list[str]:
        with open("/proc/thread-self/net/dev", encoding="ascii", errors="replace") as file:
            return [line.partition(":")[0].strip() for line in file if ":" in line]

    return inside(namespace, read)


def ensure(networks: Path, network: Network) -> Path:
    """Have the project's namespace and its bridge; the path that holds the namespace."""
    if not is_mounted(networks):
        # Shared with whoever copies the machine's mounts, so that taking one away takes it away everywhere.
        kernel.bind(str(networks), str(networks))
        kernel.mount("none", str(networks), "", kernel.MS_SHARED)
    directory = place_of(networks, network.name)
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "name").write_text(network.name)
    namespace = directory / "namespace"
    if not is_mounted(namespace):
        namespace.touch(mode=0o600)
        _tool(["unshare", f"--net={namespace}", "true"])
    present = links(str(namespace))
    lines = ["link set lo up"]
    if BRIDGE not in present:
        lines.append(f"link add {BRIDGE} type bridge")
    lines += [f"link set {BRIDGE} addrgenmode none", f"link set {BRIDGE} up"]
    _ip(str(namespace), lines)
    return namespace


def attach(networks: Path, network: Network, link: str, pid: int) -> None:
    """Give the sandbox whose init this is its cable and its address; a cable that a crash left half done is made
    anew."""
    namespace = ensure(networks, network)
    interface = ipaddress.ip_interface(f"{network.address}/{ipaddress.ip_network(network.subnet).prefixlen}")
    own = f"/proc/{pid}/ns/net"
    if link in links(str(namespace)) and "eth0" not in links(own):
        _ip(str(namespace), [f"link del {link}"])
    if link not in links(str(namespace)):
        _ip(str(namespace), [f"link add {link} type veth peer name eth0 netns {pid}"])
    _ip(str(namespace), [f"link set {link} addrgenmode none", f"link set {link} master {BRIDGE} up"])
    _ip(own, ["link set lo up", f"addr replace {interface} dev eth0", "link set eth0 up"])


def raise_loopback(pid: int) -> None:
    """A sandbox without a project network still has its own loopback."""
    _ip(f"/proc/{pid}/ns/net", ["link set lo up"])


def detach(networks: Path, name: str, link: str) -> bool:
    """Take a sandbox's cable away; whether there was one."""
    namespace = place_of(networks, name) / "namespace"
    if not is_mounted(namespace) or link not in links(str(namespace)):
        return False
    with contextlib.suppress(HostFailure):
        # The kernel may take it away first, with the sandbox's namespace.
        _ip(str(namespace), [f"link del {link}"])
    return True


def remove(networks: Path, name: str) -> bool:
    """Take a project's network away if nobody is connected to it; whether it is gone."""
    directory = place_of(networks, name)
    namespace = directory / "namespace"
    if is_mounted(namespace):
        if any(each not in ("lo", BRIDGE) for each in links(str(namespace))):
            return False
        kernel.unmount(str(namespace))
    for each in (namespace, directory / "name"):
        each.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        directory.rmdir()
    remove_empty(networks)
    return True


def remove_empty(networks: Path) -> None:
    """Without any network the mount that they are below is not needed either."""
    if is_mounted(networks) and not any(networks.iterdir()):
        kernel.unmount(str(networks))


def known(networks: Path) -> dict[str, str]:
    """Every network that has a directory: its name by the name of the directory."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for directory in networks.iterdir():
            with contextlib.suppress(OSError):
                found[directory.name] = (directory / "name").read_text()
    return found
