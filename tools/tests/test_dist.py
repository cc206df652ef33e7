"""What is released: licences that may be shipped, checksums that nobody can change, advisories that are asked for."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.rows import every_row
from tools import advisories
from tools.bill_of_materials import (
    CONSOLE_LOCK,
    LOCK,
    LicensedPackage,
    LockedPackage,
    document,
    is_allowed,
    licensed,
    licensed_console,
    locked,
)
from tools.dist import SIGNATURE, SUMS, DistFailed, new_key, sign, sums, verify

ENTRY = "httpx==0.28.1 ; sys_platform == 'linux' \\\n    --hash=sha256:00ff \\\n    --hash=sha256:11ee\n"


def test_every_locked_package_has_a_licence_that_may_be_shipped() -> None:
    packages = licensed(LOCK.read_text(encoding="utf-8"))
    assert len(packages) > 50
    assert [each.complaint for each in packages if each.complaint] == []


@every_row(
    "expression, allowed",
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND BSD-2-Clause", True),
        ("MIT AND GPL-3.0-only", False),
        ("AGPL-3.0-only", False),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("", False),
        ("Proprietary", False),
    ],
)
def test_a_licence_is_allowed_by_name_alone(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed
    complaint = LicensedPackage(LockedPackage("x", "1", ()), expression).complaint
    assert (complaint is None) is allowed


def test_the_bill_names_every_package_with_its_hashes_and_is_the_same_each_time() -> None:
    (package,) = locked(ENTRY)
    assert package == LockedPackage("httpx", "0.28.1", ("00ff", "11ee"))
    bill = document([LicensedPackage(package, "BSD-3-Clause")], {"mooring-sdk": "0.1.0"}, 0)
    assert bill == document([LicensedPackage(package, "BSD-3-Clause")], {"mooring-sdk": "0.1.0"}, 0)
    assert [each["name"] for each in bill["components"]] == ["mooring-sdk", "httpx"]
    assert bill["components"][1]["purl"] == "pkg:pypi/httpx@0.28.1"


def test_a_changed_added_or_unsigned_file_is_found(tmp_path: Path) -> None:
    out = tmp_path / "dist"
    out.mkdir()
    wheel = out / "a.whl"
    wheel.write_bytes(b"wheel")
    (out / SUMS).write_text(sums([wheel]))
    public = new_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert sign(out, tmp_path / "key") == public
    assert verify(out, public) == 1

    other = new_key(tmp_path / "other")
    with pytest.raises(DistFailed, match="not a signature of this key"):
        verify(out, other)
    (out / "b.whl").write_bytes(b"more")
    with pytest.raises(DistFailed, match=r"b\.whl is not in"):
        verify(out, public)
    (out / "b.whl").unlink()
    wheel.write_bytes(b"other")
    with pytest.raises(DistFailed, match=r"a\.whl is missing or was changed"):
        verify(out, public)
    (out / SUMS).write_text(sums([wheel]))
    with pytest.raises(DistFailed, match="not a signature of this key"):
        verify(out, public)
    (out / SIGNATURE).unlink()
    with pytest.raises(DistFailed, match="cannot read"):
        verify(out, public)


@contextmanager
def simulated_database(answer: Any) -> Iterator[str]:
    """An advisory database (simulated) that gives one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def test_an_advisory_fails_the_run_and_an_unreachable_database_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = len(list(locked(LOCK.read_text(encoding="utf-8"))))
    clean: list[dict[str, Any]] = [{} for _ in range(count)]
    for answer, code, said in (
        ({"results": clean}, 0, f"{count} locked versions checked, 0 with advisories"),
        ({"results": [{"vulns": [{"id": "SIM-1"}]}, *clean[1:]]}, 1, "SIM-1"),
        ({"results": []}, 2, "NOTHING WAS CHECKED"),
        ({"error": "no"}, 2, "NOTHING WAS CHECKED"),
    ):
        with simulated_database(answer) as url:
            monkeypatch.setenv("MOORING_ADVISORY_URL", url)
            assert advisories.main() == code
        assert said in capsys.readouterr().out
    assert advisories.main() == 2, "nobody listens there any more"
    assert "no advisory database could be reached" in capsys.readouterr().out


def test_the_consoles_packages_are_in_the_bill_with_an_allowed_licence_and_no_registry() -> None:
    text = CONSOLE_LOCK.read_text(encoding="utf-8")
    packages = licensed_console(text)
    assert [each.complaint for each in packages if each.complaint] == []
    purls = [each["purl"] for each in document(packages, {}, 0)["components"]]
    assert any(each.startswith("pkg:npm/react@") for each in purls)
    assert any(each.startswith("pkg:npm/%40tanstack/react-query@") for each in purls)
    assert '"resolved"' not in text, "the lock names the place where a package was found"
