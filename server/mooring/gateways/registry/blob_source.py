"""Reading of blobs (weights, a dataset, a script) from https, s3, huggingface, or a file.

All four kinds are read in one of two ways. Three are an https URL: given, or built from bucket and key, or from
repository, commit and file. No SDK is used: an object is public, or its URL was signed by somebody who may read it. The
fourth is a file below the one directory that the platform allows for this. It is opened one path component at a time,
without following symbolic links, so that nothing outside can be reached even if the directory changes in the meantime.

Every byte is hashed on its way into the sink, within the limits of `SourceReader`. Only the digest, and never the name,
determines what the content is.
"""

import asyncio
import hashlib
import io
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import quote

from mooring.core.kernel.address import read_url
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid
from mooring.gateways.registry.image_manifest import digest_name
from mooring.gateways.registry.source_refusals import (
    auth_refused,
    mismatch,
    not_found,
    status_refusal,
    too_large,
    too_slow,
)
from mooring.gateways.registry.source_stream import (
    BodyRequest,
    Dialer,
    ReceivedBody,
    RedirectPolicy,
    Sink,
    SourceReader,
    SourceRequest,
    SourceTimeouts,
    host_of,
)

BLOB_BYTES_MAX: Final = 1024**4
CHUNK_BYTES: Final = 1_048_576
PATH_LENGTH_MAX: Final = 1_024
FILE_HOST: Final = "file"
A = TypeVar("A")
T = TypeVar("T")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_OWNED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_COLLECTIONS: Final = {"model": "", "dataset": "datasets/", "space": "spaces/"}


@dataclass(frozen=True, slots=True)
class HttpsPlace:
    """A URL; its query may contain a signature, so `repr` hides it."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class S3Place:
    """An object in a bucket, read by a path-style URL."""

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class HuggingFacePlace:
    """A file of a repository at one commit; branches are not accepted, because they move."""

    repository: str
    commit: str
    file: str
    collection: str = "model"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A file below the directory that the platform configures."""

    path: str


BlobPlace = HttpsPlace | S3Place | HuggingFacePlace | FilePlace


@dataclass(frozen=True, slots=True)
class BlobSourceSettings:
    """The configuration of the platform; an empty endpoint or directory disables that kind."""

    s3_endpoint: str = ""
    huggingface_endpoint: str = ""
    file_directory: str = ""
    redirect_hosts: frozenset[str] = frozenset()
    limit_bytes: int = BLOB_BYTES_MAX
    patience: SourceTimeouts = field(default_factory=SourceTimeouts)


class BlobSource:
    """Reads blobs; the dialer decides which addresses may be reached."""

    def __init__(self, settings: BlobSourceSettings, dialer: Dialer) -> None:
        self._settings = settings
        self._reader = SourceReader(
            dialer, redirects=RedirectPolicy(settings.redirect_hosts), patience=settings.patience
        )

    def address(self, place: HttpsPlace | S3Place | HuggingFacePlace) -> str:
        """The URL from which the blob is downloaded."""
        if isinstance(place, HttpsPlace):
            return read_url(place.url).url
        if isinstance(place, S3Place):
            return self._s3(place)
        return self._huggingface(place)

    async def size(self, place: BlobPlace) -> int | None:
        """The size that the source announces, None if it does not; a Refusal when the blob does not exist."""
        if isinstance(place, FilePlace):
            return await asyncio.to_thread(self._file_size, place)
        url = self.address(place)
        answer = await self._reader.ask(SourceRequest("HEAD", url))
        if answer.status != 200:
            raise status_refusal(host_of(url), answer.status, "the file")
        return _stated(answer.headers)

    async def read(
        self, place: BlobPlace, sink: Sink | None = None, *, digest: str | None = None, size_bytes: int | None = None
    ) -> ReceivedBody:
        """Stream a blob into the sink and hash it; a Refusal when a given digest or size does not match."""
        if digest is not None:
            digest_name(digest)
        if isinstance(place, FilePlace):
            return await self._read_file(place, sink, digest, size_bytes)
        wanted = BodyRequest(self.address(place), self._settings.limit_bytes, digest, size_bytes)
        return await self._reader.stream(wanted, sink)

    def _s3(self, place: S3Place) -> str:
        if not self._settings.s3_endpoint:
            raise _not_offered("s3")
        if not _BUCKET.fullmatch(place.bucket) or ".." in place.bucket:
            raise invalid("bucket", "a bucket's name: 3 to 63 lower-case letters, digits, dots and hyphens")
        return _joined(self._settings.s3_endpoint, f"{place.bucket}/{_quoted(place.key, 'key')}")

    def _huggingface(self, place: HuggingFacePlace) -> str:
        if not self._settings.huggingface_endpoint:
            raise _not_offered("huggingface")
        if place.collection not in _COLLECTIONS:
            raise invalid("collection", f"one of {', '.join(_COLLECTIONS)}")
        if not _OWNED.fullmatch(place.repository):
            raise invalid("repository", "a repository such as owner/name")
        if not _COMMIT.fullmatch(place.commit):
            raise invalid("commit", "a commit of 40 hexadecimal digits; a branch or tag is a label that moves")
        rest = (
            f"{_COLLECTIONS[place.collection]}{place.repository}/resolve/{place.commit}/{_quoted(place.file, 'file')}"
        )
        return _joined(self._settings.huggingface_endpoint, rest)

    async def _read_file(
        self, place: FilePlace, sink: Sink | None, digest: str | None, size_bytes: int | None
    ) -> ReceivedBody:
        seconds = self._settings.patience.total_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                received = await self._pour_file(place, sink, digest)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise too_slow(FILE_HOST, f"it took more than {seconds:g} s") from error
        if size_bytes is not None and received.size_bytes != size_bytes:
            raise mismatch(FILE_HOST, size_bytes, received.size_bytes)
        if digest is not None and received.digest != digest:
            raise mismatch(FILE_HOST, digest, received.digest)
        return received

    async def _pour_file(self, place: FilePlace, sink: Sink | None, digest: str | None) -> ReceivedBody:
        algorithm = "sha256" if digest is None else digest.partition(":")[0]
        hashed, size, limit = hashlib.new(algorithm), 0, self._settings.limit_bytes
        with await _finished(self._opened, place) as file:
            while chunk := await _finished(file.read, CHUNK_BYTES):
                size += len(chunk)
                if size > limit:
                    raise too_large(FILE_HOST, size, limit)
                hashed.update(chunk)
                if sink is not None:
                    await sink(chunk)
        return ReceivedBody(f"{algorithm}:{hashed.hexdigest()}", size)

    def _file_size(self, place: FilePlace) -> int:
        with self._opened(place) as file:
            return os.fstat(file.fileno()).st_size

    def _opened(self, place: FilePlace) -> io.FileIO:
        """Open the file one path component at a time from the configured directory; no symbolic link is followed."""
        if not self._settings.file_directory:
            raise _not_offered("file")
        *parents, name = _parts(place.path)
        try:
            here = os.open(self._settings.file_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            why = "the directory that the platform configures cannot be opened"
            raise Refusal(Code.SOURCE_UNREACHABLE, why, {"host": FILE_HOST}) from error
        try:
            for parent in parents:
                further = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
                os.close(here)
                here = further
            # Non-blocking, because opening a pipe would otherwise wait for its other end.
            found = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        except FileNotFoundError as error:
            raise not_found(FILE_HOST, place.path) from error
        except PermissionError as error:
            raise auth_refused(FILE_HOST, "the platform may not read it") from error
        except OSError as error:
            raise _path_refused("a part of it is not a directory, or is a symbolic link") from error
        finally:
            os.close(here)
        about = os.fstat(found)
        if stat.S_ISREG(about.st_mode) and about.st_size <= self._settings.limit_bytes:
            return io.FileIO(found)
        os.close(found)
        if not stat.S_ISREG(about.st_mode):
            raise _path_refused("it is not a regular file")
        raise too_large(FILE_HOST, about.st_size, self._settings.limit_bytes)


async def _finished(work: Callable[[A], T], argument: A) -> T:
    """The result of blocking work in a thread; even when cancelled, the thread never leaves a file open."""
    running = asyncio.ensure_future(asyncio.to_thread(work, argument))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        left = None if running.cancelled() or running.exception() is not None else running.result()
        if isinstance(left, io.FileIO):
            left.close()
        raise


def read_place(text: str) -> BlobPlace:
    """Parse a place: `https://…`, `s3://bucket/key`, `hf://[datasets/]owner/name@commit/file` or `file:path`."""
    scheme, _, rest = text.partition(":")
    scheme = scheme.lower()
    if scheme == "https":
        return HttpsPlace(read_url(text).url)
    if scheme == "s3":
        bucket, _, key = rest.removeprefix("//").partition("/")
        return S3Place(bucket, key)
    if scheme in ("hf", "huggingface"):
        return _huggingface_place(rest.removeprefix("//"))
    if scheme == "file":
        return FilePlace(rest.removeprefix("//"))
    raise invalid("source", "an address that begins with https, s3, hf or file")


def _huggingface_place(rest: str) -> HuggingFacePlace:
    collection = next((name for name, part in _COLLECTIONS.items() if part and rest.startswith(part)), "model")
    repository, _, pinned = rest.removeprefix(_COLLECTIONS[collection]).partition("@")
    commit, _, file = pinned.partition("/")
    return HuggingFacePlace(repository, commit, file, collection)


def _parts(path: str) -> list[str]:
    """The components of a path below the directory; an absolute path or one with `..` is refused, not corrected."""
    if not _is_plain(path):
        raise _path_refused("it must be a path below the directory, such as weights/model.bin")
    return path.split("/")


def _quoted(path: str, where: str) -> str:
    """A path as part of a URL, quoted by component, so that none can go up or end the path."""
    if not _is_plain(path):
        raise invalid(where, f"a path of at most {PATH_LENGTH_MAX} characters without empty names, . or ..")
    return "/".join(quote(part, safe="") for part in path.split("/"))


def _is_plain(path: str) -> bool:
    """Whether a path has only plain names: none empty, `.` or `..`."""
    if len(path) > PATH_LENGTH_MAX or not all(character.isprintable() for character in path):
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))


def _joined(endpoint: str, rest: str) -> str:
    return read_url(f"{endpoint.rstrip('/')}/{rest}").url


def _stated(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def _not_offered(kind: str) -> Refusal:
    return invalid("source", f"sources of the kind {kind} are not configured on this platform")


def _path_refused(why: str) -> Refusal:
    return Refusal(Code.SOURCE_PATH_REFUSED, why, {"path": "source"})
