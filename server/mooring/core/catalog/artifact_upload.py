"""Uploads: small blobs (a script, a configuration, a program) whose bytes the platform keeps for a tenant or a project.

An upload needs no source and no platform admin. Its location, `upload:<tenant>[/<project>]/<hex digest>`, names the
place that it belongs to, so no other place can register it; its digest is computed here, never believed. It is as large
as a file inside of a task at the most, because that is how nodes get it: the platform reads it by its digest and puts
it into the task that it signs. What a place keeps is bounded in number and in bytes, and an upload that no version used
for some time is deleted (`storage/records/retention.py`); uploading it again brings it back.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from mooring.core.catalog.artifact import read_digest
from mooring.core.catalog.artifact_location import SourceType
from mooring.core.kernel.decision import DecisionContext, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid

UPLOAD_BYTES_MAX: Final = 128 * 1024


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """How many blobs a place may keep, and how many bytes together; the database enforces the same."""

    blobs: int
    bytes: int


TENANT_LIMITS: Final = UploadLimits(2_000, 64 * 1024**2)
PROJECT_LIMITS: Final = UploadLimits(500, 16 * 1024**2)
"""For each project; what belongs to the tenant and to no project counts like one more project."""


@dataclass(frozen=True, slots=True)
class UploadUse:
    """What a tenant keeps already, and how much of it is of the project in question."""

    tenant_blobs: int
    tenant_bytes: int
    project_blobs: int
    project_bytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes for one place."""

    tenant_id: str
    project_id: str | None
    content: bytes
    digest: str

    @property
    def location(self) -> str:
        place = self.tenant_id if self.project_id is None else f"{self.tenant_id}/{self.project_id}"
        return f"{SourceType.UPLOAD}:{place}/{self.digest.partition(':')[2]}"


def read_upload(tenant_id: str | None, project_id: str | None, content: bytes, stated: str | None) -> Upload:
    """The upload of these bytes; a Refusal if they are too many, none, or not those of the stated digest."""
    if tenant_id is None:
        raise invalid("tenant_id", "uploads are for tenants and their projects")
    if not 1 <= len(content) <= UPLOAD_BYTES_MAX:
        raise invalid("content_base64", f"1 to {UPLOAD_BYTES_MAX} bytes; push what is larger to a registry")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if stated is not None and read_digest(stated) != digest:
        raise Refusal(
            Code.DIGEST_MISMATCH,
            f"the bytes have the digest {digest}, not {stated}",
            {"expected": stated, "found": digest},
        )
    return Upload(tenant_id, project_id, content, digest)


def keep_upload(context: DecisionContext, upload: Upload, use: UploadUse) -> Insert:
    """Keep the bytes; a Refusal when the project or the tenant keeps too much already."""
    size = len(upload.content)
    for whose, limits, blobs, held in (
        ("project", PROJECT_LIMITS, use.project_blobs, use.project_bytes),
        ("tenant", TENANT_LIMITS, use.tenant_blobs, use.tenant_bytes),
    ):
        if blobs >= limits.blobs or held + size > limits.bytes:
            raise Refusal(
                Code.LIMIT_REACHED,
                f"the {whose} keeps {blobs} uploads of {held} bytes; at most {limits.blobs} of {limits.bytes}",
                {"scope": whose, "limit": limits.blobs, "limit_bytes": limits.bytes},
            )
    return Insert(
        "artifact_upload",
        {
            "id": context.mint(Prefix.ARTIFACT_UPLOAD),
            "tenant_id": upload.tenant_id,
            "project_id": upload.project_id,
            "location": upload.location,
            "digest": upload.digest,
            "content": upload.content,
            "created_at": context.now,
        },
    )
