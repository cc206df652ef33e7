"""The messages between agent and platform, as types.

`docs/node-plane.md` specifies them. Unknown fields of responses are ignored, so that a newer platform can send more.
Unknown fields of a task's arguments are refused: what is not understood must not be done.
"""

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec

# `\Z` is the very end; `$` would also match before a final line break.
ID = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{2,4}_[0-7][0-9a-hjkmnp-tv-z]{25}\Z")]
OwnerName = Annotated[str, msgspec.Meta(pattern=r"^alc_[0-7][0-9a-hjkmnp-tv-z]{25}(/[a-z0-9][a-z0-9._-]{0,62})?\Z")]
FENCE_MAX = 2**62
ENVELOPE_MAX = 2_000_000
"""The longest task payload that is accepted, in characters."""


class Envelope(msgspec.Struct, frozen=True):
    """A signed task as received."""

    payload: str
    key_id: str
    signature: str


class SealedSecret(msgspec.Struct, frozen=True):
    """A secret that only this node can open."""

    name: str
    purpose: str
    ephemeral_key: str
    nonce: str
    ciphertext: str


class Task(msgspec.Struct, frozen=True):
    """A task, read from a payload whose signature was verified."""

    v: int
    task_id: ID
    type: str
    node_id: ID
    audience: str
    fence: Annotated[int, msgspec.Meta(ge=1, le=FENCE_MAX)]
    tenant_id: str
    project_id: str
    allocation_id: ID
    owner: OwnerName
    issued_at: float
    expires_at: float
    correlation_id: str
    arguments: dict[str, Any]
    trace_id: str = ""
    instance_id: str | None = None
    member_id: str | None = None
    secrets: tuple[SealedSecret, ...] = ()

    @property
    def label(self) -> str:
        """The owner's label within the allocation; empty for the allocation itself."""
        return self.owner.partition("/")[2]


class TaskLease(msgspec.Struct, frozen=True):
    """A task and the fence that it is held under."""

    task_id: str
    fence: int


class PlatformKey(msgspec.Struct, frozen=True):
    """A key that signs tasks; an announced one is signed by the current one, or by the root key with an epoch."""

    key_id: str
    public_key: str
    signed_by: str | None = None
    signature: str | None = None
    epoch: int | None = None
    root_signature: str | None = None


class RootKey(msgspec.Struct, frozen=True):
    """The public half of the operator's offline root key, signed by the key that signs tasks."""

    public_key: str
    signed_by: str
    signature: str


class ClaimResponse(msgspec.Struct, frozen=True):
    tasks: tuple[Envelope, ...] = ()
    cancel: tuple[TaskLease, ...] = ()
    lost: tuple[TaskLease, ...] = ()
    keys: tuple[PlatformKey, ...] = ()
    root_key: RootKey | None = None
    heartbeat_seconds: float = 30.0
    lease_seconds: float = 90.0
    sample_seconds: float = 0.0  # how often GPUs are sampled; a platform that does not say so takes no samples


class TaskFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a task failed."""

    code: str
    detail: str
    exit_code: int | None = None


class SignedReceipt(msgspec.Struct, frozen=True):
    """A receipt's bytes and the node's signature over them."""

    body: str
    signature: str


class TaskResult(msgspec.Struct, frozen=True, omit_defaults=True):
    outcome: Literal["succeeded", "failed", "cancelled"]
    result: dict[str, Any] = {}
    failure: TaskFailure | None = None
    last_lines: tuple[str, ...] = ()
    receipt: SignedReceipt | None = None


class ReportVerdict(msgspec.Struct, frozen=True):
    """The platform's response to one report."""

    accepted: bool
    code: str | None = None
    detail: str | None = None


class ReportResponse(msgspec.Struct, frozen=True):
    """The verdicts on a batch of reports, in their order."""

    results: tuple[ReportVerdict, ...] = ()


class EnrolmentResponse(msgspec.Struct, frozen=True):
    node_id: str
    audience: str
    platform_keys: tuple[PlatformKey, ...]
    root_key: str | None = None
    certificate: str | None = None


class PlatformKeys(msgspec.Struct, frozen=True):
    """The whole chain of keys that sign tasks, the newest one last."""

    platform_keys: tuple[PlatformKey, ...]


def prepare_decoders(*kinds: Any) -> None:
    """Build the decoders of these types now.

    msgspec would do so at their first use, and two threads doing it at once crash the process.
    """
    for each in kinds:
        msgspec.json.Decoder(each)


prepare_decoders(ClaimResponse, ReportResponse, EnrolmentResponse, PlatformKeys)


def encode(data: bytes) -> str:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """Decode base64url; raises `ValueError` if the text is not base64url."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error
