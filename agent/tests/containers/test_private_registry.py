"""Pulling from a registry that takes passwords only: Debian's docker-registry with htpasswd."""

import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from mooring_agent.artifacts.http_sources import RegistryRepository
from mooring_agent.hosts.contract import HostFailure
from server.tests.support.registry_process import RunningRegistry, running_registry

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("registry")]
HTPASSWD = "pusher:$2y$05$abcdefghijklmnopqrstuu2sM.EEHj4jPcCa5rwqJGg1PNBllkZXy\n"
BASIC = b"Basic " + base64.b64encode(b"pusher:a password")
BLOB = b"a layer"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunningRegistry]:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with running_registry(tmp_path, {"htpasswd": {"realm": "any", "path": str(tmp_path / "htpasswd")}}) as running:
        yield running


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        yield client


async def test_a_pull_secret_that_is_a_whole_header_is_sent_as_it_is(
    registry: RunningRegistry, http: httpx.AsyncClient
) -> None:
    digest = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
    headers = {"Authorization": BASIC.decode()}
    begun = await http.post(f"{registry.url}/v2/team/app/blobs/uploads/", headers=headers)
    put = await http.put(f"{begun.headers['location']}&digest={digest}", content=BLOB, headers=headers)
    assert put.status_code == 201, put.text

    async def pulled(secret: bytes | None) -> bytes:
        source = RegistryRepository(http, registry.url, "team/app", secret, private=True).blob(digest)
        return b"".join([chunk async for chunk in source.read(0)])

    assert await pulled(BASIC) == BLOB
    for wrong in (None, BASIC.removeprefix(b"Basic "), BASIC[:-4]):
        with pytest.raises(HostFailure) as refused:
            await pulled(wrong)
        assert refused.value.code == "permission_denied"
        assert "a password" not in str(refused.value)
