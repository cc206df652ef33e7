"""Starting a supervisor from the agent, for the host without namespaces."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from mooring_agent.kernel import hostile_files, syscalls
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.supervisor_client import SupervisorClient, SupervisorGone, SupervisorStatus, bind_listener

PROGRAM = Path(__file__).with_name("__main__.py")


async def ensure_supervisor(state: Path, start: Path, title: str, markers: Mapping[str, str]) -> SupervisorStatus:
    """Make sure a sandbox without isolation has a supervisor, whose programs run as this user."""
    client = SupervisorClient(state)
    try:
        return await client.status()
    except SupervisorGone:
        pass
    listener = bind_listener(state)
    directories = [hostile_files.open_directory(path) for path in (state, start)]
    try:
        capabilities = range(syscalls.last_capability() + 1) if os.geteuid() == 0 else ()
        options = SupervisorOptions(
            listener=listener.fileno(),
            state=directories[0],
            agent_uid=os.geteuid(),
            title=title,
            start=directories[1],
            markers=dict(markers),
            drop_capabilities=tuple(capabilities),
            no_new_privileges=True,
        )
        await spawn_supervisor(options, (listener.fileno(), *directories))
    finally:
        listener.close()
        for directory in directories:
            os.close(directory)
    return await client.status()


async def spawn_supervisor(options: SupervisorOptions, descriptors: tuple[int, ...]) -> None:
    """Start the supervisor, which detaches by a second fork, so the wait here is short."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(PROGRAM),
        json.dumps(options._asdict()),
        pass_fds=descriptors,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        env={},
    )
    await process.wait()
