"""The bundles of this adapter's apps; the small blob of `hello` is included."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mooring_adapter import bundle as kit
from mooring_adapter.bundle import BUNDLE_VERSION, BundleRefused, blob_at, blob_name, installable, key_at, public_half
from mooring_workload import catalog

__all__ = ["BUNDLE_VERSION", "BundleRefused", "bundle_of", "key_at", "program_name", "public_half", "write_bundle"]


def bundle_of(app: str, given: Mapping[str, str], key: Ed25519PrivateKey, version: str | None = None) -> dict[str, Any]:
    """A bundle; `given` has `location@digest` for each role that is not included."""
    places: dict[str, dict[str, str]] = {}
    digests: dict[str, str] = {}
    for role, place in given.items():
        location, _, digest = place.partition("@")
        if not digest.startswith("sha256:"):
            raise BundleRefused(f"{place!r} must have the form LOCATION@sha256:…")
        places[role] = {"kind": "oci" if location.startswith("oci://") else "blob", "location": location}
        digests[role] = digest
    manifest = catalog.manifest_of(app, digests, version)
    if "program" in manifest["artifacts"] and "program" not in places:
        places["program"] = blob_at(program_name())
    if missing := sorted(set(manifest["artifacts"]) - set(places)):
        raise BundleRefused(
            f"the location of {' and '.join(missing)} is missing: give --artifact {missing[0]}=LOCATION@sha256:…"
        )
    about = {"slug": app, "display_name": catalog.TITLE[app], "category": catalog.CATEGORY[app]}
    return installable(about, manifest, places, key)


def program_name() -> str:
    """The file name of the program of `hello`."""
    return blob_name("hello", catalog.program(), ".py")


def write_bundle(directory: Path, bundle: Mapping[str, Any]) -> Path:
    """Write a bundle and its blob into a directory; returns the bundle's file."""
    blobs = {program_name(): catalog.program()} if "program" in bundle["artifacts"] else {}
    return kit.write_bundle(directory, bundle, blobs)
