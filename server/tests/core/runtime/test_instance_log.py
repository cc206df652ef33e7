"""Lines of several programs as one log: by the times that they print, filtered in linear time, resumed by a cursor."""

from datetime import UTC, datetime

import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.instance_log import (
    LINE_BYTES_MAX,
    LineFilter,
    LogPlace,
    LogProgram,
    cursor_of,
    lines_of,
    merged,
    places_of,
    time_of,
)
from mooring.core.runtime.member_log import LogPart, MemberProgram
from server.tests.core.runtime.test_why import member
from tests.support.rows import every_row

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SOURCE = LogProgram(member(), MemberProgram("web", "service"))
OTHER = LogProgram(member(id="mem_2", name="web-1"), MemberProgram("web", "service"))


def part(content: bytes, offset: int = 0) -> LogPart:
    end = offset + len(content)
    return LogPart(content, offset, end, end, truncated_before=False, dropped_bytes=None, log="")


@every_row(
    "line, time",
    [
        (b"2026-01-01T10:00:00Z up", "2026-01-01T10:00:00+00:00"),
        (b"[2026-01-01 10:00:00,250] up", "2026-01-01T10:00:00.250000+00:00"),
        (b"INFO 2026-01-01T10:00:00.123456789+02:00 up", "2026-01-01T08:00:00.123456+00:00"),
        (b"2026-13-01T10:00:00Z", None),
        (b"up since 2026", None),
        (b"", None),
    ],
)
def test_the_time_that_a_line_begins_with_is_read_in_its_usual_forms(line: bytes, time: str | None) -> None:
    found = time_of(line)
    assert (None if found is None else found.isoformat()) == time


def test_lines_are_merged_by_time_and_those_of_one_program_keep_their_order() -> None:
    one = lines_of(SOURCE, part(b"2026-01-01T10:00:02Z a\n  its second line\n2026-01-01T10:00:01Z late\n"))
    two = lines_of(OTHER, part(b"no time\n2026-01-01T10:00:01Z first\n2026-01-01T10:00:03Z last\nunfinish"))
    shown = [line.text.rpartition("Z ")[2] for line in merged([one, two], NOW)]
    assert shown == ["no time", "first", "a", "  its second line", "late", "last", "unfinish"]
    assert [line.ends for line in two] == [True, True, True, False]
    assert [line.offset for line in two] == [0, 8, 35, 61]
    long = lines_of(SOURCE, part(b"x" * (LINE_BYTES_MAX + 1) + b"\n", 5))
    assert [(line.offset, len(line.text), line.ends) for line in long] == [
        (5, LINE_BYTES_MAX, False),
        (5 + LINE_BYTES_MAX, 1, True),
    ]


def test_a_filter_takes_text_or_a_pattern_of_the_safe_subset_and_stops_when_it_cost_enough() -> None:
    lines = lines_of(SOURCE, part(b"GET /a 200\nget /b 500\nPOST /c 500\n"))

    def taken(given: LineFilter) -> list[str]:
        return [each.text for each in given.of(lines) or ()]

    assert taken(LineFilter("GET")) == ["GET /a 200"]
    assert taken(LineFilter("get", ignores_case=True)) == ["GET /a 200", "get /b 500"]
    assert taken(LineFilter("(?:GET|POST) .*[45][0-9]{2}", is_pattern=True)) == ["POST /c 500"]
    for refused in ("(a+)+", "a**", "(?=x)"):
        with pytest.raises(Refusal) as wrong:
            LineFilter(refused, is_pattern=True)
        assert wrong.value.code is Code.VALIDATION_FAILED
    costly = LineFilter("x{500}", is_pattern=True)
    many = lines_of(SOURCE, part((b"y" * 10_000 + b"\n") * 20))
    assert (costly.of(many), costly.is_spent) == (None, True)


def test_a_cursor_comes_back_as_it_went_and_one_that_was_changed_is_refused() -> None:
    places = {SOURCE.key: LogPlace(7, "0a"), OTHER.key: LogPlace(0)}
    assert places_of(cursor_of(places)) == places
    for wrong in ("e30x", "!", cursor_of({SOURCE.key: LogPlace(-1)}), cursor_of({SOURCE.key: LogPlace(1, "../x")})):
        with pytest.raises(Refusal) as refused:
            places_of(wrong)
        assert refused.value.code is Code.CURSOR_INVALID
