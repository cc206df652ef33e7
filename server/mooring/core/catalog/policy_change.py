"""Changes of a policy: the syntax of its lists, how a layer is stored, and the decision to change one.

A layer is stored as plain values and parsed back into `PolicyRules`. Its names are canonical when they are stored, so a
rule cannot treat two spellings of one location differently. A layer that allows more than a layer above is refused. An
upper layer may be narrowed at any time; the layers below then simply have less effect.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.catalog.artifact_location import read_pattern
from mooring.core.catalog.policy import (
    GPUS_MAX,
    LISTS,
    REACTION_NAME,
    SIGNATURES_NAME,
    Layer,
    LayerRules,
    NameRules,
    PolicyRules,
    Subject,
    refuse_widening,
)
from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.event_types import EventType

NAMES_MAX: Final = 1_000
_NAME: Final = re.compile(r"\*|[a-z0-9][a-z0-9._-]{0,79}\*?")


@dataclass(frozen=True, slots=True)
class Policy:
    """One stored layer: of the platform, of a tenant or of a project."""

    id: str
    tenant_id: str | None
    project_id: str | None
    rules: dict[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime

    @property
    def layer(self) -> Layer:
        return layer_of(self.tenant_id, self.project_id)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """The rules that the caller asks for, and the reason."""

    rules: PolicyRules
    reason: str


def layer_of(tenant_id: str | None, project_id: str | None) -> Layer:
    if tenant_id is None:
        return Layer.GLOBAL
    return Layer.TENANT if project_id is None else Layer.PROJECT


def check_rules(rules: PolicyRules, path: str = "rules") -> PolicyRules:
    """Validate the rules and bring them into their canonical form."""
    lists: dict[str, Any] = {
        field: _check_names(getattr(rules, field), subject, f"{path}.{field}") for subject, field in LISTS.items()
    }
    if rules.gpus_max is not None and not 0 <= rules.gpus_max <= GPUS_MAX:
        raise validation.invalid(f"{path}.gpus_max", f"0 to {GPUS_MAX}")
    return replace(rules, **lists)


def plain_rules(rules: PolicyRules) -> dict[str, Any]:
    """The rules as plain values; empty rules are omitted."""
    plain: dict[str, Any] = {}
    for field in LISTS.values():
        listed: NameRules = getattr(rules, field)
        plain_list: dict[str, Any] = {} if listed.allow is None else {"allow": list(listed.allow)}
        if listed.deny:
            plain_list["deny"] = list(listed.deny)
        if plain_list:
            plain[field] = plain_list
    if rules.signatures is not None:
        plain["signatures"] = rules.signatures.name.lower()
    if rules.gpus_max is not None:
        plain["gpus_max"] = rules.gpus_max
    if rules.record_exec:
        plain["record_exec"] = True
    if rules.untrusted_instances is not None:
        plain["untrusted_instances"] = rules.untrusted_instances.name.lower()
    return plain


def read_rules(plain: Mapping[str, Any]) -> PolicyRules:
    """Parse rules from plain values."""
    lists = {}
    for field in LISTS.values():
        plain_list = plain.get(field, {})
        allow = plain_list.get("allow")
        lists[field] = NameRules(None if allow is None else tuple(allow), tuple(plain_list.get("deny", ())))
    signatures, reaction = plain.get("signatures"), plain.get("untrusted_instances")
    return PolicyRules(
        **lists,
        signatures=None if signatures is None else SIGNATURES_NAME[signatures],
        gpus_max=plain.get("gpus_max"),
        record_exec=bool(plain.get("record_exec")),
        untrusted_instances=None if reaction is None else REACTION_NAME[reaction],
    )


def layers_of(policies: Iterable[Policy]) -> tuple[LayerRules, ...]:
    """The layers of one place in the order of the chain, the widest first."""
    order = list(Layer)
    layers = [LayerRules(policy.layer, read_rules(policy.rules)) for policy in policies]
    return tuple(sorted(layers, key=lambda each: order.index(each.layer)))


def create_policy(
    context: DecisionContext,
    policy_id: str,
    spec: PolicySpec,
    above: Sequence[LayerRules],
    *,
    tenant_id: str | None,
    project_id: str | None,
) -> Decision[Policy]:
    """Create a layer with its first rules; without tenant and project it is the platform's layer."""
    rules = plain_rules(_narrowing(spec.rules, above, layer_of(tenant_id, project_id)))
    policy = Policy(policy_id, tenant_id, project_id, rules, 0, context.now, context.now)
    return Decision(
        result=policy,
        writes=(Insert("policy", asdict(policy)),),
        events=(_happened(policy),),
        audits=(_audited(policy, None, spec),),
    )


def change_policy(
    context: DecisionContext,
    policy: Policy,
    spec: PolicySpec,
    above: Sequence[LayerRules],
    revision_seen: int | None,
) -> Decision[Policy]:
    """Replace the rules of a layer; they take effect with the next decision."""
    require_revision(policy.revision, revision_seen)
    rules = plain_rules(_narrowing(spec.rules, above, policy.layer))
    after = replace(policy, rules=rules, revision=policy.revision + 1, updated_at=context.now)
    return Decision(
        result=after,
        writes=(Update("policy", policy.id, policy.revision, {"rules": rules, "updated_at": context.now}),),
        events=(_happened(after),),
        audits=(_audited(after, policy.rules, spec),),
    )


def _narrowing(rules: PolicyRules, above: Sequence[LayerRules], layer: Layer) -> PolicyRules:
    checked = check_rules(rules)
    refuse_widening(above, checked, layer)
    return checked


def _check_names(listed: NameRules, subject: Subject, path: str) -> NameRules:
    allow = None if listed.allow is None else _check_list(listed.allow, subject, f"{path}.allow")
    return NameRules(allow, _check_list(listed.deny, subject, f"{path}.deny"))


def _check_list(listed: Sequence[str], subject: Subject, path: str) -> tuple[str, ...]:
    if len(listed) > NAMES_MAX:
        raise validation.invalid(path, f"at most {NAMES_MAX} entries")
    if subject is Subject.SOURCE:
        return tuple(sorted({read_pattern(each, f"{path}.{index}") for index, each in enumerate(listed)}))
    for index, each in enumerate(listed):
        if not _NAME.fullmatch(each):
            raise validation.invalid(
                f"{path}.{index}", "lower-case letters, digits and . _ -, and optionally a * at the end"
            )
    return tuple(sorted(set(listed)))


def _happened(policy: Policy) -> EventRecord:
    data = {"layer": policy.layer.value}
    return EventRecord(EventType.POLICY_CHANGED, "policy", policy.id, policy.tenant_id, policy.project_id, data=data)


def _audited(policy: Policy, before: Mapping[str, Any] | None, spec: PolicySpec) -> AuditRecord:
    return AuditRecord(
        "policy.update",
        "policy",
        policy.id,
        policy.tenant_id,
        policy.project_id,
        before=None if before is None else {"rules": before},
        after={"rules": policy.rules},
        reason=validation.reason(spec.reason),
    )
