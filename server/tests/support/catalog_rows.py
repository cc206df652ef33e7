"""Artifacts, apps and versions that the tests of the catalog begin with."""

from typing import Any

from mooring.core.catalog.app import App
from mooring.core.catalog.app_version import AppVersion, VersionPart
from mooring.core.catalog.artifact import Artifact
from mooring.core.catalog.artifact_location import read_location
from mooring.core.catalog.manifest import manifest_digest, read_manifest
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.kernel.ids import Prefix
from server.tests.support.decision_context import NOW, TENANT, minter
from server.tests.support.manifests import digest, launchable

REASON = "the tests ask for it"
REPOSITORY = "registry.example/team/app"
_mint = minter()


def artifact(character: str = "b", **changes: Any) -> Artifact:
    """An image of the tenant, active and unverified."""
    row: dict[str, Any] = {
        "id": _mint(Prefix.ARTIFACT),
        "tenant_id": TENANT,
        "project_id": None,
        "visibility": "tenant",
        "kind": "oci",
        "source_type": "oci",
        "location": f"oci://{REPOSITORY}",
        "digest": digest(character),
        "algorithm": "sha256",
        "size_bytes": 1000,
        "media_type": "application/vnd.oci.image.manifest.v1+json",
        "labels": {},
        "promotion": "active",
        "promotion_generation": 3,
        "trust": "unverified",
        "trust_generation": 0,
        "revision": 0,
        "created_at": NOW,
        **changes,
    }
    if "location" in changes:
        row["source_type"] = read_location(changes["location"]).source_type.value
    return Artifact(**row)


def app(**changes: Any) -> App:
    """An app of the tenant."""
    row: dict[str, Any] = {
        "id": _mint(Prefix.APP),
        "tenant_id": TENANT,
        "slug": "web-tool",
        "display_name": "Web tool",
        "category": "tool",
        "description": "",
        "icon": "",
        "revision": 4,
        "created_at": NOW,
    }
    return App(**{**row, **changes})


def version(promotion: PromotionState = PromotionState.DRAFT, number: str = "2.1.0", **changes: Any) -> AppVersion:
    """A version of the tenant's app."""
    plain = launchable(version=number)
    manifest = read_manifest(plain).manifest
    assert manifest is not None
    row: dict[str, Any] = {
        "id": _mint(Prefix.APP_VERSION),
        "tenant_id": TENANT,
        "app_id": "app_1",
        "app_slug": "web-tool",
        "version": number,
        "version_order": read_version(number).order,
        "manifest": plain,
        "manifest_digest": manifest_digest(plain),
        "digests": list(manifest.digests),
        "promotion": promotion.value,
        "promotion_generation": 5,
        "revision": 2,
        "created_at": NOW,
    }
    return AppVersion(**{**row, **changes})


def parts(*artifacts: Artifact) -> tuple[VersionPart, ...]:
    """The two roles of the version's manifest; what is not given is active and verified."""
    given = {each.digest: each for each in artifacts}
    roles = (("main", "b"), ("weights", "c"))
    return tuple(
        VersionPart(role, digest(character), given.get(digest(character), artifact(character, trust="verified")))
        for role, character in roles
    )
