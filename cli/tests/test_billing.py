"""`mooring billing`: a proof is added up from its pages, and its exit code says whether every law holds."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from cli.tests.support.fake_platform import TENANT, CannedResponse, FakeCliPlatform, RecordedRequest
from mooring_cli import failures

Run = Callable[..., Result]
PROOF = "/api/v1/platform/billing/proof"


def step(law: str, checked: int, broken: int = 0, **other: Any) -> dict[str, Any]:
    found = "alc_1: 7 booked, 6 due" if broken else None
    step = {"law": law, "sentence": f"{law} is right", "checked": checked, "broken": broken, "counterexample": found}
    return {**step, "counts": {}, "proven_until": None, **other}


def proves(platform: FakeCliPlatform, *pages: list[dict[str, Any]], path: str = PROOF) -> None:
    def answer(request: RecordedRequest) -> CannedResponse:
        number = int(request.query.get("cursor", "0"))
        following = str(number + 1) if number + 1 < len(pages) else None
        return CannedResponse(body={"items": pages[number], "next_cursor": following})

    platform.on("GET", path, answer)


def test_a_proof_that_holds_is_a_table_of_laws(run: Run, platform: FakeCliPlatform) -> None:
    hours: dict[str, Any] = {"counts": {"missing": 0, "duplicate": 0}, "proven_until": "2026-03-02T00:00:00Z"}
    proves(platform, [step("balanced", 12)], [step("rerated", 100, **hours)], [step("rerated", 20, **hours)])
    result = run("billing", "prove", "--platform", "--from", "2026-03-01", "--to", "2026-03-02T11:30:00+01:00")
    assert result.exit_code == 0, result.output
    rows = [line.split()[:3] for line in result.output.splitlines()]
    assert ["balanced", "12", "holds"] in rows
    assert ["rerated", "120", "holds"] in rows
    asked = [each.query for each in platform.of("GET") if each.path == PROOF]
    assert asked[0] == {"since": "2026-03-01T00:00:00Z", "until": "2026-03-02T10:00:00Z"}
    assert [each.get("cursor") for each in asked] == [None, "1", "2"]


def test_a_broken_law_shows_its_counterexample_and_exits_with_1(run: Run, platform: FakeCliPlatform) -> None:
    broken = step("rerated", 20, 2, counts={"missing": 0, "duplicate": 2})
    proves(platform, [step("balanced", 12)], [broken], path=f"/api/v1/tenants/{TENANT}/billing/proof")
    table = run("billing", "prove", "--tenant", TENANT)
    assert table.exit_code == 1
    assert "BROKEN rerated: rerated is right\n  alc_1: 7 booked, 6 due" in table.stderr
    result = run("-o", "json", "billing", "prove", "--tenant", TENANT)
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["proven"] is False
    assert answer["laws"][1]["counts"] == {"missing": 0, "duplicate": 2}


def test_a_correction_is_sent_in_millionths_of_a_minor_unit(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", "/api/v1/platform/billing/corrections", CannedResponse(201, {"id": "ltx_2", "amount": "-1"}))
    transaction = "ltx_" + "0" * 26
    given = ("billing", "correct", transaction, "--reason", "the node was slow")
    assert run(*given, "--minor", "-12.500001").exit_code == 0
    assert platform.of("POST")[0].body == {
        "transaction_id": transaction,
        "micro": -12_500_001,
        "reason": "the node was slow",
    }
    for wrong in ("0.0000001", "many", "nan"):
        refused = run(*given, "--minor", wrong)
        assert refused.exit_code == failures.USAGE, refused.output
        assert "six decimal places" in refused.stderr
