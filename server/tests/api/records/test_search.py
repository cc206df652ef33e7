"""Search: names and ids of what the caller may read, and never a foreign tenant's."""

import httpx
import pytest

from mooring.core.records.search import SearchKind
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records import search
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.launching import make_launching

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
PATH = "/api/v1/search"


async def found(client: httpx.AsyncClient, text: str) -> set[tuple[str, str]]:
    answer = await client.get(PATH, params={"q": text})
    assert answer.status_code == 200, answer.text
    return {(each["kind"], each["name"]) for each in answer.json()["items"]}


async def test_everybody_finds_what_they_may_read_and_no_foreign_name(world: World, publisher: AppPublisher) -> None:  # noqa: F811
    launching = await make_launching(world, publisher)
    instance = await launching.launch(name="web-secret-plan")
    other = await world.tenant("webber")
    other_project = await world.project(other, "web-project")
    home = world.client(publisher.tenant.token)
    stranger = world.client(other.token)
    own = {("instance", "web-secret-plan"), ("app", "web-tool")}
    at_home = await found(home, "web")
    assert own <= at_home
    assert ("project", "web-project") not in at_home
    assert await found(home, "WEB-SEC") == {("instance", "web-secret-plan")}
    assert await found(home, instance["id"][:20]) == {("instance", "web-secret-plan")}
    (artifact,) = await found(home, "aaaaaa")
    assert artifact[0] == "artifact"
    assert ("project", "web-project") in await found(stranger, "web")
    for text in ("web", "web-tool", instance["id"], "aaaaaa", "sha256:aaaaaa", publisher.tenant.slug):
        seen = await found(stranger, text)
        assert not own & seen, (text, seen)
        assert not {kind for kind, _ in seen} & {"artifact", "tenant", "node"}, (text, seen)
    operator = await found(world.admin, "web")
    assert {kind for kind, _ in operator} == {"tenant"}, "of a tenant the platform finds the name, and nothing in it"
    (node,) = (await world.admin.get("/api/v1/platform/nodes")).json()["items"]
    assert await found(world.admin, node["name"][:4]) >= {("node", node["name"])}
    assert await found(home, node["name"]) == set()
    second = await world.project(publisher.tenant, "web-second")
    viewer = world.client(await world.member(publisher.tenant, second, "project_viewer", "viewer"))
    assert await found(viewer, "web") == {("project", "web-second"), ("app", "web-tool")}
    assert await found(viewer, other_project) == await found(viewer, publisher.project_id) == set()
    assert await found(home, "") == await found(home, "  ") == set()
    assert (await home.get(PATH, params={"q": "a\0b"})).status_code == 422
    assert (await home.get(PATH, params={"q": "x" * 101})).status_code == 422
    assert await found(home, "%") == await found(home, "' or 1=1 --") == await found(home, "nod_") == set()


async def test_a_search_visits_one_range_of_an_index_that_begins_with_the_tenant(world: World) -> None:
    database = world.running.platform.services.database
    limits = {SearchKind.USER: 0, SearchKind.APP: 2, SearchKind.INSTANCE: 5}
    for (kind, by_id), statement in search.OF_TENANT.items():
        arguments = [f"'{each}'" for each in ("a", "b", "ten_x")]
        for number in range(limits.get(kind, 2)):
            arguments.append("true" if number == 0 else "'{}'")
        for number in range(len(arguments), 0, -1):
            statement = statement.replace(f"${number}", arguments[number - 1])
        async with database.connection(PLATFORM) as connection, connection.transaction():
            await connection.execute("SET LOCAL enable_seqscan = off")
            plan = "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {statement}"))
        ranges = [line for line in plan.splitlines() if "Index Cond" in line]
        assert ranges, (kind, by_id, plan)
        assert all("tenant_id" in each for each in ranges), (kind, by_id, plan)
