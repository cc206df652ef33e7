"""Bundles: one version of an app as a directory that any language can write; `mooring bundle` checks and packs it.

A directory has `bundle.yaml` (or `bundle.json`), a manifest, and files for small blobs. Images and large blobs stay
where they are; the bundle names them by location and digest. `mooring publish` takes the directory, or the one file
that `mooring bundle` makes of it: a tar of exactly these files, the same bytes for the same directory.

A packed bundle may come from anywhere, so nothing of it is ever written to disk: its files are read into memory, within
limits, and only plain files with plain names count.
"""

import hashlib
import io
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand

FORMAT = 1
NAMES = ("bundle.yaml", "bundle.yml", "bundle.json")
BLOB_BYTES_MAX = 128 * 1024
DOCUMENT_BYTES_MAX = 1_048_576
PACKED_BYTES_MAX = 16 * 1_048_576
FILES_MAX = 66
ROLE = r"^[a-z][a-z0-9_-]{0,39}$"
FILE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,7}$"
REFERENCE = r"^(oci|https|s3|huggingface)://\S{1,900}@sha256:[0-9a-f]{64}$"
UNSET = f"sha256:{'0' * 64}"
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "bundle",
    "description": "bundle.yaml or bundle.json of a directory for `mooring bundle` and `mooring publish`.",
    "type": "object",
    "additionalProperties": False,
    "required": ["bundle_format", "manifest"],
    "properties": {
        "bundle_format": {"const": FORMAT},
        "manifest": {
            "type": "string",
            "pattern": FILE,
            "description": "The file with the manifest, in YAML or JSON; see /api/v1/schemas/manifest. A digest of a "
            "role that is named below may be left out, or be 64 zeros.",
        },
        "blobs": {
            "type": "object",
            "maxProperties": 64,
            "propertyNames": {"pattern": ROLE},
            "additionalProperties": {"type": "string", "pattern": FILE},
            "description": f"Role to file of this directory, at most {BLOB_BYTES_MAX} bytes each: they are uploaded.",
        },
        "references": {
            "type": "object",
            "maxProperties": 64,
            "propertyNames": {"pattern": ROLE},
            "additionalProperties": {"type": "string", "pattern": REFERENCE},
            "description": "Role to LOCATION@sha256:…: images in registries, and blobs that are elsewhere.",
        },
    },
}


class BundleRefused(click.ClickException):
    """The bundle has mistakes; the message has all of them that were found."""


@dataclass(frozen=True)
class Bundle:
    """A checked bundle."""

    manifest: dict[str, Any]  # with the digest of each role
    blobs: dict[str, bytes]  # by role
    references: dict[str, str]  # location by role
    files: dict[str, bytes]

    @property
    def slug(self) -> str:
        return str(self.manifest["app"])

    @property
    def version(self) -> str:
        return str(self.manifest["version"])


@click.command(cls=MooringCommand)
@click.argument("directory", type=click.Path())
@click.option("--out", "out", type=click.Path(dir_okay=False), help="Pack it into this file. [default: check only]")
def bundle(*, directory: str, out: str | None) -> None:
    """Check a bundle, and pack it into one file.

    Nothing is sent to a server. `mooring publish` takes the directory or the packed file.
    """
    read = read_bundle(Path(directory))
    if out is not None:
        Path(out).write_bytes(packed(read.files))
    shown = {"app": read.slug, "version": read.version, "blobs": sorted(read.blobs), "references": read.references}
    output.show(current().output, shown | ({} if out is None else {"file": out}))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle from a directory or a packed file, and check it."""
    if not path.exists():
        raise BundleRefused(f"there is no {path}")
    try:
        stored = _unpacked(path) if path.is_file() else None
        name, plain = _document(path, stored)
    except (OSError, tarfile.TarError) as error:
        raise BundleRefused(f"{path} cannot be read: {error}") from error
    mistakes = _mistakes(plain)
    if mistakes:
        raise BundleRefused(f"{name}: " + "; ".join(mistakes))
    try:
        return _whole(path, stored, name, plain)
    except OSError as error:
        raise BundleRefused(f"{path} cannot be read: {error}") from error


def packed(files: dict[str, bytes]) -> bytes:
    """The files as a tar that is the same for the same files."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(files[name]), 0o644
            archive.addfile(about, io.BytesIO(files[name]))
    return held.getvalue()


def _unpacked(path: Path) -> dict[str, bytes]:
    if path.stat().st_size > PACKED_BYTES_MAX:
        raise BundleRefused(f"{path} is larger than {PACKED_BYTES_MAX} bytes")
    files: dict[str, bytes] = {}
    with tarfile.open(path, mode="r:") as archive:
        for member in archive:
            if not member.isreg() or not re.fullmatch(FILE[1:-1], member.name) or member.name in files:
                raise BundleRefused(f"{path}: {member.name!r} is not a plain file, or is there twice")
            content = archive.extractfile(member)
            files[member.name] = b"" if content is None else content.read(DOCUMENT_BYTES_MAX + 1)
            if len(files) > FILES_MAX:
                raise BundleRefused(f"{path} has more than {FILES_MAX} files")
    return files


def _document(path: Path, stored: dict[str, bytes] | None) -> tuple[str, Any]:
    there = [name for name in NAMES if (name in stored if stored is not None else (path / name).is_file())]
    if len(there) != 1:
        raise BundleRefused(f"{path} must have exactly one of {', '.join(NAMES)}")
    return there[0], _parsed(there[0], _file(path, stored, there[0], DOCUMENT_BYTES_MAX))


def _parsed(name: str, content: bytes) -> Any:
    try:
        return yaml.load(content, yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BundleRefused(f"{name} is not YAML or JSON: {error}") from error


def _file(path: Path, stored: dict[str, bytes] | None, name: str, bytes_max: int) -> bytes:
    if stored is not None:
        if name not in stored:
            raise BundleRefused(f"{name} is missing")
        content = stored[name]
    else:
        found = path / name
        if not found.resolve().is_relative_to(path.resolve()) or not found.is_file():
            raise BundleRefused(f"{name} is missing, or is not a file of this directory")
        with found.open("rb") as file:
            content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise BundleRefused(f"{name} is larger than {bytes_max} bytes: push it somewhere and name it in `references`")
    return content


def _mistakes(plain: Any) -> list[str]:
    """What the document has against its schema."""
    if not isinstance(plain, dict):
        return ["it must be an object"]
    found = [f"{key!r} is not a field" for key in plain if key not in SCHEMA["properties"]]
    if plain.get("bundle_format") != FORMAT:
        found.append(f"bundle_format must be {FORMAT}")
    if not _fits(plain.get("manifest"), FILE):
        found.append("manifest must name a file of the directory")
    for field, pattern, form in (
        ("blobs", FILE, "a file of the directory"),
        ("references", REFERENCE, "LOCATION@sha256:…"),
    ):
        rows = plain.get(field, {})
        if not isinstance(rows, dict) or len(rows) > SCHEMA["properties"][field]["maxProperties"]:
            found.append(f"{field} must be an object with at most 64 roles")
            continue
        found += [f"{field}: {role!r} is not a role" for role in rows if not _fits(role, ROLE)]
        found += [f"{field}.{role} must be {form}" for role, value in rows.items() if not _fits(value, pattern)]
    return found


def _fits(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern[1:-1], value) is not None


def _whole(path: Path, stored: dict[str, bytes] | None, name: str, plain: dict[str, Any]) -> Bundle:
    """The bundle with its files; every digest of the manifest is that of a blob or of a reference."""
    files = {name: _file(path, stored, name, DOCUMENT_BYTES_MAX)}
    files[plain["manifest"]] = _file(path, stored, plain["manifest"], DOCUMENT_BYTES_MAX)
    manifest = _parsed(plain["manifest"], files[plain["manifest"]])
    if not isinstance(manifest, dict) or not {"app", "version"} <= set(manifest):
        raise BundleRefused(f"{plain['manifest']} is not a manifest: it has no app or no version")
    blobs = {role: _file(path, stored, each, BLOB_BYTES_MAX) for role, each in plain.get("blobs", {}).items()}
    files |= {each: blobs[role] for role, each in plain.get("blobs", {}).items()}
    references = {role: each.rpartition("@") for role, each in plain.get("references", {}).items()}
    digests = {role: f"sha256:{hashlib.sha256(content).hexdigest()}" for role, content in blobs.items()}
    digests |= {role: digest for role, (_, _, digest) in references.items()}
    stated = manifest.get("artifacts") or {}
    mistakes = [f"{role} is a blob and a reference" for role in blobs if role in references]
    mistakes += [f"the file of {role} is empty" for role, content in blobs.items() if not content]
    mistakes += [
        f"the manifest's artifact {role} is neither a blob nor a reference" for role in stated if role not in digests
    ]
    mistakes += [
        f"the manifest says {stated[role]} for {role}, and the bundle has {digest}"
        for role, digest in digests.items()
        if stated.get(role) not in (None, UNSET, digest)
    ]
    if mistakes:
        raise BundleRefused("; ".join(mistakes))
    places = {role: location for role, (location, _, _) in references.items()}
    return Bundle({**manifest, "artifacts": {**stated, **digests}}, blobs, places, files)
