"""Bundles: an app's manifest, where its artifacts lie, and its adapter's key, in one file that `mooring install` takes.

Small blobs that an app brings along are written beside the file, so that the directory can be the one that a platform
opens for `file:` places (`MOORING_SOURCE_FILE_DIRECTORY`). Everything else lies where somebody put it: an image in a
registry.
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


def digest_of(content: bytes) -> str:
    """What bytes are called by."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def blob_name(stem: str, content: bytes, suffix: str) -> str:
    """What the file of a blob is called: by its content, since a place never changes its bytes."""
    return f"{stem}-{digest_of(content).partition(':')[2][:12]}{suffix}"


def blob_at(name: str) -> dict[str, str]:
    """The place of a blob that lies beside the bundle."""
    return {"kind": "blob", "location": f"file:{name}"}


def installable(
    about: Mapping[str, str],
    manifest: Mapping[str, Any],
    places: Mapping[str, Mapping[str, str]],
    key: Ed25519PrivateKey,
) -> dict[str, Any]:
    """A bundle: `about` has `slug`, `display_name` and `category`; `places` says for each role where it lies."""
    if missing := sorted(set(manifest["artifacts"]) - set(places)):
        raise BundleRefused(f"say where {' and '.join(missing)} is found")
    return {
        "bundle": BUNDLE_VERSION,
        "app": dict(about),
        "adapter_key": public_half(key),
        "artifacts": {role: dict(place) for role, place in places.items()},
        "manifest": dict(manifest),
    }


def write_bundle(directory: Path, bundle: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> Path:
    """Put a bundle, and the blobs that it brings along by their file names, into a directory; the bundle's file."""
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    for name, content in (blobs or {}).items():
        _replaced(directory / name, content)
    file = directory / f"{bundle['app']['slug']}.json"
    _replaced(file, json.dumps(bundle, indent=1, sort_keys=True).encode() + b"\n")
    return file


def _replaced(path: Path, content: bytes) -> None:
    """A file whole or not at all."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.chmod(0o644)
    new.rename(path)
