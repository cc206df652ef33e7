"""An owner spawner during which one of its processes is killed; its plan comes on standard input.

The arguments are the part of the spawner after which that happens, and the process: the spawner itself, the supervisor
that it forked, the process that enters the sandbox, or the new init.
"""

import os
import signal
import sys
from typing import Any

from mooring_agent.sandbox_init.owner_spawner import OwnerSpawner
from mooring_agent.sandbox_init.spawner import run

CASES = [
    ("_listen", "spawner"),
    ("leave_agent", "spawner"),
    *((place, victim) for place in ("record", "save") for victim in ("spawner", "supervisor", "entering", "init")),
]


class KilledSpawner(OwnerSpawner):
    """Kills one process, once, right after the named part."""

    forked: tuple[int, ...] = ()
    init = 0

    def record(self, init: int) -> dict[str, Any]:
        type(self).init = init
        return super().record(init)


def fork(whole: Any = os.fork) -> int:
    """Fork, and remember the child; the supervisor is forked first."""
    child: int = whole()
    if child:
        KilledSpawner.forked += (child,)
    return child


def killing(name: str, victim: str) -> Any:
    """The part, then the death of the victim."""
    whole = getattr(KilledSpawner, name)

    def part(self: KilledSpawner, *arguments: Any) -> Any:
        result = whole(self, *arguments)
        pids = dict(zip(("supervisor", "entering"), self.forked, strict=False))
        os.kill({"spawner": os.getpid(), "init": self.init, **pids}[victim], signal.SIGKILL)
        return result

    return part


if __name__ == "__main__":
    os.fork = fork
    setattr(KilledSpawner, sys.argv[1], killing(sys.argv[1], sys.argv[2]))
    run(KilledSpawner)
