"""Ten thousand promotions, retirements, holds and drops by sixteen clients at once; ten times as many in `make soak`.

No retired digest is ever under a hold, and no version is ever further than its artifacts: not at the end, not in any
snapshot that an observer takes meanwhile, and not after any entry of the log.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import asyncpg
import pytest

from mooring.gateways.telemetry.instruments import Telemetry
from mooring.settings import Settings
from mooring.wiring import platform
from server.tests.processes.conftest import execute
from server.tests.support.catalog_storm import SLUG, Key, Storm, StormTargets
from server.tests.support.http_wire import WireClient
from server.tests.support.postgres import SOAK
from server.tests.support.server_process import ServerGroup, make_project, make_tenant, sign_in_first_admin
from server.tests.support.storm_log import NOTED, moved, replayed, seen
from tools.soak import seed

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

ATTEMPTS, CLIENTS, SEED = 100_000 if SOAK else 10_000, 16, 20 + seed()
SNAPSHOTS_MIN, DIFFERENT_MIN = 200, 50
SHOWN_MAX = 5
MOVES = ("stage", "canary", "activate", "rollback", "deprecate", "retire", "withdraw")
SUCCESSES = {
    *((noun, move, "done") for noun in ("artifact", "version") for move in MOVES),
    ("hold", "take", "done"),
    ("hold", "take through a version", "done"),
    ("hold", "drop", "done"),
}
REFUSED = {
    "artifact": {"illegal_transition", "version_ahead_of_artifact", "hold_present", "grace_period"},
    "version": {"illegal_transition", "version_ahead_of_artifact", "hold_present", "grace_period"},
    "hold": {"version_not_offered", "name_taken"},
}
"""Every refusal that occurs; apart from them only the refusals of simultaneous requests do."""
LOSES = {
    ("version", "canary", "conflict"),  # gives a canary another share while it is moved
    ("artifact", "stage", "check_running"),  # somebody else had its check begun
    ("artifact", "stage", "check_cancelled"),  # it was withdrawn meanwhile
}
UNCHANGED = {("version", "canary", "share"), ("hold", "drop", "nothing")}


@pytest.fixture
async def targets(settings: Settings, tmp_path: Path) -> AsyncIterator[StormTargets]:
    """Two API processes, and two platforms of this process, each with pools of its own, on one database."""
    files = tmp_path / "files"
    files.mkdir()
    environment = {
        "MOORING_DATABASE_URL": settings.database_url,
        "MOORING_MASTER_KEY_FILE": settings.master_key_file,
        "MOORING_SOURCE_FILE_DIRECTORY": str(files),
        "MOORING_LOG_LEVEL": "error",
    }
    fleet = ServerGroup(tmp_path, environment)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.close)
        patient = await fleet.start("api")
        hasty = await fleet.start("api", MOORING_PROMOTION_GRACE_DAYS="0")
        admin_token = await sign_in_first_admin(patient)
        tenant = await make_tenant(patient.url, admin_token, "acme")
        project_id = await make_project(patient.url, tenant, "train")
        async with WireClient(patient.url, admin_token) as admin:
            await admin.post("/api/v1/platform/artifact-sources", {"name": "files", "pattern": "file:*"})
        async with WireClient(patient.url, tenant.token) as owner:
            app = await owner.post(f"{tenant.path}/apps", {"slug": SLUG, "display_name": "Stormy", "category": "tool"})
        own = replace(settings, source_file_directory=str(files), database_connect_timeout_seconds=60.0)
        pools = [
            (await stack.enter_async_context(platform(own, own.database_url, Telemetry()))).services for _ in range(2)
        ]
        urls = (patient.url, hasty.url)
        yield StormTargets(urls, tenant, project_id, admin_token, app["id"], files, pools)


@dataclass
class StormObservation:
    """What an observer saw while the storm went on."""

    looks: int = 0
    different: set[tuple[int, int, int]] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


async def watch(storm: Storm, connection: asyncpg.Connection, watched: StormObservation) -> None:
    """Look whenever something has happened, until the storm is over."""
    while not storm.over:
        await storm.advanced.wait()
        storm.advanced.clear()
        catalog = await seen(connection)
        watched.looks += 1
        watched.different.add((len(catalog.artifacts), len(catalog.versions), len(catalog.holds)))
        watched.wrong += catalog.faults()


async def test_no_storm_leaves_a_retired_digest_under_a_hold_or_a_version_ahead_of_its_artifact(
    targets: StormTargets, database_url: str
) -> None:
    await execute(database_url, NOTED)
    storm, watched = Storm(targets, SEED), StormObservation()
    await storm.begin()
    observer = await asyncpg.connect(database_url)
    try:
        await asyncio.gather(storm.run(CLIENTS, ATTEMPTS // CLIENTS), watch(storm, observer, watched))
        assert watched.wrong[:SHOWN_MAX] == [], f"{len(watched.wrong)} in {watched.looks} snapshots"
        catalog, faults = await replayed(observer, storm.through)
        assert faults[:SHOWN_MAX] == [], f"{len(faults)} in the log"
        assert catalog == await seen(observer), "the log does not lead to what there is"
        moves = {key: count for key, count in storm.tally.items() if key[0] != "hold" and key[2] == "done"}
        assert moves == await moved(observer), "a request reported a move that is not in the log"
    finally:
        await observer.close()
    assert watched.looks >= SNAPSHOTS_MIN
    assert len(watched.different) >= DIFFERENT_MIN
    assert_everything_occurred(storm.tally)


def assert_everything_occurred(tally: Counter[Key]) -> None:
    """Every kind of success and of refusal, and nothing that is neither."""
    summary = "\n".join(f"{count:6} {' '.join(key)}" for key, count in sorted(tally.items()))
    print(summary)
    assert tally.total() == ATTEMPTS
    assert SUCCESSES - set(tally) == set(), summary
    for noun, codes in REFUSED.items():
        refused = {end for what, how, end in set(tally) - SUCCESSES - UNCHANGED - LOSES if what == noun}
        assert refused == codes, summary
