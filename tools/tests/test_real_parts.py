"""Which packages are needed by which tests."""

from collections.abc import Sequence

import pytest

from tests.support.rows import every_row
from tools.debian_packages import PackagesMissing
from tools.real_parts import PARTS, ROOT, RealPart, chosen, prepare

SOME = (RealPart("one", "server/tests/gateways/registry", ("a", "b")), RealPart("other", "tools/tests", ("c",)))


@every_row(
    ("arguments", "names"),
    [
        ((), ["one", "other"]),
        (("-k", "word", "-x"), ["one", "other"]),
        (("server/tests",), ["one"]),
        (("server/tests/gateways/registry/conftest.py",), ["one"]),
        (("server/tests/core",), []),
        (("tools/tests/test_real_parts.py::test_x", "-q"), ["other"]),
        (("server", "tools"), ["one", "other"]),
    ],
)
def test_a_run_needs_the_parts_that_its_tests_drive(arguments: Sequence[str], names: list[str]) -> None:
    assert [part.name for part in chosen(arguments, SOME)] == names


def test_the_packages_are_had_before_the_tests_run() -> None:
    wanted: list[str] = []

    prepare((), wanted.extend)

    assert sorted(wanted) == sorted({package for part in PARTS for package in part.packages})


def test_a_part_that_cannot_be_installed_is_reported_and_stops_no_test(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def nothing(packages: Sequence[str]) -> None:
        raise PackagesMissing(f"ask root for {' '.join(packages)}")

    prepare((), nothing)

    assert "ask root for docker-registry" in capsys.readouterr().err


def test_every_part_has_tests() -> None:
    assert all((ROOT / part.tests).is_dir() for part in PARTS)
