"""How each function that decides about other ways to sign in is driven, for the tests of every statement."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.identity.identity_provider import (
    GroupRole,
    IdentityProvider,
    ProviderSpec,
    create_provider,
    delete_provider,
    update_provider,
)
from mooring.core.identity.membership import Membership
from mooring.core.identity.passkey import (
    NewCredential,
    Passkey,
    PasskeyContext,
    delete_passkey,
    register_passkey,
    rename_passkey,
    sign_in_with_passkey,
)
from mooring.core.identity.provider_sign_in import KnownUser, Profile, sign_in_with
from mooring.core.identity.token import FreshToken
from mooring.core.identity.user import User
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import ROLE_ACTIONS, Authority, Role, RoleBinding, Scope, authority_of
from mooring.core.kernel.secret import Sealed


def _giver(tenant_id: str) -> Authority:
    return authority_of(tenant_id, [RoleBinding(Scope.TENANT, ROLE_ACTIONS[Role.TENANT_ADMIN])])


def _spec(now: DecisionContext, project_id: str, tenant_id: str) -> ProviderSpec:
    sealed = Sealed(now.mint(Prefix.SECRET), tenant_id, "identity_provider", "k", b"w", b"c")
    roles = [GroupRole("ml", "project_viewer", project_id), GroupRole("boss", "tenant_admin")]
    return ProviderSpec(name="Corp", client_id="mooring", scopes=["email"], group_roles=roles, sealed=sealed)


def _created(now: DecisionContext) -> Decision[IdentityProvider]:
    tenant_id = now.mint(Prefix.TENANT)
    spec = _spec(now, now.mint(Prefix.PROJECT), tenant_id)
    return create_provider(now, _giver(tenant_id), tenant_id, "https://idp.example", spec, present=0)


def _updated(now: DecisionContext) -> Iterator[Decision[Any]]:
    provider = _created(now).result
    giver = _giver(str(provider.tenant_id))
    yield update_provider(now, giver, provider, ProviderSpec(name="Other", email_domains=["corp.example"]))
    yield update_provider(now, giver, provider, _spec(now, now.mint(Prefix.PROJECT), str(provider.tenant_id)))
    yield update_provider(now, giver, provider, ProviderSpec(disabled=True))


def _signed_in(now: DecisionContext) -> Iterator[Decision[Any]]:
    provider = replace(_created(now).result, link_by_email=True)
    project_id = str(provider.roles[0].project_id)
    fresh = FreshToken(now.mint(Prefix.TOKEN), b"h" * 32)
    profile = Profile("subject", "ada@corp.example", "Ada", frozenset({"ml"}))
    user = User(
        now.mint(Prefix.USER), provider.tenant_id, "ada@corp.example", "Ada", None, None, None, None, 0, now.now
    )
    held = Membership(
        now.mint(Prefix.MEMBERSHIP), provider.tenant_id, None, user.id, "tenant_admin", 0, now.now, provider.id
    )
    projects = frozenset({project_id})
    yield sign_in_with(now, provider, profile, KnownUser(None, None, (), projects), fresh)
    yield sign_in_with(now, provider, profile, KnownUser(None, user, (), projects), fresh)
    yield sign_in_with(now, provider, profile, KnownUser(user, None, (held,), projects, 1), fresh)


def _a_user(now: DecisionContext) -> User:
    return User(now.mint(Prefix.USER), now.mint(Prefix.TENANT), "a@b.example", "A", None, None, None, None, 0, now.now)


def _registered(now: DecisionContext) -> Decision[Passkey]:
    credential = NewCredential(b"c" * 32, b"k" * 77, 0, ["internal"])
    return register_passkey(now, PasskeyContext(_a_user(now), 0, "hash"), "laptop", credential)


def _with_passkey(now: DecisionContext) -> Decision[Any]:
    fresh = FreshToken(now.mint(Prefix.TOKEN), b"h" * 32)
    return sign_in_with_passkey(now, _a_user(now), _registered(now).result, 1, fresh)


DRIVEN_SIGN_IN: Final[dict[str, Callable[[DecisionContext], Any]]] = {
    "identity_provider.create_provider": _created,
    "identity_provider.update_provider": _updated,
    "identity_provider.delete_provider": lambda now: delete_provider(now, _created(now).result),
    "provider_sign_in.sign_in_with": _signed_in,
    "passkey.register_passkey": _registered,
    "passkey.rename_passkey": lambda now: rename_passkey(now, _registered(now).result, "desk"),
    "passkey.delete_passkey": lambda now: delete_passkey(now, _registered(now).result),
    "passkey.sign_in_with_passkey": _with_passkey,
}
