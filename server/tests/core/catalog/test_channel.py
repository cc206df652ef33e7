"""Who meets which version: the channel, the canary and what is refused."""

import hashlib
from collections.abc import Iterable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.channel import (
    BUCKETS,
    Candidate,
    bucket,
    check_percentage,
    is_in_canary,
    meets,
    stable,
    why_not_offered,
)
from mooring.core.catalog.promotion_lifecycle import PromotionState as S
from mooring.core.catalog.semver import read_version
from mooring.core.kernel.errors import Code, Refusal
from tests.support.rows import every_row

PROJECTS = [f"prj_{number:026d}" for number in range(2_000)]


def candidate(version: str, promotion: S, percentage: str | None = None, successor: str | None = None) -> Candidate:
    return Candidate(
        f"ver_{version}",
        read_version(version),
        promotion,
        None if percentage is None else Decimal(percentage),
        successor,
    )


def first_in(version_id: str, percentage: str, projects: Iterable[str] = PROJECTS) -> str:
    return next(project for project in projects if is_in_canary(version_id, project, Decimal(percentage)))


def first_out(version_id: str, percentage: str) -> str:
    return next(project for project in PROJECTS if not is_in_canary(version_id, project, Decimal(percentage)))


def test_the_bucket_is_the_published_hash_and_nothing_else() -> None:
    whole = int(hashlib.sha256(b"ver_1\nprj_1").hexdigest(), 16)

    assert bucket("ver_1", "prj_1") == whole % 10_000 == 6_354
    assert is_in_canary("ver_1", "prj_1", Decimal("63.55"))
    assert not is_in_canary("ver_1", "prj_1", Decimal("63.54"))


@settings(max_examples=40)
@given(st.text(max_size=30), st.text(max_size=30), st.integers(1, BUCKETS), st.integers(1, BUCKETS))
def test_raising_the_percentage_only_adds_projects(version: str, project: str, one: int, other: int) -> None:
    low, high = sorted((Decimal(one) / 100, Decimal(other) / 100))

    assert is_in_canary(version, project, low) <= is_in_canary(version, project, high)
    assert is_in_canary(version, project, Decimal(100))


def test_a_percentage_takes_about_that_share_and_another_version_takes_others() -> None:
    ten = {project for project in PROJECTS if is_in_canary("ver_a", project, Decimal(10))}
    others = {project for project in PROJECTS if is_in_canary("ver_b", project, Decimal(10))}

    assert 150 < len(ten) < 250
    assert len(ten & others) < 50


@every_row(("given", "read"), [(10, "10"), ("2.5", "2.5"), (0.01, "0.01"), (100, "100"), (Decimal("33.33"), "33.33")])
def test_a_percentage_has_two_decimals_at_most(given: Decimal | float | str, read: str) -> None:
    assert check_percentage(given) == Decimal(read)


@every_row("given", [0, -1, 100.01, "0.001", "ten", "", "NaN", "Infinity", float("nan"), "1e9"])
def test_a_malformed_percentage_is_refused(given: float | str) -> None:
    with pytest.raises(Refusal) as refused:
        check_percentage(given)
    assert refused.value.details == {"path": "canary_percentage"}


def test_stable_is_the_newest_active_by_semantic_version() -> None:
    candidates = [
        candidate("1.9.0", S.ACTIVE),
        candidate("1.10.0", S.ACTIVE),
        candidate("1.10.0-rc.1", S.ACTIVE),
        candidate("3.0.0", S.STAGED),
        candidate("2.0.0", S.DEPRECATED),
        candidate("4.0.0", S.DRAFT),
        candidate("5.0.0", S.RETIRED),
    ]
    chosen = stable(candidates, "prj_1")

    assert chosen is not None
    assert str(chosen.version) == "1.10.0"
    assert stable(candidates[3:], "prj_1") is None


def test_the_canary_is_stable_for_a_project_that_is_in_and_for_no_other() -> None:
    active, canary = candidate("1.0.0", S.ACTIVE), candidate("1.1.0", S.CANARY, "10")
    inside, outside = first_in(canary.version_id, "10"), first_out(canary.version_id, "10")

    assert stable([active, canary], inside) == canary
    assert stable([active, canary], outside) == active
    assert stable([canary], outside) is None


def test_an_older_canary_takes_nobody_back() -> None:
    active, canary = candidate("2.0.0", S.ACTIVE), candidate("1.9.1", S.CANARY, "100")

    assert stable([active, canary], "prj_1") == active
    assert meets(canary, "prj_1")
    assert why_not_offered(canary, "prj_1") is None


def test_deprecated_is_refused_for_new_instances_and_names_what_supersedes_it() -> None:
    refusal = why_not_offered(candidate("1.0.0", S.DEPRECATED, successor="ver_2"), "prj_1")

    assert refusal is not None
    assert refusal.code is Code.VERSION_DEPRECATED
    assert refusal.details["superseded_by"] == "ver_2"
    assert "ver_2 supersedes it" in refusal.detail


@every_row("promotion", [S.DRAFT, S.STAGED, S.RETIRED])
def test_what_is_offered_to_nobody_is_refused(promotion: S) -> None:
    refusal = why_not_offered(candidate("1.0.0", promotion), "prj_1")

    assert refusal is not None
    assert (refusal.code, refusal.details["promotion"]) == (Code.VERSION_NOT_OFFERED, promotion.value)


def test_a_canary_is_refused_to_a_project_that_is_not_in() -> None:
    canary = candidate("1.1.0", S.CANARY, "10")
    refusal = why_not_offered(canary, first_out(canary.version_id, "10"))

    assert refusal is not None
    assert "not in it" in refusal.detail
    assert not meets(candidate("1.1.0", S.CANARY, None), "prj_1")
