"""Bodies of the endpoints of enrolment tokens."""

from typing import Annotated, Any

from msgspec import Meta, field

from mooring.api.schemas.kernel.fields import Shown, Slug, Strict, Time, allowed
from mooring.core.fleet.enrolment import LABEL_PATTERN, LABEL_VALUE_MAX, LABELS_MAX, EnrolmentToken
from mooring.core.fleet.inventory import MODEL_MAX
from mooring.core.fleet.node_plan import GPU_COUNT_MAX, NAME_PATTERN, Approval, NodeExpectation, NodePlan
from mooring.core.kernel.permissions import Authority, Place, Scope

HERE = Place(Scope.PLATFORM)
Labels = Annotated[
    dict[Annotated[str, Meta(pattern=LABEL_PATTERN)], Annotated[str, Meta(max_length=LABEL_VALUE_MAX)]],
    Meta(max_length=LABELS_MAX, description="Names and values for people and for reports."),
]


class ExpectedNode(Strict):
    """What the machine that will join must report; what is left out is not compared."""

    gpu_model: Annotated[str, Meta(min_length=1, max_length=MODEL_MAX)] | None = None
    gpu_count: Annotated[int, Meta(ge=0, le=GPU_COUNT_MAX)] | None = None
    name_pattern: (
        Annotated[str, Meta(pattern=NAME_PATTERN, description="The name; `*` stands for any characters.")] | None
    ) = None


class CreateEnrolmentToken(Strict):
    """The region and the labels of the machine that will join, and what is planned for it."""

    region: Slug = "local"
    labels: Labels = field(default_factory=dict)
    approval: Annotated[
        Approval, Meta(description="`required`: the machine gets no work until somebody approves it.")
    ] = Approval.AUTOMATIC
    expects: Annotated[ExpectedNode, Meta(description="A machine that reports something else waits for approval.")] = (
        field(default_factory=ExpectedNode)
    )


class EnrolmentTokenView(Shown):
    """A one-time token without its secret, and the node that used it."""

    id: str
    region: str
    labels: dict[str, str]
    created_by: str
    created_at: Time
    expires_at: Time
    used_at: Time | None
    revoked_at: Time | None
    node_id: str | None
    approval: Approval
    expects: dict[str, Any] | None
    revision: int
    etag: str
    allowed_actions: list[str]


class EnrolmentTokenCreated(EnrolmentTokenView):
    """A one-time token with its secret, which is shown only once."""

    token: str


def plan_of(body: CreateEnrolmentToken) -> NodePlan:
    expects = body.expects
    return NodePlan(body.approval, NodeExpectation(expects.gpu_model, expects.gpu_count, expects.name_pattern))


def enrolment_token_view(authority: Authority, token: EnrolmentToken) -> EnrolmentTokenView:
    return EnrolmentTokenView(**_token_fields(authority, token))


def enrolment_token_created(authority: Authority, token: EnrolmentToken, *, secret: str) -> EnrolmentTokenCreated:
    return EnrolmentTokenCreated(**_token_fields(authority, token), token=secret)


def _token_fields(authority: Authority, token: EnrolmentToken) -> dict[str, Any]:
    is_open = token.used_at is None and token.revoked_at is None
    return {
        "id": token.id,
        "region": token.region,
        "labels": token.labels,
        "created_by": token.created_by,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "used_at": token.used_at,
        "revoked_at": token.revoked_at,
        "node_id": token.node_id,
        "approval": Approval(token.approval),
        "expects": token.expects,
        "revision": token.revision,
        "etag": str(token.revision),
        "allowed_actions": allowed(authority, HERE, ("node.enrol",)) if is_open else [],
    }
