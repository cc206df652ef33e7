"""Bundles: an app's manifest, the locations of its artifacts and its adapter's key, in one file for `mooring install`.

Small blobs are written beside the file, so that a platform can use the directory for its `file:` locations
(`MOORING_SOURCE_FILE_DIRECTORY`). Everything else, such as an image in a registry, stays where it is.
"""

import base64
import hashlib
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

BUNDLE_VERSION: Final = 1


class BundleRefused(Exception):
    """The bundle cannot be written; the message says why."""


def key_at(path: Path) -> Ed25519PrivateKey:
    """Read the private key in a file; create the file, readable by its owner only, if there is none."""
    if not path.exists():
        created = Ed25519PrivateKey.generate()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(created.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        new.rename(path)
    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise BundleRefused(f"{path} is not an Ed25519 key")
    return key


def public_half(key: Ed25519PrivateKey) -> str:
    """The public half, as the platform expects it."""
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_name(stem: str, content: bytes, suffix: str) -> str:
    """The file name of a blob: it contains the digest, because a location must never change its bytes."""
    return f"{stem}-{digest_of(content).partition(':')[2][:12]}{suffix}"


def blob_at(name: str) -> dict[str, str]:
    """The location of a blob beside the bundle."""
    return {"kind": "blob", "location": f"file:{name}"}


def installable(
    about: Mapping[str, str],
    manifest: Mapping[str, Any],
    places: Mapping[str, Mapping[str, str]],
    key: Ed25519PrivateKey,
) -> dict[str, Any]:
    """A bundle: `about` has `slug`, `display_name` and `category`; `places` has the location of each role."""
    if missing := sorted(set(manifest["artifacts"]) - set(places)):
        raise BundleRefused(f"the location of {' and '.join(missing)} is missing")
    return {
        "bundle": BUNDLE_VERSION,
        "app": dict(about),
        "adapter_key": public_half(key),
        "artifacts": {role: dict(place) for role, place in places.items()},
        "manifest": dict(manifest),
    }


def write_bundle(directory: Path, bundle: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> Path:
    """Write a bundle and its blobs, by their file names, into a directory; returns the bundle's file."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, content in (blobs or {}).items():
        _write_atomically(directory / name, content)
    file = directory / f"{bundle['app']['slug']}.json"
    _write_atomically(file, json.dumps(bundle, indent=1, sort_keys=True).encode() + b"\n")
    return file


def _write_atomically(path: Path, content: bytes) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
