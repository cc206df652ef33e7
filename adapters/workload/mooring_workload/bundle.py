"""Bundles: an app's manifest, where its artifacts lie, and its adapter's key, in one file that `mooring install` takes.

The small blob of `hello` is written beside the file, so that the directory can be the one that a platform opens for
`file:` places (`MOORING_SOURCE_FILE_DIRECTORY`). Everything else lies where somebody put it: an image in a registry.
"""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from mooring_workload import catalog

BUNDLE_VERSION: Final = 1


class BundleRefused(Exception):
    """The bundle cannot be made; the message says why."""


def key_at(path: Path) -> Ed25519PrivateKey:
    """The private key in a file that its owner alone can read; made where there is none."""
    if not path.exists():
        made = Ed25519PrivateKey.generate()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        new.rename(path)
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleRefused(f"{path} holds another kind of key than Ed25519")
    return key


def public_half(key: Ed25519PrivateKey) -> str:
    """The public half, as the platform takes it."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def bundle_of(app: str, given: Mapping[str, str], key: Ed25519PrivateKey, version: str | None = None) -> dict[str, Any]:
    """A bundle; `given` says for each role that is not brought along where it lies: `location@digest`."""
    places: dict[str, dict[str, str]] = {}
    digests: dict[str, str] = {}
    for role, place in given.items():
        location, _, digest = place.partition("@")
        if not digest.startswith("sha256:"):
            raise BundleRefused(f"{place!r} is not of the form LOCATION@sha256:…")
        places[role] = {"kind": "oci" if location.startswith("oci://") else "blob", "location": location}
        digests[role] = digest
    manifest = catalog.manifest_of(app, digests, version)
    if "program" in manifest["artifacts"] and "program" not in places:
        places["program"] = {"kind": "blob", "location": f"file:{program_name()}"}
    if missing := sorted(set(manifest["artifacts"]) - set(places)):
        raise BundleRefused(f"say where {' and '.join(missing)} is found: --artifact {missing[0]}=LOCATION@sha256:…")
    about = {"slug": app, "display_name": catalog.TITLE[app], "category": catalog.CATEGORY[app]}
    return {
        "bundle": BUNDLE_VERSION,
        "app": about,
        "adapter_key": public_half(key),
        "artifacts": places,
        "manifest": manifest,
    }


def program_name() -> str:
    """What the file with the program of `hello` is called: by its content, since a place never changes its bytes."""
    return f"hello-{catalog.digest_of(catalog.program()).partition(':')[2][:12]}.py"


def write_bundle(directory: Path, bundle: Mapping[str, Any]) -> Path:
    """Put a bundle, and the blob that it brings along, into a directory; the bundle's file."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    slug = bundle["app"]["slug"]
    if "program" in bundle["artifacts"]:
        _replaced(directory / program_name(), catalog.program())
    file = directory / f"{slug}.json"
    _replaced(file, json.dumps(bundle, indent=1, sort_keys=True).encode() + b"\n")
    return file


def _replaced(path: Path, content: bytes) -> None:
    """A file whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
