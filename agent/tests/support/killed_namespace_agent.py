"""An agent that is killed after a step: a program of its own that gets what to do and the step to die after.

`create <state> <isolation> <step>` or `destroy <state> <isolation> <step>`; the step `begin` is the first record. An
address as a fifth word gives the sandbox the whole machine, in the network in which this program is started.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.tests.support.namespace_sandboxes import spec_of
from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.namespace import NamespaceHost, create, destroy

NODE = "nod_dying"


def die(*arguments: Any) -> Any:
    """Like the OOM killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def after(steps: tuple[Callable[..., Any], ...], name: str) -> tuple[Callable[..., Any], ...]:
    """The steps up to this one, then death."""
    names = ["begin", *(step.__name__ for step in steps)]
    return (*steps[: names.index(name)], die)


async def main() -> None:
    what, state, isolation, step, *address = sys.argv[1:]
    host = NamespaceHost(Path(state), NODE, address=address[0] if address else LOOPBACK)
    if what == "create":
        host.create_steps = after(create.STEPS, step)
        await host.create(spec_of("alc_1", isolation=isolation, machine_network=bool(address)))  # type: ignore[arg-type]
    else:
        host.destroy_steps = after(destroy.STEPS, step)
        await host.destroy("alc_1")


if __name__ == "__main__":
    asyncio.run(main())
