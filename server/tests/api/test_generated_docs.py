"""Everything that exists is documented, and everything documented exists."""

import base64
import hmac
import io
import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mooring.api.problem import STATUS
from mooring.api.routes import ROUTES
from mooring.api.schemas.records.record import EventView
from mooring.core.kernel.errors import CATALOGUE, Code
from mooring.core.kernel.event_types import MEANING, EventType
from mooring.core.kernel.permissions import ACTIONS, ROLE_ACTIONS, SERVICE_ACCOUNT_CEILING, Role
from mooring.core.records.delivery import DeliveryMessage, message_headers
from mooring.gateways.telemetry.instruments import PROBES, Telemetry
from mooring.gateways.telemetry.log import LogOutput
from mooring.gateways.telemetry.metrics import GAUGES
from mooring.settings import PREFIX, Settings
from tests.support.rows import every_row
from tools import generate_docs

DOCS = Path(__file__).resolve().parents[3] / "docs"
SETTINGS = {f"{PREFIX}{each.name.upper()}" for each in fields(Settings)}


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def headings(name: str, level: str) -> list[str]:
    return re.findall(rf"^{level} (.+)$", page(name), flags=re.MULTILINE)


@every_row("name", generate_docs.PAGES)
def test_the_page_is_what_the_tables_say(name: str) -> None:
    assert page(name) == generate_docs.PAGES[name](), "run python -m tools.generate_docs"


def test_the_tool_writes_the_pages_and_finds_a_change_in_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate_docs.main(["--check"], tmp_path) == 1
    assert generate_docs.main([], tmp_path / "docs") == 0
    assert generate_docs.main(["--check"], tmp_path / "docs") == 0
    capsys.readouterr()
    for name in generate_docs.PAGES:
        path = tmp_path / "docs" / name
        stored = path.read_text(encoding="utf-8")
        path.write_text(stored.replace("#", "##", 1), encoding="utf-8")
        assert generate_docs.main(["--check"], tmp_path / "docs") == 1
        assert f"{name} (stored)" in capsys.readouterr().err
        path.write_text(stored, encoding="utf-8")
    assert generate_docs.DOCS == DOCS


def test_every_error_has_its_heading_and_nothing_else_has() -> None:
    assert headings("errors.md", "##") == [code.value for code in Code]
    for code in Code:
        section = page("errors.md").split(f"\n## {code}\n")[1].split("\n## ")[0]
        assert CATALOGUE[code].meaning in section
        assert CATALOGUE[code].remedy in section
        assert f"HTTP {STATUS[code]} · {'retryable' if CATALOGUE[code].retryable else 'not retryable'}" in section


def test_every_event_type_and_field_is_explained() -> None:
    assert headings("events.md", "###") == [type_.value for type_ in EventType]
    for type_ in EventType:
        assert f"### {type_}\n\n{MEANING[type_]}\n" in page("events.md")
    for name in EventView.__struct_fields__:
        assert f"| `{name}` | " in page("events.md")


def test_webhooks_are_signed_as_the_page_says() -> None:
    key, body = b"k" * 32, b'{"id":"evt_1"}'
    message = DeliveryMessage("evt_1.whk_1", body, "cor_1", "a" * 32)
    headers = message_headers(message, [key], datetime(2026, 3, 1, tzinfo=UTC), "b" * 16)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body

    assert headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert headers["webhook-timestamp"] == "1772323200"
    for name in headers:
        assert name == "content-type" or f"`{name}`" in page("events.md")


def test_a_field_of_the_envelope_that_nobody_explained_stops_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_docs, "ENVELOPE", {"id": "x"})
    with pytest.raises(ValueError, match="the envelope has the fields"):
        generate_docs.events_page()


def test_every_setting_has_its_heading_default_and_explanation() -> None:
    assert set(headings("settings.md", "###")) >= SETTINGS
    for each in fields(Settings):
        section = page("settings.md").split(f"### {PREFIX}{each.name.upper()}\n")[1].split("\n#")[0]
        assert each.metadata["help"] in section
        written = str(each.default).removesuffix(".0")
        assert section.rstrip().endswith(f"*Default:* `{written}`." if written else "*Default:* empty.")


def test_the_matrix_shows_every_cell() -> None:
    rows = {}
    for line in page("authorization.md").split("## Actions")[1].split("## Endpoints")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`"):
            rows[cells[0].strip("`")] = cells[2:]
    assert list(rows) == list(ACTIONS)
    for key, cells in rows.items():
        shown = {role for role, cell in zip(Role, cells[:-1], strict=True) if cell == "●"}
        assert shown == {role for role in Role if key in ROLE_ACTIONS[role]}
        assert (cells[-1] == "●") == (key in SERVICE_ACCOUNT_CEILING)
        assert (cells[-1] == "*people*") == ACTIONS[key].human_only


def test_every_endpoint_is_in_the_matrix_with_its_action_and_place() -> None:
    listed = page("authorization.md").split("## Endpoints")[1]

    assert len(ROUTES) == len([line for line in listed.splitlines() if line.startswith("| ") and "`/" in line])
    for route in ROUTES:
        action = "none" if route.action == "public" else f"`{route.action}`"
        assert f"| {route.method} | `{route.path}` | {action} | {route.scope} |" in listed


# The page that is written by hand


def test_every_metric_is_documented_and_every_documented_metric_exists() -> None:
    telemetry = Telemetry(lines=LogOutput("error", "json", io.StringIO()))
    for name, gauge in GAUGES.items():
        telemetry.watch(name, lambda gauge=gauge: {("x",) * len(gauge.labels): 1})  # type: ignore[misc]
    existing = set()
    for family in text_string_to_metric_families(telemetry.metrics().decode()):
        existing.add(f"{family.name}_total" if family.type == "counter" else family.name)
    documented = set(re.findall(r"`((?:mooring|process|python)_[a-z_]+)`", page("operability.md")))

    assert documented == existing
    assert set(re.findall(r"(mooring_[a-z_]+)[{\[]", page("operability.md"))) <= existing


def test_the_probes_are_documented() -> None:
    paths = {route.path for route in ROUTES}
    for probe in PROBES:
        assert probe in paths
        assert f"| `{probe}` |" in page("operability.md")


@every_row("path", sorted(DOCS.rglob("*.md")), ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_names_only_errors_and_pages_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert set(re.findall(r"errors\.md#([a-z_]+)", text)) <= {code.value for code in Code}
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), target


@every_row("name", ["operability.md", "events.md", "errors.md", "authorization.md"])
def test_a_page_about_the_server_names_only_settings_that_exist(name: str) -> None:
    assert set(re.findall(rf"{PREFIX}[A-Z_]+[A-Z]", page(name))) <= SETTINGS


def test_every_setting_that_bounds_or_keeps_something_is_on_the_page_for_operators() -> None:
    wanted = {name for name in SETTINGS if re.search("_(MAX|BYTES|SECONDS|DAYS|HOURS|BURST|PER_[A-Z]+)$", name)}

    assert wanted <= set(re.findall(rf"{PREFIX}[A-Z_]+[A-Z]", page("operability.md")))


def test_every_command_of_the_program_is_documented() -> None:
    source = (DOCS.parent / "server" / "mooring" / "__main__.py").read_text(encoding="utf-8")
    commands = re.findall(r'^        \("([a-z-]+)", "', source, flags=re.MULTILINE)

    assert commands
    assert re.findall(r"^\| `([a-z-]+)` \|", page("operability.md"), flags=re.MULTILINE)[: len(commands)] == commands
