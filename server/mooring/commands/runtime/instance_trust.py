"""Asking whether what instances run is trusted now: for one before it is used, for many after something changed.

The same evaluation answers what would happen without a signer key, before somebody removes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mooring.commands.catalog.artifact_evaluation import trust_contexts
from mooring.commands.services import Services
from mooring.core.catalog.artifact import is_visible
from mooring.core.catalog.artifact_trust import ArtifactTrust, SignerKey
from mooring.core.catalog.policy import Layer, PolicyChain, Reaction
from mooring.core.catalog.policy_change import read_rules
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_trust import Distrust, assess
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime import instance_trust
from mooring.storage.runtime.instance_trust import ArtifactUse

PAGE: Final = 200
NAMED_MAX: Final = 1_000


async def current_distrust(services: Services, acting: Acting, instance_id: str) -> Distrust | None:
    """The distrust of one instance at this moment; None if it is trusted."""
    uses = await instance_trust.uses(services.database, acting, [instance_id])
    return (await assess_uses(services, acting, uses)).get(instance_id)


@dataclass(frozen=True, slots=True)
class KeyImpact:
    """What would lose its trust without a signer key, as far as this place may know."""

    tenants: int
    projects: int
    instances: int
    running: Mapping[Reaction, int]  # the same instances, by what the policy does to them
    named: Sequence[Instance]  # nothing for the platform: it sees no names of tenants


async def key_impact(services: Services, acting: Acting, key: SignerKey) -> KeyImpact:
    """Which instances would lose their trust if this key were removed now."""
    found: dict[str, tuple[ArtifactUse, Distrust]] = {}
    ids = await instance_trust.signed_by(services.database, acting, key.fingerprint)
    for start in range(0, len(ids), PAGE):
        uses = await instance_trust.uses(services.database, acting, ids[start : start + PAGE])
        now = await assess_uses(services, acting, uses)
        later = await assess_uses(services, acting, uses, without_key_id=key.id)
        found |= {
            use.instance_id: (use, later[use.instance_id])
            for use in uses
            if use.instance_id in later and use.instance_id not in now
        }
    running = dict.fromkeys(Reaction, 0)
    for _, distrust in found.values():
        running[distrust.reaction] += 1
    named: Sequence[Instance] = ()
    if acting.tenant_id is not None and found:
        named = await instance_trust.instances(services.database, sorted(found)[:NAMED_MAX], acting)
    places = {use.place for use, _ in found.values()}
    return KeyImpact(len({tenant_id for tenant_id, _ in places}), len(places), len(found), running, named)


async def assess_uses(
    services: Services, acting: Acting, uses: Sequence[ArtifactUse], *, without_key_id: str | None = None
) -> dict[str, Distrust]:
    """The distrust of each instance that is not trusted now; the same three statements for one and for many.

    `without_key_id` is a signer key to leave out.
    """
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
        if without_key_id is not None:
            context = replace(context, keys=[each for each in context.keys if each.id != without_key_id])
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
