"""Attacks of a hostile registry, manifest or task by the URLs and digests that it names."""

import hashlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.artifacts.http_sources import MANIFESTS, HttpSource, RegistryRepository
from mooring_agent.containers.images import ImageStore
from mooring_agent.containers.podman import Podman
from mooring_agent.hosts.contract import HostFailure
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=180) as client:
        yield client


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """A registry whose manifest names a path as a layer's digest: its URL, the image's digest, and the path."""
    aim = tmp_path / "x"
    layer = {"mediaType": "a", "digest": "sha256:" + str(aim).rjust(64, "/")[-64:], "size": 1_000}
    manifest = json.dumps({"mediaType": MANIFESTS[0], "config": layer, "layers": [layer]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = manifest if "/manifests/" in self.path else b"somebody else's program"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        yield f"http://127.0.0.1:{server.server_port}", digest, aim
        server.shutdown()


async def test_a_digest_that_is_a_path_is_refused(
    tmp_path: Path, http: httpx.AsyncClient, hostile: tuple[str, str, Path]
) -> None:
    address, digest, aim = hostile
    images = ImageStore(BlobCache(tmp_path / "cache"), Podman(tmp_path / "containers"))
    with pytest.raises(HostFailure, match="not a sha256 digest"):
        await images.ensure(RegistryRepository(http, address, "a/b", private=True), digest, lambda *progress: None)
    assert not aim.exists()


@every_row(
    "url",
    [
        "http://127.0.0.1:1/x",
        "https://127.0.0.1/x",
        "https://localhost/x",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/x",
        "https://100.64.0.1/x",
        "https://168.63.129.16/x",
        "https://0.0.0.0/x",
        "https://2130706433/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://[64:ff9b::7f00:1]/x",
        "https://[fe80::1]/x",
        "https://a@127.0.0.1/x",
    ],
)
async def test_a_source_that_nobody_called_private_is_dialled_on_the_public_internet_alone(
    http: httpx.AsyncClient, url: str
) -> None:
    with pytest.raises(HostFailure) as failure:
        await anext(HttpSource(http, url).read(0))
    assert failure.value.code == "permission_denied"
    with pytest.raises(HostFailure) as failure:
        await RegistryRepository(http, url.removesuffix("/x"), "a/b").manifest("sha256:" + "0" * 64)
    assert failure.value.code == "permission_denied"
