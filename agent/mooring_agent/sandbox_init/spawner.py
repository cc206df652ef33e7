"""What the spawners of a sandbox's init and of an owner's init have in common.

A spawner runs as the machine's root, in a session of its own, and ends when the init is running. The init continues
only when its record is on disk: if the spawner is killed before, the init ends too and nothing is left.

The plan comes as JSON on standard input; one line of JSON on standard output is the init's record, or the problem.
"""

import errno
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any, Final, NoReturn

from mooring_agent.kernel import proc, syscalls

QUIET: Final = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
MEMORY_SCORE: Final = "/proc/self/oom_score_adj"
ORDINARY_SCORE: Final = 0
PROGRAM_SCORE: Final = 500  # the kernel ends programs before their supervisor, when the memory of the sandbox runs out
PROJECT_DESCRIPTOR: Final = 3  # the first descriptor that a sandbox's init keeps besides its standard streams
INIT_PROGRAM: Final = Path(__file__).with_name("mooring-init")
NAMESPACES: Final = {
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "ipc": syscalls.CLONE_NEWIPC,
    "mnt": syscalls.CLONE_NEWNS,
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
    "user": syscalls.CLONE_NEWUSER,
    "uts": syscalls.CLONE_NEWUTS,
}
HIDDEN: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/vmallocinfo",
    "/sys/block",
    "/sys/firmware",
    "/sys/fs",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
)
READ_ONLY: Final = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/pressure",  # a trigger watches the whole machine, in memory that nobody is charged for
    "/proc/sys",
    "/proc/sysrq-trigger",
)


def run(spawner: type["InitSpawner"]) -> NoReturn:
    """Execute the plan on standard input and print the result."""
    plan = json.load(sys.stdin)
    try:
        answer = spawner(plan).spawn()
    except OSError as problem:
        answer = {"problem": str(problem)}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0 if "problem" not in answer else 1)


class InitSpawner:
    """One spawn, from the machine's side."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.first_uid: int | None = plan["first_uid"]
        self.directory = os.open(plan["directory"], os.O_RDONLY | os.O_DIRECTORY)
        self.lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600, dir_fd=self.directory)
        # While this lock is held, a spawn is in progress.
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self.init_program = _sealed_program()

    def spawn(self) -> dict[str, Any]:
        """Run every step in order; returns the init's record."""
        raise NotImplementedError

    def leave_agent(self) -> None:
        """Enter the sandbox's control groups, and leave behind what is the agent's own."""
        for path in self.plan["cgroups"]:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
        raise_memory_score(MEMORY_SCORE, ORDINARY_SCORE)
        syscalls.new_session_keyring()

    def record(self, init: int) -> dict[str, Any]:
        """What identifies an init later."""
        return {
            "pid": init,
            "start": self.start_of(init),
            "namespaces": {kind: os.stat(f"{init}/ns/{kind}", dir_fd=self.proc).st_ino for kind in NAMESPACES},
            "boot": self._read("sys/kernel/random/boot_id").decode().strip(),
        }

    def save(self, record: dict[str, Any]) -> None:
        """Put the record on disk."""
        descriptor = os.open(".init.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=self.directory)
        os.write(descriptor, json.dumps(record).encode())
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(".init.json", "init.json", src_dir_fd=self.directory, dst_dir_fd=self.directory)
        os.fsync(self.directory)

    def start_of(self, pid: int) -> int:
        process = proc.parse_stat(self._read(f"{pid}/stat"))
        if process is None:
            raise ProcessLookupError(errno.ESRCH, "the process ended before it was recorded")
        return process.started

    def require_same(self, pid: int, start: int) -> None:
        """Fail unless a process is still the one of the plan. What was opened before belongs to that one then.

        The process may end while this program starts, and its number go to another one, even of a neighbour.
        """
        if self.start_of(pid) != start:
            raise ProcessLookupError(errno.ESRCH, f"{pid} is another process by now")

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY, dir_fd=self.proc)
        try:
            return os.read(descriptor, 65536)
        finally:
            os.close(descriptor)


def raise_memory_score(path: str, lowest: int) -> None:
    """Have at least this score when memory runs out, and the same for all that is started from here.

    An agent may be protected by a score below zero. Written with the right to lower it, the score is also the lowest
    one that anything inside can give itself.
    """
    with open(path, "r+") as file:
        if int(file.read()) < lowest:
            file.seek(0)
            file.write(f"{lowest}\n")


def _sealed_program() -> int:
    """The init's program in memory that nobody can change, so that no file of the machine is behind its /proc/1/exe."""
    memory = os.memfd_create("mooring-init", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(INIT_PROGRAM.read_bytes())
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory
