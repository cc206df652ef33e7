"""`mooring-agent`: enrol a machine, run its agent, or simulate many machines.

The one-time token is read from a file or from standard input, never from the command line, where others could see it.
"""

import argparse
import asyncio
import ctypes
import fcntl
import getpass
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mooring_agent import log_context, simulate
from mooring_agent.agent import Agent, AgentParts, NodeRetired
from mooring_agent.containers.container_tasks import create_container_tasks
from mooring_agent.containers.podman import Podman
from mooring_agent.control_plane.addresses import check_local_address, check_platform_url, local_address
from mooring_agent.control_plane.client_certificate import FILE_NAME, ClientCertificate
from mooring_agent.control_plane.keys import load_or_create_keys
from mooring_agent.control_plane.platform_client import EnrolmentRequest, Rejected, Unreachable, enrol
from mooring_agent.control_plane.tls import PlatformTls, with_trust
from mooring_agent.control_plane.trust import Identity, read_identity, store_identity
from mooring_agent.gpu_metrics import GpuSampler
from mooring_agent.hosts.namespace import NamespaceHost, visible_usr
from mooring_agent.hosts.namespace import machine_network as machine_networks
from mooring_agent.hosts.namespace.io_budget import IoBudget
from mooring_agent.hosts.namespace.machine_network import MachineNetwork
from mooring_agent.hosts.namespace.sandbox_disk import DISK_BYTES
from mooring_agent.hosts.select import check_host_requirements, create_host
from mooring_agent.inventory import collect_inventory, fact_text
from mooring_agent.supervisor.log_room import RESERVE_BYTES
from mooring_agent.tasks.handlers import HANDLERS
from mooring_agent.tasks.journal import Journal

STATE: Final = "MOORING_AGENT_STATE_DIR"
CA_FILE: Final = "MOORING_CA_FILE"
PR_SET_PDEATHSIG: Final = 1
GIB: Final = 1 << 30
MIB: Final = 1 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    log_context.configure(options.log_level.upper())
    try:
        if options.command == "enrol":
            return _enrol(options)
        if options.command == "simulate":
            return simulate.run(options)
        if options.command == "purge":
            return _purge(options)
        return _run(options)
    except (NodeRetired, Rejected, Unreachable, OSError, ValueError) as error:
        print(f"mooring-agent: {error}", file=sys.stderr)
        return 1


def _enrol(options: argparse.Namespace) -> int:
    check_platform_url(options.url, allow_insecure=options.allow_insecure)
    tls = PlatformTls(_ca_file(options), options.allow_insecure)
    tls.context_for(options.url)  # a file that cannot be read is refused before anything is created
    check_host_requirements(options.host)
    directory: Path = options.state_dir
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    enrolled = read_identity(directory)
    if enrolled is not None and not options.again:
        raise ValueError(
            f"{directory} is already enrolled as {enrolled.node_id} at {enrolled.url}; use `--again` to enrol it again"
        )
    token = _read_token(options.token_file)
    labels = dict(_label(text) for text in options.label)
    keys = load_or_create_keys(directory)
    (directory / FILE_NAME).unlink(missing_ok=True)  # of the node that this machine was before
    tls.certificate = ClientCertificate(directory / FILE_NAME)
    introduction = EnrolmentRequest(options.name, options.host, labels, None if enrolled is None else enrolled.node_id)
    identity = with_trust(asyncio.run(enrol(options.url, token, keys, introduction, tls=tls)), tls)
    if enrolled is not None and identity.node_id != enrolled.node_id:
        archive_journal(directory, enrolled.node_id)
    store_identity(directory, identity)
    print(f"enrolled as {identity.node_id} ({options.name}, host {options.host})")
    return 0


def archive_journal(directory: Path, node_id: str) -> None:
    """Keep the journal of the node that this machine was before: the new node starts a receipt chain of its own."""
    for path in directory.glob("journal.sqlite*"):
        path.rename(directory / path.name.replace("journal", f"journal-{node_id}", 1))


def _read_token(default_directory: str) -> str:
    """Read the one-time token; on a terminal, prompt for it without echo."""
    if default_directory != "-":
        return Path(default_directory).read_text().strip()
    return (getpass.getpass("One-time token: ") if sys.stdin.isatty() else sys.stdin.read()).strip()


def _run(options: argparse.Namespace) -> int:
    check_host_requirements(options.host)
    directory: Path = options.state_dir
    identity = read_identity(directory)
    if identity is None:
        raise ValueError(f"{directory} is not enrolled: run `mooring-agent enrol` first")
    if options.end_with_parent:
        end_with_parent()
    identity = _with_options(identity, options)
    with _locked(directory):
        journal = Journal(directory / "journal.sqlite")
        try:
            address = check_local_address(options.address) if options.address else local_address(identity.url)
            disk = int(options.sandbox_disk_gib * GIB)
            network = _machine_network(options)
            added_usr = visible_usr.parse(options.sandbox_usr)
            host = create_host(
                options.host,
                directory,
                identity.node_id,
                disk_bytes=disk,
                reserve_bytes=int(options.disk_reserve_gib * GIB),
                address=address,
                machine_network=network,
                added_usr=added_usr,
                io=IoBudget(int(options.sandbox_io_mib * MIB), options.sandbox_iops),
            )
            facts = {} if network is None else {"machine_network": fact_text(network.describe())}
            parts = AgentParts(
                identity,
                load_or_create_keys(directory),
                host,
                journal,
                partial(
                    collect_inventory,
                    options.host,
                    options.simulated_gpus,
                    facts,
                    addresses=(address,),
                    is_visible=_visibility(options.host, added_usr),
                ),
                time.time,
                directory,
                options.concurrency,
                sampler=GpuSampler(options.simulated_gpus, time.time),
            )
            asyncio.run(_run_until_signal(parts, int(options.disk_reserve_gib * GIB)))
        finally:
            journal.close()
    return 0


def _visibility(host: str, added_usr: tuple[str, ...]) -> Callable[[str], bool]:
    """Which files of the machine sandboxes see."""
    return visible_usr.find(added_usr).contains if host == "namespace" else lambda path: True


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the state directory, which belongs to one agent at a time."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another agent is already running on {directory}") from error
        yield


def _purge(options: argparse.Namespace) -> int:
    """End and remove everything that this node has on the machine, for example when its platform is gone."""
    identity = read_identity(options.state_dir)
    if identity is None:
        return 0
    with _locked(options.state_dir):
        found = asyncio.run(_sweep_all(options.host, options.state_dir, identity.node_id))
        left = asyncio.run(_sweep_all(options.host, options.state_dir, identity.node_id)) if found else []
    for each in found:
        print(f"removed {each}")
    if left:
        raise ValueError(f"still there after their removal: {', '.join(left)}")
    return 0


async def _sweep_all(kind: str, directory: Path, node_id: str) -> list[str]:
    host = create_host(kind, directory, node_id)
    strays = list(await host.sweep([]))
    if isinstance(host, NamespaceHost) and Podman.on_this_machine():
        strays += await (await create_container_tasks(node_id, directory, host)).sweep([])
    return [f"{each.resource.kind} {each.resource.name}" for each in strays if each.verdict == "reaped"]


def _machine_network(options: argparse.Namespace) -> MachineNetwork | None:
    """The configured network of whole-machine sandboxes; a mode that this machine does not support is refused now."""
    if options.host != "namespace":
        return None
    network = MachineNetwork(
        options.machine_network,
        machine_networks.parse_ports(options.machine_ports),
        tuple(machine_networks.parse_network(each) for each in options.deny_network),
        machine_networks.parse_pool(options.machine_link_pool),
    )
    if network.mode == "routed" and (reason := machine_networks.unavailable_reason()):
        raise ValueError(f"this machine does not support `--machine-network routed`: {reason}")
    return network


def _with_options(identity: Identity, options: argparse.Namespace) -> Identity:
    """The identity as this start uses it; an unencrypted URL is refused unless it was allowed now or at enrolment."""
    allow_insecure = options.allow_insecure or (identity.allow_insecure and options.url is None)
    url = identity.url if options.url is None else options.url
    check_platform_url(url, allow_insecure=allow_insecure)
    ca_file = _ca_file(options) or identity.ca_file
    PlatformTls(ca_file, allow_insecure).context_for(url)
    return msgspec.structs.replace(identity, url=url, ca_file=ca_file, allow_insecure=allow_insecure)


def _ca_file(options: argparse.Namespace) -> str | None:
    return str(Path(options.ca_file).expanduser().resolve()) if options.ca_file else None


async def _run_until_signal(parts: AgentParts, disk_reserve_bytes: int) -> None:
    if isinstance(parts.host, NamespaceHost):
        parts = replace(parts, watches=(parts.host.watch,))
    if isinstance(parts.host, NamespaceHost) and Podman.on_this_machine() and parts.directory is not None:
        containers = await create_container_tasks(
            parts.identity.node_id,
            parts.directory,
            parts.host,
            disk_reserve_bytes,
            parts.host.machine.disk_bytes,
        )
        parts = replace(parts, handlers=containers.handlers(HANDLERS), sweeps=(containers.sweep,))
    agent = Agent(parts)
    running = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    print(f"agent of {agent.identity.node_id} runs (host {agent.parts.host.kind})", file=sys.stderr)
    with suppress(asyncio.CancelledError):
        await running


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent is gone, however it ended. What the agent started goes on."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise ValueError("the program that started the agent has already ended")


def add_ca_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca-file",
        default=os.environ.get(CA_FILE),
        help=f"trust these CA certificates (PEM) instead of the system's; `enrol` remembers them (also {CA_FILE})",
    )


def _default_name() -> str:
    """The machine's host name in the form that the platform accepts: lower-case letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:40].rstrip("-")
    return name if re.fullmatch(r"[a-z][a-z0-9-]{1,38}[a-z0-9]", name) else f"node-{name}".rstrip("-")[:40]


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"a label is NAME=VALUE, not {text!r}")
    return name, value


def _amount(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError(f"{text} is not a possible amount")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mooring-agent", description="Mooring's node agent.")
    shared = argparse.ArgumentParser(add_help=False)
    default_directory = os.environ.get(STATE) or (
        "/var/lib/mooring-agent" if os.geteuid() == 0 else "~/.local/share/mooring-agent"
    )
    shared.add_argument(
        "--state-dir",
        type=lambda text: Path(text).expanduser().resolve(),
        default=default_directory,
        help=f"where keys, journal and sandboxes are kept (also {STATE}; default {default_directory})",
    )
    shared.add_argument(
        "--host",
        choices=("namespace", "process"),
        default="namespace" if os.geteuid() == 0 else "process",
        help="how sandboxes are made: `namespace` isolates and needs root, `process` does not isolate",
    )
    shared.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    commands = parser.add_subparsers(dest="command", required=True)
    enrol_parser = commands.add_parser("enrol", parents=[shared], help="join a platform with a one-time token")
    enrol_parser.add_argument("--url", required=True, help="URL of the platform")
    enrol_parser.add_argument(
        "--token-file", default="-", help="file with the one-time token; `-` reads standard input"
    )
    enrol_parser.add_argument("--name", default=_default_name(), help="name of the machine (default %(default)s)")
    enrol_parser.add_argument(
        "--again", action="store_true", help="enrol again with the state directory of a retired node"
    )
    enrol_parser.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    run_parser = commands.add_parser("run", parents=[shared], help="run the agent of an enrolled machine")
    run_parser.add_argument("--url", default=None, help="URL of the platform, if it has changed since enrolment")
    for command in (enrol_parser, run_parser):
        command.add_argument(
            "--allow-insecure", action="store_true", help="accept a URL without TLS that does not point to this machine"
        )
        add_ca_file(command)
    run_parser.add_argument(
        "--end-with-parent", action="store_true", help="stop when the program that started the agent ends"
    )
    run_parser.add_argument(
        "--simulated-gpus", type=int, default=0, help="declare GPUs that compute nothing, for trials"
    )
    run_parser.add_argument(
        "--address",
        default="",
        help="address at which other machines reach this one (default: the address of its route to the platform)",
    )
    _add_machine_network(run_parser)
    run_parser.add_argument("--concurrency", type=int, default=16, help="how many brief tasks run concurrently")
    _add_sandbox_limits(run_parser)
    commands.add_parser(
        "purge", parents=[shared], help="end and remove everything that this node has on the machine, without a receipt"
    )
    simulate.add_parser(commands)
    return parser


def _add_sandbox_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sandbox-disk-gib",
        type=float,
        default=DISK_BYTES / GIB,
        help="how much each sandbox of the namespace host may write, in GiB (default %(default)g; 0 means no limit)",
    )
    parser.add_argument(
        "--sandbox-io-mib",
        type=_amount,
        default=0,
        help="how much each sandbox of the namespace host may read and write per second, in MiB (default: no limit)",
    )
    parser.add_argument(
        "--sandbox-usr",
        action="append",
        default=[],
        metavar="DIRECTORY",
        help="a directory below /usr that sandboxes see besides the list of docs/agent.md; may be repeated",
    )
    parser.add_argument(
        "--sandbox-iops",
        type=int,
        default=0,
        help="how many reads and writes each such sandbox may make per second (default: no limit)",
    )
    parser.add_argument(
        "--disk-reserve-gib",
        type=_amount,
        default=RESERVE_BYTES / GIB,
        help="how much of the disk images, artifacts and logs must leave free, in GiB (default %(default)g)",
    )


def _add_machine_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine-network",
        choices=("routed", "shared"),
        default=None,
        help="network of a sandbox that has the whole machine: `routed` is its own, behind rules; `shared` is the "
        "machine's, with its loopback and every service on it (default: routed, and refused where that is impossible)",
    )
    parser.add_argument(
        "--machine-ports",
        default=machine_networks.PORTS,
        metavar="PORTS",
        help="ports of the machine's address that are forwarded to such a sandbox, except those that the machine "
        "listens on (default %(default)s)",
    )
    parser.add_argument(
        "--deny-network",
        action="append",
        default=[],
        metavar="CIDR",
        help="a network that such a sandbox may not reach, such as the management network; may be repeated",
    )
    parser.add_argument(
        "--machine-link-pool",
        default=machine_networks.POOL,
        metavar="CIDR",
        help="where the addresses of the links to such sandboxes come from (default %(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
