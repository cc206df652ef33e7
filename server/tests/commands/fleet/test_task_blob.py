"""Small blobs inside of tasks: read by the platform, hashed, and no larger than a task can carry."""

import hashlib
from pathlib import Path

import pytest

from mooring.commands.fleet.task_blob import inlined_roles
from mooring.core.catalog.artifact import ArtifactKind
from mooring.core.catalog.artifact_location import read_location
from mooring.core.kernel.address import Reach
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.artifact_reader import ArtifactReader
from mooring.settings import Settings

pytestmark = pytest.mark.anyio
PROGRAM = b"print('hello')\n" * 100


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_only_files_that_name_an_artifact_are_filled() -> None:
    files = [
        {"path": "/a", "content": "x"},
        {"path": "/b", "artifact": "program"},
        {"path": "/c", "artifact": "program"},
    ]
    assert inlined_roles("files.write", {"files": files}) == ("program",)
    assert inlined_roles("container.launch", {"files": files}) == ()
    for odd in ({}, {"files": "x"}, {"files": [3, {"artifact": 4}]}):
        assert inlined_roles("files.write", odd) == ()


async def test_the_bytes_of_a_small_blob_are_the_ones_of_its_digest(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_bytes(PROGRAM)
    dialer = EgressClient(Reach())
    reader = ArtifactReader(Settings(source_file_directory=str(tmp_path)), dialer, dialer)
    place = read_location("file:program.py")
    try:
        wanted = (ArtifactKind.BLOB, place, digest_of(PROGRAM), None)
        assert await reader.content(*wanted, len(PROGRAM)) == PROGRAM
        with pytest.raises(Refusal) as refused:
            await reader.content(*wanted, len(PROGRAM) - 1)
        assert refused.value.code is Code.SOURCE_TOO_LARGE
        with pytest.raises(Refusal) as refused:
            await reader.content(ArtifactKind.BLOB, place, digest_of(b"another"), None, len(PROGRAM))
        assert refused.value.code is Code.DIGEST_MISMATCH
    finally:
        await dialer.close()
