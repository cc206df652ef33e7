"""Children of `mooring up` end when it is gone, however it ended."""

import ctypes
import os
import signal
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> Callable[[], None]:
    """What runs in a child before its program: ask the kernel for SIGTERM when the thread that started it is gone.

    The request survives the start of the program, so a parent that is killed meanwhile is noticed, too. One that was
    gone before the request is noticed here.
    """

    def ask() -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
