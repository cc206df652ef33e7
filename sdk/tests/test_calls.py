"""What a call sends, returns, retries, and never shows."""

import json
import logging

import httpx
import pytest

from mooring_sdk import (
    CallOptions,
    ClientSettings,
    ConnectionFailed,
    DeadlineExceeded,
    Exchange,
    MooringError,
    RetryPolicy,
    UnexpectedAnswer,
    ValueRefusedHere,
    errors,
    models,
)
from sdk.tests.support.fake_platform import ChunkedBody, ClientUnderTest, answer, problem, project
from tests.support.rows import every_row


def test_a_read_gives_its_model_and_passes_over_fields_that_are_new(driven: ClientUnderTest) -> None:
    shown = {**project(), "invented_later": {"a": 1}}
    got, double = driven.do([answer(200, shown)], lambda client: client.get_project("prj_vision"))
    assert isinstance(got, models.Project)
    assert (got.slug, got.created_at.year) == ("vision", 2030)
    assert double.requests[0].method == "GET"
    assert double.requests[0].url.path == "/api/v1/projects/prj_vision"
    assert double.requests[0].headers["authorization"] == "Bearer mrgp_secret-token"
    assert "idempotency-key" not in double.requests[0].headers


def test_a_mutation_sends_only_what_was_given(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        [answer(200, project())], lambda client: client.update_project("prj_vision", display_name="New")
    )
    assert json.loads(double.requests[0].content) == {"display_name": "New"}
    assert double.requests[0].headers["content-type"] == "application/json"


def test_an_answer_without_content_is_none(driven: ClientUnderTest) -> None:
    got, _ = driven.do([httpx.Response(204)], lambda client: client.delete_project("prj_vision"))
    assert got is None


def test_a_mutation_keeps_its_key_over_retries_and_takes_a_new_one_for_the_next_call(driven: ClientUnderTest) -> None:
    broken = httpx.ReadError("gone")
    script = [broken, problem(503, "temporarily_unavailable", retryable=True), answer(201, project())]
    _, first = driven.do(script, lambda client: client.create_project("ten_acme", slug="vision", display_name="V"))
    keys = first.header("idempotency-key")
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len({request.content for request in first.requests}) == 1
    _, second = driven.do(
        [answer(201, project())],
        lambda client: client.create_project("ten_acme", slug="vision", display_name="V"),
    )
    assert second.header("idempotency-key")[0] not in keys


def test_a_key_that_the_caller_gives_is_the_one_sent(driven: ClientUnderTest) -> None:
    options = CallOptions(idempotency_key="mine", correlation_id="of-this-call", traceparent="00-" + "1" * 32)
    _, double = driven.do(
        [answer(201, project())],
        lambda client: client.create_project("ten_acme", slug="vision", display_name="V", options=options),
        settings=ClientSettings(correlation_id="of-the-client"),
    )
    headers = double.requests[0].headers
    assert headers["idempotency-key"] == "mine"
    assert headers["x-correlation-id"] == "of-this-call"
    assert headers["traceparent"].startswith("00-1")


def test_the_correlation_id_of_a_client_is_on_every_call(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        [answer(200, project())],
        lambda client: client.correlated("the-label").get_project("prj_vision"),
        settings=ClientSettings(correlation_id="another"),
    )
    assert double.header("x-correlation-id") == ["the-label"]


@every_row("code", sorted(MooringError.known_codes))
def test_every_error_code_has_an_exception_of_its_own(driven: ClientUnderTest, code: str) -> None:
    kind = getattr(errors, "".join(word.capitalize() for word in code.split("_")))
    with pytest.raises(kind) as caught:
        driven.do([problem(418, code)], lambda client: client.get_project("prj_vision"))
    error = caught.value
    assert isinstance(error, MooringError)
    assert (error.code, error.status, error.detail) == (code, 418, f"the detail of {code}")
    assert (error.remedy, error.correlation_id) == (f"the remedy of {code}", "cor_problem")
    assert error.details == {"about": code}
    assert not error.retryable


def test_a_code_that_is_newer_than_the_sdk_is_still_an_error_with_that_code(driven: ClientUnderTest) -> None:
    with pytest.raises(MooringError) as caught:
        driven.do([problem(409, "moon_is_full")], lambda client: client.get_project("prj_vision"))
    assert type(caught.value) is MooringError
    assert caught.value.code == "moon_is_full"


def test_an_error_that_does_not_call_itself_retryable_is_not_tried_again(driven: ClientUnderTest) -> None:
    with pytest.raises(errors.NameTaken):
        driven.do(
            [problem(409, "name_taken")],
            lambda client: client.create_project("ten_acme", slug="vision", display_name="V"),
        )
    assert driven.clock.pauses == []


def test_a_rate_limit_is_waited_out_as_long_as_the_server_says(driven: ClientUnderTest) -> None:
    script = [problem(429, "rate_limited", retryable=True, retry_after="7"), answer(200, project())]
    driven.do(script, lambda client: client.get_project("prj_vision"))
    assert len(driven.clock.pauses) == 1
    assert driven.clock.pauses[0] >= 7


def test_pauses_grow_and_their_number_is_bounded(driven: ClientUnderTest) -> None:
    settings = ClientSettings(retry=RetryPolicy(attempts=4, first_pause_seconds=1, longest_pause_seconds=3))
    with pytest.raises(errors.TemporarilyUnavailable):
        driven.do(
            lambda request: problem(503, "temporarily_unavailable", retryable=True),
            lambda client: client.get_project("prj_vision"),
            settings=settings,
        )
    assert driven.clock.pauses == [1.0, 2.0, 3.0]


def test_chance_takes_up_to_half_of_a_pause_and_never_of_what_the_server_asked_for() -> None:
    policy = RetryPolicy(first_pause_seconds=1)
    assert policy.pause(1, 0.0) == 0.5
    assert policy.pause(1, 1.0) == 1.0
    assert policy.pause(1, 0.0, 5.0) == 5.5


def test_no_pause_goes_beyond_the_deadline(driven: ClientUnderTest) -> None:
    settings = ClientSettings(deadline_seconds=10)
    with pytest.raises(errors.RateLimited):
        driven.do(
            [problem(429, "rate_limited", retryable=True, retry_after="60")],
            lambda client: client.get_project("prj_vision"),
            settings=settings,
        )
    assert driven.clock.pauses == []


def test_a_call_ends_at_its_deadline_whatever_the_attempts(driven: ClientUnderTest) -> None:
    def slow(request: httpx.Request) -> Exception:
        driven.clock.now += request.extensions["timeout"]["read"]
        return httpx.ReadTimeout("slow")

    settings = ClientSettings(timeout_seconds=30, deadline_seconds=50, retry=RetryPolicy(attempts=50))
    with pytest.raises((ConnectionFailed, DeadlineExceeded)):
        driven.do(slow, lambda client: client.get_project("prj_vision"), settings=settings)
    assert driven.clock.now - 1_000.0 <= 51


def test_a_call_whose_time_is_over_between_two_attempts_tells_what_went_wrong(
    driven: ClientUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stall(seconds: float) -> None:
        driven.clock.now += 1_000.0

    monkeypatch.setattr(driven.clock, "sleep", stall)
    with pytest.raises(ConnectionFailed, match="could not be reached"):
        driven.do([httpx.ConnectError("refused")], lambda client: client.get_project("prj_vision"))


def test_a_read_that_waits_gives_the_server_that_much_longer(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        [answer(200, project())],
        lambda client: client.get_project("prj_vision", wait=45, until="active"),
        settings=ClientSettings(timeout_seconds=10),
    )
    assert double.requests[0].url.params["wait"] == "45"
    assert double.requests[0].extensions["timeout"]["read"] == 55


def test_signing_in_is_not_repeated_once_the_server_may_have_seen_it(driven: ClientUnderTest) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        driven.do(
            [httpx.ReadError("gone")], lambda client: client.sign_in(email="ada@acme.test", password="a password")
        )
    assert caught.value.was_sent
    assert "a password" not in str(caught.value)


def test_signing_in_is_repeated_when_the_server_was_not_reached(driven: ClientUnderTest) -> None:
    signed_in = {
        "token": "mrgs_x",
        "token_id": "tok_1",
        "expires_at": "2030-01-31T12:00:00Z",
        "user": {
            "id": "usr_ada",
            "tenant_id": None,
            "email": "ada@acme.test",
            "display_name": "Ada",
            "disabled": False,
            "has_password": True,
            "created_at": "2030-01-31T12:00:00Z",
            "revision": 0,
            "etag": "0",
            "allowed_actions": [],
        },
    }
    got, double = driven.do(
        [httpx.ConnectError("refused"), answer(200, signed_in)],
        lambda client: client.sign_in(email="ada@acme.test", password="a password"),
    )
    assert got.token == "mrgs_x"
    assert len(double.requests) == 2
    assert double.header("authorization") == [None, None], "who signs in has no token, or not this one"


def test_a_redirect_is_not_followed(driven: ClientUnderTest) -> None:
    moved = httpx.Response(307, headers={"location": "https://elsewhere.test/"})
    with pytest.raises(UnexpectedAnswer, match="redirect") as caught:
        driven.do([moved], lambda client: client.get_project("prj_vision"))
    assert caught.value.status == 307


def test_an_answer_of_something_else_is_named_as_such(driven: ClientUnderTest) -> None:
    page = httpx.Response(404, text="<html>nothing here</html>", headers={"content-type": "text/html"})
    with pytest.raises(UnexpectedAnswer, match="text/html"):
        driven.do([page], lambda client: client.get_project("prj_vision"))


def test_an_answer_that_is_not_what_it_should_be_is_an_error_of_the_sdk(driven: ClientUnderTest) -> None:
    with pytest.raises(UnexpectedAnswer, match="cannot decode the answer"):
        driven.do([answer(200, {"id": 5})], lambda client: client.get_project("prj_vision"))


def test_an_answer_beyond_the_limit_is_refused(driven: ClientUnderTest) -> None:
    endless = httpx.Response(200, stream=ChunkedBody(*[b"x" * 1000] * 100))
    with pytest.raises(UnexpectedAnswer, match="size limit"):
        driven.do(
            [endless],
            lambda client: client.get_project("prj_vision"),
            settings=ClientSettings(answer_limit_bytes=5000),
        )


def test_an_answer_that_drips_ends_with_its_time(driven: ClientUnderTest) -> None:
    def dripping(request: httpx.Request) -> httpx.Response:
        class Drip(ChunkedBody):
            def __iter__(self):  # type: ignore[no-untyped-def]
                while True:
                    driven.clock.now += 5
                    yield b" "

        return httpx.Response(200, stream=Drip())

    with pytest.raises(DeadlineExceeded):
        driven.do(
            dripping, lambda client: client.get_project("prj_vision"), settings=ClientSettings(timeout_seconds=20)
        )


@every_row("value", ["", ".", ".."])
def test_a_value_that_would_change_the_path_is_refused(driven: ClientUnderTest, value: str) -> None:
    with pytest.raises(ValueRefusedHere):
        driven.do([], lambda client: client.get_project(value))


def test_a_value_stays_one_segment_of_the_path(driven: ClientUnderTest) -> None:
    _, double = driven.do([answer(200, project())], lambda client: client.get_project("../tenants/x?y#z"))
    assert double.requests[0].url.raw_path == b"/api/v1/projects/..%2Ftenants%2Fx%3Fy%23z"


def test_lists_are_walked_page_after_page(driven: ClientUnderTest) -> None:
    script = [
        answer(200, {"items": [project("one"), project("two")], "next_cursor": "more"}),
        answer(200, {"items": [project("three")], "next_cursor": None}),
    ]
    got, double = driven.do(script, driven.take(None, lambda client: client.iter_projects(limit=2)))
    assert [each.slug for each in got] == ["one", "two", "three"]
    assert [dict(request.url.params) for request in double.requests] == [
        {"limit": "2"},
        {"limit": "2", "cursor": "more"},
    ]


def test_a_list_ends_at_the_most_that_was_asked_for(driven: ClientUnderTest) -> None:
    script = [answer(200, {"items": [project("one"), project("two")], "next_cursor": "more"})]
    got, double = driven.do(script, driven.take(None, lambda client: client.iter_projects(most=2)))
    assert len(got) == 2
    assert len(double.requests) == 1


def test_a_list_without_end_ends_at_its_first_empty_page(driven: ClientUnderTest) -> None:
    pages = [answer(200, {"items": [], "next_cursor": "always"})]
    got, _ = driven.do(pages, driven.take(None, lambda client: client.iter_project_events("prj_vision")))
    assert got == []


def test_the_observer_gets_every_attempt_without_secrets(driven: ClientUnderTest) -> None:
    seen: list[Exchange] = []
    script = [httpx.ConnectError("refused"), answer(201, project(), idempotency_replayed="true")]
    driven.do(
        script,
        lambda client: client.create_project("ten_acme", slug="vision", display_name="V"),
        settings=ClientSettings(observe=seen.append),
    )
    assert [(each.attempt, each.status, each.replayed) for each in seen] == [(1, None, False), (2, 201, True)]
    assert seen[1].correlation_id == "cor_1"
    assert "secret-token" not in repr(seen)


def test_no_token_is_in_any_representation_exception_or_log(
    driven: ClientUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    shown: list[str] = []

    def act(client: object) -> object:
        shown.append(repr(client) + repr(vars(client)) + repr(client._driver.session))  # type: ignore[attr-defined]
        return client.get_project("prj_vision")  # type: ignore[attr-defined]

    with caplog.at_level(logging.DEBUG), pytest.raises(errors.PermissionDenied) as caught:
        driven.do([problem(403, "permission_denied")], act)
    for text in (*shown, str(caught.value), repr(caught.value), repr(vars(caught.value)), caplog.text):
        assert "secret-token" not in text
