"""A machine connects by TLS or over its own loopback; everything else is refused with a reason."""

import socket
from pathlib import Path

import pytest

from mooring_agent.__main__ import main
from mooring_agent.control_plane.addresses import LOOPBACK, check_local_address, check_platform_url, local_address
from tests.support.rows import every_row


@every_row(
    "url",
    ["https://mooring.example", "http://127.0.0.1:7420", "http://[::1]:7420", "http://localhost", "http://a.localhost"],
)
def test_tls_and_loopback_are_taken(url: str) -> None:
    check_platform_url(url, allow_insecure=False)


@every_row("url", ["http://mooring.example", "http://10.0.0.1:7420", "http://127.0.0.1.example:7420"])
def test_plain_http_to_elsewhere_is_taken_only_when_it_is_meant(url: str) -> None:
    with pytest.raises(ValueError, match="not encrypted"):
        check_platform_url(url, allow_insecure=False)
    check_platform_url(url, allow_insecure=True)


@every_row("url", ["mooring.example", "ftp://mooring.example", "https://", "http://[::1"])
def test_an_invalid_url_is_always_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not (a|the) URL"):
        check_platform_url(url, allow_insecure=True)


def test_enrol_says_so_in_a_line_before_it_makes_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["enrol", "--url", "http://10.0.0.1:1", "--host", "process", "--state-dir", str(tmp_path / "state")]
    assert main(words) == 1
    errors = capsys.readouterr().err
    assert "--allow-insecure" in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@every_row("url", ["http://127.0.0.1:7420", "http://localhost", "https://mooring.invalid"])
def test_a_machine_that_reaches_the_platform_by_loopback_uses_the_address_of_its_default_route(
    url: str,
) -> None:
    found = local_address(url)
    with socket.create_server((found, 0)):
        pass  # it is this machine's


def test_the_machines_address_is_the_one_by_which_it_goes_to_the_platform() -> None:
    own = local_address("http://localhost")
    assert local_address(f"https://{own}:7420") == own


def test_a_machine_without_a_network_has_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mooring_agent.control_plane.addresses.PROBE_TARGET", (LOOPBACK, 9))
    assert local_address("http://localhost") == LOOPBACK


@every_row("text", ["", "mooring.example", "10.0.0", "0.0.0.0", "224.0.0.1", "fe80::1"])
def test_an_operator_may_set_the_address_and_gets_an_error_for_an_invalid_one(text: str) -> None:
    assert check_local_address("10.0.0.5") == "10.0.0.5"
    with pytest.raises(ValueError, match="`--address` must be an"):
        check_local_address(text)
