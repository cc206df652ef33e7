"""Signer keys: the public keys whose signatures count, for everybody or for one tenant.

A key is rotated by adding the next and removing the last. A removed key stays written down, with the time, since
evidence names it; it stops counting with the next use of what it signed.
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
    """A public key that was read and found to be one."""

    name: str
    algorithm: str
    public_key: str
    fingerprint: str


def add_key(
    context: DecisionContext, tenant_id: str | None, spec: SignerKeySpec, keys_there: int
) -> Decision[SignerKey]:
    """Trust a key from now on: the platform's (no tenant) counts everywhere, a tenant's for its own artifacts."""
    if keys_there >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"at most {KEYS_MAX} keys are trusted in one place", {"limit": KEYS_MAX})
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
    """Stop trusting a key at once; removing it again changes nothing."""
    if key.removed_at is not None:
        return Decision(result=key)
    after = replace(key, removed_at=context.now, revision=key.revision + 1)
    return _decided(after, "removed", Update("signer_key", key.id, key.revision, {"removed_at": context.now}))


def _decided(key: SignerKey, change: str, write: Insert | Update) -> Decision[SignerKey]:
    told = {"change": change, "name": key.name, "fingerprint": key.fingerprint}
    return Decision(
        result=key,
        writes=(write,),
        events=(EventRecord(EventType.SIGNER_KEY_CHANGED, "signer_key", key.id, key.tenant_id, data=told),),
        audits=(AuditRecord("signer_key.update", "signer_key", key.id, key.tenant_id, after=told),),
    )
