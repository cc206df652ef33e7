"""Use cases of the keys that sign tasks: rotation, and the audience that tasks name."""

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.identity.platform_key import TASK_SIGNING, NextKey, PlatformKey, announcement, audience_of, rotate_key
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.signing.signatures import new_key_pair, sign
from mooring.storage.identity import platform_key as platform_keys


async def rotate(work: Work[PlatformKey]) -> Answered:
    """Create the next key, signed by the current one, and put it into use."""

    async def load() -> tuple[PlatformKey, NextKey, int]:
        found = await platform_keys.signing_pair(work.database, TASK_SIGNING)
        if found is None:
            raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
        current, sealed = found
        key_count = len(await platform_keys.chain(work.database, TASK_SIGNING))
        return current, _next_key(work, work.services.secrets.unseal(sealed)), key_count

    return await work.execute(load, lambda loaded: rotate_key(work.context, *loaded))


def _next_key(work: Work[PlatformKey], signer: bytes) -> NextKey:
    key_id, secret_id = work.context.mint(Prefix.KEY), work.context.mint(Prefix.SECRET)
    private, public = new_key_pair()
    sealed = work.services.secrets.seal(private, id=secret_id, tenant_id=None, purpose=TASK_SIGNING)
    return NextKey(key_id, public, sealed, sign(signer, announcement(key_id, public)))


async def task_audience(services: Services) -> str:
    """The audience by which tasks name this platform."""
    first = await platform_keys.first(services.database, TASK_SIGNING)
    if first is None:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
    return audience_of(first)
