"""Claims: which adapter works on an instance, under a fence that grows with each new holder.

An adapter claims whole instances. An instance is offered to the adapters of its operator account when it has an open
operation in the adapter's phase, or when it runs and nobody watches it. The claim gives a lease and a fence; one call
renews all leases of a holder. A fence is valid until there is a newer one: it grows when another holder claims the
instance, when the holder releases it, and when the instance is stopped. A holder that claims its own lease again,
because a response was lost, keeps its fence.

Every decision under a claim carries a guard on the fence into the statement that writes it. So the write of an old
holder and the claim of a new one serialize, and the old holder's write is rolled back.
"""

from dataclasses import dataclass
from typing import Final

from mooring.core.kernel.decision import RowGuard
from mooring.core.kernel.errors import Code, Refusal

CLAIMS_MAX: Final = 100
"""How many instances one call may claim."""
HELD_MAX: Final = 5_000
WAIT_SECONDS_MAX: Final = 25
HOLDER_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"
PRESENCE_SECONDS: Final = 30.0
"""The resolution of the time at which an adapter last asked for work."""


@dataclass(frozen=True, slots=True)
class FencedInstance:
    """An instance with the fence of its claim."""

    instance_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class InstanceClaim:
    """Who holds an instance; `holder` is None if nobody does."""

    instance_id: str
    service_account_id: str
    holder: str | None
    fence: int


def require_fence(claim: InstanceClaim, fence: int) -> None:
    """Refuse unless somebody holds the instance under exactly this fence."""
    if claim.holder is None or claim.fence != fence:
        raise Refusal(
            Code.LEASE_LOST,
            "another holder has a newer claim on the instance, or nobody holds it: claim it again",
            {"instance_id": claim.instance_id, "fence": fence},
        )


def guard_of(claim: InstanceClaim) -> RowGuard:
    """A guard that fails the write if the fence has become stale by then."""
    return RowGuard("instance_claim", {"instance_id": claim.instance_id, "fence": claim.fence})
