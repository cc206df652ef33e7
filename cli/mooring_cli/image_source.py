"""Opens the image that `mooring apps from-image` is given: an OCI layout, an image of podman, or one in a registry.

An image is opened by its manifest: every byte that is used later is compared with a digest of it. Of an index with
several platforms, the one of linux on the wanted architecture is taken.
"""

import hashlib
import json
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from mooring_cli.image_config import CONFIG_BYTES_MAX, ImageRefused

if TYPE_CHECKING:
    import httpx

MANIFEST_BYTES_MAX = 4_194_304
CHUNK = 1_048_576
LAYERS_MAX = 200
SECONDS_MAX = 600.0
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
REFERENCE = re.compile(
    r"([a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?)/([a-z0-9._/-]{1,255}?)(?::([A-Za-z0-9_][\w.-]{0,127}))?(@sha256:[0-9a-f]{64})?"
)
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Descriptor:
    digest: str
    size: int


@dataclass(frozen=True)
class OpenedImage:
    """An image: its manifest with its config, and the layout directory that has its blobs, if it is here."""

    name: str
    digest: str
    media_type: str
    manifest: bytes
    config: bytes
    blobs: tuple[Descriptor, ...]
    directory: Path | None = None
    location: str | None = None  # oci://… if it is in a registry
    health: Any = None  # what podman knows of a health check: an OCI config cannot hold it

    def file(self, digest: str) -> Path:
        assert self.directory is not None
        return _blob(self.directory, digest)


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextmanager
def opened_image(reference: str, architecture: str | None = None) -> Iterator[OpenedImage]:
    """Open an image; of podman's store a copy is made, and removed in the end."""
    wanted = architecture or ARCHITECTURES.get(platform.machine(), platform.machine())
    path = Path(reference.removeprefix("oci:"))
    if (path / "oci-layout").is_file() or (path / "index.json").is_file():
        yield _of_layout(path, wanted)
    elif path.is_dir():
        raise ImageRefused(f"{path} is a directory, but not an OCI layout: it has no index.json")
    elif _podman_has(reference):
        with tempfile.TemporaryDirectory(prefix="mooring-image-") as directory:
            target = Path(directory) / "layout"
            _podman("save", "--quiet", "--format", "oci-dir", "--output", str(target), reference)
            yield replace(_of_layout(target, wanted, reference), health=_podman_health(reference))
    else:
        yield _of_registry(reference.removeprefix("oci://").removeprefix("docker://"), wanted)


def _podman_has(reference: str) -> bool:
    if shutil.which("podman") is None or reference.startswith(("-", "oci://", "docker://")):
        return False
    return subprocess.run(["podman", "image", "exists", reference], capture_output=True, check=False).returncode == 0


def _podman_health(reference: str) -> Any:
    plain = _json(_podman("image", "inspect", reference).encode()[:MANIFEST_BYTES_MAX], "what podman says of the image")
    found = plain[0] if isinstance(plain, list) and plain and isinstance(plain[0], dict) else {}
    return found.get("Healthcheck") or found.get("HealthCheck")


def _podman(*words: str) -> str:
    try:
        done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired as error:
        raise ImageRefused(f"podman did not export the image within {SECONDS_MAX:.0f} s") from error
    if done.returncode != 0:
        raise ImageRefused(f"podman cannot export the image: {done.stderr.strip()[-500:]}")
    return done.stdout


# A layout ----------------------------------------------------------------------------------------------------------


def _of_layout(directory: Path, architecture: str, name: str | None = None) -> OpenedImage:
    if (directory / "index.json").is_file():
        first: Any = _json(_bounded(directory / "index.json", MANIFEST_BYTES_MAX), "index.json")
        content, media_type = _chosen(
            first, architecture, lambda each: _bounded(_blob(directory, each), MANIFEST_BYTES_MAX), INDEXES[0]
        )
    else:
        raise ImageRefused(f"{directory} has no index.json")
    config, blobs = _parts(content)
    plain = _bounded(_blob(directory, config.digest), CONFIG_BYTES_MAX)
    _check(plain, config.digest)
    for each in blobs:
        if not _blob(directory, each.digest).is_file():
            raise ImageRefused(f"the layout lacks the blob {each.digest}")
    shown = name or directory.name
    return OpenedImage(shown, digest_of(content), media_type, content, plain, blobs, directory=directory)


def _blob(directory: Path, digest: str) -> Path:
    if not DIGEST.fullmatch(digest):
        raise ImageRefused(f"{ascii(digest)[:100]} is not a sha256 digest")
    path = directory / "blobs" / "sha256" / digest.partition(":")[2]
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ImageRefused(f"the blob {digest} is a link to a file outside of the layout")
    return path


def _bounded(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise ImageRefused(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > bytes_max:
        raise ImageRefused(f"{path.name} has more than {bytes_max} bytes")
    return content


# What both have ----------------------------------------------------------------------------------------------------


def _chosen(plain: Any, architecture: str, fetch: Any, media_type: str) -> tuple[bytes, str]:
    """The manifest of an index for this architecture, and its media type; an index may name another index."""
    for _ in range(3):
        listed = plain.get("manifests") if isinstance(plain, dict) else None
        if not isinstance(listed, list) or not listed:
            raise ImageRefused("the image's index lists no manifest")
        entries = [each for each in listed if isinstance(each, dict) and isinstance(each.get("digest"), str)]
        fitting = [each for each in entries if _fits(each, architecture)]
        if not fitting:
            raise ImageRefused(f"the image has no manifest for linux/{architecture}; give --architecture")
        if len(fitting) > 1:
            raise ImageRefused(
                f"there are {len(fitting)} images for linux/{architecture} in it; give one with one image"
            )
        content: bytes = fetch(fitting[0]["digest"])
        _check(content, fitting[0]["digest"])
        plain = _json(content, "the manifest")
        if isinstance(plain, dict) and "manifests" not in plain:
            return content, str(plain.get("mediaType") or fitting[0].get("mediaType") or MANIFESTS[0])
    raise ImageRefused("the image's index is nested too deeply")


def _fits(entry: dict[str, Any], architecture: str) -> bool:
    wanted = entry.get("platform")
    if not isinstance(wanted, dict):
        return True
    return (wanted.get("os", "linux"), wanted.get("architecture", architecture)) == ("linux", architecture)


def _parts(content: bytes) -> tuple[Descriptor, tuple[Descriptor, ...]]:
    """The config of a manifest, and all blobs that it names."""
    plain = _json(content, "the manifest")
    layers = plain.get("layers") if isinstance(plain, dict) else None
    if not isinstance(layers, list) or len(layers) > LAYERS_MAX:
        raise ImageRefused(f"the manifest has no layers, or more than {LAYERS_MAX}")
    config, *others = [_descriptor(each) for each in (plain.get("config"), *layers)]
    return config, tuple(dict.fromkeys((*others, config)))


def _descriptor(plain: Any) -> Descriptor:
    digest, size = (plain.get("digest"), plain.get("size")) if isinstance(plain, dict) else (None, None)
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise ImageRefused("the manifest names a blob without a sha256 digest and a size")
    return Descriptor(digest, size)


def _json(content: bytes, what: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ImageRefused(f"{what} is not JSON: {error}") from error


def _check(content: bytes, digest: str) -> None:
    if digest_of(content) != digest:
        raise ImageRefused(f"the bytes of {digest} have another digest: the image is damaged")


# A registry --------------------------------------------------------------------------------------------------------


def address_of(host: str) -> str:
    """The URL of a registry; only one on this machine is used without TLS."""
    return f"{'http' if host.partition(':')[0] in ('127.0.0.1', 'localhost') else 'https'}://{host}"


def _of_registry(reference: str, architecture: str) -> OpenedImage:
    """Read the manifest and config of an image that is in a registry; its layers stay there."""
    import httpx

    match = REFERENCE.fullmatch(reference)
    if match is None or not any(mark in match[1] for mark in (".", ":", "localhost")):
        raise ImageRefused(
            f"{ascii(reference)[:200]} is neither an OCI layout, nor an image of podman, nor REGISTRY/NAME:TAG"
        )
    host, repository, tag = match[1], match[2], (match[4] or "").removeprefix("@") or match[3] or "latest"
    try:
        with httpx.Client(base_url=f"{address_of(host)}/v2/{repository}", timeout=30, follow_redirects=False) as http:
            reader = _RegistryReader(http)
            content = reader.get(f"/manifests/{tag}", MANIFEST_BYTES_MAX)
            if tag.startswith("sha256:"):
                _check(content, tag)
            plain, media_type = _json(content, "the manifest"), MANIFESTS[0]
            if isinstance(plain, dict) and "manifests" in plain:
                fetch = lambda each: reader.get(f"/manifests/{each}", MANIFEST_BYTES_MAX)  # noqa: E731
                content, media_type = _chosen(plain, architecture, fetch, INDEXES[0])
            config, blobs = _parts(content)
            found = reader.get(f"/blobs/{config.digest}", CONFIG_BYTES_MAX)
            _check(found, config.digest)
    except httpx.HTTPError as error:
        raise ImageRefused(f"the registry {host} does not answer: {type(error).__name__}: {error}") from error
    name = repository.rpartition("/")[2]
    location = f"oci://{host}/{repository}"
    return OpenedImage(name, digest_of(content), media_type, content, found, blobs, location=location)


class _RegistryReader:
    """Reads from a registry without credentials, with the anonymous token that it may ask for."""

    def __init__(self, http: "httpx.Client") -> None:
        self._http = http
        self._token: str | None = None

    def get(self, path: str, bytes_max: int) -> bytes:
        for attempt in range(2):
            headers = {"Accept": ", ".join((*MANIFESTS, *INDEXES))}
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token}"
            with self._http.stream("GET", path, headers=headers, follow_redirects=path.startswith("/blobs/")) as answer:
                if answer.status_code == 401 and attempt == 0:
                    self._token = self._anonymous(answer.headers.get("www-authenticate", ""))
                    continue
                if answer.status_code != 200:
                    raise ImageRefused(
                        f"the registry answers {answer.status_code} for {path}: it is not there, or needs a sign-in; "
                        "pull it with podman, and name the image of podman"
                    )
                content = b""
                for part in answer.iter_bytes():
                    content += part
                    if len(content) > bytes_max:
                        raise ImageRefused(f"the registry sends more than {bytes_max} bytes for {path}")
                return content
        raise ImageRefused("the registry refuses the token that its own token service gave")

    def _anonymous(self, challenge: str) -> str:
        import httpx

        fields = dict(re.findall(r'(realm|service|scope)="([^"]{1,1000})"', challenge))
        realm = fields.pop("realm", "")
        if not realm.startswith("https://") and not realm.startswith(f"{self._http.base_url.scheme}://"):
            raise ImageRefused("the registry needs a sign-in; pull the image with podman, and name the image of podman")
        answer = httpx.get(f"{realm}?{urlencode(fields)}", timeout=30)
        body = answer.json() if answer.status_code == 200 and len(answer.content) < CHUNK else {}
        token = body.get("token") or body.get("access_token") if isinstance(body, dict) else None
        if not isinstance(token, str):
            raise ImageRefused("the registry needs a sign-in; pull the image with podman, and name the image of podman")
        return token
