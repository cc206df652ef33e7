"""The loss of trust in the simulated world: the tenant denies the source of what runs, and allows it again."""

from dataclasses import dataclass
from random import Random

from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.catalog.policy import NameRules, PolicyRules, Reaction
from mooring.core.catalog.policy_change import Policy, PolicySpec, change_policy, create_policy
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from server.tests.world.starting_point import StartingPoint


@dataclass
class TrustFault:
    """The tenant's policy, as far as it takes trust away."""

    services: Services
    start: StartingPoint
    chance: Random
    policy: Policy | None = None  # once it denied anything

    @property
    def denies(self) -> bool:
        return self.policy is not None and bool(self.policy.rules)

    async def turn(self) -> str:
        """Deny the source of the app's artifact, with some reaction, or drop all rules again; in words what it says."""
        rules = PolicyRules()
        if not self.denies:
            reaction = self.chance.choice((Reaction.REFUSE, Reaction.DRAIN, Reaction.STOP))
            rules = PolicyRules(sources=NameRules(deny=("oci://*",)), untrusted_instances=reaction)
        context, spec = system_context(self.services), PolicySpec(rules, "the simulated tenant says so")
        if self.policy is None:
            decision = create_policy(
                context, context.mint(Prefix.POLICY), spec, (), tenant_id=self.start.tenant_id, project_id=None
            )
        else:
            decision = change_policy(context, self.policy, spec, (), None)
        await apply(self.services.database, PLATFORM, context, decision)
        self.policy = decision.result
        return f"the policy says {self.policy.rules or 'nothing'}"
