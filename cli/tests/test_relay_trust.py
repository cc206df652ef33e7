"""The command presents a ticket to a relay over TLS or on this machine, and to no other."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mooring_cli.relay_client import RelayTrust, VisitRefused, dial

Run = Callable[..., Result]


def test_a_relay_without_tls_on_another_machine_gets_no_ticket() -> None:
    with pytest.raises(VisitRefused, match="plain http"):
        asyncio.run(dial("http://10.0.0.1:7421", "secret", RelayTrust()))
    assert RelayTrust(allow_plain_http=True).context_for("http://10.0.0.1:7421") is None
    assert RelayTrust().context_for("http://127.0.0.1:7421") is None


def test_ca_certificates_that_cannot_be_read_are_an_error(run: Run, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(VisitRefused, match="cannot read CA certificates"):
        RelayTrust(missing).context_for("https://relay.example")
    result = run("whoami", "--url", "https://mooring.example", "--ca-file", missing)
    assert result.exit_code == 1
    assert "cannot read CA certificates" in result.stderr


def test_the_refusal_of_plain_http_says_what_to_do(run: Run) -> None:
    result = run("whoami", "--url", "http://10.0.0.1:7420")
    assert result.exit_code == 1
    assert "use https" in result.stderr
    assert "--allow-plain-http" in result.stderr
