"""Contexts that keep their server, check it before secrets are typed, and refuse projects that nobody can see."""

from collections.abc import Callable

import pytest
from click.testing import Result

from cli.tests.conftest import TOKEN, TerminalResult
from cli.tests.support.fake_platform import CREATED, CannedResponse, FakeCliPlatform
from mooring_cli.contexts import Context, Contexts, contexts_file, load, save

Run = Callable[..., Result]
PASSWORD = "correct horse battery"


@pytest.fixture(autouse=True)
def signed_in_as_admin(
    run: Run, environment: dict[str, str], platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context, at the platform; signing in works."""
    for name in ("MOORING_TOKEN", "MOORING_URL"):
        monkeypatch.delenv(name)
        environment.pop(name)
    admin = Context("admin", platform.url, token=TOKEN, token_id="tok_1")
    save(contexts_file(environment), Contexts("admin", {"admin": admin}))
    session = {"token": "mrgs_session", "token_id": "tok_session", "expires_at": CREATED, "user": {}}
    kept = {"id": "tok_2", "kind": "personal", "name": "x", "actions": None, "created_at": CREATED, "token": "mrgp_new"}
    platform.on("POST", "/api/v1/sign-in", CannedResponse(body=session))
    more = {"expires_at": CREATED, "revoked_at": None, "last_used_at": None}
    platform.on("POST", "/api/v1/tokens", CannedResponse(201, {**kept, **more}))
    revoked = {**kept, **more, "id": "tok_session"}
    platform.on("DELETE", "/api/v1/tokens/tok_session", CannedResponse(body=revoked))


def test_a_new_context_keeps_the_server_and_says_that_it_switched(
    run: Run, environment: dict[str, str], platform: FakeCliPlatform
) -> None:
    words = ["login", "--context", "ann", "--tenant", "acme", "--email", "ann@acme.test", "--password-stdin"]
    result = run(*words, stdin=f"{PASSWORD}\n")
    assert result.exit_code == 0, result.output
    stored = load(contexts_file(environment))
    assert (stored.current, stored.by_name["ann"].url) == ("ann", platform.url)
    assert "Switched from the context 'admin' to 'ann'" in result.stderr
    again = run(*words, stdin=f"{PASSWORD}\n")
    assert "Switched" not in again.stderr


def test_an_address_without_a_server_is_refused_before_a_secret_is_typed(
    on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform
) -> None:
    words = ["login", "--tenant", "acme", "--email", "ann@acme.test"]
    nowhere = on_terminal(*words, "--url", "http://127.0.0.1:9")
    assert nowhere.exit_code == 2
    assert "password" not in nowhere.screen
    platform.on("GET", "/healthz", CannedResponse(404, {}))
    other = on_terminal(*words)
    assert other.exit_code == 1
    assert "is not the address of a Mooring server" in other.screen
    assert "password:" not in other.screen
    assert platform.of("POST") == []


def test_a_project_that_the_context_cannot_see_is_refused(run: Run, environment: dict[str, str]) -> None:
    result = run("context", "set", "--project", "visoin")
    assert (result.exit_code, "did you mean vision?" in result.stderr) == (4, True)
    assert load(contexts_file(environment)).by_name["admin"].project is None
    assert run("context", "set", "--project", "vis").exit_code == 4, "a prefix is not stored"
    assert run("context", "set", "--project", "vision").exit_code == 0
    assert load(contexts_file(environment)).by_name["admin"].project == "vision"


def test_a_project_is_only_noted_where_nobody_can_be_asked(run: Run, environment: dict[str, str]) -> None:
    result = run("context", "set", "new", "--url", "http://127.0.0.1:9", "--project", "vision")
    assert (result.exit_code, "was not checked" in result.stderr) == (0, True)
    assert load(contexts_file(environment)).by_name["new"].project == "vision"
