"""A sandbox spawner that is killed in the middle; its plan comes on standard input, the place to die as an argument."""

import os
import signal
import sys
from typing import Any

from mooring_agent.sandbox_init.sandbox_spawner import SandboxSpawner
from mooring_agent.sandbox_init.spawner import run

PLACES = ("prepare", "_map_users", "_mount_views", "save")


class KilledSpawner(SandboxSpawner):
    """Dies, as if killed, right after the named part."""


def dying(name: str) -> Any:
    """The part, then death."""
    whole = getattr(SandboxSpawner, name)

    def part(self: SandboxSpawner, *arguments: Any) -> Any:
        whole(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    return part


if __name__ == "__main__":
    setattr(KilledSpawner, sys.argv[1], dying(sys.argv[1]))
    run(KilledSpawner)
