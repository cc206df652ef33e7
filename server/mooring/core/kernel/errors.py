"""The closed catalogue of errors.

There are few errors, and their names say what they mean. Each entry says whether a retry can help and what the caller
should do. The HTTP status does not concern the core: it is in `api/problem.py`. `docs/errors.md`, the SDK's exception
classes and `mooring explain` are generated from this table, and a test compares them.

A `Refusal` carries the public message. What only an operator should read goes to the log, never into `detail`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mooring.core.kernel.error_code import Code as Code


@dataclass(frozen=True, slots=True)
class ErrorEntry:
    """What the catalogue says about one error code."""

    title: str
    meaning: str
    remedy: str  # what the caller should do
    retryable: bool = False  # whether the same request may succeed later, unchanged


CATALOGUE: Mapping[Code, ErrorEntry] = {
    Code.ADDRESS_REFUSED: ErrorEntry(
        "Address refused",
        "The given address resolves to a network that the platform does not dial for tenants: loopback, "
        "link-local, private, or its own.",
        "Give a public https address, or ask the platform's admin to allow this network.",
    ),
    Code.ADAPTER_MISSING: ErrorEntry(
        "Adapter missing",
        "No adapter can operate the app in this project: its operator account has no key, or not the actions.",
        "Agree to the app's `required_actions` in its entitlement. If that does not help, the platform's admin sets "
        "the key of the workload adapter, or the app team that of the app.",
    ),
    Code.ALLOCATION_IN_USE: ErrorEntry(
        "Allocation in use",
        "The allocation holds members of another instance, and at least one of the two apps does not allow sharing.",
        "Name another allocation, or let the platform allocate one.",
    ),
    Code.ARTIFACT_NOT_FOUND_AT_SOURCE: ErrorEntry(
        "Artifact not found at source",
        "The source does not have this digest, tag or file.",
        "Check the repository and the digest; push to the registry first, then register.",
    ),
    Code.ARTIFACT_NOT_PINNED: ErrorEntry(
        "Artifact not pinned",
        "An adapter's task names a digest or a role that is neither in the instance's version nor in the operation's.",
        "Name a role of the pinned manifest; use an upgrade to bring in another version.",
    ),
    Code.ARTIFACT_NOT_REGISTERED: ErrorEntry(
        "Artifact not registered",
        "The project sees no registered artifact with this digest, so nobody has checked its bytes.",
        "Register the artifact and let it be verified, then use its digest.",
    ),
    Code.ARTIFACT_REVOKED: ErrorEntry(
        "Artifact revoked",
        "The artifact was permanently withdrawn, whatever its other states say.",
        "Use a version that does not need it; `details.reason` says why it was revoked.",
    ),
    Code.ARTIFACT_UNVERIFIED: ErrorEntry(
        "Artifact unverified",
        "No stored evidence proves the artifact under the current policy.",
        "Verify it; `details.reasons` says what is missing.",
    ),
    Code.ASSERTION_REFUSED: ErrorEntry(
        "Assertion refused",
        "The signed assertion was not accepted: unknown key, wrong signature, audience or lifetime, used before, or "
        "the account is not active, or the node is retired.",
        "Check the key id, the clock, and that the account is active; sign a new assertion for each exchange. A "
        "retired node must enrol again.",
    ),
    Code.BALANCE_TOO_LOW: ErrorEntry(
        "Balance too low",
        "The tenant pays in advance, and its balance does not cover the request.",
        "Make the change that `details.smallest_change` names.",
    ),
    Code.BODY_TOO_LARGE: ErrorEntry(
        "Body too large",
        "The request's body, or one of its headers, is larger than the limit, or has too many lists and objects.",
        "Send less; `details` has the limit.",
    ),
    Code.BUDGET_EXCEEDED: ErrorEntry(
        "Budget exceeded",
        "A budget of the tenant or the project blocks new launches, or does not cover this one.",
        "Make the change that `details.smallest_change` names.",
    ),
    Code.CALLER_ADDRESS_DENIED: ErrorEntry(
        "Caller's address denied",
        "The tenant allows requests only from some networks, and the caller's address is in none of them.",
        "Call from an allowed network, or ask an admin of the tenant or of the platform to add yours.",
    ),
    Code.CERTIFICATE_REQUIRED: ErrorEntry(
        "Client certificate required",
        "A node's request came over a connection without the valid client certificate of that node.",
        "Agents get a new certificate by themselves and connect again; behind a proxy that ends TLS, the platform's "
        "operator sets `MOORING_NODE_CERTIFICATES=off`.",
    ),
    Code.CHECK_CANCELLED: ErrorEntry(
        "Check cancelled",
        "The check of the artifact's bytes was cancelled before it had read all of them.",
        "Verify the artifact, or repeat the request, to begin a new check.",
    ),
    Code.CHECK_RUNNING: ErrorEntry(
        "Check running",
        "The answer needs a check of the artifact's bytes, and that check is still running.",
        "Wait for the check that `details.check_id` names "
        "(`GET …/checks/{check_id}?wait=60&until=succeeded,failed`), then repeat the request.",
        retryable=True,
    ),
    Code.CIRCUIT_OPEN: ErrorEntry(
        "Circuit open",
        "Launches of this version on this shape failed several times in a row, so new ones are refused for a while.",
        "Read why the last ones failed (`details.failures`), launch another version, or wait until `details.until`.",
        retryable=True,
    ),
    Code.CLOSING_RECORD_MISSING: ErrorEntry(
        "Closing record missing",
        "Nothing becomes stopped or removed before each member has a closing record.",
        "Wait for the receipts of the nodes that `details` names, or write off a node that is permanently lost.",
    ),
    Code.CONFLICT: ErrorEntry(
        "Conflict",
        "Another request changed the same resource at the same time, or its state does not allow this any more.",
        "Read the resource, then try again; nothing was changed.",
        retryable=True,
    ),
    Code.CONTENT_EXPANDS_TOO_FAR: ErrorEntry(
        "Content expands too far",
        "The compressed content unpacks to more bytes than the platform accepts.",
        "Publish content that unpacks to less; `details.limit_bytes` is the limit.",
    ),
    Code.CROSS_SITE_REQUEST: ErrorEntry(
        "Request from another site",
        "The request relies on a browser's session, but nothing shows that a page of this platform made it.",
        "Make the request from the console; programs send a token in the `Authorization` header instead of the cookie. "
        "Behind a proxy, set `MOORING_PUBLIC_URL` to the address that browsers see.",
    ),
    Code.CURSOR_EXPIRED: ErrorEntry(
        "Cursor expired",
        "The events after this cursor were deleted because of their age.",
        "Read the resources again, then follow the events from `details.oldest_cursor`.",
    ),
    Code.CURSOR_INVALID: ErrorEntry(
        "Cursor invalid",
        "The cursor was not made by this platform, or not for this list.",
        "Start without a cursor.",
    ),
    Code.DIGEST_MISMATCH: ErrorEntry(
        "Digest mismatch",
        "The bytes at the source do not have this digest.",
        "Do not use this content; compare `details`, and publish the intended content under its own digest.",
    ),
    Code.ENROLMENT_REFUSED: ErrorEntry(
        "Enrolment refused",
        "The machine could not join: its one-time token is unknown, used, revoked or older than fifteen minutes, or "
        "the proof was not made with the key that it offers.",
        "Ask an admin of the platform for a new token, and enrol with it once.",
    ),
    Code.GRACE_PERIOD: ErrorEntry(
        "Grace period",
        "Something that is deprecated stays for a while, so that its users can move away from it.",
        "Try again after `details.ready_at`.",
    ),
    Code.GRANT_EXCEEDS_CEILING: ErrorEntry(
        "Grant exceeds ceiling",
        "Nobody can grant a role or an action that they do not hold themselves in that place.",
        "Ask somebody who holds the actions in `details.missing_actions`.",
    ),
    Code.HEADER_INVALID: ErrorEntry(
        "Header invalid",
        "A header of the request is malformed.",
        "Correct the header that `details.header` names.",
    ),
    Code.HOLD_PRESENT: ErrorEntry(
        "Hold present",
        "Something still uses the digest, and an artifact in use cannot be retired.",
        "Stop or upgrade what `details.holders` names, then try again.",
    ),
    Code.IDEMPOTENCY_CONFLICT: ErrorEntry(
        "Idempotency conflict",
        "This Idempotency-Key was used before on this route with another body.",
        "Use a new key for a new request, or repeat the first body to get its answer again.",
    ),
    Code.ILLEGAL_TRANSITION: ErrorEntry(
        "Illegal transition",
        "The request is well formed, but the resource is in a state that does not accept it.",
        "Read `details.state` and choose from `details.allowed`.",
    ),
    Code.INCOMPATIBLE: ErrorEntry(
        "Incompatible",
        "The app does not fit the chosen capacity.",
        "Make the change that `details.smallest_change` names, or choose other capacity.",
    ),
    Code.INTERNAL: ErrorEntry(
        "Internal error",
        "Mooring failed; the cause is in its log under the correlation id.",
        "Try again with the same Idempotency-Key; if it fails again, give the correlation id to the platform's "
        "operator.",
        retryable=True,
    ),
    Code.LAST_ADMIN: ErrorEntry(
        "Last admin",
        "The change would leave nobody who can administer this place.",
        "Name another admin first.",
    ),
    Code.LEASE_LOST: ErrorEntry(
        "Lease lost",
        "Another holder has the lease now; this report was ignored.",
        "Stop working on it and claim again.",
    ),
    Code.LAYER_MISMATCH: ErrorEntry(
        "Layer mismatch",
        "The image's manifest matches its digest, but the bytes of a layer do not match the manifest.",
        "Do not use this image: its registry was tampered with, or lost data. `details.failed` names the layer.",
    ),
    Code.LIMIT_REACHED: ErrorEntry(
        "Limit reached",
        "The owner already has as many of these as the platform allows.",
        "Remove what is no longer used, or ask the platform's operator for a higher limit.",
    ),
    Code.MALFORMED_REQUEST: ErrorEntry(
        "Malformed request",
        "The request could not be parsed: it is not valid JSON, UTF-8 or HTTP.",
        "Correct the request; `detail` says where parsing stopped.",
    ),
    Code.MANIFEST_INVALID: ErrorEntry(
        "Manifest invalid",
        "The manifest has errors; each is listed with its place, the reason and a fix.",
        "Apply the fixes in `details.findings`; `mooring manifest lint` shows them with their lines.",
    ),
    Code.MEDIA_TYPE_UNSUPPORTED: ErrorEntry(
        "Media type unsupported",
        "This endpoint does not accept the media type of the body.",
        "Send `Content-Type: application/json`.",
    ),
    Code.METHOD_NOT_ALLOWED: ErrorEntry(
        "Method not allowed",
        "The path exists, but not with this method.",
        "Use one of the methods in the `Allow` header.",
    ),
    Code.MODE_NOT_OFFERED: ErrorEntry(
        "Mode not offered",
        "The platform does not offer this pair of operating mode and control-plane scope yet, or the app does not "
        "support it.",
        "Choose one of `details.offered`.",
    ),
    Code.NAME_TAKEN: ErrorEntry(
        "Name taken",
        "Another resource of this kind already has that name.",
        "Choose another name, or use the existing resource.",
    ),
    Code.NOT_EMPTY: ErrorEntry(
        "Not empty",
        "The resource still contains others, which must be removed first.",
        "Remove what `details` names, then try again.",
    ),
    Code.NOT_ENTITLED: ErrorEntry(
        "Not entitled",
        "The project may not launch this app, or not this version of it.",
        "Ask an admin of the tenant to entitle the project, or to renew the entitlement.",
    ),
    Code.NOT_FOUND: ErrorEntry(
        "Not found",
        "There is no such resource, or the caller may not see it.",
        "Check the name or id, and that the caller belongs to its tenant and project.",
    ),
    Code.NOT_SUPPORTED: ErrorEntry(
        "Not supported",
        "The app's manifest says that it cannot do this.",
        "Do what `details.instead` says.",
    ),
    Code.NO_CAPACITY: ErrorEntry(
        "No capacity",
        "There is no capacity for this request, now or ever.",
        "Make the change that `details.smallest_change` names, or wait for capacity.",
        retryable=True,
    ),
    Code.OPERATION_IN_PROGRESS: ErrorEntry(
        "Operation in progress",
        "Another operation on the same instance or member is still running.",
        "Wait for the operation that `details.operation_id` names, or cancel it.",
        retryable=True,
    ),
    Code.PERMISSION_DENIED: ErrorEntry(
        "Permission denied",
        "The caller is known, but may not do this here.",
        "Ask an admin of this place for the action key in `details.action`.",
    ),
    Code.POLICY_DENIED: ErrorEntry(
        "Policy denied",
        "A layer of the policy does not allow this.",
        "Choose something that the policy allows, or ask an admin of the layer in `details.layer`; `mooring "
        "policy explain` shows each layer's answer.",
    ),
    Code.POLICY_WIDENS: ErrorEntry(
        "Policy widens",
        "A layer may only narrow what the layers above it allow, and this one allows more.",
        "Remove what `details.widenings` names, or have the layer above changed first.",
    ),
    Code.PROMOTION_REFUSED: ErrorEntry(
        "Promotion refused",
        "The transition exists, but its conditions are not met.",
        "Provide what `details.missing` names, then try again.",
    ),
    Code.QUOTA_EXCEEDED: ErrorEntry(
        "Quota exceeded",
        "A quota of the tenant or the project does not allow this much at once.",
        "Make the change that `details.smallest_change` names.",
    ),
    Code.RATE_LIMITED: ErrorEntry(
        "Rate limited",
        "This caller sends more requests than the platform accepts.",
        "Wait for the number of seconds in the `Retry-After` header.",
        retryable=True,
    ),
    Code.REDIRECT_REFUSED: ErrorEntry(
        "Redirect refused",
        "The source redirects to a host that is not allowed for it.",
        "If `details.host` is the source's own storage, ask for it to be allowed for this source.",
    ),
    Code.REGISTRY_AUTH_REFUSED: ErrorEntry(
        "Registry authentication refused",
        "The registry, or another source, does not accept the credentials, requires credentials that are not "
        "configured, or wants them sent to a host that is not allowed.",
        "Check the source's credentials and its token host, and that they cover this repository.",
    ),
    Code.REVISION_CONFLICT: ErrorEntry(
        "Revision conflict",
        "The resource changed after the caller read it.",
        "Read it again, and repeat the change on the current revision.",
    ),
    Code.ROLLBACK_UNAVAILABLE: ErrorEntry(
        "Rollback unavailable",
        "There is nothing to roll back to: no earlier pin, or its version is retired, or its artifacts are revoked.",
        "Upgrade to a version that is offered.",
    ),
    Code.ROOT_KEY_MISSING: ErrorEntry(
        "Root key missing",
        "This platform knows no root key, so no key can be put into use with its signature.",
        "Create a root key offline, set its public half as `MOORING_ROOT_KEY`, and start the platform again.",
    ),
    Code.SECRET_IN_USE: ErrorEntry(
        "Secret in use",
        "Instances that are not ended name the secret, or a source of the tenant uses it; `details` has them.",
        "Stop the instances and remove the source first, or repeat with `force`: then what starts later fails for "
        "lack of the secret.",
    ),
    Code.SIGNATURE_INVALID: ErrorEntry(
        "Signature invalid",
        "There are signatures, but none of them can be used: they are malformed, too large, or of an unsupported kind.",
        "Sign the digest again; `details.failures` says for each signature what is wrong.",
    ),
    Code.SIGNATURE_KEY_UNKNOWN: ErrorEntry(
        "Signature by an unknown key",
        "There are signatures, but no key that is trusted here made one over these bytes.",
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
        "Tenant, e-mail address and password (or one-time code) do not match, or the user is disabled.",
        "Check all three; after many failed attempts the client's address has to wait for a while.",
    ),
    Code.SMOKE_FAILED: ErrorEntry(
        "Smoke check failed",
        "The artifact is complete, but could not be started: its platform, its config or its entry point is wrong.",
        "Read `details.failed`, correct the image, and publish it under its new digest.",
    ),
    Code.SOURCE_DENIED: ErrorEntry(
        "Source denied",
        "The artifact's source is not on the list of allowed sources, or the policy denies it.",
        "Publish it to an allowed source, or have the source allowed; `mooring policy explain` says which "
        "layer decides.",
    ),
    Code.SOURCE_ENDLESS: ErrorEntry(
        "Source endless",
        "The source sent more bytes than it or the manifest had announced, or exceeded the limit without announcing "
        "a size.",
        "Check what the source serves at this address.",
    ),
    Code.SOURCE_MALFORMED: ErrorEntry(
        "Source malformed",
        "The source's answer violates its protocol.",
        "Check that the address belongs to a source of this kind; `detail` says what was wrong.",
    ),
    Code.SOURCE_PATH_REFUSED: ErrorEntry(
        "Source path refused",
        "The named file is not a regular file below the directory that the platform allows for this.",
        "Name a path below that directory, without symbolic links.",
    ),
    Code.SOURCE_STALLED: ErrorEntry(
        "Source stalled",
        "The source stopped in the middle of its answer: no byte arrived before the time-out.",
        "Verify the artifact again when the source has recovered; "
        "`MOORING_SOURCE_TIMEOUT_SECONDS` says how long a check waits for the next byte.",
        retryable=True,
    ),
    Code.SOURCE_TOO_LARGE: ErrorEntry(
        "Source too large",
        "The content is larger than the platform accepts from this source.",
        "Publish less, or ask the platform's operator for a higher limit; `details.limit_bytes` is the limit.",
    ),
    Code.SOURCE_TOO_SLOW: ErrorEntry(
        "Source too slow",
        "The source did not start its answer in time, or sent it too slowly.",
        "Try again later; if it fails again, check the source.",
        retryable=True,
    ),
    Code.SOURCE_UNREACHABLE: ErrorEntry(
        "Source unreachable",
        "The source could not be reached, closed the connection, or failed on every attempt.",
        "Try again later; if it fails again, check the source's address and that it runs.",
        retryable=True,
    ),
    Code.TAG_MOVED: ErrorEntry(
        "Tag moved",
        "The tag points to another digest than the request says.",
        "Use the digest alone; a tag is only a label.",
    ),
    Code.TEMPORARILY_UNAVAILABLE: ErrorEntry(
        "Temporarily unavailable",
        "A component that the request needs, most often the database, does not answer; or so many requests change the "
        "same resource that this one did not get its turn in time.",
        "Try again with the same Idempotency-Key.",
        retryable=True,
    ),
    Code.TOO_MANY_OPEN_TASKS: ErrorEntry(
        "Too many open tasks",
        "The project has as many tasks that have not ended as the platform allows.",
        "Wait until some have ended, or cancel some; the operator sets the limit.",
        retryable=True,
    ),
    Code.UNAUTHENTICATED: ErrorEntry(
        "Unauthenticated",
        "There is no token, or it is unknown, expired or revoked.",
        "Sign in, or exchange a new assertion, and send `Authorization: Bearer …`.",
    ),
    Code.VALIDATION_FAILED: ErrorEntry(
        "Validation failed",
        "The request is well formed, but a value in it is not valid.",
        "Correct the value that `details.path` names.",
    ),
    Code.VERSION_AHEAD_OF_ARTIFACT: ErrorEntry(
        "Version ahead of artifact",
        "A version is never promoted further than its artifacts, and this change would break that rule.",
        "Promote or retire what `details` names first: the artifacts before the version, or the versions before the "
        "artifact.",
    ),
    Code.VERSION_DEPRECATED: ErrorEntry(
        "Version deprecated",
        "The version is superseded: running instances continue, and new ones are refused.",
        "Use the version in `details.superseded_by`, or the channel `stable`.",
    ),
    Code.VERSION_IMMUTABLE: ErrorEntry(
        "Version immutable",
        "A version changes only while it is a draft; while it is staged, only its `required_actions`.",
        "Publish a new version.",
    ),
    Code.VERSION_NOT_OFFERED: ErrorEntry(
        "Version not offered",
        "The version exists, but it is not offered to this project.",
        "Use the channel `stable`, or have the version promoted.",
    ),
    Code.WOULD_LOCK_OUT: ErrorEntry(
        "Would lock out",
        "The change would lock the caller out.",
        "Add the network of the address in `details.address`, or ask a platform admin to force the change.",
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
