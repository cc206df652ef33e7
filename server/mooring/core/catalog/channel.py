"""Channels: which version of an app a project meets.

The channel `stable` is the newest active version by semantic version, or a newer canary for a project that is in; the
channel `canary` is the newest canary that the project is in, and nothing where it is in none. Whether a project is in
is no stored list but a number: sha256 of version and project, modulo 10,000, below the version's canary
percentage × 100. The same project has the same number for a version for ever, so it does not flip, and raising the
percentage only adds projects. Another version gives another number, so it is not always the same projects that go
first.

A canary that is older than the newest active version (a fix for an old line) is offered to those who ask for it by
its number, and does not take anybody back who follows the channel.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.semver import SemVer
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.validation import invalid

BUCKETS: Final = 10_000
BUCKETS_PER_PERCENT: Final = 100


class Channel(StrEnum):
    """What a launcher may ask for instead of a version."""

    STABLE = "stable"
    CANARY = "canary"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What has to be known of a version to say who meets it."""

    version_id: str
    version: SemVer
    promotion: PromotionState
    canary_percentage: Decimal | None = None
    superseded_by: str | None = None


def check_percentage(percentage: Decimal | int | float | str, path: str = "canary_percentage") -> Decimal:
    """A percentage above 0 and up to 100, with at most two decimals."""
    try:
        read = Decimal(str(percentage))
    except ArithmeticError as error:
        raise invalid(path, "a percentage such as 10 or 2.5") from error
    # A number with more decimals is refused and not rounded: who writes 0.004 does not mean nobody.
    if not read.is_finite() or not 0 < read <= 100 or read * BUCKETS_PER_PERCENT % 1:
        raise invalid(path, "a percentage above 0 and up to 100, with at most two decimals")
    return read


def bucket(version_id: str, project_id: str) -> int:
    """The number between 0 and 9,999 that this project has for this version, for ever."""
    digest = hashlib.sha256(f"{version_id}\n{project_id}".encode()).digest()
    return int.from_bytes(digest) % BUCKETS


def is_in_canary(version_id: str, project_id: str, percentage: Decimal) -> bool:
    """Whether the project is among the first to meet the version."""
    return bucket(version_id, project_id) < percentage * BUCKETS_PER_PERCENT


def meets(candidate: Candidate, project_id: str) -> bool:
    """Whether the version is offered to this project."""
    if candidate.promotion is PromotionState.CANARY and candidate.canary_percentage is not None:
        return is_in_canary(candidate.version_id, project_id, candidate.canary_percentage)
    return candidate.promotion is PromotionState.ACTIVE


def stable(candidates: Iterable[Candidate], project_id: str) -> Candidate | None:
    """The version that `stable` means for this project, or none when no version is offered to it."""
    offered = (each for each in candidates if meets(each, project_id))
    return max(offered, key=lambda each: each.version, default=None)


def first_canary(candidates: Iterable[Candidate], project_id: str) -> Candidate | None:
    """The newest canary that this project is in, or none."""
    offered = (each for each in candidates if each.promotion is PromotionState.CANARY and meets(each, project_id))
    return max(offered, key=lambda each: each.version, default=None)


def why_not_offered(candidate: Candidate, project_id: str) -> Refusal | None:
    """Why a new instance of this very version is refused; None where the version is offered to the project."""
    if meets(candidate, project_id):
        return None
    details: dict[str, object] = {
        "version": str(candidate.version),
        "version_id": candidate.version_id,
        "promotion": candidate.promotion.value,
    }
    if candidate.promotion is PromotionState.DEPRECATED:
        successor = f"; {candidate.superseded_by} supersedes it" if candidate.superseded_by else ""
        return Refusal(
            Code.VERSION_DEPRECATED,
            f"version {candidate.version} is deprecated: what runs goes on, new instances are refused{successor}",
            details | {"superseded_by": candidate.superseded_by},
        )
    if candidate.promotion is PromotionState.CANARY:
        detail = f"version {candidate.version} is a canary, and this project is not among its first"
    else:
        detail = f"version {candidate.version} is {candidate.promotion} and offered to nobody"
    return Refusal(Code.VERSION_NOT_OFFERED, detail, details)
