"""Parts of logs: bounded, in order, no byte twice, and gaps are reported."""

import os
import random
from pathlib import Path

import pytest

from agent.tests.supervisor.test_segmented_log import writer
from mooring_agent.hosts.contract import LogPart, LogRequest
from mooring_agent.hosts.log_parts import last_lines, read_container_log, read_service_log, trim_partial_character
from tests.support.rows import every_row

STAMP = "2026-01-01T12:00:00.{:09d}+00:00"


def entry(number: int, text: bytes, *, ends: bool = True, stream: str = "stdout") -> bytes:
    """An entry as a container's monitor writes it."""
    return f"{STAMP.format(number)} {stream} {'F' if ends else 'P'} ".encode() + text + b"\n"


def after(offset: int, max_bytes: int, log: str = "") -> LogRequest:
    """A request for what follows an offset."""
    return LogRequest(offset, 0, max_bytes, log)


def walk(path: Path, max_bytes: int, *, container: bool) -> list[LogPart]:
    """All parts, from the beginning to the end."""
    parts: list[LogPart] = []
    place, log = 0, ""
    while True:
        part = (read_container_log if container else read_service_log)(str(path), after(place, max_bytes, log))
        assert part is not None
        assert len(part.content) <= max_bytes
        if not part.content:
            return parts
        parts.append(part)
        place, log = part.next_offset, part.log


@pytest.mark.parametrize("max_bytes", [1, 7, 99, 100, 101, 5_000])
def test_the_parts_of_a_services_log_are_the_log(tmp_path: Path, max_bytes: int) -> None:
    log = writer(tmp_path / "log")
    content = random.Random(max_bytes).randbytes(550)
    log.write(content)
    log.close()
    parts = walk(tmp_path / "log", max_bytes, container=False)
    assert b"".join(part.content for part in parts) == content
    assert all(not part.truncated_before and part.size == 550 for part in parts)


def test_a_part_never_crosses_a_gap_and_the_next_one_says_what_was_dropped(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    for number in range(1000):
        log.write(b"%09d\n" % number)
    log.close()
    parts = walk(tmp_path / "log", 100_000, container=False)
    assert [(part.offset, part.next_offset, part.dropped_bytes) for part in parts] == [
        (0, 200, None),
        (9_600, 10_000, 9_400),
    ]
    assert [part.truncated_before for part in parts] == [False, True]
    assert b"dropped" not in b"".join(part.content for part in parts)


def test_an_offset_beyond_the_end_is_the_end(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    log.write(b"short\n")
    log.close()
    part = read_service_log(str(tmp_path / "log"), after(10**9, 100))
    assert part == LogPart(b"", 6, 6, 6)


def test_the_last_lines_of_a_service_are_whole_and_bounded(tmp_path: Path) -> None:
    log = writer(tmp_path / "log", 1_000_000, 8_000_000)
    log.write(b"".join(b"line %d\n" % number for number in range(1000)) + b"half")
    log.close()
    three = read_service_log(str(tmp_path / "log"), LogRequest(None, 3, 4_096))
    many = read_service_log(str(tmp_path / "log"), LogRequest(None, 10_000, 30))
    assert three is not None
    assert many is not None
    assert (three.content, three.next_offset) == (b"line 998\nline 999\nhalf", three.size)
    assert three.offset == three.size - len(three.content)
    assert many.content == b"line 998\nline 999\nhalf"


def test_a_missing_log_reads_as_none(tmp_path: Path) -> None:
    assert read_service_log(str(tmp_path / "none"), after(0, 100)) is None
    assert read_container_log(str(tmp_path / "none"), after(0, 100)) is None


@pytest.mark.parametrize("max_bytes", [1, 5, 64, 1_000, 100_000])
def test_the_parts_of_a_containers_log_are_what_it_said(tmp_path: Path, max_bytes: int) -> None:
    chance = random.Random(max_bytes)
    path, said = tmp_path / "ctr.log", b""
    with path.open("wb") as file:
        for number in range(200):
            text, ends = bytes(chance.choices(range(32, 127), k=chance.randrange(60))), chance.random() < 0.8
            file.write(entry(number, text, ends=ends, stream=chance.choice(["stdout", "stderr"])))
            said += text + (b"\n" if ends else b"")
        file.write(entry(200, b"still being writt")[:-1])
    parts = walk(path, max_bytes, container=True)
    assert b"".join(part.content for part in parts) == said


def test_an_offset_within_an_entry_gives_the_rest_of_its_text(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    whole = entry(1, b"abcdef") + entry(2, b"ghi", ends=False) + entry(3, b"jkl")
    path.write_bytes(whole)
    for place in range(len(whole) + 1):
        part = read_container_log(str(path), after(place, 1_000))
        assert part is not None
        assert b"abcdef\nghijkl\n".endswith(part.content)
        assert part.next_offset in (len(whole), place)
    within = read_container_log(str(path), after(whole.index(b"cdef"), 1_000))
    assert within is not None
    assert within.content == b"cdef\nghijkl\n"


def test_a_containers_log_that_was_replaced_is_read_from_its_beginning_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(b"".join(entry(number, b"old") for number in range(10)))
    old = read_container_log(str(path), after(0, 10_000))
    assert old is not None
    fresh = tmp_path / "ctr.log.tmp"
    fresh.write_bytes(b"".join(entry(1_000 + number, b"new") for number in range(30)))
    os.replace(fresh, path)
    grown = read_container_log(str(path), after(old.next_offset, 10_000, old.log))
    assert grown is not None
    assert (grown.content, grown.truncated_before, grown.dropped_bytes) == (b"new\n" * 30, True, None)
    assert grown.log != old.log
    shorter = read_container_log(str(path), after(10**6, 10_000))
    assert shorter is not None
    assert (shorter.offset, shorter.truncated_before) == (0, True)


def test_the_last_lines_of_a_container_begin_where_they_say(tmp_path: Path) -> None:
    path = tmp_path / "ctr.log"
    path.write_bytes(b"".join(entry(number, b"line %d" % number) for number in range(20_000)))
    tail = read_container_log(str(path), LogRequest(None, 3, 4_096))
    assert tail is not None
    assert tail.content == b"line 19997\nline 19998\nline 19999\n"
    again = read_container_log(str(path), after(tail.offset, 4_096, tail.log))
    assert again is not None
    assert (again.content, again.next_offset) == (tail.content, tail.next_offset)


def test_a_containers_log_is_never_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(entry(1, b"of somebody else"))
    (tmp_path / "ctr.log").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        read_container_log(str(tmp_path / "ctr.log"), after(0, 100))


def test_characters_are_not_cut() -> None:
    text = "aé€𝄞".encode()
    assert [trim_partial_character(text[:end]).decode() for end in range(1, len(text) + 1)] == [
        "a",
        "a",
        "aé",
        "aé",
        "aé",
        "aé€",
        "aé€",
        "aé€",
        "aé€",
        "aé€𝄞",
    ]
    assert trim_partial_character(b"\x80\x80\x80\x80") == b"\x80\x80\x80\x80"


@every_row(
    ("data", "count", "is_cut", "kept"),
    [
        (b"", 3, False, b""),
        (b"\n", 1, False, b"\n"),
        (b"a\nb\nc", 2, False, b"b\nc"),
        (b"a\nb\nc\n", 2, False, b"b\nc\n"),
        (b"a\nb\nc\n", 9, False, b"a\nb\nc\n"),
        (b"alf\nb\n", 9, True, b"b\n"),
        (b"one long line", 9, True, b"one long line"),
        (b"end of it\n", 9, True, b"end of it\n"),
    ],
)
def test_lines_are_counted_from_the_end(data: bytes, count: int, is_cut: bool, kept: bytes) -> None:
    assert last_lines(data, count, is_cut) == kept
