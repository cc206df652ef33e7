"""`mooring up`: run the programs of Mooring on this machine, as children of this one.

The command starts the other programs, forwards signals, and ends when the server does. A child has its own process
group, so that Ctrl-C reaches it once, from here; the kernel ends it when this process dies in any way.

The agent of this machine's own node runs next to the server, so that there is capacity at once: with root it isolates
its sandboxes, without root it does not, and says so. The workload adapter runs too, if it is installed, so that apps
can be operated at once.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

from mooring_cli import failures
from mooring_cli.local_adapter import ADAPTER, LocalAdapter, adapter_directories, file_source
from mooring_cli.local_node import AGENT, LocalNode, default_host, state_directory
from mooring_cli.main import MooringCommand

SERVER = "mooring"
LOCAL_NODE_PIPE = "MOORING_LOCAL_NODE_PIPE"
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command(cls=MooringCommand)
@click.option("--data-dir", metavar="DIR", help="Directory of the embedded database.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 picks a free one.")
@click.option(
    "--tls", is_flag=True, help="Serve TLS with a certificate authority for this machine, made on the first start."
)
@click.option("--tls-cert", metavar="FILE", help="Certificate chain (PEM) of the API and the relay.")
@click.option("--tls-key", metavar="FILE", help="Private key (PEM) of that certificate.")
@click.option("--node/--no-node", default=True, help="Also use this machine as a node. [default: --node]")
@click.option(
    "--node-host",
    type=click.Choice(("namespace", "process")),
    help="How the node makes sandboxes: isolated, which needs root, or plain processes. [default: isolated for root]",
)
@click.option(
    "--simulated-gpus",
    type=click.IntRange(0, 64),
    default=4,
    help="Number of simulated GPUs, if the machine has none. [default: 4]",
)
@click.option(
    "--adapters/--no-adapters",
    default=True,
    help="Also run the workload adapter, if there is a node. [default: --adapters]",
)
def up(
    *,
    data_dir: str | None,
    host: str | None,
    port: int | None,
    tls: bool,
    tls_cert: str | None,
    tls_key: str | None,
    node: bool,
    node_host: str | None,
    simulated_gpus: int,
    adapters: bool,
) -> int:
    """Start Mooring on this machine: database, API, workers, a node, and the adapter that operates apps.

    It runs until interrupted. On the first start it prints the one-time sign-in of the first admin. Sandboxes of the
    node keep running when this ends, and the next start finds them again. Settings come from the environment
    (MOORING_DATABASE_URL, …).
    """
    if find_spec(SERVER) is None:
        raise click.ClickException(
            "mooring-server is not installed next to this command; install it there, or work with a server elsewhere: "
            "mooring login --url URL"
        )
    arguments = [sys.executable, "-m", SERVER, "up"]
    given = {"--data-dir": data_dir, "--host": host, "--port": port, "--tls-cert": tls_cert, "--tls-key": tls_key}
    for name, value in given.items():
        if value is not None:
            arguments += [name, str(value)]
    if tls:
        arguments.append("--tls")
    if not node or find_spec(AGENT) is None:
        return run(arguments)
    offered, offers = os.pipe()
    state = state_directory(data_dir)
    adapter, settings = _adapter(state) if adapters else (None, {})
    served = None if adapter is None else adapter.begin
    local = LocalNode(offered, state, node_host or default_host(), simulated_gpus, served)
    local.begin()
    try:
        return run(arguments, offers, settings)
    finally:
        if adapter is not None:
            adapter.end()
        local.end()


def _adapter(state: Path) -> tuple[LocalAdapter | None, dict[str, str]]:
    """The adapter next to the node and the settings that the server needs for it; none if it is not installed."""
    if find_spec(ADAPTER) is None:
        return None, {}
    own, apps = adapter_directories(state)
    return LocalAdapter(own, apps), file_source(apps)


def run(arguments: list[str], offers: int | None = None, settings: Mapping[str, str] | None = None) -> int:
    """Run a program, forward signals to it, and return its exit code.

    `offers` is the end of a pipe on which the program says how this machine can join.
    """
    environment, pipes = {**os.environ, **(settings or {})}, []
    if offers is not None:
        environment[LOCAL_NODE_PIPE] = str(offers)
        pipes.append(offers)
    with _forwarding_signals() as begin:
        try:
            child = subprocess.Popen(
                arguments, process_group=0, preexec_fn=_die_with_parent, env=environment, pass_fds=pipes
            )
        finally:
            for pipe in pipes:
                os.close(pipe)  # the child has its own copy
        begin(child)
        code = _end_of(child)
    if code in (0, -signal.SIGTERM, -signal.SIGINT):
        return failures.DONE
    return failures.USAGE if code == 1 else failures.SERVER


def _die_with_parent() -> None:
    """Runs in the child before the program: ask the kernel for SIGTERM when the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _end_of(child: "subprocess.Popen[bytes]") -> int:
    """Wait for the child to end, and run signal handlers at once.

    Python runs a handler between two of its instructions: a signal that arrives just before a plain `wait` blocks
    would be handled only when the child ends by itself. So the interpreter writes into a pipe when a signal arrives,
    and the pipe is polled here next to the child.
    """
    try:
        ended = os.pidfd_open(child.pid)
    except ProcessLookupError:  # it has ended, and a handler has reaped it
        return child.wait()
    heard, hears = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(hears, False)
    earlier = signal.set_wakeup_fd(hears, warn_on_full_buffer=False)
    try:
        while True:
            ready, _, _ = select.select([ended, heard], [], [])
            if ended in ready:
                return child.wait()
            os.read(heard, 64)
    finally:
        signal.set_wakeup_fd(earlier)
        for descriptor in (heard, hears, ended):
            os.close(descriptor)


@contextmanager
def _forwarding_signals() -> Iterator[Callable[["subprocess.Popen[bytes]"], None]]:
    """While this lasts, the first signal asks the child to stop, and a second one kills it.

    The function that is yielded takes the child once it exists; it gets the signals that arrived before.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
        else:
            child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    def begin(started: "subprocess.Popen[bytes]") -> None:
        nonlocal child
        child = started
        for number in early:
            forward(number, None)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield begin
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
