"""Use cases for signer keys: start and stop trusting one."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.catalog.signer_key import SignerKeySpec, add_key, remove_key
from mooring.gateways.signing.cosign_keys import read_trusted_key
from mooring.storage.catalog import signer_key as signer_keys


async def add(work: Work[SignerKey], name: str, public_key: str) -> Answered:
    """Trust a key that is given in PEM form."""
    read = read_trusted_key(public_key, "")
    spec = SignerKeySpec(name, read.algorithm, read.pem, read.fingerprint)
    return await work.execute(
        lambda: signer_keys.count(work.database, work.acting),
        lambda key_count: add_key(work.context, work.acting.tenant_id, spec, key_count),
    )


async def remove(work: Work[SignerKey], key_id: str) -> Answered:
    """Stop trusting a key immediately."""

    async def load() -> SignerKey:
        return require(await signer_keys.find(work.database, work.acting, key_id), "signer key")

    return await work.execute(load, lambda key: remove_key(work.context, key))
