"""The table of the gates: which test belongs where, that it names what exists, and how costs are compared."""

import re

import pytest

from tests.support.rows import every_row
from tools import budget, flakes, soak
from tools.gates import SYSTEM, TEST, Gate, Gates, load, plain
from tools.real_parts import ROOT

TABLE = Gates(
    gates={TEST: Gate(6, {"a": 100.0, "a/b": 10.0}), SYSTEM: Gate(12, {})},
    system=("a/system", "a/test_x.py"),
    walks={"part": "a/system/test_part.py::test_walk"},
    both=("a/test_x.py::test_world",),
    groups={"slurm": ("a/system",), "other": ("a/system/test_part.py",)},
    in_order=("a/test_y.py",),
)


@every_row(
    ("nodeid", "wanted"),
    [
        ("a/test_z.py::test_1", {TEST}),
        ("a/system/test_part.py::test_1", {SYSTEM}),
        ("a/systematic/test_part.py::test_1", {TEST}),
        ("a/test_x.py::test_1[x]", {SYSTEM}),
        ("a/system/test_part.py::test_walk", {TEST}),
        ("a/system/test_part.py::test_walk_on", {SYSTEM}),
        ("a/test_x.py::test_world[3]", {TEST, SYSTEM}),
    ],
)
def test_the_gates_of_a_test(nodeid: str, wanted: set[str]) -> None:
    assert TABLE.of(nodeid) == wanted


def test_a_group_is_that_of_the_longest_path() -> None:
    names = ["a/system/test_q.py::t", "a/system/test_part.py::t", "a/test_x.py::t"]
    assert [TABLE.group_of(each) for each in names] == ["slurm", "other", None]


def test_a_gate_collects_only_the_files_that_it_needs() -> None:
    assert TABLE.collected(SYSTEM) == ["a/system", "a/test_x.py"]
    assert TABLE.collected(TEST) == [], "both have a test in the first gate"
    assert Gates(system=("a/b", "c.py")).collected(TEST) == ["--ignore=a/b", "--ignore=c.py"]


def test_a_name_is_read_without_the_group_that_xdist_appends() -> None:
    names = ["a.py::t@slurm", "a.py::t[x@y]", "a.py::t[x@y]@slurm", "a.py::t"]
    assert [plain(each) for each in names] == ["a.py::t", "a.py::t[x@y]", "a.py::t[x@y]", "a.py::t"]


def test_what_was_spent_is_summed_by_the_nearest_folder_and_divided_by_the_slowness() -> None:
    spent = budget.spent_by_folder(TABLE, TEST, {"a/t.py::1": 30.0, "a/b/t.py::1": 24.0, "a/b/u.py::1": 2.0})
    lines = budget.compared(TABLE, TEST, spent, wall_seconds=800.0, factor=2.0)
    assert [(line.name, line.spent, line.is_over, line.fails) for line in lines] == [
        ("a", 15.0, False, False),
        ("a/b", 13.0, True, False),
        ("the whole gate, by the clock", 400.0, True, False),
    ]
    assert budget.compared(TABLE, TEST, spent, wall_seconds=1.0, factor=1.0)[1].fails
    assert budget.BudgetLine("new", 1.0, None).is_over, "a folder without a budget is reported"


def test_a_slow_machine_is_allowed_for_and_a_fast_one_hides_nothing() -> None:
    assert budget.slowness(Gates(reference_seconds=2.0), [3.0, 5.0]) == 2.5
    assert budget.slowness(Gates(reference_seconds=2.0), [1.0, 1.0]) == 1.0


def test_every_path_of_the_projects_own_table_exists() -> None:
    for path in load(ROOT).paths():
        file, *names = path.split("::")
        assert (ROOT / file).exists(), path
        # A function, or the name to which the tests of a state machine are bound.
        assert not names or re.search(rf"(def {names[0]}\(|^{names[0]} = )", (ROOT / file).read_text(), re.M), path


def test_two_workers_can_keep_the_budget_of_a_gate_if_every_folder_keeps_its_own() -> None:
    for gate in load(ROOT).gates.values():
        assert sum(gate.folders.values()) <= 2 * 60 * gate.minutes


def test_each_real_part_has_one_walk() -> None:
    assert set(load(ROOT).walks) == {"postgresql", "registry with cosign", "podman", "slurm"}


def test_the_projects_own_list_of_flaky_tests_keeps_its_rules() -> None:
    for name in flakes.known_flaky(ROOT):
        file, _, test = name.partition("::")
        assert re.search(rf"def {test}\(", (ROOT / file).read_text()), name


def test_a_short_run_has_one_seed_and_a_long_one_draws_and_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(soak.SOAK, raising=False)
    assert (soak.options(), soak.seed()) == ([], 0)
    monkeypatch.setenv(soak.SOAK, "1")
    monkeypatch.setenv(soak.SEED, "77")
    assert "--hypothesis-seed=77" in soak.options()
    assert "seed of this soak: 77" in capsys.readouterr().out
