"""Statements on the command line: tables that people read, and exports that other programs add up to the same total."""

import csv
import html
import io
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import FakeCliPlatform
from cli.tests.support.statement_lines import HOSTILE, LINES, STATEMENT, TOTAL, serve
from mooring_cli import money
from mooring_cli.statement_focus import COSTS, FURTHER, MANDATORY, OWN, SINCE_1_3

Run = Callable[..., Result]
CATEGORIES = {"AI and Machine Learning", "Compute"}
NULLABLE = {"ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit", "BillingAccountName"}
LAST_DIGIT = Decimal(1).scaleb(-8)


@pytest.fixture
def served(platform: FakeCliPlatform) -> FakeCliPlatform:
    serve(platform)
    return platform


def exported(run: Run, *options: str) -> str:
    result = run("statements", "export", "2026-10", *options)
    assert result.exit_code == 0, result.output
    return result.stdout


def focus(run: Run, *options: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(exported(run, *options))))


def test_amounts_read_as_people_write_them() -> None:
    assert money.text(1_234_567_890_000, "EUR") == "12,345.68 EUR"
    assert money.text(-972_222, "EUR") == "-0.01 EUR"
    assert money.text(5_000_000, "JPY") == "5 JPY"
    assert money.exact(1, "KWD") == Decimal("0.000000001")
    assert money.quantity(14_500_000) == "14.5"
    assert money.quantity(1_000_000) == "1"


def test_a_list_and_one_month_are_tables_with_money(run: Run, served: FakeCliPlatform) -> None:
    listed = run("statements", "list").stdout
    assert "2026-10" in listed
    assert money.text(TOTAL, "EUR") in listed
    shown = run("statements", "show", "2026-10", "--group-by", "project").stdout
    assert f"2026-10  {money.text(TOTAL, 'EUR')}  (closed 2026-11-02T00:00:01Z)" in shown
    assert "by project, covered" in shown
    assert "0.75 EUR" in shown
    assert "14.5" in shown
    document = json.loads(run("statements", "show", STATEMENT, "-o", "json").stdout)
    assert document["amount_micro"] == TOTAL
    assert set(document["groups"]) == {"project", "sku", "unit"}


def test_a_month_that_is_not_closed_is_called_a_preview(run: Run, platform: FakeCliPlatform, tmp_path: Path) -> None:
    serve(platform, status="open", preview=True, digest=None, shadow_micro=None)
    assert "(preview, may still change)" in run("statements", "show", "2026-10").stdout
    result = run("statements", "export", "2026-10", "--format", "html", "--out", str(tmp_path / "page.html"))
    assert "not closed: this is a preview" in result.stderr
    assert "Preview: this month is not closed" in (tmp_path / "page.html").read_text()
    assert {row["InvoiceId"] for row in focus(run)} == {""}


def test_the_rows_of_focus_keep_the_rules_of_1_2(run: Run, served: FakeCliPlatform) -> None:
    rows = focus(run)
    assert tuple(rows[0]) == (*MANDATORY, *FURTHER, *OWN)
    assert len(MANDATORY) == 21
    assert sum(Decimal(row["BilledCost"]) for row in rows) == money.exact(TOTAL, "EUR")
    for row, line in zip(rows, LINES, strict=True):
        assert {name for name in MANDATORY if not row[name]} <= NULLABLE, row
        assert row["InvoiceId"] == STATEMENT
        assert row["ServiceCategory"] in CATEGORIES
        assert row["ChargeCategory"] == "Usage"
        start, end = (read_time(row[f"ChargePeriod{edge}"]) for edge in ("Start", "End"))
        first, last = (read_time(row[f"BillingPeriod{edge}"]) for edge in ("Start", "End"))
        assert start < end
        assert (row["ChargeClass"] == "Correction") == (start < first)
        assert first <= start < last or row["ChargeClass"] == "Correction"
        for cost, unit in (("ContractedCost", "ContractedUnitPrice"), ("ListCost", "ListUnitPrice")):
            if row[unit] and not row["ChargeClass"]:
                product = Decimal(row[unit]) * Decimal(row["PricingQuantity"])
                assert abs(product - Decimal(row[cost])) < 2 * LAST_DIGIT, row
        if not row["ContractedUnitPrice"]:
            assert row["ContractedCost"] == row["BilledCost"]
        assert bool(row["SkuPriceId"]) <= bool(row["SkuId"])
        assert all("e" not in row[name].lower() for name in COSTS)
        assert json.loads(row["Tags"]) is not None
        assert Decimal(row["x_covered_cost"]) == money.exact(line["shadow_micro"], "EUR")
    assert [row["PricingUnit"] for row in rows[:3]] == ["GPU-Hours", "GPU-Hours", "1000000 Token In"]
    assert [row["ListCost"] for row in rows[:2]] == ["0.00972222", "0.009722222222"]
    assert [row["ContractedUnitPrice"] for row in rows] == ["2.50", "2.00", "0.30", "", "", "", "2.50"]


def test_a_cell_never_begins_like_a_formula(run: Run, served: FakeCliPlatform) -> None:
    assert {row["SubAccountName"] for row in focus(run)} == {"'" + HOSTILE}


def test_focus_1_3_has_its_new_columns_besides(run: Run, served: FakeCliPlatform) -> None:
    rows = focus(run, "--focus", "1.3", "--provider", "A Cloud")
    assert set(rows[0]) == {*MANDATORY, *FURTHER, *OWN, *SINCE_1_3}
    assert {row["ServiceProviderName"] for row in rows} == {"A Cloud"} == {row["ProviderName"] for row in rows}
    assert [row["AllocatedResourceId"] for row in rows] == [""] * 5 + ["ins_1", ""]


def test_json_has_the_statement_and_every_line(run: Run, served: FakeCliPlatform) -> None:
    document = json.loads(exported(run, "--format", "json"))
    assert document["statement"]["amount_micro"] == sum(line["amount_micro"] for line in document["lines"]) == TOTAL
    assert document["lines"] == list(LINES)


def test_duckdb_adds_the_parquet_up_to_the_statement(run: Run, served: FakeCliPlatform, tmp_path: Path) -> None:
    import duckdb

    target = tmp_path / "october.parquet"
    exported(run, "--format", "parquet", "--out", str(target))
    query = "SELECT InvoiceId, sum(BilledCost), count(*), epoch(min(ChargePeriodStart)) FROM read_parquet(?) GROUP BY 1"
    (found,) = duckdb.execute(query, [str(target)]).fetchall()
    assert found[:3] == (STATEMENT, money.exact(TOTAL, "EUR"), len(LINES))
    assert found[3] == read_time("2026-09-30T23:00:00Z").timestamp()
    assert not (tmp_path / "october.parquet.part").exists()
    assert run("statements", "export", "2026-10", "--format", "parquet").exit_code == 1


def test_the_books_for_beancount_balance_and_have_the_same_total(run: Run, served: FakeCliPlatform) -> None:
    text = exported(run, "--format", "beancount")
    postings = re.findall(r"^  (Assets|Income):\S+  (\S+) EUR$", text, re.MULTILINE)
    assert sum(Decimal(amount) for _, amount in postings) == 0
    assert sum(Decimal(amount) for kind, amount in postings if kind == "Assets") == money.exact(TOTAL, "EUR")
    used, opened, checked = (
        set(re.findall(pattern, text, re.MULTILINE))
        for pattern in (r"^  ((?:Assets|Income):\S+)", r"^\S+ open (\S+)", r"^\S+ balance (\S+)")
    )
    assert used == opened == checked


@pytest.mark.real_part("beancount")
@pytest.mark.skipif(shutil.which("bean-check") is None, reason="bean-check is not installed (Debian: beancount)")
def test_beancounts_own_checker_passes_and_finds_a_forged_amount(
    run: Run, served: FakeCliPlatform, tmp_path: Path
) -> None:
    text = exported(run, "--format", "beancount")
    for name, books, code in (
        ("true", text, 0),
        ("forged", text.replace("0.00972222 EUR", "0.00972223 EUR", 1), 1),
    ):
        path = tmp_path / f"{name}.beancount"
        path.write_text(books, encoding="utf-8")
        checked = subprocess.run(["bean-check", str(path)], capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == code, checked.stderr


TAGS = {"html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "strong", "br"} | {
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
}


def test_the_page_has_no_script_and_escapes_what_a_tenant_wrote(run: Run, served: FakeCliPlatform) -> None:
    page = exported(run, "--format", "html").removeprefix("<!DOCTYPE html>")
    assert set(re.findall(r"<[/]?([^ />]+)", page)) == TAGS  # nothing else begins a tag
    assert set(re.findall(r'<[^>]* ([a-z-]+)="', page)) <= {"lang", "charset", "content", "name", "class"}
    policy = html.unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[0])
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert HOSTILE in html.unescape(page)
    assert HOSTILE not in page
    assert money.text(TOTAL, "EUR") in page
    assert "covered, not charged" in page


def read_time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")


def test_lines_are_read_page_by_page(run: Run, served: FakeCliPlatform) -> None:
    exported(run)
    asked: list[Any] = [each.query.get("cursor") for each in served.asked if each.path.endswith("/lines")]
    assert asked == [None, "2", "4", "6"]
