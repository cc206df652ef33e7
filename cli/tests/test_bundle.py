"""`mooring bundle`: what is a bundle, packed and not, and what is refused before anything is sent."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mooring_cli.bundle import BLOB_BYTES_MAX, BundleRefused, packed, read_bundle
from mooring_cli.main import mooring
from tools import generate_bundle_schema

MANIFEST = {"app": "welcome", "version": "1.0.0", "artifacts": {"program": f"sha256:{'0' * 64}"}}
WHOLE: dict[str, Any] = {"bundle_format": 1, "manifest": "manifest.json", "blobs": {"program": "bin/program.sh"}}


def write(directory: Path, document: Any = WHOLE, manifest: Any = MANIFEST, blob: bytes = b"run") -> Path:
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    (directory / "bundle.json").write_text(json.dumps(document))
    (directory / "manifest.json").write_text(json.dumps(manifest))
    (directory / "bin" / "program.sh").write_bytes(blob)
    return directory


def test_the_published_schema_is_that_of_the_command() -> None:
    assert generate_bundle_schema.main(["--check"]) == 0


def test_a_packed_bundle_is_the_directory_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    directory, file = write(tmp_path / "app"), tmp_path / "app.tar"
    ran = CliRunner().invoke(mooring, ["bundle", str(directory), "--out", str(file), "-o", "json"])
    assert (ran.exit_code, json.loads(ran.stdout)["version"]) == (0, "1.0.0"), ran.output
    read = read_bundle(file)
    assert read == read_bundle(directory)
    assert read.manifest["artifacts"]["program"].startswith("sha256:")
    assert read.blobs == {"program": b"run"}
    assert packed(read.files) == file.read_bytes()


def test_a_malformed_bundle_is_refused_with_every_mistake(tmp_path: Path) -> None:
    reference = f"oci://registry.example/app@sha256:{'a' * 64}"
    rows: list[tuple[dict[str, Any], str]] = [
        ({"document": []}, "must be an object"),
        ({"document": {**WHOLE, "bundle_format": 2, "more": 1}}, "'more' is not a field; bundle_format must be 1"),
        ({"document": {**WHOLE, "blobs": {"program": "../outside"}}}, "blobs.program must be a file"),
        ({"document": {**WHOLE, "blobs": {"program": "bin/none"}}}, "bin/none is missing"),
        ({"document": {**WHOLE, "references": {"main": "oci://registry.example/app:latest"}}}, "LOCATION@sha256"),
        ({"document": {**WHOLE, "references": {"program": reference}}}, "a blob and a reference"),
        ({"document": {**WHOLE, "blobs": {}}}, "neither a blob nor a reference"),
        ({"manifest": {"app": "welcome"}}, "is not a manifest"),
        ({"manifest": {**MANIFEST, "artifacts": {"program": f"sha256:{'b' * 64}"}}}, "and the bundle has"),
        ({"blob": b"x" * (BLOB_BYTES_MAX + 1)}, "is larger than"),
        ({"blob": b""}, "is empty"),
    ]
    for number, (given, reason) in enumerate(rows):
        with pytest.raises(BundleRefused) as refused:
            read_bundle(write(tmp_path / str(number), **given))
        assert reason in refused.value.message, (given, refused.value.message)


def test_a_hostile_archive_or_link_reaches_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    directory = write(tmp_path / "app")
    (directory / "bin" / "program.sh").unlink()
    (directory / "bin" / "program.sh").symlink_to(tmp_path / "secret")
    with pytest.raises(BundleRefused, match="not a file of this directory"):
        read_bundle(directory)
    for name, kind in (
        ("../x", tarfile.REGTYPE),
        ("/x", tarfile.REGTYPE),
        ("x", tarfile.SYMTYPE),
        ("x", tarfile.FIFOTYPE),
    ):
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w") as archive:
            about = tarfile.TarInfo(name)
            about.type, about.linkname = kind, "/etc/passwd"
            archive.addfile(about)
        (tmp_path / "bad.tar").write_bytes(held.getvalue())
        with pytest.raises(BundleRefused, match="not a plain file"):
            read_bundle(tmp_path / "bad.tar")
