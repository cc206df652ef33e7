"""Explanations out of the database: what is read is what the core explains."""

import shlex
from datetime import timedelta
from typing import Any

import click
import pytest

from mooring.core.runtime.next_steps import retry_command
from mooring.core.runtime.operation import OperationKind
from mooring.core.runtime.why import why_instance, why_operation
from mooring.storage.kernel.database import Database
from mooring.storage.runtime import instance as instances
from mooring.storage.runtime.why import facts
from mooring_cli.main import mooring
from server.tests.api.runtime.test_claims import deployed
from server.tests.conftest import World
from server.tests.core.runtime import test_why
from server.tests.support.adapter_site import OPERATOR, AdapterSite, open_adapter_site
from server.tests.support.lifecycle_rows import CLOCK, ProjectRows, make_project_rows

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def rows(database: Database) -> ProjectRows:
    return await make_project_rows(database)


async def test_an_instance_is_explained_by_its_open_operation_and_the_adapter_that_is_not_there(
    rows: ProjectRows,
) -> None:
    deadline = CLOCK.now() + timedelta(hours=1)
    operation_id = await rows.birth(
        "operation", kind="deploy", deadline_at=deadline, dispatched_at=CLOCK.now(), member_ids=[]
    )
    instance = await instances.find(rows.database, rows.acting, rows.project_id, rows.instance_id)
    assert instance is not None
    known = await facts(rows.database, instance, CLOCK.now())
    assert known is not None
    why = why_instance(known)
    assert [cause.noun for cause in why.chain] == ["instance", "operation", "adapter"]
    assert why.chain[1].id == operation_id
    assert why.chain[2].code == "adapter_unavailable"
    assert why_operation(known, known.snapshot.operations[0]).chain == why.chain[1:]


async def test_an_instance_that_is_gone_has_no_facts(rows: ProjectRows) -> None:
    instance = await instances.find(rows.database, rows.acting, rows.project_id, rows.instance_id)
    assert instance is not None
    gone = type(instance)(**{name: getattr(instance, name) for name in instance.__slots__} | {"id": "ins_gone"})
    assert await facts(rows.database, gone, CLOCK.now()) is None


async def explained(site: AdapterSite, instance_id: str) -> dict[str, Any]:
    """The explanation that the tenant's admin reads."""
    client = site.world.client(site.tenant.token)
    answer = await client.get(f"/api/v1/projects/{site.project_id}/app-instances/{instance_id}/why")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_an_operator_account_that_is_disabled_is_the_cause_of_a_missing_adapter(site: AdapterSite) -> None:
    instance_id, _ = await deployed(site, site.adapter())
    client = site.world.client(site.tenant.token)
    at = f"/api/v1/projects/{site.project_id}/service-accounts/{site.account.id}/disable"
    assert (await client.post(at)).status_code == 200
    site.clock.by += timedelta(hours=1)
    why = await explained(site, instance_id)
    assert [each["noun"] for each in why["chain"]] == ["instance", "adapter", "service_account"]
    assert (why["chain"][-1]["code"], why["next"]["who"]) == ("account_disabled", "project_admin")
    assert why["next"]["command"] == f"mooring service-accounts enable {site.account.id}"


async def test_what_an_operator_account_was_refused_is_the_cause_of_what_it_does_not_do(world: World) -> None:
    async with open_adapter_site(world, "reef", [each for each in OPERATOR if each != "task.create"]) as site:
        adapter = site.adapter()
        instance, (head,), operation = await site.launch(0)
        fence = await adapter.claim(instance.id)
        await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
        body = {"member_id": head.id, "step": "start", "operation_id": operation.id, "type": "process.run"}
        refused = await adapter.send(instance.id, "tasks", fence, arguments={"argv": ["true"]}, **body)
        assert refused.status_code == 403
        failure = {"code": "permission_denied", "detail": "403"}
        await adapter.finish(instance.id, fence, operation.id, outcome="failed", failure=failure)
        why = await explained(site, instance.id)
        assert why["chain"][-1]["noun"] == "service_account"
        assert "task.create" in why["chain"][-1]["text"]
        assert why["next"]["who"] == "project_admin"


def commands() -> set[str]:
    """Every command that an explanation may name."""
    at = test_why.instance()
    found = {retry_command(at, test_why.operation(kind=kind.value)) for kind in OperationKind}
    found |= {"mooring allocations explain --shape gpu_slice --sku small --gpu-count 1", "mooring receipts get rcp_1"}
    found |= {"mooring service-accounts enable sac_1"}
    return found | {"mooring nodes write-off nod_1", "mooring instances stop ins_1", "mooring instances repair ins_1"}


@pytest.mark.parametrize("text", sorted(commands()))
def test_a_suggested_command_exists_and_takes_its_arguments(text: str) -> None:
    words = shlex.split(text)
    assert words[0] == "mooring"
    command: click.Command = mooring
    context = click.Context(mooring, info_name="mooring")
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, f"{text}: there is no {rest[0]}"
        command, rest = found, rest[1:]
    command.make_context(words[-1], rest, parent=context)
