"""The bundle of this app: the input of `mooring install`, with the program on the node beside it."""

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mooring_adapter.bundle import blob_at, blob_name, installable, write_bundle
from mooring_slurm.catalog import ABOUT, APP, ROLE, VERSION, manifest_of, program


def bundle_of(key: Ed25519PrivateKey, version: str = VERSION) -> dict[str, Any]:
    return installable(ABOUT, manifest_of(version), {ROLE: blob_at(program_name(version))}, key)


def program_name(version: str = VERSION) -> str:
    """The file name of the program on the node."""
    return blob_name(APP, program(version), ".pyz")


def write_version(directory: Path, key: Ed25519PrivateKey, version: str = VERSION) -> Path:
    """Write the bundle of a version and its program into a directory; returns the bundle's file."""
    return write_bundle(directory, bundle_of(key, version), {program_name(version): program(version)})
