"""The view of an instance's runtime secret, without its value."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.fleet.runtime_secret import PURPOSE_MEANING, RuntimeSecret, SecretPurpose


class InstanceSecretView(Shown):
    """A secret that an instance has at runtime."""

    id: str
    name: str
    purpose: SecretPurpose
    meaning: Annotated[str, Meta(description="What a secret of this purpose is for, and who can read it.")]
    shown: Annotated[bool, Meta(description="Whether callers who may connect to the instance can see its value.")]
    created_at: Time


def instance_secret_view(secret: RuntimeSecret) -> InstanceSecretView:
    purpose = SecretPurpose(secret.purpose)
    return InstanceSecretView(
        id=secret.id,
        name=secret.name,
        purpose=purpose,
        meaning=PURPOSE_MEANING[purpose],
        shown=purpose is SecretPurpose.APP_ACCESS,
        created_at=secret.created_at,
    )
