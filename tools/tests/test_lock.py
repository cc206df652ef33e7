"""The lock: complete, hashed, and silent about where packages come from."""

import pytest

from tests.support.rows import every_row
from tools.lock import complaints, pins_of, without_host

ENTRY = "httpx==0.28.1 ; sys_platform == 'linux' \\\n    --hash=sha256:00\n"


@every_row(
    "line",
    [
        "--index-url https://registry.example/simple",
        "httpx @ https://registry.example/httpx.whl",
        "-e ./server",
        "--find-links /srv",
    ],
)
def test_a_line_that_names_a_place_is_refused(line: str) -> None:
    with pytest.raises(SystemExit, match="names a place"):
        without_host(f"{ENTRY}{line}\n")


def test_a_dependency_that_is_not_locked_is_named() -> None:
    assert complaints(ENTRY, {"httpx", "asyncpg"}) == ["asyncpg is not in the lock; run `make lock`"]


def test_a_package_without_a_hash_is_named() -> None:
    assert complaints("httpx==0.28.1\n", {"httpx"}) == ["httpx has no hash"]


def test_a_whole_lock_passes() -> None:
    assert complaints(ENTRY, {"httpx"}) == []


def test_the_pins_of_a_lock_are_its_packages_and_versions() -> None:
    assert pins_of("# Written by `make lock`\n" + ENTRY) == ["httpx==0.28.1"]
