"""Request and response bodies for policies."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.catalog.app import Reason
from mooring.api.schemas.kernel.fields import Revision, Shown, Strict, Time, allowed
from mooring.core.catalog.policy import (
    GPUS_MAX,
    LISTS,
    REACTION_NAME,
    SIGNATURES_NAME,
    Layer,
    NameRules,
    PolicyRules,
    PolicyVerdict,
    Subject,
)
from mooring.core.catalog.policy_change import NAMES_MAX, Policy
from mooring.core.kernel.permissions import Authority, Place, Scope

Pattern = Annotated[str, Meta(min_length=1, max_length=1000)]
Allowed = Annotated[
    list[Pattern],
    Meta(max_length=NAMES_MAX, description="Names, or prefixes that end with `*`; without this list all are allowed."),
]
Denied = Annotated[
    list[Pattern],
    Meta(max_length=NAMES_MAX, description="The same form; the deny list has precedence over the allow list."),
]
Signatures = Annotated[
    str,
    Meta(
        pattern="^(none|images|everything)$",
        description="What must be signed by a trusted key: `none`, `images` or `everything`.",
    ),
]
GpusMax = Annotated[int, Meta(ge=0, le=GPUS_MAX, description="How many GPUs a project may have at once.")]
RecordExec = Annotated[
    bool, Meta(description="Whether what exec sessions show is recorded; one layer that says so is enough.")
]
UntrustedInstances = Annotated[
    str,
    Meta(
        pattern="^(notify|refuse|drain|stop)$",
        description=(
            "What happens to running instances whose artifacts are no longer trusted: `notify` their project, also "
            "`refuse` actions and attachments, also `drain` their members, or `stop` them. The strictest layer counts; "
            "without a rule of the platform it is `refuse`."
        ),
    ),
]
AskedName = Annotated[str, Meta(min_length=1, max_length=200)]


class NamesRule(Strict):
    """What is allowed (null: everything) and what is denied, which has precedence; a name may end with `*`."""

    allow: Allowed | None = None
    deny: Denied = msgspec.field(default_factory=list)


class RulesBody(Strict):
    """The rules of one layer; an omitted field is not restricted."""

    sources: NamesRule | None = None
    regions: NamesRule | None = None
    skus: NamesRule | None = None
    apps: NamesRule | None = None
    signatures: Signatures | None = None
    gpus_max: GpusMax | None = None
    record_exec: RecordExec = False
    untrusted_instances: UntrustedInstances | None = None


class PutPolicy(Strict):
    """All rules of a layer, and the reason for them."""

    rules: RulesBody
    reason: Reason
    revision: Revision | None = None


class PolicyView(Shown):
    """One layer of the policy; a layer without rules has no id yet."""

    id: str | None
    tenant_id: str | None
    project_id: str | None
    layer: Layer
    rules: dict[str, Any]
    updated_at: Time | None
    revision: int
    etag: str
    allowed_actions: list[str]


class ExplainQuery(Strict):
    """The hypothetical request; omitted fields are not checked."""

    source: Annotated[str, Meta(min_length=1, max_length=1000)] | None = None
    region: AskedName | None = None
    sku: AskedName | None = None
    app: AskedName | None = None
    gpus: Annotated[int, Meta(ge=0, le=GPUS_MAX)] | None = None
    signed: bool | None = None
    image: bool = True


class VerdictView(Shown):
    """The verdict of one layer on one part of the request."""

    layer: Layer | None
    subject: Subject | None
    value: str
    allowed: bool
    reason: str


class ExplainedView(Shown):
    """The decision, the layer that made it and why, and the verdicts of all layers."""

    allowed: bool
    decided_by: Layer | None
    reason: str
    answers: list[VerdictView]


def rules_of(body: RulesBody) -> PolicyRules:
    lists = {field: _names(getattr(body, field)) for field in LISTS.values()}
    reaction = body.untrusted_instances
    return PolicyRules(
        **lists,
        signatures=None if body.signatures is None else SIGNATURES_NAME[body.signatures],
        gpus_max=body.gpus_max,
        record_exec=body.record_exec,
        untrusted_instances=None if reaction is None else REACTION_NAME[reaction],
    )


def policy_view(authority: Authority, place: Place, policy: Policy | None) -> PolicyView:
    revision = 0 if policy is None else policy.revision
    return PolicyView(
        id=None if policy is None else policy.id,
        tenant_id=None if policy is None else policy.tenant_id,
        project_id=place.project_id,
        layer={Scope.PLATFORM: Layer.GLOBAL, Scope.TENANT: Layer.TENANT}.get(place.scope, Layer.PROJECT),
        rules={} if policy is None else policy.rules,
        updated_at=None if policy is None else policy.updated_at,
        revision=revision,
        etag=str(revision),
        allowed_actions=allowed(authority, place, ("policy.update",)),
    )


def explained_view(verdict: PolicyVerdict, answers: tuple[PolicyVerdict, ...]) -> ExplainedView:
    return ExplainedView(
        allowed=verdict.allowed,
        decided_by=verdict.layer,
        reason=verdict.reason,
        answers=[
            VerdictView(
                layer=each.layer, subject=each.subject, value=each.value, allowed=each.allowed, reason=each.reason
            )
            for each in answers
        ],
    )


def _names(rule: NamesRule | None) -> NameRules:
    if rule is None:
        return NameRules()
    return NameRules(None if rule.allow is None else tuple(rule.allow), tuple(rule.deny))
