"""Secrets for tasks: who owns them, how they travel, that they are destroyed, and that they are found nowhere else."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from mooring.commands.fleet.runtime_secret import SecretOwner, destroy, store
from mooring.commands.kernel.work import Work, system_context
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretGrantRequest
from mooring.core.fleet.task_creation import make_task
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Authority
from mooring.gateways.registry.artifact_reader import OwnRegistry
from mooring.gateways.registry.registry_token import RegistryTokenIssuer, new_signing_pair
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.kernel.database import PLATFORM
from server.tests.support.lifecycle_rows import context
from server.tests.support.node_site import NodeSite, pull_grant

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

VALUE = b"c0rrect-h0rse-battery-staple-4711"
RUN = {"argv": ["true"], "environment_secrets": {"TOKEN": "pull"}}


def work(site: NodeSite) -> Work[RuntimeSecret]:
    return Work(site.services, site.project_rows.acting, system_context(site.services), Authority())


def home(site: NodeSite, instance_id: str | None = None) -> SecretOwner:
    return SecretOwner(site.tenant.id, site.project_id, instance_id=instance_id or site.project_rows.instance_id)


async def kept(site: NodeSite, belongs: SecretOwner | None = None, name: str = "pull") -> RuntimeSecret:
    """A secret that is kept for an instance."""
    belongs = belongs or home(site)
    await store(work(site), belongs, VALUE, name=name, purpose="artifact_pull")
    found = await runtime_secrets.of_owner(site.services.database, PLATFORM, site.project_id, belongs.id)
    return next(each for each in found if each.name == name)


def granted(secret: RuntimeSecret) -> tuple[SecretGrantRequest, ...]:
    return (SecretGrantRequest("pull", "artifact_pull", stored=secret),)


async def test_a_secret_reaches_its_node_in_the_sealed_payload_and_nobody_else(
    site: NodeSite, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    secret = await kept(site)
    made = await site.make(arguments=RUN, grants=granted(secret), instance_id=site.project_rows.instance_id)
    other = await site.another_agent()
    task = await site.agent.claim_one()
    (sealed,) = task["secrets"]
    assert (sealed["name"], sealed["purpose"]) == ("pull", "artifact_pull")
    assert site.agent.unseal(task, sealed) == VALUE
    for wrong in (other.unseal, lambda t, s: site.agent.unseal({**t, "task_id": "another"}, s)):
        with pytest.raises(InvalidTag):
            wrong(task, sealed)
    with pytest.raises(InvalidTag):
        site.agent.unseal(task, sealed | {"purpose": "another"})
    await site.agent.finish(task)
    seen = await site.people.get(f"{site.path}/tasks/{made.id}")
    events = await site.people.get(f"{site.path}/events?limit=500")
    trail = await site.people.get(f"/api/v1/tenants/{site.tenant.id}/audit?limit=500")
    captured = capfd.readouterr()
    for text in (seen.text, events.text, trail.text, captured.out, captured.err, caplog.text):
        assert found_in(text.encode()) == []
    assert "secret.grant" in trail.text
    assert await whole_database(site) == []


async def test_a_task_of_another_instance_does_not_get_it(site: NodeSite) -> None:
    secret = await kept(site)
    other = await site.project_rows.birth("instance")
    for instance_id in (None, other):
        with pytest.raises(Refusal) as refused:
            await site.make(arguments=RUN, grants=granted(secret), instance_id=instance_id)
        assert refused.value.code is Code.NOT_FOUND


async def test_the_database_itself_refuses_a_grant_to_another_instance(site: NodeSite) -> None:
    secret = await kept(site)
    other = await site.project_rows.birth("instance")
    made = make_task(
        context(), site.requested(arguments=RUN, grants=granted(secret), instance_id=site.project_rows.instance_id)
    )
    task, grant = made.writes
    assert isinstance(task, Insert)
    stolen = replace(task, row={**task.row, "instance_id": other})
    with pytest.raises(Refusal) as refused:
        await site.project_rows.write(stolen, grant)
    assert refused.value.code is Code.NOT_FOUND


async def test_an_allocations_secret_is_for_every_task_of_that_allocation(site: NodeSite) -> None:
    belongs = SecretOwner(site.tenant.id, site.project_id, allocation_id=site.project_rows.allocation_id)
    secret = await kept(site, belongs)
    await site.make(arguments=RUN, grants=granted(secret))
    task = await site.agent.claim_one()
    assert site.agent.unseal(task, task["secrets"][0]) == VALUE
    elsewhere = await site.project_rows.birth("allocation")
    with pytest.raises(Refusal):
        await site.make(arguments=RUN, grants=granted(secret), allocation_id=elsewhere)


async def test_what_is_destroyed_is_deleted_and_goes_to_no_task_any_more(site: NodeSite) -> None:
    secret = await kept(site)
    await site.make(arguments=RUN, grants=granted(secret), instance_id=site.project_rows.instance_id)
    sealed = "SELECT count(*) FROM secret WHERE id = $1"
    assert await site.count(sealed, secret.secret_id) == 1
    ending: Work[tuple[RuntimeSecret, ...]] = Work(
        site.services, site.project_rows.acting, system_context(site.services), Authority()
    )
    await destroy(ending, home(site))
    await destroy(ending, home(site))  # again: there is nothing left to do
    assert await site.count(sealed, secret.secret_id) == 0
    assert (await site.agent.claim_one())["secrets"] == []
    with pytest.raises(Refusal):
        await site.make(arguments=RUN, grants=granted(secret), instance_id=site.project_rows.instance_id)
    gone = await runtime_secrets.find(site.services.database, PLATFORM, site.project_id, secret.id)
    assert gone is not None
    assert (gone.secret_id, gone.destroyed_at is not None) == (None, True)
    assert (await kept(site)).id != secret.id  # its name is free again


async def test_a_grant_counts_for_its_time_only(site: NodeSite) -> None:
    secret = await kept(site)
    requested: dict[str, Any] = {"grants": granted(secret), "instance_id": site.project_rows.instance_id}
    made = await site.make(arguments=RUN, lifetime=timedelta(hours=5), **requested)
    short = "SELECT count(*) FROM secret_grant WHERE task_id = $1 AND expires_at - created_at = interval '1 hour'"
    assert await site.count(short, made.id) == 1
    over = "UPDATE secret_grant SET expires_at = created_at - interval '1 second' WHERE task_id = $1"
    await site.services.database.fetchval(PLATFORM, over, made.id)
    assert (await site.agent.claim_one())["secrets"] == []


async def test_unknown_purposes_names_and_values_are_refused(site: NodeSite) -> None:
    for name, purpose, value in (
        ("pull", "anything", VALUE),
        ("No!", "artifact_pull", VALUE),
        ("pull", "artifact_pull", b""),
        ("pull", "artifact_pull", b"x" * 65_537),
    ):
        with pytest.raises(Refusal) as refused:
            await store(work(site), home(site), value, name=name, purpose=purpose)
        assert refused.value.code is Code.VALIDATION_FAILED
    await kept(site)
    with pytest.raises(Refusal) as refused:
        await store(work(site), home(site), VALUE, name="pull", purpose="artifact_pull")
    assert refused.value.code is Code.NAME_TAKEN


async def test_a_task_names_what_it_was_granted_and_is_granted_what_it_names(site: NodeSite) -> None:
    for arguments, grants in ((RUN, ()), ({"argv": ["true"]}, (pull_grant(),)), (RUN, (pull_grant(), pull_grant()))):
        with pytest.raises(Refusal) as refused:
            await site.make(arguments=arguments, grants=grants)
        assert refused.value.code is Code.VALIDATION_FAILED


async def test_a_pull_token_is_made_at_the_claim_for_one_repository(site: NodeSite) -> None:
    pair = new_signing_pair(datetime.now(UTC))
    issuer = RegistryTokenIssuer(pair, issuer="the platform", service="the registry", lifetime_seconds=300)
    site.services.artifacts.own = OwnRegistry("https://registry.example", issuer)
    fetch = {
        "kind": "oci",
        "digest": "sha256:" + "a" * 64,
        "source": "oci://registry.example/team/app",
        "secret": "pull",
    }
    await site.make("artifact.fetch", fetch, grants=(pull_grant("team/app"),))
    task = await site.agent.claim_one()
    token = site.agent.unseal(task, task["secrets"][0]).decode()
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["access"] == [{"type": "repository", "name": "team/app", "actions": ["pull"]}]
    assert (claims["sub"], claims["exp"] - claims["iat"]) == (task["task_id"], 300)
    for wrong in ("../etc", "Team/App", ""):
        with pytest.raises(Refusal):
            await site.make("artifact.fetch", fetch, grants=(pull_grant(wrong),))


def found_in(content: bytes) -> list[str]:
    """The forms in which the value stands in these bytes."""
    forms = {
        "plain": VALUE,
        "hex": VALUE.hex().encode(),
        "base64": base64.b64encode(VALUE)[:-4],
        "base64url": base64.urlsafe_b64encode(VALUE)[:-4],
    }
    return [name for name, form in forms.items() if form in content]


async def whole_database(site: NodeSite) -> list[str]:
    """The tables in which the value can be read: every row of every table, as text."""
    database = site.services.database
    tables = await database.fetch(PLATFORM, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert len(tables) > 30
    found = []
    for (table,) in tables:
        for row in await database.fetch(PLATFORM, f'SELECT to_jsonb(t)::text FROM "{table}" t'):
            if found_in(row[0].encode()):
                found.append(table)
    return found
