"""The last steps before a PostgreSQL program runs: change the account, set the parent-death signal, execute.

It runs as a script, `python -I -S launcher.py UID GID PARENT SIGNAL DIRECTORY PROGRAM ARGUMENT…`, so that none of this
happens between fork and exec of a process with threads. The order matters: a change of the uid clears the parent-death
signal, so the signal is set afterwards; and the parent may have died before that, so the parent is compared last. The
kernel sends the signal when the *thread* that forked us ends, so the supervisor starts us from a thread that lives as
long as the server. Only the standard library is imported.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
UNREACHABLE = 124
REFUSED = 125
"""Our own exit codes: the directory cannot be entered, or another step failed and nothing was executed."""


def become(uid: int, gid: int) -> None:
    """Switch to the account for good; does nothing when we are that account already."""
    if os.geteuid() == uid:
        return
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def die_with_parent(signal_number: int, parent: int) -> None:
    """Let the kernel send the signal when the parent ends; raises OSError if it has ended already."""
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
