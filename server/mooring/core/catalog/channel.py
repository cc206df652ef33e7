"""Channels: which version of an app a project gets.

The channel `stable` is the newest active version by semantic version, or a newer canary if the project is in that
canary. The channel `canary` is the newest canary that the project is in, or nothing. There is no stored list of the
projects in a canary: a project is in if sha256 of version and project, modulo 10,000, is below the canary
percentage × 100. The number of a project never changes for a version, so projects do not flip in and out, and a higher
percentage only adds projects. Each version gives other numbers, so it is not always the same projects that go first.

A canary that is older than the newest active version (a fix for an old release line) can be requested by its version
number; it never takes a project that follows the channel back to an older version.
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
    """The properties of a version that decide which projects get it."""

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
    # A number with more decimals is refused and not rounded: 0.004 is not meant as "no project".
    if not read.is_finite() or not 0 < read <= 100 or read * BUCKETS_PER_PERCENT % 1:
        raise invalid(path, "a percentage above 0 and up to 100, with at most two decimals")
    return read


def bucket(version_id: str, project_id: str) -> int:
    """The number between 0 and 9,999 that this project has for this version; it never changes."""
    digest = hashlib.sha256(f"{version_id}\n{project_id}".encode()).digest()
    return int.from_bytes(digest) % BUCKETS


def is_in_canary(version_id: str, project_id: str, percentage: Decimal) -> bool:
    return bucket(version_id, project_id) < percentage * BUCKETS_PER_PERCENT


def meets(candidate: Candidate, project_id: str) -> bool:
    """Whether the version is offered to this project."""
    if candidate.promotion is PromotionState.CANARY and candidate.canary_percentage is not None:
        return is_in_canary(candidate.version_id, project_id, candidate.canary_percentage)
    return candidate.promotion is PromotionState.ACTIVE


def stable(candidates: Iterable[Candidate], project_id: str) -> Candidate | None:
    """The version that the channel `stable` selects for this project; None when no version is offered to it."""
    offered = (each for each in candidates if meets(each, project_id))
    return max(offered, key=lambda each: each.version, default=None)


def first_canary(candidates: Iterable[Candidate], project_id: str) -> Candidate | None:
    """The newest canary that this project is in; None when it is in none."""
    offered = (each for each in candidates if each.promotion is PromotionState.CANARY and meets(each, project_id))
    return max(offered, key=lambda each: each.version, default=None)


def why_not_offered(candidate: Candidate, project_id: str) -> Refusal | None:
    """Why a new instance of this version is refused; None when the version is offered to the project."""
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
            f"version {candidate.version} is deprecated: running instances continue, new ones are refused{successor}",
            details | {"superseded_by": candidate.superseded_by},
        )
    if candidate.promotion is PromotionState.CANARY:
        detail = f"version {candidate.version} is a canary, and this project is not in it"
    else:
        detail = f"version {candidate.version} is {candidate.promotion} and not offered to any project"
    return Refusal(Code.VERSION_NOT_OFFERED, detail, details)
