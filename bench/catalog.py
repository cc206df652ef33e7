"""What browsing and searching the catalog costs when there are a hundred times as many versions.

Two platforms run in parallel, one with few versions and one with many, and take turns, so that a slow phase of the
machine affects both. For each kind of request the ratio of the two p99 comes from two adjacent rounds, and the median
over the rounds is reported; latencies are pooled over all rounds. One connection reads one page after the other, so
that the time of a page is measured without queueing.

The rows are written in bulk, past the API, because a hundred thousand versions through it would take an hour; every
constraint and trigger of the database is at work meanwhile, so that there is nothing that the API could not have made.
A quarter of the apps is the tenant's own, a quarter another's, the rest the platform's. One in ten has drafts alone,
one in a hundred has a hundred versions more than the others. Most versions are deprecated, as after some years.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from enum import StrEnum

import asyncpg
import httpx

from bench import load
from bench.bench_platform import BenchPlatform, BenchTenant, running_platform
from bench.measure import BenchEffort, CatalogLine, CatalogResult, latency_of, median, program
from bench.report import CATALOG_RATIO_MAX, catalog_lines
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.catalog.trust_lifecycle import TRUST, TrustState
from mooring.core.kernel.lifecycle import AnyLifecycle
from mooring.storage.kernel.unit_of_work import BIRTH

CONNECTIONS = 2
PAGE = 20
CURSORS = 25
WALKED = 500
USUAL, MANY, MANY_EVERY = 9, 100, 100
CHUNK = 500
FIRST = 20  # requests of each round that are not counted: plans are made, and pages read from the disk
WORDS = ["alpha", "beta", "gamma"]  # one in three apps has each: a page of the few is as full as one of the many

TRANSITIONS = """
INSERT INTO transition
       (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
SELECT $3, subject.id, step.generation, coalesce(subject.tenant_id, 'platform'), step.source, step.trigger, step.target,
       now(), 'bench'
  FROM unnest($1::text[], $2::text[]) subject (id, tenant_id),
       unnest($4::int[], $5::text[], $6::text[], $7::text[]) step (generation, source, trigger, target)"""
APPS = """
INSERT INTO app (id, tenant_id, slug, display_name, category, description, icon, created_at)
SELECT 'app_' || lpad(n::text, 26, '0'), (ARRAY[$3::text, $4::text, NULL, NULL])[n % 4 + 1], 'app-' || n,
       'App number ' || n, 'category_' || n % 3,
       format('Serves %s requests for everybody who asks. It is unique%s, %s.',
              ($6::text[])[n % 3 + 1], n,
              CASE WHEN n <= $5::int / 2 THEN 'older' ELSE 'newer' END),
       '', now()
  FROM generate_series($1::int, $2::int) n
RETURNING id, tenant_id"""
ARTIFACTS = """
INSERT INTO artifact (id, tenant_id, visibility, kind, source_type, location, digest, algorithm, size_bytes, media_type,
                      promotion, promotion_generation, trust, trust_generation, created_at)
SELECT replace(a.id, 'app_', 'art_'), NULL, 'platform', 'oci', 'oci', 'oci://registry.example/team/' || a.slug,
       'sha256:' || encode(sha256(a.id::bytea), 'hex'), 'sha256', 1, 'application/vnd.oci.image.manifest.v1+json',
       'active', $2, 'verified', $3, now()
  FROM app a WHERE a.id = ANY ($1::text[]) RETURNING id"""
EVIDENCE = """
INSERT INTO artifact_evidence (id, tenant_id, artifact_id, kind, digest, observed_at, size_bytes)
SELECT replace(a.id, 'art_', 'evd_'), NULL, a.id, 'presence', a.digest, now(), a.size_bytes
  FROM artifact a WHERE a.id = ANY ($1::text[])"""
VERSIONS = """
INSERT INTO app_version (id, tenant_id, app_id, app_slug, version, version_order, manifest, manifest_digest, digests,
                         promotion, promotion_generation, created_at, staged_digest, canary_percentage, deprecated_at)
SELECT made.id, a.tenant_id, a.id, a.slug, made.number, made.number_order,
       jsonb_build_object('manifest_version', 1, 'app', a.slug, 'version', made.number, 'artifact_kind', 'oci',
                          'artifacts', jsonb_build_object('main', main.digest),
                          'runtime_profile', jsonb_build_object('image', 'main'),
                          'release_notes', repeat('What is new in this one. ', 8)),
       main.digest, ARRAY[main.digest], $5, $6, now(), CASE WHEN $5 <> 'draft' THEN main.digest END,
       CASE WHEN $5 = 'canary' THEN 10 END, CASE WHEN $5 = 'deprecated' THEN now() END
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) made (id, app_id, number, number_order)
  JOIN app a ON a.id = made.app_id,
       LATERAL (SELECT 'sha256:' || encode(sha256(a.id::bytea), 'hex')) main (digest)"""
SOURCE = {"name": "bench", "pattern": "oci://registry.example/*"}


async def measure_catalog(effort: BenchEffort) -> CatalogResult:
    """Start both platforms, measure, and stop them."""
    few, many = effort.versions
    async with AsyncExitStack() as stack:
        sides = []
        for count in (few, many):
            platform = await stack.enter_async_context(running_platform(CONNECTIONS))
            apps = await fill(platform, count)
            sides.append((platform, await asked(platform, apps)))
        lines = []
        for name in sides[0][1]:
            latencies: tuple[list[float], list[float]] = ([], [])
            ratios = []
            for _ in range(effort.rounds):
                rounds = [await _round(platform, kinds[name], effort.seconds / 2) for platform, kinds in sides]
                ratios.append(latency_of(rounds[1]).p99_ms / latency_of(rounds[0]).p99_ms)
                for measured, one in zip(latencies, rounds, strict=True):
                    measured += one
            small, large = (latency_of(each) for each in latencies)
            lines.append(CatalogLine(name, small, large, median(ratios)))
    return CatalogResult(few, many, lines)


async def asked(platform: BenchPlatform, apps: int) -> dict[str, list[str]]:
    """The paths of each kind of request, varied as by many callers."""
    tenant = platform.tenants[0]
    places = {"catalog": "/api/v1/apps/catalog", "project's": f"/api/v1/projects/{tenant.projects[0]}/catalog"}
    paths: dict[str, list[str]] = {}
    for name, place in places.items():
        first = f"{place}?limit={PAGE}"
        cursors = await _cursors(platform, tenant, place, apps)
        paths |= {
            f"{name}, the first page": [first],
            f"{name}, a page far behind": [f"{first}&cursor={cursor}" for cursor in cursors],
            f"{name}, one category": [f"{first}&category=category_{number}" for number in range(len(WORDS))],
            f"{name}, a rare word": [f"{first}&search=unique{each}" for each in range(1, apps, max(1, apps // 50))],
            f"{name}, a beginning that all have": [f"{first}&search={word}" for word in ("ser", "e")],
            f"{name}, two words": [f"{first}&search=requests%20{word}" for word in WORDS],
            f"{name}, a word in a category": [
                f"{first}&search={word}&category=category_{number}" for number, word in enumerate(WORDS)
            ],
            f"{name}, two words that never meet": [f"{first}&search=older%20newer"],
        }
    return paths


async def fill(platform: BenchPlatform, versions: int) -> int:
    """Write so many versions; returns the number of their apps."""
    apps = max(1, versions // (USUAL + MANY // MANY_EVERY))
    own, other = platform.tenants[0].id, platform.tenants[1].id
    async with httpx.AsyncClient(base_url=platform.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {platform.tenants[0].token}"
        (await client.post(f"/api/v1/tenants/{own}/artifact-sources", json=SOURCE)).raise_for_status()
    connection = await asyncpg.connect(platform.dsn)
    try:
        for begin in range(1, apps + 1, CHUNK):
            async with connection.transaction():
                rows = await connection.fetch(APPS, begin, min(apps, begin + CHUNK - 1), own, other, apps, WORDS)
                await _artifacts(connection, [row["id"] for row in rows])
                await _versions(connection, {row["id"]: row["tenant_id"] for row in rows})
        await connection.execute("VACUUM ANALYZE")  # as the database does by itself, some time later
    finally:
        await connection.close()
    return apps


async def _artifacts(connection: asyncpg.Connection, app_ids: list[str]) -> None:
    """One artifact for each app, the platform's, verified and active."""
    promoted, trusted = list(steps_to(PROMOTION, PromotionState.ACTIVE)), list(steps_to(TRUST, TrustState.VERIFIED))
    ids = [row["id"] for row in await connection.fetch(ARTIFACTS, app_ids, len(promoted) - 1, len(trusted) - 1)]
    for machine, steps in ((PROMOTION, promoted), (TRUST, trusted)):
        await connection.execute(TRANSITIONS, ids, [None] * len(ids), machine.name, *zip(*steps, strict=True))
    await connection.execute(EVIDENCE, ids)


async def _versions(connection: asyncpg.Connection, tenant_of_app: Mapping[str, str | None]) -> None:
    """The versions of these apps, all of one state at a time."""
    by_state: dict[PromotionState, list[tuple[str, str, str, str, str | None]]] = {}
    for app_id, tenant_id in tenant_of_app.items():
        number = int(app_id.removeprefix("app_"))
        count = USUAL + (MANY if number % MANY_EVERY == 0 else 0)
        for minor in range(1, count + 1):
            version = f"1.{minor}.0"
            row = (f"ver_{number:020}{minor:06}", app_id, version, read_version(version).order, tenant_id)
            by_state.setdefault(_state(number, count - minor), []).append(row)
    for state, rows in by_state.items():
        ids, app_ids, numbers, orders, tenants = (list(column) for column in zip(*rows, strict=True))
        steps = list(steps_to(PROMOTION, state))
        await connection.execute(TRANSITIONS, ids, tenants, PROMOTION.name, *zip(*steps, strict=True))
        await connection.execute(VERSIONS, ids, app_ids, numbers, orders, state.value, len(steps) - 1)


def _state(app: int, age: int) -> PromotionState:
    """The state of a version, by how many of its app are newer."""
    if app % 10 == 5:
        return PromotionState.DRAFT
    if age == 0 and app % 3 == 0:
        return PromotionState.CANARY
    return PromotionState.ACTIVE if age < 2 else PromotionState.DEPRECATED


def steps_to(machine: AnyLifecycle, state: StrEnum) -> Iterator[tuple[int, str, str, str]]:
    """The shortest path of a lifecycle to a state: generation, source, trigger and target of each step."""
    ways: dict[StrEnum, list[tuple[str, str, str]]] = {machine.initial: [("", BIRTH, machine.initial.value)]}
    todo = [machine.initial]
    for here in todo:
        for edge in machine.edges:
            if edge.source is here and edge.target not in ways:
                ways[edge.target] = [*ways[here], (here.value, edge.trigger.value, edge.target.value)]
                todo.append(edge.target)
    for generation, step in enumerate(ways[state]):
        yield (generation, *step)


async def _cursors(platform: BenchPlatform, tenant: BenchTenant, place: str, apps: int) -> list[str]:
    """Cursors all over the list, collected by one walk through it."""
    found: list[str] = []
    limit = min(WALKED, max(PAGE, apps // CURSORS))
    async with httpx.AsyncClient(base_url=platform.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {tenant.token}"
        cursor = ""
        while True:
            answer = await client.get(place, params={"limit": limit, "cursor": cursor})
            cursor = answer.raise_for_status().json().get("next_cursor")
            if cursor is None:
                break
            found.append(cursor)
    return found or [""]


async def _round(platform: BenchPlatform, paths: list[str], seconds: float) -> list[float]:
    token = platform.tenants[0].token
    lane = [{"method": "GET", "path": path, "token": token} for path in paths]
    plan = load.LoadPlan(platform.host, platform.port, seconds, [lane])
    measured = load.LoadSamples(**await program("bench.load", asdict(plan))).latencies_ms
    return measured[min(FIRST, len(measured) // 2) :]


def main(arguments: list[str] | None = None) -> int:
    """Measure the catalog alone; the exit code says whether the goal was reached."""
    parser = argparse.ArgumentParser(prog="python -m bench.catalog", description=__doc__)
    parser.add_argument("--versions", type=int, nargs=2, default=(1_000, 100_000), metavar=("FEW", "MANY"))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each two rounds of each kind of request")
    options = parser.parse_args(arguments)
    effort = BenchEffort(seconds=options.seconds, rounds=3, followers=0, changes=0, versions=tuple(options.versions))
    result = asyncio.run(measure_catalog(effort))
    sys.stdout.write("\n".join(catalog_lines(result)) + "\n")
    return 0 if all(line.ratio <= CATALOG_RATIO_MAX for line in result.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
