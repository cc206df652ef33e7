"""What the database itself keeps of versions: never ahead of their artifacts, unchanged once staged, free when retired.

The core decides the same first, with the better message. Here rows are written past it, one by one and against each
other at the same time.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import asyncpg
import pytest

from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import NEEDS, Hold
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.trust_lifecycle import TRUST
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import StaleWrite, apply
from server.tests.support.lifecycle_rows import (
    CLOCK,
    MANIFEST_DIGEST,
    LifecycleSubject,
    ProjectRows,
    context,
    make_project_rows,
    path,
    refused_by,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

S = PromotionState
AHEAD: Final = """
SELECT count(*) FROM app_version v, unnest(v.digests) needed
 WHERE v.promotion IN ('staged', 'canary', 'active', 'deprecated') AND NOT EXISTS (
       SELECT FROM artifact a JOIN promotion_need n ON n.version_state = v.promotion AND n.artifact_state = a.promotion
        WHERE a.digest = needed AND (a.tenant_id IS NULL OR a.tenant_id = v.tenant_id))"""
HELD: Final = """
SELECT count(*) FROM app_version v JOIN artifact_hold h ON h.version_id = v.id WHERE v.promotion = 'retired'"""


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 8, acquire_timeout_seconds=60.0))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def project_rows(database: Database) -> ProjectRows:
    return await make_project_rows(database)


def fresh_digest() -> str:
    """A digest that nobody has."""
    return f"sha256:{random.getrandbits(256):064x}"


async def artifact_in(project_rows: ProjectRows, state: PromotionState, digest: str) -> LifecycleSubject:
    """A verified artifact of the tenant's in this state."""
    subject = LifecycleSubject("artifact", PROMOTION, await project_rows.birth("artifact", digest=digest), S.DRAFT)
    verify = next(edge for edge in TRUST.edges if edge.source == "unverified" and edge.target == "verified")
    await project_rows.move(LifecycleSubject("artifact", TRUST, subject.id, TRUST.initial), verify)
    for edge in path(PROMOTION, state):
        subject = await project_rows.move(subject, edge)
    return subject


async def version_in(project_rows: ProjectRows, state: PromotionState, *digests: str) -> LifecycleSubject:
    """A version that needs these digests, in this state."""
    made = await project_rows.birth("app_version", digests=list(digests))
    subject = LifecycleSubject("app_version", PROMOTION, made, S.DRAFT)
    for edge in path(PROMOTION, state):
        subject = await project_rows.move(subject, edge)
    return subject


async def test_the_table_of_needs_is_that_of_the_core(database: Database) -> None:
    rows = await database.fetch(PLATFORM, "SELECT version_state, artifact_state FROM promotion_need")
    bound = {state: needed for state, needed in NEEDS.items() if state not in (S.DRAFT, S.RETIRED)}
    assert {tuple(row) for row in rows} == {(state, each) for state, needed in bound.items() for each in needed}


@pytest.mark.parametrize("artifact_state", list(S))
async def test_a_version_comes_only_as_far_as_its_artifact_is(
    project_rows: ProjectRows, artifact_state: PromotionState
) -> None:
    digest = fresh_digest()
    artifact = await artifact_in(project_rows, artifact_state, digest)
    assert artifact.state is artifact_state
    version = await version_in(project_rows, S.DRAFT, digest)
    for edge in path(PROMOTION, S.ACTIVE):
        if artifact_state in NEEDS[edge.target]:
            version = await project_rows.move(version, edge)
        else:
            assert await refused_by(project_rows.move(version, edge)) == "app_version_not_ahead"
            break


async def test_a_digest_that_nobody_registered_is_behind(project_rows: ProjectRows) -> None:
    version = await version_in(project_rows, S.DRAFT, fresh_digest())
    stage = path(PROMOTION, S.STAGED)[0]
    assert await refused_by(project_rows.move(version, stage)) == "app_version_not_ahead"


async def test_another_tenants_artifact_does_not_count(database: Database, project_rows: ProjectRows) -> None:
    digest = fresh_digest()
    other = await make_project_rows(database, "other")
    await artifact_in(other, S.ACTIVE, digest)
    version = await version_in(project_rows, S.DRAFT, digest)
    assert await refused_by(project_rows.move(version, path(PROMOTION, S.STAGED)[0])) == "app_version_not_ahead"


@pytest.mark.parametrize("version_state", [S.STAGED, S.CANARY, S.ACTIVE, S.DEPRECATED])
async def test_an_artifact_does_not_leave_a_version_ahead_of_it(
    project_rows: ProjectRows, version_state: PromotionState
) -> None:
    for edge in PROMOTION.edges:
        digest = fresh_digest()
        if edge.source not in NEEDS[version_state]:
            continue
        artifact = await artifact_in(project_rows, S.ACTIVE, digest)
        version = await version_in(project_rows, version_state, digest)
        if edge.source is not S.ACTIVE and edge.source is not S.DEPRECATED:
            continue
        if edge.source is S.DEPRECATED:
            deprecate = next(each for each in PROMOTION.edges if each.target is S.DEPRECATED)
            artifact = await project_rows.move(artifact, deprecate)
        name = await refused_by(project_rows.move(artifact, edge))
        assert name == ("" if edge.target in NEEDS[version_state] else "artifact_not_behind"), (version, edge)


async def test_a_second_artifact_of_the_same_digest_carries_the_version(project_rows: ProjectRows) -> None:
    digest = fresh_digest()
    first = await artifact_in(project_rows, S.ACTIVE, digest)
    await version_in(project_rows, S.ACTIVE, digest)
    second = await project_rows.birth("artifact", digest=digest, location="oci://registry.example/team/copy")
    deprecate = next(edge for edge in PROMOTION.edges if edge.target is S.DEPRECATED)
    assert await refused_by(project_rows.move(first, deprecate)) == "artifact_not_behind"
    copy = LifecycleSubject("artifact", PROMOTION, second, S.DRAFT)
    for edge in path(PROMOTION, S.ACTIVE):
        copy = await project_rows.move(copy, edge)
    await project_rows.move(first, deprecate)
    assert await refused_by(project_rows.move(copy, deprecate)) == "artifact_not_behind"


async def test_a_version_changes_while_it_is_a_draft_and_never_again(project_rows: ProjectRows) -> None:
    digest = fresh_digest()
    await artifact_in(project_rows, S.STAGED, digest)
    version = await version_in(project_rows, S.DRAFT, digest)
    other: dict[str, object] = {"manifest": {"release_notes": "new"}, "manifest_digest": f"sha256:{'e' * 64}"}
    await project_rows.write(Update("app_version", version.id, 0, other))
    await project_rows.write(Update("app_version", version.id, 1, {"manifest": {}, "manifest_digest": MANIFEST_DIGEST}))
    await project_rows.move(version, path(PROMOTION, S.STAGED)[0])
    changes: list[dict[str, object]] = [{name: value} for name, value in other.items()]
    changes += [{"digests": []}, {"staged_digest": None}]
    for changed in changes:
        name = await refused_by(project_rows.write(Update("app_version", version.id, 2, changed)))
        assert name == "app_version_is_immutable"
    actions: dict[str, object] = {"manifest": {"required_actions": ["runtime.claim"]}}
    actions |= {"manifest_digest": f"sha256:{'f' * 64}", "staged_digest": f"sha256:{'f' * 64}"}
    await project_rows.write(Update("app_version", version.id, 2, actions))
    holder = CLOCK.mint(Prefix.INSTANCE)
    hold = Hold(digest, "instance", holder, version.id)
    place = {"tenant_id": project_rows.tenant_id, "project_id": project_rows.project_id}
    await apply(project_rows.database, project_rows.acting, context(), take_holds(context(), [hold], **place))
    back = actions | {"manifest": {}}
    name = await refused_by(project_rows.write(Update("app_version", version.id, 3, back)))
    assert name == "app_version_is_immutable", "something uses it"


async def test_the_number_of_a_version_never_changes_and_is_one_apps_once(project_rows: ProjectRows) -> None:
    version = await version_in(project_rows, S.DRAFT)
    for changed in ({"version": "9.9.9"}, {"version_order": "x"}, {"app_slug": "another"}):
        assert (
            await refused_by(project_rows.write(Update("app_version", version.id, 0, changed)))
            == "app_version_is_immutable"
        )
    row = await project_rows.database.fetchrow(
        PLATFORM, "SELECT version, version_order FROM app_version WHERE id = $1", version.id
    )
    assert row is not None
    assert await refused_by(project_rows.birth("app_version", **dict(row))) == "app_version_number_taken"


async def test_what_is_staged_is_the_manifest_that_was_checked(project_rows: ProjectRows) -> None:
    version = await version_in(project_rows, S.DRAFT)
    stage = path(PROMOTION, S.STAGED)[0]
    assert await refused_by(project_rows.move(version, stage, staged_digest=None)) == "app_version_staged_is_stated"
    other = f"sha256:{'e' * 64}"
    assert (
        await refused_by(project_rows.move(version, stage, staged_digest=other)) == "app_version_staged_is_the_manifest"
    )


async def test_only_a_canary_has_a_percentage(project_rows: ProjectRows) -> None:
    version = await version_in(project_rows, S.STAGED)
    canary = path(PROMOTION, S.CANARY)[1]
    assert (
        await refused_by(project_rows.move(version, canary, canary_percentage=None))
        == "app_version_canary_has_percentage"
    )
    for wrong in (0, 101):
        name = await refused_by(project_rows.move(version, canary, canary_percentage=wrong))
        assert name == "app_version_percentage_is_one"


def hold(project_rows: ProjectRows, digest: str, version_id: str) -> Insert:
    """Something of the project's that uses the digest through the version."""
    row: dict[str, Any] = {
        "id": CLOCK.mint(Prefix.ARTIFACT_HOLD),
        "tenant_id": project_rows.tenant_id,
        "project_id": project_rows.project_id,
        "digest": digest,
        "holder_noun": "instance",
        "holder_id": CLOCK.mint(Prefix.INSTANCE),
        "version_id": version_id,
        "created_at": CLOCK.now(),
    }
    return Insert("artifact_hold", row)


async def test_a_version_under_a_hold_is_not_retired_and_a_retired_one_takes_none(project_rows: ProjectRows) -> None:
    digest = fresh_digest()
    await artifact_in(project_rows, S.ACTIVE, digest)
    version = await version_in(project_rows, S.STAGED, digest)
    held = hold(project_rows, digest, version.id)
    await project_rows.write(held)
    withdraw = next(edge for edge in PROMOTION.edges if edge.source is S.STAGED and edge.target is S.RETIRED)
    assert await refused_by(project_rows.move(version, withdraw)) == "app_version_retired_is_free"
    await project_rows.database.fetch(PLATFORM, "DELETE FROM artifact_hold WHERE id = $1", held.row["id"])
    await project_rows.move(version, withdraw)
    assert (
        await refused_by(project_rows.write(hold(project_rows, digest, version.id))) == "artifact_hold_version_is_there"
    )
    other = await version_in(project_rows, S.STAGED)
    assert (
        await refused_by(project_rows.write(hold(project_rows, digest, other.id))) == "artifact_hold_version_is_there"
    )


async def test_raced_from_both_sides_no_version_is_ever_ahead(database: Database, project_rows: ProjectRows) -> None:
    """Versions go up while their artifacts go on, withdraw while they are taken: after each round all of it holds."""
    refused = done = 0
    for _ in range(12):
        digest = fresh_digest()
        artifact = await artifact_in(project_rows, S.ACTIVE, digest)
        versions = [await version_in(project_rows, S.CANARY, digest) for _ in range(3)]
        staged = await version_in(project_rows, S.STAGED, digest)
        activate = next(edge for edge in PROMOTION.edges if edge.target is S.ACTIVE)
        deprecate = next(edge for edge in PROMOTION.edges if edge.target is S.DEPRECATED)
        withdraw = next(edge for edge in PROMOTION.edges if edge.source is S.STAGED and edge.target is S.RETIRED)
        rollback = next(edge for edge in PROMOTION.edges if edge.source is S.CANARY and edge.target is S.STAGED)
        moves = [
            project_rows.move(versions[0], activate),
            project_rows.move(versions[1], rollback),
            project_rows.move(versions[2], activate),
            project_rows.move(artifact, deprecate),
            project_rows.move(staged, withdraw),
            project_rows.write(hold(project_rows, digest, staged.id)),
            project_rows.write(hold(project_rows, digest, staged.id)),
        ]
        random.shuffle(moves)
        for outcome in await asyncio.gather(*moves, return_exceptions=True):
            assert not isinstance(outcome, BaseException) or isinstance(outcome, Refusal | StaleWrite), outcome
            refused += isinstance(outcome, BaseException)
            done += not isinstance(outcome, BaseException)
        assert await database.fetchval(PLATFORM, AHEAD) == 0
        assert await database.fetchval(PLATFORM, HELD) == 0
    assert refused > 0
    assert done > 0


async def test_two_artifacts_of_one_digest_do_not_both_leave_at_once(
    database: Database, project_rows: ProjectRows
) -> None:
    for _ in range(8):
        digest = fresh_digest()
        first = await artifact_in(project_rows, S.ACTIVE, digest)
        second = await project_rows.birth("artifact", digest=digest, location="oci://registry.example/team/copy")
        copy = LifecycleSubject("artifact", PROMOTION, second, S.DRAFT)
        for edge in path(PROMOTION, S.ACTIVE):
            copy = await project_rows.move(copy, edge)
        await version_in(project_rows, S.ACTIVE, digest)
        deprecate = next(edge for edge in PROMOTION.edges if edge.target is S.DEPRECATED)
        outcomes = await asyncio.gather(
            project_rows.move(first, deprecate), project_rows.move(copy, deprecate), return_exceptions=True
        )
        assert sum(not isinstance(each, BaseException) for each in outcomes) <= 1
        assert await database.fetchval(PLATFORM, AHEAD) == 0


async def test_a_slug_means_one_app_within_one_tenants_sight(database: Database, project_rows: ProjectRows) -> None:
    async with database.connection(PLATFORM) as connection:
        insert = """INSERT INTO app (id, tenant_id, slug, display_name, category, description, icon, created_at)
                    VALUES ($1, $2, $3, 'A', 'tool', '', '', now())"""
        other = await make_project_rows(database, "slugs")
        for slug, first, second, refusal in (
            ("one", None, project_rows.tenant_id, "app_slug_means_one"),
            ("two", project_rows.tenant_id, None, "app_slug_means_one"),
            ("three", project_rows.tenant_id, project_rows.tenant_id, "app_slug_taken"),
            ("four", None, None, "app_slug_taken"),
            ("five", project_rows.tenant_id, other.tenant_id, ""),
        ):
            await connection.execute(insert, CLOCK.mint(Prefix.APP), first, slug)
            assert await refused_by(connection.execute(insert, CLOCK.mint(Prefix.APP), second, slug)) == refusal
        for change in ("slug = 'moved'", "category = 'other'", "tenant_id = NULL"):
            name = await refused_by(connection.execute(f"UPDATE app SET {change} WHERE id = $1", project_rows.app_id))
            assert name in ("app_stays_with_its_owner", "app_word_of_tenant", "app_version_app_of_tenant")


async def test_an_entitlement_names_an_app_that_the_tenant_sees(database: Database, project_rows: ProjectRows) -> None:
    other = await make_project_rows(database, "unseen")
    row: dict[str, object] = {
        "id": CLOCK.mint(Prefix.ENTITLEMENT),
        "tenant_id": project_rows.tenant_id,
        "project_id": project_rows.project_id,
        "app_id": other.app_id,
        "app_slug": "app",
        "enabled": True,
        "rules": {},
        "agreed_actions": [],
        "created_at": CLOCK.now(),
        "updated_at": CLOCK.now(),
    }
    assert await refused_by(project_rows.write(Insert("entitlement", row))) == "entitlement_app_is_in_sight"
    assert (
        await refused_by(project_rows.write(Insert("entitlement", row), acting=PLATFORM))
        == "entitlement_app_is_in_sight"
    )
    own = replace(Insert("entitlement", row), row=row | {"app_id": project_rows.app_id})
    await project_rows.write(own)
    again = replace(own, row={**own.row, "id": CLOCK.mint(Prefix.ENTITLEMENT)})
    assert await refused_by(project_rows.write(again)) == "entitlement_taken"


async def test_a_tenants_session_cannot_take_an_app_of_the_platform(
    database: Database, project_rows: ProjectRows
) -> None:
    async with database.connection(PLATFORM) as platform:
        await platform.execute(
            """INSERT INTO app (id, slug, display_name, category, description, icon, created_at)
               VALUES ($1, 'shared', 'Shared', 'tool', '', '', now())""",
            CLOCK.mint(Prefix.APP),
        )
    async with database.connection(project_rows.acting) as connection:
        assert await connection.fetchval("SELECT count(*) FROM app WHERE slug = 'shared'") == 1
        assert await connection.execute("UPDATE app SET display_name = 'Mine' WHERE slug = 'shared'") == "UPDATE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("DELETE FROM app WHERE slug = 'shared'")
