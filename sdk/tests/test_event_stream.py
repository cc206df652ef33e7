"""The follower of events survives every kind of break, misses nothing and repeats nothing."""

import json

import httpx
import pytest

from mooring_sdk import ClientSettings, ConnectionFailed, RetryPolicy, UnexpectedAnswer, errors
from mooring_sdk.event_stream import MESSAGE_LENGTH_MAX, StreamMessage, StreamParser
from sdk.tests.support.fake_platform import ChunkedBody, ClientUnderTest, answer, event, problem, server_sent, stream
from sdk.tests.test_credentials import account
from tests.support.rows import every_row

OPENED = b": the stream is open\nretry: 1000\nid: c0\n\n"


def numbers(events: list[object]) -> list[int]:
    return [each.data["number"] for each in events]  # type: ignore[attr-defined]


def test_events_come_in_order_and_the_last_cursor_is_sent_after_a_break(driven: ClientUnderTest) -> None:
    script = [
        stream(OPENED, server_sent(1), server_sent(2), httpx.ReadError("gone")),
        httpx.ConnectError("refused"),
        problem(503, "temporarily_unavailable", retryable=True),
        stream(server_sent(3)),
        stream(server_sent(4)),
    ]
    got, double = driven.do(script, driven.take(4, lambda client: client.follow_events(project_id="prj_vision")))
    assert numbers(got) == [1, 2, 3, 4]
    assert double.header("last-event-id") == [None, "c2", "c2", "c2", "c3"]
    assert {request.url.path for request in double.requests} == {"/api/v1/projects/prj_vision/events/stream"}


def test_an_event_that_is_sent_again_is_handed_out_once(driven: ClientUnderTest) -> None:
    script = [stream(server_sent(1), httpx.ReadError("gone")), stream(server_sent(1), server_sent(2))]
    got, _ = driven.do(script, driven.take(2, lambda client: client.follow_events(tenant_id="ten_acme")))
    assert numbers(got) == [1, 2]


def test_an_event_that_was_cut_off_is_handed_out_whole_later(driven: ClientUnderTest) -> None:
    whole = server_sent(2)
    script = [
        stream(server_sent(1), whole[: len(whole) // 2], httpx.ReadError("gone")),
        stream(whole, server_sent(3)),
    ]
    got, double = driven.do(script, driven.take(3, lambda client: client.follow_events()))
    assert numbers(got) == [1, 2, 3]
    assert double.header("last-event-id") == [None, "c1"]


def test_a_follower_that_is_cut_off_before_the_first_event_goes_on_from_where_it_began(driven: ClientUnderTest) -> None:
    script = [stream(OPENED, httpx.ReadError("gone")), stream(server_sent(1))]
    got, double = driven.do(script, driven.take(1, lambda client: client.follow_events()))
    assert numbers(got) == [1]
    assert double.header("last-event-id") == [None, "c0"]


def test_a_heartbeat_moves_the_cursor_without_an_event(driven: ClientUnderTest) -> None:
    script = [stream(server_sent(1), b": still here\nid: c9\n\n"), stream(server_sent(10))]
    got, double = driven.do(script, driven.take(2, lambda client: client.follow_events()))
    assert numbers(got) == [1, 10]
    assert double.header("last-event-id") == [None, "c9"]


def test_a_stream_begins_where_the_caller_says(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        [stream(server_sent(6))],
        driven.take(
            1,
            lambda client: client.follow_events(project_id="prj_vision", cursor="c5", correlation_id="only-this"),
        ),
    )
    assert double.header("last-event-id") == ["c5"]
    assert dict(double.requests[0].url.params) == {"correlation_id": "only-this"}


def test_an_expired_cursor_is_raised_with_its_remedy_and_not_passed_over(driven: ClientUnderTest) -> None:
    script = [stream(server_sent(1)), problem(410, "cursor_expired")]

    with pytest.raises(errors.CursorExpired) as caught:
        driven.do(script, driven.take(None, lambda client: client.follow_events(project_id="prj_vision")))
    assert caught.value.remedy == "the remedy of cursor_expired"


def test_a_stream_that_the_server_ends_because_the_token_ended_goes_on_with_a_new_one(driven: ClientUnderTest) -> None:
    issued = 0

    def script(request: httpx.Request) -> httpx.Response:
        nonlocal issued
        if request.url.path == "/api/v1/oauth/token":
            issued += 1
            return answer(200, {"access_token": f"mrga_{issued}", "token_type": "Bearer", "expires_in": 900})
        if request.headers["authorization"] == "Bearer mrga_2":
            return stream(server_sent(2))
        if "last-event-id" in request.headers:
            return problem(401, "unauthenticated")
        return stream(server_sent(1), b'event: closed\ndata: {"reason": "the token ended"}\n\n')

    got, double = driven.do(script, driven.take(2, lambda client: client.follow_events()), credentials=account())
    assert numbers(got) == [1, 2]
    assert issued == 2
    assert [each for each in double.header("authorization") if each] == [
        "Bearer mrga_1",
        "Bearer mrga_1",
        "Bearer mrga_2",
    ]


def test_a_revoked_token_ends_the_stream_with_an_error(driven: ClientUnderTest) -> None:
    script = [stream(server_sent(1)), problem(401, "unauthenticated")]
    with pytest.raises(errors.Unauthenticated):
        driven.do(script, driven.take(None, lambda client: client.follow_events()))


def test_pauses_grow_without_events_and_restart_after_one(driven: ClientUnderTest) -> None:
    script = [
        httpx.ConnectError("refused"),
        httpx.ConnectError("refused"),
        stream(server_sent(1)),
        stream(server_sent(2)),
    ]
    settings = ClientSettings(retry=RetryPolicy(first_pause_seconds=1))
    driven.do(script, driven.take(2, lambda client: client.follow_events()), settings=settings)
    assert driven.clock.pauses == [1.0, 2.0, 1.0]


def test_the_pause_that_the_stream_asks_for_is_kept(driven: ClientUnderTest) -> None:
    script = [stream(b"retry: 5000\n\n", server_sent(1)), stream(server_sent(2))]
    driven.do(script, driven.take(2, lambda client: client.follow_events()))
    assert driven.clock.pauses[0] >= 5


def test_a_server_that_stays_away_is_given_up_after_a_time(driven: ClientUnderTest) -> None:
    settings = ClientSettings(retry=RetryPolicy(stream_give_up_seconds=60))
    with pytest.raises(ConnectionFailed):
        driven.do(
            lambda request: httpx.ConnectError("refused"),
            driven.take(None, lambda client: client.follow_events()),
            settings=settings,
        )
    assert 60 <= driven.clock.now - 1_000.0 <= 90


def test_a_silent_stream_has_a_time_out(driven: ClientUnderTest) -> None:
    _, double = driven.do(
        [stream(server_sent(1))],
        driven.take(1, lambda client: client.follow_events()),
        settings=ClientSettings(stream_silence_seconds=33),
    )
    assert double.requests[0].extensions["timeout"]["read"] == 33


def test_leaving_the_iteration_closes_the_connection(driven: ClientUnderTest) -> None:
    pieces = ChunkedBody(server_sent(1), server_sent(2))
    opened = httpx.Response(200, stream=pieces, headers={"content-type": "text/event-stream"})
    driven.do([opened], driven.take(1, lambda client: client.follow_events()))
    assert pieces.closed


def test_a_response_that_is_not_a_stream_is_an_error(driven: ClientUnderTest) -> None:
    with pytest.raises(UnexpectedAnswer, match="event stream"):
        driven.do([answer(200, {})], driven.take(1, lambda client: client.follow_events()))


def test_two_places_at_once_are_a_mistake(driven: ClientUnderTest) -> None:
    with pytest.raises(ValueError, match="not both"):
        driven.do([], lambda client: client.follow_events(project_id="p_1", tenant_id="t_1"))


@every_row("end", [b"\n", b"\r\n", b"\r"])
def test_the_parser_takes_every_end_of_line_wherever_the_pieces_are_cut(end: bytes) -> None:
    text = b": hello\nid: 7\nevent: kind\ndata: one\ndata: two \xe2\x82\xac\n\nid: 8\n\ndata:three\n\n".replace(
        b"\n", end
    )
    wanted = [
        StreamMessage("7", "kind", "one\ntwo €"),
        StreamMessage("8", "message", None),
        StreamMessage(None, "message", "three"),
    ]
    for size in range(1, len(text)):
        parser = StreamParser()
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        found = [message for piece in pieces for message in parser.feed(piece)]
        if end == b"\r":
            found += list(parser.feed(b"\n"))  # a carriage return may be half of a line ending until more arrives
        assert found == wanted


def test_a_line_without_end_is_refused() -> None:
    parser = StreamParser()
    assert list(parser.feed(b"x" * MESSAGE_LENGTH_MAX)) == []
    with pytest.raises(UnexpectedAnswer, match="size limit"):
        list(parser.feed(b"x"))


def test_an_event_keeps_its_unknown_fields_out_of_the_model(driven: ClientUnderTest) -> None:
    data = json.dumps({**event(1), "invented_later": 5})
    got, _ = driven.do(
        [stream(f"id: c1\ndata: {data}\n\n".encode())], driven.take(1, lambda client: client.follow_events())
    )
    assert got[0].cursor == "c1"
