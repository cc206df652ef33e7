"""`mooring-agent simulate`: a fleet of simulated machines in one process.

Each is a complete agent, the same that runs on a real machine, over the simulated host: it has its own keys, enrols
with its own one-time token, polls, verifies, journals, reports and signs receipts. Only the machine is simulated:
nothing runs, and everything it reports carries `simulated`. All state is in memory; when the process ends, the nodes
become unreachable, and a new process enrols new ones.

The one-time tokens are created with the token of a platform admin, which is read from a file or from standard input,
never from the command line.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from mooring_agent import VERSION
from mooring_agent.agent import Agent, AgentParts, NodeRetired
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.platform_client import (
    USER_AGENT,
    EnrolmentRequest,
    Rejected,
    Unreachable,
    enrol,
    read_response,
)
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.control_plane.tls import PlatformTls, empty_context, with_trust
from mooring_agent.gpu_metrics import GpuSampler
from mooring_agent.hosts.simulated import FaultProfile, SimulatedHost
from mooring_agent.inventory import declared_gpus
from mooring_agent.tasks.journal import Journal

ENROLLING_MAX: Final = 8
"""How many enrol concurrently."""
GROUP: Final = 50
"""How many agents share a connection pool; a pool scans all of its connections for each request."""
COUNT_MAX: Final = 20_000
GPUS_MAX: Final = 64

log = logging.getLogger("mooring.simulate")


@dataclass(frozen=True, slots=True)
class Fleet:
    """The parameters of a fleet."""

    url: str
    token: str
    count: int
    region: str
    prefix: str
    gpus: int
    faults: FaultProfile
    tls: PlatformTls = field(default_factory=PlatformTls)


class _EnrolmentToken(msgspec.Struct):
    token: str


class SharedTransport(httpx.AsyncBaseTransport):
    """Connections that several agents share: closing one agent's client does not close them.

    With TLS nothing is shared, because a node's connection carries its client certificate.
    """

    def __init__(self) -> None:
        # One connection per agent for its poll, and a few for all reports.
        limits = httpx.Limits(max_connections=2 * GROUP, max_keepalive_connections=2 * GROUP)
        self._pool = httpx.AsyncHTTPTransport(verify=empty_context(), limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._pool.handle_async_request(request)

    async def aclose(self) -> None:
        """An agent closes its client: the connections stay open."""

    async def close_pool(self) -> None:
        """Close the connections when all agents have ended."""
        await self._pool.aclose()


class Simulation:
    """The fleet while it runs."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        context = fleet.tls.context_for(fleet.url)
        self._pools = [SharedTransport() for _ in range((fleet.count + GROUP - 1) // GROUP)] if context is None else []
        self._enrolling = asyncio.Semaphore(ENROLLING_MAX)
        self._admin_client = httpx.AsyncClient(
            base_url=fleet.url.rstrip("/") + "/api/v1",
            headers={"User-Agent": USER_AGENT, "Authorization": f"Bearer {fleet.token}"},
            timeout=30.0,
            verify=context or empty_context(),
        )
        self._enrolled = 0

    async def run(self) -> None:
        """Enrol all machines and work until cancelled; each starts to work as soon as it is enrolled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self.fleet.count):
                    group.create_task(self._run_machine(number), name=f"simulated-{number}")
        finally:
            for pool in self._pools:
                await pool.close_pool()
            await self._admin_client.aclose()

    async def _run_machine(self, number: int) -> None:
        async with self._enrolling:
            parts = await self._enrol_machine(number)
        self._enrolled += 1
        if self._enrolled == self.fleet.count:
            print_line(f"{self.fleet.count} simulated agents run ({describe_faults(self.fleet.faults)})")
        try:
            await Agent(parts).run()
        except NodeRetired as retired:
            log.warning("the platform retired simulated machine %d; stopping it: %s", number, retired)
        finally:
            parts.journal.close()

    async def _enrol_machine(self, number: int) -> AgentParts:
        """The parts of an enrolled machine of the fleet."""
        fleet, transport = self.fleet, self._pools[number // GROUP] if self._pools else None
        keys = make_keys()
        request = EnrolmentRequest(f"{fleet.prefix}-{number}", "simulated", {"simulated": "true"})
        backoff, token = ReconnectBackoff(), ""
        while True:
            try:
                token = token or await self._one_time_token()
                enrolled = await enrol(fleet.url, token, keys, request, transport, tls=fleet.tls)
                identity = with_trust(enrolled, fleet.tls)
                break
            except Unreachable as error:
                log.warning("simulated machine %d cannot reach the platform: %s; retrying", number, error)
                await backoff.wait()
        host = SimulatedHost(_faults_of(fleet.faults, number))
        return AgentParts(
            identity,
            keys,
            host,
            Journal(":memory:"),
            partial(simulated_inventory, fleet.gpus),
            time.time,
            transport=transport,
            sampler=GpuSampler(fleet.gpus, time.time, nvml=None),
        )

    async def _one_time_token(self) -> str:
        try:
            response = await self._admin_client.post(
                "/platform/nodes/enrolment-tokens", json={"region": self.fleet.region}
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        return read_response(response, _EnrolmentToken).token


def _faults_of(faults: FaultProfile, number: int) -> FaultProfile:
    """The same faults with a seed of its own, so that machines differ and a run is repeatable."""
    return FaultProfile(faults.latency_seconds, faults.failure_rate, faults.leftover_rate, faults.seed + number)


def simulated_inventory(gpus: int) -> Mapping[str, Any]:
    return {
        "agent_version": VERSION,
        "host": "simulated",
        "cpus": 64,
        "memory_bytes": 512 * (1 << 30),
        "numa": [],
        "gpus": declared_gpus(gpus, 1),
        "facts": {"simulated": True},
    }


def describe_faults(faults: FaultProfile) -> str:
    return (
        f"host simulated, latency {faults.latency_seconds:g} s, failure rate {faults.failure_rate:g}, "
        f"leftover rate {faults.leftover_rate:g}, seed {faults.seed}"
    )


def print_line(line: str) -> None:
    """Print a line at once, for the program that started this."""
    print(line, flush=True)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = "run many simulated machines in one process, to try scale and faults"
    parser = commands.add_parser("simulate", help=about, description=about)
    parser.add_argument("--url", required=True, help="URL of the platform")
    parser.add_argument("--count", type=_int_between(1, COUNT_MAX), required=True, help="how many simulated machines")
    parser.add_argument(
        "--token-file", default="-", help="file with the token of a platform admin; `-` reads standard input"
    )
    parser.add_argument("--region", default="simulated", help="region that they join (default %(default)s)")
    parser.add_argument("--name-prefix", default=None, help="their names, before the number")
    parser.add_argument(
        "--gpus", type=_int_between(0, GPUS_MAX), default=8, help="simulated GPUs of each machine (default 8)"
    )
    parser.add_argument(
        "--latency-seconds", type=_float_between(0.0, 3600.0), default=0.0, help="how long a step takes"
    )
    parser.add_argument(
        "--failure-rate", type=_float_between(0.0, 1.0), default=0.0, help="fraction of the steps that fail"
    )
    parser.add_argument(
        "--leftover-rate",
        type=_float_between(0.0, 1.0),
        default=0.0,
        help="fraction of the teardowns that leave something behind",
    )
    parser.add_argument(
        "--allow-insecure", action="store_true", help="accept a URL without TLS that does not point to this machine"
    )
    parser.add_argument(
        "--ca-file",
        default=os.environ.get("MOORING_CA_FILE"),
        help="trust these CA certificates (PEM) instead of the system's (also MOORING_CA_FILE)",
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed repeats the same faults")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")


def run(options: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    tls = PlatformTls(options.ca_file, options.allow_insecure)
    tls.context_for(options.url)  # refused before a token is read
    token = (sys.stdin.read() if options.token_file == "-" else Path(options.token_file).read_text()).strip()
    faults = FaultProfile(options.latency_seconds, options.failure_rate, options.leftover_rate, options.seed)
    prefix = options.name_prefix or f"simulated-{secrets.token_hex(3)}"
    fleet = Fleet(options.url, token, options.count, options.region, prefix, options.gpus, faults, tls)
    try:
        asyncio.run(_run_until_signal(fleet))
    except BaseExceptionGroup as group:
        first = _first_error(group)  # a platform that rejects one rejects all of them
        if isinstance(first, Rejected):
            raise first from None
        raise
    return 0


async def _run_until_signal(fleet: Fleet) -> None:
    running = asyncio.ensure_future(Simulation(fleet).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    print_line(f"{fleet.count} simulated machines enrol at {fleet.url} as {fleet.prefix}-0 and on")
    with suppress(asyncio.CancelledError):
        await running


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of many errors that say the same."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _int_between(lowest: int, highest: int) -> Any:
    def read(text: str) -> int:
        number = int(text)
        if not lowest <= number <= highest:
            raise argparse.ArgumentTypeError(f"{lowest} to {highest}")
        return number

    return read


def _float_between(lowest: float, highest: float) -> Any:
    def read(text: str) -> float:
        number = float(text)
        if not lowest <= number <= highest:
            raise argparse.ArgumentTypeError(f"{lowest:g} to {highest:g}")
        return number

    return read
