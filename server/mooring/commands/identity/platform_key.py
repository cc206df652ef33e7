"""Use cases of the keys that sign tasks: rotation, a key that the root key vouches for, and the audience of tasks."""

from dataclasses import dataclass

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.identity.platform_key import (
    PREPARED,
    TASK_SIGNING,
    KeyChain,
    NextKey,
    PlatformKey,
    Vouched,
    announcement,
    audience_of,
    install_key,
    prepare_key,
    prepared_key,
    root_statement,
    rotate_key,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.signing.signatures import new_key_pair, sign, verifies
from mooring.storage.identity import platform_key as platform_keys


@dataclass(frozen=True, slots=True)
class _Loaded:
    chain: KeyChain
    signer: bytes  # the private half of the current key
    audience: str


async def rotate(work: Work[PlatformKey]) -> Answered:
    """Create the next key, signed by the current one, and put it into use."""

    def decide(loaded: _Loaded) -> Decision[PlatformKey]:
        following = _next_key(work, loaded.signer)
        return rotate_key(work.context, loaded.chain.current, following, loaded.chain.length)

    return await work.execute(lambda: _loaded(work), decide)


async def prepare(work: Work[PlatformKey]) -> Answered:
    """Create a key for the root key to sign; nothing is signed with it yet."""
    root_key(work.services)
    return await work.execute(
        lambda: _loaded(work),
        lambda loaded: prepare_key(work.context, loaded.chain, _next_key(work, loaded.signer)),
    )


async def install(work: Work[PlatformKey], key_id: str, root_signature: bytes) -> Answered:
    """Put the prepared key into use, if the root key signed it."""
    root = root_key(work.services)

    def decide(loaded: _Loaded) -> Decision[PlatformKey]:
        waiting = prepared_key(loaded.chain, key_id)
        statement = root_statement(loaded.audience, waiting.epoch or 0, waiting.id, waiting.public_key)
        if not verifies(root, root_signature, statement):
            raise Refusal(Code.SIGNATURE_KEY_UNKNOWN, "the root key did not sign this key with its epoch")
        vouched = Vouched(sign(loaded.signer, announcement(waiting.id, waiting.public_key)), root_signature)
        return install_key(work.context, loaded.chain, key_id, vouched)

    return await work.execute(lambda: _loaded(work), decide)


def root_key(services: Services) -> bytes:
    """The public half of the operator's root key."""
    found = services.settings.root_key_bytes
    if found is None:
        raise Refusal(Code.ROOT_KEY_MISSING, "no root key is set up: MOORING_ROOT_KEY is empty")
    return found


async def _loaded(work: Work[PlatformKey]) -> _Loaded:
    found = await platform_keys.signing_pair(work.database, TASK_SIGNING)
    if found is None:
        raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the platform has no key that signs tasks yet")
    current, sealed = found
    keys = await platform_keys.chain(work.database, TASK_SIGNING)
    waiting = await platform_keys.waiting(work.database, PREPARED)
    epoch = max((key.epoch for key in keys if key.epoch is not None), default=0)
    chain = KeyChain(current, waiting, len(keys), epoch)
    return _Loaded(chain, work.services.secrets.unseal(sealed), await task_audience(work.services))


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
