"""The agent of one node in simulated sandboxes that run real programs: a separate program, for `bench/fairness.py`.

The agent is the real one: it polls, verifies, keeps its journal on the disk and reports. Only the sandboxes are
simulated, so that the bench needs no root: a program runs as a child of this process, without isolation. The plan is
read from standard input; the program runs until it is terminated.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from mooring_agent.agent import Agent, AgentParts
from mooring_agent.control_plane.keys import load_or_create_keys
from mooring_agent.control_plane.trust import Identity
from mooring_agent.hosts.contract import HostFailure, Owner, ProcessSpec
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.simulate import simulated_inventory
from mooring_agent.tasks.journal import Journal


class ProgramHost(SimulatedHost):
    """Simulated sandboxes in which programs are real."""

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        child = await asyncio.create_subprocess_exec(*process.argv, stdout=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await child.wait()
        except TimeoutError as error:
            raise HostFailure("timed_out", "the program took too long") from error
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def serve(plan: dict[str, Any]) -> None:
    """Run the agent until this process is terminated."""
    directory = Path(plan["directory"])
    keys = load_or_create_keys(directory)
    identity = msgspec.convert(plan["identity"], Identity)
    journal = Journal(directory / "journal.sqlite")
    await Agent(AgentParts(identity, keys, ProgramHost(), journal, lambda: simulated_inventory(0), time.time)).run()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.stdin.read())))
