"""The supervisor of one owner in namespaces of its own. It runs outside of the sandbox and reaches in by the init.

What a tenant's programs print arrives here through pipes and is written to files that the tenant cannot reach. The
supervisor and the init live and die together: when either ends, the other sees the socket between them close.
"""

import gc
import os
import signal
import socket
from typing import Final, NamedTuple

from mooring_agent.kernel import syscalls
from mooring_agent.supervisor import program_records
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.init_processes import InitProcesses
from mooring_agent.supervisor.owner_supervisor import OwnerSupervisor
from mooring_agent.supervisor.program_runner import ProgramRunner
from mooring_agent.supervisor.request_listener import RequestListener
from mooring_agent.supervisor.serve import attach_standard_files

_LOCK_SECONDS: Final = 30.0
_TITLE: Final = "mooring-supervisor"


class NamespaceSupervisorOptions(NamedTuple):
    """Descriptors that the owner spawner opened, the owner's label, and the disk space that logs must leave free."""

    listener: int  # a listening SOCK_SEQPACKET unix socket
    state: int  # the directory of records and logs
    init: int  # the socket to the owner's init
    label: str
    reserve_bytes: int  # what logs must leave free on the disk


def serve(options: NamespaceSupervisorOptions) -> None:
    """Supervise until the init ends."""
    directory = program_records.open_directory(options.state, program_records.directory_of(options.label))
    program_records.lock(directory, _LOCK_SECONDS)
    attach_standard_files(options.state)
    os.close(options.state)
    syscalls.take_title(_TITLE)
    syscalls.hide_from_tracing()
    gc.collect()
    gc.freeze()
    NamespaceSupervisor(options, directory).run()


class NamespaceSupervisor:
    """Joins the agent's requests and the init's reports in one event loop."""

    def __init__(self, options: NamespaceSupervisorOptions, directory: int) -> None:
        self._loop = EventLoop(lambda: None)
        self._processes = InitProcesses(socket.socket(fileno=options.init))
        self._processes.on_ended = self._reap_soon
        self._programs = ProgramRunner(self._loop, self._processes, directory, reserve_bytes=options.reserve_bytes)
        self._supervisor = OwnerSupervisor(self._loop, self._programs)
        self._listener = RequestListener(self._loop, options.listener, os.geteuid(), self._handle)
        self._is_reaping = False

    def run(self) -> None:
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(ignored, signal.SIG_IGN)
        self._loop.watch(self._processes.fileno(), self._reap)
        self._listener.start()
        self._loop.run()

    def _handle(self, packet: bytes, descriptors: list[int], connection: socket.socket) -> None:
        self._supervisor.handle(packet, descriptors, connection)
        self._end_with_init()

    def _reap_soon(self) -> None:
        """Reap after the current request, which is still being handled."""
        if not self._is_reaping:
            self._is_reaping = True
            self._loop.call_later(0, self._reap)

    def _reap(self) -> None:
        self._is_reaping = False
        self._programs.reap()
        self._end_with_init()

    def _end_with_init(self) -> None:
        """Without its init nothing of the owner is running; the records say so to the next supervisor."""
        if self._processes.is_gone:
            self._loop.stop()
