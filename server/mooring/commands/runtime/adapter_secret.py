"""Secrets that an adapter stores for its instance: with its own value, or a random one that the platform generates."""

import secrets as random_secrets
from dataclasses import dataclass, replace

from mooring.commands.fleet.runtime_secret import SEALED_FOR
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, require_claim, under_correlation
from mooring.core.fleet.runtime_secret import (
    ADAPTER_PURPOSES,
    VALUE_BYTES_MAX,
    RuntimeSecret,
    RuntimeSecretSpec,
    read_purpose,
    store_secret,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.core.runtime.claim import InstanceClaim, guard_of
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.storage.fleet import runtime_secret as runtime_secrets


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """A secret to store: with a given value, or with so many random bytes."""

    name: str
    purpose: str
    value: str | None = None
    generate_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret, and whether this request created it."""

    secret: RuntimeSecret
    created: bool


@dataclass(frozen=True, slots=True)
class _SecretContext:
    claim: InstanceClaim
    instance: Instance
    secrets: list[RuntimeSecret]  # that the instance already has


async def store(work: Work[StoredSecret], ref: ClaimRef, spec: SecretSpec) -> Answered:
    """Store a secret for the instance, or return the one that already has the name."""
    purpose = read_purpose(spec.purpose)
    if purpose not in ADAPTER_PURPOSES:
        raise invalid("purpose", f"one of {', '.join(ADAPTER_PURPOSES)}")
    if (spec.value is None) == (spec.generate_bytes is None):
        raise invalid("value", "exactly one of `value` and `generate_bytes` is required")
    value = spec.value if spec.value is not None else random_secrets.token_urlsafe(int(spec.generate_bytes or 0))
    plain = value.encode()
    if len(plain) > VALUE_BYTES_MAX:
        raise invalid("value", f"at most {VALUE_BYTES_MAX} bytes")
    _, instance = await require_claim(work.database, work.acting, ref)
    work = under_correlation(work, instance)
    tenant_id, project_id = instance.place
    secret_id = work.context.mint(Prefix.SECRET)
    sealed = work.services.secrets.seal(plain, id=secret_id, tenant_id=tenant_id, purpose=SEALED_FOR)
    stored_spec = RuntimeSecretSpec(tenant_id, project_id, spec.name, purpose.value, sealed, instance_id=instance.id)

    async def load() -> _SecretContext:
        claim, instance_now = await require_claim(work.database, work.acting, ref)
        secrets = await runtime_secrets.of_owner(work.database, work.acting, project_id, instance.id)
        return _SecretContext(claim, instance_now, secrets)

    def decide(current: _SecretContext) -> Decision[StoredSecret]:
        existing = next((each for each in current.secrets if each.name == spec.name), None)
        if existing is not None:
            if existing.purpose != purpose:
                raise Refusal(Code.NAME_TAKEN, f"the instance already has a secret of this name for {existing.purpose}")
            return Decision(StoredSecret(existing, created=False))
        if current.instance.status in (InstanceState.STOPPED, InstanceState.STOPPING):
            raise Refusal(Code.CONFLICT, f"the instance is {current.instance.status}: it takes no new secrets")
        stored = store_secret(work.context, stored_spec, len(current.secrets))
        audits = tuple(replace(each, app_instance_id=current.instance.id) for each in stored.audits)
        return Decision(
            StoredSecret(stored.result, created=True), (guard_of(current.claim), *stored.writes), stored.events, audits
        )

    return await work.execute(load, decide)
