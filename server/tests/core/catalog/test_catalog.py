"""The catalog of a project: what it may launch and, for what it may not, why."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from mooring.core.catalog.artifact_trust import Trust, TrustDoubt
from mooring.core.catalog.catalog import (
    CatalogEntry,
    Obstacle,
    ProjectContext,
    VersionNeeds,
    catalog_entry,
    chosen_version,
    search_words,
)
from mooring.core.catalog.channel import is_in_canary
from mooring.core.catalog.compatibility import Capacity, CapacityShape, Compatibility
from mooring.core.catalog.entitlement import (
    Entitlement,
    EntitlementKey,
    EntitlementRequest,
    Overlay,
    create_entitlement,
)
from mooring.core.catalog.policy import Layer, LayerRules, NameRules, PolicyChain, PolicyRules
from mooring.core.catalog.promotion_lifecycle import PromotionState as S
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.errors import Code, Refusal
from server.tests.support.catalog_rows import REASON, app, artifact, version
from server.tests.support.decision_context import PROJECT, TENANT, context
from tests.support.rows import every_row

APP = app()
ACTIVE = version(S.ACTIVE)
VERIFIED = Trust(TrustState.VERIFIED)
NEEDED = VersionNeeds(Compatibility(min_gpu_count=2), ("runtime.claim",), ((artifact("b"), VERIFIED),))
FITTING = (Capacity(CapacityShape.GPU_SLICE, 2),)
SMALL = (Capacity(CapacityShape.GPU_SLICE, 1),)


def entitled(enabled: bool = True, **overlay: Any) -> Entitlement:
    requested = EntitlementRequest(enabled, Overlay(**overlay), ("runtime.claim", "runtime.report"), REASON)
    return create_entitlement(context(), "ent_1", EntitlementKey(TENANT, PROJECT, APP.id, APP.slug), requested).result


def view(**changes: Any) -> ProjectContext:
    given: dict[str, Any] = {"entitlement": entitled(), "policy": PolicyChain(()), "offers": (FITTING,), **changes}
    return ProjectContext(PROJECT, **given)


def entry(project: ProjectContext, needed: VersionNeeds = NEEDED, number: Any = ACTIVE) -> CatalogEntry:
    return catalog_entry(APP, number, needed, project)


def obstacles(found: CatalogEntry) -> list[Obstacle]:
    return [hindrance.obstacle for hindrance in found.obstacles]


def test_what_nothing_hinders_may_be_launched() -> None:
    found = entry(view())

    assert found.launchable
    assert (found.app, found.version, found.obstacles) == (APP, ACTIVE, ())


DOUBTFUL = Trust(TrustState.UNVERIFIED, (TrustDoubt(Code.SIGNATURE_MISSING, "there is none"),))
DENIED = Trust(TrustState.REJECTED, (TrustDoubt(Code.SOURCE_DENIED, "the tenant policy denies it"),))


@every_row(
    ("project", "needed", "number", "obstacle", "code", "said"),
    [
        (view(entitlement=None), NEEDED, ACTIVE, Obstacle.NOT_ENTITLED, Code.NOT_ENTITLED, "not entitled"),
        (
            view(entitlement=entitled(False)),
            NEEDED,
            ACTIVE,
            Obstacle.NOT_ENTITLED,
            Code.NOT_ENTITLED,
            "not entitled",
        ),
        (
            view(entitlement=entitled(versions="<1.0.0")),
            NEEDED,
            ACTIVE,
            Obstacle.NOT_ENTITLED,
            Code.NOT_ENTITLED,
            "not for 2.1.0",
        ),
        (view(), NEEDED, version(S.DEPRECATED), Obstacle.DEPRECATED, Code.VERSION_DEPRECATED, "is deprecated"),
        (
            view(),
            NEEDED,
            version(S.STAGED),
            Obstacle.NOT_OFFERED,
            Code.VERSION_NOT_OFFERED,
            "not offered to any project",
        ),
        (
            view(policy=PolicyChain([LayerRules(Layer.TENANT, PolicyRules(apps=NameRules(deny=("web-*",))))])),
            NEEDED,
            ACTIVE,
            Obstacle.POLICY,
            Code.POLICY_DENIED,
            "tenant policy",
        ),
        (
            view(policy=PolicyChain([LayerRules(Layer.GLOBAL, PolicyRules(gpus_max=5))]), gpus_held=4),
            NEEDED,
            ACTIVE,
            Obstacle.POLICY,
            Code.POLICY_DENIED,
            "would have 6 GPUs",
        ),
        (
            view(entitlement=entitled(rules=PolicyRules(gpus_max=1))),
            NEEDED,
            ACTIVE,
            Obstacle.POLICY,
            Code.POLICY_DENIED,
            "entitlement policy",
        ),
        (
            view(),
            replace(NEEDED, artifacts=((artifact("b"), DENIED),)),
            ACTIVE,
            Obstacle.POLICY,
            Code.SOURCE_DENIED,
            "denies it",
        ),
        (
            view(),
            replace(NEEDED, artifacts=((artifact("b"), VERIFIED), (artifact("c"), DOUBTFUL))),
            ACTIVE,
            Obstacle.UNTRUSTED,
            Code.SIGNATURE_MISSING,
            "there is none",
        ),
        (
            view(offers=(SMALL,)),
            NEEDED,
            ACTIVE,
            Obstacle.NO_COMPATIBLE_CAPACITY,
            Code.INCOMPATIBLE,
            "1 more GPU",
        ),
        (view(offers=()), NEEDED, ACTIVE, Obstacle.NO_COMPATIBLE_CAPACITY, Code.INCOMPATIBLE, "no capacity"),
    ],
)
def test_what_hinders_is_named(
    project: ProjectContext, needed: VersionNeeds, number: Any, obstacle: Obstacle, code: Code, said: str
) -> None:
    found = entry(project, needed, number)

    assert not found.launchable
    (hindrance,) = found.obstacles
    assert (hindrance.obstacle, hindrance.refusal.code) == (obstacle, code)
    assert said in hindrance.reason


def test_all_hindrances_are_found_and_not_only_the_first() -> None:
    policy = PolicyChain([LayerRules(Layer.GLOBAL, PolicyRules(apps=NameRules(allow=())))])
    doubtful = replace(NEEDED, artifacts=((artifact("b"), DOUBTFUL),))
    found = entry(view(entitlement=None, policy=policy, offers=(SMALL,)), doubtful, version(S.DEPRECATED))

    assert obstacles(found) == [
        Obstacle.NOT_ENTITLED,
        Obstacle.DEPRECATED,
        Obstacle.POLICY,
        Obstacle.UNTRUSTED,
        Obstacle.NO_COMPATIBLE_CAPACITY,
    ]


def test_capacity_that_is_not_asked_for_hinders_nobody() -> None:
    assert entry(view(offers=None)).launchable


def test_one_offer_that_fits_is_enough() -> None:
    assert entry(view(offers=(SMALL, FITTING))).launchable


def test_an_app_without_a_version_for_the_project_says_so() -> None:
    found = catalog_entry(APP, None, None, view())

    assert obstacles(found) == [Obstacle.NOT_OFFERED]
    assert obstacles(catalog_entry(APP, None, None, view(entitlement=None))) == [
        Obstacle.NOT_OFFERED,
        Obstacle.NOT_ENTITLED,
    ]


# The version


def test_the_version_is_that_of_the_channel_or_the_newest_deprecated_one() -> None:
    old, new = version(S.ACTIVE, "1.9.0"), version(S.ACTIVE, "1.10.0")
    canary = version(S.CANARY, "2.0.0", canary_percentage=Decimal(50))
    gone, later = version(S.DEPRECATED, "1.0.0"), version(S.DEPRECATED, "1.2.0")
    inside = next(f"prj_{n}" for n in range(100) if is_in_canary(canary.id, f"prj_{n}", Decimal(50)))
    outside = next(f"prj_{n}" for n in range(100) if not is_in_canary(canary.id, f"prj_{n}", Decimal(50)))

    assert chosen_version([old, new, canary, gone], outside) == new
    assert chosen_version([old, new, canary, gone], inside) == canary
    assert chosen_version([gone, later, version(S.DRAFT, "9.0.0")], inside) == later
    assert chosen_version([version(S.DRAFT)], inside) is None
    assert chosen_version([], inside) is None


# Searching


def test_the_words_of_a_search_are_bounded_and_alike_in_either_case() -> None:
    assert search_words("  Web  TOOL web ") == ("web", "tool")
    assert search_words("") == ()
    for text in ("x" * 201, " ".join(f"w{number}" for number in range(9)), "a\x00b"):
        with pytest.raises(Refusal) as refused:
            search_words(text)
        assert refused.value.details == {"path": "search"}
