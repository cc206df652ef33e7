"""`mooring-agent`: enrol a machine, run its agent; or simulate many machines.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mooring_agent import log_context, simulate
from mooring_agent.agent import Agent, Dismissed, Parts
from mooring_agent.containers.container_tasks import containers_of
from mooring_agent.containers.podman import Podman
from mooring_agent.control_plane.addresses import check_address, check_own_address, own_address
from mooring_agent.control_plane.keys import read_identity, ready_keys, store_identity
from mooring_agent.control_plane.platform_client import Introduction, Turned, Unreachable, enrol
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.hosts.namespace.sandbox_disk import DISK_BYTES
from mooring_agent.hosts.select import check_machine, host_for
from mooring_agent.inventory import take_inventory
from mooring_agent.tasks.handlers import FAMILIES
from mooring_agent.tasks.journal import Journal

STATE: Final = "MOORING_AGENT_STATE_DIR"
PR_SET_PDEATHSIG: Final = 1
GIB: Final = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    chosen = _parser().parse_args(arguments)
    log_context.configure(chosen.log_level.upper())
    try:
        if chosen.command == "enrol":
            return _enrol(chosen)
        if chosen.command == "simulate":
            return simulate.run(chosen)
        return _run(chosen)
    except (Dismissed, Turned, Unreachable, OSError, ValueError) as error:
        print(f"mooring-agent: {error}", file=sys.stderr)
        return 1


def _enrol(chosen: argparse.Namespace) -> int:
    check_address(chosen.url, allow_insecure=chosen.allow_insecure)
    check_machine(chosen.host)
    directory: Path = chosen.state_dir
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = read_identity(directory)
    if there is not None and not chosen.again:
        raise ValueError(f"{directory} is enrolled already, as {there.node_id} at {there.url}; `--again` joins anew")
    token = _token(chosen.token_file)
    labels = dict(_label(text) for text in chosen.label)
    keys = ready_keys(directory)
    introduction = Introduction(chosen.name, chosen.host, labels, None if there is None else there.node_id)
    identity = asyncio.run(enrol(chosen.url, token, keys, introduction))
    if there is not None and identity.node_id != there.node_id:
        set_aside(directory, there.node_id)
    store_identity(directory, identity)
    print(f"enrolled as {identity.node_id} ({chosen.name}, host {chosen.host})")
    return 0


def set_aside(directory: Path, node_id: str) -> None:
    """Keep the journal of the node that this machine was: its chain of receipts has ended, a new one begins."""
    for path in directory.glob("journal.sqlite*"):
        path.rename(directory / path.name.replace("journal", f"journal-{node_id}", 1))


def _token(place: str) -> str:
    """The one-time token: asked for where somebody can type, without showing it."""
    if place != "-":
        return Path(place).read_text().strip()
    return (getpass.getpass("One-time token: ") if sys.stdin.isatty() else sys.stdin.read()).strip()


def _run(chosen: argparse.Namespace) -> int:
    check_machine(chosen.host)
    directory: Path = chosen.state_dir
    identity = read_identity(directory)
    if identity is None:
        raise ValueError(f"{directory} is not enrolled: run `mooring-agent enrol` first")
    if chosen.end_with_parent:
        end_with_parent()
    if chosen.url is not None:
        check_address(chosen.url, allow_insecure=chosen.allow_insecure)
        identity = msgspec.structs.replace(identity, url=chosen.url)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another agent runs on {directory}") from error
        journal = Journal(directory / "journal.sqlite")
        try:
            address = check_own_address(chosen.address) if chosen.address else own_address(identity.url)
            disk = int(chosen.sandbox_disk_gib * GIB)
            host = host_for(chosen.host, directory, identity.node_id, disk_bytes=disk, address=address)
            parts = Parts(
                identity,
                ready_keys(directory),
                host,
                journal,
                partial(take_inventory, chosen.host, chosen.simulated_gpus, addresses=(address,)),
                time.time,
                directory,
                chosen.concurrency,
            )
            asyncio.run(_until_told(parts))
        finally:
            journal.close()
    return 0


async def _until_told(parts: Parts) -> None:
    if isinstance(parts.host, NamespaceHost) and Podman.on_this_machine() and parts.directory is not None:
        containers = await containers_of(parts.identity.node_id, parts.directory, parts.host)
        parts = replace(parts, families=containers.families(FAMILIES), sweeps=(containers.sweep,))
    agent = Agent(parts)
    running = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    print(f"agent of {agent.identity.node_id} runs (host {agent.parts.host.kind})", file=sys.stderr)
    with suppress(asyncio.CancelledError):
        await running


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent is gone, in whatever way; only the agent ends, not what it started."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise ValueError("the program that started the agent is gone already")


def _own_name() -> str:
    """The machine's name in the form that the platform takes: small letters, digits and hyphens."""
    name = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")[:40].rstrip("-")
    return name if re.fullmatch(r"[a-z][a-z0-9-]{1,38}[a-z0-9]", name) else f"node-{name}".rstrip("-")[:40]


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"a label is NAME=VALUE; this is {text!r}")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mooring-agent", description="Mooring's node agent.")
    shared = argparse.ArgumentParser(add_help=False)
    place = os.environ.get(STATE) or ("/var/lib/mooring-agent" if os.geteuid() == 0 else "~/.local/share/mooring-agent")
    shared.add_argument(
        "--state-dir",
        type=lambda text: Path(text).expanduser().resolve(),
        default=place,
        help=f"where keys, journal and sandboxes are kept (also {STATE}; default {place})",
    )
    shared.add_argument(
        "--host",
        choices=("namespace", "process"),
        default="namespace" if os.geteuid() == 0 else "process",
        help="how sandboxes are made: `namespace` isolates and needs root, `process` does not isolate",
    )
    shared.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    commands = parser.add_subparsers(dest="command", required=True)
    joins = commands.add_parser("enrol", parents=[shared], help="join a platform with a one-time token")
    joins.add_argument("--url", required=True, help="the platform's address")
    joins.add_argument("--token-file", default="-", help="file with the one-time token; `-` reads standard input")
    joins.add_argument("--name", default=_own_name(), help="what the machine is called (default %(default)s)")
    joins.add_argument("--again", action="store_true", help="join anew with the state of a node that was retired")
    joins.add_argument("--label", action="append", default=[], metavar="NAME=VALUE")
    runs = commands.add_parser("run", parents=[shared], help="run the agent of an enrolled machine")
    runs.add_argument("--url", default=None, help="the platform's address, if it is another than when it enrolled")
    for command in (joins, runs):
        command.add_argument(
            "--allow-insecure", action="store_true", help="take an address without TLS that is not this machine's own"
        )
    runs.add_argument("--end-with-parent", action="store_true", help="end when the program that started the agent ends")
    runs.add_argument("--simulated-gpus", type=int, default=0, help="declare GPUs that compute nothing, for trials")
    runs.add_argument(
        "--address",
        default="",
        help="where other machines reach this one (default: the address by which it goes to the platform, or anywhere)",
    )
    runs.add_argument("--concurrency", type=int, default=16, help="how many tasks run side by side")
    runs.add_argument(
        "--sandbox-disk-gib",
        type=float,
        default=DISK_BYTES / GIB,
        help="how much each sandbox of the namespace host may write, in GiB (default %(default)g; 0 sets no bound)",
    )
    simulate.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
