"""The worker that lets the operator's attestation command judge machines that wait for approval.

Without a command it does nothing. Replicas may ask the command about the same machine; the first verdict counts.
"""

import logging
from typing import Final

from mooring.commands.fleet.node_approval import attest
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.gateways.attestation import attestation_command

BATCH: Final = 10

log = logging.getLogger("mooring.attestation")


class AttestationWorker:
    name = "attestation"
    poll_interval_seconds = 30.0

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self._services = services
        self._command = attestation_command(settings.node_attestation_command, settings.node_attestation_seconds)

    def wants(self, event: Event) -> bool:
        return self._command is not None and event.type == EventType.NODE_CHANGED

    async def tick(self) -> float | None:
        """Judge a few machines; a full batch is followed by the next at once."""
        if self._command is None:
            return None
        judged = await attest(self._services, self._command, BATCH)
        if judged:
            log.info("the attestation command decided about %d nodes", judged)
        return 0.0 if judged == BATCH else None

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
