"""Rows for the bench of instances: an app that can be launched, and as many instances as are wanted.

Filling a catalog is not measured, so these rows are written in bulk, without the API. The first of them are written
with every constraint and trigger of the database active, which proves that they are valid; the many that follow are
written the same way without them, and what triggers would have added is added here. Half of the instances have
stopped, half run and are held by an adapter with a valid lease, as on a platform of some age.
"""

import json
from dataclasses import dataclass, replace
from enum import StrEnum

import asyncpg
import httpx

from bench import fleet
from bench.bench_platform import BenchPlatform, BenchTenant
from bench.catalog import steps_to
from mooring.core.catalog.manifest import manifest_digest
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState
from mooring.core.catalog.semver import read_version
from mooring.core.catalog.trust_lifecycle import TRUST, TrustState
from mooring.core.kernel.lifecycle import AnyLifecycle
from mooring.core.runtime.instance import INSTANCE, InstanceState
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.core.runtime.operation import OPERATION, OperationState

SLUG = "bench-app"
REASON = "for the bench of instances"
ACTIONS = ["runtime.claim", "runtime.report", "task.create", "task.read"]
DIGEST = f"sha256:{'b' * 64}"
CHUNK = 2_000  # of which half run: what one holder can hold
SHARED = 50
"""Instances that share an allocation."""
MANIFEST = {
    "manifest_version": 1,
    "app": SLUG,
    "version": "1.0.0",
    "artifact_kind": "controller",
    "artifacts": {"main": DIGEST},
    "components": [{"key": "worker", "min_count": 0, "max_count": 1_000}],
    "compatibility": {"multi_node": True},
    "required_actions": ACTIONS[:2],
    "usage_units": [{"unit": "tokens", "title": "Tokens"}],
    "lifecycle": {
        "upgrade": {"strategy": "none"},
        "rollback": {"supported": False},
        "delete": {"data": "removed", "graceful_seconds": 0},
    },
    "runbook": {"summary": "It is measured.", "entries": [{"symptom": "It is slow", "steps": "Look at it."}]},
}

TRANSITIONS = """
INSERT INTO transition
       (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
SELECT $3, subject, step.generation, $2, step.source, step.trigger, step.target, now(), 'bench'
  FROM unnest($1::text[]) subject,
       unnest($4::int[], $5::text[], $6::text[], $7::text[]) step (generation, source, trigger, target)"""
SOURCE = """
INSERT INTO artifact_source (id, tenant_id, name, pattern, created_at)
VALUES ($1, NULL, 'bench', 'oci://registry.example/*', now())"""
APP = """
INSERT INTO app (id, tenant_id, slug, display_name, category, description, icon, created_at)
VALUES ($1, NULL, $2, 'Bench', 'bench', '', '', now())"""
ARTIFACT = """
INSERT INTO artifact (id, tenant_id, visibility, kind, source_type, location, digest, algorithm, size_bytes, media_type,
                      promotion, promotion_generation, trust, trust_generation, created_at)
VALUES ($1, NULL, 'platform', 'oci', 'oci', 'oci://registry.example/team/bench', $2, 'sha256', 1,
        'application/vnd.oci.image.manifest.v1+json', 'active', $3, 'verified', $4, now())"""
EVIDENCE = """
INSERT INTO artifact_evidence (id, tenant_id, artifact_id, kind, digest, observed_at, size_bytes)
VALUES ($1, NULL, $2, 'presence', $3, now(), 1)"""
VERSION = """
INSERT INTO app_version (id, tenant_id, app_id, app_slug, version, version_order, manifest, manifest_digest, digests,
                         promotion, promotion_generation, created_at, staged_digest)
VALUES ($1, NULL, $2, $3, '1.0.0', $4, $5, $6, $7, 'active', $8, now(), $6)"""
INSTANCES = """
INSERT INTO instance (id, tenant_id, project_id, status, generation, created_at, name, app_id, app_slug, app_category,
                      version_id, version, pin, config, topology, placement, operating_mode, control_plane_scope,
                      runtime_backend, service_account_id, requested_by, correlation_id, trace_id, health)
SELECT made.id, $2, $3, $4, $5, now(), made.name, $6, $7, 'bench', $8, '1.0.0', $9::jsonb, '{}', '{"worker": 1}', '{}',
       'tenant_dedicated', 'project', 'container', $10, 'system', 'bench', repeat('0', 32), 'healthy'
  FROM unnest($1::text[], $11::text[]) made (id, name)"""
MEMBERS = """
INSERT INTO member (id, tenant_id, project_id, status, generation, created_at, instance_id, component_key, ordinal,
                    name, version_id, version, correlation_id, trace_id, allocation_id, shares, health)
SELECT replace(made, 'ins_', 'mem_'), $2, $3, $4, $5, now(), made, 'worker', 0, 'worker-0', $6, '1.0.0', 'bench',
       repeat('0', 32), stands, true, 'healthy'
  FROM unnest($1::text[], $7::text[]) made_in (made, stands)"""
CLOSINGS = """
INSERT INTO closing_record (id, tenant_id, project_id, member_id, kind, created_at)
SELECT replace(made, 'ins_', 'clo_'), $2, $3, replace(made, 'ins_', 'mem_'), 'nothing_started', now()
  FROM unnest($1::text[]) made"""
OPERATIONS = """
INSERT INTO operation (id, tenant_id, project_id, status, generation, created_at, instance_id, kind, request,
                       member_ids, deadline_at, requested_by, correlation_id, trace_id, dispatched_at, finished_at)
SELECT replace(made, 'ins_', 'op_'), $2, $3, 'succeeded', $4, now(), made, 'deploy',
       jsonb_build_object('version_id', $5::text, 'shape', 'baremetal'), ARRAY[replace(made, 'ins_', 'mem_')], now(),
       'system', 'bench', repeat('0', 32), now(), now()
  FROM unnest($1::text[]) made"""
CONCERNED = """
INSERT INTO operation_member (operation_id, member_id, tenant_id, project_id, open)
SELECT replace(made, 'ins_', 'op_'), replace(made, 'ins_', 'mem_'), $2, $3, false FROM unnest($1::text[]) made
ON CONFLICT DO NOTHING"""
CLAIMS = """
INSERT INTO instance_claim (instance_id, tenant_id, project_id, service_account_id, wanted, wanted_count)
SELECT made, $2, $3, $4, false, 0 FROM unnest($1::text[]) made ON CONFLICT DO NOTHING"""
WATCHED = """
UPDATE instance_claim SET holder = $2, fence = 1, claimed_at = now(), expires_at = now() + interval '1 hour',
       wanted = true, wanted_count = 1
 WHERE instance_id = ANY ($1::text[])"""
ENDED = "UPDATE instance_claim SET wanted = false, fence = 1 WHERE instance_id = ANY ($1::text[])"
HOLDS = """
INSERT INTO artifact_hold (id, tenant_id, project_id, digest, holder_noun, holder_id, version_id, created_at)
SELECT replace(made, 'ins_', 'hld_'), $2, $3, $4, 'instance', made, $5, now() FROM unnest($1::text[]) made"""
HEARD = "UPDATE node SET last_seen_at = now() + interval '1 hour'"
"""Nobody plays these nodes: they are not to be called silent while something is measured."""
UNCHECKED = "SET LOCAL session_replication_role = replica"


@dataclass(frozen=True)
class Launchable:
    """An app that a project may launch, and the account that operates it there."""

    app_id: str
    version_id: str
    service_account_id: str
    allocations: tuple[str, ...] = ()  # of the members that are written


async def make_launchable(platform: BenchPlatform, tenant: BenchTenant, public_key: str) -> Launchable:
    """Write app, version and artifact by SQL; create the entitlement, the account and its key by the API."""
    app_id, artifact_id, version_id = (f"{prefix}_{0:026}" for prefix in ("app", "art", "ver"))
    connection = await asyncpg.connect(platform.dsn)
    try:
        async with connection.transaction():
            await connection.execute(SOURCE, f"src_{0:026}")
            await connection.execute(APP, app_id, SLUG)
            promoted = await _way(connection, (artifact_id,), PROMOTION, PromotionState.ACTIVE)
            trusted = await _way(connection, (artifact_id,), TRUST, TrustState.VERIFIED)
            await connection.execute(ARTIFACT, artifact_id, DIGEST, promoted, trusted)
            await connection.execute(EVIDENCE, f"evd_{0:026}", artifact_id, DIGEST)
            active = await _way(connection, (version_id,), PROMOTION, PromotionState.ACTIVE)
            order = read_version("1.0.0").order
            said = (json.dumps(MANIFEST), manifest_digest(MANIFEST), [DIGEST])
            await connection.execute(VERSION, version_id, app_id, SLUG, order, *said, active)
    finally:
        await connection.close()
    return Launchable(app_id, version_id, await _entitle(platform, tenant, app_id, public_key))


async def fill(platform: BenchPlatform, tenant: BenchTenant, app: Launchable, count: int) -> None:
    """Write so many instances with one member each: every second runs, the others have stopped."""
    joined = await fleet.join(platform.dsn, 1 + count // SHARED, (tenant.id, tenant.projects[0]))
    app = replace(app, allocations=tuple(each.allocation_id for each in joined.members))
    connection = await asyncpg.connect(platform.dsn)
    try:
        for begin in range(0, count, CHUNK):
            numbers = range(begin, min(count, begin + CHUNK))
            async with connection.transaction():
                if begin:
                    await connection.execute(UNCHECKED)
                for state in (InstanceState.RUNNING, InstanceState.STOPPED):
                    parity = 0 if state is InstanceState.RUNNING else 1
                    ids = [f"ins_{number:026}" for number in numbers if number % 2 == parity]
                    await _instances(connection, (tenant.id, tenant.projects[0]), app, ids, state)
        await connection.execute(HEARD)
        await connection.execute("VACUUM ANALYZE")  # as the database does by itself, some time later
    finally:
        await connection.close()


async def _instances(
    connection: "asyncpg.Connection[asyncpg.Record]",
    home: tuple[str, str],
    app: Launchable,
    ids: list[str],
    state: InstanceState,
) -> None:
    if not ids:
        return
    over = state is InstanceState.STOPPED
    # A stopped instance takes no member: those rows come as asked for, and end afterwards.
    begins = InstanceState.CREATED if over else InstanceState.RUNNING
    pin = {"version_id": app.version_id, "version": "1.0.0", "manifest_digest": DIGEST, "artifacts": {"main": DIGEST}}
    names = [f"bench-{each[-20:]}" for each in ids]
    generation = await _way(connection, ids, INSTANCE, begins, home[0])
    await connection.execute(
        INSTANCES,
        ids,
        *home,
        begins.value,
        generation,
        app.app_id,
        SLUG,
        app.version_id,
        json.dumps(pin),
        app.service_account_id,
        names,
    )
    members = [each.replace("ins_", "mem_") for each in ids]
    stands = MemberState.REQUESTED if over else MemberState.READY
    born = await _way(connection, members, MEMBER, stands, home[0])
    places = [None if over else app.allocations[int(each[4:]) // SHARED] for each in ids]
    await connection.execute(MEMBERS, ids, *home, stands.value, born, app.version_id, places)
    operations = [each.replace("ins_", "op_") for each in ids]
    done = await _way(connection, operations, OPERATION, OperationState.SUCCEEDED, home[0])
    await connection.execute(OPERATIONS, ids, *home, done, app.version_id)
    # What triggers add at the commit is there before it is added here.
    await connection.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
    await connection.execute(CONCERNED, ids, *home)
    await connection.execute(CLAIMS, ids, *home, app.service_account_id)
    if not over:
        await connection.execute(HOLDS, ids, *home, DIGEST, app.version_id)
        await connection.execute(WATCHED, ids, f"bench-{ids[0][-8:]}")
        return
    await connection.execute(CLOSINGS, ids, *home)
    await _end(
        connection,
        members,
        home[0],
        noun="member",
        lifecycle=MEMBER,
        source=MemberState.REQUESTED,
        target=MemberState.REMOVED,
    )
    await _end(
        connection, ids, home[0], noun="instance", lifecycle=INSTANCE, source=begins, target=InstanceState.STOPPED
    )
    await connection.execute(ENDED, ids)


async def _end(
    connection: "asyncpg.Connection[asyncpg.Record]",
    ids: list[str],
    tenant_id: str,
    *,
    noun: str,
    lifecycle: AnyLifecycle,
    source: StrEnum,
    target: StrEnum,
) -> None:
    """Move rows from one state to another, with every transition on the way."""
    before, whole = list(steps_to(lifecycle, source)), list(steps_to(lifecycle, target))
    common = next((n for n, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other), len(before))
    if common != len(before):
        raise ValueError(f"{lifecycle.name}: {target} cannot be reached from {source}")
    extra = "removed_at = now()" if noun == "member" else "stopped_at = now(), teardown_proof = 'receipts'"
    for step in whole[len(before) :]:
        generation, _, _, status = step
        await connection.execute(TRANSITIONS, ids, tenant_id, lifecycle.name, *([each] for each in step))
        await connection.execute(
            f"UPDATE {noun} SET status = $2, generation = $3, {extra} WHERE id = ANY ($1::text[])",
            ids,
            status,
            generation,
        )


async def _way(
    connection: "asyncpg.Connection[asyncpg.Record]",
    ids: "list[str] | tuple[str, ...]",
    machine: AnyLifecycle,
    state: StrEnum,
    tenant_id: str = "platform",
) -> int:
    """Write the transitions that lead to a state; returns the generation."""
    steps = list(steps_to(machine, state))
    await connection.execute(TRANSITIONS, list(ids), tenant_id, machine.name, *zip(*steps, strict=True))
    return len(steps) - 1


async def _entitle(platform: BenchPlatform, tenant: BenchTenant, app_id: str, public_key: str) -> str:
    """Entitle the project to the app, and add the key to its operator account."""
    project = f"/api/v1/projects/{tenant.projects[0]}"
    async with httpx.AsyncClient(base_url=platform.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {tenant.token}"
        body = {"app_id": app_id, "reason": REASON, "agreed_actions": ACTIONS}
        (await client.post(f"{project}/entitlements", json=body)).raise_for_status()
        accounts = (await client.get(f"{project}/service-accounts")).raise_for_status().json()["items"]
        account_id = str(next(each["id"] for each in accounts if each["name"] == f"app-{SLUG}"))
        path = f"{project}/service-accounts/{account_id}/keys"
        (await client.post(path, json={"public_key": public_key})).raise_for_status()
    return account_id
