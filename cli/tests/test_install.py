"""`mooring install` refuses an invalid bundle before it sends a request."""

import json
from pathlib import Path

from click.testing import CliRunner

from mooring_cli.main import mooring
from tests.support.rows import every_row

WHOLE = {"bundle": 1, "app": {"slug": "hello"}, "artifacts": {}, "manifest": {"version": "1.0.0"}}


@every_row(
    ("text", "reason"),
    [
        ("no JSON", "cannot be read"),
        ("[]", "is not a bundle of version 1"),
        (json.dumps({**WHOLE, "bundle": 2}), "is not a bundle of version 1"),
        (json.dumps({name: WHOLE[name] for name in ("bundle", "app")}), "lacks artifacts, manifest"),
        (json.dumps(WHOLE) + " " * 1_048_576, "is not a bundle of version 1"),
    ],
)
def test_a_malformed_bundle_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "bundle.json"
    file.write_text(text)
    result = CliRunner().invoke(mooring, ["install", str(file)], env={"HOME": str(tmp_path)})
    assert result.exit_code != 0
    assert reason in result.stderr


def test_without_a_sign_in_the_error_says_how_to_sign_in(tmp_path: Path) -> None:
    file = tmp_path / "bundle.json"
    file.write_text(json.dumps(WHOLE))
    unset = {"HOME": str(tmp_path), "MOORING_TOKEN": None, "MOORING_SERVICE_ACCOUNT": None, "XDG_CONFIG_HOME": None}
    result = CliRunner().invoke(mooring, ["install", str(file)], env=unset)
    assert result.exit_code != 0
    assert "mooring login" in result.stderr
