"""Checks that were written before they had a lifecycle: the migration gives them the steps that they have now."""

import pytest

from mooring.storage.kernel import migrate as migrating
from mooring.storage.kernel.migrate import migrate, migrations
from server.tests.storage.kernel.test_migrations import empty_database, execute, fetch

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

BEFORE = 7
DIGEST = f"sha256:{'a' * 64}"
TENANT = "INSERT INTO tenant (id, slug, display_name, created_at) VALUES ('ten_1', 'acme', 'Acme', now())"
ARTIFACT = f"""
WITH born AS (
  INSERT INTO transition
    (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
  VALUES ('promotion', 'art_1', 0, 'ten_1', '', 'birth', 'draft', now(), 'c'),
         ('trust', 'art_1', 0, 'ten_1', '', 'birth', 'unverified', now(), 'c'))
INSERT INTO artifact (id, tenant_id, visibility, kind, source_type, location, digest, algorithm, size_bytes, media_type,
                      promotion, promotion_generation, trust, trust_generation, created_at)
VALUES ('art_1', 'ten_1', 'tenant', 'oci', 'oci', 'oci://registry.example/a', '{DIGEST}', 'sha256', 1, 'a/b',
        'draft', 0, 'unverified', 0, now())"""
STEPS = "SELECT target FROM transition WHERE machine = 'artifact_check' AND subject_id = $1 ORDER BY generation"
CHECKS = f"""
INSERT INTO artifact_check (id, tenant_id, artifact_id, name, subject, passed, detail, created_at)
VALUES ('chk_1', 'ten_1', 'art_1', 'smoke', '{DIGEST}', true, 'all is well', now()),
       ('chk_2', 'ten_1', 'art_1', 'smoke', '{DIGEST}', false, 'a layer is not there', now())"""


async def test_checks_of_before_keep_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = migrations()
    async with empty_database() as url:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: ours[:BEFORE])
            await migrate(url)
        await execute(url, TENANT, ARTIFACT, CHECKS)
        assert (await migrate(url))[0] == "0008_artifact_checks.sql"
        rows = await fetch(url, "SELECT id, status, generation, passed, detail, failure_code FROM artifact_check")
        steps = await fetch(url, STEPS, "chk_2")
    assert sorted(tuple(row) for row in rows) == [
        ("chk_1", "succeeded", 2, True, "all is well", None),
        ("chk_2", "failed", 2, False, "a layer is not there", "smoke_failed"),
    ]
    assert [row["target"] for row in steps] == ["accepted", "running", "failed"]


async def test_a_database_without_checks_has_the_lifecycles_edges_once() -> None:
    async with empty_database() as url:
        await migrate(url)
        rows = await fetch(url, "SELECT trigger FROM lifecycle_edge WHERE machine = 'artifact_check'")
    assert sorted(row["trigger"] for row in rows) == [
        "birth",
        "cancel",
        "cancel",
        "fail",
        "lose_lease",
        "start",
        "succeed",
    ]
