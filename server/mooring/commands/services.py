"""The parts of the running platform that commands use.

It names parts of every wing, so it stands beside the wings and not in one of them.
"""

from dataclasses import dataclass, field

from mooring.commands.live.check_runner import CheckCrew
from mooring.commands.live.refusal_limit import Refusals
from mooring.gateways.clock import Clock
from mooring.gateways.egress import Outbound
from mooring.gateways.passwords import Passwords
from mooring.gateways.registry.artifact_reader import ArtifactReader
from mooring.gateways.secrets import SecretBox
from mooring.settings import Settings
from mooring.storage.fleet.capacity_offers import Fleet
from mooring.storage.fleet.node_presence import Presence
from mooring.storage.kernel.database import Database
from mooring.storage.kernel.hub import Hub


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of the running platform that commands use."""

    settings: Settings
    database: Database
    clock: Clock
    secrets: SecretBox
    passwords: Passwords
    hub: Hub
    outbound: Outbound
    artifacts: ArtifactReader
    presence: Presence = field(default_factory=Presence)
    checks: CheckCrew = field(default_factory=CheckCrew)
    fleet: Fleet = field(default_factory=Fleet)
    refusals: Refusals = field(default_factory=Refusals)
