"""Showing the secret that opens an app to whoever may connect to it."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.runtime.instance import InstanceRef
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretPurpose
from mooring.core.kernel.decision import AuditRecord, Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.secret import Sealed
from mooring.storage.fleet import runtime_secret
from mooring.storage.kernel import secret
from mooring.storage.runtime import instance


async def reveal(work: Work[tuple[str, str]], at: InstanceRef, name: str) -> Answered:
    """The value of one secret of purpose `app_access`; that it was shown, and to whom, stands in the audit trail."""

    async def load() -> tuple[RuntimeSecret, Sealed]:
        require(await instance.find(work.database, work.acting, *at.place), "instance")
        stored = await runtime_secret.of_owner(work.database, work.acting, *at.place)
        row = require(next((each for each in stored if each.name == name), None), "secret")
        if row.purpose != SecretPurpose.APP_ACCESS or row.secret_id is None:
            raise Refusal(
                Code.PERMISSION_DENIED, f"the secret {name} is for {row.purpose}, and shown to nobody", {"name": name}
            )
        return row, require(await secret.find(work.database, work.acting, row.secret_id), "secret")

    def decide(seen: tuple[RuntimeSecret, Sealed]) -> Decision[tuple[str, str]]:
        row, sealed = seen
        value = work.services.secrets.unseal(sealed).decode(errors="replace")
        told = {"name": row.name, "purpose": row.purpose}
        audit = AuditRecord(
            "secret.reveal",
            "runtime_secret",
            row.id,
            row.tenant_id,
            row.project_id,
            after=told,
            app_instance_id=row.instance_id,
        )
        return Decision((row.name, value), audits=(audit,))

    return await work.execute(load, decide)
