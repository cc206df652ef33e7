"""The first start: a platform admin with a one-time sign-in, and the platform's signing key.

Replicas may start at once. Each tries; the database lets one of them through, and the others find it done.
"""

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.identity.user import ONE_TIME_LIFETIME, OneTime, UserChange, change_user, new_user
from mooring.core.kernel.decision import AuditRecord, Decision, EventRecord, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role
from mooring.gateways.passwords import digest, new_one_time_code
from mooring.gateways.registry.registry_token import SigningPair, new_signing_pair
from mooring.gateways.signing.signatures import new_key_pair
from mooring.storage.identity import platform_key as platform_keys
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import PLATFORM, Acting

FIRST_ADMIN_EMAIL = "admin@mooring.local"
SIGNING = "task_signing"
REGISTRY = "registry_token"


async def make_first_admin(services: Services) -> str | None:
    """The one-time code of the first platform admin, or none when there is an admin already."""
    if await users.any_platform_admin(services.database):
        return None
    context = system_context(services)
    code = new_one_time_code()
    one_time = OneTime(digest(code), context.now + ONE_TIME_LIFETIME)
    made = new_user(context, None, (FIRST_ADMIN_EMAIL, "First admin"), one_time)
    membership = {
        "id": context.mint(Prefix.MEMBERSHIP),
        "tenant_id": None,
        "project_id": None,
        "user_id": made.user.id,
        "role": Role.PLATFORM_ADMIN.value,
        "created_at": context.now,
    }
    decision = Decision(
        result=made.user,
        writes=(made.insert, Insert("membership", membership)),
        events=(EventRecord(EventType.USER_CREATED, "user", made.user.id, None),),
        audits=(AuditRecord("user.create", "user", made.user.id, None, after={"email": made.user.email}),),
    )
    try:
        await apply_and_notify(services, PLATFORM, context, decision)
    except Refusal as refusal:
        if refusal.code is Code.NAME_TAKEN:
            return None
        raise
    return code


async def recover_user(services: Services, tenant_slug: str | None, email: str) -> str:
    """A new one-time code for a user, for whoever has the database in his hands: nobody else can sign in there."""
    user = await users.find_for_sign_in(services.database, tenant_slug, email)
    if user is None:
        raise Refusal(Code.NOT_FOUND, f"there is no user {email} in {tenant_slug or 'the platform'}")
    context = system_context(services)
    code = new_one_time_code()
    fresh = OneTime(digest(code), context.now + ONE_TIME_LIFETIME)
    if user.disabled_at is not None:
        raise Refusal(Code.CONFLICT, f"{email} is disabled; another admin can enable it")
    decision = change_user(context, user, UserChange.RESET, fresh)
    await apply_and_notify(services, Acting(user.tenant_id), context, decision)
    return code


async def make_signing_key(services: Services) -> None:
    """The key that signs tasks for nodes, sealed at rest."""
    if await platform_keys.current(services.database, SIGNING) is None:
        private, public = new_key_pair()
        await _keep(services, SIGNING, "ed25519", public, private)


async def registry_pair(services: Services) -> SigningPair:
    """The pair that signs tokens for the platform's registry, made on the first start and sealed at rest."""
    while True:
        kept = await platform_keys.pair(services.database, REGISTRY)
        if kept is not None:
            certificate, sealed = kept
            return SigningPair(services.secrets.unseal(sealed), certificate)
        made = new_signing_pair(services.clock.now())
        await _keep(services, REGISTRY, "es256", made.certificate_pem, made.private_key_pem)


async def _keep(services: Services, purpose: str, algorithm: str, public: bytes, private: bytes) -> None:
    """Store a key of the platform's; when another replica was faster, its key stays."""
    context = system_context(services)
    secret_id = context.mint(Prefix.SECRET)
    sealed = services.secrets.seal(private, id=secret_id, tenant_id=None, purpose=purpose)
    key_id = context.mint(Prefix.KEY)
    row = {
        "id": key_id,
        "purpose": purpose,
        "algorithm": algorithm,
        "public_key": public,
        "secret_id": secret_id,
        "created_at": context.now,
    }
    decision = Decision(
        result=None,
        writes=(Insert("secret", sealed.row(context.now)), Insert("platform_key", row)),
        audits=(AuditRecord("platform_key.create", "platform_key", key_id, None, after={"purpose": purpose}),),
    )
    try:
        await apply_and_notify(services, PLATFORM, context, decision)
    except Refusal as refusal:
        if refusal.code is not Code.NAME_TAKEN:
            raise
