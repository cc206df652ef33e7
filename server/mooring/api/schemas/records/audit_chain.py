"""Bodies of the endpoints of the audit trail's hash chain."""

from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Meta

from mooring.api.page import Limit
from mooring.api.schemas.kernel.fields import Shown, Strict, Time
from mooring.core.identity.platform_key import PlatformKey, encoded
from mooring.core.records.audit_chain import document_of
from mooring.storage.records.audit_chain import ChainState, SignedHead, StoredLink

LinkHash = Annotated[str, Meta(description="SHA-256 in hexadecimal.")]
Signature = Annotated[str, Meta(description="The platform's Ed25519 signature over this link, in base64url.")]


class AuditLinkQuery(Strict):
    """After which position the links begin, and how many there are at most."""

    after: Annotated[int, Meta(ge=0, le=2**62, description="The last position that the caller has.")] = 0
    limit: Limit = 100


class AuditHeadView(Shown):
    """A link of the chain."""

    position: int
    link: LinkHash
    key_id: str | None
    signature: Signature | None


class AuditLinkView(AuditHeadView):
    """A link, and the audit row that it hashes; null: the row is gone, although no checkpoint vouches for it."""

    row: dict[str, Any] | None


class AuditLinkPage(Shown):
    """Links in order; `next_after` is null when there are no more."""

    items: list[AuditLinkView]
    next_after: int | None


class AuditKeyView(Shown):
    """A key that signs the chain."""

    id: str
    public_key: Annotated[str, Meta(description="Ed25519, in base64url.")]


class AuditChainView(Shown):
    """The state of a chain: where it begins and ends, and how many rows it covers."""

    chain: Annotated[str, Meta(description="The tenant's id, or `platform`.")]
    stored_rows: int
    waiting_rows: Annotated[int, Meta(description="The newest rows, which are not chained yet.")]
    head: AuditHeadView | None
    checkpoint: Annotated[AuditHeadView | None, Meta(description="Up to where retention deleted the chain.")]
    checkpoint_made_at: Time | None
    keys: list[AuditKeyView]


def chain_view(state: ChainState, keys: Iterable[PlatformKey]) -> AuditChainView:
    return AuditChainView(
        chain=state.chain,
        stored_rows=state.stored,
        waiting_rows=state.waiting,
        head=None if state.head is None else AuditHeadView(**_fields(state.head)),
        checkpoint=None if state.checkpoint is None else AuditHeadView(**_fields(state.checkpoint)),
        checkpoint_made_at=state.checkpoint_made_at,
        keys=[AuditKeyView(id=each.id, public_key=encoded(each.public_key)) for each in keys],
    )


def link_page(links: list[StoredLink], limit: int) -> AuditLinkPage:
    """A page of at most `limit` links; the extra one that was read says whether more follow."""
    shown = links[:limit]
    return AuditLinkPage(
        items=[
            AuditLinkView(**_fields(each.signed), row=None if each.row is None else document_of(each.row))
            for each in shown
        ],
        next_after=shown[-1].signed.head.position if len(links) > limit else None,
    )


def _fields(signed: SignedHead) -> dict[str, Any]:
    return {
        "position": signed.head.position,
        "link": signed.head.link.hex(),
        "key_id": signed.key_id,
        "signature": None if signed.signature is None else encoded(signed.signature),
    }
