"""Commands on enrolment: an admin creates a token, and a machine joins with it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.enrolment import (
    EnrolmentContext,
    EnrolmentToken,
    JoinRequest,
    create_enrolment_token,
    enrol,
    proof_of,
    refused,
    revoke_enrolment_token,
)
from mooring.core.fleet.node import Node, NodeState
from mooring.core.fleet.node_plan import NodePlan
from mooring.core.identity.token import FreshToken
from mooring.core.kernel.decision import Actor, AuditRecord, Decision, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix, is_id
from mooring.gateways.passwords import digest
from mooring.gateways.signing.signatures import can_be_sealed_to, verifies
from mooring.storage.fleet import enrolment as tokens
from mooring.storage.fleet import node as nodes

ACTION = "node.enrol"


@dataclass(frozen=True, slots=True)
class EnrolmentProof:
    """What an agent presents to join: the token, its keys as it sent them, and its signature over all three."""

    token: str
    signing_key: str
    sealing_key: str
    proof: bytes


async def create_token(
    work: Work[EnrolmentToken], secret: str, region: str, labels: dict[str, str], *, plan: NodePlan | None = None
) -> Answered:
    async def load() -> int:
        return await tokens.count_open(work.database, work.acting, work.context.now)

    def decide(open_count: int) -> Decision[EnrolmentToken]:
        fresh = FreshToken(work.context.mint(Prefix.ENROLMENT_TOKEN), digest(secret))
        return create_enrolment_token(work.context, fresh, region, labels, open_count, plan=plan)

    return await work.execute(load, decide)


async def revoke_token(work: Work[EnrolmentToken], token_id: str) -> Answered:
    async def load() -> EnrolmentToken:
        return require(await tokens.find(work.database, work.acting, token_id), "enrolment token")

    return await work.execute(load, lambda token: revoke_enrolment_token(work.context, token))


async def join(
    work: Work[Node], presented: EnrolmentProof, joining: JoinRequest, *, guessed: Callable[[], None]
) -> Answered:
    """Make a machine a node; of several machines with one token, only the first becomes one.

    `guessed` is called before a refusal is recorded, and may refuse instead.
    """
    hashed = digest(presented.token)
    context = replace(work.context, actor=Actor(PrincipalKind.NODE, work.context.mint(Prefix.NODE)))
    known = EnrolmentContext(None)

    async def load() -> EnrolmentContext:
        nonlocal known
        known = await _known(work, hashed, joining)
        return known

    def decide(loaded: EnrolmentContext) -> Decision[Node]:
        if not verifies(
            joining.signing_key, presented.proof, proof_of(hashed, presented.signing_key, presented.sealing_key)
        ):
            raise refused("the proof is not a signature of the signing key over this token and these keys")
        if not can_be_sealed_to(joining.sealing_key):
            raise refused("the sealing key is not a valid X25519 key")
        return enrol(context, loaded, joining)

    try:
        return await replace(work, context=context).execute(load, decide)
    except Refusal as refusal:
        if refusal.code is Code.ENROLMENT_REFUSED:
            guessed()
            subject = None if known.token is None else known.token.id
            audited = AuditRecord(ACTION, "enrolment_token", subject, None, reason=refusal.detail)
            await work.services.denials.record(work.database, work.context, audited, "refused", work.origin)
        raise


async def _known(work: Work[Node], hashed: bytes, joining: JoinRequest) -> EnrolmentContext:
    token = await tokens.by_hash(work.database, hashed)
    if token is None:
        return EnrolmentContext(None)
    node = None if token.node_id is None else await nodes.find(work.database, token.node_id)
    previous = await nodes.by_retired_key(work.database, joining.signing_key)
    named = joining.previous_node_id
    if previous is None and named is not None and is_id(named, Prefix.NODE):
        claimed = await nodes.find(work.database, named)
        previous = claimed if claimed is not None and claimed.status == NodeState.RETIRED else None
    return EnrolmentContext(token, node, previous)
