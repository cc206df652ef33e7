"""Asking whether what instances run is trusted now: for one before it is used, for many after something changed."""

from collections.abc import Sequence
from dataclasses import replace

from mooring.commands.catalog.artifact_evaluation import trust_contexts
from mooring.commands.services import Services
from mooring.core.catalog.artifact import is_visible
from mooring.core.catalog.artifact_trust import ArtifactTrust
from mooring.core.catalog.policy import Layer, PolicyChain
from mooring.core.catalog.policy_change import read_rules
from mooring.core.runtime.instance_trust import Distrust, assess
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import instance_trust
from mooring.storage.runtime.instance_trust import ArtifactUse


async def current_distrust(services: Services, acting: Acting, instance_id: str) -> Distrust | None:
    """The distrust of one instance at this moment; None if it is trusted."""
    uses = await instance_trust.uses(services.database, acting, [instance_id])
    return (await assess_uses(services, acting, uses)).get(instance_id)


async def assess_uses(services: Services, acting: Acting, uses: Sequence[ArtifactUse]) -> dict[str, Distrust]:
    """The distrust of each instance that is not trusted now; the same three statements for one and for many."""
    database, digests = services.database, sorted({digest for use in uses for digest in use.digests})
    if not digests:
        return {}
    contexts = await trust_contexts(services, acting, (use.place for use in uses))
    tenant_ids, project_ids = ([*{place[at] for place in contexts}] for at in (0, 1))
    registered = await artifacts.find_in_places(
        database, acting, digests, tenant_ids=tenant_ids, project_ids=project_ids
    )
    evidence = await artifacts.evidence(database, acting, [each.id for each in registered])
    found: dict[str, Distrust] = {}
    for use in uses:
        context = contexts[use.place]
        if use.entitlement_rules:
            context = replace(context, policy=_narrowed(context.policy, use))
        own = [each for each in registered if each.digest in use.digests and is_visible(each, *use.place)]
        evaluated = [ArtifactTrust(each, context.evaluate(each, evidence[each.id])) for each in own]
        distrust = assess(use.digests, evaluated, context.policy)
        if distrust is not None:
            found[use.instance_id] = distrust
    return found


def _narrowed(policy: PolicyChain, use: ArtifactUse) -> PolicyChain:
    return policy.narrowed(Layer.ENTITLEMENT, read_rules(use.entitlement_rules or {}))
