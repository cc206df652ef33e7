"""Events, the audit trail, the outbox, and the words of the contract."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import CREATED, PROJECT, TENANT, CannedResponse, FakeCliPlatform, page, problem
from mooring_cli import outbox

Run = Callable[..., Result]


def event(number: int) -> dict[str, Any]:
    return {
        "id": f"evt_{number}",
        "cursor": f"c{number}",
        "type": "identity.project.created",
        "subject_id": PROJECT,
        "actor_kind": "user",
        "actor_id": "usr_01ada",
        "correlation_id": "cor_1",
        "occurred_at": CREATED,
        "data": {"slug": f"p{number}"},
    }


def stream(*numbers: int) -> CannedResponse:
    text = "".join(f"id: c{number}\nevent: x\ndata: {json.dumps(event(number))}\n\n" for number in numbers)
    return CannedResponse(raw=text.encode(), media_type="text/event-stream")


def test_events_are_a_line_each(run: Run, platform: FakeCliPlatform) -> None:
    pages = [
        CannedResponse(body={"items": [event(1), event(2)], "next_cursor": "c2"}),
        CannedResponse(body={"items": [], "next_cursor": "c2"}),
    ]
    platform.on("GET", f"/api/v1/projects/{PROJECT}/events", lambda asked: pages.pop(0))
    result = run("events", "--project", "vision", "--correlation", "cor_1", "--since", "c0")
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    assert "identity.project.created" in lines[0]
    assert "slug=p1" in lines[0]
    first = platform.asked[1]
    assert (first.query["correlation_id"], first.query["cursor"]) == ("cor_1", "c0")


def test_on_a_terminal_a_long_event_is_wrapped_and_loses_nothing(
    run: Run, on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform
) -> None:
    long = {**event(1), "data": {"reason": "a long story " * 10, "digest": f"sha256:{'ab' * 64}"}}
    items = {"items": [long, event(2)], "next_cursor": "c2"}
    platform.on("GET", f"/api/v1/tenants/{TENANT}/events", CannedResponse(body=items))
    shown = on_terminal("events", COLUMNS="80").screen.splitlines()
    assert [each for each in shown if len(each) > 80] == []
    assert len([each for each in shown if not each.startswith("    ")]) == 2, shown
    piped = run("events").stdout.splitlines()
    assert len(piped) == 2
    assert "".join(shown).replace(" ", "") == "".join(piped).replace(" ", "")


def test_events_are_an_array_in_json_and_more_of_them_are_hinted_at(run: Run, platform: FakeCliPlatform) -> None:
    platform.on(
        "GET",
        f"/api/v1/tenants/{TENANT}/events",
        CannedResponse(body={"items": [event(1), event(2)], "next_cursor": "c2"}),
    )
    result = run("events", "--limit", "2", "-o", "json")
    assert [each["id"] for each in json.loads(result.stdout)] == ["evt_1", "evt_2"]
    assert "--since c2" in result.stderr


def test_followed_events_are_a_json_object_a_line_over_breaks(run: Run, platform: FakeCliPlatform) -> None:
    answers = [stream(1, 2), stream(2, 3), problem(410, "cursor_expired")]
    platform.on("GET", "/api/v1/platform/events/stream", lambda asked: answers.pop(0))
    result = run("events", "--follow", "--platform", "-o", "json", "--since", "c0")
    assert [json.loads(line)["id"] for line in result.stdout.splitlines()] == ["evt_1", "evt_2", "evt_3"]
    assert result.exit_code == 4
    assert json.loads(result.stderr)["error"]["code"] == "cursor_expired"
    assert [asked.headers.get("last-event-id") for asked in platform.asked] == ["c0", "c2", "c3"]


def test_followed_events_are_documents_in_yaml_and_lines_in_a_table(run: Run, platform: FakeCliPlatform) -> None:
    import yaml

    def followed(form: str) -> str:
        answers = [stream(1, 2), problem(403, "permission_denied")]
        platform.on("GET", "/api/v1/platform/events/stream", lambda asked: answers.pop(0))
        return run("events", "--follow", "--platform", "-o", form).stdout

    assert [each["id"] for each in yaml.safe_load_all(followed("yaml"))] == ["evt_1", "evt_2"]
    assert len(followed("table").splitlines()) == 2
    assert followed("name").split() == ["evt_1", "evt_2"]


def test_the_audit_trail_is_filtered(run: Run, platform: FakeCliPlatform) -> None:
    row = {
        "id": "aud_1",
        "occurred_at": CREATED,
        "outcome": "denied",
        "action": "project.create",
        "noun": None,
        "subject_id": None,
        "actor_id": "usr_01ada",
        "correlation_id": "cor_1",
        "reason": None,
    }
    platform.on("GET", f"/api/v1/tenants/{TENANT}/audit", page(row))
    filters = ("--outcome", "denied", "--actor", "usr_01ada", "--actor-kind", "user", "--action", "project.create")
    result = run("audit", *filters, "--subject", "prj_1", "--since", CREATED)
    assert "denied" in result.stdout
    wanted = {"outcome": "denied", "actor_id": "usr_01ada", "actor_kind": "user", "action": "project.create"}
    assert platform.asked[-1].query == wanted | {"subject_id": "prj_1", "since": CREATED, "limit": "50"}
    platform.on("GET", f"/api/v1/tenants/{TENANT}/users", page({"id": "usr_01ada", "email": "ada@acme.example"}))
    assert run("audit", "--actor", "ada@acme.example").exit_code == 0
    assert platform.asked[-1].query == {"actor_id": "usr_01ada", "limit": "50"}
    assert "cor_1" in run("audit", "-o", "wide").stdout
    platform.on("GET", f"/api/v1/tenants/{TENANT}/audit", page())
    assert "No audit entries" in run("audit").stderr


@pytest.fixture
def with_outbox() -> None:
    from mooring_sdk.operations import BY_NAME

    missing = [each.operation for each in outbox.endpoints("list_{}_deliveries") if each.operation not in BY_NAME]
    assert not missing, f"the document has no {missing}"


@pytest.mark.usefixtures("with_outbox")
def test_dead_letters_are_listed_shown_and_sent_again(run: Run, platform: FakeCliPlatform) -> None:
    path = f"/api/v1/projects/{PROJECT}/deliveries"
    letter = {"id": "evt_1.whk_1", "event_type": "x", "status": "dead", "attempts": 12, "last_error": "timed out"}
    platform.on("GET", path, page(letter))
    result = run("outbox", "list", "--dead", "--project", PROJECT)
    assert "timed out" in result.stdout
    assert platform.asked[-1].query["status"] == "dead"
    platform.on("GET", f"{path}/evt_1.whk_1", CannedResponse(body=letter))
    assert run("outbox", "show", "evt_1.whk_1", "--project", PROJECT).exit_code == 0
    platform.on("POST", f"{path}/evt_1.whk_1/replay", CannedResponse(body={**letter, "status": "queued"}))
    assert run("outbox", "replay", "evt_1.whk_1", "--project", PROJECT, "-o", "name").stdout == "evt_1.whk_1\n"


@pytest.mark.usefixtures("with_outbox")
def test_all_dead_letters_are_sent_again_until_none_is_left(run: Run, platform: FakeCliPlatform) -> None:
    rounds = [CannedResponse(body={"replayed": 100, "more": True}), CannedResponse(body={"replayed": 7, "more": False})]
    platform.on("POST", f"/api/v1/projects/{PROJECT}/deliveries/replay-dead", lambda asked: rounds.pop(0))
    result = run("outbox", "replay", "--dead", "--project", PROJECT, "-o", "json")
    assert json.loads(result.stdout) == {"replayed": 107}
    assert run("outbox", "replay", "--project", PROJECT).exit_code == 1


REFERENCE = {
    "errors": [
        {
            "code": "name_taken",
            "status": 409,
            "title": "Name taken",
            "meaning": "It is there.",
            "remedy": "Another.",
            "retryable": False,
        },
    ],
    "actions": [
        {
            "key": "project.create",
            "meaning": "make a project",
            "roles": ["tenant_admin"],
            "human_only": False,
            "service_account": False,
        },
    ],
    "lifecycles": [
        {
            "name": name,
            "initial": "running",
            "final": ["gone"],
            "states": {"running": f"a {name} runs", "gone": "over"},
            "edges": [{"source": "running", "trigger": "stop", "target": "gone", "by": "user", "why": "Enough."}],
        }
        for name in ("instance", "operation")
    ],
    "event_types": {"identity.project.created": "A project was made."},
}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("name_taken", ["409", "It is there.", "Another."]),
        ("project.create", ["make a project", "tenant_admin"]),
        ("instance.running", ["a instance runs", "stop → gone: Enough."]),
        ("running", ["a instance runs", "a operation runs"]),
        ("identity.project.created", ["A project was made."]),
        ("tenant_admin", ["project.create"]),
        ("actions", ["project.create", "make a project"]),
        ("states", ["instance.running", "operation.gone"]),
    ],
)
def test_every_word_of_the_contract_is_explained_without_a_token(
    run: Run, platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch, word: str, said: list[str]
) -> None:
    monkeypatch.delenv("MOORING_TOKEN")
    platform.on("GET", "/api/v1/reference", CannedResponse(body=REFERENCE))
    result = run("explain", word)
    assert result.exit_code == 0, result.output
    for text in said:
        assert text in result.stdout
    assert "authorization" not in platform.asked[0].headers


def test_a_mistyped_word_gets_a_hint(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/reference", CannedResponse(body=REFERENCE))
    result = run("explain", "nametaken")
    assert result.exit_code == 1
    assert "did you mean name_taken?" in result.stderr


def test_the_schemas_of_a_noun_come_with_all_that_they_lead_to(run: Run, platform: FakeCliPlatform) -> None:
    from tools.generate_sdk import SOURCE

    platform.on("GET", "/api/v1/openapi.json", CannedResponse(raw=SOURCE.read_bytes()))
    shown = json.loads(run("schema", "tenants").stdout)["components"]["schemas"]
    assert {"CreateTenant", "FirstAdminBody", "TenantView", "TenantCreated", "UserView"} <= set(shown)
    assert "ProjectView" not in shown
    assert json.loads(run("schema", "service-account", "-o", "json").stdout)["components"]["schemas"][
        "CreateServiceAccount"
    ]
    assert "service_account" in run("schema").stdout
    result = run("schema", "tenat")
    assert result.exit_code == 1
    assert "did you mean tenant?" in result.stderr
