"""Pushes an image to the platform's own registry, with the token of a publish intent; what is there is left out."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from mooring_cli.image_config import ImageRefused
from mooring_cli.image_source import CHUNK, OpenedImage, address_of

if TYPE_CHECKING:
    import httpx

SECONDS_MAX = 300.0


def push(image: OpenedImage, intent: dict[str, Any], tell: Callable[[str], None]) -> int:
    """Send the blobs that the registry lacks, then the manifest; returns how many bytes were sent."""
    import httpx

    base = f"{address_of(intent['registry'])}/v2/{intent['repository']}"
    headers = {"Authorization": f"Bearer {intent['registry_token']}"}
    sent = 0
    try:
        with httpx.Client(headers=headers, timeout=SECONDS_MAX) as http:
            for number, blob in enumerate(image.blobs, 1):
                if http.head(f"{base}/blobs/{blob.digest}").status_code == 200:
                    continue
                tell(f"pushing {number} of {len(image.blobs)}: {blob.digest[:19]}, {blob.size} bytes")
                _send(http, base, blob.digest, image.file(blob.digest))
                sent += blob.size
            answer = http.put(
                f"{base}/manifests/{image.digest}",
                content=image.manifest,
                headers={"Content-Type": image.media_type},
            )
            _require(answer, 201, "the manifest")
    except httpx.HTTPError as error:
        where = urlsplit(base).netloc
        raise ImageRefused(
            f"the registry {where} does not answer ({type(error).__name__}); run the same again"
        ) from error
    return sent


def _send(http: "httpx.Client", base: str, digest: str, path: Path) -> None:
    begun = http.post(f"{base}/blobs/uploads/")
    _require(begun, 202, "an upload")
    target = urljoin(f"{base}/", begun.headers.get("location", ""))
    if urlsplit(target).netloc != urlsplit(base).netloc:
        raise ImageRefused("the registry sends the upload to another host; nothing was sent there")
    joined = "&" if "?" in target else "?"
    answer = http.put(
        f"{target}{joined}digest={digest}",
        content=_hashed(path, digest),
        headers={"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)},
    )
    _require(answer, 201, digest)


def _hashed(path: Path, digest: str) -> Iterator[bytes]:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while content := file.read(CHUNK):
            hasher.update(content)
            yield content
    if f"sha256:{hasher.hexdigest()}" != digest:
        raise ImageRefused(f"the bytes of {digest} have another digest: the image is damaged")


def _require(answer: "httpx.Response", status: int, what: str) -> None:
    if answer.status_code != status:
        raise ImageRefused(f"the registry answers {answer.status_code} for {what}: {answer.text[:300]}")
