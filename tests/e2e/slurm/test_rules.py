"""Rules around a cluster of real Slurm: policy stops a launch and names its layer, and what is done leaves its rows."""

import pytest

from mooring_sdk import errors, models
from tests.e2e.slurm.cluster import REASON, REGION, SKU, VERSIONS, Site, Tenant

LAYERS = {
    "region": models.RulesBody(regions=models.NamesRule(deny=[REGION])),
    "SKU": models.RulesBody(skus=models.NamesRule(deny=[SKU])),
    "artifact source": models.RulesBody(sources=models.NamesRule(deny=["file:*"])),
}


@pytest.mark.parametrize("what", LAYERS)
def test_an_overlay_stops_the_launch_and_names_its_layer(place: Site, ada: Tenant, what: str) -> None:
    ada.client.update_project_policy(ada.project_id, rules=LAYERS[what], reason=f"no such {what} here")
    try:
        with pytest.raises((errors.PolicyDenied, errors.SourceDenied)) as refused:
            place.launch(ada, "forbidden", workers=1)
    finally:
        ada.client.update_project_policy(ada.project_id, rules=models.RulesBody(), reason="the test is over")
    assert "project" in f"{refused.value.detail} {refused.value.details}"
    assert [each.name for each in ada.client.iter_instances(ada.project_id) if each.name == "forbidden"] == []


def test_each_privileged_action_leaves_its_audit_row(place: Site, ada: Tenant) -> None:
    cluster = place.launch(ada, "audited", workers=1).id
    (worker,) = place.members(ada, cluster)
    job = place.act(ada, cluster, "queue.submit", script="#!/bin/sh\nsleep 600\n", key="audited")
    place.act(ada, cluster, "queue.cancel", job_id=job["job_id"])
    place.act(ada, cluster, "node.operate", name=worker.name, do="drain", reason=REASON)
    place.act(ada, cluster, "node.operate", name=worker.name, do="resume")
    place.over(ada, cluster, ada.client.upgrade_instance(ada.project_id, cluster, version=VERSIONS[1]).id)
    place.stop(ada, cluster)
    rows = list(ada.client.iter_tenant_audit(ada.tenant_id))
    done = {each.action for each in rows if each.outcome == "done" and cluster in str(each)}
    wanted = {
        "instance.create", "instance.update", "instance.delete", "scheduler.queue.submit", "scheduler.queue.cancel",
        "scheduler.node.operate",
    }  # fmt: skip
    assert wanted <= done, done
