"""The agent: a long poll that claims tasks, a loop that reports, and a periodic sweep for strays.

At start it recovers the sandboxes on the machine, resumes tasks that a crash interrupted, reports its inventory,
compares the machine with what the platform knows, and only then asks for work.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from mooring_agent import VERSION
from mooring_agent.control_plane.client_certificate import FILE_NAME, ClientCertificate
from mooring_agent.control_plane.keys import NodeKeys
from mooring_agent.control_plane.messages import ClaimResponse
from mooring_agent.control_plane.platform_client import PlatformClient, Rejected, Unreachable
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.control_plane.trust import (
    Identity,
    lacks_link,
    store_identity,
    with_announced_keys,
    with_root_key,
)
from mooring_agent.gpu_metrics import GpuSampler, SampleBuffer, sample_forever
from mooring_agent.hosts.contract import Host, HostFailure, Stray
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS, TaskHandler
from mooring_agent.tasks.journal import Journal, JournalFull
from mooring_agent.tasks.log_read import LogReadHandler
from mooring_agent.tasks.probes import PROBES
from mooring_agent.tasks.reporter import Reporter
from mooring_agent.tasks.verifier import TaskRefused, TaskVerifier
from mooring_agent.tunnels.tunnel import tunnel_handlers

SWEEP_SECONDS: Final = 600.0
WAIT_SECONDS: Final = 30.0

log = logging.getLogger("mooring.agent")


@dataclass(slots=True)
class AgentParts:
    """Everything an agent is built from; tests and simulated agents substitute parts."""

    identity: Identity
    keys: NodeKeys
    host: Host
    journal: Journal
    inventory: Callable[[], Mapping[str, Any]]
    now: Callable[[], float]
    directory: Path | None = None  # where the identity is saved when the platform announces new keys
    concurrency: int = 16
    handlers: Mapping[str, TaskHandler] = field(default_factory=lambda: HANDLERS)
    transport: httpx.AsyncBaseTransport | None = None  # shared by the agents of one process
    # For resources that the host itself does not create, such as containers.
    sweeps: Sequence[Callable[[Collection[str]], Awaitable[Sequence[Stray]]]] = ()
    watches: Sequence[Callable[[], Coroutine[Any, Any, None]]] = ()  # each runs as long as the agent
    sampler: GpuSampler | None = None  # None: the GPUs of this machine are not sampled


class NodeRetired(Exception):
    """The platform retired this node: the agent stops, and what runs on the machine keeps running."""


class Agent:
    def __init__(self, parts: AgentParts) -> None:
        self.parts = parts
        self.identity = parts.identity
        certificate = ClientCertificate(None if parts.directory is None else parts.directory / FILE_NAME)
        self.client = PlatformClient(parts.identity, parts.keys, parts.now, parts.transport, certificate)
        self.executor = Executor(
            parts.host,
            parts.journal,
            parts.keys,
            parts.now,
            self._wake_reporter,
            parts.concurrency,
            {
                **LogReadHandler().handlers(),
                **parts.handlers,
                **PROBES,
                **tunnel_handlers(self.client.authorization, self.client.tls),
            },
        )
        self.reporter = Reporter(self.client, self.executor, parts.journal, parts.host, parts.now)
        self._started_at = parts.now()
        self._stored = parts.identity
        self._samples = SampleBuffer(parts.now)
        self._sample_seconds = 0.0  # how often the platform wants samples; 0 until it has said so
        self._looked_up = ""  # the unknown key for which the whole chain was read

    async def run(self) -> None:
        """Work until cancelled; what runs on the machine keeps running."""
        parts = self.parts
        sandboxes = await parts.host.recover()
        log.info("recovered %d sandboxes of this agent", len(sandboxes))
        await self.executor.resume()
        reporting = asyncio.create_task(self.reporter.run(), name="reporter")
        try:
            await self._report_inventory()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim(), name="claims")
                group.create_task(self._sweep(), name="sweep")
                if parts.sampler is not None:
                    sampling = sample_forever(parts.sampler, self._samples, lambda: self._sample_seconds)
                    group.create_task(sampling, name="samples")
                for watch in parts.watches:
                    group.create_task(watch(), name="watch")
        except ExceptionGroup as problems:
            retired = problems.subgroup(NodeRetired)
            raise (problems if retired is None else retired.exceptions[0]) from None
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await self.executor.stop()
            await self.client.close()

    @property
    def verifier(self) -> TaskVerifier:
        trusted = self.identity.trusted(self.parts.now())
        return TaskVerifier(self.identity.node_id, self.identity.audience, trusted)

    def health(self) -> dict[str, Any]:
        """The agent's own health, for the heartbeat."""
        health: dict[str, Any] = {
            "version": VERSION,
            "host": self.parts.host.kind,
            "uptime_seconds": int(self.parts.now() - self._started_at),
            "running": len(self.executor.tracked),
            "results_owed": len(self.parts.journal.undelivered()),
            "disk_is_full": not self.parts.journal.keep_reserve(),
            "load": [round(each, 2) for each in os.getloadavg()],
        }
        if self.parts.directory is not None:
            health["disk_free_bytes"] = shutil.disk_usage(self.parts.directory).free
        return health

    def _wake_reporter(self) -> None:
        self.reporter.wake.set()

    async def _report_inventory(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            try:
                await self.client.report_inventory(self.parts.inventory())
                return
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                log.warning("cannot report this machine's inventory: %s; retrying", error)
                await backoff.wait()

    async def _claim(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            free, drained = self.executor.free, self._samples.drain()
            try:
                wait = WAIT_SECONDS if free else 1.0
                samples = self._samples.in_message(drained)
                claimed = await self.client.claim(free, wait, self.executor.running(), self.health(), samples)
                backoff.reset()
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                if isinstance(error, Unreachable):
                    self._samples.restore(drained)
                log.warning("claim failed: %s; retrying", error)
                await backoff.wait()
                continue
            await self.take(claimed)

    async def take(self, claimed: ClaimResponse) -> None:
        """Do what the response to a poll says; its keys come first, because its tasks are verified with them."""
        self._sample_seconds = claimed.sample_seconds
        await self._follow_keys(claimed)
        self._accept(claimed)

    async def _follow_keys(self, claimed: ClaimResponse) -> None:
        """Follow the platform's announcements about its keys, and store the result."""
        now = self.parts.now()
        self.identity = with_announced_keys(self.identity, claimed.keys, now)
        if lacks_link(self.identity, claimed.keys) and self._looked_up != claimed.keys[-1].key_id:
            try:
                self.identity = with_announced_keys(self.identity, await self.client.platform_keys(), now)
                self._looked_up = claimed.keys[-1].key_id
            except (Unreachable, Rejected) as error:
                log.warning("cannot read the platform's keys: %s; trying again with the next poll", error)
        self.identity = with_root_key(self.identity, claimed.root_key)
        if self.identity is not self._stored and self.parts.directory is not None:
            try:
                store_identity(self.parts.directory, self.identity)
            except OSError as error:
                log.error("cannot save which keys are trusted: %s; trying again with the next poll", error)
                return
        self._stored = self.identity

    def _accept(self, claimed: ClaimResponse) -> None:
        for envelope in claimed.tasks:
            try:
                self.executor.accept(self.verifier.verify(envelope, self.parts.now()))
            except TaskRefused as refused:
                log.warning("refused a task, and reporting that: %s", refused)
                self.reporter.report_refusal(refused.reason, refused.detail, refused.task_id)
            except JournalFull as full:
                log.error("cannot accept a task: %s; the platform will offer it again", full)
        for lease in claimed.cancel:
            self.executor.cancel(lease.task_id)

    async def _sweep(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            try:
                await self.sweep()
                backoff.reset()
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                log.warning("cannot get the allocations of this node: %s; sweeping again in ten minutes", error)
            except (HostFailure, OSError):  # the platform may hold back work until the sweep is done
                log.exception("sweep failed; retrying")
                await backoff.wait()
                continue
            self.parts.journal.prune(self.parts.now())
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Compare this machine with what the platform knows; reap and report what is ours and unknown."""
        # A sandbox may be created while the platform answers and while the machine is searched. Its allocation is added
        # to this same set before anything of it exists, so it is never taken for unknown.
        known = self.executor.touched
        known.clear()
        known.update(each.task.allocation_id for each in self.executor.tracked.values())
        known.update(await self.client.allocations())
        strays = [stray for sweep in self.parts.sweeps for stray in await sweep(known)]
        strays += await self.parts.host.sweep(known)
        # An empty list is reported too: it completes the sweep that the platform waits for.
        self.reporter.report_strays(
            [
                {
                    "kind": each.resource.kind,
                    "name": each.resource.name[:200],
                    "verdict": each.verdict,
                    "allocation_id": each.allocation_id,
                }
                for each in strays
            ]
        )


def _raise_if_retired(error: Unreachable | Rejected) -> None:
    """Stop the agent of a retired node, which would otherwise retry for ever."""
    if isinstance(error, Rejected) and error.code == "assertion_refused":
        raise NodeRetired(f"the platform no longer accepts this node: {error}") from error
