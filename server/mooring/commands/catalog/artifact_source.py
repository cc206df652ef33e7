"""Use cases for allowed sources: add one, and take one off the list; and reading a private one with its credential."""

from dataclasses import dataclass, replace

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_source import ArtifactSourceSpec, SourceCredential, create_source, delete_source
from mooring.gateways.registry.registry_auth import RegistryPassword
from mooring.gateways.registry.source_refusals import auth_refused
from mooring.gateways.secrets import CannotUnseal, SecretBox
from mooring.storage.catalog import artifact_source as sources
from mooring.storage.identity import project_secret as project_secrets
from mooring.storage.kernel.database import Database


@dataclass(frozen=True, slots=True)
class CredentialRequest:
    """The credential that a caller names for a source."""

    username: str
    secret_id: str
    token_host: str | None = None


@dataclass(frozen=True, slots=True)
class _SourceContext:
    source_count: int
    spec: ArtifactSourceSpec


async def create(
    work: Work[ArtifactSource], spec: ArtifactSourceSpec, asked: CredentialRequest | None = None
) -> Answered:
    async def load() -> _SourceContext:
        return _SourceContext(
            await sources.count(work.database, work.acting), await _with_credential(work, spec, asked)
        )

    return await work.execute(
        load,
        lambda current: create_source(work.context, work.acting.tenant_id, current.spec, current.source_count),
    )


async def _with_credential(
    work: Work[ArtifactSource], spec: ArtifactSourceSpec, asked: CredentialRequest | None
) -> ArtifactSourceSpec:
    if asked is None:
        return spec
    secret = require(await project_secrets.find_in_tenant(work.database, work.acting, asked.secret_id), "secret")
    return replace(spec, credential=SourceCredential(asked.username, secret, asked.token_host))


async def delete(work: Work[ArtifactSource], source_id: str) -> Answered:
    async def load() -> ArtifactSource:
        return require(await sources.find(work.database, work.acting, source_id), "artifact source")

    return await work.execute(load, lambda source: delete_source(work.context, source))


class SourceCredentials:
    """Finds the password of a source; it is read and unsealed at each use, so that a rotation counts at once."""

    def __init__(self, database: Database, secrets: SecretBox) -> None:
        self._database = database
        self._secrets = secrets

    async def password(self, source: ArtifactSource) -> RegistryPassword | None:
        """The user name and the password of a source, None if it has none; a Refusal when it cannot be unsealed."""
        if source.username is None or source.project_secret_id is None or source.tenant_id is None:
            return None
        sealed = await project_secrets.value(self._database, source.tenant_id, source.project_secret_id)
        if sealed is None:
            return None
        try:
            return RegistryPassword(source.username, self._secrets.unseal(sealed).decode())
        except CannotUnseal as error:
            raise auth_refused(source.authority, "the stored credential cannot be unsealed") from error
