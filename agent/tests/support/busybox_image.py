"""A small real image built on the spot, with busybox and nothing else, and a way to push it."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path

import httpx

BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "httpd", "sleep", "cat", "id", "ls", "wget", "touch", "env", "mount", "ping")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"


@dataclass(frozen=True)
class BuiltImage:
    """An image: its manifest and the blobs that it names."""

    manifest: bytes
    blobs: dict[str, bytes]
    layer_digest: str

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def busybox_image() -> BuiltImage:
    """An image whose programs are those of busybox."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        program = BUSYBOX.read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        page = b"hello from a container\n"
        entry = tarfile.TarInfo("www/index.html")
        entry.size, entry.mode = len(page), 0o644
        tar.addfile(entry, io.BytesIO(page))
    layer = gzip.compress(made.getvalue(), mtime=0)
    config = json.dumps(
        {
            "os": "linux",
            "architecture": "amd64",
            "config": {"Entrypoint": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(made.getvalue())]},
        }
    ).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest_of(config), "size": len(config)},
        "layers": [{"mediaType": LAYER, "digest": digest_of(layer), "size": len(layer)}],
    }
    blobs = {digest_of(layer): layer, digest_of(config): config}
    return BuiltImage(json.dumps(manifest).encode(), blobs, digest_of(layer))


def push(registry: str, repository: str, image: BuiltImage) -> None:
    """Push an image to a registry."""
    with httpx.Client(base_url=f"{registry}/v2/{repository}", timeout=180) as http:
        for digest, data in image.blobs.items():
            place = http.post("/blobs/uploads/").headers["location"]
            answer = http.put(f"{place}&digest={digest}", content=data)
            assert answer.status_code == 201, answer.text
        answer = http.put(f"/manifests/{image.digest}", content=image.manifest, headers={"Content-Type": MANIFEST})
        assert answer.status_code == 201, answer.text
