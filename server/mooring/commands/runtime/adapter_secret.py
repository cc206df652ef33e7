"""Secrets that an adapter stores for its instance."""

import secrets as chance
from dataclasses import dataclass, replace

from mooring.commands.fleet.runtime_secret import SEALED_FOR
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.adapter import ClaimRef, held, under_correlation
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
    """A secret that an adapter wants kept: a value of its own, or so many bytes of chance."""

    name: str
    purpose: str
    value: str | None = None
    generate_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """A secret, and whether it is new."""

    secret: RuntimeSecret
    created: bool


async def store(work: Work[StoredSecret], claimed: ClaimRef, wanted: SecretSpec) -> Answered:
    """Keep a secret for the instance, or answer with the one that has the name."""
    purpose = read_purpose(wanted.purpose)
    if purpose not in ADAPTER_PURPOSES:
        raise invalid("purpose", f"one of {', '.join(ADAPTER_PURPOSES)}")
    if (wanted.value is None) == (wanted.generate_bytes is None):
        raise invalid("value", "either `value` or `generate_bytes`")
    value = wanted.value if wanted.value is not None else chance.token_urlsafe(int(wanted.generate_bytes or 0))
    plain = value.encode()
    if len(plain) > VALUE_BYTES_MAX:
        raise invalid("value", f"at most {VALUE_BYTES_MAX} bytes")
    _, instance = await held(work.database, work.acting, claimed)
    work = under_correlation(work, instance)
    tenant_id, project_id = instance.place
    secret_id = work.context.mint(Prefix.SECRET)
    sealed = work.services.secrets.seal(plain, id=secret_id, tenant_id=tenant_id, purpose=SEALED_FOR)
    wish = RuntimeSecretSpec(tenant_id, project_id, wanted.name, purpose.value, sealed, instance_id=instance.id)

    async def load() -> tuple[InstanceClaim, Instance, list[RuntimeSecret]]:
        claim, now = await held(work.database, work.acting, claimed)
        return claim, now, await runtime_secrets.of_owner(work.database, work.acting, project_id, instance.id)

    def decide(seen: tuple[InstanceClaim, Instance, list[RuntimeSecret]]) -> Decision[StoredSecret]:
        claim, now, there = seen
        earlier = next((each for each in there if each.name == wanted.name), None)
        if earlier is not None:
            if earlier.purpose != purpose:
                raise Refusal(Code.NAME_TAKEN, f"the instance has a secret of this name for {earlier.purpose}")
            return Decision(StoredSecret(earlier, created=False))
        if now.status in (InstanceState.STOPPED, InstanceState.STOPPING):
            raise Refusal(Code.CONFLICT, f"the instance is {now.status}: it gets no new secret")
        kept = store_secret(work.context, wish, len(there))
        audits = tuple(replace(each, app_instance_id=now.id) for each in kept.audits)
        return Decision(StoredSecret(kept.result, created=True), (guard_of(claim), *kept.writes), kept.events, audits)

    return await work.execute(load, decide)
