"""Nodes, allocations and tasks in tables, and hints when a value is missing."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import CannedResponse, FakeCliPlatform, page
from mooring_cli import output

Run = Callable[..., Result]
PROJECT = "prj_01m7h1nytmn6f9t3b502bnv11t"


def an_allocation() -> dict[str, Any]:
    return {
        "id": "alc_1",
        "tenant_id": "ten_1",
        "project_id": PROJECT,
        "name": "box",
        "shape": "gpu_slice",
        "sku_id": "sku_1",
        "sku": "slice",
        "gpu_model": "simulated",
        "gpu_count": 2,
        "regions": ["local"],
        "status": "active",
        "node_id": "nod_1",
        "region": "local",
        "created_at": "2026-11-16T02:00:00Z",
    }


def test_a_table_of_allocations_says_how_many_gpus_and_where(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}/allocations", page(an_allocation()))
    heads, row = run("allocations", "list", "--project", PROJECT).stdout.splitlines()
    assert heads.split() == ["NAME", "STATUS", "AGE", "SKU", "GPUS", "REGION"]
    assert row.split()[:2] + row.split()[3:] == ["box", "active", "slice", "2", "local"]


def test_a_list_of_plain_values_is_one_cell(run: Run, platform: FakeCliPlatform) -> None:
    sku = {"slug": "slice", "shape": "gpu_slice", "allowed_gpu_counts": [1, 2, 4], "regions": ["a", "b"]}
    platform.on("GET", "/api/v1/skus", page(sku))
    assert "1, 2, 4" in run("skus", "list").stdout


def test_the_log_of_a_task_is_its_text_and_nothing_that_acts_on_a_terminal(run: Run, platform: FakeCliPlatform) -> None:
    log = {"task_id": "tsk_1", "offset": 0, "next_offset": 9, "text": "one\ttwo\n\x1b[31mred\n", "ended": True}
    platform.on("GET", f"/api/v1/projects/{PROJECT}/tasks/tsk_1/log", CannedResponse(body=log))
    assert run("tasks", "log", "tsk_1", "--project", PROJECT).stdout == "one    two\n\ufffd[31mred\n"
    assert '"next_offset": 9' in run("tasks", "log", "tsk_1", "--project", PROJECT, "-o", "json").stdout


def test_a_tenants_user_without_a_project_is_asked_for_one(run: Run, platform: FakeCliPlatform) -> None:
    shown = run("allocations", "list")
    assert shown.exit_code != 0
    assert "give a project" in shown.stderr


def test_a_field_and_the_moment_of_it_have_different_headings(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_details(
        {"name": "n1", "inventory": {"cpus": 2, "host": "process"}, "inventory_at": "?", "created_at": ""}
    )
    assert capsys.readouterr().out.splitlines() == [
        "NAME          n1",
        "INVENTORY AT  ?",
        "",
        "INVENTORY",
        "  cpus  2",
        "  host  process",
    ]


def test_labels_are_set_and_removed_by_short_forms(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", "/api/v1/platform/nodes/nod_1/label", CannedResponse(200, {"id": "nod_1", "name": "one"}))
    result = run("nodes", "label", "nod_1", "rack=a7", "note=a=b", "spare-")
    assert result.exit_code == 0, result.stderr
    assert platform.of("POST")[0].body == {"labels": {"rack": "a7", "note": "a=b", "spare": None}}
    assert run("nodes", "label", "nod_1", "rack").exit_code == 1
