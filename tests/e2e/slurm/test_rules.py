"""Rules around a cluster of real Slurm: policy stops a launch and names its layer, and what is done leaves its rows."""

from collections.abc import Callable

import pytest

from mooring_sdk import errors, models
from tests.e2e.slurm.cluster import REASON, REGION, SKU, Site, Tenant
from tests.e2e.slurm.shown import audited

RULES = {
    "region": (models.RulesBody(regions=models.NamesRule(deny=[REGION])), errors.PolicyDenied),
    "sku": (models.RulesBody(skus=models.NamesRule(deny=[SKU])), errors.PolicyDenied),
    "source": (models.RulesBody(sources=models.NamesRule(deny=["file:*"])), errors.SourceDenied),
}
VALUES = {"region": REGION, "sku": SKU, "source": "file:"}


def say(tenant: Tenant, layer: str) -> Callable[[models.RulesBody, str], models.Policy]:
    """How a tenant's admin states the rules of a layer."""
    client = tenant.client
    if layer == "tenant":
        return lambda rules, reason: client.update_tenant_policy(tenant.tenant_id, rules=rules, reason=reason)
    return lambda rules, reason: client.update_project_policy(tenant.project_id, rules=rules, reason=reason)


@pytest.mark.parametrize(
    ("layer", "subject"), [("project", "region"), ("project", "sku"), ("project", "source"), ("tenant", "region")]
)
def test_an_overlay_stops_the_launch_and_names_its_layer(place: Site, ada: Tenant, layer: str, subject: str) -> None:
    rules, kind = RULES[subject]
    state = say(ada, layer)
    state(rules, f"no such {subject} here")
    try:
        with pytest.raises(kind) as refused:
            place.launch(ada, "forbidden", workers=1)
    finally:
        state(models.RulesBody(), "the test is over")
    told = refused.value.details
    assert (told["layer"], told["subject"]) == (layer, subject)
    assert str(told["value"]).startswith(VALUES[subject])
    assert str(refused.value.detail).startswith(f"the {layer} policy does not allow {subject} {told['value']}")
    assert [each.name for each in ada.client.iter_instances(ada.project_id) if each.name == "forbidden"] == []


def test_each_privileged_action_leaves_its_audit_row(place: Site, ada: Tenant) -> None:
    """Those of the app itself; what is done with members and versions has its rows where it is done."""
    cluster = place.launch(ada, "audited", workers=1).id
    (worker,) = place.members(ada, cluster)
    job = place.act(ada, cluster, "queue.submit", script="#!/bin/sh\nsleep 600\n", key="audited")
    place.act(ada, cluster, "queue.cancel", job_id=job["job_id"])
    place.act(ada, cluster, "node.operate", name=worker.name, do="drain", reason=REASON)
    place.act(ada, cluster, "node.operate", name=worker.name, do="resume")
    place.act(ada, cluster, "node.read")
    place.stop(ada, cluster)
    assert audited(ada, cluster) == {
        "deploy": 1, "queue.submit": 1, "queue.cancel": 1, "node.operate": 2, "decommission": 1
    }  # fmt: skip
