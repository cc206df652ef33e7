"""The last steps before a PostgreSQL program runs: become the account, tie the life to the parent's, execute.

Run as a script by its path, `python -I -S launcher.py UID GID PARENT SIGNAL DIRECTORY PROGRAM ARGUMENT…`, so
that none of this happens between fork and exec of a process that has threads. The order matters: a change of
the uid clears the parent-death signal, so it is set afterwards; and the parent may have died before it was
set, so the parent is compared after that. The kernel sends the signal when the *thread* that forked us ends,
which is why the supervisor starts us from a thread that lives as long as the server. Only the standard
library is imported.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
UNREACHABLE = 124
REFUSED = 125
"""Our own exit codes: the directory could not be entered, or another step failed and nothing was executed."""


def become(uid: int, gid: int) -> None:
    """Drop to the account for good. Does nothing when we are that account already."""
    if os.geteuid() == uid:
        return
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def die_with_parent(signal_number: int, parent: int) -> None:
    """Ask the kernel for the signal when the parent ends, and leave at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        raise OSError(f"the parent process {parent} has ended")


def main(arguments: list[str]) -> None:
    uid, gid, parent, signal_number = (int(word) for word in arguments[:4])
    directory, program, *rest = arguments[4:]
    stage = REFUSED
    try:
        os.umask(0o077)
        become(uid, gid)
        stage = UNREACHABLE
        os.chdir(directory)
        stage = REFUSED
        die_with_parent(signal_number, parent)
        os.execv(program, [program, *rest])
    except OSError as error:
        print(f"uid {uid}: {program}: {error}", file=sys.stderr)
        sys.exit(stage)


if __name__ == "__main__":
    main(sys.argv[1:])
