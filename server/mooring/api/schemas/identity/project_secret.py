"""Request and response bodies for the secrets of projects; no response has a value."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Description, Shown, Strict, Time, allowed
from mooring.core.identity.project_secret import NAME_PATTERN, VALUE_BYTES_MAX, ProjectSecret
from mooring.core.kernel.permissions import Authority, Place, Scope

SecretName = Annotated[
    str, Meta(min_length=1, max_length=63, pattern=NAME_PATTERN, description="What launches name it by.")
]
SecretValue = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=VALUE_BYTES_MAX,
        description=f"Text of at most {VALUE_BYTES_MAX} bytes; it is never shown again.",
        extra_json_schema={"writeOnly": True},
    ),
]


class CreateSecret(Strict):
    """A secret to store in the project."""

    name: SecretName
    value: SecretValue
    description: Description = ""


class RotateSecret(Strict):
    """The value that replaces the present one."""

    value: SecretValue


class DeleteSecretQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether to delete a secret that is in use."""

    force: Annotated[
        bool, Meta(description="Delete it although instances use it: what they start later fails for lack of it.")
    ] = False


class SecretView(Shown):
    """A secret of a project, without its value."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    description: str
    version: Annotated[int, Meta(description="1 at first; each rotation adds one.")]
    instances: Annotated[int, Meta(description="How many instances that are not ended name it.")]
    created_by: str
    created_at: Time
    rotated_at: Time | None
    revision: int
    etag: str
    allowed_actions: list[str]


def secret_view(authority: Authority, secret: ProjectSecret, instances: int) -> SecretView:
    place = Place(Scope.PROJECT, secret.tenant_id, secret.project_id)
    return SecretView(
        id=secret.id,
        tenant_id=secret.tenant_id,
        project_id=secret.project_id,
        name=secret.name,
        description=secret.description,
        version=secret.version,
        instances=instances,
        created_by=secret.created_by,
        created_at=secret.created_at,
        rotated_at=secret.rotated_at,
        revision=secret.revision,
        etag=str(secret.revision),
        allowed_actions=allowed(authority, place, ("project_secret.rotate", "project_secret.delete")),
    )
