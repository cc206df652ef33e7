"""The agent sends its tokens over TLS with a trusted certificate, or not at all."""

from pathlib import Path

import pytest

from mooring_agent.__main__ import main
from mooring_agent.control_plane.tls import PlatformTls
from mooring_agent.control_plane.trust import Identity, store_identity
from mooring_agent.hosts.contract import HostFailure
from mooring_agent.tunnels.tunnel import dial

ELSEWHERE = "http://10.0.0.1:1"


def run(directory: Path, *words: str) -> int:
    return main(["run", "--host", "process", "--state-dir", str(directory), *words])


def test_a_start_refuses_a_stored_url_without_tls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_identity(tmp_path, Identity(ELSEWHERE, "nod_01hzzzzzzzzzzzzzzzzzzzzzzz", "mooring:x", ()))
    assert run(tmp_path) == 1
    errors = capsys.readouterr().err
    assert "not encrypted" in errors
    assert "--allow-insecure" in errors


def test_a_permission_at_enrolment_does_not_hold_for_another_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = Identity(ELSEWHERE, "nod_01hzzzzzzzzzzzzzzzzzzzzzzz", "mooring:x", (), allow_insecure=True)
    store_identity(tmp_path, stored)
    assert run(tmp_path, "--url", "http://10.0.0.2:1") == 1
    assert "http://10.0.0.2:1 is not encrypted" in capsys.readouterr().err


def test_ca_certificates_that_cannot_be_read_stop_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["enrol", "--url", "https://mooring.example", "--host", "process", "--state-dir", str(tmp_path / "state")]
    assert main([*words, "--ca-file", str(tmp_path / "missing.pem")]) == 1
    assert "cannot read CA certificates" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_simulated_machines_refuse_plain_http(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--url", ELSEWHERE, "--count", "1", "--token-file", "/nowhere"]) == 1
    assert "not encrypted" in capsys.readouterr().err


@pytest.mark.anyio
async def test_a_relay_without_tls_gets_no_token() -> None:
    with pytest.raises(HostFailure, match="not encrypted"):
        await dial(ELSEWHERE, "tsk_1", "Bearer secret", PlatformTls())
