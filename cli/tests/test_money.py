"""Prices, cost and ledger: money in tables, integers in JSON."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from cli.tests.support.fake_platform import CannedResponse, FakeCliPlatform, page
from mooring_cli import money

Run = Callable[..., Result]
PROJECT = "prj_01m7h1nytmn6f9t3b502bnv11t"
TENANT = "ten_01m7h1nytmn6f9t3b502bnv11t"


def a_line(name: str | None, charged: int, covered: int = 0) -> dict[str, Any]:
    amounts = {"charged_micro": charged, "covered_micro": covered, "currency": "EUR"}
    return {"key": name, "name": name, "unit": "token_out", "quantity_micro": 1_500_000, **amounts}


def a_cost(*lines: dict[str, Any], next_cursor: str | None = None) -> dict[str, Any]:
    total = {"total_micro": 1_300_000_000, "charged_micro": 1_234_000_000, "estimated_micro": 66_000_000}
    month = {"until": "2026-12-01T00:00:00Z", "micro_per_hour": 250_000_000, "month_micro": 9_000_000_000}
    return {
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-18T12:30:00Z",
        "group_by": "app",
        "clock": "charged from active until the release was requested",
        "totals": [{"currency": "EUR", "covered_micro": 200_000_000, **total}],
        "estimated": {"label": "estimated", "since": "2026-11-18T12:00:00Z", "until": "2026-11-18T12:30:00Z"},
        "forecasts": [{"label": "forecast", "currency": "EUR", "assumes": "what runs now goes on", **month}],
        "items": list(lines),
        "next_cursor": next_cursor,
    }


def test_amounts_are_shown_as_money_of_their_currency() -> None:
    shown = {
        "12.34 EUR": (1_234_000_000, "EUR"),
        "-0.01 EUR": (-1_000_000, "EUR"),
        "<0.01 EUR": (486_111, "EUR"),
        "0.00 EUR": (0, "EUR"),
        "1,250 JPY": (1_250_000_000, "JPY"),
        "1.250 KWD": (1_250_000_000, "KWD"),
    }
    assert {text: money.text(*amount) for text, amount in shown.items()} == {text: text for text in shown}


def test_cost_is_a_table_of_money_with_labelled_estimate_and_forecast(run: Run, platform: FakeCliPlatform) -> None:
    answers = [a_cost(a_line("hello", 1_234_000_000, 200_000_000), next_cursor="more"), a_cost(a_line(None, 486_111))]
    platform.on("GET", f"/api/v1/projects/{PROJECT}/cost", lambda asked: CannedResponse(body=answers.pop(0)))
    lines = run("cost", "--project", PROJECT, "--by", "app").stdout.splitlines()
    assert [line.split("  ")[0].split()[0] for line in lines[:3]] == ["NAME", "hello", "(none)"]
    assert [each for each in ("12.34 EUR", "2.00 EUR", "1.5 token_out") if each not in lines[1]] == []
    assert "total 13.00 EUR, of which 0.66 EUR is estimated" in lines[3]
    assert lines[5] == "forecast for this month: 90.00 EUR at 2.50 EUR an hour, if what runs now goes on"
    assert lines[6] == "allocations are charged from active until the release was requested"
    assert [asked.query.get("cursor") for asked in platform.asked] == [None, "more"]


def test_usage_shows_quantities_of_one_instance(run: Run, platform: FakeCliPlatform) -> None:
    instance = "ins_01m7h1nytmn6f9t3b502bnv11t"
    platform.on("GET", f"/api/v1/projects/{PROJECT}/cost", CannedResponse(body=a_cost(a_line("token_out", 486_111))))
    lines = run("usage", instance, "--project", PROJECT).stdout.splitlines()
    assert lines[0].split() == ["NAME", "QUANTITY", "CHARGED", "COVERED"]
    assert "1.5 token_out" in lines[1]
    (asked,) = platform.asked
    assert (asked.query["instance_id"], asked.query["group_by"]) == (instance, "unit")


def test_json_has_the_integers_of_the_api(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}/cost", CannedResponse(body=a_cost(a_line("hello", 486_111))))
    shown = json.loads(run("cost", "--project", PROJECT, "-o", "json").stdout)
    assert shown["items"][0]["charged_micro"] == 486_111
    platform.on("GET", "/api/v1/platform/billing/overview", page(a_line("acme", 1_234_000_000)))
    assert "12.34 EUR" in run("cost", "--platform", "--by", "tenant").stdout


def test_the_ledger_shows_what_is_owed_and_the_balances(run: Run, platform: FakeCliPlatform) -> None:
    owed = {"account": "receivable", "currency": "EUR", "amount_micro": 250_000_000}
    earned = owed | {"account": "revenue", "amount_micro": -250_000_000}
    row = {"id": "ltx_1", "project_id": PROJECT, "kind": "charge", "hour": "2026-11-18T12:00:00Z", "price_id": "prc_1"}
    platform.on("GET", f"/api/v1/tenants/{TENANT}/ledger", page(row | {"entries": [owed, earned]}))
    assert "2.50 EUR" in run("ledger", "--tenant", TENANT, "--kind", "charge").stdout
    assert platform.asked[-1].query == {"kind": "charge", "limit": "50"}
    platform.on(
        "GET", f"/api/v1/tenants/{TENANT}/ledger/balances", page(owed | {"entries": 1}, earned | {"entries": 1})
    )
    lines = run("ledger", "balances", "--tenant", TENANT).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["receivable", "2.50"], ["revenue", "-2.50"]]


def test_prices_say_what_how_many_units_cost(run: Run, platform: FakeCliPlatform) -> None:
    price = {"id": "prc_1", "book": "list", "item": "unit", "item_key": "hello/token_out", "currency": "EUR"}
    terms = {"minor": 250, "per": 1_000_000, "tiers": [], "included": 0, "valid_from": "2026-11-18T12:00:00Z"}
    platform.on("GET", f"/api/v1/tenants/{TENANT}/prices", page(price | terms))
    assert "2.50 EUR per 1000000" in run("prices", "list", "--tenant", TENANT).stdout
