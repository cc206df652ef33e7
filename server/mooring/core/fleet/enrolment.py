"""Enrolment: how a machine becomes a node.

An admin creates a one-time token. The agent generates its keys on the machine, signs the token's digest together with
both public keys, and sends all of it: the signature proves that it holds the signing key, and that nobody replaced the
sealing key. The token is good for one node. An agent that did not get the answer may repeat the request with the same
keys and gets the same answer; with other keys the request is refused, because the token is used.

A machine that was a node before comes with the key of a retired node, or names that node. It becomes a new node, and
the agent sweeps what may be left of the old one before it takes work.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.fleet.node import NODE, HostKind, Node, NodeState
from mooring.core.fleet.node_plan import NodePlan, check_plan
from mooring.core.identity.token import FreshToken
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType

ENROLMENT_LIFETIME: Final = timedelta(minutes=15)
TOKENS_OPEN_MAX: Final = 10_000
TOKEN_PREFIX: Final = "mrge_"
LABELS_MAX: Final = 32
LABEL_PATTERN: Final = "^[a-z][a-z0-9_.-]{0,62}$"
LABEL_VALUE_MAX: Final = 200
_LABEL: Final = re.compile(LABEL_PATTERN)


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """A one-time token without its secret."""

    id: str
    region: str
    labels: dict[str, str]
    created_by: str
    revision: int
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    node_id: str | None = None
    revoked_at: datetime | None = None
    approval: str = "automatic"
    expects: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a machine says about itself when it joins; the proof that it holds its key was verified before."""

    name: str
    host: HostKind
    labels: Mapping[str, str]
    signing_key: bytes
    sealing_key: bytes
    previous_node_id: str | None = None  # the node that wrote the state which its agent found


@dataclass(frozen=True, slots=True)
class EnrolmentContext:
    """What the platform knows about the machine: its token, the node that used it, and the node that it was before."""

    token: EnrolmentToken | None
    node: Node | None = None
    previous: Node | None = None


def proof_of(token_digest: bytes, signing_key: str, sealing_key: str) -> bytes:
    """The bytes that an agent signs, with the keys as they are sent."""
    return f"mooring-enrol-v1\n{token_digest.hex()}\n{signing_key}\n{sealing_key}".encode()


def check_labels(labels: Mapping[str, str], path: str = "labels") -> dict[str, str]:
    """Refuse too many labels, wrong names and long values."""
    if len(labels) > LABELS_MAX:
        raise validation.invalid(path, f"at most {LABELS_MAX} labels")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise validation.invalid(path, "names of 1 to 63 lower-case letters, digits, `_`, `.` and `-`")
        validation.remark(value, f"{path}.{name}", LABEL_VALUE_MAX)
    return dict(labels)


def create_enrolment_token(
    context: DecisionContext,
    fresh: FreshToken,
    region: str,
    labels: Mapping[str, str],
    open_count: int,
    *,
    plan: NodePlan | None = None,
) -> Decision[EnrolmentToken]:
    """A token for one machine to join, in this region, with these labels, and with what is planned for it."""
    plan = check_plan(plan or NodePlan())
    if open_count >= TOKENS_OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"at most {TOKENS_OPEN_MAX} tokens are open", {"limit": TOKENS_OPEN_MAX})
    token = EnrolmentToken(
        id=fresh.id,
        region=validation.slug(region, "region"),
        labels=check_labels(labels),
        created_by=context.actor.id,
        revision=0,
        created_at=context.now,
        expires_at=context.now + ENROLMENT_LIFETIME,
        approval=plan.approval.value,
        expects=plan.expects.document(),
    )
    summary = {
        "region": token.region,
        "expires_at": token.expires_at.isoformat(),
        "approval": token.approval,
        "expects": token.expects,
    }
    return Decision(
        result=token,
        writes=(Insert("enrolment_token", asdict(token) | {"hash": fresh.hash}),),
        events=(_token_event(token, {"change": "created", **summary}),),
        audits=(AuditRecord("node.enrol", "enrolment_token", token.id, None, after=summary),),
    )


def revoke_enrolment_token(context: DecisionContext, token: EnrolmentToken) -> Decision[EnrolmentToken]:
    """Revoke a token that was not used; revoking it again changes nothing."""
    if token.used_at is not None:
        raise Refusal(Code.CONFLICT, f"{token.node_id} joined with it; retire the node", {"node_id": token.node_id})
    if token.revoked_at is not None:
        return Decision(result=token)
    return Decision(
        result=replace(token, revoked_at=context.now, revision=token.revision + 1),
        writes=(Update("enrolment_token", token.id, token.revision, {"revoked_at": context.now}),),
        events=(_token_event(token, {"change": "revoked"}),),
        audits=(AuditRecord("node.enrol", "enrolment_token", token.id, None, before={"revoked": False}),),
    )


def enrol(context: DecisionContext, known: EnrolmentContext, joining: JoinRequest) -> Decision[Node]:
    """Join with a token, or repeat the answer of an earlier join; `context.actor` is the new node."""
    token = known.token
    if token is None:
        raise refused("the token is unknown")
    if token.used_at is not None:
        if known.node is not None and _is_same(known.node, joining):
            return Decision(result=known.node)
        raise refused("the token was used")
    if token.revoked_at is not None:
        raise refused("the token was revoked")
    if token.expires_at <= context.now:
        raise refused("the token has expired")
    node = _joined(context, token, known, joining)
    summary = {
        "name": node.name,
        "host": node.host,
        "region": node.region,
        "enrolment_token_id": token.id,
        "sweep_due": node.sweep_due,
        "previous_node_id": node.previous_node_id,
        "approval": node.approval,
    }
    used = {"used_at": context.now, "node_id": node.id}
    return Decision(
        result=node,
        writes=(
            Update("enrolment_token", token.id, token.revision, used),
            Insert("node", _row(node), (NODE,)),
        ),
        events=(EventRecord(EventType.NODE_ENROLLED, "node", node.id, None, data=summary),),
        audits=(AuditRecord("node.enrol", "node", node.id, None, after=summary),),
    )


def refused(detail: str) -> Refusal:
    return Refusal(Code.ENROLMENT_REFUSED, detail)


def _joined(context: DecisionContext, token: EnrolmentToken, known: EnrolmentContext, joining: JoinRequest) -> Node:
    previous = known.previous
    return Node(
        id=context.actor.id,
        name=validation.slug(joining.name, "name"),
        host=joining.host.value,
        region=token.region,
        labels=check_labels({**check_labels(joining.labels), **token.labels}),
        signing_key=joining.signing_key,
        sealing_key=joining.sealing_key,
        status=NodeState.ENROLLED.value,
        generation=0,
        revision=0,
        created_at=context.now,
        sweep_due=previous is not None or joining.previous_node_id is not None,
        previous_node_id=None if previous is None else previous.id,
        approval=token.approval,
        expects=token.expects,
    )


def _is_same(node: Node, joining: JoinRequest) -> bool:
    known_keys = (node.signing_key, node.sealing_key)

    return known_keys == (joining.signing_key, joining.sealing_key) and node.status != NodeState.RETIRED


def _row(node: Node) -> dict[str, object]:
    set_by_lifecycle = ("status", "generation")
    return {name: value for name, value in asdict(node).items() if name not in set_by_lifecycle}


def _token_event(token: EnrolmentToken, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.ENROLMENT_TOKEN_CHANGED, "enrolment_token", token.id, None, data=data)
