"""The parts of the running platform that commands use.

It has parts of every wing, so it is outside of all wings.
"""

from dataclasses import dataclass, field

from mooring.commands.live.check_runner import CheckRunner
from mooring.commands.live.denial_log import DenialLog
from mooring.commands.live.open_tasks import OpenTaskReservations
from mooring.commands.live.refusal_limit import RefusalLimit
from mooring.commands.live.row_queues import RowQueues
from mooring.gateways.clock import Clock
from mooring.gateways.egress import EgressClient
from mooring.gateways.identity_provider import ProviderCache
from mooring.gateways.passwords import Passwords
from mooring.gateways.registry.artifact_reader import ArtifactReader
from mooring.gateways.secrets import SecretBox
from mooring.gateways.work_threads import WorkThreads
from mooring.settings import Settings
from mooring.storage.fleet.capacity_offers import FleetCapacity
from mooring.storage.fleet.node_presence import NodePresence
from mooring.storage.kernel.database import Database
from mooring.storage.kernel.hub import EventHub


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    database: Database
    clock: Clock
    secrets: SecretBox
    passwords: Passwords
    hub: EventHub
    outbound: EgressClient
    artifacts: ArtifactReader
    presence: NodePresence = field(default_factory=NodePresence)
    checks: CheckRunner = field(default_factory=CheckRunner)
    fleet: FleetCapacity = field(default_factory=FleetCapacity)
    providers: ProviderCache = field(default_factory=ProviderCache)
    refusals: RefusalLimit = field(default_factory=RefusalLimit)
    threads: WorkThreads = field(default_factory=WorkThreads)
    denials: DenialLog = field(default_factory=DenialLog)
    rows: RowQueues = field(default_factory=RowQueues)
    open_tasks: OpenTaskReservations = field(default_factory=OpenTaskReservations)
