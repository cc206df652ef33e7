"""Running the supervisor of a sandbox without namespaces, in a process that has its final session."""

import gc
import os
import sys
from typing import Final

from mooring_agent.kernel import hostile_files, syscalls
from mooring_agent.supervisor import program_records
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.sandbox_supervisor import SandboxSupervisor

_LOCK_SECONDS: Final = 10.0


def serve(options: SupervisorOptions) -> None:
    """Supervise until asked to end. A second supervisor of the same state directory exits at once."""
    try:
        program_records.lock(options.state, _LOCK_SECONDS)
    except BlockingIOError:
        return
    attach_standard_files(options.state)
    syscalls.take_title(options.title)
    syscalls.hide_from_tracing()
    syscalls.adopt_orphans()
    os.environ.clear()
    # What is loaded by now is shared with every owner's supervisor as long as nobody writes to it.
    gc.collect()
    gc.freeze()
    SandboxSupervisor(options).run()


def attach_standard_files(state: int) -> None:
    """Close standard input; errors of the supervisor itself go to a file beside its records."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    errors = hostile_files.open_regular(state, "supervisor.log", flags, 0o600)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for target, source in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(source, target)
    os.close(errors)
    os.close(nothing)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
