"""Signer keys: the public keys whose signatures are trusted, for all tenants or for one.

To rotate a key, add the new one and remove the old one. A removed key stays stored, with the time of its removal,
because evidence refers to it; artifacts that it signed are not trusted at their next use.
"""

from dataclasses import asdict, dataclass, replace
from typing import Final

from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

KEYS_MAX: Final = 50


@dataclass(frozen=True, slots=True)
class SignerKeySpec:
    """A parsed and valid public key."""

    name: str
    algorithm: str
    public_key: str
    fingerprint: str


def add_key(
    context: DecisionContext, tenant_id: str | None, spec: SignerKeySpec, key_count: int
) -> Decision[SignerKey]:
    """Trust a key: for the artifacts of one tenant, or for all artifacts when `tenant_id` is None."""
    if key_count >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a place trusts at most {KEYS_MAX} keys", {"limit": KEYS_MAX})
    key = SignerKey(
        id=context.mint(Prefix.SIGNER_KEY),
        tenant_id=tenant_id,
        fingerprint=spec.fingerprint,
        name=validation.display_name(spec.name, "name"),
        algorithm=spec.algorithm,
        public_key=spec.public_key,
        created_at=context.now,
    )
    return _decided(key, "added", Insert("signer_key", asdict(key)))


def remove_key(context: DecisionContext, key: SignerKey) -> Decision[SignerKey]:
    """Stop trusting a key immediately; removing it again changes nothing."""
    if key.removed_at is not None:
        return Decision(result=key)
    after = replace(key, removed_at=context.now, revision=key.revision + 1)
    return _decided(after, "removed", Update("signer_key", key.id, key.revision, {"removed_at": context.now}))


def _decided(key: SignerKey, change: str, write: Insert | Update) -> Decision[SignerKey]:
    data = {"change": change, "name": key.name, "fingerprint": key.fingerprint}
    return Decision(
        result=key,
        writes=(write,),
        events=(EventRecord(EventType.SIGNER_KEY_CHANGED, "signer_key", key.id, key.tenant_id, data=data),),
        audits=(AuditRecord("signer_key.update", "signer_key", key.id, key.tenant_id, after=data),),
    )
