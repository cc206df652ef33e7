"""Claims: which adapter works on an instance, under a fence that grows with each new holder.

The unit is the instance. It is offered to the adapters of its own operator account when it has an open operation that
is the adapter's turn, or when it runs and nobody watches it. Whoever claims it holds a lease and a fence; one call
renews the leases of all that a holder holds. A fence counts until there is a newer one: it grows when somebody else
claims the instance, when its holder gives it back, and when the instance is stopped. The same holder that claims its
own lease again, because an answer was lost, keeps its fence.

Everything that is decided under a claim carries a guard on the fence into the statement that writes it. So of an old
holder's write and a new holder's claim one waits for the other, and the write of the old one is undone.
"""

from dataclasses import dataclass
from typing import Final

from mooring.core.kernel.decision import RowGuard
from mooring.core.kernel.errors import Code, Refusal

CLAIMS_MAX: Final = 100
"""Instances that one call claims."""
HELD_MAX: Final = 5_000
WAIT_SECONDS_MAX: Final = 25
HOLDER_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$"
PRESENCE_SECONDS: Final = 30.0
"""How exactly it is known when an adapter last asked for work."""


@dataclass(frozen=True, slots=True)
class FencedInstance:
    """An instance under the fence of a claim."""

    instance_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class InstanceClaim:
    """Who holds an instance."""

    instance_id: str
    service_account_id: str
    holder: str | None
    fence: int


def require_fence(claim: InstanceClaim, fence: int) -> None:
    """The fence is the newest one, and somebody holds the instance under it."""
    if claim.holder is None or claim.fence != fence:
        raise Refusal(
            Code.LEASE_LOST,
            "the instance is held under a newer claim, or by nobody: claim it again",
            {"instance_id": claim.instance_id, "fence": fence},
        )


def guard_of(claim: InstanceClaim) -> RowGuard:
    """What keeps a write from being made under a fence that is stale by the time it is written."""
    return RowGuard("instance_claim", {"instance_id": claim.instance_id, "fence": claim.fence})
