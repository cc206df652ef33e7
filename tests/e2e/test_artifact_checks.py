"""Checks of artifacts by the command: a large file is followed from its registration to its staging."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.registry_platform import WHY, RegistryPlatform, running_registry_platform

pytestmark = [pytest.mark.real_part("registry"), pytest.mark.real_part("postgresql")]

SIZE_BYTES = 128 * 1024**2
PIECE = bytes(1024**2)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the platform reads files, with a large one that takes no room."""
    directory = tmp_path_factory.mktemp("files")
    with (directory / "weights").open("wb") as file:
        file.truncate(SIZE_BYTES)
    return directory


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Iterator[RegistryPlatform]:
    with running_registry_platform(tmp_path_factory.mktemp("checks"), MOORING_SOURCE_FILE_DIRECTORY=str(files)) as made:
        made.did("artifact-sources", "create", "--name", "files", "--pattern", "file:*", context="platform")
        made.settle("harbour")
        yield made


def register(platform: RegistryPlatform, digest: str, *further: str) -> tuple[str, ...]:
    return ("artifacts", "register", "--kind", "blob", "--location", "file:weights", "--digest", digest, *further)


def test_a_large_file_is_followed_from_its_registration_to_its_staging(platform: RegistryPlatform) -> None:
    hashed = hashlib.sha256()
    for _ in range(SIZE_BYTES // len(PIECE)):
        hashed.update(PIECE)
    digest = f"sha256:{hashed.hexdigest()}"
    ran = platform.run(*register(platform, digest, "--follow"))
    assert (ran.data["trust"], ran.data["size_bytes"]) == ("verified", SIZE_BYTES)
    assert "content check succeeded  100 %  128.0 MiB of 128.0 MiB" in ran.err
    staged = platform.run("artifacts", "promote", digest, "--move", "stage", "--reason", WHY, "--follow")
    assert staged.data["promotion"] == "staged", staged.err
    listed = platform.did("artifacts", "checks", "list", digest)
    assert [(each["name"], each["status"]) for each in listed] == [("smoke", "succeeded"), ("content", "succeeded")]
    newest = platform.did("artifacts", "checks", "get", digest, listed[0]["id"])
    assert newest["bytes_done"] == SIZE_BYTES
    ended = ("artifacts", "checks", "cancel", digest, listed[0]["id"])
    assert platform.refused(*ended) == "illegal_transition"


def test_a_wrong_digest_ends_the_command_with_the_checks_own_error(platform: RegistryPlatform) -> None:
    wrong = f"sha256:{'0' * 64}"
    assert platform.refused(*register(platform, wrong, "--follow")) == "digest_mismatch"
    assert platform.did("artifacts", "get", wrong)["trust"] == "rejected"
