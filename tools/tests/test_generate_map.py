"""The map of the server is what its source says, and no change of state is missing from it."""

import re
from pathlib import Path

import pytest

from mooring.api.routes import ROUTES
from tools import generate_map


def test_the_map_is_what_the_source_says() -> None:
    assert generate_map.PAGE.read_text(encoding="utf-8") == generate_map.page(), "run python -m tools.generate_map"


def test_every_route_that_changes_something_is_on_the_map() -> None:
    page = generate_map.page()
    missing = [route.key for route in ROUTES if route.mutates and f":{route.handler.__name__}`" not in page]
    assert not missing


def test_the_map_leads_from_a_drain_to_its_decision_and_its_tables() -> None:
    (row,) = [line for line in generate_map.page().splitlines() if line.startswith("| **member drain**")]
    assert "`commands/runtime/member.py:drain`" in row
    assert "`core/runtime/member_change.py:drain_member`" in row
    assert "`member`, `operation`" in row


def test_the_map_names_the_tables_that_sql_writes_where_nothing_is_decided() -> None:
    (row,) = [line for line in generate_map.page().splitlines() if line.startswith("| **runtime claim**")]
    assert row.endswith("| `adapter_presence`, `instance_claim` |")
    sql = "SELECT 1 FROM a FOR UPDATE OF c; INSERT INTO b SELECT 1 ON CONFLICT (x) DO UPDATE SET y = 1; UPDATE d e SET"
    assert generate_map.SQL_WRITE.findall(sql) == ["b", "d"]


def test_every_table_that_the_core_writes_and_every_reconciler_is_on_the_map() -> None:
    page, core = generate_map.page(), generate_map.SERVER / "mooring" / "core"
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(core.rglob("*.py")))
    tables = set(re.findall(r'\b(?:Insert|Update|StateChange|Remove)\(\s*"(\w+)"', source))
    assert {each for each in tables if f"`{each}`" not in page} == set()
    for worker in ("allocation_reconciler", "instance_reconciler", "nodes", "tasks"):
        assert f"`workers/{worker}.py:" in page


def test_an_answer_that_names_missing_code_makes_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("core/fleet/gone.py:reconcile", "core/fleet/allocation_reconcile.py:gone"):
        monkeypatch.setattr(generate_map, "QUESTIONS", (("Where?", f"here: `{place}`"),))
        with pytest.raises(ValueError, match=re.escape(place)):
            generate_map.page()


def test_a_page_that_differs_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "map.md"
    assert generate_map.main([], path) == 0
    assert generate_map.main(["--check"], path) == 0
    path.write_text("# Map\n", encoding="utf-8")
    assert generate_map.main(["--check"], path) == 1
    assert "map.md (stored)" in capsys.readouterr().err
