"""Commands on the keys that sign tasks."""

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.identity.platform_key import TASK_SIGNING, NextKey, PlatformKey, announcement, audience_of, rotate_key
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.signing.signatures import new_key_pair, sign
from mooring.storage.identity import platform_key as platform_keys


async def rotate(work: Work[PlatformKey]) -> Answered:
    """Put the next key into use, signed by the one that is."""

    async def load() -> tuple[PlatformKey, NextKey, int]:
        found = await platform_keys.signing_pair(work.database, TASK_SIGNING)
        if found is None:
            raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
        current, sealed = found
        there = len(await platform_keys.chain(work.database, TASK_SIGNING))
        return current, _following(work, work.services.secrets.unseal(sealed)), there

    def decide(seen: tuple[PlatformKey, NextKey, int]) -> Decision[PlatformKey]:
        return rotate_key(work.context, *seen)

    return await work.execute(load, decide)


def _following(work: Work[PlatformKey], signer: bytes) -> NextKey:
    key_id, secret_id = work.context.mint(Prefix.KEY), work.context.mint(Prefix.SECRET)
    private, public = new_key_pair()
    sealed = work.services.secrets.seal(private, id=secret_id, tenant_id=None, purpose=TASK_SIGNING)
    return NextKey(key_id, public, sealed, sign(signer, announcement(key_id, public)))


async def task_audience(services: Services) -> str:
    """How tasks name this platform."""
    first = await platform_keys.first(services.database, TASK_SIGNING)
    if first is None:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
    return audience_of(first)
