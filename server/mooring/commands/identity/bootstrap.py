"""What the first start creates: a platform admin with a one-time sign-in code, and the platform's keys.

Several replicas may start at once. Each of them tries; the database lets one succeed, and the others use its result.
"""

from secrets import token_bytes
from typing import Final

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.identity.user import OneTime, UserChange, UserSpec, change_user, new_user
from mooring.core.kernel.decision import AuditRecord, Decision, EventRecord, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role
from mooring.gateways.document_cipher import AesDocumentCipher
from mooring.gateways.passwords import digest, new_one_time_code
from mooring.gateways.registry.registry_token import SigningPair, new_signing_pair
from mooring.gateways.secrets import KEY_BYTES
from mooring.gateways.signing.signatures import new_key_pair
from mooring.gateways.tls.node_authority import AuthorityPair, new_authority_pair
from mooring.storage.identity import passkey as passkeys
from mooring.storage.identity import platform_key as platform_keys
from mooring.storage.identity import user as users
from mooring.storage.kernel import secret as secrets
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.kernel.sealed_document import know

FIRST_ADMIN_EMAIL = "admin@mooring.local"
SIGNING = "task_signing"
REGISTRY = "registry_token"
NODE_AUTHORITY = "node_authority"
DOCUMENT_KEY: Final = "sec_document_key"
"""A fixed id: of several replicas that start at once, one creates the key."""


async def make_first_admin(services: Services) -> str | None:
    """Create the first platform admin; returns their one-time code, or None when there is an admin already."""
    if await users.any_platform_admin(services.database):
        return None
    context = system_context(services)
    code = new_one_time_code()
    one_time = OneTime(digest(code), context.now + services.settings.one_time_code_lifetime)
    made = new_user(context, None, UserSpec(FIRST_ADMIN_EMAIL, "First admin"), one_time)
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
    """Reset a user from the command line of the server, for an operator who cannot sign in; returns the new code."""
    user = await users.find_for_sign_in(services.database, tenant_slug, email)
    if user is None:
        raise Refusal(Code.NOT_FOUND, f"there is no user {email} in {tenant_slug or 'the platform'}")
    context = system_context(services)
    code = new_one_time_code()
    one_time = OneTime(digest(code), context.now + services.settings.one_time_code_lifetime)
    if user.disabled_at is not None:
        raise Refusal(Code.CONFLICT, f"the user {email} is disabled; another admin can enable them")
    acting = Acting(user.tenant_id)
    removed = await passkeys.removals(services.database, acting, user.id)
    decision = change_user(context, user, UserChange.RESET, one_time, removed)
    await apply_and_notify(services, acting, context, decision)
    return code


async def make_signing_key(services: Services) -> None:
    """Create the key that signs tasks for nodes, unless there is one; its private half is stored sealed."""
    if await platform_keys.current(services.database, SIGNING) is None:
        private, public = new_key_pair()
        await _store_key(services, SIGNING, "ed25519", public, private)


async def load_document_key(services: Services) -> None:
    """Load the key that seals documents in rows; the first process creates it, sealed like any secret."""
    stored = await secrets.find(services.database, PLATFORM, DOCUMENT_KEY)
    if stored is None:
        box = services.secrets
        made = box.seal(token_bytes(KEY_BYTES), id=DOCUMENT_KEY, tenant_id=None, purpose="document_key")
        stored = await secrets.add_once(services.database, made, services.clock.now())
    cipher = AesDocumentCipher(services.secrets.unseal(stored))
    know(cipher)
    services.database.documents = cipher


async def registry_pair(services: Services) -> SigningPair:
    """The key pair that signs tokens for the platform's registry; created on the first start and stored sealed."""
    while True:
        stored = await platform_keys.pair(services.database, REGISTRY)
        if stored is not None:
            certificate, sealed = stored
            return SigningPair(services.secrets.unseal(sealed), certificate)
        made = new_signing_pair(services.clock.now())
        await _store_key(services, REGISTRY, "es256", made.certificate_pem, made.private_key_pem)


async def node_authority_pair(services: Services) -> AuthorityPair:
    """The authority that signs the client certificates of nodes; created when first needed and stored sealed."""
    while True:
        stored = await platform_keys.pair(services.database, NODE_AUTHORITY)
        if stored is not None:
            certificate, sealed = stored
            return AuthorityPair(services.secrets.unseal(sealed), certificate)
        made = new_authority_pair(services.clock.now())
        await _store_key(services, NODE_AUTHORITY, "es256", made.certificate_pem, made.private_key_pem)


async def _store_key(services: Services, purpose: str, algorithm: str, public: bytes, private: bytes) -> None:
    """Store a key of the platform; when another replica was faster, its key stays."""
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
