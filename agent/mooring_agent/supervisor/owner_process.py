"""The process that supervises one owner of a sandbox without namespaces: a fork of the sandbox's supervisor.

It receives requests over a channel from there, each with the connection to reply on. When the channel closes, the
sandbox's supervisor is gone: it kills everything below it and exits too.
"""

import os
import socket
from typing import Final, NoReturn

from mooring_agent.kernel import syscalls
from mooring_agent.supervisor import packets, program_records
from mooring_agent.supervisor.child_processes import ChildProcesses
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.owner_supervisor import OwnerSupervisor
from mooring_agent.supervisor.program_runner import ProgramRunner

OWNER_VARIABLE: Final = "MOORING_OWNER"
_LOCK_SECONDS: Final = 30.0


def serve_owner(label: str, channel: socket.socket, options: SupervisorOptions) -> NoReturn:
    """In the fork: serve until the channel closes."""
    syscalls.adopt_orphans()
    directory = program_records.open_directory(options.state, program_records.directory_of(label))
    os.close(options.state)
    # If the sandbox's supervisor was killed, this owner's previous supervisor may still be killing its programs.
    program_records.lock(directory, _LOCK_SECONDS)
    marked = options._replace(state=directory, markers={**options.markers, OWNER_VARIABLE: label})
    _OwnerProcess(channel, marked).run()
    os._exit(0)


class _OwnerProcess:
    def __init__(self, channel: socket.socket, options: SupervisorOptions) -> None:
        self._channel = channel
        self._loop = EventLoop(lambda: self._programs.reap())
        self._programs = ProgramRunner(
            self._loop,
            ChildProcesses(options),
            options.state,
            log_segment_bytes=options.log_segment_bytes,
            log_head_bytes=options.log_head_bytes,
        )
        self._supervisor = OwnerSupervisor(self._loop, self._programs)

    def run(self) -> None:
        """Run until the channel closes and nothing is left."""
        self._loop.watch(self._channel.fileno(), self._on_readable)
        self._loop.run()

    def _on_readable(self) -> None:
        packet, descriptors = packets.receive_packet(self._channel)
        try:
            if packet and descriptors:
                self._supervisor.handle(packet, descriptors, socket.socket(fileno=descriptors.pop(0)))
                return
        finally:
            packets.close_all(descriptors)
        self._loop.unwatch(self._channel.fileno())
        self._supervisor.abandon(self._loop.stop)
