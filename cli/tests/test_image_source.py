"""Opening images: OCI layouts and registries, whole and damaged."""

import hashlib
import http.server
import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mooring_cli.image_config import ImageRefused
from mooring_cli.image_source import opened_image
from tests.support.rows import every_row

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = json.dumps({"os": "linux", "config": {"Cmd": ["run"]}}).encode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def named(content: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": MANIFEST, "digest": digest_of(content), "size": len(content), **more}


def image(config: bytes = CONFIG, layer: bytes = b"layer") -> dict[str, bytes]:
    """An image's blobs by digest, its manifest first."""
    manifest = json.dumps({"schemaVersion": 2, "config": named(config), "layers": [named(layer)]}).encode()
    return {digest_of(each): each for each in (manifest, config, layer)}


def layout(directory: Path, blobs: dict[str, bytes], index: Any = None) -> Path:
    (directory / "blobs" / "sha256").mkdir(parents=True)
    for digest, content in blobs.items():
        (directory / "blobs" / "sha256" / digest.partition(":")[2]).write_bytes(content)
    manifest = next(iter(blobs.values()))
    document = {"schemaVersion": 2, "manifests": [named(manifest)]} if index is None else index
    (directory / "index.json").write_text(json.dumps(document))
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return directory


def test_a_layout_is_opened_by_its_manifest(tmp_path: Path) -> None:
    blobs = image()
    with opened_image(str(layout(tmp_path / "welcome", blobs))) as opened:
        assert (opened.digest, opened.config) == (next(iter(blobs)), CONFIG)
        assert [opened.file(each.digest).read_bytes() for each in opened.blobs] == [b"layer", CONFIG]


def test_of_several_platforms_the_wanted_one_is_taken(tmp_path: Path) -> None:
    arm, amd = image(layer=b"arm"), image(layer=b"amd")
    entries = [
        named(next(iter(each.values())), platform={"os": "linux", "architecture": name})
        for each, name in ((arm, "arm64"), (amd, "amd64"))
    ]
    path = str(layout(tmp_path / "both", arm | amd, {"manifests": entries}))
    with opened_image(path, "arm64") as opened:
        assert opened.digest == next(iter(arm))
    with pytest.raises(ImageRefused, match="linux/riscv64"), opened_image(path, "riscv64"):
        pass


@every_row(
    ("index", "said"),
    [
        ({}, "lists no manifest"),
        ([], "lists no manifest"),
        ({"manifests": [1]}, "no manifest for"),
        ({"manifests": [{"digest": "sha256:../../../../etc/passwd"}]}, "not a sha256 digest"),
        ({"manifests": [{"digest": f"sha256:{'0' * 64}"}]}, "cannot be read"),
        ({"manifests": [named(b"{}"), named(b"[]")]}, "2 images"),
    ],
)
def test_a_layout_that_is_wrong_says_what(tmp_path: Path, index: Any, said: str) -> None:
    path = layout(Path(tempfile.mkdtemp(dir=tmp_path)), image(), index)
    with pytest.raises(ImageRefused, match=said), opened_image(str(path)):
        pass


def test_changed_bytes_are_not_used(tmp_path: Path) -> None:
    blobs = image()
    path = layout(tmp_path / "damaged", {name: content[:-1] + b" " for name, content in blobs.items()})
    (path / "index.json").write_text(json.dumps({"manifests": [{"digest": next(iter(blobs))}]}))
    with pytest.raises(ImageRefused, match="damaged"), opened_image(str(path)):
        pass


@contextmanager
def registry(answers: dict[str, bytes]) -> Iterator[str]:
    """A registry on loopback that answers these paths; its authority."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_image_in_a_registry_stays_there(tmp_path: Path) -> None:
    blobs = image()
    digest, manifest = next(iter(blobs.items()))
    config = f"/v2/team/welcome/blobs/{digest_of(CONFIG)}"
    tag, pinned = "/v2/team/welcome/manifests/1", f"/v2/team/welcome/manifests/{digest}"
    with registry({tag: manifest, pinned: manifest, config: CONFIG}) as authority:
        for reference in (f"{authority}/team/welcome:1", f"oci://{authority}/team/welcome@{digest}"):
            with opened_image(reference) as opened:
                assert (opened.digest, opened.location) == (digest, f"oci://{authority}/team/welcome")
        with pytest.raises(ImageRefused, match="answers 404"), opened_image(f"{authority}/team/welcome:2"):
            pass


@every_row(
    ("sent", "reference", "said"),
    [(b"{} ", f"@{digest_of(b'{}')}", "damaged"), (b"x" * 5_000_000, ":1", "more than"), (b"<html>", ":1", "not JSON")],
)
def test_a_registry_that_sends_something_else_is_not_believed(sent: bytes, reference: str, said: str) -> None:
    paths = [f"/v2/welcome/manifests/{each}" for each in ("1", digest_of(b"{}"))]
    with (
        registry(dict.fromkeys(paths, sent)) as authority,
        pytest.raises(ImageRefused, match=said),
        opened_image(f"{authority}/welcome{reference}"),
    ):
        pass


def test_an_invalid_reference_is_refused(tmp_path: Path) -> None:
    for reference in ("welcome-that-nobody-built", "--help", "registry.example/UPPER", str(tmp_path)):
        with pytest.raises(ImageRefused), opened_image(reference):
            pass
