"""Commands on runtime secrets: stored for an instance or an allocation, and destroyed with it."""

from dataclasses import dataclass

from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.runtime_secret import (
    VALUE_BYTES_MAX,
    RuntimeSecret,
    RuntimeSecretSpec,
    destroy_all,
    store_secret,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.storage.fleet import runtime_secret as runtime_secrets

SEALED_FOR = "runtime_secret"


@dataclass(frozen=True, slots=True)
class SecretOwner:
    """What a secret belongs to: one instance, or one allocation, of a project."""

    tenant_id: str
    project_id: str
    instance_id: str | None = None
    allocation_id: str | None = None

    @property
    def id(self) -> str:
        return str(self.instance_id or self.allocation_id)


async def store(work: Work[RuntimeSecret], owner: SecretOwner, value: bytes, *, name: str, purpose: str) -> Answered:
    """Store a secret under a name and for a purpose; its value is sealed before anything else happens to it."""
    if not 1 <= len(value) <= VALUE_BYTES_MAX:
        raise invalid("value", f"1 to {VALUE_BYTES_MAX} bytes")
    sealed = work.services.secrets.seal(
        value, id=work.context.mint(Prefix.SECRET), tenant_id=owner.tenant_id, purpose=SEALED_FOR
    )
    spec = RuntimeSecretSpec(
        owner.tenant_id, owner.project_id, name, purpose, sealed, owner.instance_id, owner.allocation_id
    )

    async def load() -> int:
        return len(await runtime_secrets.of_owner(work.database, work.acting, owner.project_id, owner.id))

    return await work.execute(load, lambda present: store_secret(work.context, spec, present))


async def destroy(work: Work[tuple[RuntimeSecret, ...]], owner: SecretOwner) -> Answered:
    async def load() -> list[RuntimeSecret]:
        return await runtime_secrets.of_owner(work.database, work.acting, owner.project_id, owner.id)

    def decide(found: list[RuntimeSecret]) -> Decision[tuple[RuntimeSecret, ...]]:
        return destroy_all(work.context, found)

    return await work.execute(load, decide)
