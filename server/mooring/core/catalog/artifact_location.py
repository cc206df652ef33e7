"""Where artifacts come from: source types, the canonical text of a location, and matching against allowed sources.

Policies and the list of sources compare the text of a location, so each location has exactly one text: hosts in lower
case, no default port, no dot segments, no needless percent-encoding, no query. Otherwise `…/allowed/../other` would
match the rule `…/allowed/*` and be read from somewhere else.

No location has a tag or a branch: an image is its repository plus the artifact's digest, and a file of a hub is named
at one commit. A query (as in a signed URL) grants access once and is not part of the location.

A pattern is a location, or the beginning of one that ends with `/*`, so `oci://registry.example/*` never matches
another host whose name begins the same way.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.kernel.address import read_url
from mooring.core.kernel.validation import invalid

LOCATION_LENGTH_MAX: Final = 1_000
REPOSITORY_LENGTH_MAX: Final = 255
EVERYWHERE: Final = "*"

_WORD: Final = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_WORD}(?:/{_WORD})*")
_BUCKET: Final = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB: Final = re.compile(rf"(?:datasets/|spaces/)?{_NAME}(?:/{_NAME})?@[0-9a-f]{{40}}/(?P<file>.+)")
_HUB_PREFIX: Final = re.compile(rf"(?:datasets/|spaces/)?{_NAME}/(?:{_NAME}@[0-9a-f]{{40}}/(?P<file>.+/)?)?")
_UPLOAD: Final = re.compile(r"ten_[0-9a-z]{26}(?:/prj_[0-9a-z]{26})?/[0-9a-f]{64}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._~!$&'()+,;=:@/-]+")


class SourceType(StrEnum):
    """How an artifact's bytes are fetched."""

    OCI = "oci"
    HTTPS = "https"
    S3 = "s3"
    HUGGINGFACE = "huggingface"
    FILE = "file"
    UPLOAD = "upload"


_HEAD: Final = {
    SourceType.OCI: "oci://",
    SourceType.HTTPS: "https://",
    SourceType.S3: "s3://",
    SourceType.HUGGINGFACE: "huggingface://",
    SourceType.FILE: "file:",
    SourceType.UPLOAD: "upload:",
}
_FORM: Final = {
    SourceType.OCI: "oci://<registry>/<repository>, without a tag or digest",
    SourceType.HTTPS: "https://<host>/<path>, without a query",
    SourceType.S3: "s3://<bucket>/<key>",
    SourceType.HUGGINGFACE: "huggingface://[datasets/]<owner>/<name>@<commit>/<file>",
    SourceType.FILE: "file:<path below the platform's directory>",
    SourceType.UPLOAD: "upload:<tenant>[/<project>]/<hexadecimal digits of the digest>",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A location in its canonical text."""

    source_type: SourceType
    text: str

    @property
    def rest(self) -> str:
        """The part after the scheme; for an image `<registry>/<repository>`, as signers write it."""
        return self.text.removeprefix(_HEAD[self.source_type])


class SourceTier(StrEnum):
    """Who allows a source: that decides which networks it may reach."""

    PLATFORM = "platform"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class ArtifactSource:
    """A registry, bucket or host on the list of allowed sources."""

    id: str
    tenant_id: str | None  # None: a source of the platform, for all tenants
    name: str
    pattern: str
    revision: int
    created_at: datetime
    reaches_private: bool = False  # whether it may be in a private network; only for sources of the platform
    username: str | None = None  # with the secret below: how a tenant's private registry is read
    project_secret_id: str | None = None  # its password or token; None also after the secret was deleted by force
    token_host: str | None = None  # the host of its token service, if that is another than the registry

    @property
    def authority(self) -> str:
        """Host and port of the one registry that a source with a credential names."""
        return self.pattern.removeprefix(f"{SourceType.OCI}://").partition("/")[0]

    @property
    def tier(self) -> SourceTier:
        return SourceTier.PLATFORM if self.tenant_id is None else SourceTier.TENANT


def read_location(text: str, path: str = "location") -> Location:
    """Parse a location and bring it into its canonical text."""
    if len(text) > LOCATION_LENGTH_MAX:
        raise invalid(path, f"at most {LOCATION_LENGTH_MAX} characters")
    source_type = _source_type(text, path)
    rest = text.removeprefix(_HEAD[source_type])
    if source_type is SourceType.HTTPS:
        canonical = _https(text, path)
    elif source_type is SourceType.OCI:
        canonical = _oci(rest, path)
    elif source_type is SourceType.S3:
        bucket, _, key = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise _not_of_form(source_type, path)
        canonical = f"{bucket}/{_plain_path(key, source_type, path)}"
    elif source_type is SourceType.HUGGINGFACE:
        match = _HUB.fullmatch(rest)
        if match is None:
            raise _not_of_form(source_type, path)
        _plain_path(match["file"], source_type, path)
        canonical = rest
    elif source_type is SourceType.UPLOAD:
        if not _UPLOAD.fullmatch(rest):
            raise _not_of_form(source_type, path)
        canonical = rest
    else:
        canonical = _plain_path(rest, source_type, path)
    return Location(source_type, _HEAD[source_type] + canonical)


def read_pattern(text: str, path: str = "pattern") -> str:
    """Parse a pattern of locations and bring it into its canonical text."""
    if text == EVERYWHERE or text in {f"{head}*" for head in _HEAD.values()}:
        return text
    if "*" not in text:
        return read_location(text, path).text
    prefix = text.removesuffix("*")
    if "*" in prefix or not prefix.endswith("/"):
        raise invalid(path, "a location, or the beginning of one that ends with /*")
    source_type = _source_type(prefix, path)
    if source_type is SourceType.HUGGINGFACE:
        match = _HUB_PREFIX.fullmatch(prefix.removeprefix(_HEAD[source_type]))
        if match is None or (match["file"] and not _is_plain_path(match["file"].rstrip("/"))):
            raise _not_of_form(source_type, path)
        return text
    # A prefix becomes a valid location when something is appended to it.
    return f"{read_location(f'{prefix}x', path).text.removesuffix('x')}*"


def covers(pattern: str, other: str) -> bool:
    """Whether every location that `other` (a location or pattern) matches is matched by `pattern` too."""
    if pattern.endswith("*"):
        return other.startswith(pattern[:-1])
    return pattern == other


def source_of(location: Location, sources: Iterable[ArtifactSource], tenant_id: str | None) -> ArtifactSource | None:
    """The most specific source that allows this location for this tenant; None when no source does.

    A tenant uses the platform's sources and its own. When both are equally specific, one with a credential wins, then
    the platform's, because it may reach more networks.
    """
    fitting = [each for each in sources if each.tenant_id in (None, tenant_id) and covers(each.pattern, location.text)]
    return max(fitting, key=_specificity, default=None)


def _specificity(source: ArtifactSource) -> tuple[int, bool, bool]:
    return len(source.pattern), source.project_secret_id is not None, source.tenant_id is None


def _source_type(text: str, path: str) -> SourceType:
    scheme = text.partition(":")[0]
    try:
        source_type = SourceType(scheme)
    except ValueError:
        listed = "; ".join(_FORM.values())
        raise invalid(path, f"one of {listed}") from None
    if not text.startswith(_HEAD[source_type]):
        raise _not_of_form(source_type, path)
    return source_type


def _https(text: str, path: str) -> str:
    target = read_url(text, path)
    if "?" in target.path:
        raise invalid(path, "an address without a query: a query grants access once and is not stored")
    if target.path != "/":
        _plain_path(target.path[1:], SourceType.HTTPS, path)
    return target.url.removeprefix("https://")


def _oci(rest: str, path: str) -> str:
    registry, _, repository = rest.partition("/")
    if "@" in repository or ":" in repository:
        raise invalid(path, "a repository without tag or digest: tags move, and the digest is given on its own")
    if not _REPOSITORY.fullmatch(repository) or len(repository) > REPOSITORY_LENGTH_MAX:
        raise _not_of_form(SourceType.OCI, path)
    return f"{read_url(f'https://{registry}/', path).authority}/{repository}"


def _plain_path(text: str, source_type: SourceType, path: str) -> str:
    if not _is_plain_path(text):
        raise invalid(
            path, f"{_FORM[source_type]}; the path must not have empty or dot segments, percent-encoding or spaces"
        )
    return text


def _is_plain_path(text: str) -> bool:
    # Without percent-encoding a path has only one spelling, and no %2e%2e that only the server decodes.
    return bool(_PLAIN.fullmatch(text)) and not any(segment in ("", ".", "..") for segment in text.split("/"))


def _not_of_form(source_type: SourceType, path: str) -> Exception:
    return invalid(path, _FORM[source_type])
