"""Use cases of identity providers, as admins set them up."""

from dataclasses import replace
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.identity_provider import (
    SEALED_FOR,
    IdentityProvider,
    ProviderSpec,
    create_provider,
    delete_provider,
    update_provider,
)
from mooring.core.identity.tenant import require_revision
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.ids import Prefix
from mooring.storage.identity import identity_provider as providers


async def create(work: Work[IdentityProvider], issuer: str, spec: ProviderSpec, secret: str | None) -> Answered:
    """Set up a provider; its issuer must be an address that the platform may dial."""
    await work.services.outbound.check(issuer)
    whole = _with_secret(work, spec, secret)

    async def load() -> int:
        return await providers.count(work.database, work.acting)

    return await work.execute(
        load,
        lambda present: create_provider(
            work.context, work.authority, work.acting.tenant_id, issuer, whole, present=present
        ),
    )


async def update(
    work: Work[IdentityProvider],
    provider_id: str,
    spec: ProviderSpec,
    secret: str | None,
    *,
    revision: int | None,
) -> Answered:
    whole = _with_secret(work, spec, secret)

    def decide(provider: IdentityProvider) -> Decision[IdentityProvider]:
        require_revision(provider.revision, revision)
        return update_provider(work.context, work.authority, provider, whole)

    return await work.execute(lambda: _load(work, provider_id), decide)


async def delete(work: Work[IdentityProvider], provider_id: str) -> Answered:
    return await work.execute(
        lambda: _load(work, provider_id), lambda provider: delete_provider(work.context, provider)
    )


async def _load(work: Work[Any], provider_id: str) -> IdentityProvider:
    return require(await providers.find(work.database, work.acting, provider_id), "identity provider")


def _with_secret(work: Work[Any], spec: ProviderSpec, secret: str | None) -> ProviderSpec:
    """The spec with the client's secret, sealed before anything else happens to it."""
    if secret is None:
        return spec
    sealed = work.services.secrets.seal(
        secret.encode(), id=work.context.mint(Prefix.SECRET), tenant_id=work.acting.tenant_id, purpose=SEALED_FOR
    )
    return replace(spec, sealed=sealed)
