"""`mooring manifest`: create, lint with line numbers, and explain."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from cli.tests.support.fake_platform import CannedResponse, FakeCliPlatform
from mooring_cli.manifest import KINDS, read
from tests.support.rows import every_row

Run = Callable[..., Result]
TEXT = """\
manifest_version: 1
app: web-tool
artifacts:
  main: latest
  a/b~c: other
runtime_profile:
  ports:
    - name: web
      port: 1
    - {name: two, port: 2}
"""


def finding(pointer: str, severity: str = "error") -> dict[str, Any]:
    return {
        "pointer": pointer,
        "rule": "pattern",
        "severity": severity,
        "reason": "it is wrong",
        "fix": "mend it",
        "why": None,
    }


def linted(*findings: dict[str, Any]) -> CannedResponse:
    return CannedResponse(body={"stageable": not findings, "manifest_digest": None, "findings": list(findings)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mooring.yaml"
    file.write_text(TEXT, encoding="utf-8")
    return file


@every_row(
    ("pointer", "line", "column"),
    [
        ("", 1, 1),
        ("/app", 2, 1),
        ("/artifacts/main", 4, 3),
        ("/artifacts/a~1b~0c", 5, 3),
        ("/runtime_profile/ports/0/port", 9, 7),
        ("/runtime_profile/ports/1/port", 10, 19),
        ("/runtime_profile/command", 6, 1),
        ("/version", 1, 1),
        ("/runtime_profile/ports/7", 7, 3),
    ],
)
def test_a_pointer_becomes_a_line(path: Path, pointer: str, line: int, column: int) -> None:
    assert read(str(path)).place(pointer) == (line, column)


def test_lint_tells_line_reason_and_fix_in_the_order_of_the_text(
    run: Run, platform: FakeCliPlatform, path: Path
) -> None:
    answer = linted(finding("/runtime_profile/ports/0/port", "warning"), finding("/artifacts/main"))
    platform.on("POST", "/api/v1/manifests/lint", answer)
    result = run("manifest", "lint", str(path), "--app", "web-tool")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"{path}:4:3: error: /artifacts/main: it is wrong; mend it [pattern]",
        f"{path}:9:7: warning: /runtime_profile/ports/0/port: it is wrong; mend it [pattern]",
    ]
    assert "1 errors, 1 warnings" in result.stderr
    (asked,) = platform.of("POST")
    assert asked.body == {"manifest": yaml.safe_load(TEXT), "app_slug": "web-tool"}


def test_warnings_alone_end_well_and_json_has_the_lines(run: Run, platform: FakeCliPlatform, path: Path) -> None:
    platform.on("POST", "/api/v1/manifests/lint", linted(finding("/app", "warning")))
    result = run("manifest", "lint", str(path), "-o", "json")
    assert result.exit_code == 0
    assert [(each["line"], each["severity"]) for each in json.loads(result.stdout)] == [(2, "warning")]


def test_a_duplicate_key_is_an_error(run: Run, platform: FakeCliPlatform, path: Path) -> None:
    path.write_text("app: one\nartifacts: {}\napp: two\n", encoding="utf-8")
    platform.on("POST", "/api/v1/manifests/lint", linted())
    result = run("manifest", "lint", str(path))
    assert result.exit_code == 1
    assert f"{path}:3:1: error: /app: duplicate key" in result.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("app: [1\nversion: 2", ":2:"),
        ("a: &x 1\nb: *x\n", ":2: aliases are not supported"),
        ("", "is empty"),
        ("a: .nan\n", "JSON does not have"),
        ("\ta: 1\n", ":1:1:"),
    ],
)
def test_an_unreadable_manifest_is_reported_and_not_sent(
    run: Run, platform: FakeCliPlatform, path: Path, text: str, said: str
) -> None:
    path.write_text(text, encoding="utf-8")
    result = run("manifest", "lint", str(path))
    assert result.exit_code == 1
    assert said in result.stderr
    assert platform.asked == []


def test_what_looks_like_a_date_stays_text(path: Path) -> None:
    path.write_text("version: 2026-01-01\nnumber: 1.5\nyes_: true\n", encoding="utf-8")
    assert read(str(path)).values == {"version": "2026-01-01", "number": 1.5, "yes_": True}


@pytest.mark.parametrize("kind", KINDS)
def test_init_writes_a_manifest_of_the_kind_and_not_over_another(run: Run, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "new.yaml"
    assert run("manifest", "init", "web-tool", "--kind", kind, "--file", str(file)).exit_code == 0
    written = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert (written["app"], written["artifact_kind"]) == ("web-tool", kind)
    assert ("lifecycle" in written) == (kind == "controller")
    again = run("manifest", "init", "other", "--file", str(file))
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert run("manifest", "init", "other", "--file", str(file), "--force").exit_code == 0


def test_a_field_and_a_rule_are_explained(run: Run, platform: FakeCliPlatform) -> None:
    port = {"type": "integer", "description": "where it listens", "maximum": 65535}
    schema = {
        "type": "object",
        "required": ["app"],
        "x-mooring-rules": {"app_other": "It belongs to one app."},
        "properties": {
            "app": {"type": "string", "description": "the app's slug"},
            "ports": {"type": "array", "items": {"type": "object", "properties": {"port": port}}},
        },
    }
    platform.on("GET", "/api/v1/schemas/manifest", CannedResponse(body=schema))
    shown = json.loads(run("manifest", "explain", "ports.0.port", "-o", "json").stdout)
    assert shown == {"field": "ports.0.port", "meaning": "where it listens", "type": "integer", "maximum": 65535}
    assert json.loads(run("manifest", "explain", "-o", "json").stdout)["fields"] == ["app (required)", "ports"]
    assert "It belongs to one app." in run("manifest", "explain", "app_other").stdout
    wrong = run("manifest", "explain", "ports.nothing")
    assert wrong.exit_code == 1
    assert "available: port" in wrong.stderr
