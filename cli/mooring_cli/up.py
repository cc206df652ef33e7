"""`mooring up`: run the programs of Mooring on this machine, as children of this one.

The command starts the other programs, forwards signals, and ends when the server does. A child has its own process
group, so that Ctrl-C reaches it once, from here; the kernel ends it when this process dies in any way.

The agent of this machine's own node runs next to the server, so that there is capacity at once: with root it isolates
its sandboxes, without root it does not, and says so. The workload adapter runs too, if it is installed, so that apps
can be operated at once.

With --try everything else that a newcomer needs is made, too: see `trial.py`. Then the server's output goes to a file,
if there is a terminal, and one box says how to go on.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import IO

import click

from mooring_cli import failures, output
from mooring_cli.contexts import DEFAULT_URL, ContextsUnusable
from mooring_cli.local_adapter import WORKLOAD, LocalAdapter, bundled_adapters, file_source
from mooring_cli.local_layout import LocalLayout, layout_of
from mooring_cli.local_node import AGENT, WITHOUT, LocalNode, default_host
from mooring_cli.local_registry import LocalRegistry
from mooring_cli.main import MooringCommand
from mooring_cli.parent_death import end_with
from mooring_cli.trial_files import TrialFiles, wait_until_free

SERVER = "mooring"
LOCAL_NODE_PIPE = "MOORING_LOCAL_NODE_PIPE"
CODE_FILE = "MOORING_FIRST_ADMIN_CODE_FILE"
LISTEN_HOST = "MOORING_LISTEN_HOST"
STOPPED = "Mooring has stopped. What runs in sandboxes goes on; the next `mooring up` finds it again."
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
@click.option(
    "--try/--no-try",
    "trial",
    default=None,
    help="Also make what a first app needs: a tenant, a project, a SKU, signed-in contexts, the bundled apps.",
)
@click.option("--try-if-new", is_flag=True, hidden=True, help="The same as --try where that is possible.")
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
    trial: bool | None,
    try_if_new: bool,
) -> int:
    """Start Mooring on this machine: database, API, workers, a node, and the adapter that operates apps.

    It runs until interrupted. On the first start it prints the one-time sign-in of the first admin. Sandboxes of the
    node keep running when this ends, and the next start finds them again. Settings come from the environment
    (MOORING_DATABASE_URL, …).

    With --try you are signed in and can launch an app at once. That is for this machine only, on a database of its
    own; `mooring try remove` removes all of it.
    """
    if find_spec(SERVER) is None:
        raise click.ClickException(
            "mooring-server is not installed next to this command; install it there, or work with a server elsewhere: "
            "mooring login --url URL"
        )
    layout = layout_of(data_dir)
    if data_dir is not None:
        layout.make_root()
    arguments = [sys.executable, "-m", SERVER, "up"]
    database = None if data_dir is None else layout.database
    given = {"--data-dir": database, "--host": host, "--port": port, "--tls-cert": tls_cert, "--tls-key": tls_key}
    for name, value in given.items():
        if value is not None:
            arguments += [name, str(value)]
    if tls:
        arguments.append("--tls")
    wanted = UpOptions(node and find_spec(AGENT) is not None, node_host or default_host(), simulated_gpus, adapters)
    obstacle = None if trial is False else why_no_trial(layout, wanted, host)
    if trial and obstacle is not None:
        raise click.UsageError(f"--try: {obstacle}")
    if trial or (trial is None and try_if_new and obstacle is None):
        return run_trial(arguments, layout, wanted, f"http://127.0.0.1:{port}" if port else DEFAULT_URL)
    if not wanted.node:
        return run(arguments)
    return run_with_node(arguments, layout, wanted)


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What runs beside the server."""

    node: bool
    node_host: str
    simulated_gpus: int
    adapters: bool


def run_with_node(arguments: list[str], layout: LocalLayout, wanted: UpOptions) -> int:
    """The server with this machine as a node, and the workload adapter if it is installed."""
    offered, offers = os.pipe()
    adapter = LocalAdapter(WORKLOAD, layout.adapter, layout.apps) if wanted.adapters and WORKLOAD.is_here() else None
    registry = LocalRegistry(layout.registry)

    def begin(address: str, ca_file: str | None) -> None:
        registry.begin(address)
        if adapter is not None:
            adapter.begin(address, ca_file)

    local = LocalNode(offered, layout.node, wanted.node_host, wanted.simulated_gpus, begin)
    local.begin()
    try:
        files = file_source(layout.apps) if adapter is not None else {}
        code = run(arguments, offers, {**registry.settings(), **files})
    finally:
        registry.end()
        if adapter is not None:
            adapter.end()
        local.end()
    if code == failures.DONE:
        output.note(STOPPED)
    return code


def why_no_trial(layout: LocalLayout, wanted: UpOptions, host: str | None) -> str | None:
    """Why this start cannot be a trial; None if it can."""
    if os.environ.get("MOORING_DATABASE_URL"):
        return "it makes a database of its own; unset MOORING_DATABASE_URL"
    address = host or os.environ.get(LISTEN_HOST)
    if address and not is_loopback(address):
        return f"it is for this machine only, and {address} is not an address of the loopback"
    if not (wanted.node and wanted.adapters and WORKLOAD.is_here()):
        return "it needs this machine as a node, and the workload adapter"
    if not layout.is_new and TrialFiles(layout.trial).read() is None:
        return f"there is a database in {layout.root} already that --try did not make; give another --data-dir"
    return None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def run_trial(arguments: list[str], layout: LocalLayout, wanted: UpOptions, url: str) -> int:
    """The server, a node, every bundled adapter, and the set-up of a trial beside them."""
    from mooring_cli.trial import Trial, choose_context
    from mooring_cli.trial_screen import TrialScreen

    files = TrialFiles(layout.trial)
    try:
        record = files.begin(*choose_context(url), wanted.node_host)
    except (OSError, ContextsUnusable) as error:
        raise click.ClickException(f"--try: {error}") from error
    with files.held():
        if not wait_until_free(layout.database / "postgres" / "lock", layout.node / "lock"):
            raise click.ClickException(f"another Mooring still uses {layout.root}")
        screen = TrialScreen(files, None if layout.database == layout.root else str(layout.root))
        adapters = [
            LocalAdapter(each, layout.adapter, layout.apps, screen.note) for each in bundled_adapters(wanted.node_host)
        ]
        trial = Trial(layout, record, adapters, screen.ended)

        def tell(text: str) -> None:
            screen.note(text)
            if text.startswith(WITHOUT):
                trial.fail(text)

        registry = LocalRegistry(layout.registry, screen.note)

        def begin(address: str, ca_file: str | None) -> None:
            registry.begin(address)
            for each in adapters:
                each.begin(address, ca_file)
            trial.begin(address, ca_file)

        offered, offers = os.pipe()
        local = LocalNode(offered, layout.node, wanted.node_host, wanted.simulated_gpus, begin, tell=tell)
        screen.begin(trial)
        local.begin()
        settings = {**registry.settings(), **file_source(layout.apps), CODE_FILE: str(files.code)}
        with log_of(files, drawn=screen.drawn) as log:
            try:
                code = run(arguments, offers, settings, log)
            finally:
                trial.end()
                registry.end()
                for each in adapters:
                    each.end()
                local.end()
                screen.close()
    if code == failures.DONE:
        output.note(STOPPED)
    elif screen.drawn:
        output.note(f"{last_line(files.log)}\nThe whole log is {files.log}")
    return code


@contextmanager
def log_of(files: TrialFiles, *, drawn: bool) -> Iterator[IO[bytes] | None]:
    """The log of the server, if the terminal is kept for the box; that of the last start is kept, too."""
    if not drawn:
        yield None
        return
    if files.log.exists():
        files.log.replace(files.log.with_suffix(".log.1"))
    with open(os.open(files.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0) as log:
        yield log


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return output.plain(lines[-1]) if lines else "Mooring ended without a word"


def run(
    arguments: list[str],
    offers: int | None = None,
    settings: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> int:
    """Run a program, forward signals to it, and return its exit code.

    `offers` is the end of a pipe on which the program says how this machine can join. Its output goes to `log`, or
    where this program's own goes.
    """
    environment, pipes = {**os.environ, **(settings or {})}, []
    if offers is not None:
        environment[LOCAL_NODE_PIPE] = str(offers)
        pipes.append(offers)
    with _forwarding_signals() as begin:
        try:
            child = subprocess.Popen(
                arguments,
                process_group=0,
                preexec_fn=end_with(os.getpid()),
                env=environment,
                pass_fds=pipes,
                stdout=log,
                stderr=log,
            )
        finally:
            for pipe in pipes:
                os.close(pipe)  # the child has its own copy
        begin(child)
        code = _end_of(child)
    if code in (0, -signal.SIGTERM, -signal.SIGINT):
        return failures.DONE
    return failures.USAGE if code == 1 else failures.SERVER


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
