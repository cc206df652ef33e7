"""Following the check of an artifact: a progress bar in a terminal, otherwise lines, and the check's own error."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import CREATED, TENANT, CannedResponse, FakeCliPlatform, RecordedRequest, problem
from mooring_cli import check_progress

Run = Callable[..., Result]
ARTIFACT = "art_01weights"
CHECK = "chk_01weights"
PLACE = f"/api/v1/tenants/{TENANT}/artifacts"
REGISTER = (
    "artifacts",
    "register",
    "--tenant",
    "acme",
    "--kind",
    "blob",
    "--location",
    "s3://models/weights",
    "--digest",
    f"sha256:{'a' * 64}",
)
MIB = 1024**2


def check(status: str, done: int = 0, total: int | None = 8 * MIB, **further: Any) -> dict[str, Any]:
    return {
        "id": CHECK,
        "artifact_id": ARTIFACT,
        "name": "content",
        "status": status,
        "bytes_done": done,
        "bytes_total": total,
        "etag": f"1.{done}",
        "failure_code": None,
        "detail": "",
        "correlation_id": "cor_1",
        **further,
    }


def artifact(trust: str, about: dict[str, Any]) -> dict[str, Any]:
    return {"id": ARTIFACT, "trust": trust, "check": about, "created_at": CREATED}


@pytest.fixture
def reading(platform: FakeCliPlatform) -> Callable[..., None]:
    """A registration whose check goes through these states."""

    def reading(*states: dict[str, Any]) -> None:
        left = list(states)
        platform.on("POST", PLACE, CannedResponse(201, artifact("unverified", check("running"))))
        platform.on("GET", f"{PLACE}/{ARTIFACT}/checks/{CHECK}", lambda asked: CannedResponse(body=left.pop(0)))
        platform.on("GET", f"{PLACE}/{ARTIFACT}", CannedResponse(body=artifact("verified", states[-1])))

    return reading


def test_without_follow_the_answer_is_shown_as_it_is(
    run: Run, platform: FakeCliPlatform, reading: Callable[..., None]
) -> None:
    reading(check("running"))
    shown = json.loads(run(*REGISTER, "-o", "json").stdout)
    assert shown["check"]["status"] == "running"
    (asked,) = platform.of("POST")
    assert "wait" not in asked.query


def test_following_asks_for_each_change_and_shows_the_artifact_at_the_end(
    run: Run, platform: FakeCliPlatform, reading: Callable[..., None]
) -> None:
    reading(check("running", MIB), check("running", 4 * MIB), check("succeeded", 8 * MIB))
    result = run(*REGISTER, "--follow", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["trust"] == "verified"
    asked = [each.query for each in platform.of("GET") if each.path.endswith(CHECK)]
    assert [each["changed_from"] for each in asked] == ["1.0", f"1.{MIB}", f"1.{4 * MIB}"]
    assert "100 %  8.0 MiB of 8.0 MiB" in result.stderr.splitlines()[-1]


def test_a_check_that_has_already_ended_is_still_printed(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", PLACE, CannedResponse(201, artifact("verified", check("succeeded", 8 * MIB))))
    result = run(*REGISTER, "--follow", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["trust"] == "verified"
    assert result.stderr.splitlines() == ["content check succeeded  100 %  8.0 MiB of 8.0 MiB"]
    assert [each for each in platform.of("GET") if ARTIFACT in each.path] == []


def test_a_check_that_has_failed_by_the_answer_ends_the_command_with_its_own_code(
    run: Run, platform: FakeCliPlatform
) -> None:
    failed = check("failed", MIB, failure_code="digest_mismatch", detail="something else is there")
    platform.on("POST", PLACE, CannedResponse(201, artifact("rejected", failed)))
    result = run(*REGISTER, "--follow", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == "digest_mismatch"


def test_a_check_that_failed_ends_the_command_with_its_own_code(run: Run, reading: Callable[..., None]) -> None:
    reading(check("failed", MIB, failure_code="digest_mismatch", detail="something else is there"))
    result = run(*REGISTER, "--follow", "-o", "json")
    assert result.exit_code == 1
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert (error["code"], error["detail"]) == ("digest_mismatch", "something else is there")


def test_a_check_that_was_cancelled_is_no_success(run: Run, reading: Callable[..., None]) -> None:
    reading(check("cancelled", MIB, detail="somebody asked for it"))
    result = run(*REGISTER, "--follow", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == "check_cancelled"


def test_staging_follows_the_check_it_waits_for_and_then_is_made(run: Run, platform: FakeCliPlatform) -> None:
    details = {"check_id": CHECK, "artifact_id": ARTIFACT}
    shown = problem(409, "check_running")
    running = replace(shown, body={**shown.body, "details": details})
    answers = [running, CannedResponse(200, {"id": ARTIFACT, "promotion": "staged", "check": None})]

    def promoted(asked: RecordedRequest) -> CannedResponse:
        return answers.pop(0)

    states = [check("running", MIB), check("succeeded", 8 * MIB)]
    platform.on("POST", f"{PLACE}/{ARTIFACT}/promote", promoted)
    platform.on("GET", f"{PLACE}/{ARTIFACT}/checks/{CHECK}", lambda asked: CannedResponse(body=states.pop(0)))
    move = ("artifacts", "promote", ARTIFACT, "--tenant", "acme", "--move", "stage", "--reason", "it is time for it")
    result = run(*move, "--follow", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["promotion"] == "staged"


def test_a_terminal_gets_one_line_that_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = count(0, 2)
    progress = check_progress.CheckProgress(True, lambda: float(next(seconds)))
    for done in (0, 4 * MIB, 8 * MIB):
        progress.show(check("running", done))
    progress.close()
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    lines = shown.strip().split("\r")
    assert "[------------------------------]  0 %" in lines[0]
    assert "[###############---------------]  50 %  4.0 MiB of 8.0 MiB  2.0 MiB/s" in lines[1]
    assert "[##############################]  100 %" in lines[2]


def test_on_a_real_terminal_the_bar_is_drawn(on_terminal: Callable[..., Any], reading: Callable[..., None]) -> None:
    reading(check("running", 2 * MIB), check("succeeded", 8 * MIB))
    ran = on_terminal(*REGISTER, "--follow")
    assert ran.exit_code == 0, ran.screen
    assert "\rcontent check running  [#######-----------------------]  25 %  2.0 MiB of 8.0 MiB" in ran.screen
    assert "[##############################]  100 %" in ran.screen


def test_elsewhere_there_is_a_line_now_and_then_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 1.0, 12.0, 13.0])
    progress = check_progress.CheckProgress(False, lambda: next(moments))
    for about in (check("running"), check("running", 1), check("running", 2), check("succeeded", 3, 3)):
        progress.show(about)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "content check running",
        "content check running",
        "content check succeeded",
    ]
    assert not any("[" in line or "\r" in line for line in lines)


def test_without_a_total_only_the_received_size_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = check_progress.CheckProgress(False)
    progress.show(check("running", 3 * 1024**3, None))
    assert capsys.readouterr().err == "content check running  3.0 GiB\n"


def test_sizes_are_printed_with_units() -> None:
    assert [check_progress.size(each) for each in (0, 1023, 1024, 1536 * 1024, 300 * 1024**3)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "300.0 GiB",
    ]
