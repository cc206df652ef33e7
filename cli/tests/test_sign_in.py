"""Signing in and out, contexts, and where a token goes."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cli.tests.conftest import TOKEN, TerminalResult
from cli.tests.support.fake_platform import (
    CREATED,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    page,
    problem,
    serving,
    whoami,
)

Run = Callable[..., Result]
PASSWORD = "correct horse battery"
KEPT = "mrgp_kept-by-the-cli"


@pytest.fixture(autouse=True)
def nobody_is_signed_in(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOORING_TOKEN")
    monkeypatch.delenv("MOORING_URL")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "mooring" / "contexts.json"


@pytest.fixture
def ready(platform: FakeCliPlatform) -> FakeCliPlatform:
    """A platform that accepts the password."""

    def sign_in(asked: RecordedRequest) -> CannedResponse:
        if asked.body.get("password") != PASSWORD and asked.body.get("one_time_code") != "mrg1_code":
            return problem(401, "sign_in_refused")
        return CannedResponse(
            body={"token": "mrgs_session", "token_id": "tok_session", "expires_at": CREATED, "user": {}}
        )

    def create_token(asked: RecordedRequest) -> CannedResponse:
        assert asked.headers["authorization"] == "Bearer mrgs_session"
        fields = {"kind": "personal", "actions": None, "revoked_at": None, "last_used_at": None}
        made = {"id": "tok_kept", "name": asked.body["name"], "created_at": CREATED, "expires_at": CREATED}
        return CannedResponse(201, {**fields, **made, "token": KEPT})

    platform.on("POST", "/api/v1/sign-in", sign_in)
    platform.on("POST", "/api/v1/tokens", create_token)
    for token in ("tok_session", "tok_kept"):
        view = {"id": token, "kind": "session", "name": "", "actions": None, "created_at": CREATED}
        gone = {"expires_at": CREATED, "revoked_at": CREATED, "last_used_at": None}
        platform.on("DELETE", f"/api/v1/tokens/{token}", CannedResponse(body={**view, **gone}))
    return platform


def sign_in(run: Run, platform: FakeCliPlatform, *more: str) -> Result:
    words = ["login", "--url", platform.url, "--tenant", "acme", "--email", "ada@acme.test", "--password-stdin", *more]
    return run(*words, stdin=PASSWORD + "\n")


def test_signing_in_keeps_a_personal_token_and_nothing_else(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    result = sign_in(run, ready)
    assert result.exit_code == 0, result.output
    assert ready.asked[0].body == {"email": "ada@acme.test", "tenant": "acme", "password": PASSWORD}
    assert [asked.path for asked in ready.of("DELETE")] == ["/api/v1/tokens/tok_session"], "the session is ended"
    kept = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert KEPT in kept
    for secret in (PASSWORD, "mrgs_session"):
        assert secret not in kept
    for secret in (PASSWORD, "mrgs_session", KEPT):
        assert secret not in result.output


def test_afterwards_the_token_is_used(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    result = run("whoami")
    assert result.exit_code == 0
    assert ready.asked[-1].headers["authorization"] == f"Bearer {KEPT}"
    assert "tenant_admin" in result.stdout
    assert KEPT not in result.output


def test_a_one_time_code_becomes_a_password(run: Run, ready: FakeCliPlatform) -> None:
    result = run(
        "login",
        "--url",
        ready.url,
        "--email",
        "admin@mooring.local",
        "--one-time-code-stdin",
        stdin="mrg1_code\na new password\n",
    )
    assert result.exit_code == 0, result.output
    wanted = {"email": "admin@mooring.local", "one_time_code": "mrg1_code", "new_password": "a new password"}
    assert ready.asked[0].body == wanted


def test_a_password_is_asked_for_on_a_terminal_and_not_shown(
    on_terminal: Callable[..., TerminalResult], ready: FakeCliPlatform, environment: dict[str, str]
) -> None:
    environment["MOORING_TOKEN"] = ""
    ran = on_terminal("login", "--tenant", "acme", "--email", "ada@acme.test", typed=f"{PASSWORD}\n")
    assert ran.exit_code == 0, ran.screen
    assert ready.of("POST")[0].body["password"] == PASSWORD
    assert ready.url in ran.screen


def test_a_wrong_password_is_refused_once_and_keeps_nothing(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    result = run("login", "--url", ready.url, "--email", "ada@acme.test", "--password-stdin", stdin="wrong\n")
    assert result.exit_code == 3
    assert "wrong" not in result.output
    assert len(ready.asked) == 1
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--email", "ada@acme.test"], "--password-stdin"),
        (["--password-stdin"], "missing: --email"),
        (["--email", "a@b.c", "--password-stdin", "--one-time-code-stdin"], "give only one of"),
        (["--email", "a@b.c", "--one-time-code-stdin"], "one per line"),
    ],
)
def test_without_anybody_to_ask_everything_must_be_given(
    run: Run, ready: FakeCliPlatform, words: list[str], said: str
) -> None:
    result = run("login", "--url", ready.url, "--no-input", *words, stdin="one line\n")
    assert result.exit_code == 1
    assert said in result.stderr
    assert ready.asked == []


def test_signing_out_revokes_the_token_and_forgets_it(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    sign_in(run, ready)
    assert run("logout").exit_code == 0
    assert ready.of("DELETE")[-1].path == "/api/v1/tokens/tok_kept"
    assert ready.of("DELETE")[-1].headers["authorization"] == f"Bearer {KEPT}"
    assert KEPT not in file.read_text()
    assert run("whoami").exit_code == 3


def test_signing_out_forgets_a_token_that_counts_no_more(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    sign_in(run, ready)
    ready.on("DELETE", "/api/v1/tokens/tok_kept", problem(401, "unauthenticated"))
    assert run("logout").exit_code == 0
    assert KEPT not in file.read_text()


def test_a_token_is_not_forgotten_while_it_may_still_count(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    sign_in(run, ready)
    ready.on("DELETE", "/api/v1/tokens/tok_kept", problem(500, "internal"))
    assert run("logout").exit_code == 2
    assert KEPT in file.read_text()


def test_a_context_s_token_goes_to_no_other_server(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    with serving() as other:
        result = run("whoami", "--url", other.url)
        assert result.exit_code == 3
        assert other.asked == []


def test_a_file_that_others_may_read_is_refused(run: Run, ready: FakeCliPlatform, file: Path) -> None:
    sign_in(run, ready)
    file.chmod(0o644)
    result = run("whoami")
    assert result.exit_code == 1
    assert "chmod 600" in result.stderr
    assert KEPT not in result.output


def test_a_broken_file_is_named(run: Run, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("{")
    file.chmod(0o600)
    result = run("context", "list")
    assert result.exit_code == 1
    assert str(file) in result.stderr


def test_variables_are_stronger_than_the_context(
    run: Run, ready: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(run, ready)
    monkeypatch.setenv("MOORING_TOKEN", TOKEN)
    run("whoami")
    assert ready.asked[-1].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_service_account_signs_in_by_its_key(
    run: Run, platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    key.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    granted = {"access_token": "mrga_short", "token_type": "Bearer", "expires_in": 900}
    platform.on("POST", "/api/v1/oauth/token", CannedResponse(body=granted))
    monkeypatch.setenv("MOORING_URL", platform.url)
    monkeypatch.setenv("MOORING_SERVICE_ACCOUNT", "sa_01ci")
    assert run("whoami").exit_code == 1, "the key is missing"
    monkeypatch.setenv("MOORING_SERVICE_ACCOUNT_KEY_ID", "key_01")
    monkeypatch.setenv("MOORING_SERVICE_ACCOUNT_KEY_FILE", str(key))
    result = run("-v", "whoami")
    assert result.exit_code == 0, result.output
    assert platform.asked[-1].headers["authorization"] == "Bearer mrga_short"
    assert "mrga_short" not in result.output
    key.write_text("nonsense")
    assert run("whoami").exit_code == 1


def test_contexts_are_listed_used_changed_and_forgotten(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    sign_in(run, ready, "--context", "second")
    listed = json.loads(run("context", "list", "-o", "json").stdout)
    assert [(each["name"], each["current"], each["signed_in"]) for each in listed] == [
        ("default", "", True),
        ("second", "*", True),
    ]
    assert run("context", "use", "default").exit_code == 0
    changed = json.loads(run("context", "set", "--project", "vision", "-o", "json").stdout)
    assert (changed["name"], changed["project"], changed["tenant"]) == ("default", "vision", "acme")
    assert run("context", "delete", "second").exit_code == 1, "its token is still good"
    assert run("context", "delete", "second", "--yes").exit_code == 0
    assert [each["name"] for each in json.loads(run("context", "list", "-o", "json").stdout)] == ["default"]
    for result in (run("context", "show"), run("context", "list"), run("context", "show", "-o", "yaml")):
        assert KEPT not in result.output


def test_another_address_forgets_the_token(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    shown = json.loads(run("context", "set", "--url", "https://elsewhere.test", "-o", "json").stdout)
    assert (shown["url"], shown["signed_in"]) == ("https://elsewhere.test", False)


def test_an_unknown_context_is_a_usage_error(run: Run) -> None:
    for words in (["whoami", "--context", "nope"], ["context", "use", "nope"], ["context", "set", "nope"]):
        result = run(*words)
        assert result.exit_code == 1
        assert "there is no context 'nope'" in result.stderr


def test_a_project_of_the_context_is_where_commands_act(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    run("context", "set", "--project", "prj_01vision")
    ready.on("GET", "/api/v1/projects/prj_01vision/memberships", page())
    assert run("memberships", "list").exit_code == 0


def test_a_password_is_changed_from_stdin(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    ready.on("POST", "/api/v1/whoami/password", CannedResponse(204))
    result = run("password", "--passwords-stdin", stdin="the old one\nthe new one here\n")
    assert result.exit_code == 0
    wanted = {"current_password": "the old one", "new_password": "the new one here"}
    assert ready.of("POST")[-1].body == wanted
    assert "the new one" not in result.output


def test_who_one_is_is_shown_whole_in_json(run: Run, ready: FakeCliPlatform) -> None:
    sign_in(run, ready)
    assert json.loads(run("whoami", "-o", "json").stdout) == whoami()
