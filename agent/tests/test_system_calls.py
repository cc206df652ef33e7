"""The table of system calls has the kernel's own numbers."""

import platform
import re
from pathlib import Path

import pytest

from mooring_agent.sandbox_init import confinement, system_calls

HEADER = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")


@pytest.mark.skipif(
    platform.machine() != "x86_64" or not HEADER.exists(), reason="compares with the kernel headers of x86_64"
)
def test_the_tables_have_the_kernels_numbers() -> None:
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADER.read_text())}
    both = {**system_calls.ALLOWED, **system_calls.REFUSED}
    wrong = {name: numbers for name, (numbers, _) in both.items() if name in known and known[name] != numbers}
    assert wrong == {}
    # What is in no table is refused as unknown, or decided by its arguments.
    assert {"clone", "clone3", "unshare", "socket", "personality"} <= set(known) - set(both)


def test_no_call_is_both_allowed_and_refused() -> None:
    assert set(system_calls.ALLOWED) & set(system_calls.REFUSED) == set()
    for column in (0, 1):
        numbers = [each[column] for each in system_calls.ALLOWED.values() if each[column] is not None]
        assert len(numbers) == len(set(numbers))


def test_an_unknown_architecture_has_no_filter() -> None:
    assert confinement.filter_program("riscv64") is None
