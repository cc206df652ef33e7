"""Extends the hash chains of the audit trail."""

from mooring.commands.services import Services
from mooring.core.identity.platform_key import TASK_SIGNING
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.records.audit_chain import extend, head_message
from mooring.gateways.signing.signatures import sign
from mooring.storage.identity import platform_key as platform_keys
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records import audit_chain as chains


async def chain_next(services: Services, limit: int = chains.BATCH) -> int:
    """Chain the next audit rows and sign the new heads; returns how many rows there were."""
    rows, heads = await services.database.in_snapshot(PLATFORM, lambda reader: chains.next_rows(reader, limit))
    if not rows:
        return 0
    found = await platform_keys.signing_pair(services.database, TASK_SIGNING)
    if found is None:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no signing key yet")
    key, sealed = found
    private_key = services.secrets.unseal(sealed)
    links = [
        chains.SignedHead(each.head, key.id, sign(private_key, head_message(each.chain, each.head)))
        if each.closes
        else chains.SignedHead(each.head, None, None)
        for each in extend(heads, (each.row for each in rows))
    ]
    await chains.add(services.database, rows, links)  # if another worker was faster, the next step goes on after it
    return len(rows)
