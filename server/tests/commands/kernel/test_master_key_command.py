"""A platform whose master keys a command prints: it starts, rotates, and never replaces a lost key."""

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.commands.kernel.master_key import rewrap_secrets
from mooring.gateways.master_key_source import key_source
from mooring.gateways.secrets import MasterKey, MasterKeyRefused, new_key
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import running_platform

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def test_a_platform_with_keys_from_a_command_rotates_and_never_replaces_a_lost_key(
    settings: Settings, tmp_path: Path
) -> None:
    store, old, new = tmp_path / "store", new_key(), new_key()

    def put(*keys: MasterKey) -> None:
        store.write_text("".join(f"{each.id} {base64.b64encode(each.key).decode()}\n" for each in keys))

    put(old)
    settings = replace(settings, master_key_file="", master_key_command=f"cat {store}")
    used = "SELECT array_agg(DISTINCT master_key_id) FROM secret"
    async with running_platform(settings) as running:
        assert await running.platform.services.database.fetchval(PLATFORM, used) == [old.id]
    put(new, old)
    assert await rewrap_secrets(settings.database_url, key_source(tmp_path, settings.master_key_command)) >= 3
    put(new)
    async with running_platform(settings) as running:
        assert await running.platform.services.database.fetchval(PLATFORM, used) == [new.id]
    put(old)
    with pytest.raises(MasterKeyRefused, match=f"does not give the key {new.id}"):
        async with running_platform(settings):
            pass
