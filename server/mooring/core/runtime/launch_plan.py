"""Planning a launch: what it would create, what it costs, where it would go, and every refusal that it would meet.

A plan asks the functions that a launch uses: `launch.evaluate` for the refusals, the `PlacementBoard` for the places.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from mooring.core.catalog.app_version import AppVersion
from mooring.core.catalog.compatibility import Compatibility, best_fit, fit
from mooring.core.catalog.policy import NO_RULE, Layer, PolicyRequest, PolicyVerdict
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.fleet.allocation import SkuTerms
from mooring.core.fleet.placement import PlacementBoard
from mooring.core.fleet.placement_explanation import PlacementExplanation
from mooring.core.fleet.placement_forecast import allowed_choices, equal_machines, explain_batch, idle_board
from mooring.core.kernel.errors import Refusal
from mooring.core.pricing.rating import hourly_minor
from mooring.core.pricing.spending import Limit, limits_of
from mooring.core.runtime.launch import Evaluation, batch_of, evaluate, offer_of, requested_spending
from mooring.core.runtime.launch_history import LaunchEstimate
from mooring.core.runtime.launch_snapshot import LaunchSnapshot


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """A SKU in one GPU count, and whether the app fits there."""

    sku: str
    shape: str
    gpu_model: str
    gpu_count: int
    regions: tuple[str, ...]
    fits: bool
    because: str
    smallest_change: str
    price_minor_per_hour: int
    currency: str
    available: bool  # whether any such machine exists


@dataclass(frozen=True, slots=True)
class LaunchPrice:
    """The capacity's price in one currency: the total, and what this launch adds to it."""

    currency: str
    minor_per_hour: int
    added_minor_per_hour: int


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """The policy's answer to the whole request, and the layer that decides."""

    allowed: bool
    layer: Layer | None
    reason: str
    answers: tuple[PolicyVerdict, ...]


@dataclass(frozen=True, slots=True)
class AdapterStanding:
    """Whether an adapter asks for work under the operator account, and when one last did."""

    listening: bool
    last_seen_at: datetime | None


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a launch would create, and every refusal that it would meet."""

    version: AppVersion | None
    canary: bool
    refusals: tuple[Refusal, ...]
    topology: Mapping[str, int]
    allocations: tuple[str, ...]
    new_allocations: int
    shapes: tuple[ShapeChoice, ...]
    prices: tuple[LaunchPrice, ...]
    policy: PolicyAnswer
    expected: LaunchEstimate
    placement: PlacementExplanation | None  # of the new allocations, on the machines as they are now
    adapter: AdapterStanding | None  # None if the app has no operator account
    limits: tuple[Limit, ...] = ()  # of quotas, budgets and the balance

    @property
    def launchable(self) -> bool:
        """Whether a create would be accepted now."""
        return not self.refusals


def plan_launch(launch: LaunchSnapshot) -> LaunchPlan:
    """What a launch would create; planning changes nothing."""
    evaluation = evaluate(launch)
    version = launch.version
    return LaunchPlan(
        version=version,
        canary=version is not None and version.promotion == PromotionState.CANARY,
        refusals=evaluation.refusals,
        topology=evaluation.topology,
        allocations=tuple(each for each in launch.request.placement.allocations if each in launch.target_allocations),
        new_allocations=evaluation.members if evaluation.is_new_capacity else 0,
        shapes=_shapes(launch, evaluation),
        prices=_prices(launch, evaluation),
        policy=_policy(launch, evaluation),
        expected=launch.expected,
        placement=_placement_now(launch, evaluation),
        adapter=_adapter(launch),
        limits=_limits(launch, evaluation),
    )


def _placement_now(launch: LaunchSnapshot, evaluation: Evaluation) -> PlacementExplanation | None:
    """Whether all new allocations find a place at once; None if none are requested, or none can be."""
    terms, regions = launch.terms, evaluation.regions
    if launch.fleet is None or terms is None or not evaluation.is_new_capacity or not regions:
        return None
    batch = batch_of(launch, terms, members=evaluation.members, gpu_count=evaluation.gpu_count, regions=regions)
    return explain_batch(PlacementBoard(launch.fleet, batch.facts), batch, allowed_choices(terms, launch.chain))


def _limits(launch: LaunchSnapshot, evaluation: Evaluation) -> tuple[Limit, ...]:
    if launch.spending is None:
        return ()
    return limits_of(launch.spending, requested_spending(launch, evaluation.members, evaluation.gpu_count))


def _adapter(launch: LaunchSnapshot) -> AdapterStanding | None:
    if launch.account is None:
        return None
    watch = launch.adapter
    return AdapterStanding(not watch.is_forsaken(launch.now, launch.claim_lease), watch.adapter_seen_at)


def _shapes(launch: LaunchSnapshot, evaluation: Evaluation) -> tuple[ShapeChoice, ...]:
    """Every SKU on offer in every GPU count, and whether the app fits; fitting and cheap ones first."""
    if launch.manifest is None:
        return ()
    facts = [need.fact for need in launch.manifest.compatibility.needs]
    reduced = replace(launch, machines=equal_machines(launch.machines, facts))  # once, not for each SKU
    found = [
        _shape(reduced, launch.manifest.compatibility, terms, max(evaluation.members, 1), gpu_count=count)
        for terms in launch.shelf
        for count in sorted(terms.allowed_gpu_counts)
    ]
    return tuple(
        sorted(
            found,
            key=lambda each: (not each.fits, not each.available, each.price_minor_per_hour, each.sku, each.gpu_count),
        )
    )


def _shape(launch: LaunchSnapshot, app: Compatibility, terms: SkuTerms, members: int, *, gpu_count: int) -> ShapeChoice:
    """Whether the app fits into so many members of this SKU and size, and whether machines could take all of them."""
    choices, kinds = allowed_choices(terms, launch.chain), launch.kinds.get(terms.slug, ())
    offers = [offer_of(terms, kind, members=members, gpu_count=gpu_count) for kind in kinds or (None,)]
    best = best_fit(app, offers) or fit(app, offers[0])
    fits, because, change = best.fits, best.because, best.smallest_change
    if not choices.regions:
        fits, because = False, "policy allows none of the regions where it is sold"
    elif fits:
        batch = batch_of(launch, terms, members=members, gpu_count=gpu_count, regions=choices.regions)
        answer = explain_batch(idle_board(launch.machines, batch.facts, members), batch, choices)
        if not answer.fits:
            fits, because, change = False, answer.because, answer.smallest_change
    return ShapeChoice(
        terms.slug,
        terms.shape,
        terms.gpu_model,
        gpu_count,
        choices.regions,
        fits,
        because,
        change,
        hourly_minor(terms.price_minor_per_gpu_hour, gpu_count * members),
        terms.currency,
        available=bool(kinds),
    )


def _prices(launch: LaunchSnapshot, evaluation: Evaluation) -> tuple[LaunchPrice, ...]:
    totals: dict[str, list[int]] = {}
    for allocation_id in dict.fromkeys(launch.request.placement.allocations):
        if (target := launch.target_allocations.get(allocation_id)) is not None:
            each = target.allocation
            totals.setdefault(each.currency, [0, 0])[0] += hourly_minor(each.price_minor_per_gpu_hour, each.gpu_count)
    if evaluation.is_new_capacity and launch.terms is not None:
        price = hourly_minor(launch.terms.price_minor_per_gpu_hour, evaluation.gpu_count * evaluation.members)
        total = totals.setdefault(launch.terms.currency, [0, 0])
        total[0] += price
        total[1] += price
    return tuple(LaunchPrice(currency, total, added) for currency, (total, added) in sorted(totals.items()))


def _policy(launch: LaunchSnapshot, evaluation: Evaluation) -> PolicyAnswer:
    """The first layer that denies; if none does, the narrowest layer that says anything."""
    chain, gpus = launch.chain, launch.holding.gpus
    requests = [PolicyRequest(app=launch.app.slug)]
    if launch.request.placement.sku is not None and launch.terms is not None:
        gpus += evaluation.gpu_count * evaluation.members
        region = launch.request.placement.region
        wanted = evaluation.regions or (sorted(launch.terms.regions) if region is None else (region,))
        requests += [PolicyRequest(sku=launch.terms.slug, region=each) for each in wanted]
    for allocation_id in dict.fromkeys(launch.request.placement.allocations):
        if (target := launch.target_allocations.get(allocation_id)) is not None:
            requests.append(PolicyRequest(sku=target.allocation.sku_slug, region=target.allocation.region))
    requests.append(PolicyRequest(gpus=gpus))
    of_artifacts = (each.denied_by for _, trust in launch.artifacts for each in trust.doubts)
    explained = (each for request in requests for each in chain.explain(request))
    answers = tuple(dict.fromkeys((*explained, *(each for each in of_artifacts if each is not None))))
    denied = next((each for each in answers if not each.allowed), None)
    if denied is not None:
        return PolicyAnswer(False, denied.layer, denied.reason, answers)
    decisive = [each for each in answers if each.reason != NO_RULE]
    order = list(Layer)
    last = max(decisive, key=lambda each: order.index(each.layer) if each.layer else -1, default=None)
    if last is None:
        return PolicyAnswer(True, None, "no policy layer restricts this", answers)
    return PolicyAnswer(True, last.layer, last.reason, answers)
