"""A node's tenants take turns: one tenant's queue leaves the neighbours' tasks and teardowns their room."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mooring.core.fleet.task_family import FAMILIES
from mooring.core.fleet.task_room import HELD_OF_ALLOCATION, HELD_OF_TENANT, LANES, Lane
from mooring.storage.kernel.database import PLATFORM
from server.tests.support.agent_double import held
from server.tests.support.lifecycle_rows import ProjectRows
from server.tests.support.node_site import NodeSite
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

OF_ALLOCATION, OF_TENANT = HELD_OF_ALLOCATION[Lane.ORDERED], HELD_OF_TENANT[Lane.ORDERED]


@dataclass(frozen=True)
class Neighbour:
    """Another tenant with an allocation on the same node."""

    tenant_id: str
    project_id: str
    allocation_id: str


async def a_neighbour(site: NodeSite, slug: str = "globex") -> Neighbour:
    tenant = await site.world.tenant(slug)
    project_id = await site.world.project(tenant, "train")
    rows = ProjectRows(site.services.database, tenant.id, project_id, site.agent.node_id)
    return Neighbour(tenant.id, project_id, await rows.birth("allocation"))


async def make_many(site: NodeSite, count: int, allocation_id: str | None = None) -> None:
    for number in range(count):
        await site.make(label=f"own{number}", allocation_id=allocation_id or site.project_rows.allocation_id)


async def make_for(site: NodeSite, whose: Neighbour, type_: str = "process.run", **other: Any) -> str:
    place: dict[str, Any] = {
        "tenant_id": whose.tenant_id,
        "project_id": whose.project_id,
        "allocation_id": whose.allocation_id,
    }
    request = site.requested(type_, **place, **other)
    as_neighbour = replace(
        site, project_rows=replace(site.project_rows, tenant_id=whose.tenant_id, project_id=whose.project_id)
    )
    return (await as_neighbour.make_requested(request)).id


async def test_a_long_queue_of_one_tenant_does_not_fill_the_claim(site: NodeSite) -> None:
    await make_many(site, OF_ALLOCATION + 10)
    neighbour = await a_neighbour(site)
    theirs = [await make_for(site, neighbour) for _ in range(3)]
    claimed = await site.agent.claim(free=8)
    got = [each["task_id"] for each in claimed if each["tenant_id"] == neighbour.tenant_id]
    assert got == theirs  # in order, although many older ones waited
    assert len(claimed) == 8


async def test_an_allocation_and_a_tenant_get_no_more_than_their_bound_until_something_ends(site: NodeSite) -> None:
    await make_many(site, OF_ALLOCATION + 5)
    first = await site.agent.claim(free=1000)
    assert len(first) == OF_ALLOCATION
    rows = ProjectRows(site.services.database, site.tenant.id, site.project_id, site.agent.node_id)
    for _ in range(2):
        await make_many(site, OF_ALLOCATION, await rows.birth("allocation"))
    second = await site.agent.claim(free=1000, running=[held(each) for each in first])
    holding = [*first, *second]
    assert len(holding) == OF_TENANT
    # A neighbour's task is claimed at once, and so is what ends an owner, room or not.
    neighbour = await a_neighbour(site)
    theirs = await make_for(site, neighbour)
    (got,) = await site.agent.claim(free=1000, running=[held(each) for each in holding])
    assert got["task_id"] == theirs
    # The end of one task makes room for one more of its tenant.
    await site.agent.finish(first[0])
    holding = [*holding[1:], got]
    (next_one,) = await site.agent.claim(free=1000, running=[held(each) for each in holding])
    assert next_one["tenant_id"] == site.tenant.id


async def test_what_ends_an_owner_is_claimed_first_and_by_an_agent_without_room(site: NodeSite) -> None:
    await make_many(site, 5)
    neighbour = await a_neighbour(site)
    ends = await make_for(site, neighbour, "sandbox.destroy")
    (got,) = await site.agent.claim(free=0)
    assert got["task_id"] == ends


async def test_a_tunnel_does_not_wait_behind_its_own_tenants_programs(site: NodeSite) -> None:
    await make_many(site, OF_ALLOCATION + 5)
    first = await site.agent.claim(free=1000)
    tunnel = await site.make("tunnel.open", {"relay": "http://relay.example", "ports": [80]})
    (got,) = await site.agent.claim(free=1000, running=[held(each) for each in first])
    assert got["task_id"] == tunnel.id


async def test_a_waiting_poll_gets_the_next_task_as_soon_as_one_ends(site: NodeSite) -> None:
    await make_many(site, OF_ALLOCATION + 1)
    first = await site.agent.claim(free=1000)
    dispatcher = site.world.running.platform.tools.dispatcher
    waiting = asyncio.create_task(site.agent.claim(free=1000, running=[held(each) for each in first]))
    await until(lambda: dispatcher.waiting == 1)
    await site.agent.finish(first[0])
    assert len(await waiting) == 1


async def test_the_database_and_the_program_have_the_same_lanes(site: NodeSite) -> None:
    for name in FAMILIES:
        lane = await site.services.database.fetchval(PLATFORM, "SELECT task_lane($1)", name)
        assert lane == LANES.get(name, Lane.ORDERED), name
