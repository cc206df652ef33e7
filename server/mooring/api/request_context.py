"""One request: its caller, its place, and access to services and commands."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from mooring.api.auth import Authenticator
from mooring.api.guess_limits import GuessLimits
from mooring.api.limits import RateLimit
from mooring.api.project_tenant_cache import ProjectTenantCache
from mooring.api.route import Route
from mooring.commands.kernel.work import IdempotencyRequest, PresentedAnswer, Work
from mooring.commands.live.claim_broker import ClaimBroker
from mooring.commands.live.log_watch import LogWatch
from mooring.commands.live.task_dispatcher import TaskDispatcher
from mooring.commands.live.terminals import Terminals
from mooring.commands.services import Services
from mooring.core.identity.caller import Caller
from mooring.core.kernel.decision import AuditRecord, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place
from mooring.core.runtime.visit import RelayAddress
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.gateways.tls.node_authority import NodeAuthority
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import Origin

Result = TypeVar("Result")
encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class AppState:
    """What the API keeps while it runs."""

    services: Services
    authenticator: Authenticator
    guesses: GuessLimits
    telemetry: Telemetry
    readiness: Callable[[], Awaitable[list[str]]]
    projects: ProjectTenantCache
    dispatcher: TaskDispatcher
    claims: ClaimBroker
    terminals: Terminals
    logs: LogWatch = field(default_factory=LogWatch)  # who waits for which log read
    log_reads: RateLimit = field(
        default_factory=lambda: RateLimit(2.0, 20.0)
    )  # per member, since each read goes to a node
    chain_reads: RateLimit = field(
        default_factory=lambda: RateLimit(1.0, 30.0)
    )  # per chain, since each read counts its rows
    meter_events: RateLimit = field(default_factory=lambda: RateLimit(20_000.0, 50_000.0))  # per tenant, in events
    sign_in_starts: RateLimit = field(
        default_factory=lambda: RateLimit(2.0, 60.0)
    )  # per address, since each of them stores a challenge
    addresses: list[str] = field(
        default_factory=list
    )  # the URLs of this platform, which are the audiences of assertions
    streams: dict[str, int] = field(default_factory=dict)  # open streams by principal
    sessions: dict[str, str] = field(default_factory=dict)  # node → the agent process that polled last
    relay: RelayAddress = field(default_factory=RelayAddress)
    node_authority: NodeAuthority | None = None  # None: client certificates of nodes are not used


class RequestContext(msgspec.Struct, frozen=True, kw_only=True):
    """An authorized request."""

    tools: AppState
    route: Route
    caller: Caller
    context: DecisionContext
    place: Place
    acting: Acting
    origin: Origin
    path: str
    token: str | None = None
    idempotency: IdempotencyRequest | None = None
    headers: dict[str, str] = {}
    gone: list[Callable[[], object]] | None = None  # callbacks for when the caller disconnects

    @property
    def services(self) -> Services:
        return self.tools.services

    def require_also(self, action: str) -> None:
        """Refuse unless the caller holds a further key, which the route declares in `also`, at this place."""
        if action not in self.route.also:
            raise ValueError(f"{self.route.key} does not declare that it also needs {action}")
        if action not in self.caller.authority.at(self.place):
            raise Refusal(Code.PERMISSION_DENIED, f"this caller does not have {action} here", {"action": action})

    def work(self, view: Callable[[Result], Any], *, acting: Acting | None = None) -> Work[Result]:
        """The work of this request; `view` turns its result into the response."""
        route = self.route

        def present(result: Result) -> PresentedAnswer:
            shown = view(result)
            body = b"" if shown is None else encode_json(shown)
            return PresentedAnswer(route.status, body, has_secret=route.one_time_secret)

        return Work(
            services=self.services,
            acting=acting or self.acting,
            context=self.context,
            authority=self.caller.authority,
            origin=self.origin,
            idempotency=self.idempotency,
            present=present,
            path=self.path,
            shown=self._shown(),
        )

    def _shown(self) -> AuditRecord | None:
        """Inside a break-glass entry the tenant sees every answer, also of a change that changed nothing."""
        if self.caller.actor.break_glass_id is None:
            return None
        tenant_id, project_id = self.caller.tenant_id, self.place.project_id
        return AuditRecord(self.route.action, self.route.noun, None, tenant_id, project_id)
