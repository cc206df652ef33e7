"""Rules around a cluster of real Slurm: policy stops a launch and names its layer."""

from collections.abc import Callable

import pytest

from mooring_sdk import errors, models
from tests.e2e.slurm.cluster import REGION, SKU, SlurmSite, SlurmTenant

RULES = {
    "region": (models.RulesBody(regions=models.NamesRule(deny=[REGION])), errors.PolicyDenied),
    "sku": (models.RulesBody(skus=models.NamesRule(deny=[SKU])), errors.PolicyDenied),
    "source": (models.RulesBody(sources=models.NamesRule(deny=["file:*"])), errors.SourceDenied),
}
VALUES = {"region": REGION, "sku": SKU, "source": "file:"}


def say(tenant: SlurmTenant, layer: str) -> Callable[[models.RulesBody, str], models.Policy]:
    """How a tenant's admin states the rules of a layer."""
    client = tenant.client
    if layer == "tenant":
        return lambda rules, reason: client.update_tenant_policy(tenant.tenant_id, rules=rules, reason=reason)
    return lambda rules, reason: client.update_project_policy(tenant.project_id, rules=rules, reason=reason)


@pytest.mark.parametrize(
    ("layer", "subject"), [("project", "region"), ("project", "sku"), ("project", "source"), ("tenant", "region")]
)
def test_an_overlay_stops_the_launch_and_names_its_layer(
    place: SlurmSite, ada: SlurmTenant, layer: str, subject: str
) -> None:
    rules, kind = RULES[subject]
    state = say(ada, layer)
    state(rules, f"no such {subject} here")
    try:
        with pytest.raises(kind) as refused:
            place.launch(ada, "forbidden", workers=1)
    finally:
        state(models.RulesBody(), "the test is over")
    details = refused.value.details
    assert (details["layer"], details["subject"]) == (layer, subject)
    assert str(details["value"]).startswith(VALUES[subject])
    assert f"the {layer} policy" in str(refused.value.detail)
    assert [each.name for each in ada.client.iter_instances(ada.project_id) if each.name == "forbidden"] == []
