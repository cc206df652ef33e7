"""Errors as the caller sees them: RFC 9457 problem documents, and the only table of HTTP statuses."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mooring.core.kernel.errors import CATALOGUE, Code, Refusal

STATUS: Final[Mapping[Code, int]] = {
    Code.ADDRESS_REFUSED: 422,
    Code.ALLOCATION_IN_USE: 409,
    Code.ARTIFACT_NOT_FOUND_AT_SOURCE: 422,
    Code.ARTIFACT_NOT_PINNED: 409,
    Code.ARTIFACT_NOT_REGISTERED: 409,
    Code.ARTIFACT_REVOKED: 409,
    Code.ARTIFACT_UNVERIFIED: 409,
    Code.ASSERTION_REFUSED: 401,
    Code.BALANCE_TOO_LOW: 409,
    Code.BODY_TOO_LARGE: 413,
    Code.BUDGET_EXCEEDED: 409,
    Code.CALLER_ADDRESS_DENIED: 403,
    Code.CERTIFICATE_REQUIRED: 403,
    Code.CHECK_CANCELLED: 409,
    Code.CHECK_RUNNING: 409,
    Code.CIRCUIT_OPEN: 409,
    Code.CLOSING_RECORD_MISSING: 409,
    Code.CONFLICT: 409,
    Code.CONTENT_EXPANDS_TOO_FAR: 422,
    Code.CROSS_SITE_REQUEST: 403,
    Code.CURSOR_EXPIRED: 410,
    Code.CURSOR_INVALID: 422,
    Code.DIGEST_MISMATCH: 422,
    Code.ENROLMENT_REFUSED: 401,
    Code.GRACE_PERIOD: 409,
    Code.GRANT_EXCEEDS_CEILING: 403,
    Code.HEADER_INVALID: 400,
    Code.HOLD_PRESENT: 409,
    Code.IDEMPOTENCY_CONFLICT: 409,
    Code.ILLEGAL_TRANSITION: 409,
    Code.INCOMPATIBLE: 409,
    Code.INTERNAL: 500,
    Code.LAST_ADMIN: 409,
    Code.LEASE_LOST: 409,
    Code.LAYER_MISMATCH: 422,
    Code.LIMIT_REACHED: 409,
    Code.MALFORMED_REQUEST: 400,
    Code.MANIFEST_INVALID: 422,
    Code.MEDIA_TYPE_UNSUPPORTED: 415,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.MODE_NOT_OFFERED: 409,
    Code.NAME_TAKEN: 409,
    Code.NOT_EMPTY: 409,
    Code.NOT_ENTITLED: 403,
    Code.NOT_FOUND: 404,
    Code.NOT_SUPPORTED: 409,
    Code.NO_CAPACITY: 409,
    Code.OPERATION_IN_PROGRESS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.POLICY_DENIED: 403,
    Code.POLICY_WIDENS: 422,
    Code.PROMOTION_REFUSED: 409,
    Code.QUOTA_EXCEEDED: 409,
    Code.RATE_LIMITED: 429,
    Code.REDIRECT_REFUSED: 422,
    Code.REGISTRY_AUTH_REFUSED: 422,
    Code.REVISION_CONFLICT: 409,
    Code.ROLLBACK_UNAVAILABLE: 409,
    Code.ROOT_KEY_MISSING: 409,
    Code.SECRET_IN_USE: 409,
    Code.SIGNATURE_INVALID: 422,
    Code.SIGNATURE_KEY_UNKNOWN: 422,
    Code.SIGNATURE_MISSING: 422,
    Code.SIGNATURE_REPLAYED: 422,
    Code.SIGN_IN_REFUSED: 401,
    Code.SMOKE_FAILED: 422,
    Code.SOURCE_DENIED: 403,
    Code.SOURCE_ENDLESS: 422,
    Code.SOURCE_MALFORMED: 422,
    Code.SOURCE_PATH_REFUSED: 422,
    Code.SOURCE_STALLED: 504,
    Code.SOURCE_TOO_LARGE: 422,
    Code.SOURCE_TOO_SLOW: 504,
    Code.SOURCE_UNREACHABLE: 502,
    Code.TAG_MOVED: 409,
    Code.TEMPORARILY_UNAVAILABLE: 503,
    Code.TOO_MANY_OPEN_TASKS: 409,
    Code.UNAUTHENTICATED: 401,
    Code.VALIDATION_FAILED: 422,
    Code.VERSION_AHEAD_OF_ARTIFACT: 409,
    Code.VERSION_DEPRECATED: 409,
    Code.VERSION_IMMUTABLE: 409,
    Code.VERSION_NOT_OFFERED: 409,
    Code.ADAPTER_MISSING: 409,
    Code.WOULD_LOCK_OUT: 409,
}
MEDIA_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct, kw_only=True):
    """What went wrong, and what to do about it."""

    type: str
    title: str
    status: int
    code: Code
    detail: str
    remedy: str
    retryable: bool
    correlation_id: str
    details: dict[str, Any]


def problem(refusal: Refusal, correlation_id: str) -> Problem:
    entry = CATALOGUE[refusal.code]
    return Problem(
        type=f"urn:mooring:error:{refusal.code}",
        title=entry.title,
        status=STATUS[refusal.code],
        code=refusal.code,
        detail=refusal.detail,
        remedy=entry.remedy,
        retryable=entry.retryable,
        correlation_id=correlation_id,
        details=refusal.details,
    )
