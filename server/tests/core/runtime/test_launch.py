"""Plan and create ask the same: what a plan promises is accepted, and what it tells of is refused, in that order."""

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from mooring.core.catalog.artifact_trust import Trust, TrustDoubt, derive_trust
from mooring.core.catalog.policy import Layer, LayerRules, NameRules, PolicyChain, PolicyRules, SignatureRules
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.fleet.allocation import ProjectHolding
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.instance_launch import OperationBounds, create_instance
from mooring.core.runtime.launch import evaluate
from mooring.core.runtime.launch_history import Basis, CircuitFacts, LaunchOutcome, MeasuredLaunch, estimate
from mooring.core.runtime.launch_plan import plan_launch
from mooring.core.runtime.launch_snapshot import LaunchSnapshot, PlacementSpec, TargetAllocation
from server.tests.support.decision_context import NOW, OTHER_TENANT, TENANT, context
from server.tests.support.launch_rows import SCHEMA, account, entitlement, launch, standing, wished
from server.tests.support.manifests import digest, launchable
from tests.support.rows import every_row

CASES: Final = 500
SEED: Final = 20_261


def codes(facts: LaunchSnapshot) -> list[str]:
    """What stands in the way."""
    return [each.code.value for each in evaluate(facts).refusals]


def failed(tenant_id: str, minutes: float, code: str | None = "runtime_error") -> LaunchOutcome:
    """How a launch ended, so many minutes ago."""
    return LaunchOutcome(tenant_id, f"op_{minutes}", NOW - timedelta(minutes=minutes), code)


def test_a_good_launch_has_no_blockers() -> None:
    decision = create_instance(context(), launch(), OperationBounds())
    made = decision.result
    assert made.instance.topology == {"head": 1, "hand": 0}
    assert made.operation.request["version_id"] == made.instance.version_id
    assert made.operation.dispatched_at is None
    nouns = [write.noun for write in decision.writes if isinstance(write, Insert)]
    assert nouns == [
        "instance",
        "artifact_hold",
        "artifact_hold",
        "allocation_group",
        "allocation",
        "member",
        "operation",
    ]
    (member,) = made.members
    assert (member.owns_allocation, member.last_operation_id) == (True, made.operation.id)


def test_existing_capacity_is_dispatched_at_once_and_shared_in_turn() -> None:
    one, two = standing(), standing(id="alc_2")
    facts = wished(
        launch(target_allocations={one.id: TargetAllocation(one), two.id: TargetAllocation(two)}, terms=None),
        placement=PlacementSpec(allocations=(one.id, two.id)),
        topology={"head": 1, "hand": 2},
    )
    made = create_instance(context(), facts, OperationBounds()).result
    assert made.operation.dispatched_at == NOW
    assert [each.allocation_id for each in made.members] == [one.id, two.id, one.id]
    assert not any(each.owns_allocation for each in made.members)


BLOCKERS: Final[dict[str, tuple[Callable[[LaunchSnapshot], LaunchSnapshot], str]]] = {
    "not entitled": (lambda facts: replace(facts, entitlement=None), "not_entitled"),
    "not agreed": (lambda facts: replace(facts, entitlement=entitlement(agreed_actions=[])), "not_entitled"),
    "draft": (lambda facts: promoted(facts, "draft"), "version_not_offered"),
    "deprecated": (lambda facts: promoted(facts, "deprecated"), "version_deprecated"),
    "no version": (lambda facts: replace(facts, version=None, manifest=None), "version_not_offered"),
    "revoked": (
        lambda facts: replace(
            facts,
            artifacts=[
                (each, Trust(TrustState.REVOKED, (TrustDoubt(Code.ARTIFACT_REVOKED, "it is revoked"),)))
                for each, _ in facts.artifacts
            ],
        ),
        "artifact_revoked",
    ),
    "unknown digest": (lambda facts: replace(facts, artifacts=facts.artifacts[:1]), "artifact_unverified"),
    "app denied": (lambda facts: replace(facts, policy=layer(apps=NameRules(deny=("web-*",)))), "policy_denied"),
    "region denied": (lambda facts: replace(facts, policy=layer(regions=NameRules(allow=("us-9",)))), "policy_denied"),
    "sku denied": (lambda facts: replace(facts, policy=layer(skus=NameRules(deny=("h100",)))), "policy_denied"),
    "gpus": (lambda facts: replace(facts, policy=layer(gpus_max=2), holding=ProjectHolding(2, 1, 0)), "policy_denied"),
    "two nodes": (
        lambda facts: wished(
            replace(
                facts,
                target_allocations={
                    one: TargetAllocation(standing(id=one, node_id=one)) for one in ("alc_1", "alc_2")
                },
            ),
            placement=PlacementSpec(allocations=("alc_1", "alc_2")), topology={"hand": 1},
        ),
        "incompatible",
    ),
    "in use": (
        lambda facts: wished(
            replace(facts, target_allocations={"alc_1": TargetAllocation(standing(id="alc_1"), taken=True)}),
            placement=PlacementSpec(allocations=("alc_1",)),
        ),
        "allocation_in_use",
    ),
    "quota": (lambda facts: replace(facts, holding=ProjectHolding(0, 10_000, 0)), "limit_reached"),
    "config": (lambda facts: wished(facts, config={"size": 9}), "validation_failed"),
    "topology": (lambda facts: wished(facts, topology={"hand": 5}), "validation_failed"),
    "no such component": (lambda facts: wished(facts, topology={"foot": 1}), "validation_failed"),
    "incoherent mode": (lambda facts: wished(facts, control_plane_scope="platform"), "validation_failed"),
    "managed": (
        lambda facts: wished(facts, operating_mode="platform_managed", control_plane_scope="platform"),
        "mode_not_offered",
    ),
    "topology mode": (lambda facts: wished(facts, topology_mode="nonsense"), "validation_failed"),
    "tenant scope": (lambda facts: wished(facts, control_plane_scope="tenant"), "mode_not_offered"),
    "name": (lambda facts: wished(facts, name="No Name"), "validation_failed"),
    "name taken": (lambda facts: replace(facts, name_taken=True), "name_taken"),
    "no operator": (lambda facts: replace(facts, account=None), "validation_failed"),
    "disabled operator": (lambda facts: replace(facts, account=account(status="disabled")), "validation_failed"),
    "circuit": (
        lambda facts: replace(facts, circuit=CircuitFacts(TENANT, [failed(TENANT, each) for each in (1, 2, 3)])),
        "circuit_open",
    ),
    "no place": (lambda facts: wished(facts, placement=PlacementSpec()), "validation_failed"),
    "no such size": (
        lambda facts: wished(facts, placement=PlacementSpec(sku="h100", gpu_count=3)), "validation_failed",
    ),
    "no such sku": (lambda facts: replace(facts, terms=None), "validation_failed"),
}  # fmt: skip
"""Everything that can stand in the way, and the code that it is refused with."""


def promoted(facts: LaunchSnapshot, promotion: str) -> LaunchSnapshot:
    """The same launch, of a version in this state of promotion if there is one."""
    return facts if facts.version is None else replace(facts, version=replace(facts.version, promotion=promotion))


def layer(**rules: Any) -> PolicyChain:
    """A policy of the tenant's."""
    return PolicyChain((LayerRules(Layer.TENANT, PolicyRules(**rules)),))


def test_a_launch_that_does_not_say_gets_the_manifest_s_default_counts() -> None:
    components = [{"key": "head", "max_count": 1, "min_count": 1}, {"key": "hand", "max_count": 4, "default_count": 2}]
    facts = launch(launchable(version="2.1.0", config_schema=SCHEMA, components=components))
    assert evaluate(facts).topology == {"head": 1, "hand": 2}
    assert evaluate(wished(facts, topology={"hand": 0})).topology == {"head": 1, "hand": 0}


def test_a_topology_mode_is_one_that_the_manifest_offers() -> None:
    facts = launch(launchable(version="2.1.0", config_schema=SCHEMA, topology_modes=["flat", "ring"]))
    assert codes(wished(facts, topology_mode="ring")) == []
    (refusal,) = evaluate(wished(facts, topology_mode="nonsense")).refusals
    assert (refusal.details["path"], "flat, ring" in refusal.detail) == ("topology_mode", True)


@every_row("name", BLOCKERS)
def test_each_blocker_has_its_own_code(name: str) -> None:
    change, code = BLOCKERS[name]
    assert codes(launch()) == []
    assert codes(change(launch()))[:1] == [code], name


def test_a_plan_and_a_create_agree_in_five_hundred_random_cases() -> None:
    chance = random.Random(SEED)
    accepted = refused = 0
    for _ in range(CASES):
        facts = launch()
        for name in chance.sample(sorted(BLOCKERS), chance.choice((0, 0, 1, 2, 3, 5))):
            facts = BLOCKERS[name][0](facts)
        if chance.random() < 0.5:
            facts = wished(facts, topology={"hand": chance.randint(0, 5)})
        if chance.random() < 0.3:
            counts = (1, 2, 3, 8, None)
            facts = wished(facts, placement=replace(facts.request.placement, gpu_count=chance.choice(counts)))
        plan = plan_launch(facts)
        if plan.launchable:
            made = create_instance(context(), facts, OperationBounds()).result
            accepted += 1
            assert made.instance.topology == plan.topology
            assert len(made.members) == (plan.new_allocations or len(made.members))
            continue
        refused += 1
        with pytest.raises(Refusal) as raised:
            create_instance(context(), facts, OperationBounds())
        first, *others = plan.refusals
        assert (raised.value.code, raised.value.detail) == (first.code, first.detail)
        listed: Any = raised.value.details.get("others", [])
        assert [each["code"] for each in listed] == [each.code.value for each in others[:20]]
    assert accepted > CASES // 10, "the cases are no test of what is accepted"
    assert refused > CASES // 10, "the cases are no test of what is refused"


def test_a_plan_reports_shapes_prices_and_who_decides() -> None:
    facts = wished(replace(launch(), policy=layer(gpus_max=9)), topology={"hand": 1})
    plan = plan_launch(facts)
    assert [(each.currency, each.minor_per_hour, each.added_minor_per_hour) for each in plan.prices] == [
        ("EUR", 500, 500)
    ]
    assert (plan.policy.allowed, plan.policy.layer) == (True, Layer.TENANT)
    fitting = [(each.sku, each.gpu_count, each.price_minor_per_hour) for each in plan.shapes if each.fits]
    assert fitting[0] == ("h100", 1, 500), "what fits and costs least comes first"
    whole = next(each for each in plan.shapes if each.sku == "whole")
    assert (whole.fits, whole.available, whole.smallest_change) == (False, False, "single-node topology")


DENIALS: Final = {
    "app": layer(apps=NameRules(deny=("web-*",))),
    "region": layer(regions=NameRules(allow=("us-9",))),
    "sku": layer(skus=NameRules(deny=("h100",))),
    "gpus": layer(gpus_max=0),
}


@every_row("subject", sorted(DENIALS))
def test_a_plan_names_the_layer_that_denies(subject: str) -> None:
    """What is refused with the layer's name is not shown as allowed beside it."""
    plan = plan_launch(replace(launch(), policy=DENIALS[subject]))
    assert "policy_denied" in [each.code for each in plan.refusals]
    assert (plan.policy.allowed, plan.policy.layer) == (False, Layer.TENANT)
    assert next(each.subject for each in plan.policy.answers if not each.allowed) == subject


def test_a_plan_names_the_layer_that_requires_a_signature() -> None:
    chain = layer(signatures=SignatureRules.EVERYTHING)
    facts = launch()
    unsigned = [(each, derive_trust(each, (), (), chain)) for each, _ in facts.artifacts]
    plan = plan_launch(replace(facts, policy=chain, artifacts=unsigned))
    assert (plan.policy.allowed, plan.policy.layer) == (False, Layer.TENANT)
    refusal = next(each for each in plan.refusals if each.code == Code.SIGNATURE_MISSING)
    assert "the tenant policy requires a signature" in refusal.detail
    assert refusal.details["layer"] == "tenant"


def test_the_circuit_opens_for_a_tenant_and_for_all_when_three_have_it_open() -> None:
    others = [failed(f"ten_{who}", each) for who in range(3) for each in (1, 2, 3)]
    assert codes(launch(circuit=CircuitFacts(TENANT, others))) == ["circuit_open"]
    assert codes(launch(circuit=CircuitFacts(TENANT, others[:6]))) == [], "two tenants may both be wrong"
    own = [failed(TENANT, each) for each in (1, 2, 3)]
    assert codes(launch(circuit=CircuitFacts(OTHER_TENANT, own))) == [], "one tenant's fault is not another's"
    again = [*own[:2], failed(TENANT, 2.5, None), own[2]]
    assert codes(launch(circuit=CircuitFacts(TENANT, again))) == [], "a success in between resets the count"
    blameless = [failed(TENANT, each, "no_capacity") for each in (1, 2, 3)]
    assert codes(launch(circuit=CircuitFacts(TENANT, blameless))) == []
    old = [failed(TENANT, each) for each in (29, 30, 31)]
    assert codes(launch(circuit=CircuitFacts(TENANT, old))) == [], "what is past the window does not count"
    refusal = evaluate(launch(circuit=CircuitFacts(TENANT, own))).refusals[0]
    assert refusal.details["until"] == (NOW + timedelta(minutes=29)).isoformat()


def test_the_expected_time_is_measured_or_not_promised() -> None:
    def took(version_id: str, seconds: int) -> MeasuredLaunch:
        began = NOW - timedelta(seconds=seconds)
        step = {"name": "join", "started_at": began.isoformat(), "ended_at": NOW.isoformat()}
        return MeasuredLaunch(version_id, began, began, began, NOW, [step])

    assert estimate([], "ver_1").basis is Basis.NONE
    other = estimate([took("ver_2", 40)], "ver_1")
    assert (other.basis, other.samples, other.seconds) == (Basis.APP, 1, 40)
    own = estimate([took("ver_1", 10), took("ver_1", 20), took("ver_1", 90), took("ver_2", 1)], "ver_1")
    assert (own.basis, own.samples, own.seconds) == (Basis.VERSION, 3, 20)
    assert [(each.name, each.seconds) for each in own.stages] == [("capacity", 0), ("claim", 0), ("join", 20)]
    minute = timedelta(minutes=1)
    steps = [
        {"name": f"start/mem_{each}", "started_at": NOW.isoformat(), "ended_at": (NOW + minute * each).isoformat()}
        for each in (1, 3)
    ]
    mine = MeasuredLaunch("ver_1", NOW, NOW, NOW, NOW + minute * 4, steps)
    assert [(each.name, each.seconds) for each in estimate([mine], "ver_1").stages][2:] == [("start", 180)]
    others = estimate([replace(mine, own=False)], "ver_1")
    assert [(each.name, each.seconds) for each in others.stages][2:] == [("deploy", 240)], "nobody's own words"


def test_an_artifact_in_the_manifest_is_held_by_the_instance() -> None:
    decision = create_instance(context(), launch(), OperationBounds())
    holds = [write.row for write in decision.writes if isinstance(write, Insert) and write.noun == "artifact_hold"]
    assert {each["digest"] for each in holds} == {digest("b"), digest("c")}
    assert {each["holder_id"] for each in holds} == {decision.result.instance.id}
