"""Request and response bodies for allowed sources and signer keys."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import DisplayName, Shown, Strict, Time, allowed
from mooring.core.catalog.artifact_location import LOCATION_LENGTH_MAX, ArtifactSource
from mooring.core.catalog.artifact_source import HOST_PATTERN, USERNAME_PATTERN
from mooring.core.catalog.artifact_trust import SignerKey
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.gateways.signing.cosign_keys import PEM_BYTES_MAX


class SourceCredentialBody(Strict):
    """How a private registry is read."""

    username: Annotated[str, Meta(min_length=1, max_length=255, pattern=USERNAME_PATTERN)]
    secret_id: Annotated[
        str,
        Meta(
            pattern=pattern(Prefix.PROJECT_SECRET),
            description="A secret of one of the tenant's projects: the password. It takes `project_secret.use`.",
        ),
    ]
    token_host: (
        Annotated[
            str,
            Meta(max_length=259, pattern=HOST_PATTERN, description="The host of its token service, if it is another."),
        ]
        | None
    ) = None


class SourceCredentialView(Shown):
    """How a private registry is read; the password is not shown."""

    username: str
    secret_id: Annotated[str | None, Meta(description="None after the secret was deleted by force.")]
    token_host: str | None


class CreateArtifactSource(Strict):
    """A source that artifacts may come from."""

    name: DisplayName
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=LOCATION_LENGTH_MAX,
            description="A location, or the beginning of one that ends with `/*`, such as `oci://registry.example/*`.",
        ),
    ]
    reaches_private: Annotated[
        bool, Meta(description="Whether it may be in a private network; only for sources of the platform.")
    ] = False
    credential: Annotated[
        SourceCredentialBody | None, Meta(description="For a private registry; only for sources of a tenant.")
    ] = None


class ArtifactSourceView(Shown):
    """A source on the list; without a tenant it belongs to the platform and applies to all tenants."""

    id: str
    tenant_id: str | None
    name: str
    pattern: str
    reaches_private: bool
    credential: SourceCredentialView | None
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class AddSignerKey(Strict):
    """A public key whose signatures should be trusted."""

    name: DisplayName
    public_key_pem: Annotated[
        str,
        Meta(min_length=1, max_length=PEM_BYTES_MAX, description="ECDSA P-256 or Ed25519, in PEM form: `cosign.pub`."),
    ]


class SignerKeyView(Shown):
    """A key whose signatures are trusted, unless it was removed."""

    id: str
    tenant_id: str | None
    name: str
    algorithm: str
    fingerprint: str
    public_key: str
    created_at: Time | None
    removed_at: Time | None
    revision: int
    etag: str
    allowed_actions: list[str]


def source_view(authority: Authority, source: ArtifactSource) -> ArtifactSourceView:
    return ArtifactSourceView(
        id=source.id,
        tenant_id=source.tenant_id,
        name=source.name,
        pattern=source.pattern,
        reaches_private=source.reaches_private,
        credential=None
        if source.username is None
        else SourceCredentialView(
            username=source.username, secret_id=source.project_secret_id, token_host=source.token_host
        ),
        created_at=source.created_at,
        revision=source.revision,
        etag=str(source.revision),
        allowed_actions=allowed(authority, _place(source.tenant_id), ("artifact_source.update",)),
    )


def key_view(authority: Authority, key: SignerKey) -> SignerKeyView:
    return SignerKeyView(
        id=key.id,
        tenant_id=key.tenant_id,
        name=key.name,
        algorithm=key.algorithm,
        fingerprint=key.fingerprint,
        public_key=key.public_key,
        created_at=key.created_at,
        removed_at=key.removed_at,
        revision=key.revision,
        etag=str(key.revision),
        allowed_actions=[] if key.removed_at else allowed(authority, _place(key.tenant_id), ("signer_key.update",)),
    )


def _place(tenant_id: str | None) -> Place:
    return Place(Scope.PLATFORM) if tenant_id is None else Place(Scope.TENANT, tenant_id)
