"""The closed catalogue of errors.

Few errors, named by meaning. Each entry says whether trying again can help and what the caller should do; the HTTP
status is no business of the core and lives in `api/problem.py`. `docs/errors.md`, the SDK's exception classes and
`mooring explain` are made from this table, and a test compares them.

A `Refusal` carries the public message. What only an operator should read goes to the log, never into `detail`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mooring.core.kernel.error_code import Code as Code


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """One line of the catalogue."""

    title: str
    meaning: str
    remedy: str  # what the caller should do
    retryable: bool = False  # whether the same request may succeed later, unchanged


CATALOGUE: Mapping[Code, ErrorEntry] = {
    Code.ADDRESS_REFUSED: ErrorEntry(
        "Address refused",
        "An address that was given resolves to a network that the platform does not dial for tenants: loopback, "
        "link-local, private, or its own.",
        "Give a public https address, or ask the platform's admin to allow this network.",
    ),
    Code.ALLOCATION_IN_USE: ErrorEntry(
        "Allocation in use",
        "The allocation holds members of another instance, and the two apps do not both allow to share it.",
        "Name another allocation, or let the platform allocate one.",
    ),
    Code.ARTIFACT_NOT_FOUND_AT_SOURCE: ErrorEntry(
        "Artifact not found at source",
        "The source does not have the digest, tag or file that was named.",
        "Check repository and digest; push to the registry first, then register.",
    ),
    Code.ARTIFACT_NOT_PINNED: ErrorEntry(
        "Artifact not pinned",
        "A task of an adapter names a digest or a role that neither the instance's version nor the operation's has.",
        "Name a role of the pinned manifest; another version is brought in by an upgrade.",
    ),
    Code.ARTIFACT_NOT_REGISTERED: ErrorEntry(
        "Artifact not registered",
        "No artifact with this digest is registered in sight of the project, so nobody has looked at its bytes.",
        "Register the artifact and let it be verified, then use its digest.",
    ),
    Code.ARTIFACT_REVOKED: ErrorEntry(
        "Artifact revoked",
        "The artifact was withdrawn for ever, whatever else is true of it.",
        "Use a version that does not need it; `details.reason` says why it was revoked.",
    ),
    Code.ARTIFACT_UNVERIFIED: ErrorEntry(
        "Artifact unverified",
        "No stored evidence proves the artifact under the policy in force.",
        "Verify it; `details.reasons` says what is missing.",
    ),
    Code.ASSERTION_REFUSED: ErrorEntry(
        "Assertion refused",
        "The signed assertion was not accepted: unknown key, wrong signature, audience or lifetime, used before, or "
        "the account is not active, or the node retired.",
        "Check the key id, the clock, and that the account is active; sign a new assertion for each exchange. A "
        "retired node enrols anew.",
    ),
    Code.BODY_TOO_LARGE: ErrorEntry(
        "Body too large",
        "The request's body, or one of its headers, is larger than the limit.",
        "Send less; `details.limit_bytes` says how much is taken.",
    ),
    Code.CHECK_CANCELLED: ErrorEntry(
        "Check cancelled",
        "The check of the artifact's bytes was cancelled before it had read all of them.",
        "Verify the artifact, or repeat the request, to begin a new check.",
    ),
    Code.CHECK_RUNNING: ErrorEntry(
        "Check running",
        "The answer needs a check of the artifact's bytes, and that is still under way.",
        "Wait for the check that `details.check_id` names (`GET …/checks/{check_id}?wait=60&until=succeeded,failed`), "
        "then repeat the request.",
        retryable=True,
    ),
    Code.CIRCUIT_OPEN: ErrorEntry(
        "Circuit open",
        "Launches of this version on this shape failed several times in a row, so no more are begun for a while.",
        "Read why the last ones failed (`details.failures`), launch another version, or wait until `details.until`.",
        retryable=True,
    ),
    Code.CLOSING_RECORD_MISSING: ErrorEntry(
        "Closing record missing",
        "Nothing is called stopped or removed before each member has a closing record.",
        "Wait for the receipts of the nodes that `details` names, or write off a node that is lost for ever.",
    ),
    Code.CONFLICT: ErrorEntry(
        "Conflict",
        "Others kept changing the same thing while this request was decided, more often than it is tried again.",
        "Try again; nothing was changed.",
        retryable=True,
    ),
    Code.CONTENT_EXPANDS_TOO_FAR: ErrorEntry(
        "Content expands too far",
        "Compressed content grows, when it is unpacked, beyond what the platform unpacks.",
        "Publish content that unpacks to less; `details.limit_bytes` says how much is taken.",
    ),
    Code.CURSOR_EXPIRED: ErrorEntry(
        "Cursor expired",
        "The events after this cursor are no longer kept.",
        "Read the resources anew, then follow the events from `details.oldest_cursor`.",
    ),
    Code.CURSOR_INVALID: ErrorEntry(
        "Cursor invalid",
        "The cursor was not made by this platform, or not for this list.",
        "Begin without a cursor.",
    ),
    Code.DIGEST_MISMATCH: ErrorEntry(
        "Digest mismatch",
        "The bytes at the source are not those that the digest names.",
        "Do not use this content; compare `details`, and publish again what was meant under its own digest.",
    ),
    Code.ENROLMENT_REFUSED: ErrorEntry(
        "Enrolment refused",
        "A machine did not join: its one-time token is unknown, used, revoked or past its fifteen minutes, or the "
        "proof was not made by the key that it offers.",
        "Ask an admin of the platform for a new token, and enrol with it once.",
    ),
    Code.GRACE_PERIOD: ErrorEntry(
        "Grace period",
        "What is deprecated stays for a while, so that those who use it can leave.",
        "Try again after `details.ready_at`.",
    ),
    Code.GRANT_EXCEEDS_CEILING: ErrorEntry(
        "Grant exceeds ceiling",
        "Nobody gives a role or an action that he does not hold himself in that place.",
        "Ask somebody who holds what `details.missing_actions` lists.",
    ),
    Code.HEADER_INVALID: ErrorEntry(
        "Header invalid",
        "A header has a form that is not taken.",
        "Correct the header that `details.header` names.",
    ),
    Code.HOLD_PRESENT: ErrorEntry(
        "Hold present",
        "Something still uses the digest, and what is in use is not retired.",
        "Stop or upgrade what `details.holders` names, then try again.",
    ),
    Code.IDEMPOTENCY_CONFLICT: ErrorEntry(
        "Idempotency conflict",
        "This Idempotency-Key was used before on this route with another body.",
        "Use a new key for a new request; repeat the first body to have its answer again.",
    ),
    Code.ILLEGAL_TRANSITION: ErrorEntry(
        "Illegal transition",
        "The request is well formed, but the thing is in a state that does not take it.",
        "Read `details.state` and choose from `details.allowed`.",
    ),
    Code.INCOMPATIBLE: ErrorEntry(
        "Incompatible",
        "The app does not fit the capacity that was named.",
        "Make the change that `details.smallest_change` names, or choose other capacity.",
    ),
    Code.INTERNAL: ErrorEntry(
        "Internal error",
        "Mooring failed; the cause is in its log under the correlation id.",
        "Try again with the same Idempotency-Key; if it stays, give the correlation id to the platform's operator.",
        retryable=True,
    ),
    Code.LAST_ADMIN: ErrorEntry(
        "Last admin",
        "The change would leave nobody who can administer this place.",
        "Name another admin first.",
    ),
    Code.LEASE_LOST: ErrorEntry(
        "Lease lost",
        "Another holder has the lease now; what this one reported was not taken.",
        "Stop working on it and claim anew.",
    ),
    Code.LAYER_MISMATCH: ErrorEntry(
        "Layer mismatch",
        "The image's manifest is what its digest names, but a layer has other bytes than those it names.",
        "Do not use this image: its registry was tampered with, or lost something. `details.failed` names the layer.",
    ),
    Code.LIMIT_REACHED: ErrorEntry(
        "Limit reached",
        "There are as many of these as the platform keeps for one owner.",
        "Remove what is no longer used, or ask the platform's operator for a higher limit.",
    ),
    Code.MALFORMED_REQUEST: ErrorEntry(
        "Malformed request",
        "The request could not be read: not JSON, not UTF-8, or not HTTP as it should be.",
        "Correct the request; `detail` says where reading stopped.",
    ),
    Code.MANIFEST_INVALID: ErrorEntry(
        "Manifest invalid",
        "The manifest has errors; each is named with its place, the reason and a fix.",
        "Apply the fixes in `details.findings`; `mooring manifest lint` shows them with their lines.",
    ),
    Code.MEDIA_TYPE_UNSUPPORTED: ErrorEntry(
        "Media type unsupported",
        "The body is of a media type that this endpoint does not take.",
        "Send `Content-Type: application/json`.",
    ),
    Code.METHOD_NOT_ALLOWED: ErrorEntry(
        "Method not allowed",
        "The path exists, but not with this method.",
        "Use one of the methods in the `Allow` header.",
    ),
    Code.MODE_NOT_OFFERED: ErrorEntry(
        "Mode not offered",
        "The pair of operating mode and control-plane scope is not offered yet, or not supported by the app.",
        "Choose one of `details.offered`.",
    ),
    Code.NAME_TAKEN: ErrorEntry(
        "Name taken",
        "Something of this kind has that name already.",
        "Choose another name, or use the one that is there.",
    ),
    Code.NOT_EMPTY: ErrorEntry(
        "Not empty",
        "It still holds things that must go first.",
        "Remove what `details` names, then try again.",
    ),
    Code.NOT_ENTITLED: ErrorEntry(
        "Not entitled",
        "The project may not launch this app, or not this version of it.",
        "Ask an admin of the tenant to entitle the project, or to renew the entitlement.",
    ),
    Code.NOT_FOUND: ErrorEntry(
        "Not found",
        "There is no such thing, or the caller may not see it.",
        "Check the id, and that the caller belongs to its tenant and project.",
    ),
    Code.NOT_SUPPORTED: ErrorEntry(
        "Not supported",
        "The app's manifest says that it cannot do this.",
        "Do what `details.instead` says.",
    ),
    Code.NO_CAPACITY: ErrorEntry(
        "No capacity",
        "There is no place for what was asked, now or at all.",
        "Ask for what `details.smallest_change` says, or wait for capacity.",
        retryable=True,
    ),
    Code.OPERATION_IN_PROGRESS: ErrorEntry(
        "Operation in progress",
        "Another operation on the same instance or member is not over.",
        "Wait for the operation that `details.operation_id` names, or cancel it.",
        retryable=True,
    ),
    Code.PERMISSION_DENIED: ErrorEntry(
        "Permission denied",
        "The caller is known, and may not do this here.",
        "Ask an admin of this place for the action key in `details.action`.",
    ),
    Code.POLICY_DENIED: ErrorEntry(
        "Policy denied",
        "A layer of the policy does not allow it.",
        "Choose what the policy allows, or ask whoever keeps the layer in `details.layer`; `mooring "
        "policy explain` shows each layer's answer.",
    ),
    Code.POLICY_WIDENS: ErrorEntry(
        "Policy widens",
        "An overlay may only narrow what the layers above it allow, and this one says more.",
        "Leave out what `details.widenings` names, or have the layer above changed first.",
    ),
    Code.PROMOTION_REFUSED: ErrorEntry(
        "Promotion refused",
        "The move exists, but what it needs is not there.",
        "Provide what `details.missing` names, then try again.",
    ),
    Code.RATE_LIMITED: ErrorEntry(
        "Rate limited",
        "More requests came from this caller than the platform takes.",
        "Wait for the seconds of the `Retry-After` header.",
        retryable=True,
    ),
    Code.REDIRECT_REFUSED: ErrorEntry(
        "Redirect refused",
        "The source sends the reader on to a host that is not allowed for it.",
        "Ask for `details.host` to be allowed for this source, if it is the source's own storage.",
    ),
    Code.REGISTRY_AUTH_REFUSED: ErrorEntry(
        "Registry authentication refused",
        "The registry, or another source, does not accept the credentials, asks for some that are not there, or "
        "wants them sent to a host that is not allowed.",
        "Check the source's credentials and its token host, and that they cover this repository.",
    ),
    Code.REVISION_CONFLICT: ErrorEntry(
        "Revision conflict",
        "The thing changed after the caller read it.",
        "Read it again, and repeat the change on what is there now.",
    ),
    Code.ROLLBACK_UNAVAILABLE: ErrorEntry(
        "Rollback unavailable",
        "There is nothing to go back to: no earlier pin, or its version is retired or its artifacts are revoked.",
        "Upgrade to a version that is offered.",
    ),
    Code.SIGNATURE_INVALID: ErrorEntry(
        "Signature invalid",
        "There are signatures, and none of them can be used: malformed, too large, or not of the kind that is taken.",
        "Sign the digest again; `details.failures` says for each signature what is wrong.",
    ),
    Code.SIGNATURE_KEY_UNKNOWN: ErrorEntry(
        "Signature by an unknown key",
        "There are signatures, and none of them was made by a key that is trusted here over these bytes.",
        "Sign with a trusted key, or have the signer's public key added.",
    ),
    Code.SIGNATURE_MISSING: ErrorEntry(
        "Signature missing",
        "A signature is required, and the registry has none for this digest.",
        "Sign the digest, in the repository where it was published.",
    ),
    Code.SIGNATURE_REPLAYED: ErrorEntry(
        "Signature replayed",
        "A trusted key signed something else: another repository, another digest, or no repository at all.",
        "Sign this digest for this repository; `details.failures` says what each signature is for.",
    ),
    Code.SIGN_IN_REFUSED: ErrorEntry(
        "Sign-in refused",
        "Tenant, e-mail address and password (or one-time code) do not belong together, or the user is disabled.",
        "Check all three; after many tries the address is held off for a while.",
    ),
    Code.SMOKE_FAILED: ErrorEntry(
        "Smoke check failed",
        "The artifact is complete, but could not be started: platform, config or entry point are not as they must be.",
        "Read `details.failed`, correct the image, and publish it under its new digest.",
    ),
    Code.SOURCE_DENIED: ErrorEntry(
        "Source denied",
        "The artifact comes from a place that is not on the list of sources, or that the policy denies.",
        "Publish it to an allowed source, or have the source allowed; `mooring policy explain` says which "
        "layer decides.",
    ),
    Code.SOURCE_ENDLESS: ErrorEntry(
        "Source endless",
        "The source went on sending beyond the size that it or the manifest had announced, or beyond the limit "
        "without announcing any.",
        "Check what the source serves under this address.",
    ),
    Code.SOURCE_MALFORMED: ErrorEntry(
        "Source malformed",
        "The source answered with something that is not what its protocol says.",
        "Check that the address is one of such a source; `detail` says what was wrong.",
    ),
    Code.SOURCE_PATH_REFUSED: ErrorEntry(
        "Source path refused",
        "A file was named that is not a plain file below the directory that the platform opens for this.",
        "Name a path below that directory, without symbolic links.",
    ),
    Code.SOURCE_STALLED: ErrorEntry(
        "Source stalled",
        "The source stopped sending in the middle: no byte came for as long as a check waits.",
        "Verify the artifact again when the source is well; "
        "`MOORING_SOURCE_TIMEOUT_SECONDS` says how long silence is borne.",
        retryable=True,
    ),
    Code.SOURCE_TOO_LARGE: ErrorEntry(
        "Source too large",
        "The content is larger than the platform takes from this source.",
        "Publish less, or ask the platform's operator for a higher limit; `details.limit_bytes` says what is taken.",
    ),
    Code.SOURCE_TOO_SLOW: ErrorEntry(
        "Source too slow",
        "The source did not send its answer in time, or went on too slowly.",
        "Try again later; if it stays, look at the source.",
        retryable=True,
    ),
    Code.SOURCE_UNREACHABLE: ErrorEntry(
        "Source unreachable",
        "The source could not be reached, broke off, or failed, more often than it is tried again.",
        "Try again later; if it stays, check the source's address and that it runs.",
        retryable=True,
    ),
    Code.TAG_MOVED: ErrorEntry(
        "Tag moved",
        "The tag names another digest than the one it was said to name.",
        "Use the digest alone; a tag is only a label.",
    ),
    Code.TEMPORARILY_UNAVAILABLE: ErrorEntry(
        "Temporarily unavailable",
        "A part that the request needs does not answer: the database, most often.",
        "Try again with the same Idempotency-Key.",
        retryable=True,
    ),
    Code.UNAUTHENTICATED: ErrorEntry(
        "Unauthenticated",
        "There is no token, or it is unknown, expired or revoked.",
        "Sign in, or exchange a new assertion, and send `Authorization: Bearer …`.",
    ),
    Code.VALIDATION_FAILED: ErrorEntry(
        "Validation failed",
        "The request was read, but a value in it is not taken.",
        "Correct the value that `details.path` names.",
    ),
    Code.VERSION_AHEAD_OF_ARTIFACT: ErrorEntry(
        "Version ahead of artifact",
        "A version is never further than its artifacts, and this move would make it so.",
        "Move what `details` names first: the artifacts before the version, or the versions before the artifact.",
    ),
    Code.VERSION_DEPRECATED: ErrorEntry(
        "Version deprecated",
        "The version is superseded: what runs goes on, and new instances are refused.",
        "Use the version in `details.superseded_by`, or the channel `stable`.",
    ),
    Code.VERSION_IMMUTABLE: ErrorEntry(
        "Version immutable",
        "A version changes only while it is a draft.",
        "Publish a new version.",
    ),
    Code.VERSION_NOT_OFFERED: ErrorEntry(
        "Version not offered",
        "The version exists, but it is not offered to this project.",
        "Use the channel `stable`, or have the version promoted.",
    ),
}


class Refusal(Exception):
    """A domain error: the request was understood and refused, and nothing was changed."""

    def __init__(self, code: Code, detail: str, details: Mapping[str, object] | None = None):
        self.code = code
        self.detail = detail
        self.details: dict[str, object] = dict(details or {})
        super().__init__(f"{code}: {detail}")

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return CATALOGUE[self.code].retryable
