"""Whom a revocation touches: the instances that hold the digest, and their members."""

from dataclasses import replace

import pytest

from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.storage.kernel.unit_of_work import apply
from server.tests.api.catalog.test_apps import DIGEST, AppPublisher, publisher
from server.tests.support.lifecycle_rows import context
from server.tests.support.route_requests import Home

__all__ = ["publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def test_a_revocation_names_every_instance_and_member_that_holds_the_digest(publisher: AppPublisher) -> None:
    artifact_id = await publisher.artifact("active")
    version = await publisher.moved(await publisher.publish(), "stage", "canary", "activate")
    bare = Home(publisher.world, publisher.world.client(), publisher.tenant, publisher.project_id).project_rows()
    project_rows = replace(
        bare, app_id=publisher.app["id"], version_id=version["id"], account_id=await bare.birth("service_account")
    )
    held, other = await project_rows.birth("instance"), await project_rows.birth("instance")
    holds = [Hold(DIGEST, "instance", held, version["id"])]
    await apply(
        project_rows.database,
        project_rows.acting,
        context(),
        take_holds(context(), holds, tenant_id=publisher.tenant.id, project_id=publisher.project_id),
    )
    touched, untouched = replace(project_rows, instance_id=held), replace(project_rows, instance_id=other)
    standing = await touched.birth("member")
    await touched.subject("member", MEMBER, MemberState.REMOVED)
    await untouched.birth("member")

    for place in (publisher.place, f"/api/v1/projects/{publisher.project_id}"):
        answer = await publisher.client.get(f"{place}/artifacts/{artifact_id}/impact")
        assert answer.status_code == 200, answer.text
        seen = answer.json()
        assert [each["id"] for each in seen["instances"]] == [held]
        assert (seen["instances"][0]["app_slug"], seen["instances"][0]["version"]) == ("app", "1.0.0")
        assert [(each["id"], each["instance_id"], each["version"]) for each in seen["members"]] == [
            (standing, held, "1.0.0")
        ]
        assert seen["holds_count"] == 1
    elsewhere = await publisher.world.project(publisher.tenant, "elsewhere")
    seen = (await publisher.client.get(f"/api/v1/projects/{elsewhere}/artifacts/{artifact_id}/impact")).json()
    assert (seen["instances"], seen["members"]) == ([], []), "a project sees its own alone"
