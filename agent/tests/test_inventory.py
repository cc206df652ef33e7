"""The inventory is what the platform accepts: printable facts, and a NUMA node that exists."""

import os
import stat
from pathlib import Path

import pytest

from mooring_agent import inventory
from mooring_agent.inventory import collect_inventory, count_cpus, declared_gpus, fact_text, numa_of, programs
from tests.support.rows import every_row


def put(directory: Path, name: str, script: str) -> None:
    """Install a program of this name."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@every_row(
    ("text", "fact"),
    [
        ("podman version 4.3.1", "podman version 4.3.1"),
        ("  slurm 23.11\t(beta) ", "slurm 23.11 (beta)"),
        ("\x1b[1mbold\x1b[0m 1.0", "[1mbold[0m 1.0"),
        ("v1\u202e\u0000\u2028x", "v1 x"),
        ("\x07\x00", "present"),
        ("", "present"),
        ("x" * 500, "x" * 200),
    ],
)
def test_a_fact_is_printable_text(text: str, fact: str) -> None:
    assert fact_text(text) == fact


def test_programs_are_found_with_the_first_line_that_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "good", "echo 'good 1.2'; echo more")
    put(tmp_path, "loud", "printf '\\033[31mred 3\\033[0m\\n'")
    put(tmp_path, "broken", "echo no; exit 1")
    put(tmp_path, "binary", "printf '\\377\\376 x\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    found = programs(("good", "loud", "broken", "binary", "absent-program"))
    assert found == {"good": "good 1.2", "loud": "[31mred 3[0m", "broken": "present", "binary": "x"}


@pytest.mark.parametrize(("said", "node"), [("0\n", 0), ("3\n", 3), ("-1\n", 0), ("", 0), ("nonsense", 0)])
def test_a_gpu_whose_numa_node_the_kernel_does_not_know_is_on_the_first(tmp_path: Path, said: str, node: int) -> None:
    (tmp_path / "numa_node").write_text(said)
    assert numa_of(tmp_path / "numa_node") == node
    assert numa_of(tmp_path / "absent") == 0


def test_numa_nodes_are_read_as_the_kernel_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, (cpus, kilobytes) in enumerate((("0-3,8", 1_000), ("4-7", 2_000), ("", 500))):
        place = tmp_path / f"node{index}"
        place.mkdir()
        (place / "cpulist").write_text(f"{cpus}\n")
        (place / "meminfo").write_text(f"Node {index} MemTotal:  {kilobytes} kB\nNode {index} MemFree: 1 kB\n")
    monkeypatch.setattr(inventory, "_NUMA_NODES", tmp_path)
    assert [(each["index"], each["cpus"], each["memory_bytes"]) for each in inventory.numa_nodes()] == [
        (0, 5, 1_024_000),
        (1, 4, 2_048_000),
        (2, 0, 512_000),
    ]
    assert count_cpus("0,2-3") == 3


def test_declared_gpus_say_that_they_are_simulated_and_are_spread_in_blocks() -> None:
    gpus = declared_gpus(4, 2)
    assert [gpu["numa"] for gpu in gpus] == [0, 0, 1, 1]
    assert {(gpu["model"], gpu["simulated"]) for gpu in gpus} == {("simulated", True)}


def test_the_inventory_of_this_machine_has_only_facts_that_the_platform_takes() -> None:
    collected = collect_inventory("process", 2)
    assert collected["cpus"] >= 1
    assert collected["memory_bytes"] > 0
    for name, value in collected["facts"].items():
        assert name == name.lower()
        assert fact_text(value) == value
