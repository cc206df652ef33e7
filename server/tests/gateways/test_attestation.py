"""The attestation command: bounded in time and output, without the platform's secrets, and only two codes decide."""

import pytest

from mooring.gateways.attestation import Attestation, Verdict, attestation_command
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio


async def run(script: str, seconds: float = 10.0) -> Attestation:
    command = attestation_command(f"sh -c '{script}'", seconds)
    assert command is not None
    return await command.run({"name": "machine", "inventory": {"gpus": ["x"] * 20_000}})


async def test_exit_codes_decide_and_the_first_line_is_the_reason() -> None:
    rows = (
        ("cat >/dev/null; echo known; exit 0", Verdict.ACCEPTED, "known"),
        ("exit 1", Verdict.REFUSED, "exit code 1"),
        ('printf "a\\033[31m  b\\nsecond"; exit 1', Verdict.REFUSED, "a [31m b"),
        ("exit 2", Verdict.UNDECIDED, "exit code 2"),
        ("kill -9 $$", Verdict.UNDECIDED, "exit code -9"),
        ("grep -q machine", Verdict.ACCEPTED, "exit code 0"),
        ("yes | head -c 10000000; exit 0", Verdict.ACCEPTED, "y"),
    )
    for script, verdict, detail in rows:
        assert await run(script) == Attestation(verdict, detail), script


async def test_a_command_that_hangs_is_killed_with_its_children() -> None:
    hung = await run("sleep 600 & sleep 600", seconds=0.2)
    assert hung == Attestation(Verdict.UNDECIDED, "no answer within 0.2 s")


async def test_the_command_sees_no_secret_of_the_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORING_DATABASE_URL", "postgresql://user:password@host/")
    assert (await run("env | grep -c MOORING")).detail == "0"


@every_row("text", ["", "  "])
def test_no_command_is_none(text: str) -> None:
    assert attestation_command(text, 1.0) is None


async def test_a_command_that_does_not_exist_decides_nothing() -> None:
    command = attestation_command("/nowhere/attest", 1.0)
    assert command is not None
    assert (await command.run({})).verdict is Verdict.UNDECIDED
