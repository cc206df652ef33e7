"""Showing the secret that gives access to an app to callers who may connect to it."""

from dataclasses import dataclass

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretPurpose
from mooring.core.kernel.decision import AuditRecord, Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.secret import Sealed
from mooring.core.runtime.instance import InstanceRef
from mooring.storage.fleet import runtime_secret
from mooring.storage.kernel import secret
from mooring.storage.runtime import instance


@dataclass(frozen=True, slots=True)
class RevealedSecret:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _StoredSecret:
    row: RuntimeSecret
    sealed: Sealed


async def reveal(work: Work[RevealedSecret], ref: InstanceRef, name: str) -> Answered:
    """The value of one secret of purpose `app_access`; the audit trail records who saw it."""

    async def load() -> _StoredSecret:
        require(await instance.find(work.database, work.acting, ref.project_id, ref.instance_id), "instance")
        stored = await runtime_secret.of_owner(work.database, work.acting, ref.project_id, ref.instance_id)
        row = require(next((each for each in stored if each.name == name), None), "secret")
        if row.purpose != SecretPurpose.APP_ACCESS or row.secret_id is None:
            raise Refusal(
                Code.PERMISSION_DENIED, f"the secret {name} is for {row.purpose}, and is never shown", {"name": name}
            )
        return _StoredSecret(row, require(await secret.find(work.database, work.acting, row.secret_id), "secret"))

    def decide(stored: _StoredSecret) -> Decision[RevealedSecret]:
        row = stored.row
        value = work.services.secrets.unseal(stored.sealed).decode(errors="replace")
        details = {"name": row.name, "purpose": row.purpose}
        audit = AuditRecord(
            "secret.reveal",
            "runtime_secret",
            row.id,
            row.tenant_id,
            row.project_id,
            after=details,
            app_instance_id=row.instance_id,
        )
        return Decision(RevealedSecret(row.name, value), audits=(audit,))

    return await work.execute(load, decide)
