"""Keys that were retired before retirement meant something: the migration deletes their private halves."""

import pytest

from mooring.storage.kernel import migrate as migrating
from mooring.storage.kernel.migrate import migrate, migrations
from server.tests.storage.kernel.test_migrations import empty_database, execute, fetch

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

MIGRATION = "0023_key_retirement.sql"
SECRETS = """
INSERT INTO secret (id, purpose, master_key_id, wrapped_key, ciphertext, created_at)
SELECT 'sec_' || n, 'task_signing', 'm', 'w', 'c', now() FROM generate_series(1, 3) n"""
KEYS = """
INSERT INTO platform_key (id, purpose, algorithm, public_key, secret_id, signed_by, signature, created_at, retired_at)
VALUES ('key_1', 'task_signing', 'ed25519', 'p', 'sec_1', NULL, NULL, now(), now()),
       ('key_2', 'task_signing', 'ed25519', 'p', 'sec_2', 'key_1', 's', now(), now()),
       ('key_3', 'task_signing', 'ed25519', 'p', 'sec_3', 'key_2', 's', now(), NULL)"""


async def test_only_the_current_key_keeps_its_private_half(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = migrations()
    before = [each.name for each in ours].index(MIGRATION)
    async with empty_database() as url:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: ours[:before])
            await migrate(url)
        await execute(url, SECRETS, KEYS)
        assert (await migrate(url))[0] == MIGRATION
        keys = await fetch(url, "SELECT id, secret_id FROM platform_key ORDER BY id")
        left = await fetch(url, "SELECT id FROM secret WHERE purpose = 'task_signing'")
    assert [tuple(row) for row in keys] == [("key_1", None), ("key_2", None), ("key_3", "sec_3")]
    assert [row["id"] for row in left] == ["sec_3"]
