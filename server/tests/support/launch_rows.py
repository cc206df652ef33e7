"""Launches that the tests of decisions begin with."""

from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog.artifact_trust import Trust
from mooring.core.catalog.compatibility import Capacity, CapacityShape
from mooring.core.catalog.entitlement import Entitlement
from mooring.core.catalog.manifest import read_manifest
from mooring.core.catalog.policy import PolicyChain
from mooring.core.catalog.promotion_lifecycle import PromotionState
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.fleet.allocation import Allocation, SkuTerms
from mooring.core.fleet.capacity_offers import MachineKind
from mooring.core.identity.service_account import ServiceAccount
from mooring.core.runtime.launch_history import CircuitFacts
from mooring.core.runtime.launch_snapshot import LaunchRequest, LaunchSnapshot, PlacementSpec
from server.tests.support.allocation_rows import TERMS, requested
from server.tests.support.catalog_rows import app, artifact, version
from server.tests.support.decision_context import ACCOUNT, NOW, PROJECT, TENANT, context
from server.tests.support.manifests import launchable

SCHEMA: Final = {
    "type": "object", "required": ["size"], "additionalProperties": False,
    "properties": {"size": {"type": "integer", "minimum": 1, "maximum": 8}},
}  # fmt: skip
VERIFIED: Final = Trust(TrustState.VERIFIED)
WHOLE: Final = SkuTerms("sku_2", "whole", "baremetal", "h100-80g", ["eu-1"], [8], 200, "EUR", 1, "offered")


def entitlement(**changes: Any) -> Entitlement:
    """The project may launch every version."""
    row: dict[str, Any] = {
        "id": "ent_1",
        "tenant_id": TENANT,
        "project_id": PROJECT,
        "app_id": "app_1",
        "app_slug": "web-tool",
        "enabled": True,
        "versions": None,
        "rules": {},
        "agreed_actions": ["runtime.claim", "runtime.report"],
        "revision": 0,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Entitlement(**{**row, **changes})


def account(**changes: Any) -> ServiceAccount:
    """Who operates it."""
    actions = ["runtime.claim", "runtime.report"]
    known = ServiceAccount(ACCOUNT, TENANT, PROJECT, "operator", "", actions, "active", 0, 0, NOW)
    return replace(known, **changes)


def launch(plain: dict[str, Any] | None = None, **changes: Any) -> LaunchSnapshot:
    """A launch that nothing stands in the way of."""
    document = plain or launchable(
        version="2.1.0",
        config_schema=SCHEMA,
        required_actions=["runtime.claim"],
        components=[{"key": "head", "min_count": 1, "max_count": 1}, {"key": "hand", "max_count": 4}],
    )
    manifest = read_manifest(document).manifest
    assert manifest is not None
    offered = version(PromotionState.ACTIVE, manifest=document, digests=list(manifest.digests))
    requested = LaunchRequest(
        app="web-tool", name="my-tool", config={"size": 1}, placement=PlacementSpec(sku="h100", gpu_count=1)
    )
    facts = LaunchSnapshot(
        tenant_id=TENANT,
        project_id=PROJECT,
        app=app(id="app_1"),
        request=requested,
        now=NOW,
        version=offered,
        manifest=manifest,
        entitlement=entitlement(),
        policy=PolicyChain(()),
        artifacts=[(artifact(each[-1], trust="verified"), VERIFIED) for each in manifest.digests],
        terms=TERMS,
        shelf=(TERMS, WHOLE),
        account=account(),
        circuit=CircuitFacts(TENANT),
        kinds={"h100": [Capacity(CapacityShape.GPU_SLICE, 8, facts={"gpu_model": "h100-80g"})]},
        machines=[MachineKind("eu-1", "h100-80g", 8, 8, 1, {"gpu_model": "h100-80g"})],
    )
    return replace(facts, **changes)


def wished(facts: LaunchSnapshot, **changes: Any) -> LaunchSnapshot:
    """The same launch with another request."""
    return replace(facts, request=replace(facts.request, **changes))


def standing(status: str = "active", **changes: Any) -> Allocation:
    row = requested(context(), (TENANT, PROJECT))
    return replace(row, **{"status": status, "node_id": "nod_1", "region": "eu-1", **changes})
