"""A digest that something holds is not retired, and what is retired is not held, also when both are asked for at once.

The database enforces it: takers and retirers wait for one lock of the digest and then read again.
"""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from mooring.core.catalog.artifact_hold import drop_holds, take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.kernel.decision import Insert, StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import StaleWrite, apply
from server.tests.support.lifecycle_rows import CLOCK, ProjectRows, context, machines_of, make_project_rows

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WITHDRAW = PROMOTION.step(PromotionState.DRAFT, PromotionTrigger.WITHDRAW)
HELD_AND_RETIRED = """
SELECT count(*) FROM artifact a JOIN artifact_hold h ON h.digest = a.digest WHERE a.promotion = 'retired'"""
CLIENTS, ROUNDS, ROUNDS_MAX = 8, 12, 1_000
"""More rounds are played than the first ones only while one side has not met the other yet."""


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, CLIENTS, acquire_timeout_seconds=60.0))
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def rows(database: Database) -> ProjectRows:
    return await make_project_rows(database)


async def digest_of(rows: ProjectRows, artifact_id: str) -> str:
    return str(await rows.database.fetchval(PLATFORM, "SELECT digest FROM artifact WHERE id = $1", artifact_id))


async def take(rows: ProjectRows, digest: str, holder_id: str | None = None) -> str:
    """Hold a digest for an instance; the holder's id."""
    now = context()
    holder = holder_id or CLOCK.mint(Prefix.INSTANCE)
    decision = take_holds(now, [Hold(digest, "instance", holder)], tenant_id=rows.tenant_id, project_id=rows.project_id)
    await apply(rows.database, rows.acting, now, decision)
    return holder


async def drop(rows: ProjectRows, holder_id: str) -> None:
    now = context()
    holds = await artifacts.holds_of(rows.database, rows.acting, "instance", holder_id)
    await apply(rows.database, rows.acting, now, drop_holds(now, holds))


async def retire(rows: ProjectRows, artifact_id: str, *, acting: Acting | None = None) -> None:
    """Withdraw a draft, past every check of the core."""
    owner = (acting or rows.acting).tenant_id
    move = StateChange("artifact", artifact_id, PROMOTION, WITHDRAW, 0, owner, set={"retired_at": CLOCK.now()})
    await rows.write(move, acting=acting)


async def refusal(work: object) -> Code:
    with pytest.raises(Refusal) as caught:
        await work  # type: ignore[misc]
    return caught.value.code


async def test_what_is_held_is_not_retired_until_it_is_dropped(rows: ProjectRows) -> None:
    artifact_id = await rows.birth("artifact")
    holder = await take(rows, await digest_of(rows, artifact_id))
    assert await refusal(retire(rows, artifact_id)) is Code.HOLD_PRESENT
    await drop(rows, holder)
    await retire(rows, artifact_id)


async def test_what_is_retired_or_unknown_is_not_held(rows: ProjectRows) -> None:
    artifact_id = await rows.birth("artifact")
    digest = await digest_of(rows, artifact_id)
    await retire(rows, artifact_id)
    assert await refusal(take(rows, digest)) is Code.VERSION_NOT_OFFERED
    assert await refusal(take(rows, f"sha256:{'f' * 64}")) is Code.VERSION_NOT_OFFERED


async def test_a_hold_is_taken_once(rows: ProjectRows) -> None:
    digest = await digest_of(rows, await rows.birth("artifact"))
    holder = await take(rows, digest)
    assert await refusal(take(rows, digest, holder)) is Code.NAME_TAKEN


async def test_another_tenants_artifact_of_the_same_digest_is_neither_held_nor_a_blocker(
    rows: ProjectRows, database: Database
) -> None:
    other = await make_project_rows(database, "other")
    mine = await rows.birth("artifact")
    digest = await digest_of(rows, mine)
    assert await refusal(take(other, digest)) is Code.VERSION_NOT_OFFERED
    theirs = await other.birth("artifact", digest=digest)
    await take(other, digest)
    await retire(rows, mine)
    assert await refusal(retire(other, theirs)) is Code.HOLD_PRESENT


async def test_a_tenants_hold_keeps_the_platforms_artifact(rows: ProjectRows) -> None:
    row = rows.row("artifact") | {"tenant_id": None, "visibility": "platform"}
    await rows.write(Insert("artifact", row, machines_of("artifact")), acting=PLATFORM)
    holder = await take(rows, str(row["digest"]))
    assert await refusal(retire(rows, str(row["id"]), acting=PLATFORM)) is Code.HOLD_PRESENT
    await drop(rows, holder)
    await retire(rows, str(row["id"]), acting=PLATFORM)


async def test_takers_and_retirers_at_once_never_leave_a_retired_digest_under_a_hold(
    rows: ProjectRows, database: Database
) -> None:
    chance = random.Random(7)
    codes: set[Code] = set()
    for number in range(ROUNDS_MAX):
        if number >= ROUNDS and len(codes) > 1:
            break
        artifact_id = await rows.birth("artifact")
        digest = await digest_of(rows, artifact_id)

        async def taker(digest: str = digest) -> None:
            try:
                holder = await take(rows, digest)
            except Refusal as refused:
                codes.add(refused.code)
                return
            if chance.random() < 0.5:
                await drop(rows, holder)

        async def retirer(artifact_id: str = artifact_id) -> None:
            try:
                await retire(rows, artifact_id)
            except Refusal as refused:
                codes.add(refused.code)
            except StaleWrite:
                pass  # another one retired it

        workers = [taker() for _ in range(CLIENTS)] + [retirer() for _ in range(3)]
        chance.shuffle(workers)
        await asyncio.gather(*workers)
        assert await database.fetchval(PLATFORM, HELD_AND_RETIRED + " AND a.id = $1", artifact_id) == 0
    assert codes == {Code.VERSION_NOT_OFFERED, Code.HOLD_PRESENT}, "both sides were refused at times, for this alone"
