"""Request and response bodies for the platform's workload adapter."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import PublicKey, Shown, Strict, allowed
from mooring.core.catalog.workload_adapter import WorkloadAdapter
from mooring.core.identity.platform_key import encoded
from mooring.core.kernel.permissions import Authority, Place, Scope


class SetWorkloadKey(Strict):
    """The public key of the workload adapter; null removes it."""

    public_key: PublicKey | None


class WorkloadAdapterView(Shown):
    """The platform's adapter for apps of the kinds oci and launchable that have no adapter key of their own."""

    public_key: Annotated[str | None, Meta(description="In base64url; null if there is no such adapter.")]
    revision: int
    etag: str
    allowed_actions: list[str]


def workload_adapter_view(authority: Authority, adapter: WorkloadAdapter | None) -> WorkloadAdapterView:
    key = None if adapter is None or adapter.public_key is None else encoded(adapter.public_key)
    revision = 0 if adapter is None else adapter.revision
    actions = allowed(authority, Place(Scope.PLATFORM), ("app.update",))
    return WorkloadAdapterView(public_key=key, revision=revision, etag=f"{revision}", allowed_actions=actions)
