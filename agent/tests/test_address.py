"""A machine joins by TLS, or over its own loopback; anything else is said and not guessed."""

from pathlib import Path

import pytest

from mooring_agent.__main__ import main
from mooring_agent.address import check_address


@pytest.mark.parametrize(
    "url",
    ["https://mooring.example", "http://127.0.0.1:7420", "http://[::1]:7420", "http://localhost", "http://a.localhost"],
)
def test_tls_and_loopback_are_taken(url: str) -> None:
    check_address(url, allow_insecure=False)


@pytest.mark.parametrize("url", ["http://mooring.example", "http://10.0.0.1:7420", "http://127.0.0.1.example:7420"])
def test_plain_http_to_elsewhere_is_taken_only_when_it_is_meant(url: str) -> None:
    with pytest.raises(ValueError, match="not encrypted"):
        check_address(url, allow_insecure=False)
    check_address(url, allow_insecure=True)


@pytest.mark.parametrize("url", ["mooring.example", "ftp://mooring.example", "https://", "http://[::1"])
def test_what_is_no_address_is_refused_in_any_case(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        check_address(url, allow_insecure=True)


def test_enrol_says_so_in_a_line_before_it_makes_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["enrol", "--url", "http://10.0.0.1:1", "--host", "process", "--state-dir", str(tmp_path / "state")]
    assert main(words) == 1
    told = capsys.readouterr().err
    assert "--allow-insecure" in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "state").exists()
