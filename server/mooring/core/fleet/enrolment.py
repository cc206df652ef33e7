"""Enrolment: how a machine becomes a node.

An admin asks for a one-time token. The agent makes its keys on the machine, signs the token's digest together with
both of them, and sends the lot: the signature shows that it holds the key, and that nobody put another sealing key
beside it. The token is good for one node. An agent that did not hear the answer asks again with the same keys and
hears it again; with other keys the token is used up.

A machine that was a node before comes with the key of a node that is retired, or names it. It is a new node, and what
may be left of the old one is swept before it takes work.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from mooring.core.fleet.node import NODE, HostKind, Node, NodeState
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


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """What a machine says of itself when it joins; that it holds its key was checked before."""

    name: str
    host: HostKind
    labels: Mapping[str, str]
    signing_key: bytes
    sealing_key: bytes
    previous_node_id: str | None = None  # the node that its agent's state is of


@dataclass(frozen=True, slots=True)
class EnrolmentContext:
    """What the platform knows of whoever joins: the token, the node that used it, and the node that it was before."""

    token: EnrolmentToken | None
    node: Node | None = None
    previous: Node | None = None


def proof_of(token_digest: bytes, signing_key: str, sealing_key: str) -> bytes:
    """The bytes that an agent signs, with the keys as they are sent."""
    return f"mooring-enrol-v1\n{token_digest.hex()}\n{signing_key}\n{sealing_key}".encode()


def check_labels(labels: Mapping[str, str], path: str = "labels") -> dict[str, str]:
    """Labels are few and short."""
    if len(labels) > LABELS_MAX:
        raise validation.invalid(path, f"at most {LABELS_MAX} labels")
    for name, value in labels.items():
        if not _LABEL.fullmatch(name):
            raise validation.invalid(path, "names of 1 to 63 lower-case letters, digits, `_`, `.` and `-`")
        validation.remark(value, f"{path}.{name}", LABEL_VALUE_MAX)
    return dict(labels)


def create_enrolment_token(
    context: DecisionContext, fresh: FreshToken, region: str, labels: Mapping[str, str], open_there: int
) -> Decision[EnrolmentToken]:
    """A token by which one machine may join, in this region and with these labels."""
    if open_there >= TOKENS_OPEN_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"at most {TOKENS_OPEN_MAX} tokens are open", {"limit": TOKENS_OPEN_MAX})
    token = EnrolmentToken(
        id=fresh.id,
        region=validation.slug(region, "region"),
        labels=check_labels(labels),
        created_by=context.actor.id,
        revision=0,
        created_at=context.now,
        expires_at=context.now + ENROLMENT_LIFETIME,
    )
    told = {"region": token.region, "expires_at": token.expires_at.isoformat()}
    return Decision(
        result=token,
        writes=(Insert("enrolment_token", asdict(token) | {"hash": fresh.hash}),),
        events=(_token_happened(token, {"change": "created", **told}),),
        audits=(AuditRecord("node.enrol", "enrolment_token", token.id, None, after=told),),
    )


def revoke_enrolment_token(context: DecisionContext, token: EnrolmentToken) -> Decision[EnrolmentToken]:
    """A token that nobody used is no longer good; a second time changes nothing."""
    if token.used_at is not None:
        raise Refusal(Code.CONFLICT, f"{token.node_id} joined with it; retire the node", {"node_id": token.node_id})
    if token.revoked_at is not None:
        return Decision(result=token)
    return Decision(
        result=replace(token, revoked_at=context.now, revision=token.revision + 1),
        writes=(Update("enrolment_token", token.id, token.revision, {"revoked_at": context.now}),),
        events=(_token_happened(token, {"change": "revoked"}),),
        audits=(AuditRecord("node.enrol", "enrolment_token", token.id, None, before={"revoked": False}),),
    )


def enrol(context: DecisionContext, known: EnrolmentContext, joining: JoinRequest) -> Decision[Node]:
    """A machine joins with its token, or hears again that it did; `context.actor` is the node that it becomes."""
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
    told = {
        "name": node.name,
        "host": node.host,
        "region": node.region,
        "enrolment_token_id": token.id,
        "sweep_due": node.sweep_due,
        "previous_node_id": node.previous_node_id,
    }
    used = {"used_at": context.now, "node_id": node.id}
    return Decision(
        result=node,
        writes=(
            Update("enrolment_token", token.id, token.revision, used),
            Insert("node", _row(node), (NODE,)),
        ),
        events=(EventRecord(EventType.NODE_ENROLLED, "node", node.id, None, data=told),),
        audits=(AuditRecord("node.enrol", "node", node.id, None, after=told),),
    )


def refused(detail: str) -> Refusal:
    """Why a machine does not join."""
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
    )


def _is_same(node: Node, joining: JoinRequest) -> bool:
    kept = (node.signing_key, node.sealing_key)
    return kept == (joining.signing_key, joining.sealing_key) and node.status != NodeState.RETIRED


def _row(node: Node) -> dict[str, object]:
    born = ("status", "generation")
    return {name: value for name, value in asdict(node).items() if name not in born}


def _token_happened(token: EnrolmentToken, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(EventType.ENROLMENT_TOKEN_CHANGED, "enrolment_token", token.id, None, data=data)
